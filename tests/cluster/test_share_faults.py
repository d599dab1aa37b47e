"""Share groups over cells while links are cut and cells killed: nothing acknowledged is lost, QoS 2 is not doubled."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from broker.codec.packets import (
    ConnAck,
    Connect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubscriptionRequest,
)
from broker.connection.sharing.settings import SharedSettings
from broker.connection.sharing.strategies import StrategyName
from tests.support.linked_cells import Cell, cells, linked
from tests.support.mqtt_server import on_loop
from tests.support.waiting import until
from tests.support.wire import WireClient

GROUP = "$share/g/t/#"
STRATEGIES: tuple[StrategyName, ...] = (
    "round_robin", "sticky", "least_inflight", "hash_topic", "random", "hash_clientid",
)  # fmt: skip


class Seen(NamedTuple):
    """A message as it came first under its identifier."""

    topic: str
    payload: bytes
    dup: bool


class Worker:
    """A member that comes back whenever its connection ends, and answers late."""

    def __init__(
        self, cell: Cell, name: str, qos: int, random: Random, seen: list[Seen], **connect: Any
    ) -> None:
        self.cell, self.name, self.qos, self.random, self.seen = cell, name, qos, random, seen
        self.connect = {
            "clean_start": False,
            "properties": {"Session-Expiry-Interval": 3600},
            **connect,
        }
        self.goes = 0.0
        """Share of packets after which it ends its connection."""
        self.unfinished: dict[int, bytes] = {}
        """Messages of QoS 2 that were not released."""
        self.subscribed = asyncio.Event()

    async def run(self) -> None:
        while True:
            with suppress(AssertionError, OSError, EOFError, asyncio.IncompleteReadError):
                await self._work()
            await until(lambda: self.cell.is_running)

    async def _work(self) -> None:
        client = await WireClient.open(self.cell.node.port, 5)
        try:
            client.send(Connect(self.name, 5, **self.connect))
            if not (await client.expect(ConnAck)).session_present:
                self.unfinished.clear()
            if await client.subscribe(SubscriptionRequest(GROUP, self.qos)) != [self.qos]:
                return
            self.subscribed.set()
            await self._take(client)
        finally:
            client.abort()

    async def _take(self, client: WireClient) -> None:
        late: list[Any] = []
        while True:
            try:
                packet = await client.receive(0.02 if late else 60)
            except TimeoutError:
                packet = None
            if isinstance(packet, Publish):
                if packet.qos == 2:
                    if packet.packet_id not in self.unfinished:
                        self.seen.append(Seen(packet.topic, packet.payload, packet.dup))
                    self.unfinished[packet.packet_id] = packet.payload
                    late.append(PubRec(packet.packet_id))
                else:
                    self.seen.append(Seen(packet.topic, packet.payload, packet.dup))
                    late.append(PubAck(packet.packet_id))
            elif isinstance(packet, PubRel):
                self.unfinished.pop(packet.packet_id, None)
                late.append(PubComp(packet.packet_id))
            if packet is None or len(late) > self.random.randrange(8):
                client.send(*late)
                late.clear()
            if self.random.random() < self.goes:
                return


async def _publish(cell: Cell, name: str, qos: int, payloads: list[bytes]) -> None:
    client = await cell.node.client(name, 5)
    for number, payload in enumerate(payloads, 1):
        client.send(Publish(f"t/{number % 5}", payload, qos, packet_id=number))
        if qos == 1:
            assert (await client.expect(PubAck)).reason_code == 0
        else:
            assert (await client.expect(PubRec)).reason_code == 0
            client.send(PubRel(number))
            await client.expect(PubComp)
    await client.close()


def _unsettled(joined: list[Cell]) -> int:
    groups = [cell.node.server.hub.share_groups.groups[GROUP] for cell in joined]
    return sum(group.waiting + group.in_flight for group in groups)


def _check(seen: list[Seen], published: list[bytes], qos: int, faults: str) -> None:
    counts = Counter(item.payload for item in seen)
    assert set(counts) == set(published)
    if qos == 2 or faults in ("none", "cuts"):
        assert {payload: count for payload, count in counts.items() if count > 1} == {}
    known = set[bytes]()
    for item in seen:
        assert item.dup or item.payload not in known, item
        known.add(item.payload)


def _check_order(seen: list[Seen]) -> None:
    """Messages of a publisher and topic came first in their order."""
    last: dict[tuple[str, bytes], int] = {}
    known = set[bytes]()
    for item in seen:
        if item.payload not in known:
            known.add(item.payload)
            publisher, number = item.payload.split(b"-")
            assert int(number) > last.get((item.topic, publisher), -1), item
            last[item.topic, publisher] = int(number)


@pytest.mark.parametrize("faults", ["none", "leaves", "cuts", "kills"])
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("seed", [*range(6)])
@on_loop
async def test_a_durable_group_loses_and_doubles_nothing(
    tmp_path: Path, qos: int, faults: str, seed: int
) -> None:
    random = Random(seed)
    strategy = STRATEGIES[seed % len(STRATEGIES)]
    seen: list[Seen] = []
    async with cells(3, tmp_path, shared=SharedSettings(strategy=strategy)) as joined:
        workers = [
            Worker(joined[number % 3], f"w{number}", qos, random, seen)
            for number in range(random.choice([2, 4]))
        ]
        receive_maximum = random.choice([1, 3, 20])
        for number, worker in enumerate(workers):
            if number % 2 and faults in ("none", "cuts"):
                worker.connect = {"properties": {}}  # a session in memory
            worker.connect["properties"]["Receive-Maximum"] = receive_maximum
            worker.goes = 0.03 if faults == "leaves" else 0
        tasks = [asyncio.create_task(worker.run()) for worker in workers]
        for worker in workers:
            await worker.subscribed.wait()
        published: list[bytes] = []
        for part in range(6):
            payloads = [b"%d-%d" % (part, number) for number in range(40)]
            published += payloads
            publishing = asyncio.create_task(_publish(joined[part % 3], f"p{part}", qos, payloads))
            if faults == "cuts":
                for _ in range(3):
                    first, other = random.sample(range(3), 2)
                    joined[first].cut(other)
                    await linked(joined)
            await publishing
            if faults == "kills":
                cell = random.choice(joined)
                await cell.kill()
                await cell.start()
                await linked(joined)
        for worker in workers:
            worker.goes = 0
        await until(lambda: not _unsettled(joined))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        _check(seen, published, qos, faults)
        if strategy in ("sticky", "hash_clientid", "hash_topic") and faults in ("none", "cuts"):
            _check_order(seen)
