"""MQTT inside WebSocket frames towards mosquitto and Sluice, and what servers that do it wrong are told apart by."""

from __future__ import annotations

import asyncio
import contextlib
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha1
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridges.mqtt.server import parse_server
from bridges.mqtt.settings import MqttSettings
from broker.codec.websocket import (
    BadFrame,
    Closed,
    FrameReader,
    binary_frame_head,
    close_frame,
    masked_frame,
)
from tests.bridges.mqtt.watcher import Watcher, action, connected, connector, source, watching
from tests.support.bridges import Bridges
from tests.support.certificates import Authority
from tests.support.mqtt_server import on_loop
from tests.support.node import running as running_node
from tests.support.peers import mosquitto
from tests.support.processes import free_port
from tests.support.waiting import until

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


@dataclass(frozen=True)
class Far:
    """Another broker: its plain port, and its WebSockets."""

    kind: str
    tcp: int
    ws: str
    wss: str
    authority: Path


@pytest.fixture(scope="module", params=["mosquitto", "sluice"])
def far(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Far]:
    folder = tmp_path_factory.mktemp("far")
    authority = Authority(folder)
    server = authority.sign("server", {"CN": "far"}, ["127.0.0.1"])
    ws, wss = free_port(), free_port()
    found = (f"ws://127.0.0.1:{ws}", f"wss://127.0.0.1:{wss}", authority.file)
    if request.param == "mosquitto":
        server.key.chmod(0o644)
        lines = (
            *(f"listener {ws} 127.0.0.1", "protocol websockets"),
            *(f"listener {wss} 127.0.0.1", "protocol websockets"),
            *(f"certfile {server.cert}", f"keyfile {server.key}"),
        )
        with mosquitto(folder / "mosquitto", *lines) as peer:
            yield Far(request.param, peer.port, *found)
        return
    tls = f'ssl_options {{ certfile = "{server.cert}", keyfile = "{server.key}" }}'
    plain = f'ws.far {{ bind = "127.0.0.1:{ws}", websocket.path = "/mqtt" }}'
    listeners = f'{plain}\n wss.far {{ bind = "127.0.0.1:{wss}", {tls} }}'
    with running_node(
        folder / "node", config=f"lake.run_spark = false\nlisteners {{ {listeners} }}\n"
    ) as node:
        yield Far(request.param, node.mqtt[1], *found)


@asynccontextmanager
async def bridging() -> AsyncIterator[Bridges]:
    bridges = Bridges()
    bridges.begin()
    try:
        yield bridges
    finally:
        await bridges.end()


async def subscribed(bridges: Bridges, sender: Watcher, topic: str) -> None:
    """The source reads: something came through."""

    async def is_read() -> bool:
        await sender.publish(topic, b"first", 0)
        return bool(bridges.published.messages)

    await until(is_read)


def came(bridges: Bridges) -> list[bytes]:
    """What came behind that."""
    return [
        message.payload for message in bridges.published.messages if message.payload != b"first"
    ]


@pytest.mark.parametrize("version", ["v3", "v4", "v5"])
@on_loop
async def test_both_ways_through_a_websocket(far: Far, version: str) -> None:
    async with bridging() as bridges, watching(far.tcp, f"out/{version}") as seen:
        connector(bridges, far.tcp, server=far.ws, proto_ver=version, clientid=f"plain-{version}")
        action(bridges, topic=f"out/{version}", payload="${n}", qos=1)
        source(bridges, topics=[f"in/{version}"])
        await subscribed(bridges, seen, f"in/{version}")
        bridges.send_many(200, action="mqtt:out")
        for number in range(50):
            await seen.publish(f"in/{version}", b"%d" % number, 1 + number % 2)
        assert [int(one.payload) for one in await seen.until(200)] == list(range(200))
        await bridges.until(lambda: len(came(bridges)) >= 50)
        assert list(map(int, came(bridges))) == list(range(50))


