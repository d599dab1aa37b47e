"""Start of subscriptions that begin in the past: the stream with their topics, and the offsets of a time."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final, NamedTuple

from broker.config.units import parse_duration_s
from broker.core.clock import Clock
from broker.core.errors import Invalid, NotFound
from broker.core.topic import TopicFilter, covers
from broker.storage.store import LogShard, Store
from broker.streams.catalogue import Catalogue, Stream

_OFFSET: Final = re.compile(r"offset:([0-9]{1,18})", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9]{9,17}", re.ASCII)
_FORMS: Final = (
    "write 'earliest', 'latest', a time as 2026-11-21T08:00:00Z, microseconds or milliseconds since 1970, "
    "'-1h' for an hour ago, or 'offset:42'"
)


class Start(NamedTuple):
    """Start in a stream: an offset for each shard."""

    stream: str
    offsets: list[tuple[LogShard, int]]


class StreamStarts:
    """Finds the stream and the offsets for a topic filter and a start such as ``earliest``."""

    def __init__(self, catalogue: Catalogue, store: Store, clock: Clock) -> None:
        self._catalogue = catalogue
        self._store = store
        self._clock = clock

    def find(self, topic_filter: TopicFilter, start: str, stream: str | None) -> Start:
        """The start that is asked for.

        Raises:
            Invalid: no stream captures all topics of the filter, or ``start`` is not one; a sentence for the client.
        """
        chosen = self._stream(topic_filter, stream)
        return Start(
            chosen.name, [(shard, self._offset(chosen, shard, start)) for shard in chosen.shards]
        )

    def _stream(self, topic_filter: TopicFilter, name: str | None) -> Stream:
        if name is not None:
            try:
                chosen = self._catalogue.get(name)
            except NotFound:
                raise Invalid(f"there is no stream '{name}'") from None
            if not _captures(chosen, topic_filter):
                raise Invalid(
                    f"stream '{name}' does not capture all topics of '{topic_filter.filter}'"
                )
            return chosen
        candidates = sorted(
            (candidate for candidate in self._catalogue if _captures(candidate, topic_filter)),
            key=lambda candidate: candidate.name,
        )
        if not candidates:
            raise Invalid(
                f"no stream captures all topics of '{topic_filter.filter}', so there is no past to begin in"
            )
        return candidates[0]

    def _offset(self, stream: Stream, shard: LogShard, start: str) -> int:
        range_now = self._store.range_of(shard)
        text = start.strip()
        if text == "earliest":
            return range_now.first_offset
        if text == "latest":
            return range_now.next_offset
        if match := _OFFSET.fullmatch(text):
            if len(stream.shards) > 1:
                raise Invalid(
                    f"stream '{stream.name}' has {len(stream.shards)} shards, so begin at a time, not an offset"
                )
            return max(int(match[1]), range_now.first_offset)
        return self._store.offset_at(shard, self._time_us(text))

    def _time_us(self, text: str) -> int:
        try:
            if text.startswith("-"):
                ago_s = parse_duration_s(text[1:])
                assert isinstance(ago_s, float)
                return max(self._clock.now_ns() // 1000 - int(ago_s * 1_000_000), 0)
            if _NUMBER.fullmatch(text):
                number = int(text)
                return (
                    number
                    if number >= 10**14
                    else number * 1000
                    if number >= 10**11
                    else number * 1_000_000
                )
            at = datetime.fromisoformat(text)
        except (ValueError, OverflowError):
            raise Invalid(f"{text[:80]!r} is not a valid start; {_FORMS}") from None
        return int(
            (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() * 1_000_000
        )


def _captures(stream: Stream, topic_filter: TopicFilter) -> bool:
    return any(covers(captured.levels, topic_filter.levels) for captured in stream.filters)
