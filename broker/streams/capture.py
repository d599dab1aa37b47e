"""Capture of messages that match a stream's topic filters, and of the rows that rules write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from broker.core.errors import NotFound, Unavailable
from broker.core.message import Message
from broker.core.stage import TapCall
from broker.core.stored import record_of
from broker.core.stream import Append, ShardRange, StreamRecord, replayed_from
from broker.core.tracing import Spans, TraceContext, sampled_context
from broker.storage.writer import Writer
from broker.streams.catalogue import Catalogue, Stream


class StreamTraces:
    """Tells ``Spans`` of the traced messages that streams have, once they are on disk."""

    def __init__(
        self, spans: Spans, writer: Writer, ranges: Callable[[str], Sequence[ShardRange]]
    ) -> None:
        self._spans = spans
        self._writer = writer
        self._ranges = ranges

    def note(self, stream: str, message: Message) -> None:
        """A message was appended to a stream."""
        context = sampled_context(message)
        if context is not None:
            self._writer.when_committed(partial(self._committed, stream, context))

    def _committed(self, stream: str, context: TraceContext, error: BaseException | None) -> None:
        if error is None:
            with suppress(NotFound):  # the stream was deleted
                self._spans.on_stored(stream, context, self._ranges(stream))


class CaptureTap:
    """The stage that captures messages raw; implements ``broker.core.stage.Tap``."""

    name: Final = "streams"

    def __init__(self, catalogue: Catalogue, writer: Writer, traces: StreamTraces) -> None:
        self._catalogue = catalogue
        self._writer = writer
        self._traces = traces

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
            return _capture_into_one(self._writer, streams[0], self._traces)
        return _capture_into_many(self._writer, streams, self._traces)


class RowAppender:
    """Appends the rows of rules; implements ``broker.core.stream.StreamAppender``."""

    def __init__(self, catalogue: Catalogue, writer: Writer, traces: StreamTraces) -> None:
        self._catalogue = catalogue
        self._writer = writer
        self.trace = traces.note

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


def _capture_into_one(writer: Writer, stream: Stream, traces: StreamTraces) -> TapCall:
    append = writer.appender(stream.shards[0])
    own = replayed_from(stream.name)

    def capture(message: Message) -> None:
        via = message.via
        if via and own in via:
            return
        append(record_of(message))
        if via:
            traces.note(stream.name, message)

    return capture


def _capture_into_many(writer: Writer, streams: Sequence[Stream], traces: StreamTraces) -> TapCall:
    append = writer.append
    places = [(stream.shard_of, replayed_from(stream.name), stream.name) for stream in streams]

    def capture(message: Message) -> None:
        record = record_of(message)
        via = message.via
        for place, own, name in places:
            if own not in via:
                append(place(record.client_id), record)
                if via:
                    traces.note(name, message)

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