@pytest.mark.parametrize("size", [125, 126, 65_535, 65_536, 900_000])
@on_loop
async def test_messages_of_every_length_of_a_frame_come_whole(far: Far, size: int) -> None:
    async with bridging() as bridges, watching(far.tcp, f"large/{size}") as seen:
        connector(
            bridges,
            far.tcp,
            server=far.wss,
            ssl={"cacertfile": str(far.authority)},
            clientid=f"large-{size}",
        )
        action(bridges, topic=f"large/{size}", payload="${body}", qos=1)
        source(bridges, topics=[f"back/{size}"])
        await subscribed(bridges, seen, f"back/{size}")
        body = "x" * (size - 1) + "!"
        bridges.send({"body": body, "key": "k"}, action="mqtt:out")
        [message] = await seen.until(1)
        assert message.payload.decode() == body
        await seen.publish(f"back/{size}", body.encode())
        if size > 65_536 and far.kind == "mosquitto":
            return  # 2.0.11 never sends so much to any client of its WebSocket
        await bridges.until(lambda: came(bridges))
        assert came(bridges) == [body.encode()]


@on_loop
async def test_test_of_a_connection_shows_the_websocket_as_a_step(far: Far) -> None:
    async with bridging() as bridges:
        connector(bridges, far.tcp, server=far.wss, ssl={"cacertfile": str(far.authority)})
        await connected(bridges)
        tested = await bridges.connectors.test("plant")
        assert tested["ok"], tested
        assert [step["name"] for step in tested["steps"]] == [
            "resolve", "connect", "tls", "websocket", "authenticate", "metadata",
        ]  # fmt: skip


@on_loop
async def test_close_waits_for_the_end_of_tls(far: Far) -> None:
    """A socket that is still open when its connector is closed would be a leak."""
    async with bridging() as bridges:
        connector(
            bridges,
            far.tcp,
            server=far.wss,
            ssl={"cacertfile": str(far.authority)},
            clientid="ends",
        )
        await connected(bridges)
        open_sockets = {
            one
            for one in sockets()
            if one.raddr and one.raddr.port == int(far.wss.rpartition(":")[2])
        }
        assert open_sockets
        made = bridges.feature.resources.supervisors["plant"].connector
        assert made is not None
        await made.close()
        assert not [one for one in sockets() if one in open_sockets]


def sockets() -> list[Any]:
    return [
        one
        for one in psutil.Process().net_connections("tcp")
        if one.status == psutil.CONN_ESTABLISHED
    ]


@on_loop
async def test_wrong_path_certificate_or_port_are_named(far: Far) -> None:
    async with bridging() as bridges:
        trust = {"cacertfile": str(far.authority)}
        connector(bridges, 0, name="path", server=f"{far.ws}/elsewhere", proto_ver="v4")
        connector(bridges, 0, name="certificate", server=far.wss)
        connector(bridges, 0, name="no-tls", server=far.ws.replace("ws:", "wss:"), ssl=trust)
        connector(bridges, 0, name="no-websocket", server=f"ws://127.0.0.1:{far.tcp}")

        def told(name: str) -> str:
            shown = bridges.connectors.get(name)
            return str(shown["status_reason"]) if shown["status"] == "disconnected" else ""

        await bridges.until(lambda: "is not accepted" in told("certificate"))
        await bridges.until(lambda: "no TLS with" in told("no-tls") or "closed" in told("no-tls"))
        await bridges.until(lambda: "before it opened a WebSocket" in told("no-websocket"))
        if far.kind == "sluice":  # mosquitto takes every path
            await bridges.until(
                lambda: "/elsewhere opens no WebSocket: 404 Not Found" in told("path")
            )


# Servers that do as a test tells them


@asynccontextmanager
async def server(answer: bytes, *frames: bytes) -> AsyncIterator[tuple[int, list[bytes]]]:
    """Answers the request with ``answer``, its ``{accept}`` replaced, then says ``frames``; the requests it had."""
    requests: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError), contextlib.closing(writer):
            request = await reader.readuntil(b"\r\n\r\n")
            requests.append(request)
            key = request.partition(b"Sec-WebSocket-Key: ")[2].partition(b"\r\n")[0]
            accept = b64encode(sha1(key + GUID).digest())
            writer.write(answer.replace(b"{accept}", accept) + b"".join(frames))
            await reader.read()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield listening.sockets[0].getsockname()[1], requests
    finally:
        listening.close()


