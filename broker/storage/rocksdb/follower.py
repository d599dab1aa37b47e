"""Reads a store that another process writes: RocksDB's secondary instance.

A secondary sees the primary's files as of its last catch-up, and its view may have holes: between reading the list of
tables and reading the log, the primary may have flushed the one and deleted the other (seen about once in 20
catch-ups under constant flushing). Offsets are dense, so a hole always shows; it closes with a later catch-up. A reader
gets every record of the range in order, or an error.
"""

from __future__ import annotations

import shutil
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rocksdict import AccessType, Rdict

from broker.core.errors import Unavailable
from broker.core.lazy_module import LazyModule
from broker.core.stream import ShardRange
from broker.core.topic import TopicFilter
from broker.storage import frames
from broker.storage.frames import Frame
from broker.storage.rocksdb import keys, options
from broker.storage.rocksdb.database import bounded, last_before
from broker.storage.rocksdb.store import DATABASE_FOLDER
from broker.storage.store import LogShard

if TYPE_CHECKING:
    from broker.storage import records
else:
    records = LazyModule("broker.storage.records")

# Pauses between attempts; those of a wait for offsets double, up to the second.
_RETRY_STEP_S: Final = 0.02
_MAX_RETRY_STEP_S: Final = 0.25
_REOPEN_AFTER_S: Final = 1.0
_GIVE_UP_AFTER_S: Final = 5.0


class RangeMissing(Exception):
    """Offsets that are not there: trimmed, or not appended yet. ``held`` is what is."""

    def __init__(self, held: ShardRange) -> None:
        self.held = held
        super().__init__(f"the shard holds offsets {held.first_offset} up to {held.next_offset}")


class FrameReader(ABC):
    """Reads ranges of shards as frames. Blocking; may be used from several threads."""

    def __init__(self, sleep: Callable[[float], None], monotonic_s: Callable[[], float]) -> None:
        self._sleep = sleep
        self._monotonic_s = monotonic_s

    @abstractmethod
    def refresh(self) -> None:
        """See what was committed by now."""

    @abstractmethod
    def range_of(self, shard: LogShard) -> ShardRange:
        """The offsets that the shard held at the last refresh."""

    @abstractmethod
    def frames(self, shard: LogShard, from_offset: int, to_offset: int) -> Iterator[Frame]:
        """The frames that hold ``[from_offset, to_offset)``, in order. A frame that was joined during the read begins
        before the end of the one before it.

        Raises:
            RangeMissing: records were trimmed while they were being read.
            CorruptFrame: a frame is damaged.
            Unavailable: they cannot be read now.
        """

    def wait_for(self, shard: LogShard, from_offset: int, to_offset: int, wait_s: float) -> None:
        """Return once the shard holds ``[from_offset, to_offset)``.

        Raises:
            RangeMissing: it does not, after ``wait_s`` seconds, or part of it was trimmed.
        """
        deadline_s = self._monotonic_s() + wait_s
        step_s = _RETRY_STEP_S
        while True:
            range_now = self.range_of(shard)
            if range_now.first_offset <= from_offset and to_offset <= range_now.next_offset:
                return
            if from_offset < range_now.first_offset or self._monotonic_s() >= deadline_s:
                raise RangeMissing(range_now)
            self.refresh()
            if self.range_of(shard) == range_now:
                self._sleep(step_s)
                step_s = min(2 * step_s, _MAX_RETRY_STEP_S)

    def messages(
        self,
        shard: LogShard,
        from_offset: int,
        to_offset: int,
        topic_filter: TopicFilter | None = None,
    ) -> Iterator[bytes | memoryview]:
        """Arrow IPC record batch messages of exactly ``[from_offset, to_offset)``, in order. Frames are passed on as
        they are stored, only those at the edges are cut and encoded again; with a filter, all that have such topics.
        Raises what ``frames`` does.
        """
        at = from_offset
        for frame in self.frames(shard, from_offset, to_offset):
            if topic_filter is None:
                yield _cut(frame, at, to_offset)
            elif (matching := records.of_topics(frame.slice(at, to_offset), topic_filter)).num_rows:
                yield matching.serialize().to_pybytes()
            at = frame.next_offset


