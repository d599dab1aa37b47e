"""A listener of a connector's own for what is posted: TLS, who is let in, and who is cut off."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from bridges.http_server import listener
from bridges.http_server.listener import PostListener
from bridges.http_server.receiver import PostReceiver
from bridges.http_server.settings import ListenSettings
from broker.core.receivers import Post, PostRefused
from tests.support.bridges import Bridges
from tests.support.certificates import Authority
from tests.support.connections import cut_off_at_the_end, dial
from tests.support.node import eventually
from tests.support.plain_http import NO_TLS
from tests.support.processes import free_port

TOKEN = "let me in"
WITH_TOKEN = {"Authorization": f"Bearer {TOKEN}"}
AUTHENTICATION = {"mechanism": "token", "tokens": [TOKEN]}
DEADLINE_S = 120.0


@asynccontextmanager
async def listening(**listen: Any) -> AsyncIterator[tuple[Bridges, int]]:
    """A source ``in`` at a listener of its own; the bridges and the port."""
    bridges, port = Bridges(), free_port()
    bridges.begin()
    try:
        async with asyncio.timeout(DEADLINE_S):
            spec = {
                "authentication": AUTHENTICATION,
                "listen": {"bind": f"127.0.0.1:{port}", **listen},
            }
            bridges.connectors.create(
                {**spec, "name": "web", "type": "http_server", "max_body_size": "1KB"}
            )
            parameters = {"topic": "in/${path}", "user_properties": {"who": "${query.who}"}}
            source = {
                "name": "in",
                "type": "http_server",
                "connector": "web",
                "parameters": parameters,
            }
            bridges.sources.create(source)
            await bridges.until(lambda: bridges.services.endpoints.receivers.find("in"))
            yield bridges, port
    finally:
        await bridges.end()


async def post(
    port: int, body: bytes = b"hello", path: str = "in/a", **named: Any
) -> httpx.Response:
    verify = named.pop("verify", None)
    scheme = "https" if verify else "http"
    named = {"headers": WITH_TOKEN, **named}
    async with httpx.AsyncClient(trust_env=False, verify=verify or NO_TLS) as http:
        return await http.post(f"{scheme}://127.0.0.1:{port}/ingest/{path}", content=body, **named)


def test_what_is_posted_is_taken_and_the_broker_s_own_port_says_where() -> None:
    async def check() -> None:
        async with listening() as (bridges, port):
            answer = await post(port, path="in/a%20b?who=me")
            assert (answer.status_code, answer.json()["accepted"]) == (200, 1)
            [message] = bridges.published.messages
            assert (message.topic, message.payload) == ("in/a b", b"hello")
            assert message.properties == {"User-Property": [("who", "me")]}
            elsewhere = bridges.services.endpoints.receivers.find("in")
            assert elsewhere is not None
            with pytest.raises(PostRefused, match="has a listener of its own"):
                await elsewhere.receive(Post("", {}, {}, None, lambda most: asyncio.sleep(0, b"")))

    asyncio.run(check())


def test_connections_are_used_again_and_chunks_put_together() -> None:
    async def check() -> None:
        async def pieces() -> AsyncIterator[bytes]:
            for piece in (b"one ", b"two ", b"three"):
                yield piece

        async with listening() as (bridges, port):
            async with httpx.AsyncClient(
                trust_env=False, verify=NO_TLS, headers=WITH_TOKEN
            ) as http:
                for body in (b"first", pieces(), b"last"):
                    answer = await http.post(f"http://127.0.0.1:{port}/ingest/in", content=body)
                    assert answer.status_code == 200
            assert [one.payload for one in bridges.published.messages] == [
                b"first",
                b"one two three",
                b"last",
            ]

    asyncio.run(check())


@pytest.mark.parametrize(
    ("method", "path", "headers", "body", "status", "code"),
    [
        ("POST", "/ingest/in", {}, b"x", 401, "unauthorized"),
        ("POST", "/ingest/other", WITH_TOKEN, b"x", 404, "not_found"),
        ("POST", "/api/v1/rules", WITH_TOKEN, b"x", 404, "no_such_path"),
        ("GET", "/ingest/in", WITH_TOKEN, b"", 405, "method_not_allowed"),
        ("POST", "/ingest/in", WITH_TOKEN, b"x" * 3000, 413, "too_large"),
        ("POST", "/ingest/in", WITH_TOKEN, b"x" * 300_000, 413, "too_large"),
    ],
    ids=["token", "source", "path", "method", "large", "very large"],
)
def test_what_is_refused_is_told_as_the_api_does(
    method: str, path: str, headers: dict[str, str], body: bytes, status: int, code: str
) -> None:
    async def check() -> None:
        async with (
            listening() as (bridges, port),
            httpx.AsyncClient(trust_env=False, verify=NO_TLS) as http,
        ):
            answer = await http.request(
                method, f"http://127.0.0.1:{port}{path}", headers=headers, content=body
            )
            assert (answer.status_code, answer.json()["code"]) == (status, code)
            assert answer.headers["content-type"] == "application/problem+json"
            assert bridges.published.messages == []

    asyncio.run(check())


def test_tls_with_a_certificate_and_with_one_of_the_sender(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "Other")
    server, sender = (
        authority.sign("server", {"CN": "here"}, ["127.0.0.1"]),
        authority.sign("sender", {"CN": "press"}),
    )
    stranger = other.sign("stranger", {"CN": "press"})

    def context(cert: Any = None) -> ssl.SSLContext:
        made = ssl.create_default_context(cafile=str(authority.file))
        if cert is not None:
            made.load_cert_chain(cert.cert, cert.key)
        return made

    async def check() -> None:
        async with listening(ssl=server.settings) as (bridges, port):
            assert (await post(port, verify=context())).status_code == 200
            with pytest.raises(httpx.HTTPError):
                await post(port)
            tested = await bridges.connectors.test("web")
            assert tested["ok"], tested
            assert [step["name"] for step in tested["steps"]] == ["authenticate", "tls"]
        mutual = {**server.settings, "verify": "verify_peer", "cacertfile": str(authority.file)}
        async with listening(ssl=mutual) as (_, port):
            assert (await post(port, verify=context(sender))).status_code == 200
            for one in (None, stranger):
                with pytest.raises(httpx.HTTPError):
                    await post(port, verify=context(one))

    asyncio.run(check())


def test_a_certificate_that_was_renewed_is_shown_to_who_connects_then(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.sign("server", {"CN": "localhost"}, ["127.0.0.1"])
    settings = ListenSettings.model_validate(
        {"bind": f"127.0.0.1:{free_port()}", "ssl": files.settings}
    )

    def shown(port: int) -> bytes | None:
        trusting = ssl.create_default_context(cafile=str(authority.file))
        with (
            socket.create_connection(("127.0.0.1", port)) as plain,
            trusting.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
        ):
            return secure.getpeercert(binary_form=True)

    async def check() -> None:
        served = PostListener(settings, lambda _name: None, look_s=0.01)
        await served.start()
        try:
            first = await asyncio.to_thread(shown, served.port)
            files.key.write_bytes(b"half a key")
            authority.sign("server", {"CN": "localhost"}, ["127.0.0.1"])
            await asyncio.to_thread(
                eventually, lambda: shown(served.port) != first, what="another certificate"
            )
        finally:
            await served.stop()

    asyncio.run(check())


def test_listener_ends_and_begins_with_its_connector() -> None:
    async def check() -> None:
        async with listening() as (bridges, port):
            await bridges.connectors.stop("web")
            with pytest.raises(httpx.ConnectError):
                await post(port)
            assert bridges.services.endpoints.receivers.find("in") is None
            await bridges.connectors.start("web")
            await bridges.until(lambda: bridges.services.endpoints.receivers.find("in"))
            assert (await post(port)).status_code == 200

    asyncio.run(check())


def test_who_sends_nothing_or_too_slowly_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "_HEAD_S", 0.2)

    async def check() -> None:
        async with listening() as (_, port):
            for start in (b"", b"POST /ingest/in HTTP/1.1\r\nHost: x\r\n"):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(start)
                with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                    await reader.readexactly(1)
                writer.close()
            assert (await post(port)).status_code == 200

    asyncio.run(check())


async def silent(port: int, count: int, start: bytes = b"") -> list[asyncio.StreamReader]:
    """Connections from several addresses that send no whole request."""
    readers = []
    for number in range(count):
        reader, writer = await dial(port, local_addr=(f"127.0.0.{2 + number % 3}", 0))
        writer.write(start)
        readers.append(reader)
    return readers


@pytest.mark.parametrize(
    "start", [b"", b"POST /ingest/in HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"]
)
def test_connections_without_a_token_make_room_for_senders(start: bytes) -> None:
    async def check() -> None:
        with cut_off_at_the_end():
            await served()

    async def served() -> None:
        async with listening(max_connections=4) as (_, port):
            readers = await silent(port, 30, start)
            reader, writer = await dial(port)
            for _ in range(2):
                head = f"POST /ingest/in HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
                writer.write(f"{head}Content-Length: 1\r\n\r\nx".encode())
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
                await reader.readuntil(b"}")
                await silent(port, 30, start)
            assert b"200" not in await readers[0].read()

    asyncio.run(check())


def test_a_sender_in_the_middle_of_a_body_keeps_its_connection() -> None:
    async def check() -> None:
        with cut_off_at_the_end():
            await served()

    async def served() -> None:
        async with listening(max_connections=2) as (bridges, port):
            reader, writer = await dial(port)
            head = f"POST /ingest/in HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 3\r\n"
            writer.write(head.encode() + b"Expect: 100-continue\r\n\r\n")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
            await silent(port, 30)
            writer.write(b"abc")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
            assert bridges.published.messages[0].payload == b"abc"

    asyncio.run(check())


def test_silent_handshakes_make_room_for_senders(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = authority.sign("server", {"CN": "here"}, ["127.0.0.1"])

    async def check() -> None:
        with cut_off_at_the_end():
            await served()

    async def served() -> None:
        async with listening(ssl=server.settings, max_connections=4) as (_, port):
            readers = await silent(port, 30)
            assert (
                await post(port, verify=ssl.create_default_context(cafile=str(authority.file)))
            ).status_code == 200
            assert await readers[0].read() == b""

    asyncio.run(check())


def test_where_all_are_busy_the_new_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    receive = PostReceiver.receive

    async def check() -> None:
        release = asyncio.Event()

        async def held(self: PostReceiver, sent: Post) -> Any:
            answer = await receive(self, sent)
            await release.wait()
            return answer

        monkeypatch.setattr(PostReceiver, "receive", held)
        async with listening(max_connections=1) as (bridges, port):
            first = asyncio.create_task(post(port))
            await bridges.until(lambda: bridges.published.messages)
            with pytest.raises(httpx.TransportError):
                await post(port)
            release.set()
            assert (await first).status_code == 200

    asyncio.run(check())


@pytest.mark.parametrize(
    "noise",
    [b"\x16\x03\x01\x02\x00\x01\x00", b"hello\r\n\r\n", b"POST /ingest/in HTTP/1.1\r\n\r\n"],
)
def test_what_is_no_request_is_answered_so(noise: bytes) -> None:
    async def check() -> None:
        async with listening() as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(noise + b"\r\n\r\n")
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 400 ")
            assert b"expected an HTTP/1.1 request" in answer
            writer.close()

    asyncio.run(check())


def test_a_sender_that_asks_before_its_body_is_told_to_go_on() -> None:
    async def check() -> None:
        async with listening() as (bridges, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            head = f"POST /ingest/in HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 3\r\n"
            writer.write(head.encode() + b"Expect: 100-continue\r\n\r\n")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
            writer.write(b"abc")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
            assert json.loads(await reader.readuntil(b"}"))["accepted"] == 1
            assert bridges.published.messages[0].payload == b"abc"
            writer.close()

    asyncio.run(check())


def test_a_port_in_use_and_a_certificate_that_is_not_there_are_named(tmp_path: Path) -> None:
    async def check() -> None:
        async with listening() as (bridges, port):
            files = {"certfile": str(tmp_path / "no.pem"), "keyfile": str(tmp_path / "no.key")}
            for name, listen in (
                ("second", {"bind": f"127.0.0.1:{port}"}),
                ("tls", {"bind": f"127.0.0.1:{free_port()}", "ssl": files}),
            ):
                spec = {
                    "name": name,
                    "type": "http_server",
                    "authentication": AUTHENTICATION,
                    "listen": listen,
                }
                bridges.connectors.create(spec)
            shown = bridges.connectors.get
            await bridges.until(lambda: "the port is in use" in shown("second")["status_reason"])
            await bridges.until(
                lambda: (
                    "ssl.certfile and ssl.keyfile cannot be read" in shown("tls")["status_reason"]
                )
            )

    asyncio.run(check())


@pytest.mark.parametrize(
    ("listen", "sentence"),
    [
        ({"bind": "127.0.0.1"}, "names no port"),
        ({"bind": "127.0.0.1:99999"}, "has no port from 1 to 65535"),
        (
            {"bind": "127.0.0.1:8443", "ssl": {"certfile": "/c"}},
            "certfile and keyfile belong together",
        ),
        (
            {"bind": "127.0.0.1:8443", "ssl": {"verify": "verify_peer"}},
            "verify_peer and cacertfile belong together",
        ),
    ],
    ids=["no port", "port", "certificate", "verify"],
)
def test_listeners_that_cannot_be_are_refused(listen: dict[str, Any], sentence: str) -> None:
    async def check() -> None:
        bridges = Bridges()
        bridges.begin()
        spec = {
            "name": "web",
            "type": "http_server",
            "authentication": AUTHENTICATION,
            "listen": listen,
        }
        with pytest.raises(Exception, match="cannot be") as refused:
            bridges.connectors.create(spec)
        assert sentence in str(refused.value) + str(getattr(refused.value, "problems", ""))
        await bridges.end()

    asyncio.run(check())
