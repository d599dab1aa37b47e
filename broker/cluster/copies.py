"""Copies of the stores of cells that other machines run.

A thread for each cell applies the cell's commit log to a database. Where the log no longer reaches back to it, or
damage was found, the copy is replaced by the owner's, or by that of a third machine.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final
from weakref import WeakSet

from broker.cluster.copying import (
    CopyState,
    Source,
    fetch,
    socket_of_copies,
    socket_of_copy,
)
from broker.cluster.nats.log import NatsLog
from broker.cluster.settings import ClusterSettings
from broker.core.errors import SluiceError, Unavailable
from broker.observe.log import get_logger
from broker.storage.commit_log import LogLost, Mark
from broker.storage.rocksdb.database import Database
from broker.storage.rocksdb.options import Memory
from broker.storage.rocksdb.store import DATABASE_FOLDER

_log = get_logger(__name__)

_MEMORY: Final = Memory(write_buffer=16 * 1024 * 1024, block_cache=8 * 1024 * 1024)
# Seconds between looks at a log that has grown, and at one that has not; between attempts; between syncs.
_SOON_S: Final = 0.02
_IDLE_S: Final = 0.2
_AGAIN_S: Final = 1.0
_SYNC_S: Final = 1.0
# Longest time between attempts to replace a store that cannot be, as on a disk that has no room for two.
_LONGEST_S: Final = 60.0
# Seconds for which cells wait at their start for a copy that is being opened.
_OPENING_S: Final = 10.0
_NOT_BEGUN: Final = "it has not begun"


class _Given:
    """A store on its way to another machine: its keys and values, until ``end``, also in the middle."""

    def __init__(self, cell: int, entries: Iterator[tuple[bytes, bytes]]) -> None:
        self._cell = cell
        self._entries: Iterator[tuple[bytes, bytes]] | None = entries
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return self

    def __next__(self) -> tuple[bytes, bytes]:
        with self._lock:
            if self._entries is None:
                raise Unavailable(f"the copy of cell {self._cell} has ended")
            return next(self._entries)

    def end(self) -> None:
        """Drop the iterator, once it has no reader."""
        with self._lock:
            self._entries = None


class Copy:
    """The copy of one cell, and the thread that keeps it up."""

    def __init__(
        self, cell: int, directory: Path, log: NatsLog, bring: Callable[[int, Path, int], None]
    ) -> None:
        """``bring`` replaces the directory's store by another copy that has reached a position, or raises
        ``Unavailable``."""
        self.cell = cell
        self._directory = directory
        self._log = log
        self._bring = bring
        self._database: Database | None = None
        self._giving = threading.Lock()
        self._given: WeakSet[_Given] = WeakSet()
        """The store on its way to other machines."""
        self._is_over = threading.Event()
        self._synced = Mark()
        self._synced_s = self._began_s = 0.0
        self._problem = _NOT_BEGUN
        self._thread = threading.Thread(target=self._keep, name=f"copy of cell {cell}", daemon=True)

    def start(self) -> None:
        """Follow the log from now on."""
        self._began_s = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """Follow it no more, and close the database."""
        self._is_over.set()
        self._thread.join()

    @property
    def is_opening(self) -> bool:
        """True until its store was opened for the first time, or could not be, or takes long."""
        return (
            self._database is None
            and self._problem == _NOT_BEGUN
            and time.monotonic() - self._began_s < _OPENING_S
        )

    def state(self) -> tuple[CopyState, Source | None]:
        """How far it is, and the copy where it is in order."""
        problem = self._problem
        state = CopyState(self._synced.position, self._synced.epoch, problem)
        return state, None if problem or self._database is None else self

    def copy(self) -> Iterator[tuple[bytes, bytes]]:
        with self._giving:
            if self._database is None:
                raise Unavailable(f"the copy of cell {self.cell} is being replaced")
            given = _Given(self.cell, self._database.entries())
            self._given.add(given)
        return given

    def _give_no_more(self) -> None:
        """End all iterators, which hold RocksDB's lock: the store is to be opened again, here or by the cell."""
        with self._giving:
            for given in self._given:
                given.end()
            self._given.clear()

    def _keep(self) -> None:
        is_lost = False
        pause_s = 0.0  # before the next attempt to replace the store
        while not self._is_over.wait(pause_s if is_lost else 0.0):
            began_s = time.monotonic()
            try:
                if is_lost:
                    pause_s = max(pause_s, _AGAIN_S)
                    self._replace()
                    is_lost = False
                if self._database is None:
                    self._open()
                self._follow()
                pause_s = 0.0
            except Exception as error:  # noqa: BLE001  of RocksDB, or a bug: the other copies go on
                self._note(str(error) if isinstance(error, SluiceError) else repr(error))
                if is_lost:
                    # gigabytes may have come in vain; a machine that is away is asked again soon
                    if time.monotonic() - began_s > _AGAIN_S:
                        pause_s = min(pause_s * 2, _LONGEST_S)
                elif isinstance(error, LogLost):
                    is_lost = True
                else:
                    self._is_over.wait(_AGAIN_S)
        self._close()

    def _open(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._database = Database(self._directory / DATABASE_FOLDER, _MEMORY, is_copy=True)
        self._synced = self._database.applied

    def _follow(self) -> None:
        database = self._database
        assert database is not None
        if database.is_broken:
            self._give_no_more()
            database.recover()
        has_grown = False
        for mark, steps in self._log.follow(database.applied):
            database.apply(mark, steps)
            has_grown = True
            if self._is_over.is_set():
                return
            self._sync(database)
        self._sync(database)
        self._note("")
        self._is_over.wait(_SOON_S if has_grown else _IDLE_S)

    def _sync(self, database: Database) -> None:
        if time.monotonic() - self._synced_s >= _SYNC_S:
            self._synced = database.sync()
            self._synced_s = time.monotonic()

    def _replace(self) -> None:
        least = self._log.trimmed_to()
        self._close()
        self._bring(self.cell, self._directory, least)
        _log.info("copy.made", cell=self.cell)

    def _close(self) -> None:
        with self._giving:
            database, self._database = self._database, None
        self._give_no_more()
        self._log.close()
        if database is not None:
            try:
                database.close()
            except Unavailable as error:
                _log.warning("copy.closed_unwritten", cell=self.cell, reason=str(error))

    def _note(self, problem: str) -> None:
        before, self._problem = self._problem, problem
        if problem == before:
            return
        if problem:
            _log.warning("copy.does_not_follow", cell=self.cell, reason=problem)
        else:
            _log.info("copy.follows", cell=self.cell, position=self._synced.position)


def bring(run: Path, cluster: ClusterSettings, cell: int, directory: Path, least: int) -> None:
    """Make the store of a directory a copy of a cell's: of the owner's, else of that of another machine. It has reached
    position ``least``, so that a newer store is not replaced in vain.

    Raises:
        Unavailable: none gives one.
    """
    names = [socket_of_copy(cell), *map(socket_of_copies, cluster.others_with(cell))]
    problems = []
    for name in names:
        try:
            state = fetch(run, name, cell, directory, least)
        except Unavailable as error:
            problems.append(str(error))
        else:
            _log.info("copy.brought", cell=cell, of=name, position=state.position)
            return
    raise Unavailable("; ".join(problems) or f"no other machine has a copy of cell {cell}")
