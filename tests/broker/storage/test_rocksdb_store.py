"""What RocksDB adds to the contract: reopening, locking, damage, full disks."""

from __future__ import annotations

import gc
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rocksdict import Options, Rdict

from broker.core.errors import ConfigError, Unavailable
from broker.core.stream import StreamRecord
from broker.storage.frames import CorruptFrame
from broker.storage.rocksdb import database, keys
from broker.storage.rocksdb.options import Memory
from broker.storage.rocksdb.store import DATABASE_FOLDER, RocksStore
from broker.storage.store import Batch, LogShard
from tests.support.examples import examples
from tests.support.node import eventually
from tests.support.small_disk import SmallDisk, small_disk

ROOT = Path(__file__).parents[3]
LOG = LogShard(16)
_NOBODY = 65534


def record(number: int) -> StreamRecord:
    return StreamRecord(number, f"t/{number}", b"%d" % number, 1, False, "c")


def append(store: RocksStore, *numbers: int) -> None:
    store.commit(Batch({LOG: [record(n) for n in numbers]}))


def test_everything_is_there_after_reopening(tmp_path: Path) -> None:
    store = RocksStore(tmp_path)
    append(store, 0, 1, 2)
    append(store, 3)
    store.commit(Batch(puts={b"k": b"v"}))
    store.trim(LOG, 3)
    size = store.size_of(LOG)
    store.close()
    store = RocksStore(tmp_path)
    assert list(store.read(LOG, 0, 10)) == [(3, record(3))]
    assert store.get(b"k") == b"v"
    assert store.size_of(LOG) == size
    append(store, 4)
    assert store.range_of(LOG).next_offset == 5
    assert store.offset_at(LOG, 4) == 4
    store.close()


def test_what_fills_the_write_buffer_is_written_as_a_table(tmp_path: Path) -> None:
    store = RocksStore(tmp_path, "os", Memory(write_buffer=64 * 1024))
    chance = random.Random(1)
    for number in range(256):
        store.commit(Batch(puts={b"%d" % number: chance.randbytes(1024)}))
    assert eventually(lambda: list((tmp_path / DATABASE_FOLDER).glob("*.sst")), what="a table")
    store.close()


def test_what_was_trimmed_gives_its_disk_space_back(tmp_path: Path) -> None:
    store = RocksStore(tmp_path, "os")
    for _ in range(90):
        store.commit(
            Batch(
                {LOG: [StreamRecord(0, "t", os.urandom(1000), 1, False, "c") for _ in range(1000)]}
            )
        )
    # files cannot be counted while RocksDB writes and deletes some
    assert store.size_of(LOG) > 80_000_000
    store.trim(LOG, 90_000)
    store.close()
    RocksStore(tmp_path, "os").close()  # removes files that something still had open at the end
    left = {
        file.name: file.stat().st_blocks * 512 for file in tmp_path.rglob("*") if file.is_file()
    }
    assert sum(left.values()) < 5_000_000, left


def test_offsets_go_on_after_all_was_trimmed_and_reopened(tmp_path: Path) -> None:
    store = RocksStore(tmp_path)
    append(store, 0, 1)
    store.trim(LOG, 2)
    store.close()
    store = RocksStore(tmp_path)
    append(store, 2)
    assert list(store.read(LOG, 0, 10)) == [(2, record(2))]
    store.close()


HOLD = """
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from broker.storage.rocksdb.store import RocksStore
store = RocksStore(Path(sys.argv[1]))
print("open", flush=True)
sys.stdin.read()
"""


