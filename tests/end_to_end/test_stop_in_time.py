"""A broker that is stopped while clients of the API hold everything open that they can, and a thread never returns."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
from websockets.sync.client import connect

from tests.support.node import TOKEN, Node, eventually, running

# Seconds: three for requests that run, five for threads, and what a busy machine needs.
DEADLINE_S = 40.0
HEAD = f"Host: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
UNREAD = (
    "GET /api/v1/openapi.json",
    "GET /api/v1/topics/tail?filter=%23&seconds=3600",
    "GET /api/v1/audit:export",
)


def hold_open(node: Node, held: ExitStack) -> None:
    """Requests whose answers nobody reads, a body that does not come, and a live channel."""
    for request in UNREAD:
        link = held.enter_context(socket.create_connection(node.api))
        link.sendall(f"{request} HTTP/1.1\r\n{HEAD}\r\n".encode() * 20)
    half = held.enter_context(socket.create_connection(node.api))
    half.sendall(f"POST /api/v1/rules HTTP/1.1\r\n{HEAD}Content-Length: 100\r\n\r\n{{".encode())
    address = f"{node.url.replace('http', 'ws')}/api/v1/live"
    headers = {"Authorization": f"Bearer {TOKEN}"}
    live = held.enter_context(connect(address, additional_headers=headers, max_queue=1))
    live.send('{"kind": "subscribe", "id": "a", "channel": "status", "parameters": {}}')


def reload(node: Node) -> None:
    """Read the configuration again, as long as there is somebody who answers."""
    with suppress(httpx.HTTPError), node.client() as client:
        client.post("/config:reload")


def test_open_streams_and_a_thread_that_never_returns_do_not_hold_up_a_stop(
    tmp_path: Path,
) -> None:
    with ExitStack() as held, running(tmp_path / "data", config="overload.enable = false") as node:
        hold_open(node, held)
        pipe = node.data_dir / "pipe.conf"
        os.mkfifo(pipe)
        (node.data_dir / "sluice.conf").write_text('include "pipe.conf"\n')
        reloads = held.enter_context(ThreadPoolExecutor())
        reloads.submit(reload, node)
        # without a reader it cannot be opened; with a writer that sends nothing, the reader waits
        writer = eventually(lambda: os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        held.callback(os.close, writer)
        status = node.stop(DEADLINE_S)
        log = node.log.read_text()
    assert status == 0
    assert "node.thread_blocked" in log
