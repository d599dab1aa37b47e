"""A network in which packets vanish: nobody refuses, nobody answers. Every type gives up in half of the
ten seconds in which a cause is to be told, and its own sentence tells the time, however busy this machine is."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.support.bridges import Bridges


@pytest.fixture
def black_hole() -> Iterator[str]:
    """An address where connecting takes for ever: the queue of its listener is full, so the kernel drops what comes."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_where_packets_vanish_the_state_says_so_after_five_seconds(black_hole: str) -> None:
    connectors: dict[str, dict[str, Any]] = {
        "kafka": {"bootstrap_hosts": black_hole},
        "mqtt": {"server": black_hole},
        "mqtt-websocket": {"server": f"ws://{black_hole}"},
        "postgresql": {"server": black_hole, "database": "d", "username": "u", "password": "p"},
        "http": {"url": f"http://{black_hole}"},
    }

    async def check() -> None:
        bridges = Bridges()
        bridges.begin()
        for name, members in connectors.items():
            bridges.connectors.create({"name": name, "type": name.partition("-")[0], **members})

        def told() -> set[tuple[str, str]]:
            return {(one["status"], one["status_reason"]) for one in bridges.connectors.list()}

        await bridges.until(lambda: told() == {("disconnected", "no connection within 5 s")})
        await bridges.end()

    asyncio.run(check())
