"""Rows in Kafka once each: over crashes, restarts of Kafka, producers that are fenced, and rows that are given up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from bridges.kafka.record import Record
from bridges.kafka.settings import KafkaActionSettings
from bridges.kafka.transactions import Cursor, TransactionalSink, begun
from bridges.resource.contract import BufferPlace
from bridges.resource.errors import TryAgain
from broker.core.client import Client
from broker.core.errors import Invalid
from broker.core.message import Message
from broker.storage.memory import MemoryStore
from tests.support.bridges import FAST, FAST_CONNECTOR, Bridges
from tests.support.kafka_server import Kafka
from tests.support.kafka_topic import Topic
from tests.support.mqtt_server import GatedStore, on_loop


class Node:
    """A store that outlives crashes, and the bridges over it."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.cursors = Topic(topic.kafka, name=f"cursors-{topic.name}")
        self._store, self._sections = MemoryStore(), dict[str, Any]()
        self.bridges: Bridges

    def begin(self) -> Bridges:
        self.bridges = Bridges(store=self._store, sections=self._sections)
        self.bridges.begin()
        return self.bridges

    def act(self, options: dict[str, Any] | None = None, **parameters: Any) -> None:
        hosts = self.topic.kafka.bootstrap
        self.bridges.connectors.create(
            {
                "name": "plant",
                "type": "kafka",
                "bootstrap_hosts": hosts,
                "resource_opts": FAST_CONNECTOR,
            }
        )
        given = {"topic": self.topic.name, "exactly_once": True, "cursor_topic": self.cursors.name}
        self.bridges.actions.create(
            {
                "name": "out",
                "type": "kafka",
                "connector": "plant",
                "parameters": {
                    **given,
                    "message": {"key": "${key}", "value": "${n}"},
                    **parameters,
                },
                "resource_opts": {
                    **FAST,
                    "buffer_mode": "disk",
                    "batch_size": 20,
                    **(options or {}),
                },
            }
        )

    def send(self, start: int, stop: int) -> None:
        self.bridges.send_many(stop - start, start=start, action="kafka:out")

    async def until_sent(self, count: int) -> None:
        await self._until(lambda: self.bridges.counts()["success"] >= count)

    async def _until(self, condition: Callable[[], bool]) -> None:
        await self.bridges.until(condition)

    async def seen(self) -> list[int]:
        """What who reads what is committed sees."""
        return [int(record.value or b"-1") for record in await self.topic.records(committed=True)]

    async def until_all_seen(self, count: int) -> list[int]:
        await self._until(
            lambda: not self.bridges.counts()["queuing"] + self.bridges.counts()["inflight"]
        )
        found = await self.seen()
        assert sorted(found) == list(range(count))
        return found


@on_loop
async def test_rows_and_their_cursor_are_one_transaction(kafka: Kafka) -> None:
    node = Node(await Topic(kafka).make())
    node.begin()
    node.act()
    node.send(0, 100)
    assert await node.until_all_seen(100) == list(range(100))
    cursors = await node.cursors.records(committed=True)
    assert {record.key for record in cursors} == {cursors[0].key}
    assert str(cursors[0].key, "ascii").startswith("sluice-out-")
    assert Cursor.decode(cursors[-1].value).next == 100
    async with node.cursors.admin() as admin:
        [found] = await admin.describe_topics([node.cursors.name])
    assert len(found["partitions"]) == 1
    await node.bridges.end()


@pytest.mark.parametrize("exactly_once", [False, True])
@on_loop
async def test_a_row_that_is_sent_again_has_the_place_that_it_had(
    kafka: Kafka, exactly_once: bool
) -> None:
    node = Node(await Topic(kafka, partitions=3).make())
    node.begin()
    node.act(exactly_once=exactly_once, position_headers=True)
    for turn in range(4):
        node.send(turn * 100, turn * 100 + 100)
        await node.bridges.until_sent(37)
        await node.bridges.crash()
        node.begin()
    await node.bridges.until(
        lambda: not node.bridges.counts()["queuing"] + node.bridges.counts()["inflight"]
    )
    places: dict[int, set[tuple[bytes, ...]]] = {}
    for record in await node.topic.records(committed=True):
        *_, stream, shard, offset = record.headers
        assert (stream[0], shard, offset[0]) == (
            "sluice.stream",
            ("sluice.shard", b"0"),
            "sluice.offset",
        )
        places.setdefault(int(record.value), set()).add((stream[1], offset[1]))
    assert sorted(places) == list(range(400))
    assert all(len(found) == 1 for found in places.values())
    assert len(set.union(*places.values())) == 400
    await node.bridges.end()


