"""A segment: an immutable object with the frames of a range of a shard.

::

    FIRST-LAST-EARLIEST-LATEST.segment    its name: offsets, and times in microseconds
    frames                                as the store has them, each compressed by zstd
    index                                 a place for each frame, as JSON, compressed by zstd
    tail                                  the lengths of the index, and what kind of file this is

Names sort by offsets, so that a listing of a shard's folder is the list of its segments. Small frames are joined.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from broker.core.errors import SluiceError
from broker.core.lazy_module import LazyModule
from broker.storage import frames
from broker.storage.frames import Frame
from broker.streams.frame_sizes import is_frame, is_small
from broker.streams.tier.report import Segment, Wanted

if TYPE_CHECKING:
    import pyarrow as pa

    from broker.storage import records
else:
    pa = LazyModule("pyarrow")
    records = LazyModule("broker.storage.records")

# Size before compression at which a segment ends, with the frame that reaches it; a single frame may be larger.
SEGMENT_BYTES: Final = 16 * 1024 * 1024
# Bytes at the end of an object in which its index is, as a rule.
INDEX_GUESS: Final = 64 * 1024
_TAIL: Final = struct.Struct(">II16s")
_MAGIC: Final = b"sluice-segment-1"
_NAME: Final = re.compile(r"([0-9]{18})-([0-9]{18})-([0-9]{18})-([0-9]{18})\.segment", re.ASCII)
_CODEC: Final = "zstd"


class DamagedSegment(SluiceError):
    """An object that does not read back as it was written."""

    code = "damaged_segment"

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"the segment {name} is damaged: {why}")


class FramePlace(NamedTuple):
    """Position of a frame in its object. ``running_max_us`` is the latest time in the shard up to its end."""

    first_offset: int
    next_offset: int
    running_max_us: int
    position: int
    length: int
    size_bytes: int


class Built(NamedTuple):
    """A segment, and its content."""

    segment: Segment
    content: bytes


def folder_of(wanted: Wanted, shard: int) -> str:
    """Folder of the segments of a shard, under the tier's URL."""
    return f"{wanted.stream}/{wanted.epoch}/{shard:04d}"


def name_of(segment: Segment) -> str:
    """The name of a segment's object."""
    last = segment.next_offset - 1
    return f"{segment.first_offset:018d}-{last:018d}-{segment.min_ts_us:018d}-{segment.running_max_us:018d}.segment"


def parse_name(name: str, size_bytes: int) -> Segment | None:
    """The segment of a name, None if it is not the name of one."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    first, last, earliest, latest = map(int, match.groups())
    return Segment(first, last + 1, earliest, latest, size_bytes)


def build(frames: Iterable[Frame], start: int, end: int, running_max_us: int) -> Built:
    """A segment of the records from ``start`` on, as many as fit; ``frames`` hold ``[start, end)``, the
    latest time before them is ``running_max_us``."""
    pieces: list[bytes] = []
    places: list[FramePlace] = []
    earliest = []
    position = 0
    size = 0
    for frame in _joined(_within(frames, start, end, running_max_us)):
        value = frame.stored
        piece = pa.compress(value, codec=_CODEC, asbytes=True)
        latest = frame.running_max_us
        places.append(
            FramePlace(
                frame.first_offset, frame.next_offset, latest, position, len(piece), len(value)
            )
        )
        pieces.append(piece)
        earliest.append(frame.min_ts_us)
        position = position + len(piece)
        size = size + len(value)
        if size >= SEGMENT_BYTES:
            break
    index = msgspec.json.encode(places)
    packed = pa.compress(index, codec=_CODEC, asbytes=True)
    content = b"".join((*pieces, packed, _TAIL.pack(len(packed), len(index), _MAGIC)))
    segment = Segment(
        start,
        places[-1].next_offset,
        max(0, min(earliest)),
        places[-1].running_max_us,
        len(content),
    )
    return Built(segment, content)


def index_length(end: bytes, name: str) -> int:
    """Size in bytes of the index and tail of an object, by its last bytes.

    Raises:
        DamagedSegment: it is not a segment.
    """
    if len(end) < _TAIL.size or end[-len(_MAGIC) :] != _MAGIC:
        raise DamagedSegment(name, "its end is not that of a segment")
    packed, _, _ = _TAIL.unpack(end[-_TAIL.size :])
    return int(packed) + _TAIL.size


def unpack_index(end: bytes, name: str) -> list[FramePlace]:
    """The places of an object's frames, by its last bytes, which hold the whole index.

    Raises:
        DamagedSegment: it cannot be read.
    """
    packed, length, _ = _TAIL.unpack(end[-_TAIL.size :])
    index = end[-_TAIL.size - packed : -_TAIL.size]
    try:
        return msgspec.json.decode(_decompress(index, length), type=list[FramePlace])
    except (pa.ArrowException, OSError, msgspec.MsgspecError) as error:
        raise DamagedSegment(name, str(error)) from None


def unpack_frame(content: bytes, place: FramePlace, name: str) -> Frame:
    """A frame of an object.

    Raises:
        DamagedSegment, CorruptFrame: it cannot be read.
    """
    try:
        value = _decompress(content, place.size_bytes)
    except (pa.ArrowException, OSError) as error:
        raise DamagedSegment(name, str(error)) from None
    return frames.unpack(value, place.first_offset, name)


def _decompress(content: bytes, size_bytes: int) -> bytes:
    content_bytes: bytes = pa.decompress(
        content, decompressed_size=size_bytes, codec=_CODEC, asbytes=True
    )
    return content_bytes


def _within(frames: Iterable[Frame], start: int, end: int, running_max_us: int) -> Iterator[Frame]:
    """The frames, cut where they begin too early or end too late."""
    at = start
    for frame in frames:
        if at == frame.first_offset and frame.next_offset <= end:
            yield frame
        else:
            yield _frame(frame.slice(at, end), at, running_max_us)
        at = frame.next_offset
        running_max_us = frame.running_max_us
        if at >= end:
            return


def _joined(frames: Iterator[Frame]) -> Iterator[Frame]:
    """The frames, small neighbours joined into one."""
    run: list[Frame] = []
    size = 0
    for frame in frames:
        length = len(frame.message)
        small = is_small(frame.count, length)
        if run and not (small and is_frame(frame.next_offset - run[0].first_offset, size + length)):
            yield _join(run)
            run = []
            size = 0
        if small:
            run.append(frame)
            size += length
        else:
            yield frame
    if run:
        yield _join(run)


def _join(run: list[Frame]) -> Frame:
    if len(run) == 1:
        return run[0]
    batch = records.join([frame.batch() for frame in run])
    return _frame(batch, run[0].first_offset, run[-1].running_max_us)


def _frame(batch: pa.RecordBatch, first_offset: int, running_max_us: int) -> Frame:
    value, *_ = frames.pack(batch, running_max_us)
    return frames.unpack(value, first_offset, "a segment")
