"""Capture of messages that match a stream's topic filters, and of the rows that rules write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from broker.core.errors import NotFound, Unavailable
from broker.core.message import Message
from broker.core.stage import TapCall
from broker.core.stored import record_of
from broker.core.stream import Append, StreamRecord, replayed_from
from broker.storage.store import LogShard
from broker.storage.writer import Writer
from broker.streams.catalogue import Catalogue, Stream

Place = Callable[[str], LogShard]


class CaptureTap:
    """The stage that captures messages raw; implements ``broker.core.stage.Tap``."""

    name: Final = "streams"

    def __init__(self, catalogue: Catalogue, writer: Writer) -> None:
        self._catalogue = catalogue
        self._writer = writer

    def acting(self, topic: str) -> tuple[Stream, ...]:
        """Streams of a topic; see ``broker.core.stage.ActsByObjects``."""
        return tuple(
            stream for stream in self._catalogue if any(f.matches(topic) for f in stream.filters)
        )

    def plan(self, topic: str) -> TapCall | None:
        """Function that captures messages on this topic, None if no stream does."""
        streams = self.acting(topic)
        if not streams:
            return None
        if len(streams) == 1 and len(streams[0].shards) == 1:
            return _capture_into_one(self._writer, streams[0])
        return _capture_into_many(
            self._writer, [(stream.shard_of, replayed_from(stream.name)) for stream in streams]
        )


class RowAppender:
    """Appends the rows of rules; implements ``broker.core.stream.StreamAppender``."""

    def __init__(self, catalogue: Catalogue, writer: Writer) -> None:
        self._catalogue = catalogue
        self._writer = writer

    def appender(self, stream: str) -> Append:
        """A callable that appends to a stream of rows; it raises ``Unavailable`` once the stream is deleted.

        Raises:
            NotFound: there is no such stream, or it captures topics.
        """
        target = self._catalogue.get(stream)
        if target.filters:
            raise NotFound(
                "stream",
                stream,
                "of rows: that one captures topics, so write to one without 'topics'",
            )
        return _append_rows(self._writer, target)

    def names(self) -> Sequence[str]:
        """The streams there are."""
        return [stream.name for stream in self._catalogue]


def _capture_into_one(writer: Writer, stream: Stream) -> TapCall:
    append = writer.appender(stream.shards[0])
    own = replayed_from(stream.name)

    def capture(message: Message) -> None:
        if message.via and own in message.via:
            return
        append(record_of(message))

    return capture


def _capture_into_many(writer: Writer, places: Sequence[tuple[Place, str]]) -> TapCall:
    append = writer.append

    def capture(message: Message) -> None:
        record = record_of(message)
        via = message.via
        for place, own in places:
            if own not in via:
                append(place(record.client_id), record)

    return capture


def _append_rows(writer: Writer, stream: Stream) -> Append:
    if len(stream.shards) == 1:
        append = writer.appender(stream.shards[0])
    else:
        appenders = {shard: writer.appender(shard) for shard in stream.shards}

        def append(record: StreamRecord) -> None:
            appenders[stream.shard_of(record.client_id)](record)

    def append_row(record: StreamRecord) -> None:
        if stream.is_gone:
            raise Unavailable(f"stream {stream.name!r} was deleted")
        append(record)

    return append_row
