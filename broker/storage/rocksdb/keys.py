"""Layout of keys and of the small values. All integers are big-endian, so that keys sort by them.

::

    m NAME                                   what concerns the whole store: format, how far its log is applied
    k KEY                                    the key space above the store
    s LOG SHARD                              state of a shard: first and next offset, latest time, bytes
    f LOG SHARD FIRST_OFFSET                 a frame
    t LOG SHARD RUNNING_MAX_US FIRST_OFFSET  directory of frames, in order of offsets and of time at once

The latest time up to a frame never falls from frame to frame, so the first frame with a record at or after a time is
the first whose running maximum is: one seek in the directory.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from broker.storage.store import FrameEntry, LogShard

FORMAT: Final = b"mformat"
APPLIED: Final = b"mapplied"
STATES: Final = b"s"

_SHARD: Final = struct.Struct(">cIH")
_FRAME: Final = struct.Struct(">cIHQ")
_ENTRY: Final = struct.Struct(">cIHQQ")
_ENTRY_VALUE: Final = struct.Struct(">QIqq")
_STATE: Final = struct.Struct(">QQQQ")
_LOG: Final = struct.Struct(">cI")
LAST_OFFSET: Final = 2**64 - 1


class ShardState(NamedTuple):
    """State of a shard that is known without a read of its frames."""

    first_offset: int = 0
    next_offset: int = 0
    running_max_us: int = 0
    size_bytes: int = 0

    def pack(self) -> bytes:
        """The state as a value."""
        return _STATE.pack(*self)


def user_key(key: bytes) -> bytes:
    """A key of the key space above the store."""
    return b"k" + key


def state_key(shard: LogShard) -> bytes:
    """Key of a shard's state."""
    return _SHARD.pack(STATES, *shard)


def shard_of_state_key(key: bytes) -> LogShard:
    """The shard whose state is under a key."""
    _, log, shard = _SHARD.unpack(key)
    return LogShard(log, shard)


def unpack_state(value: bytes | None) -> ShardState:
    """A shard's state; that of an empty shard when there is none."""
    return ShardState() if value is None else ShardState._make(_STATE.unpack(value))


def frame_key(shard: LogShard, first_offset: int) -> bytes:
    """Key of the frame that begins at an offset."""
    return _FRAME.pack(b"f", *shard, first_offset)


def offset_of_frame_key(key: bytes) -> int:
    """The first offset of the frame under a key."""
    offset: int = _FRAME.unpack(key)[3]
    return offset


def frames_prefix(shard: LogShard) -> bytes:
    """Prefix of the keys of all frames of a shard."""
    return _SHARD.pack(b"f", *shard)


def entry_key(shard: LogShard, running_max_us: int, first_offset: int) -> bytes:
    """Key of the directory's entry of a frame."""
    return _ENTRY.pack(b"t", *shard, running_max_us, first_offset)


def pack_entry(entry: FrameEntry) -> bytes:
    """A directory entry as a value; the rest of it is in its key."""
    return _ENTRY_VALUE.pack(entry.next_offset, entry.size_bytes, entry.min_ts_us, entry.max_ts_us)


def unpack_entry(key: bytes, value: bytes) -> FrameEntry:
    """The directory entry under a key."""
    *_, running_max_us, first_offset = _ENTRY.unpack(key)
    next_offset, size_bytes, earliest, latest = _ENTRY_VALUE.unpack(value)
    return FrameEntry(first_offset, next_offset, size_bytes, earliest, latest, running_max_us)


def log_bounds(kind: bytes, log: int) -> tuple[bytes, bytes]:
    """First key, and the first after, of everything of one kind (``s``, ``f``, ``t``) that belongs to a log."""
    return _LOG.pack(kind, log), _LOG.pack(kind, log + 1)
