"""Messages between the broker and the range server about the tiers of streams.

The broker keeps in the key space of the store, where the range server reads it:

::

    streams/tier/LOG                  request to tier records of a stream (``Wanted``)
    streams/tiered/LOG/SHARD          what the tier has of a shard (``Held``)
    streams/segments/LOG/SHARD/FIRST  a segment that was uploaded and verified (``Segment``)
    streams/unread/LOG                by shard, the first offset that a table has not read

The range server tells the broker, a line of JSON each, what it has done; done is what the broker has recorded.
"""

from __future__ import annotations

from typing import Final

import msgspec

from broker.storage.store import LogShard

WANTED: Final = b"streams/tier/"
_HELD: Final = b"streams/tiered/"
_SEGMENTS: Final = b"streams/segments/"
_UNREAD: Final = b"streams/unread/"


class Wanted(msgspec.Struct, frozen=True, omit_defaults=True):
    """Request to tier a log under a URL; with ``is_removed``, to delete its objects. Times are in
    microseconds. ``unread_bytes`` is the share of each shard in the segments that are kept for tables."""

    stream: str
    epoch: str
    shards: int
    url: str
    after_us: int
    retention_us: int | None
    unread_bytes: int = 10 * 1024**3
    is_removed: bool = False
    first_shard: int = 0

    @property
    def numbers(self) -> range:
        """The numbers of its shards."""
        return range(self.first_shard, self.first_shard + self.shards)


class Segment(msgspec.Struct, frozen=True):
    """An object with the records ``[first_offset, next_offset)`` of a shard. ``running_max_us`` is the latest time in
    the shard up to its end, ``size_bytes`` the size of the object."""

    first_offset: int
    next_offset: int
    min_ts_us: int
    running_max_us: int
    size_bytes: int


class Held(msgspec.Struct, frozen=True):
    """Content of a tier for a shard: ``[first_offset, next_offset)`` without a gap, and all segments, which may be
    more. Everything below ``next_offset`` was uploaded, or no longer existed."""

    first_offset: int = 0
    next_offset: int = 0
    oldest_us: int = 0
    running_max_us: int = 0
    size_bytes: int = 0
    segments: int = 0

    def reaches(self, first_offset: int) -> bool:
        """True if a shard whose records begin at an offset begins in the tier instead."""
        return self.first_offset < first_offset <= self.next_offset

    def with_segment(self, segment: Segment) -> Held:
        """Content after a segment is uploaded."""
        follows = segment.first_offset == self.next_offset and self.first_offset < self.next_offset
        return Held(
            self.first_offset if follows else segment.first_offset,
            segment.next_offset,
            self.oldest_us if follows else segment.min_ts_us,
            segment.running_max_us,
            self.size_bytes + segment.size_bytes,
            self.segments + 1,
        )

    def without(self, segment: Segment, following: Segment | None) -> Held:
        """Content after the oldest segment is deleted; ``following`` is the one after it."""
        first = self.first_offset
        oldest = self.oldest_us
        if segment.next_offset > first:
            first = self.next_offset if following is None else following.first_offset
            oldest = 0 if following is None else following.min_ts_us
        return Held(
            first,
            self.next_offset,
            oldest,
            self.running_max_us,
            self.size_bytes - segment.size_bytes,
            self.segments - 1,
        )


class Uploaded(msgspec.Struct, frozen=True, tag=True):
    """A segment is in the store, with the size that it should have."""

    log: int
    shard: int
    segment: Segment


class Expired(msgspec.Struct, frozen=True, tag=True):
    """The object of a segment was deleted."""

    log: int
    shard: int
    segment: Segment


class Removed(msgspec.Struct, frozen=True, tag=True):
    """All objects of a removed stream were deleted."""

    log: int


class TierState(msgspec.Struct, frozen=True, tag=True):
    """Result of the last work on a log's tier: ``problem`` is the reason of a failure, ``succeeded_us`` the time of the
    store's last success; 0 for not yet."""

    log: int
    problem: str | None
    succeeded_us: int


TierReport = Uploaded | Expired | Removed | TierState


def wanted_key(log: int) -> bytes:
    """Key of the ``Wanted`` of a log."""
    return WANTED + b"%d" % log


def held_key(shard: LogShard) -> bytes:
    """Key of the ``Held`` of a shard."""
    return _HELD + b"%d/%d" % shard


def unread_key(log: int) -> bytes:
    """Key of the offsets that tables have not read."""
    return _UNREAD + b"%d" % log


def unpack_unread(value: bytes) -> dict[int, int]:
    """First offset that a table has not read, by shard; other shards are read."""
    return msgspec.json.decode(value, type=dict[int, int])


def segments_of(log: int) -> bytes:
    """Prefix of the keys of all segments of a log."""
    return _SEGMENTS + b"%d/" % log


def segments_prefix(shard: LogShard) -> bytes:
    """Prefix of the keys of a shard's segments."""
    return _SEGMENTS + b"%d/%d/" % shard


def segment_key(shard: LogShard, first_offset: int) -> bytes:
    """Key of the segment that begins at an offset; keys sort by it."""
    return segments_prefix(shard) + b"%018d" % first_offset


def unpack_segment(value: bytes) -> Segment:
    """A segment as it is stored."""
    return msgspec.json.decode(value, type=Segment)


def unpack_held(value: bytes | None) -> Held:
    """Stored content of a tier for a shard; empty if nothing is stored."""
    return Held() if value is None else msgspec.json.decode(value, type=Held)


def unpack_wanted(value: bytes) -> Wanted:
    """Stored request to tier a log."""
    return msgspec.json.decode(value, type=Wanted)