def answer(status: str, *lines: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode()


SWITCHED = ("101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade")
OPENED = answer(*SWITCHED, "Sec-WebSocket-Accept: {accept}", "Sec-WebSocket-Protocol: mqtt")
WRONG = {
    "no http": (b"SSH-2.0-OpenSSH_9.2\r\n", "does not speak HTTP"),
    "not found": (answer("404 Not Found"), "opens no WebSocket: 404 Not Found"),
    "unauthorized": (answer("401 Unauthorized"), "opens no WebSocket: 401 Unauthorized"),
    "elsewhere": (answer("302 Found", "Location: https://a/b"), "302 Found; it names https://a/b"),
    "busy": (answer("503 Service Unavailable"), "opens no WebSocket: 503 Service Unavailable"),
    "odd status": (answer("999"), "opens no WebSocket: status 999"),
    "endless": (b"HTTP/1.1 101 x\r\n" + b"x: y\r\n" * 4000, "bytes of headers"),
    "other key": (
        answer(*SWITCHED, "Sec-WebSocket-Accept: nonsense"),
        "does not answer as a WebSocket does",
    ),
    "other protocol": (OPENED.replace(b": mqtt", b": wamp"), "speaks 'wamp'"),
    "closed": (
        OPENED + close_frame(1008, "go away"),
        "has closed the WebSocket with status 1008: go away",
    ),
    "text frame": (
        OPENED + b"\x81\x01a",
        "breaks the rules of WebSocket: a text frame; MQTT is in binary frames",
    ),
    "masked": (OPENED + masked_frame(2, b"abc"), "a frame of a server that is masked"),
    "reserved bits": (OPENED + b"\xc2\x01a", "a frame with reserved bits"),
    "large ping": (OPENED + b"\x89\x7e\x01\x00", "a broken control frame"),
    "out of turn": (OPENED + b"\x80\x01a", "a frame out of turn"),
    "no mqtt": (OPENED + binary_frame_head(4) + b"\x00\x00\x00\x00", "breaks the rules of MQTT"),
}


@pytest.mark.parametrize(("said", "sentence"), WRONG.values(), ids=list(WRONG))
@on_loop
async def test_servers_that_do_it_wrong_are_told_apart(said: bytes, sentence: str) -> None:
    async with bridging() as bridges, server(said) as (port, _):
        connector(bridges, port, server=f"ws://127.0.0.1:{port}")
        await bridges.until(
            lambda: sentence in bridges.connectors.get("plant")["status_reason"], sentence
        )
        assert bridges.connectors.get("plant")["status"] == "disconnected"
        tested = await bridges.connectors.test("plant")
        assert [
            step["message"]
            for step in tested["steps"]
            if step["result"] == "failed" and sentence in step["message"]
        ]


@on_loop
async def test_request_has_path_headers_and_subprotocol(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_SECRET_FAR_TOKEN", "Bearer s3cret")
    async with bridging() as bridges, server(answer("403 Forbidden")) as (port, requests):
        options = {
            "path": "/broker?tenant=7",
            "headers": {"Authorization": "${env:SLUICE_SECRET_FAR_TOKEN}", "X-Plain": "yes"},
        }
        connector(bridges, port, server=f"ws://127.0.0.1:{port}", websocket=options)
        await bridges.until(lambda: "403" in bridges.connectors.get("plant")["status_reason"])
        line, *headers = requests[0].decode().split("\r\n")
        assert line == "GET /broker?tenant=7 HTTP/1.1"
        wanted = {
            f"Host: 127.0.0.1:{port}",
            "Sec-WebSocket-Protocol: mqtt",
            "Authorization: Bearer s3cret",
        }
        assert {*wanted, "X-Plain: yes"} <= set(headers)
        shown = str(bridges.connectors.get("plant"))
        assert "s3cret" not in shown
        assert "tenant" not in bridges.connectors.get("plant")["status_reason"]


@pytest.mark.parametrize("server", ["far:1883", "ws://far/other?key=a"])
def test_settings_as_they_are_shown_can_be_sent_back(server: str) -> None:
    shown = MqttSettings.model_validate({"server": server}).model_dump(mode="json")
    again = MqttSettings.model_validate({**shown, "server": server})
    assert again.address == MqttSettings.model_validate({"server": server}).address


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "scheme": (
        {"server": "http://far"},
        "begins with http://, which is not known; write mqtt, mqtts, ws or wss",
    ),
    "port": ({"server": "ws://far:70000"}, "has no port from 1 to 65535"),
    "password": ({"server": "ws://me:secret@far"}, "without a user, got '******@far'"),
    "path": ({"server": "ws://far/a b"}, "is not the path of a WebSocket"),
    "path without websocket": ({"server": "mqtt://far/path"}, "is not an address"),
    "setting without websocket": (
        {"websocket": {"path": "/x"}},
        "'websocket' is for servers that are written",
    ),
    "two paths": ({"server": "ws://far/a", "websocket": {"path": "/b"}}, "keep one"),
    "path setting": (
        {"server": "ws://far", "websocket": {"path": "mqtt"}},
        "write '/mqtt'",
    ),
    "our header": (
        {"server": "ws://far", "websocket": {"headers": {"Host": "x"}}},
        "'Host' is set by the connector",
    ),
    "header name": (
        {"server": "ws://far", "websocket": {"headers": {"a b": "x"}}},
        "is not the name of a header",
    ),
}


@pytest.mark.parametrize(("members", "sentence"), REFUSED.values(), ids=list(REFUSED))
@on_loop
async def test_addresses_that_cannot_be_are_refused(members: dict[str, Any], sentence: str) -> None:
    async with bridging() as bridges:
        with pytest.raises(Exception, match="cannot be") as refused:
            bridges.connectors.create(
                {"name": "plant", "type": "mqtt", "server": "far:1883", **members}
            )
        assert sentence in str(refused.value) + str(getattr(refused.value, "problems", ""))


@pytest.mark.parametrize(
    ("text", "shown", "is_encrypted"),
    [
        ("far", "far:1883", False),
        ("mqtts://far", "far:8883", True),
        ("ws://far", "ws://far:80", False),
        ("wss://far/x", "wss://far:443/x", True),
        ("WSS://[::1]:9001", "wss://[::1]:9001", True),
    ],
)
def test_addresses_have_the_ports_of_their_kind(text: str, shown: str, is_encrypted: bool) -> None:
    assert (parse_server(text).shown, parse_server(text).is_encrypted) == (shown, is_encrypted)


# Frames


@given(
    st.lists(st.tuples(st.binary(max_size=300), st.booleans())),
    st.lists(st.integers(1, 50), min_size=1),
)
def test_where_the_stream_is_cut_changes_nothing(
    sent: list[tuple[bytes, bool]], cuts: list[int]
) -> None:
    stream = b"".join(
        (b"\x89\x02hi" if with_ping else b"") + binary_frame_head(len(x)) + x
        for x, with_ping in sent
    )
    frames, found, at, turn = FrameReader(1 << 20, is_client=True), b"", 0, 0
    while at < len(stream):
        size = cuts[turn % len(cuts)]
        found += frames.receive(stream[at : at + size])
        at, turn = at + size, turn + 1
    assert found == b"".join(payload for payload, _ in sent)
    assert len(frames.replies) == sum(with_ping for _, with_ping in sent)


@given(st.binary(max_size=70_000))
def test_our_listener_reads_what_our_client_writes(payload: bytes) -> None:
    assert FrameReader(1 << 20).receive(masked_frame(2, payload)) == payload


@given(st.binary(max_size=200))
def test_whatever_comes_ends_with_a_sentence_at_worst(data: bytes) -> None:
    with contextlib.suppress(BadFrame, Closed):
        FrameReader(1 << 20, is_client=True).receive(data)
