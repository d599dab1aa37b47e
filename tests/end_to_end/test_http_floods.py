"""What anybody who reaches the HTTP port can do without a token, and that MQTT and the probes go on."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest

from tests.end_to_end.clients import MosquittoSub, publish
from tests.support.node import Node, running
from tests.support.plain_http import NO_TLS

_MIB = 1024 * 1024


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("floods") / "node", open_files=512) as node:
        yield node


def test_half_sent_requests_lock_nobody_out(node: Node) -> None:
    links = []
    for _ in range(450):
        link = socket.create_connection(node.api, 60)
        link.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        links.append(link)
    try:
        assert httpx.get(f"{node.url}/livez", timeout=30, verify=NO_TLS).status_code == 200
        assert node.call("GET", "/status")["node"]
        with MosquittoSub(node, "-q", "1", "-t", "flood/#", form="%p") as subscriber:
            publish(node, "flood/a", "through")
            assert subscriber.take(1) == ["through"]
    finally:
        for link in links:
            link.close()
    metrics = httpx.get(f"{node.url}/metrics", verify=NO_TLS).text
    assert 'sluice_api_connections_closed_total{reason="max_connections"}' in metrics


@pytest.mark.parametrize("is_chunked", [False, True])
def test_bodies_before_signing_in_take_no_memory(node: Node, is_chunked: bool) -> None:
    process = psutil.Process(node.pid)
    before = process.memory_info().rss
    most = [0]

    def post(number: int) -> int:
        content = iter([b" " * 65_536] * 256) if is_chunked else b" " * (16 * _MIB)
        headers = {"Origin": node.url, "Content-Type": "application/json"}
        try:
            with httpx.Client(timeout=60, verify=NO_TLS) as client:
                answer = client.post(f"{node.url}/api/v1/session", content=content, headers=headers)
        except httpx.TransportError:  # cut off while it still sends
            return 413
        finally:
            most[0] = max(most[0], process.memory_info().rss)
        return answer.status_code

    with ThreadPoolExecutor(40) as pool:
        statuses = list(pool.map(post, range(40)))
    assert set(statuses) == {413}
    assert most[0] - before < 64 * _MIB