@on_loop
async def test_what_was_sent_before_a_crash_is_not_sent_again(kafka: Kafka) -> None:
    node = Node(await Topic(kafka, partitions=3).make())
    node.begin()
    node.act()
    for turn in range(5):
        node.send(turn * 200, turn * 200 + 200)
        await node.bridges.until_sent(37)
        await node.bridges.crash()
        node.begin()
    await node.until_all_seen(1000)
    by_key: dict[bytes, list[int]] = {}
    for record in await node.topic.records(committed=True):
        by_key.setdefault(record.key, []).append(int(record.value))
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    await node.bridges.end()


@on_loop
async def test_a_store_that_forgot_what_it_sent_sends_only_what_kafka_lacks(kafka: Kafka) -> None:
    """The harshest crash: no advance of the buffer was committed."""
    node = Node(await Topic(kafka).make())
    bridges = node.begin()
    node.act()
    buffer: Any = bridges.feature.resources.actions["out"].buffer
    buffer.queue.advance = partial(setattr, buffer.queue, "_done")
    node.send(0, 60)
    await bridges.until_sent(60)
    await bridges.crash()
    bridges = node.begin()
    node.send(60, 70)
    await node.until_all_seen(70)
    assert bridges.counts()["success"] == 70, "those that are in Kafka are confirmed"
    await bridges.end()


@on_loop
async def test_a_fenced_producer_begins_anew(kafka: Kafka) -> None:
    node = Node(await Topic(kafka).make())
    bridges = node.begin()
    node.act()
    node.send(0, 10)
    await bridges.until_sent(10)
    [cursor, *_] = await node.cursors.records(committed=True)
    zombie = AIOKafkaProducer(
        bootstrap_servers=kafka.bootstrap, transactional_id=cursor.key.decode()
    )
    await zombie.start()
    await zombie.begin_transaction()
    await zombie.send(node.topic.name, b"999")
    node.send(10, 30)
    assert await node.until_all_seen(30) == list(range(30)), "what the zombie wrote is aborted"
    with pytest.raises(Exception, match=r"(?i)fenced|epoch|transaction"):
        await zombie.commit_transaction()
    await zombie.stop()
    assert bridges.actions.get("out")["status"] == "connected"
    await bridges.end()


@on_loop
async def test_who_no_longer_owns_the_store_takes_no_transactional_id_back(kafka: Kafka) -> None:
    """The rows came after the first process began, so that the cursor is ahead of its buffer of then."""
    topic = await Topic(kafka).make()
    cursors = Topic(kafka, name=f"cursors-{topic.name}")
    store = GatedStore()
    async with (
        sink(Bridges(store=store), topic, cursors, "old") as old,
        sink(Bridges(), topic, cursors, "new") as new,
    ):
        await old.open()
        await old.send_at(rows(old, 0, 10), range(10))
        await new.open()
        await new.send_at(rows(new, 10, 100), range(10, 100))
        store.fails = True
        for _ in range(2):  # the first attempt finds that it is fenced
            with suppress(TryAgain):
                await old.send_at(rows(old, 10, 100), range(10, 100))
        seen = [int(record.value or b"-1") for record in await topic.records(committed=True)]
        assert seen == list(range(100))
        await new.send_at(rows(new, 100, 110), range(100, 110))


@asynccontextmanager
async def sink(
    bridges: Bridges, topic: Topic, cursors: Topic, run: str
) -> AsyncIterator[TransactionalSink]:
    """The sink of a process over a copy of the same store, not open yet."""
    bridges.begin()
    spec = {"name": "plant", "type": "kafka", "bootstrap_hosts": topic.kafka.bootstrap}
    bridges.connectors.create({**spec, "resource_opts": FAST_CONNECTOR})
    supervisor = bridges.feature.resources.supervisors["plant"]
    await bridges.until(lambda: supervisor.connector)
    context = replace(
        bridges.feature.resources.context("kafka:out", 15.0),
        place=BufferPlace(id="buffer", run=run, begin=0, settled=lambda: 0),
    )
    parameters = {"topic": topic.name, "cursor_topic": cursors.name, "exactly_once": True}
    settings = KafkaActionSettings.model_validate({**parameters, "message": {"value": "${n}"}})
    made = supervisor.connector.sink(settings, context)  # type: ignore[union-attr]
    assert isinstance(made, TransactionalSink)
    try:
        yield made
    finally:
        await made.close()
        await bridges.end()


def rows(sink: TransactionalSink, start: int, stop: int) -> list[Record]:
    """Rows with these numbers."""
    message = Message("in", b"", 1, False, Client("c"), 0)
    return [sink.record({"n": number}, message) for number in range(start, stop)]


@on_loop
async def test_a_row_that_is_given_up_keeps_no_others_and_is_a_dead_letter(kafka: Kafka) -> None:
    topic = await Topic(kafka).make(max_message_bytes="2000")
    node = Node(topic)
    bridges = node.begin()
    node.act({"batch_time": "200ms", "batch_size": 100}, message={"key": "${key}", "value": "${v}"})
    for number in range(60):
        bridges.send(
            {"key": "k", "v": f"{number:03}" + "x" * (3000 if number == 31 else 47)},
            action="kafka:out",
        )
    await bridges.until(
        lambda: bridges.counts()["failed"] == 1 and bridges.counts()["success"] == 59
    )
    seen = [int(record.value[:3]) for record in await topic.records(committed=True)]
    assert seen == [number for number in range(60) if number != 31]
    await bridges.end()


