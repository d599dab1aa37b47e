"""A frame as it is kept: a small header, then one encapsulated Arrow IPC record batch message.

The header is 40 bytes, so that the message behind it stays aligned to 8 bytes and is read without copying.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

from broker.core.errors import SluiceError
from broker.core.lazy_module import LazyModule

if TYPE_CHECKING:
    import pyarrow as pa

    from broker.storage import records
else:
    pa = LazyModule("pyarrow")
    records = LazyModule("broker.storage.records")

VERSION: Final = 1
_HEADER: Final = struct.Struct(">B3xIqqqI4x")
HEADER_SIZE: Final = _HEADER.size
assert HEADER_SIZE == 40

# An Arrow IPC stream is ``schema_message()``, the messages of any number of frames, and this.
END_MESSAGE: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"


@cache
def schema_message() -> bytes:
    """The message of the records' schema."""
    message: bytes = records.SCHEMA.serialize().to_pybytes()
    return message


class CorruptFrame(SluiceError):
    """Stored records that do not read back as they were written."""

    code = "corrupt_frame"

    def __init__(self, place: str, offset: int, why: str) -> None:
        self.offset = offset
        super().__init__(
            f"the records of {place} from offset {offset} on are damaged on disk: {why}"
        )


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame's header, checked, and its message. Times are microseconds since the epoch.

    ``running_max_us`` is the latest time in the shard up to the end of the frame, which the time index goes by.
    """

    first_offset: int
    count: int
    min_ts_us: int
    max_ts_us: int
    running_max_us: int
    message: memoryview

    @property
    def next_offset(self) -> int:
        """The offset after the frame's last."""
        return self.first_offset + self.count

    @property
    def stored(self) -> bytes:
        """The frame as it is stored, header included."""
        assert isinstance(self.message.obj, bytes)
        return self.message.obj

    def batch(self) -> pa.RecordBatch:
        """The records, not copied."""
        return pa.ipc.read_record_batch(pa.py_buffer(self.message), records.SCHEMA)

    def slice(self, from_offset: int, to_offset: int) -> pa.RecordBatch:
        """The records with offsets in ``[from_offset, to_offset)``."""
        start = max(from_offset, self.first_offset)
        return self.batch().slice(
            start - self.first_offset, min(to_offset, self.next_offset) - start
        )


def pack(batch: pa.RecordBatch, running_max_us: int) -> tuple[bytes, int, int, int]:
    """A batch as a stored frame, with its earliest and latest time and the new running maximum."""
    message = batch.serialize()
    earliest, latest = records.times_of(batch)
    running_max_us = max(running_max_us, latest)
    header = _HEADER.pack(
        VERSION, batch.num_rows, earliest, latest, running_max_us, zlib.crc32(message)
    )
    return b"".join((header, message)), earliest, latest, running_max_us


def running_max_of(value: bytes) -> int:
    """The running maximum in a stored frame's header; the frame is not checked."""
    running_max_us: int = _HEADER.unpack_from(value)[4]
    return running_max_us


def unpack(value: bytes, first_offset: int, place: str) -> Frame:
    """Check a stored frame and open it.

    Args:
        value: what the store holds.
        first_offset: the offset it is stored under.
        place: what the records belong to, for the error's text.

    Raises:
        CorruptFrame: it is cut, of another version, or its checksum differs.
    """
    if len(value) < HEADER_SIZE:
        raise CorruptFrame(
            place, first_offset, f"{len(value)} bytes are less than a frame's header"
        )
    version, count, earliest, latest, running_max_us, checksum = _HEADER.unpack_from(value)
    if version != VERSION:
        raise CorruptFrame(
            place,
            first_offset,
            f"frame version {version} is not known, this release reads {VERSION}",
        )
    message = memoryview(value)[HEADER_SIZE:]
    if zlib.crc32(message) != checksum:
        raise CorruptFrame(place, first_offset, "the checksum differs")
    return Frame(first_offset, count, earliest, latest, running_max_us, message)
