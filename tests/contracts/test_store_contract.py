"""What every store does, whatever it stands on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from broker.core.stream import ShardRange, StreamRecord
from broker.storage import records
from broker.storage.memory import MemoryStore
from broker.storage.rocksdb.store import RocksStore
from broker.storage.store import Batch, LogShard, Store

LOG = LogShard(16)
OTHER = LogShard(17, 1)


def record(number: int, ts_us: int | None = None, **changes: object) -> StreamRecord:
    made = StreamRecord(
        1_000_000 + number if ts_us is None else ts_us,
        f"site/{number}",
        b"payload %d" % number,
        1,
        False,
        "meter-1",
    )
    return made._replace(**changes)  # type: ignore[arg-type]  # the fields are the test's choice


def open_memory(_directory: Path) -> Store:
    return MemoryStore()


def open_synced(directory: Path) -> Store:
    return RocksStore(directory / "data", "fsync")


def open_unsynced(directory: Path) -> Store:
    return RocksStore(directory / "data", "os")


@pytest.fixture(params=[open_memory, open_synced, open_unsynced])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opener: Callable[[Path], Store] = request.param
    opened = opener(tmp_path)
    yield opened
    opened.close()


def append(store: Store, shard: LogShard, *added: StreamRecord) -> int:
    return store.commit(Batch({shard: list(added)})).first_offsets[shard]


def test_offsets_are_dense_from_zero_in_each_shard(store: Store) -> None:
    assert append(store, LOG, record(0), record(1)) == 0
    assert append(store, OTHER, record(2)) == 0
    assert append(store, LOG, record(3)) == 2
    assert store.range_of(LOG) == ShardRange(0, 0, 3)
    assert store.range_of(OTHER) == ShardRange(1, 0, 1)
    assert list(store.shards()) == [LOG, OTHER]


def test_a_record_reads_back_as_it_was_written(store: Store) -> None:
    full = StreamRecord(5, "a/ü", b"\x00\xff", 2, True, "c", "u", '{"x":1}', "rule-1")
    bare = StreamRecord(6, "b", b"", 0, False, "", None, None, None)
    append(store, LOG, full, bare)
    assert list(store.read(LOG, 0, 10)) == [(0, full), (1, bare)]


def test_text_that_is_not_unicode_stops_no_other_record(store: Store) -> None:
    append(store, LOG, record(0), record(1, topic="a\ud800b"), record(2))
    assert [r.payload for _, r in store.read(LOG, 0, 10)] == [
        b"payload 0",
        b"payload 1",
        b"payload 2",
    ]


@pytest.mark.parametrize(
    ("from_offset", "limit", "expected"),
    [(0, 2, [0, 1]), (3, 4, [3, 4, 5, 6]), (8, 9, [8, 9]), (10, 5, []), (0, 0, [])],
)
def test_reads_are_bounded_and_cross_frames(
    store: Store, from_offset: int, limit: int, expected: list[int]
) -> None:
    for start in range(0, 10, 2):
        append(store, LOG, record(start), record(start + 1))
    found = store.read(LOG, from_offset, limit)
    assert [offset for offset, _ in found] == expected
    assert [r for _, r in found] == [record(number) for number in expected]


def test_arrow_reads_hold_exactly_the_range(store: Store) -> None:
    for start in range(0, 9, 3):
        append(store, LOG, *(record(start + i) for i in range(3)))
    table = pa.Table.from_batches(store.read_arrow(LOG, 2, 7), records.SCHEMA)
    assert table.column("offset").to_pylist() == [2, 3, 4, 5, 6]
    assert table.column("topic").to_pylist() == [f"site/{n}" for n in range(2, 7)]
    assert list(store.read_arrow(LOG, 9, 20)) == []


def test_an_unknown_shard_is_empty(store: Store) -> None:
    assert store.range_of(LogShard(99)) == ShardRange(0, 0, 0)
    assert list(store.read(LogShard(99), 0, 10)) == []
    assert store.offset_at(LogShard(99), 0) == 0
    assert store.size_of(LogShard(99)) == 0
    assert list(store.directory(LogShard(99))) == []


def test_time_finds_the_first_record_at_or_after_it(store: Store) -> None:
    append(store, LOG, record(0, 100), record(1, 300))
    append(store, LOG, record(2, 200), record(3, 250))  # the clock went back
    append(store, LOG, record(4, 400), record(5, 350))
    assert [store.offset_at(LOG, ts) for ts in (0, 100, 101, 300, 301, 400, 401)] == [
        0,
        0,
        1,
        1,
        4,
        4,
        6,
    ]
    assert store.offset_at(LOG, -5) == 0


def test_trimming_forgets_whole_frames_and_keeps_offsets(store: Store) -> None:
    for start in range(0, 6, 2):
        append(store, LOG, record(start), record(start + 1))
    size = store.size_of(LOG)
    store.trim(LOG, 3)
    assert store.range_of(LOG) == ShardRange(0, 2, 6)
    assert [offset for offset, _ in store.read(LOG, 0, 10)] == [2, 3, 4, 5]
    assert store.offset_at(LOG, 0) == 2
    assert 0 < store.size_of(LOG) < size
    store.trim(LOG, 6)
    assert store.range_of(LOG) == ShardRange(0, 6, 6)
    assert store.size_of(LOG) == 0
    assert store.offset_at(LOG, 0) == 6
    assert append(store, LOG, record(6)) == 6
    assert list(store.read(LOG, 0, 10)) == [(6, record(6))]


def test_a_dropped_log_is_gone_with_all_shards(store: Store) -> None:
    for shard in (LOG, LogShard(16, 1), OTHER):
        append(store, shard, record(0))
    store.drop(16)
    assert list(store.shards()) == [OTHER]
    assert list(store.read(LOG, 0, 10)) == []
    assert list(store.read(OTHER, 0, 10)) == [(0, record(0))]


def test_keys_are_put_replaced_and_deleted(store: Store) -> None:
    store.commit(Batch(puts={b"a": b"1", b"b": b""}))
    store.commit(Batch(puts={b"a": b"2", b"b": None}))
    assert store.get(b"a") == b"2"
    assert store.get(b"b") is None


def test_a_scan_gives_a_prefix_in_key_order(store: Store) -> None:
    store.commit(
        Batch(puts={b"p/2": b"2", b"p/1": b"1", b"q": b"3", b"p": b"0", b"p/\xff\xff": b"4"})
    )
    assert list(store.scan(b"p/")) == [(b"p/1", b"1"), (b"p/2", b"2"), (b"p/\xff\xff", b"4")]
    assert [key for key, _ in store.scan(b"")] == [b"p", b"p/1", b"p/2", b"p/\xff\xff", b"q"]
    assert [key for key, _ in store.scan(b"p/\xff")] == [b"p/\xff\xff"]


def test_a_scan_shows_the_moment_it_was_begun(store: Store) -> None:
    store.commit(Batch(puts={b"p/1": b"1", b"p/3": b"3"}))
    scan = store.scan(b"p/")
    assert next(scan) == (b"p/1", b"1")
    store.commit(Batch(puts={b"p/2": b"2", b"p/3": None}))
    assert list(scan) == [(b"p/3", b"3")]


def test_a_cursor_goes_to_keys_of_its_prefix_and_no_others(store: Store) -> None:
    store.commit(Batch(puts={b"p/1": b"1", b"p/3": b"3", b"o": b"0", b"q": b"4"}))
    cursor = store.cursor(b"p/")
    assert (cursor.seek(b""), cursor.value()) == (b"p/1", b"1")
    assert (cursor.next(), cursor.value()) == (b"p/3", b"3")
    assert cursor.next() is None
    assert (cursor.seek(b"p/2"), cursor.value()) == (b"p/3", b"3")
    assert cursor.seek(b"p/4") is None
    assert store.cursor(b"r").seek(b"r") is None


def test_a_cursor_passes_each_key_once_while_a_thread_commits_others(store: Store) -> None:
    keys = [b"p/%04d" % number for number in range(2000)]
    store.commit(Batch(puts=dict.fromkeys(keys, b"")))
    is_over = threading.Event()

    def commit_others() -> None:
        number = 0
        while not is_over.is_set():
            store.commit(Batch(puts={b"a/%d" % number: b"", b"a/%d" % (number - 20): None}))
            number += 1

    writer = threading.Thread(target=commit_others)
    writer.start()
    try:
        for _ in range(20):
            cursor = store.cursor(b"p/")
            passed = [cursor.seek(b"")]
            while passed[-1] is not None:
                passed.append(cursor.next())
            assert passed == [*keys, None]
    finally:
        is_over.set()
        writer.join()


def test_the_directory_lists_frames(store: Store) -> None:
    append(store, LOG, record(0, 10), record(1, 30))
    append(store, LOG, record(2, 20))
    first, second = store.directory(LOG)
    assert (first.first_offset, first.next_offset, first.min_ts_us, first.max_ts_us) == (
        0,
        2,
        10,
        30,
    )
    assert (second.first_offset, second.max_ts_us, second.running_max_us, second.records) == (
        2,
        20,
        30,
        1,
    )
    assert first.size_bytes + second.size_bytes == store.size_of(LOG)
    assert list(store.directory(LOG, 1)) == [first, second]
    assert list(store.directory(LOG, 2)) == [second]


def test_merging_frames_changes_nothing_for_readers(store: Store) -> None:
    for number in range(6):
        append(store, LOG, record(number))
    before = list(store.read(LOG, 0, 10))
    store.merge(LOG, 1, 5)
    assert list(store.read(LOG, 0, 10)) == before
    assert [(e.first_offset, e.next_offset) for e in store.directory(LOG)] == [
        (0, 1),
        (1, 5),
        (5, 6),
    ]
    assert [store.offset_at(LOG, 1_000_000 + n) for n in range(7)] == list(range(7))
    assert sum(entry.size_bytes for entry in store.directory(LOG)) == store.size_of(LOG)
    assert append(store, LOG, record(6)) == 6


def test_merging_refuses_offsets_inside_frames(store: Store) -> None:
    append(store, LOG, record(0), record(1))
    append(store, LOG, record(2))
    with pytest.raises(ValueError, match="make up offsets 1 to 3"):
        store.merge(LOG, 1, 3)


def test_a_group_larger_than_a_frame_is_cut(store: Store) -> None:
    count = records.MAX_FRAME_ROWS + 10
    append(store, LOG, *(record(number) for number in range(count)))
    assert store.range_of(LOG).next_offset == count
    assert [offset for offset, _ in store.read(LOG, count - 12, 100)] == list(
        range(count - 12, count)
    )
