"""A fleet with one message of QoS 1 under way each, and one subscriber that cannot keep up: with the default settings
nothing that was acknowledged is lost, also when the subscriber or the broker is killed."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop

from broker.codec.packets import Connect, PubAck, Publish
from tests.support.node import Node, eventually, running
from tests.support.wire import WireClient

_SUBSCRIBER = """
import asyncio, sys
from broker.codec.packets import Connect, PubAck, Publish, SubscriptionRequest
from tests.support.wire import WireClient

async def main(port, name, topic, is_clean):
    client = await WireClient.connected(port, Connect(name, 4, clean_start=is_clean))
    await client.subscribe(SubscriptionRequest(topic, 1))
    print("ready", flush=True)
    while True:
        packet = await client.receive(None)
        if isinstance(packet, Publish):
            print(packet.payload.decode(), flush=True)
            client.send(PubAck(packet.packet_id))

asyncio.run(main(int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4] == "clean"))
"""
"""Writes down each message before it acknowledges it: slower than the broker."""


class Fleet:
    """Devices that publish until they are told to stop. ``acknowledged`` are the payloads."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.acknowledged: set[str] = set()
        self.sent = 0
        self.is_over = False

    async def device(self, number: int, count: int) -> None:
        """Publish one message after the other, each until it is acknowledged."""
        seq, client = 0, None
        while seq < count and not self.is_over:
            payload = f"{number}:{seq}"
            try:
                if client is None:
                    client = await self._connected(f"device-{number}")
                self.sent += 1
                client.send(
                    Publish(f"fleet/{number}", payload.encode(), 1, packet_id=seq % 65_535 + 1)
                )
                await client.expect(PubAck)
            except (ConnectionError, OSError, TimeoutError):
                client = None
                continue
            self.acknowledged.add(payload)
            seq += 1
        if client is not None:
            await client.close()

    def has_more_than(self, count: int) -> bool:
        """Whether so many were acknowledged."""
        return len(self.acknowledged) > count

    async def _connected(self, name: str) -> WireClient:
        while True:
            try:
                return await WireClient.connected(self._node.mqtt[1], Connect(name, 4))
            except (ConnectionError, OSError):
                await asyncio.sleep(0.05)


class Listening:
    """The subscriber, a process that is killed and started again."""

    def __init__(self, node: Node, path: Path, topic: str = "fleet/+", *, is_clean: bool) -> None:
        self._node, self._path = node, path
        self._arguments = topic, "clean" if is_clean else "kept"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, name: str = "reader") -> None:
        with self._path.open("ab") as file:
            command = [
                sys.executable,
                "-c",
                _SUBSCRIBER,
                str(self._node.mqtt[1]),
                name,
                *self._arguments,
            ]
            self._process = subprocess.Popen(command, stdout=file, cwd=Path(__file__).parents[2])

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def has_subscribed(self) -> bool:
        return b"ready" in self._path.read_bytes()

    @property
    def got(self) -> set[str]:
        return {line for line in self._path.read_text().splitlines() if ":" in line}


async def _until(is_so: Callable[[], object], what: str) -> None:
    await asyncio.to_thread(eventually, is_so, 120, what=what)


def _run(test: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test)


def _value(node: Node, metric: str) -> float:
    """The sum of a metric over its labels."""
    text = httpx.get(f"{node.url}/metrics", trust_env=False).text
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if line.startswith((metric + " ", metric + "{"))
    )


@pytest.mark.parametrize("topic", ["fleet/+", "$share/readers/fleet/+"])
def test_a_subscriber_of_a_fleet_gets_all_that_was_acknowledged(tmp_path: Path, topic: str) -> None:
    async def test(node: Node) -> None:
        listening, fleet = Listening(node, tmp_path / "got", topic, is_clean=True), Fleet(node)
        listening.start()
        await _until(listening.has_subscribed, "the subscription")
        try:
            await asyncio.gather(*(fleet.device(number, 4) for number in range(1500)))
            assert len(fleet.acknowledged) == 6000
            await _until(lambda: listening.got >= fleet.acknowledged, "all that was acknowledged")
            assert _value(node, "sluice_deliveries_dropped_total") == 0
        finally:
            listening.kill()

    with running(tmp_path / "node") as node:
        _run(test(node))


def test_kills_of_subscribers_and_of_the_broker_lose_nothing_that_was_acknowledged(
    tmp_path: Path,
) -> None:
    async def test(node: Node) -> None:
        kept = Listening(node, tmp_path / "kept", is_clean=False)
        slow = Listening(node, tmp_path / "slow", is_clean=True)
        fleet = Fleet(node)
        for one, name in ((kept, "kept"), (slow, "slow")):
            one.start(name)
            await _until(one.has_subscribed, "the subscription")
        devices = asyncio.gather(*(fleet.device(number, 1_000_000) for number in range(900)))
        try:
            for victim, name in ((kept, "kept"), (slow, "slow"), (None, "")):
                await _until(
                    partial(fleet.has_more_than, len(fleet.acknowledged) + 1500), "acknowledgements"
                )
                await _until(
                    lambda: _value(node, "sluice_acknowledgements_withheld") > 0,
                    "acknowledgements to wait",
                )
                if victim is not None:
                    victim.kill()
                    victim.start(name)
                    continue
                node.kill()
                await asyncio.to_thread(node.start)
                kept.kill()
                kept.start("kept")
            fleet.is_over = True
            await devices
            await _until(lambda: kept.got >= fleet.acknowledged, "all that was acknowledged")
        finally:
            fleet.is_over = True
            kept.kill()
            slow.kill()

    with running(tmp_path / "node") as node:
        _run(test(node))
