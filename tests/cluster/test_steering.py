"""Each client is served by the cell of its identifier, whichever cell accepts its connection, and however it comes."""

from __future__ import annotations

import asyncio
import os
import ssl
from pathlib import Path

import pytest

from broker.cluster import steering as steering_module
from broker.cluster.switchboard import Switchboard
from broker.codec.encode import encode_packet
from broker.codec.packets import (
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    Publish,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    Will,
)
from broker.codec.websocket import binary_frame_head, masked
from broker.core import reason
from broker.net.settings import (
    ListenerSettings,
    NamedListener,
    SslListenerSettings,
    TlsSettings,
    WsListenerSettings,
    WssListenerSettings,
)
from tests.support.cells import Cells, cells
from tests.support.certificates import Authority
from tests.support.connections import dial
from tests.support.mqtt_server import on_loop
from tests.support.waiting import until
from tests.support.wire import WireClient

_REQUEST = (
    b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
)
_EACH = 6


def names(started: Cells) -> list[str]:
    """Client identifiers of all cells, often enough that each cell accepts some of another."""
    return [name for cell in range(started.count) for name in started.identifiers(_EACH, cell)]


@on_loop
async def test_plain_clients_are_in_their_own_cell(tmp_path: Path) -> None:
    async with cells(tmp_path) as started:
        for name in names(started):
            client = await WireClient.connected(started.ports[0], Connect(name))
            client.send(PingReq())
            await client.expect(PingResp)
            link = started.connection(name).link
            assert link.peer_host == "127.0.0.1"
            assert link.sock_name == f"127.0.0.1:{started.ports[0]}"


@on_loop
async def test_a_connect_may_come_byte_by_byte_and_with_packets_behind_it(tmp_path: Path) -> None:
    async with cells(tmp_path) as started:
        for name in names(started):
            client = await WireClient.open(started.ports[0], 5)
            whole = encode_packet(Connect(name, 5), 5) + encode_packet(PingReq(), 5)
            for at in range(len(whole)):
                client.send_bytes(whole[at : at + 1])
                await asyncio.sleep(0)
            assert (await client.expect(ConnAck)).reason_code == 0
            await client.expect(PingResp)
            started.connection(name)


@on_loop
async def test_a_large_connect_is_passed_whole(tmp_path: Path) -> None:
    async with cells(tmp_path) as started:
        for name in names(started):
            client = await WireClient.open(started.ports[0], 5)
            client.send(Connect(name, 5, username="u" * 40_000, password=b"p" * 40_000), PingReq())
            assert (await client.expect(ConnAck)).reason_code == 0
            await client.expect(PingResp)
            started.connection(name)


@on_loop
async def test_an_identifier_that_the_cell_chooses_is_one_of_its_own(tmp_path: Path) -> None:
    async with cells(tmp_path) as started:
        for _ in range(20):
            client = await WireClient.connected(started.ports[0], Connect("", 5))
            started.connection(client.connack.properties["Assigned-Client-Identifier"])


@on_loop
async def test_a_client_that_comes_again_takes_over_whichever_cell_accepts_it(
    tmp_path: Path,
) -> None:
    async with cells(tmp_path) as started:
        for name in names(started):
            older = await WireClient.connected(started.ports[0], Connect(name, 5))
            await WireClient.connected(started.ports[0], Connect(name, 5))
            assert (await older.expect(Disconnect)).reason_code == reason.SESSION_TAKEN_OVER
            started.connection(name)


@on_loop
async def test_what_is_no_connect_is_answered_by_the_cell_that_accepts(tmp_path: Path) -> None:
    async with cells(tmp_path) as started:
        for sent in (
            b"\xc0\0",
            b"GET / HTTP/1.1\r\n\r\n",
            b"\x16\x03\x01\0\1\1",
            b"\x10\xff\xff\xff\xff\x7f",
            b"\x10\x0c\0\4MQTT\4\2\0\0\xff\xff",
        ):
            client = await WireClient.open(started.ports[0], 5)
            client.send_bytes(sent)
            with pytest.raises(ConnectionError):
                await client.receive()