class Follower(FrameReader):
    """A read-only view of a data directory that its broker is writing. Blocking; may be used from several threads."""

    def __init__(
        self,
        directory: Path,
        scratch: Path,
        sleep: Callable[[float], None] = time.sleep,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open; ``scratch`` is a folder of its own for RocksDB's notes, emptied here.

        Raises:
            Unavailable: there is no store in the directory, or it cannot be read.
        """
        shutil.rmtree(scratch, ignore_errors=True)
        self._path, self._scratch = str(directory / DATABASE_FOLDER), str(scratch)
        super().__init__(sleep, monotonic_s)
        self._refreshing = threading.Lock()
        self._db = self._open()

    def refresh(self) -> None:
        """See what the primary has committed by now."""
        with self._refreshing:
            try:
                self._db.try_catch_up_with_primary()
            except Exception:  # noqa: BLE001 - rocksdict raises nothing more exact; the primary's files have changed
                self._db = self._open()

    def range_of(self, shard: LogShard) -> ShardRange:
        """The offsets that the shard held at the last refresh."""
        state = keys.unpack_state(self._db.get(keys.state_key(shard)))
        return ShardRange(shard.shard, state.first_offset, state.next_offset)

    def average_bytes(self, shard: LogShard) -> float:
        """Bytes of a record of the shard, before compression; 0 when it is empty."""
        state = keys.unpack_state(self._db.get(keys.state_key(shard)))
        return state.size_bytes / max(1, state.next_offset - state.first_offset)

    def get(self, key: bytes) -> bytes | None:
        """The value of a key above the store, as of the last refresh."""
        value: bytes | None = self._db.get(keys.user_key(key))
        return value

    def last_before(self, prefix: bytes, key: bytes) -> bytes | None:
        """The value of the last key at or before ``key`` of those that begin with a prefix."""
        pair = last_before(self._db, keys.user_key(prefix), keys.user_key(key))
        return None if pair is None else pair[1]

    def scan(self, prefix: bytes, first: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """The keys above the store that begin with a prefix, from ``first`` on, and their values, as of the last
        refresh."""
        start = keys.user_key(prefix)
        iterator = self._db.iter()
        iterator.seek(max(start, keys.user_key(first)))
        while iterator.valid() and iterator.key().startswith(start):
            yield iterator.key()[1:], iterator.value()
            iterator.next()
        iterator.status()

    def frames(self, shard: LogShard, from_offset: int, to_offset: int) -> Iterator[Frame]:
        """See ``FrameReader``; a hole that does not close within 5 s makes it ``Unavailable``."""
        expected = from_offset
        stuck_since_s = None
        while expected < to_offset:
            for frame in self._visible(shard, expected, to_offset):
                yield frame
                expected = frame.next_offset
                stuck_since_s = None
            if expected < to_offset:
                now_s = self._monotonic_s()
                stuck_since_s = now_s if stuck_since_s is None else stuck_since_s
                self._look_again(shard, expected, now_s - stuck_since_s)

    def _visible(self, shard: LogShard, from_offset: int, to_offset: int) -> Iterator[Frame]:
        """Frames from the one that holds ``from_offset`` on, up to the first hole in the present view."""
        try:
            for frame in self._stored(shard, from_offset, to_offset):
                if frame.first_offset > from_offset:
                    return
                if frame.next_offset > from_offset:
                    yield frame
                    from_offset = frame.next_offset
        except Exception as error:
            if type(error) is not Exception:
                # which is what rocksdict raises for all that RocksDB reports
                raise
            # A file was deleted under the view: as good as a hole, and closed the same way.

    def _stored(self, shard: LogShard, from_offset: int, to_offset: int) -> Iterator[Frame]:
        db = self._db
        place = f"log {shard.log}, shard {shard.shard}"
        holder = last_before(db, keys.frames_prefix(shard), keys.frame_key(shard, from_offset))
        if holder is None:
            return
        limits = bounded(keys.frame_key(shard, to_offset))  # kept until the end, see there
        iterator = db.iter(limits)
        iterator.seek(holder[0])
        while iterator.valid():
            yield frames.unpack(iterator.value(), keys.offset_of_frame_key(iterator.key()), place)
            iterator.next()
        iterator.status()

    def _look_again(self, shard: LogShard, expected: int, stuck_s: float) -> None:
        if stuck_s >= _GIVE_UP_AFTER_S:
            raise Unavailable(
                f"the records of log {shard.log}, shard {shard.shard} from offset {expected} on do not show"
            )
        if stuck_s >= _REOPEN_AFTER_S:
            with self._refreshing:
                self._db = self._open()
        else:
            self.refresh()
        range_now = self.range_of(shard)
        if expected < range_now.first_offset:
            raise RangeMissing(range_now)
        if stuck_s:
            self._sleep(_RETRY_STEP_S)

    def _open(self) -> Rdict:
        try:
            return Rdict(
                self._path, options.secondary(), access_type=AccessType.secondary(self._scratch)
            )
        except Exception as error:
            raise Unavailable(f"the store in {self._path} cannot be read: {error}") from error


def _cut(frame: Frame, from_offset: int, to_offset: int) -> bytes | memoryview:
    if from_offset <= frame.first_offset and frame.next_offset <= to_offset:
        return frame.message
    piece: bytes = frame.slice(from_offset, to_offset).serialize().to_pybytes()
    return piece
