"""What waits in quarantine, and reprocessing it once the cause is fixed.

A quarantine is a stream of rows that validations and transformations write to (``broker.core.quarantine``). It is
worked through like a queue: every shard has a position, kept in the store in the same commit group as what the messages
reprocessed led to, so that none is taken twice. A message that fails again goes to the end with its new reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Required, cast

from typing_extensions import TypedDict

from broker.core import jsontext
from broker.core.errors import Invalid, Problem
from broker.core.quarantine import message_of, quarantined
from broker.core.stage import WaitingPublisher
from broker.core.stream import Append, StreamRecord
from broker.storage.writer import Writer
from broker.streams.service import StreamService

_PIECE: Final = 200
"""Records between two turns of the loop."""
_SHOWN_PAYLOAD: Final = 2000
_FAILURES_TOLD: Final = 20


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
    """How many messages were read, published, and stopped again, and how many records are no messages; some of the
    failures, and how many messages wait now."""

    read: int
    published: int
    failed: int
    skipped: int
    failures: list[FailedAgain]


class QuarantineService:
    """Lists quarantined messages and reprocesses them.

    Used on the event loop; ``names`` gives the streams that are quarantines now.
    """

    def __init__(
        self, streams: StreamService, writer: Writer, publisher: WaitingPublisher, names: Callable[[], Iterable[str]]
    ) -> None:
        self._streams, self._writer, self._publisher, self._names = streams, writer, publisher, names
        self._at_work: set[str] = set()

    def overview(self) -> Sequence[QuarantineRow]:
        """Every quarantine with how many messages wait in it."""
        return [self._state(name) for name in sorted(set(self._names()))]

    def get(self, stream: str, limit: int) -> QuarantineView:
        """What waits in one, oldest first.

        Raises:
            broker.core.errors.NotFound: there is no such stream.
        """
        items: list[QuarantinedMessage] = []
        for shard, (position, end) in enumerate(self._waiting(stream)):
            while position < end and len(items) < limit:
                found = self._streams.reader.read(stream, shard, position, min(limit - len(items), _PIECE))
                if not found:
                    break
                items += [_shown(shard, offset, record) for offset, record in found]
                position = found[-1][0] + 1
        return {**self._state(stream), "items": items}

    async def take_again(
        self, stream: str, limit: int, advance: Callable[[int], bool] = lambda done: True
    ) -> TakenAgain:
        """Publish what waits, through all stages, at most ``limit`` messages; what fails goes to the end. ``advance``
        is called with how many were read, and says whether to go on.

        Raises:
            broker.core.errors.NotFound: there is no such stream.
            broker.core.errors.Unavailable: the store takes nothing.
            Invalid: it captures topics, or another call is reprocessing it.
        """
        append = self._streams.appender.appender(stream)
        if stream in self._at_work:
            raise Invalid("the quarantine is being worked through by another call", [Problem("wait for its end")])
        self._at_work.add(stream)
        try:
            return await self._take_again(stream, append, limit, advance)
        finally:
            self._at_work.discard(stream)

    async def _take_again(self, stream: str, append: Append, limit: int, advance: Callable[[int], bool]) -> TakenAgain:
        counts = {"read": 0, "published": 0, "failed": 0, "skipped": 0}
        failures: list[FailedAgain] = []
        for shard, (position, end) in enumerate(self._waiting(stream)):
            while position < end and counts["read"] < limit and advance(counts["read"]):
                size = min(_PIECE, end - position, limit - counts["read"])
                found = self._streams.reader.read(stream, shard, position, size)
                if not found:
                    break
                for offset, record in found:
                    if offset < end:
                        failure = await self._take(record, append, counts)
                        if failure is not None and len(failures) < _FAILURES_TOLD:
                            failures.append(
                                {"shard": shard, "offset": offset, "topic": record.topic, "reason": failure}
                            )
                        position = offset + 1
                self._writer.put(self._key(stream, shard), b"%d" % position)
                await self._writer.committed()
        advance(counts["read"])
        return cast(TakenAgain, {"stream": stream, **counts, "failures": failures, **self._state(stream)})

    async def _take(self, record: StreamRecord, append: Append, counts: dict[str, int]) -> str | None:
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
        return {"stream": stream, "waiting": sum(end - position for position, end in self._waiting(stream))}

    def _waiting(self, stream: str) -> list[tuple[int, int]]:
        """Of each shard the first offset not yet reprocessed, and the next free one."""
        found = []
        for held in self._streams.reader.ranges(stream):
            kept = self._writer.store.get(self._key(stream, held.shard))
            position = max(held.first_offset, min(int(kept or b"0"), held.next_offset))
            found.append((position, held.next_offset))
        return found

    def _key(self, stream: str, shard: int) -> bytes:
        return b"quarantine/%d/%d" % (self._streams.log_of(stream), shard)


def _shown(shard: int, offset: int, record: StreamRecord) -> QuarantinedMessage:
    try:
        row = jsontext.decode(record.payload)
    except jsontext.JsonError:
        row = {}
    if isinstance(row.get("payload"), str) and len(row["payload"]) > _SHOWN_PAYLOAD:
        row["payload"] = row["payload"][:_SHOWN_PAYLOAD] + "…"
    return cast(QuarantinedMessage, {"shard": shard, "offset": offset, **row})
