"""Messages in quarantine, and reprocessing them once the cause is fixed.

A quarantine is a stream of rows that validations and transformations write to (``broker.core.quarantine``). It is
worked through like a queue: every shard has a position, and the offsets after it that were reprocessed singly, kept in
the store in the same commit group as what the messages reprocessed led to, so that none is taken twice. A message that
fails again goes to the end with its new reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Required, cast

from typing_extensions import TypedDict

from broker.core import jsontext
from broker.core.contributor import Change, Contributor
from broker.core.errors import Invalid, Problem, Unavailable
from broker.core.kinds import are
from broker.core.objects import saving
from broker.core.quarantine import message_of, quarantined
from broker.core.stage import WaitingPublisher
from broker.core.stream import Append, StreamRecord
from broker.storage.collection import Codec, Collection
from broker.storage.store import LogShard
from broker.storage.writer import Writer
from broker.streams.service import StreamService

# Records between two turns of the loop.
_PIECE: Final = 200
_SHOWN_PAYLOAD: Final = 2000
_FAILURES_TOLD: Final = 20
# Maximum picked offsets of a shard after its position.
_MOST_PICKED: Final = 10_000

# Shard and offset of a record.
Place = tuple[int, int]


class QuarantineRow(TypedDict):
    """A quarantine, and how many messages wait in it."""

    stream: str
    waiting: int


class QuarantinedMessage(TypedDict, total=False):
    """A message that a stage stopped, with the ``reason``, the ``path`` in its payload, and where it is in the stream.

    ``client_attrs`` and ``properties`` are JSON text, ``received_at`` is in milliseconds since 1970. Long payloads are
    cut. Of a record that another rule wrote to the stream only its columns are here.
    """

    shard: Required[int]
    offset: Required[int]
    id: str
    stage: str
    name: str
    reason: str
    path: str
    action: str
    topic: str
    payload: str
    payload_encoding: str
    qos: int
    retain: bool
    clientid: str
    username: str | None
    peername: str | None
    client_attrs: str
    properties: str
    received_at: int


class QuarantineView(QuarantineRow):
    """A quarantine and its oldest messages."""

    items: list[QuarantinedMessage]


class FailedAgain(TypedDict):
    """A message that was stopped again, where it was in the stream, and why."""

    shard: int
    offset: int
    topic: str
    reason: str


class TakenAgain(QuarantineRow):
    """Numbers of messages that were read, published, and stopped again, and of records that are not messages; some of
    the failures, and the number of messages that wait now."""

    read: int
    published: int
    failed: int
    skipped: int
    failures: list[FailedAgain]


@dataclass(frozen=True, slots=True)
class _Shard:
    """Messages that wait in a shard: the offsets from ``position`` up to, not including, ``end``, without the
    ``picked``."""

    number: int
    position: int
    end: int
    picked: frozenset[int]

    @property
    def waiting(self) -> int:
        return self.end - self.position - len(self.picked)

    def without(self, offsets: Iterable[int], before: int = 0) -> _Shard:
        """When these, and all before an offset, were reprocessed too."""
        picked = self.picked.union(offsets)
        position = max(self.position, before)
        while position in picked:
            position += 1
        return replace(
            self,
            position=position,
            picked=frozenset(offset for offset in picked if offset >= position),
        )

    def head(self) -> int | list[int]:
        """The position, and the offsets after it that were picked, as the store keeps them."""
        return [self.position, *sorted(self.picked)] if self.picked else self.position


def _shard_of(key: bytes) -> LogShard:
    log, shard = key.split(b"/")
    return LogShard(int(log), int(shard))


_SHARDS: Final = Codec[LogShard](lambda place: b"%d/%d" % place, _shard_of)
_HEADS: Final = Codec[int | list[int]](jsontext.encode, jsontext.decode)


class QuarantineService(Contributor):
    """Lists quarantined messages and reprocesses them.

    Used on the event loop; ``names`` gives the streams that are quarantines now.
    """

    def __init__(
        self,
        streams: StreamService,
        writer: Writer,
        publisher: WaitingPublisher,
        names: Callable[[], Iterable[str]],
    ) -> None:
        self._streams = streams
        self._writer = writer
        self._publisher = publisher
        self._names = names
        self._heads = Collection(writer, b"quarantine/", _SHARDS, _HEADS)
        self._at_work: set[str] = set()

    def overview(self) -> Sequence[QuarantineRow]:
        """Every quarantine with how many messages wait in it."""
        return [self._state(name) for name in sorted(set(self._names()))]

    def get(self, stream: str, limit: int) -> QuarantineView:
        """Show the messages in a quarantine, oldest first.

        Raises:
            broker.core.errors.NotFound: there is no such stream.
        """
        items: list[QuarantinedMessage] = []
        for shard in self._waiting(stream):
            for piece in self._pieces(stream, shard, limit - len(items)):
                items += [
                    _shown(shard.number, offset, record)
                    for offset, record in piece[: limit - len(items)]
                ]
                if len(items) == limit:
                    return {**self._state(stream), "items": items}
        return {**self._state(stream), "items": items}

    def to_take_again(self, stream: str, limit: int, records: Sequence[Place] | None) -> int:
        """Count the messages that ``take_again`` would read. Raises ``NotFound``."""
        if records is None:
            return min(limit, self.get(stream, 0)["waiting"])
        own = {stored.shard for stored in self._streams.reader.ranges(stream)}
        return min(limit, sum(shard in own for shard, _ in records))

    async def take_again(
        self,
        stream: str,
        limit: int,
        advance: Callable[[int], bool] = lambda done: True,
        records: Sequence[Place] | None = None,
    ) -> TakenAgain:
        """Publish what waits, or what waits of these records, through all stages, at most ``limit`` messages; what
        fails goes to the end. ``advance`` is called with how many were read, and returns whether to continue.

        Raises:
            broker.core.errors.NotFound: there is no such stream.
            broker.core.errors.Unavailable: the store takes nothing, or too many were picked from behind older ones.
            Invalid: it captures topics, or another call is reprocessing it.
        """
        append = self._streams.appender.appender(stream)
        if stream in self._at_work:
            raise Invalid(
                "the quarantine is being worked through by another call",
                [Problem("wait for its end")],
            )
        saving(self._count(stream, limit, records) > 0)
        self._at_work.add(stream)
        try:
            return await self._take_again(stream, append, limit, advance, records)
        finally:
            self._at_work.discard(stream)

    def consequences(self, change: Change) -> Iterator[str]:
        """Number of messages that a call of ``take_again`` publishes; its parameters are the options."""
        if change.target.kind == "quarantine":
            count = self._count(
                change.target.name, change.options["limit"], change.options["records"]
            )
            if count:
                yield f"{are(count, 'message')} published again, through all stages."

    def _count(self, stream: str, limit: int, records: Sequence[Place] | None) -> int:
        """The number of records that a call of ``take_again`` reads."""
        waiting = list(self._waiting(stream))
        if records is None:
            count = sum(shard.waiting for shard in waiting)
        else:
            chosen = ((shard, _of(shard, records)) for shard in waiting)
            count = sum(
                len(piece)
                for shard, offsets in chosen
                for piece in self._pieces(stream, shard, limit, offsets)
            )
        return min(count, limit)

    async def _take_again(
        self,
        stream: str,
        append: Append,
        limit: int,
        advance: Callable[[int], bool],
        records: Sequence[Place] | None,
    ) -> TakenAgain:
        counts = {"read": 0, "published": 0, "failed": 0, "skipped": 0}
        failures: list[FailedAgain] = []
        for shard in self._waiting(stream):
            left = shard
            chosen = None if records is None else _of(shard, records)
            if len(shard.picked) + len(chosen or ()) > _MOST_PICKED:
                text = f"{_MOST_PICKED:,} messages behind older ones were reprocessed"
                raise Unavailable(
                    f"{text}. Try: sluice quarantine take-again {stream}, which takes the oldest"
                )
            for piece in self._pieces(stream, shard, limit, chosen):
                if counts["read"] >= limit or not advance(counts["read"]):
                    break
                done = []
                for offset, record in piece[: limit - counts["read"]]:
                    failure = await self._take(record, append, counts)
                    if failure is not None and len(failures) < _FAILURES_TOLD:
                        failures.append(
                            {
                                "shard": shard.number,
                                "offset": offset,
                                "topic": record.topic,
                                "reason": failure,
                            }
                        )
                    done.append(offset)
                left = left.without(done, done[-1] + 1 if done and chosen is None else 0)
                self._heads.put(LogShard(self._streams.log_of(stream), shard.number), left.head())
                await self._writer.committed()
        advance(counts["read"])
        return cast(
            TakenAgain, {"stream": stream, **counts, "failures": failures, **self._state(stream)}
        )

    async def _take(
        self, record: StreamRecord, append: Append, counts: dict[str, int]
    ) -> str | None:
        """Publish one; why it was stopped again, None where it was not."""
        counts["read"] += 1
        message = message_of(record)
        if message is None:
            counts["skipped"] += 1
            return None
        refusal = (await self._publisher.publish_and_wait(message)).refusal
        if refusal is None:
            counts["published"] += 1
            return None
        counts["failed"] += 1
        action = "disconnect" if refusal.disconnect else "drop"
        append(quarantined(message, refusal.stage, refusal.name, refusal.text, "", action))
        return refusal.text

    def _state(self, stream: str) -> QuarantineRow:
        return {"stream": stream, "waiting": sum(shard.waiting for shard in self._waiting(stream))}

    def _waiting(self, stream: str) -> Iterator[_Shard]:
        """The messages that wait in each shard."""
        for stored in self._streams.reader.ranges(stream):
            head = self._heads.committed(LogShard(self._streams.log_of(stream), stored.shard))
            position, *picked = head if isinstance(head, list) else [head or 0]
            shard = _Shard(
                stored.shard,
                min(position, stored.next_offset),
                stored.next_offset,
                frozenset(picked),
            )
            yield shard.without((), stored.first_offset)

    def _pieces(
        self, stream: str, shard: _Shard, limit: int, chosen: Sequence[int] | None = None
    ) -> Iterator[list[tuple[int, StreamRecord]]]:
        """The messages that wait in a shard, or those at the chosen offsets, in batches."""
        read = self._streams.reader.read
        size = min(limit, _PIECE)
        if chosen is not None:
            waiting = [
                place
                for place in chosen
                if shard.position <= place < shard.end and place not in shard.picked
            ]
            for start in range(0, len(waiting), size):
                places = waiting[start : start + size]
                records = [
                    record
                    for at in places
                    for record in read(stream, shard.number, at, 1)
                    if record[0] == at
                ]
                yield records
            return
        at = shard.position
        while at < shard.end and (
            some := read(stream, shard.number, at, min(size, shard.end - at))
        ):
            at = some[-1][0] + 1
            yield [
                record for record in some if record[0] < shard.end and record[0] not in shard.picked
            ]


def _of(shard: _Shard, records: Sequence[Place]) -> list[int]:
    """The offsets of the records that are in a shard."""
    return sorted({offset for number, offset in records if number == shard.number})


def _shown(shard: int, offset: int, record: StreamRecord) -> QuarantinedMessage:
    try:
        row = jsontext.decode(record.payload)
    except jsontext.JsonError:
        row = {}
    if isinstance(row.get("payload"), str) and len(row["payload"]) > _SHOWN_PAYLOAD:
        row["payload"] = row["payload"][:_SHOWN_PAYLOAD] + "…"
    return cast(QuarantinedMessage, {"shard": shard, "offset": offset, **row})
