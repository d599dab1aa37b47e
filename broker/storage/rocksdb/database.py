"""RocksDB as this store uses it: opened with clear errors, written without stalls, opened again after a failure.

A failed write (disk full, an I/O error) leaves RocksDB refusing every further one until it is opened again, which
rocksdict has no call for: so it is closed and opened, at most once a second, as soon as the disk has room for that.

With a commit log, changes are in the log first, and are applied here after, unsynced: what a power failure takes comes
from the log again.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from shlex import quote
from tempfile import NamedTemporaryFile
from typing import Final

from rocksdict import AccessType, DbClosedError, Rdict, RdictIter, ReadOptions, Snapshot, WriteBatch

from broker.core.errors import ConfigError, SluiceError, Unavailable
from broker.observe.log import get_logger
from broker.storage.commit_log import CommitLog, LogLost, Mark, Steps
from broker.storage.rocksdb import keys, options, wal

_log = get_logger(__name__)
_LACKS_END: Final = "the commit log was read at a server that lacks its end"

FORMAT: Final = 1
_STALL_STEP_S: Final = 0.005
_STALL_LIMIT_S: Final = 10.0
_REOPEN_INTERVAL_S: Final = 1.0
_ROOM_BYTES: Final = 1024 * 1024
# First byte of keys for the whole store, and a key behind all.
_OF_ALL: Final = b"m"
_BEHIND_ALL: Final = b"\xff"


class Database:
    """One read-write RocksDB. Blocking; writes come from one thread at a time."""

    def __init__(
        self,
        path: Path,
        memory: options.Memory,
        monotonic_s: Callable[[], float] = time.monotonic,
        *,
        must_exist: bool = False,
        log: CommitLog | None = None,
        is_copy: bool = False,
    ) -> None:
        """Open, creating what is missing. ``must_exist``: where the directory is missing, its data is lost. ``log``:
        what ``write`` adds to, once ``lead`` was called. ``is_copy``: others have all that it has.

        Raises:
            ConfigError: the directory cannot be used, a log is empty, gone or damaged in its middle, or a newer release
                wrote it.
            LogLost: with ``log``, or of a copy, in place of that where commits are lost here.
        """
        self._path = path
        self._memory = memory
        self._monotonic_s = monotonic_s
        self._write_options = options.without_stalls()
        self._is_broken = False
        self._log = log
        self._is_replaceable = is_copy or log is not None
        self._is_behind = False
        """True while the log may have what this lacks."""
        self._reopened_at_s = float("-inf")
        self._manifest = wal.Manifest(path, self._first_needed_log)
        try:
            if lost := self._manifest.missing(must_exist=must_exist):
                raise self._lost(lost)
            self._db = self._open()
        except (ConfigError, LogLost):
            raise
        except Exception as error:  # rocksdict raises nothing more exact
            raise ConfigError([f"the store in {path} cannot be opened: {error}"]) from error
        self._check_format()
        with self._translated():
            self._manifest.note(has_commits=False)

    @property
    def is_broken(self) -> bool:
        """True if a write failed, and ``recover`` has not succeeded since."""
        return self._is_broken or self._is_behind

    @property
    def applied(self) -> Mark:
        """End of the applied part of the commit log."""
        return Mark.unpack(self.get(keys.APPLIED))

    def lead(self) -> None:
        """Become the only one that adds to the commit log, with all applied that it has.

        Raises:
            LogLost: it has not all that this lacks.
            Unavailable: too few of its servers answer, or the one that was read has not all of it yet.
        """
        assert self._log is not None
        refused: Mark | None = None
        while True:
            self._catch_up()
            applied = self.applied
            if applied == refused:  # reading again at once would find as little
                raise Unavailable(_LACKS_END)
            has_base = not applied.position and self._has_content()
            if (mark := self._log.claim(applied, has_base=has_base)) is not None:
                self.apply(mark, ())
                return
            refused = applied

    def apply(self, mark: Mark, steps: Steps) -> None:
        """Apply an entry of the commit log.

        Raises:
            Unavailable: the disk is full or failing; ``recover`` before the next one.
        """
        changes = Changes(steps)
        changes.put(keys.APPLIED, mark.pack())
        self._write(changes, sync=False)

    def write(self, changes: Changes, *, sync: bool) -> None:
        """Make changes: all of them, or nothing unless only the ``sync`` failed. With a commit log, none waits for the
        disk here.

        Raises:
            Fenced: another process adds to the commit log now.
            Unavailable: the disk is full or failing, or the commit log does not answer; ``recover`` before the next
                write.
        """
        if self._log is None:
            self._write(changes, sync=sync)
            return
        self._is_behind = True
        mark = self._log.append(changes.steps)
        try:
            self.apply(mark, changes.steps)
        except Unavailable as error:
            # others have the changes, and here they would be reported as failed
            self._log.give_up(str(error))
            raise
        self._is_behind = False

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        """All keys and values as of the call, for ``copied``."""
        return self.iterate(b"", _BEHIND_ALL)

    def sync(self) -> Mark:
        """Wait until the disk has what is applied; that mark.

        Raises:
            Unavailable: the disk fails.
        """
        with self._translated(writing=True):
            applied = self.applied
            self._db.flush_wal(True)
            return applied

    def _has_content(self) -> bool:
        return any(not key.startswith(_OF_ALL) for key, _ in self.entries())

    def _catch_up(self) -> None:
        assert self._log is not None
        for mark, steps in self._log.follow(self.applied):
            self.apply(mark, steps)

    def _write(self, changes: Changes, *, sync: bool) -> None:
        with self._translated(writing=True):
            self._write_without_stall(changes)
            if sync:
                self._db.flush_wal(True)
        # The changes are on disk, so they must not be reported as failed; the next write notes the log.
        with suppress(OSError):
            self._manifest.note(has_commits=True)

    def recover(self) -> None:
        """Open the database again after a failed write, and apply what the commit log has.

        Raises:
            Fenced: another process adds to the commit log now.
            LogLost: the commit log no longer has all that this lacks.
            Unavailable: it does not open yet, was tried less than a second ago, or the log does not answer.
        """
        if self._is_broken:
            self._open_again()
        if self._log is not None and self._is_behind:
            decided = self._log.decide()
            try:
                self._catch_up()
            except LogLost as error:
                # trimmed, so another process owns the cell now
                self._log.give_up(str(error))
                raise
            if self.applied < decided:  # a later group would be applied without this one
                raise Unavailable(_LACKS_END)
            self._is_behind = False

    def _open_again(self) -> None:
        now_s = self._monotonic_s()
        if now_s - self._reopened_at_s < _REOPEN_INTERVAL_S:
            raise Unavailable(
                "the store failed to write and is waiting to try again", _REOPEN_INTERVAL_S
            )
        self._reopened_at_s = now_s
        with self._translated(writing=True):
            self._reserve_room()  # until there is some, what is open can still be read
            with suppress(Exception):
                # it closes although it reports the failed write again, or is closed already
                self._db.close()
            self._db = self._open()
        self._is_broken = False
        self._is_behind = self._log is not None  # what was not synced may be lost

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, or None."""
        with self._translated():
            value: bytes | None = self._db.get(key)
            return value

    def snapshot(self) -> Snapshot:
        """The present values of all keys, for as long as it is held; ``recover`` needs it let go."""
        with self._translated():
            return self._db.snapshot()

    def iterate(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys from ``start`` up to, not including, ``end`` and their values, as of the call."""
        with self._translated():
            limits = bounded(end)
            iterator = self._db.iter(limits)
            iterator.seek(start)
        return self._walk(iterator, end, limits)

    def compact(self, start: bytes, end: bytes) -> None:
        """Bring what is left of a range together, so that the rest of its space is free. Takes a while."""
        try:
            self._db.compact_range(start, end)
        except Exception as error:  # noqa: BLE001  RocksDB's own, of many kinds
            effect = "the space of deleted records is freed by a later compaction"
            _log.warning("store.compaction_failed", reason=str(error), effect=effect)

    def cursor(self, start: bytes, end: bytes) -> DatabaseCursor:
        """A cursor over the keys from ``start`` up to, not including, ``end``."""
        with self._translated():
            limits = bounded(end)
            return DatabaseCursor(self._db.iter(limits), start, limits, self._translated)

    def last_before(self, prefix: bytes, key: bytes) -> tuple[bytes, bytes] | None:
        """The last key at or before ``key`` that begins with ``prefix``, and its value."""
        with self._translated():
            return last_before(self._db, prefix, key)

    def close(self) -> None:
        """Write out what is in memory and release the files, whatever happens.

        Raises:
            Unavailable: not all of it could be written.
        """
        with self._translated():
            try:
                if not self._is_broken:
                    self._db.flush_wal(True)
                    self._db.flush()
                    self._manifest.note(has_commits=False)
            finally:
                with suppress(DbClosedError):
                    self._db.close()
                if _has_open_files(self._path):
                    gc.collect()  # an iterator that waits for the collector keeps them, and the lock

    def _walk(
        self, iterator: RdictIter, end: bytes, _limits: ReadOptions
    ) -> Iterator[tuple[bytes, bytes]]:
        with self._translated():
            while iterator.valid():
                key = iterator.key()
                if key >= end:
                    return
                yield key, iterator.value()
                iterator.next()
            iterator.status()

    def _reserve_room(self) -> None:
        """Make sure that the disk holds what opening writes: the logs as tables, and small files.

        Raises:
            OSError: it does not.
        """
        logs = sum(log.stat().st_size for log in self._path.glob("*.log"))
        with NamedTemporaryFile(dir=self._path.parent, prefix="room-", suffix=".tmp") as room:
            os.posix_fallocate(room.fileno(), 0, logs + _ROOM_BYTES)

    def _open(self) -> Rdict:
        """Open with every record of the logs read back; a last one that was written in part is cut off with a warning.

        Raises:
            ConfigError: a log is damaged and holds whole records behind that.
        """
        if wal.is_endless(self._path):
            self._cut_log()
        try:
            return self._open_unheld()
        except Exception as error:
            if "Corruption" not in str(error) or not self._cut_log():
                raise
        return self._open_unheld()

    def _first_needed_log(self) -> int:
        """The number of the first log that opening reads back."""
        database = Rdict(str(self._path), options.secondary(), access_type=AccessType.read_only())
        try:
            return database.property_int_value("rocksdb.min-log-number-to-keep") or 0
        finally:
            database.close()

    def _cut_log(self) -> bool:
        """Cut off a last record that was written in part; false if there is no such record.

        Raises:
            ConfigError: there are whole records behind the damage.
        """
        damage = wal.find_damage(self._path)
        if damage is None:
            return False
        if not damage.is_tail:
            self._manifest.forget()  # the sentence has logs cut or deleted
            raise self._lost(_damaged_log(damage))
        _log.warning(
            "store.log_cut",
            file=str(damage.file),
            offset=damage.offset,
            dropped_bytes=damage.lost_bytes,
            effect="the last commit was written in part, and is taken as not made",
        )
        os.truncate(damage.file, damage.offset)
        return True

    def _lost(self, text: str) -> SluiceError:
        """Error for commits that are lost here: with a commit log, and of a copy, they are elsewhere."""
        return LogLost(text) if self._is_replaceable else ConfigError([text])

    def _open_unheld(self) -> Rdict:
        return open_unheld(lambda: Rdict(str(self._path), options.primary(self._memory)))

    def _check_format(self) -> None:
        stored = self.get(keys.FORMAT)
        if stored is None:
            changes = Changes()
            changes.put(keys.FORMAT, str(FORMAT).encode())
            self._write(changes, sync=True)
        elif int(stored) > FORMAT:
            self._db.close()
            raise ConfigError([_newer_format(self._path, int(stored))])

    def _write_without_stall(self, changes: Changes) -> None:
        waited_s = 0.0
        while True:
            try:
                self._db.write(changes.batch(), self._write_options)
                return
            except Exception as error:
                if not str(error).startswith("Result incomplete") or waited_s >= _STALL_LIMIT_S:
                    raise
            time.sleep(_STALL_STEP_S)  # compaction is behind: this thread waits, the loop does not
            waited_s += _STALL_STEP_S

    @contextmanager
    def _translated(self, *, writing: bool = False) -> Iterator[None]:
        try:
            yield
        except (Unavailable, GeneratorExit):
            raise
        except DbClosedError as error:
            text = f"the store in {self._path} could not be written, and opens again when it can be; the log says why"
            raise Unavailable(text) from error
        except Exception as error:
            self._is_broken = self._is_broken or writing
            verb = "written" if writing else "read"
            raise Unavailable(f"the store in {self._path} cannot be {verb}: {error}") from error


class DatabaseCursor:
    """Implements ``broker.storage.store.KeyCursor`` over the keys as the database has them."""

    __slots__ = ("_found", "_limits", "_start", "_translated")

    def __init__(
        self,
        iterator: RdictIter,
        start: bytes,
        limits: ReadOptions,
        translated: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._found = iterator
        self._start = start
        self._limits = limits
        self._translated = translated

    def seek(self, key: bytes) -> bytes | None:
        self._found.seek(max(key, self._start))
        return self._key()

    def next(self) -> bytes | None:
        self._found.next()
        return self._key()

    def value(self) -> bytes:
        value: bytes = self._found.value()
        return value

    def _key(self) -> bytes | None:
        if self._found.valid():
            key: bytes = self._found.key()
            return key
        with self._translated():
            self._found.status()
        return None


def open_unheld(make: Callable[[], Rdict]) -> Rdict:
    """Open a database, also if an iterator that an exception's traceback keeps still holds RocksDB's lock."""
    try:
        return make()
    except Exception as error:
        if "lock hold by current process" not in str(error):
            raise
    gc.unfreeze()
    gc.collect()
    return make()


def _has_open_files(directory: Path) -> bool:
    """True if this process has files below a directory open, or where that cannot be known."""
    below = f"{directory.resolve()}/"
    try:
        for descriptor in os.listdir("/proc/self/fd"):
            with suppress(FileNotFoundError):
                if os.readlink(f"/proc/self/fd/{descriptor}").startswith(below):
                    return True
    except OSError:
        return True
    return False


def _damaged_log(damage: wal.Damage) -> str:
    later = f" and delete {', '.join(path.name for path in damage.later)}" if damage.later else ""
    return (
        f"the store's log {damage.file} is damaged at byte {damage.offset}, and there are commits behind that: put "
        f"back a copy of the data directory; or, to start without all that was committed from there on, "
        f"'truncate -s {damage.offset} {quote(str(damage.file))}'{later}"
    )


def _newer_format(path: Path, stored: int) -> str:
    return (
        f"the store in {path} has format {stored}, written by a newer release; "
        f"this one reads up to format {FORMAT}: install the newer release"
    )


def bounded(end: bytes) -> ReadOptions:
    """Options for an iteration that must not look beyond ``end``, where deleted keys may lie in heaps.

    They must be kept for as long as the iterator is used: rocksdict's iterator reads the bound from their memory.
    """
    read_options = ReadOptions()
    read_options.set_iterate_upper_bound(end)
    return read_options


def last_before(db: Rdict, prefix: bytes, key: bytes) -> tuple[bytes, bytes] | None:
    """The last key at or before ``key`` that begins with ``prefix``, and its value."""
    iterator = db.iter()
    iterator.seek_for_prev(key)
    if not iterator.valid() or not iterator.key().startswith(prefix):
        iterator.status()
        return None
    return iterator.key(), iterator.value()


class Changes:
    """Puts and deletes that are made together, in the order given."""

    __slots__ = ("steps",)

    def __init__(self, steps: Steps = ()) -> None:
        self.steps = list(steps)
        """The changes in their order, as a commit log has them."""

    def put(self, key: bytes, value: bytes) -> None:
        """Set a key."""
        self.steps.append((key, value, False))

    def delete(self, key: bytes) -> None:
        """Delete a key."""
        self.steps.append((key, None, False))

    def delete_range(self, start: bytes, end: bytes) -> None:
        """Delete all keys from ``start`` up to, not including, ``end``."""
        self.steps.append((start, end, True))

    def batch(self) -> WriteBatch:
        """A fresh write batch."""
        batch = WriteBatch(raw_mode=True)
        for key, value, is_range in self.steps:
            if value is None:
                batch.delete(key)
            elif is_range:
                batch.delete_range(key, value)
            else:
                batch.put(key, value)
        return batch


# Deleted bytes after which a range is compacted: the size of a write buffer.
AFTER_BYTES: Final = 64 * 1024 * 1024


class Reclaim:
    """Compacts ranges by ``compact(start, end)``. ``forgotten`` is called by one thread at a time."""

    def __init__(
        self, compact: Callable[[bytes, bytes], None], after_bytes: int = AFTER_BYTES
    ) -> None:
        self._compact = compact
        self._after_bytes = after_bytes
        self._deleted_bytes = 0
        self._thread: threading.Thread | None = None

    def forgotten(self, size_bytes: int, start: bytes, end: bytes) -> None:
        """The keys from ``start`` up to ``end`` were deleted; bytes are before compression."""
        self._deleted_bytes += size_bytes
        if self._deleted_bytes < self._after_bytes or (
            self._thread is not None and self._thread.is_alive()
        ):
            return
        self._deleted_bytes = 0
        self._thread = threading.Thread(
            target=self._compact, args=(start, end), name="store reclaim", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait for a compaction that is under way: before the files are closed."""
        if self._thread is not None:
            self._thread.join()
