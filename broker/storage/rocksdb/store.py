"""The store on RocksDB. One value holds the frame of a whole commit group; see ``keys`` for the layout.

A commit is one write batch into RocksDB's log, unsynced, and for ``durability = fsync`` one ``flush_wal(True)`` behind
it, because rocksdict holds the interpreter lock during a synced write and releases it during the flush.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from rocksdict import Snapshot

from broker.config.file_names import API_FILE
from broker.core.errors import SluiceError, Unavailable, Undecided
from broker.core.lazy_module import LazyModule
from broker.core.stream import ShardRange, StreamRecord
from broker.observe.log import get_logger
from broker.storage.commit_log import CommitLog, Mark
from broker.storage.directory import DirectoryLock
from broker.storage.rocksdb import keys
from broker.storage.rocksdb.database import Changes, Database, DatabaseCursor, Reclaim
from broker.storage.rocksdb.keys import ShardState
from broker.storage.rocksdb.options import USUAL_MEMORY, Memory
from broker.storage.store import Batch, Committed, FrameEntry, KeyCursor, LogShard

if TYPE_CHECKING:
    import pyarrow as pa

    from broker.storage import frames, records
    from broker.storage.frames import Frame
else:
    frames = LazyModule("broker.storage.frames")
    records = LazyModule("broker.storage.records")

_log = get_logger(__name__)

# The folder of the data directory that RocksDB has for itself.
DATABASE_FOLDER = "rocksdb"

_NOT_FOUND: Final = "key not found"
"""Text of the ``Exception`` of rocksdict for a key that a snapshot lacks."""


class RocksStore:
    """Implements ``broker.storage.store.Store`` in one directory, which it locks."""

    def __init__(
        self,
        directory: Path,
        durability: Literal["fsync", "os"] = "fsync",
        memory: Memory = USUAL_MEMORY,
        log: CommitLog | None = None,
    ) -> None:
        """Open, or make, the store of a data directory. With ``log``, which others keep too, it becomes that one's
        owner, and no commit waits for the disk here.

        Raises:
            broker.core.errors.ConfigError: the directory cannot be used, another process has it, a newer release
                wrote it, or what it held is gone.
            broker.core.errors.Unavailable: the log does not answer.
            broker.storage.commit_log.LogLost: the log lacks what this store lacks.
            broker.storage.commit_log.LogBehind: the log lacks what this store has.
        """
        self._lock_file = DirectoryLock(directory)
        self._place = str(directory)
        self._sync = durability == "fsync"
        self._log = log
        self._changing = threading.RLock()
        self._undo: Changes | None = None
        began_s = time.monotonic()
        opened: Database | None = None
        try:
            has_objects = self._lock_file.was_used and (directory / API_FILE).exists()
            self._db = opened = Database(
                directory / DATABASE_FOLDER, memory, must_exist=has_objects, log=log
            )
            if log is not None:
                opened.lead()
            self._reclaim = Reclaim(self._db.compact)
            self._states = self._load_states()
            self._log_opened(time.monotonic() - began_s)
        except BaseException:
            if opened is not None:
                with suppress(Unavailable):
                    opened.close()
            if log is not None:
                log.close()
            self._lock_file.release()
            raise

    def _log_opened(self, took_s: float) -> None:
        states = self._states.values()
        if not states:
            return
        _log.info(
            "store.opened",
            records=sum(state.next_offset - state.first_offset for state in states),
            bytes=sum(state.size_bytes for state in states),
            took_s=f"{took_s:.2f}",
        )

    def commit(self, batch: Batch) -> Committed:
        try:
            return self._commit(batch)
        except SluiceError as error:
            if self._log is None:
                raise
            raise Undecided(f"{error}. It may be stored all the same") from error

    def _commit(self, batch: Batch) -> Committed:
        with self._changing:
            self._repair()
            writes = Changes()
            states: dict[LogShard, ShardState] = {}
            for shard, added in batch.appends.items():
                if added:
                    states[shard] = self._append(writes, shard, added)
            for key, value in batch.puts.items():
                _put(writes, keys.user_key(key), value)
            before = self._db.snapshot()
            try:
                self._db.write(writes, sync=self._sync)
            except SluiceError:
                self._undo = self._undo_of(batch, before)
                raise
            del before  # a frame that is kept for its traceback would keep it, and RocksDB all that is deleted later
            firsts = {shard: self._state(shard).next_offset for shard in states}
            self._states.update(states)
            return Committed(firsts)

    def read(
        self, shard: LogShard, from_offset: int, limit: int
    ) -> Sequence[tuple[int, StreamRecord]]:
        numbered: list[tuple[int, StreamRecord]] = []
        if limit <= 0:
            return numbered
        for batch in self.read_arrow(shard, from_offset, keys.LAST_OFFSET):
            numbered += records.decode(batch.slice(0, limit - len(numbered)))
            if len(numbered) >= limit:
                break
        return numbered

    def read_arrow(
        self, shard: LogShard, from_offset: int, to_offset: int
    ) -> Iterator[pa.RecordBatch]:
        state = self._state(shard)
        start = max(from_offset, state.first_offset)
        end = min(to_offset, state.next_offset)
        if start < end:
            for frame in self._frames(shard, start, end):
                yield frame.slice(start, end)

    def range_of(self, shard: LogShard) -> ShardRange:
        state = self._state(shard)
        return ShardRange(shard.shard, state.first_offset, state.next_offset)

    def offset_at(self, shard: LogShard, ts_us: int) -> int:
        state = self._state(shard)
        start = keys.entry_key(shard, max(0, ts_us), 0)
        for key, value in self._db.iterate(
            start, keys.entry_key(shard, keys.LAST_OFFSET, keys.LAST_OFFSET)
        ):
            entry = keys.unpack_entry(key, value)
            if entry.first_offset >= state.next_offset:
                break
            row = records.first_at(self._frame(shard, entry.first_offset).batch(), ts_us)
            if row is not None:
                return entry.first_offset + row
        return state.next_offset

    def shards(self) -> Sequence[LogShard]:
        return sorted(self._states)

    def size_of(self, shard: LogShard) -> int:
        return self._state(shard).size_bytes

    def directory(self, shard: LogShard, from_offset: int = 0) -> Iterator[FrameEntry]:
        state = self._state(shard)
        start = keys.entry_key(shard, 0, 0)
        holder = self._db.last_before(keys.frames_prefix(shard), keys.frame_key(shard, from_offset))
        if holder is not None:
            first = keys.offset_of_frame_key(holder[0])
            start = keys.entry_key(shard, frames.running_max_of(holder[1]), first)
        for key, value in self._db.iterate(
            start, keys.entry_key(shard, keys.LAST_OFFSET, keys.LAST_OFFSET)
        ):
            entry = keys.unpack_entry(key, value)
            if entry.first_offset >= state.next_offset:
                return
            if entry.next_offset > from_offset:
                yield entry

    def merge(self, shard: LogShard, first_offset: int, next_offset: int) -> None:
        with self._changing:
            self._repair()
            parts = list(self._frames(shard, first_offset, next_offset))
            if not parts or (parts[0].first_offset, parts[-1].next_offset) != (
                first_offset,
                next_offset,
            ):
                raise ValueError(
                    f"no frames of {self._name(shard)} make up offsets {first_offset} to {next_offset}"
                )
            writes = Changes()
            for part in parts:
                writes.delete(keys.frame_key(shard, part.first_offset))
                writes.delete(keys.entry_key(shard, part.running_max_us, part.first_offset))
            joined = records.join([part.batch() for part in parts])
            size = _put_frame(
                writes, shard, first_offset, joined, parts[-1].running_max_us
            ).size_bytes
            state = self._state(shard)
            was = sum(frames.HEADER_SIZE + len(part.message) for part in parts)
            self._change_state(
                writes, shard, state._replace(size_bytes=state.size_bytes + size - was)
            )

    def trim(self, shard: LogShard, before_offset: int) -> None:
        with self._changing:
            self._repair()
            state = self._state(shard)
            kept = None
            forgotten = 0
            for entry in self.directory(shard):
                if entry.next_offset > before_offset:
                    kept = entry
                    break
                forgotten += entry.size_bytes
            first = kept.first_offset if kept is not None else state.next_offset
            if first == state.first_offset:
                return
            running_max_us = kept.running_max_us if kept is not None else keys.LAST_OFFSET
            writes = Changes()
            writes.delete_range(keys.frame_key(shard, 0), keys.frame_key(shard, first))
            writes.delete_range(
                keys.entry_key(shard, 0, 0), keys.entry_key(shard, running_max_us, first)
            )
            size = state.size_bytes - forgotten
            self._change_state(writes, shard, state._replace(first_offset=first, size_bytes=size))
            self._reclaim.forgotten(
                forgotten, keys.frame_key(shard, 0), keys.frame_key(shard, first)
            )

    def drop(self, log: int) -> None:
        with self._changing:
            self._repair()
            writes = Changes()
            for kind in (b"f", b"t", b"s"):
                writes.delete_range(*keys.log_bounds(kind, log))
            self._db.write(writes, sync=self._sync)
            gone = sum(
                state.size_bytes for shard, state in self._states.items() if shard.log == log
            )
            self._states = {
                shard: state for shard, state in self._states.items() if shard.log != log
            }
            self._reclaim.forgotten(gone, *keys.log_bounds(b"f", log))

    def get(self, key: bytes) -> bytes | None:
        return self._db.get(keys.user_key(key))

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        start = keys.user_key(prefix)
        for key, value in self._db.iterate(start, _after(start)):
            yield key[1:], value

    def cursor(self, prefix: bytes) -> KeyCursor:
        start = keys.user_key(prefix)
        return _UserCursor(self._db.cursor(start, _after(start)))

    def entries(self, *, messages: bool) -> Iterator[tuple[bytes, bytes]]:
        """All keys and values as of the call, for ``filled``. Without ``messages``, logs are empty and continue at
        their next offset."""
        kinds = (b"k", keys.STATES, b"f", b"t") if messages else (b"k", keys.STATES)
        with self._changing:  # at the end of a commit, so that positions and logs are of one moment
            snapshots = [(kind, self._db.iterate(kind, _after(kind))) for kind in kinds]
        for kind, snapshot in snapshots:
            for key, value in snapshot:
                if kind == keys.STATES and not messages:
                    following = keys.unpack_state(value).next_offset
                    state = keys.unpack_state(value)._replace(first_offset=following, size_bytes=0)
                    yield key, state.pack()
                else:
                    yield key, value

    def copy(self) -> Iterator[tuple[bytes, bytes]]:
        """All keys and values of the database as of the call, for ``copied``. With a commit log."""
        return self._db.entries()

    @property
    def is_settled(self) -> bool:
        """True if it is known of every commit whether it is in the commit log."""
        return not self._db.is_broken

    def trim_log(self, position: int) -> Mark:
        """Forget the commit log before a position, but only what the disk has here; how far it is applied.

        Raises:
            broker.core.errors.Unavailable: the disk or the log does not answer.
        """
        assert self._log is not None
        with self._changing:
            applied = self._db.sync()
            if position:
                self._log.trim(min(position, applied.position))
            return applied

    def close(self) -> None:
        self._reclaim.wait()
        try:
            with self._changing:
                self._db.close()
        except Unavailable as error:
            _log.warning(
                "store.closed_unwritten",
                reason=str(error),
                effect="what was committed comes from the log again",
            )
        finally:
            if self._log is not None:
                self._log.close()
            self._lock_file.release()

    def _append(
        self, writes: Changes, shard: LogShard, added: Sequence[StreamRecord]
    ) -> ShardState:
        state = self._state(shard)
        for piece in records.split(added):
            batch = records.encode(state.next_offset, piece)
            entry = _put_frame(writes, shard, state.next_offset, batch, state.running_max_us)
            size = state.size_bytes + entry.size_bytes
            state = ShardState(state.first_offset, entry.next_offset, entry.running_max_us, size)
        writes.put(keys.state_key(shard), state.pack())
        return state

    def _repair(self) -> None:
        """After a failed write: open again, and take back what was written but could not be synced. Before a change
        looks at anything: a trim or a merge that was reported as failed may be there after it."""
        was_broken = self._db.is_broken
        if was_broken:
            self._db.recover()
        if self._undo is not None:
            self._db.write(self._undo, sync=True)
            self._undo = None
        if was_broken:
            self._states = self._load_states()

    def _undo_of(self, batch: Batch, before: Snapshot) -> Changes:
        """Changes that revert the batch. A sync that fails leaves the batch in RocksDB's memory and perhaps on disk,
        and its publishers got an error."""
        undo = Changes()
        for shard in batch.appends:
            state = self._state(shard)
            undo.delete_range(
                keys.frame_key(shard, state.next_offset), keys.frame_key(shard, keys.LAST_OFFSET)
            )
            undo.delete_range(
                keys.entry_key(shard, state.running_max_us, state.next_offset),
                keys.entry_key(shard, keys.LAST_OFFSET, keys.LAST_OFFSET),
            )
            undo.put(keys.state_key(shard), state.pack())
        for key in batch.puts:
            _put(undo, keys.user_key(key), _value_in(before, keys.user_key(key)))
        return undo

    def _change_state(self, writes: Changes, shard: LogShard, state: ShardState) -> None:
        writes.put(keys.state_key(shard), state.pack())
        self._db.write(writes, sync=self._sync)
        self._states[shard] = state

    def _frames(self, shard: LogShard, from_offset: int, to_offset: int) -> Iterator[Frame]:
        """The frames that hold offsets in the range, in order; they are dense, or the store is damaged."""
        expected = from_offset
        holder = self._db.last_before(keys.frames_prefix(shard), keys.frame_key(shard, from_offset))
        start = keys.frame_key(shard, from_offset) if holder is None else holder[0]
        for key, value in self._db.iterate(start, keys.frame_key(shard, to_offset)):
            frame = frames.unpack(value, keys.offset_of_frame_key(key), self._name(shard))
            if frame.next_offset <= from_offset:
                continue
            if frame.first_offset > expected:
                self._report_missing(shard, expected, frame.first_offset)
            expected = frame.next_offset
            yield frame
        if expected < to_offset:
            self._report_missing(shard, expected, to_offset)

    def _report_missing(self, shard: LogShard, offset: int, present: int) -> None:
        if offset >= self._state(shard).first_offset:  # else trimmed since the read began
            raise frames.CorruptFrame(
                self._name(shard), offset, f"the next frame there is begins at offset {present}"
            )

    def _frame(self, shard: LogShard, first_offset: int) -> Frame:
        value = self._db.get(keys.frame_key(shard, first_offset))
        if value is None:
            raise frames.CorruptFrame(self._name(shard), first_offset, "the frame is missing")
        return frames.unpack(value, first_offset, self._name(shard))

    def _load_states(self) -> dict[LogShard, ShardState]:
        states = self._db.iterate(keys.STATES, _after(keys.STATES))
        return {keys.shard_of_state_key(key): keys.unpack_state(value) for key, value in states}

    def _state(self, shard: LogShard) -> ShardState:
        return self._states.get(shard) or _NOTHING

    def _name(self, shard: LogShard) -> str:
        return f"log {shard.log}, shard {shard.shard} in {self._place}"


# Bytes of entries that are written together.
_TOGETHER_BYTES: Final = 4 * 1024 * 1024


def filled(directory: Path, entries: Iterable[tuple[bytes, bytes]]) -> None:
    """Make a store in a directory that has none, with these keys and values.

    Raises:
        broker.core.errors.Unavailable: the disk is full or fails.
        ValueError: a key is none of a store.
    """
    copied(directory, (_of_store(entry) for entry in entries))


def _of_store(entry: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
    if entry[0][:1] not in _KINDS:
        raise ValueError(f"{entry[0][:40]!r} is not a key of a store")
    return entry


def copied(directory: Path, entries: Iterable[tuple[bytes, bytes]]) -> None:
    """Make a copy of the database that has these keys and values (``Database.entries``).

    Raises:
        broker.core.errors.Unavailable: the disk is full or fails.
    """
    database = Database(directory / DATABASE_FOLDER, USUAL_MEMORY)
    try:
        changes = Changes()
        size_bytes = 0
        for key, value in entries:
            changes.put(key, value)
            size_bytes += len(key) + len(value)
            if size_bytes >= _TOGETHER_BYTES:
                database.write(changes, sync=False)
                changes = Changes()
                size_bytes = 0
        database.write(changes, sync=True)
    finally:
        database.close()


# Kinds of keys that ``entries`` gives (``broker.storage.rocksdb.keys``).
_KINDS: Final = frozenset((b"k", keys.STATES, b"f", b"t"))
_NOTHING = ShardState()


class _UserCursor:
    """A cursor over keys as the store's users know them."""

    __slots__ = ("_inner", "value")

    def __init__(self, inner: DatabaseCursor) -> None:
        self._inner = inner
        self.value = inner.value

    def seek(self, key: bytes) -> bytes | None:
        stored_key = self._inner.seek(keys.user_key(key))
        return None if stored_key is None else stored_key[1:]

    def next(self) -> bytes | None:
        stored_key = self._inner.next()
        return None if stored_key is None else stored_key[1:]


def _put(writes: Changes, key: bytes, value: bytes | None) -> None:
    if value is None:
        writes.delete(key)
    else:
        writes.put(key, value)


def _value_in(snapshot: Snapshot, key: bytes) -> bytes | None:
    try:  # its iterators do not read the snapshot
        value: bytes = snapshot[key]
    except Exception as error:
        if str(error) != _NOT_FOUND:
            raise
        return None
    return value


def _put_frame(
    writes: Changes, shard: LogShard, first_offset: int, batch: pa.RecordBatch, running_max_us: int
) -> FrameEntry:
    value, earliest, latest, running_max_us = frames.pack(batch, running_max_us)
    entry = FrameEntry(
        first_offset, first_offset + batch.num_rows, len(value), earliest, latest, running_max_us
    )
    writes.put(keys.frame_key(shard, first_offset), value)
    writes.put(keys.entry_key(shard, running_max_us, first_offset), keys.pack_entry(entry))
    return entry


def _after(prefix: bytes) -> bytes:
    """The first key after all that begin with a prefix; its last byte is not 255 for the kinds of keys there are, and
    that of a key of the store's users is stepped over."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1])