def test_a_second_broker_is_told_who_holds_the_directory_and_gets_it_after_a_kill(
    tmp_path: Path,
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(ConfigError) as refused:
            RocksStore(tmp_path)
        text = str(refused.value)
        assert text.startswith(
            f"the data directory {tmp_path} is in use by another sluice (process {holder.pid});"
        )
        assert "\n" not in text
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        RocksStore(tmp_path).close()


def test_a_directory_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be used: Not a directory; make it writable"):
        RocksStore(tmp_path / "file" / "data")


@contextmanager
def without_root() -> Iterator[None]:
    """As a user who may not write everywhere."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)


def test_a_directory_that_is_not_writable_is_one_sentence() -> None:
    with TemporaryDirectory() as directory:
        # not pytest's, whose parents only their owner may enter
        os.chmod(directory, 0o555)
        with (
            without_root(),
            pytest.raises(ConfigError, match="cannot be used: Permission denied; make it writable"),
        ):
            RocksStore(Path(directory))


def open_raw(directory: Path) -> Rdict:
    return Rdict(str(directory / DATABASE_FOLDER), Options(raw_mode=True))


def test_a_store_of_a_newer_release_is_refused_by_name(tmp_path: Path) -> None:
    RocksStore(tmp_path).close()
    raw = open_raw(tmp_path)
    raw.put(keys.FORMAT, b"99")
    raw.close()
    with pytest.raises(
        ConfigError,
        match="has format 99, written by a newer release; this one reads up to format 1",
    ):
        RocksStore(tmp_path)


@pytest.mark.parametrize("damage", ["flip", "cut", "version", "lose"])
def test_a_damaged_frame_is_an_error_that_names_its_offset(tmp_path: Path, damage: str) -> None:
    store = RocksStore(tmp_path)
    for start in range(0, 9, 3):
        append(store, start, start + 1, start + 2)
    store.close()
    raw = open_raw(tmp_path)
    key = keys.frame_key(LOG, 3)
    frame = raw[key]
    assert isinstance(frame, bytes)
    value = bytearray(frame)
    if damage == "flip":
        value[-9] ^= 1
    elif damage == "cut":
        del value[10:]
    elif damage == "version":
        value[0] = 9
    raw.put(key, bytes(value))
    if damage == "lose":
        raw.delete(key)
    raw.close()
    store = RocksStore(tmp_path)
    assert [offset for offset, _ in store.read(LOG, 0, 3)] == [0, 1, 2]
    with pytest.raises(CorruptFrame, match="from offset 3 on are damaged on disk") as caught:
        store.read(LOG, 0, 9)
    assert caught.value.offset == 3
    assert [offset for offset, _ in store.read(LOG, 6, 9)] == [6, 7, 8]
    with pytest.raises(CorruptFrame):
        store.merge(LOG, 0, 9)
    store.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "small", 24) as mounted:
        yield mounted


def append_until_full(store: RocksStore, kept: StreamRecord) -> int:
    """How many commits succeeded; each also puts its number under ``k``."""
    for count in range(10):
        try:
            store.commit(Batch({LOG: [kept]}, {b"k": b"%d" % count}))
        except Unavailable:
            return count
    raise AssertionError("the disk did not get full")


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_a_full_disk_refuses_whole_groups_and_recovers_with_space(
    disk: SmallDisk, durability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_REOPEN_INTERVAL_S", 0.0)
    store = RocksStore(disk.path / "data", durability)  # type: ignore[arg-type]  # one of the two
    append(store, 0, 1)
    store.commit(Batch(puts={b"k": b"before"}))
    disk.fill(left_bytes=200_000)
    big = StreamRecord(2, "t", os.urandom(60_000), 1, False, "c")
    count = append_until_full(store, big)
    for _ in range(3):
        with pytest.raises(Unavailable, match=r"cannot be written: .*No space left"):
            store.commit(Batch({LOG: [big]}, {b"k": b"never"}))
    disk.free()
    append(store, 99)
    expected = [
        (0, record(0)),
        (1, record(1)),
        *((2 + n, big) for n in range(count)),
        (2 + count, record(99)),
    ]
    assert list(store.read(LOG, 0, 100)) == expected
    assert store.get(b"k") == (b"%d" % (count - 1) if count else b"before")
    store.close()
    store = RocksStore(disk.path / "data")
    assert list(store.read(LOG, 0, 100)) == expected
    store.close()


def test_what_could_not_be_synced_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys that are new, changed and gone: who had them written was told that they are not."""
    store = RocksStore(tmp_path)
    store.commit(Batch(puts={b"gone": b"1", b"changed": b"1"}))
    with monkeypatch.context() as patched:
        patched.setattr(Rdict, "flush_wal", _fails_to_sync)
        with pytest.raises(Unavailable):
            store.commit(Batch(puts={b"gone": None, b"changed": b"2", b"new": b"2"}))
    store.commit(Batch(puts={b"last": b"3"}))
    kept = {b"gone": b"1", b"changed": b"1", b"last": b"3"}
    assert dict(store.scan(b"")) == kept
    store.close()
    store = RocksStore(tmp_path)
    assert dict(store.scan(b"")) == kept
    store.close()


def _fails_to_sync(_database: Rdict, _is_sync: bool) -> None:
    raise OSError("IO error: while fsync")


def test_an_iterator_that_a_traceback_keeps_does_not_hold_the_lock_of_a_closed_store(
    tmp_path: Path,
) -> None:
    store = RocksStore(tmp_path)
    store.commit(Batch(puts={b"k": b"v"}))
    kept: list[Any] = [store.scan(b"")]
    next(kept[0])
    kept.append(kept)  # only the garbage collector finds it
    store.close()
    del kept
    again = RocksStore(tmp_path)
    assert again.get(b"k") == b"v"
    again.close()


class _FailingFlush:
    """A database whose last flush fails; all else goes to the real one."""

    def __init__(self, db: Rdict) -> None:
        self._db = db

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def flush_wal(self, _sync: bool) -> None:
        raise OSError("Input/output error")


def test_the_files_are_released_although_the_last_flush_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = RocksStore(tmp_path, "os")
    append(store, 0)
    monkeypatch.setattr(store._db, "_db", _FailingFlush(store._db._db))
    store.close()
    assert "store.closed_unwritten" in caplog.text
    again = RocksStore(tmp_path)
    assert again.range_of(LOG).next_offset == 1
    again.close()


@pytest.fixture
def settled_heap() -> None:
    """Take what other tests left out of the collector's work: each close of a store collects."""
    gc.collect()
    gc.freeze()


Step = tuple[str, int, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["append", "append", "append", "put", "delete", "trim", "merge", "drop", "reopen"]
        ),
        st.integers(0, 3),
        st.integers(0, 40),
    ),
    max_size=40,
)


