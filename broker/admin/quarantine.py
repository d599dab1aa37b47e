"""What waits in quarantine, and reprocessing it once the cause is fixed.

A quarantine is a stream of rows that validations and transformations write to (``broker.core.quarantine``). It is
worked through like a queue: every shard has a position, kept in the store in the same commit group as what the messages
reprocessed led to, so that none is taken twice. A message that fails again goes to the end with its new reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from broker.core import jsontext
from broker.core.errors import Invalid, Problem
from broker.core.quarantine import message_of, quarantined
from broker.core.stage import WaitingPublisher
from broker.core.stream import Append, StreamRecord
from broker.storage.writer import Writer
from broker.streams.service import StreamService

MAX_TAKEN: Final = 100_000
"""Most records that one call takes."""
_PIECE: Final = 200
"""Records between two turns of the loop."""
_SHOWN_PAYLOAD: Final = 2000
_FAILURES_TOLD: Final = 20

Answer = dict[str, Any]


class QuarantineService:
    """Lists quarantined messages and reprocesses them.

    Used on the event loop; ``names`` gives the streams that are quarantines now.
    """

    def __init__(
        self, streams: StreamService, writer: Writer, publisher: WaitingPublisher, names: Callable[[], Iterable[str]]
    ) -> None:
        self._streams, self._writer, self._publisher, self._names = streams, writer, publisher, names
        self._at_work: set[str] = set()

    def overview(self) -> Sequence[Answer]:
        """Every quarantine with how many messages wait in it."""
        return [self._state(name) for name in sorted(set(self._names()))]

    def get(self, stream: str, limit: int) -> Answer:
        """What waits in one, oldest first.

        Raises:
            broker.core.errors.NotFound: there is no such stream.
        """
        items: list[Answer] = []
        for shard, (position, end) in enumerate(self._waiting(stream)):
            while position < end and len(items) < limit:
                found = self._streams.reader.read(stream, shard, position, min(limit - len(items), _PIECE))
                if not found:
                    break
                items += [_shown(shard, offset, record) for offset, record in found]
                position = found[-1][0] + 1
        return {**self._state(stream), "items": items}

    async def take_again(self, stream: str, limit: int, advance: Callable[[int], bool] = lambda done: True) -> Answer:
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

    async def _take_again(self, stream: str, append: Append, limit: int, advance: Callable[[int], bool]) -> Answer:
        counts = {"read": 0, "published": 0, "failed": 0, "skipped": 0}
        failures: list[Answer] = []
        for shard, (position, end) in enumerate(self._waiting(stream)):
            while position < end and counts["read"] < limit and advance(counts["read"]):
                size = min(_PIECE, end - position, limit - counts["read"])
                found = self._streams.reader.read(stream, shard, position, size)
                if not found:
                    break
                for offset, record in found:
                    if offset < end:
                        await self._take(record, append, counts, failures, {"shard": shard, "offset": offset})
                        position = offset + 1
                self._writer.put(self._key(stream, shard), b"%d" % position)
                await self._writer.committed()
        advance(counts["read"])
        return {"stream": stream, **counts, "failures": failures, "waiting": self._state(stream)["waiting"]}

    async def _take(
        self, record: StreamRecord, append: Append, counts: dict[str, int], failures: list[Answer], place: Answer
    ) -> None:
        counts["read"] += 1
        message = message_of(record)
        if message is None:
            counts["skipped"] += 1
            return
        refusal = (await self._publisher.publish_and_wait(message)).refusal
        if refusal is None:
            counts["published"] += 1
            return
        counts["failed"] += 1
        action = "disconnect" if refusal.disconnect else "drop"
        append(quarantined(message, refusal.stage, refusal.name, refusal.text, "", action))
        if len(failures) < _FAILURES_TOLD:
            failures.append({**place, "topic": message.topic, "reason": refusal.text})

    def _state(self, stream: str) -> Answer:
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


def _shown(shard: int, offset: int, record: StreamRecord) -> Answer:
    try:
        row = jsontext.decode(record.payload)
    except jsontext.JsonError:
        row = {}
    if isinstance(row.get("payload"), str) and len(row["payload"]) > _SHOWN_PAYLOAD:
        row["payload"] = row["payload"][:_SHOWN_PAYLOAD] + "…"
    return {"shard": shard, "offset": offset, **row}
