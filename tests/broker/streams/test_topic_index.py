"""Reads by the topic index give what reading every record gives, in order, in every state of the index."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from broker.core.stream import StreamRecord
from broker.core.topic import TopicFilter
from broker.storage import frames, records
from broker.storage.rocksdb.follower import Follower
from broker.storage.rocksdb.store import RocksStore
from broker.storage.store import Batch, LogShard
from broker.streams.topic_index import index as reading
from broker.streams.topic_index import upkeep as upkeeping
from broker.streams.topic_index.build import Order, build
from broker.streams.topic_index.index import Progress, messages, read_page
from broker.streams.topic_index.layout import Epoch
from broker.streams.topic_index.report import INDEXED, IndexReport, Wanted
from broker.streams.topic_index.upkeep import Builder, Upkeep

LOG = LogShard(16)
LEVELS = ["", "a", "b", "c", "a b", "\x01", "ä", "a\x01"]
FILTERS = [
    "#",
    "+",
    "+/+",
    "a/#",
    "a/+/c",
    "+/b/#",
    "/#",
    "a//c",
    "a",
    "a/b",
    "$SYS/#",
    "$SYS/+",
    "+/a/+",
    "z/#",
    "a/z",
    "ä/#",
]


def topic(chance: random.Random) -> str:
    if chance.random() < 0.05:
        return "$SYS/" + chance.choice("ab")
    return "/".join(chance.choice(LEVELS) for _ in range(chance.randint(1, 4)))


def record(chance: random.Random, number: int) -> StreamRecord:
    username, rule = chance.choice([None, "u", "ü"]), chance.choice([None, None, "r"])
    payload = chance.randbytes(chance.choice([0, 1, 40]))
    retain, properties = chance.random() < 0.1, chance.choice([None, '{"a":1}'])
    return StreamRecord(
        number * 1000,
        topic(chance),
        payload,
        chance.randint(0, 2),
        retain,
        "c",
        username,
        properties,
        rule,
    )


def built_here(order: Order, found: Iterable[bytes | memoryview]) -> Epoch:
    """What the process does, in this one."""
    whole = b"".join([frames.schema_message(), *found, frames.END_MESSAGE])
    return build(order, pa.ipc.open_stream(whole))


class Bench:
    """A store that is written, what follows it, and its index, which is worked on a step at a time."""

    def __init__(
        self, directory: Path, retention_bytes: int = 1024**3, build: Builder | None = built_here
    ) -> None:
        self.directory, self.now_s, self.build = directory, 0.0, build
        self.store = RocksStore(directory, "os")
        self.want(retention_bytes)
        self.follower = Follower(directory, directory / "ranges")
        self.upkeep = self.restarted()

    def restarted(self) -> Upkeep:
        """The upkeep as after a start of the process."""
        return self.upkeep_with(1.0)

    def upkeep_with(self, delay_s: float) -> Upkeep:
        return Upkeep(
            self.directory,
            self.follower,
            delay_s,
            lambda report: None,
            lambda: self.now_s,
            self.build,
        )

    def restart(self) -> None:
        if self.upkeep.index is not None:
            self.upkeep.index.close()
        self.upkeep = self.restarted()

    def want(self, retention_bytes: int | None) -> None:
        wanted = (
            None
            if retention_bytes is None
            else msgspec.json.encode(Wanted(1, retention_bytes, None))
        )
        self.store.commit(Batch(puts={INDEXED + b"16": wanted}))

    def append(self, *added: StreamRecord) -> None:
        self.store.commit(Batch({LOG: list(added)}))

    def steps(self, count: int = 6) -> None:
        for _ in range(count):
            self.now_s += 3
            self.upkeep.step()

    @property
    def indexed(self) -> tuple[int, int]:
        """The offsets that readers find in the index."""
        epochs = self.upkeep.index.epochs(LOG) if self.upkeep.index is not None else ()
        return (epochs[0].first_offset, epochs[-1].next_offset) if epochs else (0, 0)

    def read(self, start: int, end: int, text: str, *, uses_index: bool) -> pa.Table:
        self.follower.refresh()
        index = self.upkeep.index if uses_index else None
        found = messages(self.follower, index, LOG, start, end, TopicFilter.parse(text))
        whole = b"".join(
            [
                frames.schema_message(),
                *(one for one in found if not isinstance(one, Progress)),
                frames.END_MESSAGE,
            ]
        )
        return pa.ipc.open_stream(whole).read_all().combine_chunks()

    def check(self, start: int, end: int, text: str) -> int:
        """Both ways read the same; how many records."""
        by_index, by_frames = (self.read(start, end, text, uses_index=one) for one in (True, False))
        assert by_index.equals(by_frames), (start, end, text)
        rows: int = by_index.num_rows
        return rows

    def close(self) -> None:
        if self.upkeep.index is not None:
            self.upkeep.index.close()
        self.store.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("seed", range(3))
def test_every_filter_and_range_reads_the_same_while_streams_grow_and_are_trimmed(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(reading, "_FREE_STEPS", chance.choice([4, 10_000]))
    monkeypatch.setattr(reading, "MAX_TOPICS", chance.choice([3, 1000]))
    monkeypatch.setattr(reading, "_SHARE_AFTER_ROWS", chance.choice([20, 10_000]))
    monkeypatch.setattr(reading, "MAX_HELD_BYTES", chance.choice([100, 10_000]))
    monkeypatch.setattr(reading, "STRETCH", chance.choice([7, 50, 10_000]))
    monkeypatch.setattr(upkeeping, "RUN_RECORDS", 150)
    bench = Bench(tmp_path, retention_bytes=100_000)
    used = 0
    try:
        for _ in range(4):
            for _ in range(chance.randint(1, 6)):
                first = bench.store.range_of(LOG).next_offset
                bench.append(*(record(chance, first + n) for n in range(chance.randint(1, 100))))
            bench.steps(chance.randint(0, 3))
            if chance.random() < 0.5:
                bench.restart()
            if chance.random() < 0.5:
                bench.store.trim(LOG, chance.randint(0, bench.store.range_of(LOG).next_offset // 2))
            held = bench.store.range_of(LOG)
            for text in FILTERS:
                start = chance.randint(held.first_offset, held.next_offset)
                bench.check(start, chance.randint(start, held.next_offset), text)
                bench.check(held.first_offset, held.next_offset, text)
            used = max(used, bench.indexed[1])
        bench.steps(12)
        held = bench.store.range_of(LOG)
        assert bench.indexed[1] == held.next_offset
        assert sum(bench.check(held.first_offset, held.next_offset, text) for text in FILTERS) > 0
    finally:
        bench.close()


def test_a_search_that_a_traceback_keeps_does_not_hold_the_lock_of_a_closed_index(
    bench: Bench,
) -> None:
    chance = random.Random(7)
    bench.append(*(record(chance, number) for number in range(100)))
    bench.steps()
    index = bench.upkeep.index
    assert index is not None
    (epoch,) = index.epochs(LOG)
    found = [index.find(LOG, epoch, 0, 100, TopicFilter.parse(text)) for text in FILTERS]
    assert any(found)
    kept: list[Any] = [found]
    del found
    kept.append(kept)  # only the garbage collector finds it
    del kept
    bench.restart()
    bench.steps()
    assert bench.indexed[1] == 100


def test_pages_go_on_where_they_ended_and_miss_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(7)
    monkeypatch.setattr(reading, "_BATCH_ROWS", 5)
    monkeypatch.setattr(reading, "STRETCH", 40)
    for first in range(0, 600, 100):
        bench.append(*(record(chance, first + n) for n in range(100)))
    bench.steps()
    bench.append(*(record(chance, 600 + n) for n in range(100)))
    for text in FILTERS:
        at, found = 0, []
        while at < 700:
            pieces = messages(
                bench.follower, bench.upkeep.index, LOG, at, 700, TopicFilter.parse(text)
            )
            page = read_page(pieces, 700, 3)
            assert page.next_offset > at
            for message in page.messages:
                found += (
                    pa.ipc.read_record_batch(pa.py_buffer(message), records.SCHEMA)
                    .column(0)
                    .to_pylist()
                )
            at = page.next_offset
        bench.follower.refresh()
        assert found == bench.read(0, 700, text, uses_index=False).column("offset").to_pylist()


def test_one_topic_is_read_without_its_neighbours(tmp_path: Path) -> None:
    bench = Bench(tmp_path, build=None)  # as it is: by a process
    for first in range(0, 20_000, 5000):
        bench.append(
            *(
                StreamRecord(n, f"t/{n % 1000}", b"x" * 100, 0, False, "c")
                for n in range(first, first + 5000)
            )
        )
    bench.steps()
    bench.follower.messages = None  # type: ignore[assignment,method-assign]
    found = list(
        messages(bench.follower, bench.upkeep.index, LOG, 0, 20_000, TopicFilter.parse("t/7"))
    )
    (message,) = [one for one in found if not isinstance(one, Progress)]
    assert pa.ipc.read_record_batch(pa.py_buffer(message), records.SCHEMA).column(
        0
    ).to_pylist() == [*range(7, 20_000, 1000)]
    bench.close()


def test_a_filter_that_matches_most_records_reads_frames(bench: Bench) -> None:
    bench.append(*(StreamRecord(n, f"t/{n % 3}", b"x", 0, False, "c") for n in range(20_000)))
    bench.steps()
    found = messages(bench.follower, bench.upkeep.index, LOG, 0, 20_000, TopicFilter.parse("t/#"))
    scanned = sum(one.scanned for one in found if isinstance(one, Progress))
    assert scanned > 10_000
    assert bench.check(0, 20_000, "t/#") == 20_000


def test_what_retention_deleted_leaves_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeeping, "RUN_RECORDS", 100)
    bench = Bench(tmp_path, retention_bytes=8)  # so that every run is an epoch of its own
    for first in range(0, 1000, 100):
        bench.append(
            *(StreamRecord(n, f"t/{n % 7}", b"x", 0, False, "c") for n in range(first, first + 100))
        )
    bench.steps(15)
    assert bench.indexed == (0, 1000)
    bench.store.trim(LOG, 450)
    bench.steps(2)
    assert bench.indexed == (400, 1000)
    assert (
        bench.check(400, 1000, "t/3") == bench.read(400, 1000, "t/3", uses_index=False).num_rows > 0
    )
    bench.store.trim(LOG, 1000)
    bench.append(*(StreamRecord(n, "t/3", b"y", 0, False, "c") for n in range(1000, 1100)))
    bench.steps()
    assert bench.indexed == (1000, 1100)
    bench.restart()
    bench.steps(1)
    assert bench.indexed == (1000, 1100)
    bench.close()


def test_a_store_that_lost_its_end_is_indexed_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "data")
    bench.append(*(StreamRecord(n, "t", b"one", 0, False, "c") for n in range(100)))
    bench.steps()
    bench.close()
    shutil.copytree(tmp_path / "data", tmp_path / "before")
    bench = Bench(tmp_path / "data")
    bench.append(*(StreamRecord(n, "t", b"lost", 0, False, "c") for n in range(100, 200)))
    bench.steps()
    assert bench.indexed == (0, 200)
    bench.close()
    shutil.rmtree(tmp_path / "data" / "rocksdb")
    shutil.copytree(tmp_path / "before" / "rocksdb", tmp_path / "data" / "rocksdb")
    bench = Bench(tmp_path / "data")
    bench.upkeep.step()
    assert bench.indexed == (0, 0)  # less is there than was indexed
    bench.append(*(StreamRecord(n, "t", b"new", 0, False, "c") for n in range(100, 300)))
    bench.upkeep.step()
    assert bench.indexed == (0, 0)  # another record is there than was indexed
    assert bench.check(0, 300, "t") == 300
    bench.steps()
    assert bench.indexed == (0, 300)
    assert bench.check(0, 300, "t") == 300
    bench.close()


def test_an_index_that_does_not_open_is_made_again(bench: Bench) -> None:
    bench.append(*(StreamRecord(n, f"t/{n}", b"x", 0, False, "c") for n in range(100)))
    bench.steps()
    assert bench.upkeep.index is not None
    bench.upkeep.index.close()
    (bench.directory / upkeeping.FOLDER / "CURRENT").write_text("nothing\n")
    bench.upkeep = bench.restarted()
    bench.steps()
    assert bench.indexed == (0, 100)
    assert bench.check(0, 100, "t/#") == 100


def test_an_index_that_is_not_wanted_any_more_is_deleted(bench: Bench) -> None:
    bench.append(*(StreamRecord(n, f"t/{n}", b"x", 0, False, "c") for n in range(100)))
    bench.steps()
    assert bench.indexed == (0, 100)
    bench.want(None)
    bench.steps(1)
    assert bench.indexed == (0, 100)  # it may be a hole in the view
    bench.steps()
    assert bench.indexed == (0, 0)
    assert bench.upkeep.index is not None
    assert not bench.upkeep.index.stored


def test_few_records_wait_and_many_do_not(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeeping, "MIN_RECORDS", 50)
    bench.upkeep = bench.upkeep_with(100.0)
    bench.append(*(StreamRecord(n, "t", b"x", 0, False, "c") for n in range(40)))
    bench.steps(10)
    assert bench.indexed == (0, 0)
    bench.append(*(StreamRecord(n, "t", b"x", 0, False, "c") for n in range(20)))
    bench.steps(3)
    assert bench.indexed == (0, 60)
    bench.append(StreamRecord(60, "t", b"x", 0, False, "c"))
    bench.steps(10)
    assert bench.indexed == (0, 60)
    bench.steps(40)
    assert bench.indexed == (0, 61)


def test_reports_say_what_is_indexed_and_why_work_failed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[IndexReport] = []
    bench.append(*(StreamRecord(n, "t", b"x", 0, False, "c") for n in range(40)))
    bench.steps()
    monkeypatch.setattr(bench.upkeep, "_tell", told.append)
    bench.upkeep._report(None)
    bench.upkeep._report(None)
    bench.upkeep._report("the disk is full")
    assert [(one.log, one.shard, one.next_offset) for one in told[0].shards] == [(16, 0, 40)]
    assert [one.problem for one in told] == [None, "the disk is full"]
