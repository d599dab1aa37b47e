"""Interfaces of durable streams: the form of a record, appenders and readers.

A stream is a named, append-only, offset-addressed, time-indexed log. Offsets are dense per shard and never reused. It
captures either messages that match topic filters (*topics*) or rows that rules emit (*rows*); both use one record
layout, so that frames of any stream can be joined and passed through unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from broker.core.errors import NotFound, Problem, did_you_mean
from broker.core.message import Message


class StreamRecord(NamedTuple):
    """One record as it is appended; the offset is given when its group is committed.

    ``payload`` is the message's payload in a *topics* stream, and the row as compact JSON text in a *rows* stream.
    ``properties`` is JSON text of the PUBLISH properties (binary ones as ``{"$base64": ...}``), None when there are
    none. ``rule`` names the rule that emitted the row.
    """

    ts_us: int
    topic: str
    payload: bytes
    qos: int
    retain: bool
    client_id: str
    username: str | None = None
    properties: str | None = None
    rule: str | None = None


_Fields = tuple[int, str, bytes, int, bool, str, str | None, str | None, str | None]
# A record of all its fields in order. One is made per message: 0.13 µs, where calling the class takes 0.38.
stream_record: Final[Callable[[_Fields], StreamRecord]] = partial(tuple.__new__, StreamRecord)


@dataclass(frozen=True, slots=True)
class ShardRange:
    """Offsets of one shard of a stream: ``first_offset`` up to, not including, ``next_offset``."""

    shard: int
    first_offset: int
    next_offset: int


Append = Callable[[StreamRecord], None]


class StreamAppender(Protocol):
    """Appending, for rule actions and raw capture. Used on the event loop; never waits."""

    def appender(self, stream: str) -> Append:
        """A callable that appends records to the stream; bind it once, call it per record.

        It raises ``broker.core.errors.Unavailable`` when the stream is gone or the store refuses writes.

        Raises:
            broker.core.errors.NotFound: there is no such stream.
        """

    def names(self) -> Sequence[str]:
        """The streams there are."""

    def trace(self, stream: str, message: Message) -> None:
        """Tell those who follow traces once what was appended of a message is on disk, where it is traced."""


def rows_problem(stream: str, streams: StreamAppender, pointer: str) -> Problem | None:
    """Problem that keeps rows from being appended to a stream, or None."""
    try:
        streams.appender(stream)
    except NotFound:
        names = streams.names()
    else:
        return None
    if stream in names:
        hint = "name a stream that was created without topics"
        return Problem(
            f"stream '{stream}' captures topics and takes no rows", pointer, suggestion=hint
        )
    hint = did_you_mean(stream, names) or "create the stream first"
    return Problem(f"there is no stream '{stream}'", pointer, suggestion=hint)


class StreamHistory:
    """Content of streams, for features. Used on the event loop in small pieces; each read takes milliseconds.

    This one has no streams; a node's is ``broker.streams.reader.StreamReader``.
    """

    def ranges(self, stream: str) -> Sequence[ShardRange]:
        """Current range of each shard. Raises ``broker.core.errors.NotFound``."""
        raise NotFound("stream", stream)

    def offset_at(self, stream: str, shard: int, ts_us: int) -> int:
        """The first offset whose record was published at or after a time, else the next offset."""
        raise NotFound("stream", stream)

    def read(
        self, stream: str, shard: int, from_offset: int, limit: int
    ) -> Sequence[tuple[int, StreamRecord]]:
        """Records with their offsets, at most ``limit`` and never more than 10,000, from an offset on."""
        raise NotFound("stream", stream)

    def time_of(self, stream: str, shard: int, offset: int) -> int | None:
        """When the first record at or after an offset was published, in microseconds since 1970; None if there is none,
        or it is not known here. Of a shard in another cell, a time at or after which it was."""
        records = self.read(stream, shard, offset, 1)
        return records[0][1].ts_us if records else None


def no_positions(name: str, at_us: int | None = None) -> Mapping[str, Any]:
    """Positions in a stream of a node without streams."""
    raise NotFound("stream", name)


def replayed_from(stream: str) -> str:
    """Mark in ``Message.via`` of messages that a replay of the stream published: that stream does not capture them
    again."""
    return f"$replay/{stream}"
