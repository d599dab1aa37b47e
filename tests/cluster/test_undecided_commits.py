"""What a store does while it is not known whether a commit is in its log: with the log's own code and real databases,
over a model of the stream whose answers are lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from rocksdict import Rdict

from broker.cluster.nats.line import Servers
from broker.cluster.nats.log import NatsLog
from broker.core.errors import Unavailable, Undecided
from broker.core.stream import StreamRecord
from broker.storage.rocksdb.store import DATABASE_FOLDER, RocksStore
from broker.storage.store import Batch, LogShard
from tests.support.jetstream_model import Fault, ModelLine, Stream

SHARD = LogShard(16)


class Place:
    """A store, and its log in a stream whose next messages fail as named."""

    def __init__(self, directory: Path) -> None:
        self.stream = Stream()
        self.faults: list[Fault] = []
        self.sees_to: int | None = None
        self.directory = directory
        self.log = NatsLog(Servers([]), "plant", 0, "a", 0.0)
        self.log._line = ModelLine(  # type: ignore[assignment]
            self.stream,
            lambda: self.faults.pop(0) if self.faults else "none",
            lambda: self.stream.last if self.sees_to is None else self.sees_to,
            1024 * 1024,
        )
        self.store = RocksStore(directory, log=self.log)

    def commit(self, *numbers: int) -> None:
        for number in numbers:
            record = StreamRecord(number + 1, "t", b"%d" % number, 1, False, "c")
            self.store.commit(Batch({SHARD: [record]}, {b"last": b"%d" % number}))

    def numbers(self) -> list[int]:
        return [int(record.payload) for _, record in self.store.read(SHARD, 0, 1000)]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path / "store")
    yield place
    place.store.close()


def merge(store: RocksStore) -> None:
    store.merge(SHARD, 0, 10)


def trim(store: RocksStore) -> None:
    store.trim(SHARD, 5)


def drop(store: RocksStore) -> None:
    store.drop(SHARD.log)


@pytest.mark.parametrize("fault", ["answer lost", "request lost", "late"])
@pytest.mark.parametrize(
    ("first", "second", "left"),
    [(merge, trim, range(20)), (trim, merge, range(5, 20)), (merge, drop, ()), (trim, drop, ())],
)
def test_what_follows_an_undecided_change_begins_with_what_that_left(
    place: Place,
    fault: Fault,
    first: Callable[[RocksStore], None],
    second: Callable[[RocksStore], None],
    left: range,
) -> None:
    """A trim within a merged frame keeps all of it; frames that a trim took cannot be merged."""
    place.commit(*range(20))
    place.faults = [fault]
    with pytest.raises(Unavailable):
        first(place.store)
    with suppress(ValueError):  # no frames of these offsets
        second(place.store)
    assert place.numbers() == list(left)
    place.commit(20)
    assert place.numbers()[-1] == 20


def test_a_commit_that_was_reported_as_failed_is_taken_back_whatever_the_reason(
    place: Place,
) -> None:
    """A server that lags says that the log ends before the store."""
    place.commit(0)
    place.faults = ["answer lost"]
    place.sees_to = place.stream.last - 1
    with pytest.raises(Undecided, match="its log ends at"):
        place.commit(1)
    place.sees_to = None
    place.commit(2)
    assert place.numbers() == [0, 2]


def test_all_keys_of_a_commit_that_was_reported_as_failed_are_taken_back(place: Place) -> None:
    place.store.commit(Batch(puts={b"gone": b"1", b"changed": b"1"}))
    place.faults = ["answer lost"]
    with pytest.raises(Unavailable):
        place.store.commit(Batch(puts={b"gone": None, b"changed": b"2", b"new": b"2"}))
    place.store.commit(Batch(puts={b"last": b"3"}))
    kept = {b"gone": b"1", b"changed": b"1", b"last": b"3"}
    assert dict(place.store.scan(b"")) == kept


def test_a_store_that_is_opened_again_has_all_that_its_log_has(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fails to sync may have lost what was written before."""
    database = place.directory / DATABASE_FOLDER
    place.commit(0, 1)
    place.store.trim_log(0)
    shutil.copytree(database, tmp_path / "synced")
    place.commit(2)
    flush = Rdict.flush_wal
    monkeypatch.setattr(Rdict, "flush_wal", _fails)
    with pytest.raises(Unavailable):
        place.store.trim_log(0)
    place.store._db._db.close()
    shutil.rmtree(database)
    shutil.copytree(tmp_path / "synced", database)
    monkeypatch.setattr(Rdict, "flush_wal", flush)
    place.commit(3)
    assert place.numbers() == [0, 1, 2, 3]


def _fails(_database: Rdict, _is_sync: bool) -> None:
    raise OSError("IO error: while fsync")