@on_loop
async def test_a_client_that_sends_no_connect_in_time_is_cut_off(tmp_path: Path) -> None:
    async with cells(tmp_path, connect_timeout=0.1) as started:
        for sent in (b"", b"\x10\x20\0"):
            client = await WireClient.open(started.ports[0], 5)
            client.send_bytes(sent)
            with pytest.raises(ConnectionError):
                await client.receive()
        assert (
            sum(
                node.metrics.value(
                    "listener_connections_refused", listener="tcp:default", reason="connect_timeout"
                )
                for node in started.nodes
            )
            == 2
        )


@on_loop
async def test_a_proxy_header_goes_along(tmp_path: Path) -> None:
    settings = ListenerSettings(bind="127.0.0.1:0", proxy_protocol="auto")
    async with cells(tmp_path, listeners=[NamedListener(settings)]) as started:
        for name in names(started):
            client = await WireClient.open(started.ports[0], 5)
            client.send_bytes(b"PROXY TCP4 127.1.2.3 127.0.0.1 5000 1883\r\n")
            client.send(Connect(name, 5))
            await client.expect(ConnAck)
            link = started.connection(name).link
            assert (link.peer_host, link.peer_port) == ("127.1.2.3", 5000)


def tls(authority: Authority, **more: object) -> TlsSettings:
    server = authority.sign("server", {"CN": "localhost"}, ["localhost", "127.0.0.1"])
    return TlsSettings.model_validate({**server.settings, **more})


def trusting(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=authority.file)


