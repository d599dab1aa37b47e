"""Schemas whose payloads a server codes: what is asked, what is made of its answers, what is shown."""

from __future__ import annotations

import asyncio
import base64
import errno
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from broker.config.ssrf import AddressGuard, SsrfSettings
from broker.core.errors import Invalid
from broker.core.schema import SchemaError
from broker.core.waiting import settled
from broker.observe.metrics import Metrics
from schema_validation.external_http.caller import ExternalCalls
from schema_validation.external_http.spec import parse_parameters
from schema_validation.serdes.external_http import ExternalHttpSerde
from tests.support.coder import Coder
from tests.support.mqtt_server import on_loop
from tests.support.waiting import until


@pytest.fixture
def coder() -> Iterator[Coder]:
    made = Coder()
    ExternalCalls.guard, ExternalCalls.metrics = AddressGuard(SsrfSettings()), Metrics()
    yield made
    made.stop()
    ExternalCalls.guard = AddressGuard(SsrfSettings())


def serde(url: str, **parameters: Any) -> ExternalHttpSerde:
    return ExternalHttpSerde(
        "frames", parse_parameters({"url": url, "max_inactive": "50ms", **parameters}), "frames"
    )


async def failure(made: ExternalHttpSerde, data: bytes, verb: str = "decode") -> str:
    with pytest.raises(SchemaError) as caught:
        await settled(lambda: getattr(made, verb)(data))
    return str(caught.value)


def counted(outcome: str) -> float:
    return ExternalCalls.metrics.value("external_schema_calls", outcome=outcome)


@on_loop
async def test_post_carries_what_upstream_sends(coder: Coder) -> None:
    made = serde(coder.url, external_params="unit=C", headers={"X-Api-Key": "k"})
    assert await settled(lambda: made.decode(b"\xff\x00")) == b"d:\x00\xff"
    assert await settled(lambda: made.encode("hé")) == b"e:" + "hé".encode()[::-1]
    assert coder.requests[0] == {
        "payload": base64.b64encode(b"\xff\x00").decode(),
        "type": "decode",
        "schema_name": "frames",
        "opts": "unit=C",
        "data": b"\xff\x00",
    }
    assert coder.headers[0]["content-type"] == "application/json"
    assert coder.headers[0]["x-api-key"] == "k"
    assert made.status()["status"] == "connected"
    assert counted("ok") == 2


@on_loop
async def test_get_carries_the_same_behind_the_query_of_the_address(coder: Coder) -> None:
    made = serde(coder.url + "?site=7", method="get", external_params="a b&c")
    assert await settled(lambda: made.decode(b"\xfb\xff?")) == b"d:?\xff\xfb"
    asked = coder.requests[0]
    assert asked["payload"] == base64.urlsafe_b64encode(b"\xfb\xff?").decode().rstrip("=")
    assert (asked["site"], asked["type"], asked["schema_name"], asked["opts"]) == (
        "7",
        "decode",
        "frames",
        "a b&c",
    )


@pytest.mark.parametrize(
    ("payload", "sentence", "outcome"),
    [
        (b"bad", "answered 422: not a frame", "refused"),
        (b"garbage", "is not base64", "bad_answer"),
        (b"huge", "is longer than 4194304 bytes", "bad_answer"),
        (b"away", "answered 302", "refused"),
        (b"break", "broke off", "bad_answer"),
    ],
)
@on_loop
async def test_anything_but_200_and_base64_is_an_error(
    coder: Coder, payload: bytes, sentence: str, outcome: str
) -> None:
    made = serde(coder.url, max_retries=1)
    assert sentence in await failure(made, payload)
    assert counted(outcome) == 1
    assert made.status()["failed"] == 1
    assert len(coder.requests) == (2 if payload == b"break" else 1), (
        "redirects are not followed, answers not retried"
    )
    assert await settled(lambda: made.decode(b"x")) == b"d:x"


@on_loop
async def test_a_broken_connection_is_tried_again(coder: Coder) -> None:
    coder.breaks_left = 2
    made = serde(coder.url)
    assert await settled(lambda: made.decode(b"x")) == b"d:x"
    assert len(coder.requests) == 3


@on_loop
async def test_a_connection_that_the_system_gives_up_is_a_server_that_cannot_be_reached(
    coder: Coder, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = serde(coder.url, max_retries=0)

    async def lost(*_: object) -> bytes:
        raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))

    monkeypatch.setattr(asyncio.StreamReader, "read", lost)
    assert "cannot be reached (no answer in time)" in await failure(made, b"x")
    assert made.status()["status"] == "disconnected"
    assert counted("unreachable") == 1


@on_loop
async def test_a_call_has_a_time(coder: Coder) -> None:
    made = serde(coder.url, request_timeout="200ms")
    assert "did not answer within 0.2 s" in await failure(made, b"slow")
    assert counted("timeout") == 1


@on_loop
async def test_a_server_that_is_not_there(coder: Coder) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        made = serde(f"http://127.0.0.1:{taken.getsockname()[1]}/", max_retries=1)
        assert "cannot be reached" in await failure(made, b"x")
    assert made.status()["status"] == "disconnected"
    assert counted("unreachable") == 1
    nowhere = serde("http://no-such-host.invalid/", max_retries=0)
    assert "cannot be reached" in await failure(nowhere, b"x")


