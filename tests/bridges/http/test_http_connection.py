"""How services are reached: connections, TLS, credentials, proxies; and connectors that cannot be."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.config.ssrf import AddressGuard, SsrfSettings
from broker.core.errors import Invalid
from tests.support.bridges import FAST_CONNECTOR, Bridges
from tests.support.certificates import Authority
from tests.support.http_bridge import ACTION, failed, one_row, run, sent
from tests.support.http_service import Received, Reply, Service
from tests.support.processes import free_port

# Connections


def test_connections_are_kept_and_no_more_than_allowed() -> None:
    async def check(bridges: Bridges, _service: Service) -> None:
        for number in range(100):
            bridges.send({"n": number}, ACTION, client=f"c{number % 20}")
        await sent(bridges, 100)

    service = run(check, {}, connector={"pool_size": 3})
    assert service.most_at_once <= 3
    assert service.connections <= 3


def test_a_pool_that_is_the_limit_is_named() -> None:
    never = asyncio.Event()

    async def check(bridges: Bridges, _service: Service) -> None:
        for number in range(40):
            bridges.send({"n": number}, ACTION, client=f"c{number}")
        await bridges.until(lambda: "pool_size is 1" in bridges.actions.get("out")["status_reason"])

    run(
        check,
        {},
        lambda r: Reply(waits_for=never),
        connector={"pool_size": 1},
        request_timeout="500ms",
    )


def test_a_request_without_an_answer_is_sent_again() -> None:
    never, times = asyncio.Event(), [1]

    async def check(bridges: Bridges, _service: Service) -> None:
        bridges.send({"n": 1}, ACTION)
        await bridges.until(
            lambda: "no answer within" in bridges.actions.get("out")["status_reason"]
        )
        await sent(bridges, 1)
        assert bridges.connectors.get("plant")["status"] == "connected", "the others go on"

    run(
        check,
        {},
        lambda r: Reply(waits_for=never) if times and times.pop() else Reply(),
        request_timeout="300ms",
    )


def test_a_connection_that_was_closed_meanwhile_is_no_outage() -> None:
    async def check(bridges: Bridges, service: Service) -> None:
        bridges.send({"n": 1}, ACTION)
        await sent(bridges, 1)
        service.cut()
        bridges.send({"n": 2}, ACTION)
        await sent(bridges, 2)
        assert bridges.counts()["retried"] == 0

    run(check, {})


def test_a_connection_cut_before_the_answer_is_tried_again() -> None:
    left = [True, True]

    async def check(bridges: Bridges, _service: Service) -> None:
        bridges.send({"n": 1}, ACTION)
        await sent(bridges, 1)

    service = run(check, {}, lambda request: Reply(cut=bool(left and left.pop())))
    assert len(service.received) == 3


def test_a_request_that_a_fresh_connection_did_not_answer_waits_for_its_retry() -> None:
    """Only a connection that was kept may have been closed before the request arrived."""

    async def check(bridges: Bridges, service: Service) -> None:
        bridges.send({"n": 1}, ACTION)
        await bridges.until(lambda: bridges.counts()["retried"] == 1)
        assert len(service.received) == 1
        await sent(bridges, 1)

    left = [True]
    run(check, {}, lambda request: Reply(cut=bool(left and left.pop())), retry_interval="2s")


# TLS, credentials, addresses


def _served(authority: Authority, *, asks: bool) -> ssl.SSLContext:
    files = authority.sign("server", {"CN": "localhost"}, ["localhost", "127.0.0.1"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.cert, files.key)
    if asks:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(authority.file)
    return context


def test_client_certificates(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    client = authority.sign("client", {"CN": "sluice"})
    tls = {"enable": True, "cacertfile": str(authority.file), **client.settings}
    found = one_row({"n": 1}, {}, context=_served(authority, asks=True), connector={"ssl": tls})
    assert found.json() == {"n": 1}


def test_a_server_that_wants_another_certificate_is_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    async def check(bridges: Bridges, _service: Service) -> None:
        bridges.send({"n": 1}, ACTION)
        await bridges.until(
            lambda: "client certificate" in bridges.actions.get("out")["status_reason"]
        )

    tls = {"enable": True, "cacertfile": str(authority.file)}
    run(check, {}, context=_served(authority, asks=True), connector={"ssl": tls})


def test_a_server_that_nobody_vouches_for_gets_nothing(tmp_path: Path) -> None:
    async def check(bridges: Bridges, _service: Service) -> None:
        await bridges.until(
            lambda: "certificate" in bridges.connectors.get("plant")["status_reason"]
        )
        probed = await bridges.connectors.test("plant")
        assert [step["name"] for step in probed["steps"] if step["result"] == "failed"] == ["tls"]

    service = run(check, {}, context=_served(Authority(tmp_path), asks=False))
    assert service.received == []


def _token_server(tokens: list[str]) -> Service:
    def answer(request: Received) -> Reply:
        if b"client_secret=s3cret" not in request.body:
            return Reply(401, b'{"error": "invalid_client"}')
        return Reply(200, json.dumps({"access_token": tokens.pop(0), "expires_in": 3600}).encode())

    return Service(answer)


def _oauth(server: Service, secret: str = "s3cret") -> dict[str, Any]:
    given = {
        "mechanism": "oauth",
        "endpoint_uri": f"{server.url}/token",
        "client_id": "me",
        "client_secret": secret,
    }
    return {"authentication": given}


def test_a_token_that_is_refused_is_asked_for_anew() -> None:
    server, good = _token_server(["one", "two"]), ["one"]

    async def check(bridges: Bridges, _service: Service) -> None:
        async with server:
            for number in range(3):
                bridges.send({"n": number}, ACTION)
                await sent(bridges, number + 1)
                good[0] = "two"
            assert bridges.counts()["retried"] == 0

    def answer(request: Received) -> Reply:
        return Reply(200 if request.header("authorization") == f"Bearer {good[0]}" else 401)

    run(check, {}, answer, connector=_oauth(server))
    assert len(server.taken) == 2


def test_a_client_that_gets_no_token_is_named() -> None:
    server = _token_server([])

    async def check(bridges: Bridges, _service: Service) -> None:
        async with server:
            await bridges.until(
                lambda: "invalid_client" in bridges.connectors.get("plant")["status_reason"]
            )
            probed = await bridges.connectors.test("plant")
            assert [step["name"] for step in probed["steps"] if step["result"] == "failed"] == [
                "authenticate"
            ]

    run(check, {}, connector=_oauth(server, "wrong secret"))


def test_a_token_is_not_asked_for_at_an_address_that_must_not_be_called() -> None:
    server = _token_server(["one"])
    guard = AddressGuard(
        SsrfSettings(enable=True, allow_cidrs=["127.0.0.1/32"], deny_cidrs=["127.0.0.0/8"])
    )
    connector = _oauth(server)
    connector["authentication"]["endpoint_uri"] = f"http://127.0.0.2:{server.port}/token"

    async def check(bridges: Bridges, _service: Service) -> None:
        async with server:
            await bridges.until(
                lambda: (
                    "127.0.0.2 must not be called"
                    in bridges.connectors.get("plant")["status_reason"]
                )
            )

    run(check, {}, connector=connector, guard=guard)
    assert not server.taken


def test_addresses_that_must_not_be_called_are_not() -> None:
    inner = Service()
    guard = AddressGuard(
        SsrfSettings(enable=True, allow_cidrs=["127.0.0.1/32"], deny_cidrs=["127.0.0.0/8"])
    )

    async def check(bridges: Bridges, _service: Service) -> None:
        async with inner:
            bridges.send({"n": 1}, ACTION)
            await bridges.until(
                lambda: "must not be called" in bridges.connectors.get("plant")["status_reason"],
                "the guard's reason",
            )

    service = run(check, {}, connector={"url": f"http://127.0.0.2:{inner.port}"}, guard=guard)
    assert inner.received == service.received == []


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("http://127.0.0.2:{port}/", "must not be called"),
        ("http://[::ffff:127.0.0.2]:{port}/", "must not be called"),
        ("http://metadata/latest", "must not be called"),
        ("//127.0.0.2:{port}/", "must not be called"),
        ("http://127.0.0.2.:{port}/", "is not a valid host"),
        ("http://2130706434:{port}/", "is not a valid host"),
        ("http://a..b:{port}/", "answers 307 Temporary Redirect to http://a..b"),
        ("http://127.0.0.2:99999/", "answers 307 Temporary Redirect to http://127.0.0.2:99999/"),
        ("file:///etc/hostname", "answers 307 Temporary Redirect to file:///etc/hostname"),
    ],
)
def test_a_row_that_is_redirected_to_a_forbidden_address_fails_and_the_next_is_sent(
    place: str, text: str
) -> None:
    inner = Service()
    guard = AddressGuard(
        SsrfSettings(enable=True, allow_cidrs=["127.0.0.1/32"], deny_cidrs=["127.0.0.0/8"])
    )

    def answer(request: Received) -> Reply:
        if request.json() == {"n": 1}:
            return Reply(307, b"", [("Location", place.format(port=inner.port))])
        return Reply()

    async def check(bridges: Bridges, _service: Service) -> None:
        async with inner:
            bridges.send({"n": 1}, ACTION)
            bridges.send({"n": 2}, ACTION)
            await sent(bridges, 1)
            assert text in await failed(bridges)
            assert bridges.connectors.get("plant")["status"] == "connected"

    run(check, {"max_redirects": 1}, answer, guard=guard)
    assert inner.received == []


def test_a_row_that_is_redirected_to_a_host_that_is_away_is_sent_again_without_a_new_connection() -> (
    None
):
    port, tries = free_port(), []

    def answer(request: Received) -> Reply:
        tries.append(request)
        return (
            Reply()
            if len(tries) > 2
            else Reply(307, b"", [("Location", f"http://127.0.0.1:{port}/")])
        )

    async def check(bridges: Bridges, _service: Service) -> None:
        bridges.send({"n": 1}, ACTION)
        await sent(bridges, 1)
        assert bridges.counts()["failed"] == 0

    run(check, {"max_redirects": 1}, answer)
    assert len(tries) == 3


def test_requests_go_through_a_proxy() -> None:
    def answer(request: Received) -> Reply:
        return Reply() if request.header("proxy-authorization") == "Basic YTpi" else Reply(407)

    proxy = Service(answer)

    async def check(bridges: Bridges, _service: Service) -> None:
        async with proxy:
            bridges.send({"n": 1}, ACTION)
            await sent(bridges, 1)

    settings = {"url": proxy.url, "username": "a", "password": "b"}
    run(check, {"path": "/x"}, connector={"url": "http://service.invalid:81", "proxy": settings})
    assert proxy.taken[0].target == "http://service.invalid:81/x"
    assert proxy.taken[0].header("host") == "service.invalid:81"


@asynccontextmanager
async def tunnels(
    port: int, asked: list[bytes], status: bytes = b"200 Connected"
) -> AsyncIterator[str]:
    """A proxy that makes tunnels to one port, whatever host is asked for; its address."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 " + status + b"\r\n\r\n")
        if not status.startswith(b"200"):
            writer.close()
            return
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(
            pump(reader, inner_writer), pump(inner_reader, writer), return_exceptions=True
        )

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