@on_loop
async def test_tls_clients_are_relayed_with_what_is_known_of_them(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    device = authority.sign("dev", {"CN": "dev-7", "O": "acme"})
    settings = SslListenerSettings(
        bind="127.0.0.1:0",
        ssl_options=tls(authority, verify="peer", cacertfile=str(authority.file)),
    )
    context = trusting(authority)
    context.load_cert_chain(device.cert, device.key)
    async with cells(tmp_path, listeners=[NamedListener(settings, "s")]) as started:
        for name in names(started):
            reader, writer = await dial(started.ports[0], ssl=context, server_hostname="localhost")
            client = WireClient(reader, writer, 5)
            client.send(Connect(name, 5))
            await client.expect(ConnAck)
            link = started.connection(name).link
            assert link.certificate is not None
            assert link.certificate.subject == "O=acme,CN=dev-7"
            assert (link.server_name, link.tls_version) == ("localhost", "TLSv1.3")
            assert link.peer_host == "127.0.0.1"
            assert link.peer_port == writer.get_extra_info("sockname")[1]
            assert link.sock_name == f"127.0.0.1:{started.ports[0]}"
        assert sum(len(steering.relayed) for steering in started.steerings) > 0


@on_loop
async def test_the_certificate_names_the_client_before_its_cell_is_looked_for(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    settings = SslListenerSettings(
        bind="127.0.0.1:0",
        ssl_options=tls(authority, verify="peer", cacertfile=str(authority.file)),
    )
    async with cells(
        tmp_path, listeners=[NamedListener(settings, "s")], peer_cert_as_clientid="cn"
    ) as started:
        for number, name in enumerate(names(started)):
            device = authority.sign(f"d{number}", {"CN": name})
            context = trusting(authority)
            context.load_cert_chain(device.cert, device.key)
            reader, writer = await dial(started.ports[0], ssl=context, server_hostname="localhost")
            client = WireClient(reader, writer, 5)
            client.send(Connect("another", 5))
            await client.expect(ConnAck)
            started.connection(name)


@on_loop
async def test_megabytes_go_both_ways_through_a_relay(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    settings = SslListenerSettings(bind="127.0.0.1:0", ssl_options=tls(authority))
    payloads = [os.urandom(700_000) for _ in range(6)]
    async with cells(
        tmp_path, listeners=[NamedListener(settings, "s")], max_packet_size=2_000_000
    ) as started:
        for name in names(started):
            reader, writer = await dial(
                started.ports[0], ssl=trusting(authority), server_hostname="localhost"
            )
            client = WireClient(reader, writer, 5)
            client.send(Connect(name, 5), Subscribe(1, [SubscriptionRequest(f"to/{name}", 1)]))
            await client.expect(ConnAck)
            await client.expect(SubAck)
            for number, payload in enumerate(payloads):
                client.send(Publish(f"to/{name}", payload, 1, packet_id=number + 1))
            received = [await _next_publish(client) for _ in payloads]
            assert [publish.payload for publish in received] == payloads


@on_loop
async def test_a_connect_of_megabytes_harms_no_other_client(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    settings = SslListenerSettings(bind="127.0.0.1:0", ssl_options=tls(authority))
    properties = {"User-Property": [(f"p{number}", "v" * 60_000) for number in range(40)]}

    async def connecting(port: int, connect: Connect) -> WireClient:
        reader, writer = await dial(port, ssl=trusting(authority), server_hostname="localhost")
        client = WireClient(reader, writer, 5)
        client.send(connect)
        return client

    async with cells(
        tmp_path,
        listeners=[NamedListener(settings, "s")],
        max_packet_size_before_connect=4_000_000,
    ) as started:
        others = [await connecting(started.ports[0], Connect(name, 5)) for name in names(started)]
        for other in others:
            assert (await other.expect(ConnAck)).reason_code == 0
        for name in names(started):
            client = await connecting(
                started.ports[0], Connect(f"{name}-", 5, properties=properties)
            )
            assert (await client.expect(ConnAck)).reason_code == reason.QUOTA_EXCEEDED
        for other in others:
            other.send(PingReq())
            await other.expect(PingResp)


async def _send_on(writer: asyncio.StreamWriter, data: bytes) -> None:
    while True:
        writer.write(data)
        await writer.drain()


@on_loop
async def test_what_is_around_a_connect_has_a_limit(tmp_path: Path) -> None:
    """Pings of a WebSocket before the CONNECT, of somebody who never has to log in."""
    authority = Authority(tmp_path)
    named = NamedListener(WssListenerSettings(bind="127.0.0.1:0", ssl_options=tls(authority)), "w")
    ping = bytes((0x89, 0x80 | 100)) + bytes(4) + bytes(100)
    async with cells(tmp_path, listeners=[named]) as started:
        reader, writer = await dial(
            started.ports[0], ssl=trusting(authority), server_hostname="localhost"
        )
        writer.write(_REQUEST)
        await reader.readuntil(b"\r\n\r\n")
        with pytest.raises(ConnectionError):
            await _send_on(writer, ping * 100)
        refused = [
            node.metrics.value(
                "listener_connections_refused", listener="wss:w", reason="connect_size"
            )
            for node in started.nodes
        ]
        assert sum(refused) == 1


@on_loop
async def test_a_cell_that_stops_has_relayed_clients_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steering_module, "WAIT_S", 0.5)
    authority = Authority(tmp_path)
    settings = SslListenerSettings(bind="127.0.0.1:0", ssl_options=tls(authority))
    async with cells(tmp_path, listeners=[NamedListener(settings, "s")]) as started:
        started.accept_only_in(0)
        [first, second] = started.identifiers(2, 1)
        for name, expected in ((first, 0), (second, reason.SERVER_UNAVAILABLE)):
            reader, writer = await dial(
                started.ports[0], ssl=trusting(authority), server_hostname="localhost"
            )
            client = WireClient(reader, writer, 5)
            client.send(Connect(name, 5))
            assert (await client.expect(ConnAck)).reason_code == expected
            started.steerings[1].part()
        assert len(started.steerings[0]._trunks) == 1  # however often it was refused


async def _next_publish(client: WireClient) -> Publish:
    while True:
        packet = await client.receive()
        if isinstance(packet, Publish):
            return packet


async def ended(started: Cells, name: str) -> None:
    """Wait until a client's session is gone."""
    sessions = started.node_of(name).server.hub.sessions
    await until(lambda: name not in sessions.by_client_id)


@on_loop
async def test_ends_are_the_same_through_a_relay(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    settings = SslListenerSettings(bind="127.0.0.1:0", ssl_options=tls(authority))
    async with cells(tmp_path, listeners=[NamedListener(settings, "s")]) as started:

        async def connected(name: str) -> WireClient:
            reader, writer = await dial(
                started.ports[0], ssl=trusting(authority), server_hostname="localhost"
            )
            client = WireClient(reader, writer, 5)
            client.send(Connect(name, 5, will=Will("gone", b"w")))
            await client.expect(ConnAck)
            return client

        for name in names(started):
            node = started.node_of(name)
            client = await connected(name)
            client.send(Disconnect())
            await ended(started, name)
            client = await connected(name)
            client._writer.transport.abort()
            await ended(started, name)
            client = await connected(name)
            node.kick(name)
            assert (await client.expect(Disconnect)).reason_code == reason.ADMINISTRATIVE_ACTION
            with pytest.raises(ConnectionError):
                await client.receive()
        await until(lambda: not any(steering.relayed for steering in started.steerings))


def frame(payload: bytes) -> bytes:
    head, mask = binary_frame_head(len(payload)), os.urandom(4)
    return bytes((0x82, head[1] | 0x80)) + head[2:] + mask + masked(payload, mask)


@pytest.mark.parametrize("is_secure", [False, True])
def test_websockets(tmp_path: Path, is_secure: bool) -> None:
    @on_loop
    async def test() -> None:
        authority = Authority(tmp_path)
        named = NamedListener(WsListenerSettings(bind="127.0.0.1:0"), "w")
        options: dict[str, object] = {}
        if is_secure:
            secured = WssListenerSettings(bind="127.0.0.1:0", ssl_options=tls(authority))
            named = NamedListener(secured, "w")
            options = {"ssl": trusting(authority), "server_hostname": "localhost"}
        async with cells(tmp_path, listeners=[named]) as started:
            for name in names(started):
                reader, writer = await dial(started.ports[0], **options)
                writer.write(_REQUEST)
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 101 ")
                connect = encode_packet(Connect(name, 5), 5)
                writer.write(frame(connect[:5]) + frame(connect[5:]))
                assert (await reader.readexactly(3))[2] == 0x20
                started.connection(name)
                writer.close()

    test()


@on_loop
async def test_a_request_that_opens_no_websocket_is_answered(tmp_path: Path) -> None:
    named = NamedListener(WsListenerSettings(bind="127.0.0.1:0"), "w")
    async with cells(tmp_path, listeners=[named]) as started:
        reader, writer = await dial(started.ports[0])
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 426 ")


@on_loop
async def test_connections_wait_for_a_cell_that_restarts(tmp_path: Path) -> None:
    async with cells(tmp_path, begins=lambda number: number == 0) as started:
        started.accept_only_in(0)
        # more than the queue of the cell's socket takes
        waiting = [await WireClient.open(started.ports[0], 5) for _ in started.identifiers(40, 1)]
        for client, name in zip(waiting, started.identifiers(40, 1), strict=True):
            client.send(Connect(name, 5))
        await until(
            lambda: sum(len(t.waiting) for s in started.steerings for t in s._targets.values()) > 0
        )
        started.steerings[1].begin(started.nodes[1].server.listeners)
        for client in waiting:
            assert (await client.expect(ConnAck)).reason_code == 0


@on_loop
async def test_a_client_whose_cell_does_not_take_it_is_refused_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steering_module, "WAIT_S", 0.2)
    async with cells(tmp_path, begins=lambda number: number == 0) as started:
        started.accept_only_in(0)
        waiting = [await WireClient.open(started.ports[0], 5) for _ in started.identifiers(60, 1)]
        for client, name in zip(waiting, started.identifiers(60, 1), strict=True):
            client.send(Connect(name, 5))
        codes = asyncio.gather(*(client.expect(ConnAck) for client in waiting))
        await until(
            lambda: (
                sum(
                    node.metrics.value("listener_connections_accepted", listener="tcp:default")
                    for node in started.nodes
                )
                >= 1
            )
        )
        started.steerings[1].begin(started.nodes[1].server.listeners)
        refused = [answer.reason_code for answer in await codes]
        assert set(refused) == {0, reason.SERVER_UNAVAILABLE}


@on_loop
async def test_a_supervisor_that_comes_again_gets_the_sockets_back(tmp_path: Path) -> None:
    async with cells(tmp_path) as started:
        killed = started.switchboard
        asyncio.get_running_loop().remove_reader(killed._control)
        killed._control.close()
        for channel in list(killed._cells):
            killed._lose(channel)
        started.heard.pids.clear()
        started.switchboard = Switchboard(tmp_path, started.heard)
        await until(lambda: started.heard.pids == {0: os.getpid(), 1: os.getpid()})
        for name in names(started):
            await WireClient.connected(started.ports[0], Connect(name))
            started.connection(name)
        assert started.switchboard._passed[0].getsockname() == killed._passed[0].getsockname()
        assert started.switchboard._listening.keys() == killed._listening.keys()
        for sock in [
            *killed._passed.values(),
            *killed._listening[next(iter(killed._listening))].sockets,
        ]:
            sock.close()