@on_loop
async def test_calls_share_the_connections_and_too_many_are_refused(coder: Coder) -> None:
    made = serde(coder.url, pool_size=2, enable_pipelining=1)
    calls = [asyncio.create_task(settled(lambda: made.decode(b"slow"))) for _ in range(140)]
    await until(lambda: len(coder.requests) >= 2)
    assert counted("busy") == 12
    assert sum(call.done() for call in calls) == 12
    coder.release()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(result == b"d:wols" for result in results) == 128


@on_loop
async def test_connections_are_closed_when_nobody_calls(coder: Coder) -> None:
    made = serde(coder.url)
    for _ in range(2):
        await settled(lambda: made.decode(b"x"))
        await until(lambda: not made.caller.is_open)


@on_loop
async def test_a_map_cannot_be_encoded(coder: Coder) -> None:
    made = serde(coder.url)
    with pytest.raises(
        SchemaError, match="expected text or bytes, got an object; encode it before"
    ):
        await settled(lambda: made.encode({"a": 1}))
    assert not coder.requests


def test_where_nobody_waits_it_says_so(coder: Coder) -> None:
    with pytest.raises(SchemaError, match="needs an answer from another process"):
        serde(coder.url).decode(b"x")


@pytest.mark.parametrize(
    ("settings", "host", "denied"),
    [
        ({}, "127.0.0.1", "deny_cidrs has 127.0.0.0/8"),
        ({}, "localhost", "in which"),
        ({"allow_cidrs": ["127.0.0.1/32"]}, "127.0.0.1", None),
        (
            {"allow_cidrs": ["127.0.0.0/8"], "deny_hosts": ["LOCALHOST"]},
            "localhost.",
            "deny_hosts names",
        ),
        ({"enable": False}, "127.0.0.1", None),
        ({"deny_cidrs": ["10.0.0.0/8"]}, "127.0.0.1", None),
    ],
)
@on_loop
async def test_addresses_that_must_not_be_called(
    coder: Coder, settings: dict[str, Any], host: str, denied: str | None
) -> None:
    ExternalCalls.guard = AddressGuard(SsrfSettings(**{"enable": True, **settings}))
    made = serde(f"http://{host}:{coder.port}/")
    if denied is None:
        assert await settled(lambda: made.decode(b"x")) == b"d:x"
        return
    assert denied in await failure(made, b"x")
    assert counted("denied") == 1
    assert not coder.requests


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "169.254.169.254", "10.1.2.3", "::1", "::ffff:127.0.0.1", "fd00::1", "fe80::1%eth0",
     "64:ff9b::7f00:1", "2002:7f00:1::", "0.0.0.0", "224.0.0.1"],
)  # fmt: skip
def test_addresses_of_the_broker_and_its_network(address: str) -> None:
    assert AddressGuard(SsrfSettings(enable=True)).why_not_address(address)
    assert AddressGuard(SsrfSettings(enable=False)).why_not_address(address) is None


def test_addresses_of_others_are_called() -> None:
    guard = AddressGuard(SsrfSettings(enable=True))
    assert guard.why_not_address("93.184.216.34") is None
    assert guard.why_not_address("2606:2800:220:1::1") is None


@pytest.mark.parametrize(
    ("parameters", "pointer", "sentence"),
    [
        ({}, "/parameters/url", "required"),
        ({"url": "ftp://a/"}, "/parameters/url", "must begin with http"),
        ({"url": "http://u:p@a/"}, "/parameters/url", "user and fragment"),
        ({"url": "http://a/#b"}, "/parameters/url", "user and fragment"),
        ({"url": "http://a:99999/"}, "/parameters/url", "Port out of range"),
        ({"url": "http://a/\r\nX: y"}, "/parameters/url", "without blanks"),
        ({"url": "http://a/", "method": "put"}, "/parameters/method", "post"),
        (
            {"url": "http://a/", "headers": {"a b": "c"}},
            "/parameters/headers",
            "not the name of a header",
        ),
        ({"url": "http://a/", "headers": {"a": "b\r\nc: d"}}, "/parameters/headers", "one line"),
        (
            {"url": "http://a/", "headers": {"Content-Length": "1"}},
            "/parameters/headers",
            "set by the call",
        ),
        (
            {"url": "http://a/", "headers": {"Authorization": "******"}},
            "/parameters",
            "send the secret itself",
        ),
        ({"url": "http://a/", "pool_size": 0}, "/parameters/pool_size", "1"),
        (
            {"url": "http://a/", "request_timeout": "soon"},
            "/parameters/request_timeout",
            "duration",
        ),
        ({"url": "http://a/", "ssl": {"enable": True}}, "/parameters", "https://"),
        (
            {"url": "https://a/", "ssl": {"cacertfile": "/none"}},
            "/parameters/ssl",
            "cannot be used",
        ),
        ({"url": "http://a/", "retries": 3}, "/parameters/retries", ""),
    ],
)
def test_parameters_that_cannot_be_used(
    parameters: dict[str, Any], pointer: str, sentence: str
) -> None:
    with pytest.raises(Invalid) as caught:
        parse_parameters(parameters)
    [problem] = caught.value.problems
    assert problem.pointer == pointer
    assert sentence in problem.message