def test_encrypted_requests_go_through_a_tunnel(tmp_path: Path) -> None:
    authority, asked = Authority(tmp_path), list[bytes]()
    files = authority.sign("server", {"CN": "service"}, ["service.invalid"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.cert, files.key)

    async def check(bridges: Bridges, service: Service) -> None:
        async with tunnels(service.port, asked) as proxy:
            spec = {
                "name": "plant",
                "type": "http",
                "url": "https://service.invalid",
                "ssl": {"enable": True, "cacertfile": str(authority.file)},
                "proxy": {"url": proxy, "username": "a", "password": "b"},
                "resource_opts": FAST_CONNECTOR,
            }
            bridges.connectors.replace("plant", spec)
            bridges.send({"n": 1}, ACTION)
            await sent(bridges, 1)

    found = run(check, {"path": "/x"}, context=context).taken[0]
    assert (found.target, found.header("host")) == ("/x", "service.invalid")
    assert asked[0].startswith(b"CONNECT service.invalid:443 HTTP/1.1\r\n")
    assert b"Proxy-Authorization: Basic YTpi" in asked[0]


@pytest.mark.parametrize(
    ("status", "said"),
    [(b"407 Who?", "refuses the login"), (b"502 No", "makes no tunnel to service.invalid: 502")],
    ids=["login", "no tunnel"],
)
def test_a_proxy_that_makes_no_tunnel_is_named(status: bytes, said: str) -> None:
    async def check(bridges: Bridges, service: Service) -> None:
        async with tunnels(service.port, [], status) as proxy:
            spec = {
                "name": "plant",
                "type": "http",
                "url": "https://service.invalid",
                "proxy": {"url": proxy},
            }
            bridges.connectors.replace("plant", {**spec, "resource_opts": FAST_CONNECTOR})
            await bridges.until(
                lambda: said in bridges.connectors.get("plant")["status_reason"], said
            )

    run(check, {})


# Settings


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ({"url": "ftp://x"}, "write 'http://host:port'"),
        ({"url": "http://a:b@x"}, "put it into 'authentication'"),
        ({"url": "http://x/${y}"}, "the address is the same for all rows"),
        ({"url": "http://x", "headers": {"Host": "y"}}, "is set by the connector"),
        ({"url": "http://x", "headers": {"A b": "y"}}, "is not the name of a header"),
        (
            {"url": "http://x", "headers": {"A": "Bearer ${env:T}"}},
            "must be a string, or all of it",
        ),
        ({"url": "http://x", "ssl": {"enable": True}}, "write https:"),
    ],
    ids=["scheme", "password", "template", "host", "name", "reference", "tls"],
)
def test_connectors_that_cannot_be(members: dict[str, Any], problem: str) -> None:
    async def check() -> None:
        bridges = Bridges()
        with pytest.raises(Invalid, match="cannot be saved") as caught:
            bridges.connectors.create({"name": "p", "type": "http", **members})
        assert problem in str(caught.value)
        await bridges.writer.close()

    asyncio.run(check())
