"""Replays of one stream into another, on a real store: order, topics, pause, a rate, and what a stop leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from broker.admin.replays.request import StreamReplayRequest
from broker.admin.replays.service import StreamReplays
from broker.core.clock import SystemClock
from broker.core.errors import Conflict, Invalid, SluiceError
from broker.core.stream import StreamRecord
from broker.storage.memory import MemoryStore
from broker.storage.rocksdb.store import RocksStore
from broker.storage.store import Batch, Store
from broker.storage.writer import Writer
from broker.streams.catalogue import Catalogue, LogKeys
from broker.streams.settings import StreamSpec

RECORDS = 3000


class Made:
    """A stream ``raw`` of two shards with records on two topics, an empty stream ``copy``, and the replays."""

    def __init__(self, store: Store) -> None:
        self.store, self.writer = store, Writer(store, asyncio.get_running_loop())
        self.catalogue = Catalogue(LogKeys(self.writer))
        raw = self.catalogue.open(StreamSpec(name="raw", topics=["#"], shards=2))
        self.copy = self.catalogue.open(StreamSpec(name="copy", topics=["none"], shards=1))
        if not store.range_of(raw.shards[0]).next_offset:
            batch = Batch()
            for number in range(RECORDS):
                record = StreamRecord(number + 1, f"t/{number % 3}", b"%d" % number, 1, False, "c")
                batch.appends.setdefault(raw.shards[number % 2], []).append(record)
            store.commit(batch)
        none = cast(Any, None)
        self.replays = StreamReplays(
            self.catalogue,
            self.writer,
            none,
            none,
            none,
            lambda _: cast(Sequence[Any], ()),
            SystemClock(),
        )

    async def start(self, **request: Any) -> str:
        given = StreamReplayRequest.model_validate({"to": "stream:copy", "rate": None, **request})
        return str((await self.replays.start("raw", given))["id"])

    def copied(self) -> list[int]:
        """The numbers of the records in the copy."""
        [shard] = self.copy.shards
        held = self.store.range_of(shard)
        return [
            int(record.payload)
            for _, record in self.store.read(shard, held.first_offset, 10 * RECORDS)
        ]

    async def close(self) -> None:
        await self.replays.stop()
        await self.writer.close()


@pytest.fixture(params=["memory", "rocksdb"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened: Store = MemoryStore() if request.param == "memory" else RocksStore(tmp_path, "os")
    yield opened
    opened.close()


def test_records_of_all_shards_come_in_the_order_of_their_times(store: Store) -> None:
    async def check() -> None:
        made = Made(store)
        report = await made.replays.over(await made.start())
        assert (report["records"], report["sent"], report["skipped"], report["problems"]) == (
            RECORDS,
            RECORDS,
            0,
            [],
        )
        assert made.copied() == list(range(RECORDS))
        await made.close()

    asyncio.run(check())


def test_a_filter_and_offsets_choose_records_and_the_plan_counts_them(store: Store) -> None:
    async def check() -> None:
        made = Made(store)
        wanted = {"to": "stream:copy", "filter": "t/1", "from": {"0": 0}, "until": 900}
        expected = [number for number in range(0, 1800, 2) if number % 3 == 1]
        plan = await made.replays.plan("raw", StreamReplayRequest.model_validate(wanted))
        assert (plan["records"], plan["matched"], plan["is_estimate"]) == (
            900,
            len(expected),
            False,
        )
        report = await made.replays.over(await made.start(**wanted))
        assert (report["records"], report["sent"], report["skipped"]) == (
            900,
            len(expected),
            900 - len(expected),
        )
        assert made.copied() == expected
        await made.close()

    asyncio.run(check())


def test_one_that_is_paused_goes_on_after_a_restart_and_copies_each_record_once(
    store: Store,
) -> None:
    async def begin() -> str:
        made = Made(store)
        id = await made.start(rate=2000)
        while not made.copied():
            await made.writer.committed()
            await asyncio.sleep(0)
        made.replays.pause(id)
        assert made.replays.known()[0]["state"] == "paused"
        await made.close()
        assert 0 < len(made.copied()) < RECORDS
        return id

    async def go_on(id: str) -> None:
        made = Made(store)
        made.replays.start_all()
        assert made.replays.known()[0]["state"] == "paused"
        made.replays.resume(id)
        report = await made.replays.over(id)
        assert (report["sent"], report["resumed"]) == (RECORDS, 1)
        assert made.copied() == list(range(RECORDS))
        with pytest.raises(Conflict, match="is done"):
            made.replays.resume(id)
        await made.close()

    id = asyncio.run(begin())
    asyncio.run(go_on(id))


def test_one_that_is_cancelled_says_how_far_it_was(store: Store) -> None:
    async def check() -> None:
        made = Made(store)
        id = await made.start(rate=1000)
        made.replays.cancel(id)
        report = await made.replays.over(id)
        assert report["sent"] == len(made.copied()) < RECORDS
        assert made.replays.known()[0]["state"] == "cancelled"
        await made.close()

    asyncio.run(check())


def test_a_stream_that_is_deleted_ends_its_replay_with_the_reason(store: Store) -> None:
    async def check() -> None:
        made = Made(store)
        id = await made.start(rate=1000)
        made.catalogue.remove("raw")
        with pytest.raises(SluiceError, match="'raw' was deleted"):
            await made.replays.over(id)
        assert made.replays.known()[0]["state"] == "failed"
        await made.close()

    asyncio.run(check())


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        ({"to": "stream:raw"}, "into itself"),
        ({"to": "stream:other"}, "there is no stream 'other'"),
        ({"from": 10 * RECORDS}, "has no record there"),
    ],
)
def test_what_cannot_be_replayed_is_refused(request_: dict[str, Any], problem: str) -> None:
    async def check() -> None:
        made = Made(MemoryStore())
        with pytest.raises(Invalid) as refused:
            await made.start(**request_)
        assert problem in str(refused.value.problems)
        await made.close()

    asyncio.run(check())
