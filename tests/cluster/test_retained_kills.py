"""Retained messages while cells are killed: the message that was acknowledged last is the retained one everywhere."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from broker.codec.packets import Connect, PubAck, Publish, SubscriptionRequest
from broker.core.cells import Place
from tests.support.node import Node, eventually
from tests.support.waiting import until
from tests.support.wire import WireClient

_PLACE = Place(0, 2, Path())
_ROUNDS = 6
_MESSAGES = 40


def names_of(cell: int, prefix: str, number: int) -> list[str]:
    """So many names of a cell."""
    names = (f"{prefix}{at}" for at in count())
    own = (name for name in names if _PLACE.cell_of(name) == cell)
    return [next(own) for _ in range(number)]


class Publisher:
    """Publishes one message at a time, again over another connection until it is acknowledged."""

    def __init__(self, port: int, client_id: str) -> None:
        self._port = port
        self._connect: dict[str, Any] = {
            "clean_start": False, "properties": {"Session-Expiry-Interval": 3600}
        }  # fmt: skip
        self._client_id = client_id
        self._client: WireClient | None = None
        self._packet_id = 0

    def close(self) -> None:
        if self._client is not None:
            self._client.abort()
            self._client = None

    async def retain(self, topic: str, payload: bytes) -> None:
        self._packet_id = self._packet_id % 65_535 + 1
        is_again = False
        while True:
            with suppress(OSError, EOFError, AssertionError, asyncio.IncompleteReadError):
                if self._client is None:
                    self._client = await WireClient.connected(
                        self._port, Connect(self._client_id, 5, **self._connect)
                    )
                self._client.send(
                    Publish(topic, payload, 1, True, is_again, packet_id=self._packet_id)
                )
                heard = await self._client.expect(PubAck)
                assert heard.reason_code in (0, 0x10)
                return
            is_again = True
            self.close()
            await asyncio.sleep(0.05)


async def _killed_rounds(node: Node) -> None:
    chance = Random(1)
    port = node.mqtt[1]
    topics = [topic for cell in (0, 1) for topic in names_of(cell, "t/", 3)]
    publishers = [Publisher(port, names_of(cell, "p", 1)[0]) for cell in (0, 1)]
    last: dict[str, bytes] = {}
    for number in range(_ROUNDS):
        victim = eventually(partial(node.cell, number % 2))
        at = chance.randrange(_MESSAGES)
        for message in range(_MESSAGES):
            topic = chance.choice(topics)
            payload = b"%d %d" % (number, message)
            publishing = asyncio.create_task(chance.choice(publishers).retain(topic, payload))
            if message == at:
                await asyncio.sleep(chance.random() * 0.003)
                victim.send_signal(signal.SIGKILL)
            await publishing
            last[topic] = payload
        for cell in (0, 1):
            await until(lambda cell=cell: _are_found(port, cell, last), "retained messages")  # type: ignore[misc]
    for publisher in publishers:
        publisher.close()


async def _are_found(port: int, cell: int, expected: dict[str, bytes]) -> bool:
    """Whether a client of a cell finds exactly these; some may come later, when a cell is back."""
    found: dict[str, bytes] = {}
    with suppress(OSError, EOFError, AssertionError, asyncio.IncompleteReadError):
        client = await WireClient.connected(port, Connect(names_of(cell, "s", 1)[0], 5))
        try:
            await client.subscribe(SubscriptionRequest("t/#", 0))
            while len(found) < len(expected):
                packet = await client.expect(Publish)
                assert packet.topic not in found
                found[packet.topic] = packet.payload
            await client.silence()
        finally:
            client.abort()
    return found == expected


def test_what_was_acknowledged_last_is_retained_over_kills(tmp_path: Path) -> None:
    node = Node(tmp_path / "data", workers=2).start()
    try:
        asyncio.run(_killed_rounds(node))
    finally:
        node.stop()
