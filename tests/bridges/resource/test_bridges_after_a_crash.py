"""What survives the end of the process: buffers on disk, dead letters, positions of sources, objects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bridges.resource.contract import Incoming
from bridges.resource.errors import NeverAgain
from broker.core.contributor import Change
from broker.core.objects import Reference
from broker.storage.memory import MemoryStore
from broker.storage.rocksdb.store import RocksStore
from broker.storage.store import Store
from tests.support.bridges import FAST, FAST_CONNECTOR, Bridges, Outside, scripted
from tests.support.mqtt_server import GatedStore, on_loop
from tests.support.waiting import within

DISK = {**FAST, "buffer_mode": "disk"}


@pytest.fixture(params=["memory", "rocksdb"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    return MemoryStore if request.param == "memory" else lambda: RocksStore(tmp_path, "os")


def run(test: Any) -> None:
    asyncio.run(within(test, 120))


def make(bridges: Bridges) -> None:
    bridges.connectors.create(
        {"name": "plant", "type": "scripted", "resource_opts": FAST_CONNECTOR}
    )
    bridges.actions.create(
        {"name": "out", "type": "scripted", "connector": "plant", "resource_opts": DISK}
    )
    bridges.sources.create({"name": "in", "type": "scripted", "connector": "plant"})


def test_rows_on_disk_are_sent_after_a_crash_with_their_messages_and_nothing_is_lost(
    make_store: Callable[[], Store],
) -> None:
    async def check() -> None:
        outside, store = Outside(), make_store()
        first = Bridges(scripted(outside), store=store)
        first.begin()
        make(first)
        first.send_many(60)
        await first.until_sent(60)
        outside.is_there = False
        first.send_many(100, start=60)
        assert first.settled == [None] * 160, "they are safe on disk"
        await first.writer.committed()
        await first.crash()
        outside.is_there = True
        second = Bridges(scripted(outside), store=store, sections=first.sections)
        second.begin()
        try:
            await second.until(lambda: set(outside.values) == set(range(160)))
            await second.until(
                lambda: second.counts()["queuing"] + second.counts()["inflight"] == 0
            )
            second.assert_adds_up()
            assert len(outside.values) <= 160 + 40, "only what was on the way came twice"
        finally:
            await second.end()
            store.close()

    run(check())


def test_dead_letters_are_there_after_a_crash(make_store: Callable[[], Store]) -> None:
    async def check() -> None:
        outside, store = Outside(), make_store()
        outside.refuses = lambda value: NeverAgain("no")
        first = Bridges(scripted(outside), store=store)
        first.begin()
        make(first)
        first.send_many(5)
        await first.until(lambda: first.counts()["failed"] == 5)
        await first.writer.committed()
        await first.crash()
        outside.refuses = lambda value: None
        second = Bridges(scripted(outside), store=store, sections=first.sections)
        second.begin()
        try:
            letters = (await second.actions.dead_letters("out", 10))["items"]
            told = sorted((item["row"]["n"], item["reason"], item["clientid"]) for item in letters)
            assert told == [(number, "no", "c1") for number in range(5)]
            offsets = [item["offset"] for item in letters]
            target = Reference("action", second.actions.get("out")["id"])
            purge = Change(target, {}, None, "purge", {"offsets": [offsets[1], offsets[3], 99]})
            assert "2 dead letters are deleted permanently." in list(
                second.actions.consequences(purge)
            )
            assert second.actions.purge("out", [offsets[1], offsets[3], 99])["purged"] == 2
            assert list(second.actions.consequences(purge)) == []
            await second.writer.committed()
            await second.crash()
            third = Bridges(scripted(outside), store=store, sections=first.sections)
            third.begin()
        except BaseException:
            await second.end()
            raise
        try:
            found = await third.actions.dead_letters("out", 10)
            assert (found["waiting"], [item["offset"] for item in found["items"]]) == (
                3,
                offsets[::2],
            )
            assert (await third.actions.dead_letters("out", 10, offsets[3:]))["items"] == found[
                "items"
            ][2:]
            assert (await third.actions.redrive("out", 10, offsets=[offsets[2], offsets[3]]))[
                "sent"
            ] == 1
            left = await third.actions.dead_letters("out", 10)
            assert (left["waiting"], left["items"]) == (2, [found["items"][0], found["items"][2]])
            assert (await third.actions.redrive("out", 10))["sent"] == 2
            assert (await third.actions.dead_letters("out", 10))["items"] == []
            await third.until_sent(3)
        finally:
            await third.end()
            store.close()

    run(check())


def test_records_of_a_source_that_come_again_after_a_crash_are_left_out(
    make_store: Callable[[], Store],
) -> None:
    async def check() -> None:
        outside, store = Outside(), make_store()
        records = [
            Incoming(
                {"n": number},
                "from/outside",
                b"%d" % number,
                shard=f"p{number % 2}",
                position=number,
            )
            for number in range(20)
        ]
        first = Bridges(scripted(outside), store=store)
        first.begin()
        make(first)
        outside.backlog = records[:12]
        await first.until(lambda: len(outside.acknowledged) == 12)
        assert [message.payload for message in first.published.messages] == [
            b"%d" % number for number in range(12)
        ]
        await first.crash()
        outside.backlog = records[5:]  # the outside system was not told of all
        second = Bridges(scripted(outside), store=store, sections=first.sections)
        second.begin()
        try:
            await second.until(lambda: len(outside.acknowledged) == 12 + 15)
            published = [message.payload for message in second.published.messages]
            assert published == [b"%d" % number for number in range(12, 20)]
            metrics = second.sources.metrics("in")
            assert (metrics["received"], metrics["duplicates"], metrics["success"]) == (15, 7, 8)
        finally:
            await second.end()
            store.close()

    run(check())


def test_what_is_deleted_leaves_nothing_behind(make_store: Callable[[], Store]) -> None:
    async def check() -> None:
        outside, store = Outside(), make_store()
        outside.is_there = False
        bridges = Bridges(scripted(outside), store=store)
        bridges.begin()
        make(bridges)
        bridges.send_many(5)
        await bridges.writer.committed()
        bridges.actions.delete("out")
        bridges.sources.delete("in")
        bridges.connectors.delete("plant")
        await bridges.feature.resources.changes.all_done()
        assert list(bridges.services.storage.queues.names("actions/")) == []
        assert [
            metric for metric in bridges.services.monitoring.metrics if "action" in metric.labels
        ] == []
        assert bridges.services.endpoints.sinks.find("scripted:out") is None
        await bridges.end()
        store.close()

    run(check())


@on_loop
async def test_a_process_that_lost_its_cell_connects_and_reads_no_more() -> None:
    outside, store = Outside(), GatedStore()
    bridges = Bridges(scripted(outside), store=store)
    bridges.services.node.moves = True
    bridges.begin()
    store.fails = True
    bridges.connectors.create(
        {"name": "plant", "type": "scripted", "resource_opts": FAST_CONNECTOR}
    )
    await bridges.until(lambda: "disk full" in bridges.connectors.get("plant")["status_reason"])
    assert not outside.connections
    store.fails = False
    bridges.sources.create({"name": "in", "type": "scripted", "connector": "plant"})
    source: Any = bridges.feature.resources.sources["in"]
    await bridges.until(lambda: source.state == "connected")
    made: list[Any] = []
    make_source = source._make_source

    def count() -> Any:
        made.append(make_source())
        return made[-1]

    source._make_source = count
    store.fails = True
    outside.backlog = [Incoming({}, topic="t", shard="s", position=1)]
    await bridges.until(lambda: store.failed_commits >= 4)
    assert made == []
    store.fails = False
    await bridges.until(lambda: made and source.state == "connected")
    await bridges.end()


@on_loop
async def test_a_record_that_was_not_committed_comes_again_only_to_who_lacks_it() -> None:
    outside, store = Outside(), GatedStore()
    bridges = Bridges(scripted(outside), store=store)
    bridges.begin()
    bridges.connectors.create(
        {"name": "plant", "type": "scripted", "resource_opts": FAST_CONNECTOR}
    )
    bridges.sources.create({"name": "in", "type": "scripted", "connector": "plant"})
    source: Any = bridges.feature.resources.sources["in"]
    await bridges.until(lambda: source.state == "connected")
    store.fails = True
    outside.backlog = [Incoming({}, topic="t", shard="s", position=1)]
    await bridges.until(lambda: source.figures.failed.value == 1)
    store.fails = False
    outside.backlog = [
        Incoming({}, topic="t", shard=shard, position=position)
        for shard, position in (("s", 1), ("s", 2), ("other", 1))
    ]
    await bridges.until(lambda: outside.acknowledged == [1, 2, 1])
    published = bridges.published.messages
    are_again = [message.receipt and message.receipt.is_again for message in published]
    assert are_again == [False, True, False, False]
    await bridges.end()
