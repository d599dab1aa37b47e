"""Connections of the API: how many, how long for a head, a body and reading; under which host; who hangs up."""

from __future__ import annotations

import logging
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import httpx
import pytest

from tests.support.node import eventually
from tests.support.plain_http import NO_TLS
from tests.ui.api_node import TOKEN, Node, Running
from tests.ui.test_api_verbs import rules_that

_BEARER = f"Authorization: Bearer {TOKEN}\r\n"


@contextmanager
def serving(**settings: Any) -> Iterator[Running]:
    """An API of these settings."""
    running = Running(Node(**settings))
    try:
        yield running
    finally:
        running.stop()


def sending(running: Running, text: str) -> socket.socket:
    """A connection on which this was sent."""
    link = socket.create_connection((running.host, running.port), 60)
    link.sendall(text.encode())
    return link


def everything(link: socket.socket) -> str:
    """All that is sent until the server closes."""
    link.settimeout(60)
    pieces = []
    with link, suppress(ConnectionResetError):
        while piece := link.recv(65_536):
            pieces.append(piece)
    return b"".join(pieces).decode()


def closed(running: Running, reason: str) -> float:
    return running.node.context.metrics.value("api_connections_closed", reason=reason)


def is_alive(running: Running) -> bool:
    return httpx.get(f"{running.url}/livez", verify=NO_TLS, timeout=60).status_code == 200


def test_half_sent_requests_make_room_the_oldest_first() -> None:
    with serving(max_connections=8) as running:
        held = [sending(running, "GET /livez HTTP/1.1\r\nHost: localhost\r\n") for _ in range(40)]
        assert is_alive(running)
        assert everything(held[0]) == ""
        held[-1].sendall(b"\r\n")
        assert held[-1].recv(15) == b"HTTP/1.1 200 OK"
        for link in held:
            link.close()
        assert closed(running, "max_connections") >= 32


def test_half_sent_bodies_make_room_too() -> None:
    head = f"POST /api/v1/rules HTTP/1.1\r\nHost: localhost\r\n{_BEARER}Content-Length: 100\r\n\r\n"
    with serving(max_connections=4) as running:
        held = [sending(running, head) for _ in range(12)]
        assert is_alive(running)
        for link in held:
            link.close()


_UPGRADE = (
    "GET /api/v1/live HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
)
_UNREAD = "GET /api/v1/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20


@pytest.mark.parametrize("start", ["", "GET /livez HTTP/1.1\r\n", f"{_UPGRADE}\r\n", _UNREAD])
def test_connections_that_did_not_authenticate_keep_nobody_out(start: str) -> None:
    with serving(max_connections=4, header_timeout=600) as running, ExitStack() as stack:
        live = stack.enter_context(sending(running, f"{_UPGRADE}{_BEARER}\r\n"))
        opened = live.makefile("rb")
        assert opened.readline().startswith(b"HTTP/1.1 101 ")
        while opened.readline() != b"\r\n":
            pass
        for number in range(12):
            link = stack.enter_context(socket.socket())
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            link.bind((f"127.0.0.{2 + number % 3}", 0))
            link.connect((running.host, running.port))
            link.sendall(start.encode())
        assert is_alive(running)
        live.sendall(b"\x89\x80\0\0\0\0")
        assert opened.read(2) == b"\x8a\0"


def test_a_request_that_runs_is_not_ended_for_another() -> None:
    body = "{}"
    head = f"POST /api/v1/rules:test HTTP/1.1\r\nHost: localhost\r\n{_BEARER}Content-Length: {len(body)}\r\n\r\n"
    with serving(max_connections=1, verb_timeout_s=60) as running:
        rules = rules_that(running, "run for ever")
        first = sending(running, head + body)
        eventually(lambda: rules.calls)
        refused = sending(running, "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert everything(refused).startswith("HTTP/1.1 503")
        rules.do = ""
        assert first.recv(12) == b"HTTP/1.1 200"
        first.close()


def test_a_head_has_its_time_however_slowly_it_comes() -> None:
    with (
        serving(header_timeout=0.4) as running,
        sending(running, "GET /livez HTTP/1.1\r\nX: ") as link,
    ):
        while not select.select([link], [], [], 0.05)[0]:
            link.sendall(b"x")
        assert everything(link).startswith("HTTP/1.1 408")
        assert closed(running, "header_timeout") == 1


def test_what_follows_an_answer_has_its_time_too() -> None:
    head = "POST /api/v1/rules HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"
    with serving(header_timeout=0.4) as running, sending(running, head) as link:
        assert link.recv(12) == b"HTTP/1.1 401"
        while not closed(running, "header_timeout"):
            link.sendall(b"x")
            select.select([], [], [], 0.02)
        assert "Connection: close" not in everything(link)


def test_a_body_has_its_time() -> None:
    head = (
        f"POST /api/v1/rules HTTP/1.1\r\nHost: localhost\r\n{_BEARER}Content-Length: 1000\r\n\r\n{{"
    )
    with serving(body_timeout=0.3) as running:
        answer = everything(sending(running, head))
    assert "the body did not arrive within 0.3 s" in answer


def test_an_answer_that_is_not_read_is_given_up() -> None:
    request = "GET /static/app.css HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with serving(body_timeout=0.3, header_timeout=60) as running:
        link = socket.socket()
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        link.connect((running.host, running.port))
        link.settimeout(60)
        with suppress(ConnectionError, TimeoutError):
            link.sendall(request.encode() * 3000)
        eventually(lambda: closed(running, "read_timeout"), what="the connection is given up")
        link.close()
        assert is_alive(running)


def test_before_signing_in_a_body_has_four_kilobytes(http: httpx.Client, running: Running) -> None:
    here = {"Origin": running.url}
    answer = http.post("/api/v1/session", content=b'{"token":"' + b"x" * 4096 + b'"}', headers=here)
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    answer = http.post("/api/v1/session", content=iter([b"x" * 4000] * 9), headers=here)
    assert answer.status_code == 413
    assert http.get("/livez").status_code == 200


def test_the_origin_is_checked_before_the_body(http: httpx.Client) -> None:
    answer = http.post(
        "/api/v1/session", content=b"x" * 5000, headers={"Origin": "http://evil.example"}
    )
    assert answer.json()["code"] == "forbidden_origin"


def test_an_address_behind_a_header_of_a_proxy_is_not_believed(
    api: httpx.Client, running: Running
) -> None:
    api.post("/messages:publish", json={"topic": "a"}, headers={"X-Forwarded-For": "203.0.113.9"})
    assert running.node.pipeline.messages[-1].client.peer_host == "127.0.0.1"


@pytest.mark.parametrize("path", ["/api/v1/rules", "/api/v1/messages:publish"])
def test_a_client_that_hangs_up_is_no_error(path: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{_BEARER}Content-Length: 1000\r\n\r\n{{"
    with serving() as running:
        connections = running.node.context.metrics
        link = sending(running, head)
        eventually(lambda: connections.value("api_connections") == 1)
        link.close()
        eventually(lambda: connections.value("api_connections") == 0)
    assert [
        record for record in caplog.records if record.levelno >= logging.ERROR or record.exc_info
    ] == []


def test_rubbish_behind_an_answer_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    head = "POST /api/v1/rules HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    with serving() as running, sending(running, head) as link:
        assert link.recv(12) == b"HTTP/1.1 401"
        link.sendall(b"no chunk\r\n\r\n")
        everything(link)
    assert [
        record for record in caplog.records if record.levelno >= logging.ERROR or record.exc_info
    ] == []
