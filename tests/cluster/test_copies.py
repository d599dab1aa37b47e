"""The copy of a cell's store: it follows the log, gives its store to other machines, and is replaced where needed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from broker.cluster.copies import Copy
from broker.cluster.copying import CopyState, remove_store
from broker.cluster.nats.line import Servers
from broker.cluster.nats.log import NatsLog
from broker.core.errors import ConfigError, Unavailable
from broker.storage.commit_log import LogLost, Mark
from broker.storage.rocksdb.store import RocksStore
from tests.support.jetstream_model import ModelLine, Stream
from tests.support.node import eventually

GROUPS = 20

Bring = Callable[[int, Path, int], None]


class Log:
    """A stream in memory, and the logs that read and write it."""

    def __init__(self) -> None:
        self._stream = Stream()
        self._who = 0
        self._owner = self.new()
        self._owner.claim(Mark())
        self.grow(GROUPS)

    def new(self) -> NatsLog:
        """The log for one more process."""
        self._who += 1
        log = NatsLog(Servers([]), "plant", 1, f"machine{self._who}", 0.0)
        log._line = ModelLine(self._stream, lambda: "none", lambda: self._stream.last, 5000)  # type: ignore[assignment]
        return log

    def grow(self, groups: int) -> None:
        for _ in range(groups):
            key = b"k%d" % self._stream.last
            self._owner.append([(key, bytes(100), False)])

    def trim(self) -> None:
        self._owner.trim(self._stream.last)

    @property
    def end(self) -> int:
        return self._stream.last


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def follow(log: Log, tmp_path: Path) -> Iterator[Callable[[Bring], Copy]]:
    """Begins the copy of the directory ``copy``."""
    copies = []

    def begin(bring: Bring = _brings_none) -> Copy:
        copy = Copy(1, tmp_path / "copy", log.new(), bring)
        copies.append(copy)
        copy.start()
        return copy

    yield begin
    for copy in copies:
        copy.stop()


def _brings_none(_cell: int, _directory: Path, _least: int) -> None:
    raise AssertionError("the copy is to be kept")


def _follows(copy: Copy, log: Log) -> Copy:
    """The copy, once its disk has all of the log."""
    eventually(lambda: copy.state()[0] == CopyState(log.end, 1), 10)
    return copy


def test_a_store_is_free_once_its_copy_is_stopped_while_it_is_on_its_way(
    log: Log, follow: Callable[[], Copy], tmp_path: Path
) -> None:
    """Another machine fetches it as the cell is to start here, which opens the store."""
    copy = _follows(follow(), log)
    entries = copy.copy()
    next(entries)
    copy.stop()
    with closing(RocksStore(tmp_path / "copy", log=log.new())):
        pass
    with pytest.raises(Unavailable, match="the copy of cell 1 has ended"):
        next(entries)


def _damage(directory: Path) -> None:
    """Change a byte in the middle of RocksDB's log, as a power failure does that takes what was not synced."""
    [file] = directory.glob("rocksdb/*.log")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)


def _remove_log(directory: Path) -> None:
    [file] = directory.glob("rocksdb/*.log")
    file.unlink()


def _stop_without_flush(copy: Copy, directory: Path) -> None:
    """Leave the directory as a process that is killed does, with all in RocksDB's log."""
    kept = directory.with_name("kept")
    shutil.copytree(directory, kept)
    copy.stop()
    shutil.rmtree(directory)
    kept.rename(directory)


@pytest.mark.parametrize("harm", [_damage, _remove_log])
def test_a_copy_whose_disk_has_lost_commits_is_replaced(
    harm: Callable[[Path], None], log: Log, follow: Callable[..., Copy], tmp_path: Path
) -> None:
    copy = _follows(follow(), log)
    _stop_without_flush(copy, tmp_path / "copy")
    harm(tmp_path / "copy")
    brought = []

    def bring(_cell: int, directory: Path, _least: int) -> None:
        brought.append(directory)
        remove_store(directory)  # a copy without entries, which the log still has

    _follows(follow(bring), log)
    assert brought == [tmp_path / "copy"]


@pytest.mark.parametrize(
    "error",
    [
        ConfigError(["the store cannot be opened: No space left on device"]),
        OSError(28, "No space left on device"),
        LogLost("there is no stream"),
        Unavailable("no other machine has a copy"),
    ],
)
def test_a_copy_that_could_not_be_replaced_is_replaced_later(
    error: Exception, log: Log, follow: Callable[..., Copy], tmp_path: Path
) -> None:
    _follows(follow(), log).stop()
    owner = (tmp_path / "copy").rename(tmp_path / "owner")
    log.trim()
    errors = [error]

    def bring(_cell: int, directory: Path, _least: int) -> None:
        if errors:
            raise errors.pop()
        shutil.copytree(owner, directory, dirs_exist_ok=True)

    _follows(follow(bring), log)