class Model:
    """What the store should hold: records by offset for four shards, and keys."""

    def __init__(self) -> None:
        self.records: dict[LogShard, dict[int, StreamRecord]] = {}
        self.next: dict[LogShard, int] = {}
        self.keys: dict[bytes, bytes] = {}
        self.serial = 0

    def append(self, shard: LogShard, count: int) -> list[StreamRecord]:
        added = [record(self.serial + i) for i in range(count)]
        self.serial += count
        first = self.next.get(shard, 0)
        self.records.setdefault(shard, {}).update(enumerate(added, first))
        self.next[shard] = first + count
        return added

    def forget(self, shard: LogShard, before: int) -> None:
        if shard in self.records:
            self.records[shard] = {o: r for o, r in self.records[shard].items() if o >= before}


def apply(store: RocksStore, model: Model, step: Step) -> None:
    action, which, number = step
    shard, key = LogShard(16 + which // 2, which % 2), b"key %d" % (number % 5)
    held = store.range_of(shard)
    if action == "append":
        added = model.append(shard, number % 7 + 1)
        model.keys[key] = b"%d" % number
        store.commit(Batch({shard: added}, {key: b"%d" % number}))
    elif action == "put":
        model.keys[key] = b"%d" % number
        store.commit(Batch(puts={key: b"%d" % number}))
    elif action == "delete":
        model.keys.pop(key, None)
        store.commit(Batch(puts={key: None}))
    elif action == "trim":
        store.trim(shard, number)
        first = store.range_of(shard).first_offset
        assert held.first_offset <= first <= max(number, held.first_offset)
        model.forget(shard, first)
    elif action == "merge":
        store.merge(
            shard, held.first_offset, held.next_offset
        ) if held.first_offset < held.next_offset else None
    elif action == "drop":
        store.drop(shard.log)
        for dropped in [s for s in model.records if s.log == shard.log]:
            del model.records[dropped], model.next[dropped]


@settings(
    max_examples=examples(30),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=STEPS)
@pytest.mark.usefixtures("settled_heap")
def test_any_sequence_of_changes_leaves_what_a_dictionary_would_hold(
    tmp_path: Path, steps: list[Step]
) -> None:
    directory = tmp_path / f"{random.getrandbits(64):x}"
    store, model = RocksStore(directory, "os"), Model()
    try:
        for step in steps:
            if step[0] == "reopen":
                store.close()
                store = RocksStore(directory, "os")
            else:
                apply(store, model, step)
        for shard, expected in model.records.items():
            assert dict(store.read(shard, 0, 10_000)) == expected
            assert store.range_of(shard).next_offset == model.next[shard]
            assert sum(entry.size_bytes for entry in store.directory(shard)) == store.size_of(shard)
            for offset, kept in expected.items():
                assert store.offset_at(shard, kept.ts_us) == offset
        assert dict(store.scan(b"key")) == model.keys
        assert set(store.shards()) == set(model.records)
    finally:
        store.close()
        shutil.rmtree(directory)