@on_loop
async def test_a_row_whose_topic_is_not_there_waits_and_the_cursor_leaves_it_out(
    kafka: Kafka,
) -> None:
    one, other = await Topic(kafka).make(), Topic(kafka)
    node = Node(one)
    bridges = node.begin()
    node.act({"batch_time": "100ms"}, topic="${to}")
    for number, to in enumerate((one.name, other.name, one.name)):
        bridges.send({"n": number, "to": to}, action="kafka:out")
    await bridges.until(lambda: bridges.counts()["success"] == 2)
    cursor = Cursor.decode((await node.cursors.records(committed=True))[-1].value)
    assert (cursor.next, cursor.left) == (3, (1,))
    await bridges.crash()
    await other.make()
    bridges = node.begin()
    await bridges.until(
        lambda: bridges.counts()["success"] >= 1 and not bridges.counts()["queuing"]
    )
    assert [record.value for record in await other.records(committed=True)] == [b"1"]
    assert [record.value for record in await one.records(committed=True)] == [b"0", b"2"]
    await bridges.end()


@on_loop
async def test_an_action_of_the_same_name_made_anew_begins_with_a_cursor_of_its_own(
    kafka: Kafka,
) -> None:
    node = Node(await Topic(kafka).make())
    bridges = node.begin()
    node.act()
    node.send(0, 50)
    await bridges.until_sent(50)
    bridges.actions.delete("out")
    bridges.connectors.delete("plant")
    node.act()
    node.send(50, 70)
    await node.until_all_seen(70)
    assert len({record.key for record in await node.cursors.records(committed=True)}) == 2
    await bridges.end()


@pytest.mark.heavy
def test_rows_go_on_once_each_while_kafka_is_killed_again_and_again(tmp_path: Path) -> None:
    async def check(kafka: Kafka) -> None:
        node = Node(await Topic(kafka, partitions=2).make())
        node.begin()
        node.act()
        for turn in range(3):
            node.send(turn * 300, turn * 300 + 150)
            await node.until_sent(turn * 300 + 1)
            await asyncio.to_thread(kafka.kill)
            node.send(turn * 300 + 150, turn * 300 + 300)
            await asyncio.to_thread(kafka.start)
            await node.until_sent(turn * 300 + 300)
        await node.until_all_seen(900)
        await node.bridges.end()

    with Kafka(tmp_path / "own") as kafka:
        asyncio.run(check(kafka))


def test_exactly_once_needs_a_buffer_on_disk() -> None:
    @on_loop
    async def check() -> None:
        bridges = Bridges()
        bridges.connectors.create({"name": "plant", "type": "kafka"})
        with pytest.raises(Invalid) as refused:
            bridges.actions.create(
                {
                    "name": "out",
                    "type": "kafka",
                    "connector": "plant",
                    "parameters": {"topic": "t", "exactly_once": True},
                    "resource_opts": {"buffer_mode": "memory_only", "dispatch_strategy": "random"},
                }
            )
        out = {
            "name": "out",
            "type": "kafka",
            "connector": "plant",
            "resource_opts": {"buffer_mode": "memory_only"},
        }
        with pytest.raises(Invalid, match="position_headers needs buffer_mode = disk"):
            bridges.actions.create({**out, "parameters": {"topic": "t", "position_headers": True}})
        assert [problem.pointer for problem in refused.value.problems] == [
            "/resource_opts/buffer_mode",
            "/resource_opts/dispatch_strategy",
        ]
        await bridges.writer.close()

    check()


# The cursor alone


def test_a_cursor_knows_what_is_sent() -> None:
    cursor = Cursor("r", 0).after("r", [0, 1, 3], [2], 0)
    assert [position for position in range(6) if cursor.has(position)] == [0, 1, 3]
    later = cursor.after("r", [2], [], 0)
    assert [position for position in range(6) if later.has(position)] == [0, 1, 2, 3]
    assert cursor.after("r", [4], [], settled=3).left == (), (
        "nobody asks for what is given up for good"
    )
    assert Cursor.decode(cursor.encode()) == cursor


@pytest.mark.parametrize(
    ("found", "begin", "next"),
    [
        (None, 7, 0),
        (Cursor("earlier", 5), 7, 5),
        (Cursor("earlier", 9), 7, 0),
        (Cursor("now", 9), 7, 9),
    ],
    ids=["none", "of before the start", "of a store that is gone", "of this run"],
)
def test_a_cursor_of_another_time_is_not_believed(
    found: Cursor | None, begin: int, next: int
) -> None:
    assert begun(found, "now", begin, "kafka:out").next == next
