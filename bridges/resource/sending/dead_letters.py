"""Rows that an action discarded, kept with the reason, so that users can read them and send them again.

They are in a durable queue of their own, bounded; the oldest make room. A row is kept in the commit group that is
gathering, so that it is there when what it came from is forgotten. Those picked out behind older ones that stay are
listed in a value, until the older ones are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec
from typing_extensions import TypedDict

from bridges.resource.sending.item import Item, from_bytes, to_bytes
from bridges.resource.specs import DeadLetterOptions
from bridges.resource.templates import text_of
from broker.core import jsontext
from broker.core.clock import Clock
from broker.core.errors import SluiceError, Unavailable
from broker.core.marks import marked
from broker.core.queue import DurableQueue, Queues
from broker.core.values import Values
from broker.observe.log import get_logger

_log = get_logger(__name__)

PREFIX: Final = "dead-letters/"
_BIG: Final = 1 << 62
_SHOWN_TEXT: Final = 2000
_ROOM: Final = 100
_MOST_PICKED: Final = 10_000


class _Letter(msgspec.Struct, array_like=True):
    item: bytes
    cause: str
    reason: str
    time_ms: int
    attempts: int


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Letter).decode


class DeadLetterView(TypedDict):
    """A row that an action discarded: when, the cause (``failed``, ``expired``, ``queue_full``), the reason, how often
    it was tried, and the message that it is from. A long row is the beginning of its JSON."""

    offset: int
    time_ms: int
    cause: str
    reason: str
    attempts: int
    topic: str
    clientid: str
    row: Any


class DeadLetters:
    """The dead letters of one action, ``<type>:<name>``."""

    def __init__(
        self,
        action: str,
        options: DeadLetterOptions,
        queues: Queues,
        values: Values,
        clock: Clock,
        lost: Callable[[int], None],
    ) -> None:
        """``lost`` is called with how many of the oldest made room."""
        self.options = options
        self._lost = lost
        self._action = action
        self._queues = queues
        self._values = values
        self._clock = clock
        self._queue: DurableQueue | None = None
        self._oldest = 0
        self._picked: set[int] = set()
        """Offsets, after the oldest, of letters that are gone."""

    @property
    def waiting(self) -> int:
        """Number of dead letters."""
        queue = (
            self._opened()
            if self._queue is not None or self._queues.names(PREFIX + self._action)
            else None
        )
        return 0 if queue is None else queue.records - len(self._picked)

    def number_of(self, offsets: Iterable[int]) -> int:
        """Number of dead letters with these offsets."""
        if not self.waiting:
            return 0
        end = self._oldest + self._opened().records
        return len({offset for offset in offsets if self._oldest <= offset < end} - self._picked)

    def keep(self, items: Sequence[Item], cause: str, reason: str) -> int:
        """Keep those that the settings want kept; how many that were."""
        if cause not in self.options.causes or not items:
            return 0
        kept = 0
        for item in items:
            try:
                self._append(item, cause, reason)
                kept += 1
            except SluiceError as error:
                _log.error("bridge.dead_letter_lost", action=self._action, reason=str(error))
                break
        return kept

    async def show(
        self, limit: int, offsets: Sequence[int] | None = None
    ) -> Sequence[DeadLetterView]:
        """The oldest, or those with these offsets, up to ``limit``."""
        return [_shown(offset, data) for offset, data in await self._read(limit, offsets)]

    async def take(self, limit: int, offsets: Sequence[int] | None = None) -> Sequence[Item]:
        """The same as they were when they were handed to the action; ``forget`` those that were sent again."""
        now_s = self._clock.monotonic_s()
        return [
            from_bytes(_decode(data).item, offset, now_s)
            for offset, data in await self._read(limit, offsets)
        ]

    def forget(self, offsets: Iterable[int]) -> int:
        """Remove those with these offsets; returns how many existed.

        Raises:
            Unavailable: too many are picked out from behind older ones.
        """
        queue = self._opened()
        end = self._oldest + queue.records
        picked = self._picked | {offset for offset in offsets if self._oldest <= offset < end}
        gone = len(picked) - len(self._picked)
        oldest = self._oldest
        while oldest in picked:
            oldest += 1
        if len(picked) - (oldest - self._oldest) > _MOST_PICKED:
            raise Unavailable(
                f"{_MOST_PICKED} dead letters are picked out. Try: send or delete the oldest first"
            )
        self._picked = picked
        self._drop(oldest - self._oldest)
        return gone

    def remove(self) -> int:
        """All are no more, and neither is their queue; how many that were."""
        waiting = self.waiting
        self._queue = None
        if self._picked:
            self._picked.clear()
            self._values.put(PREFIX + self._action, None)
        self._queues.remove(PREFIX + self._action)
        return waiting

    async def committed(self) -> None:
        """Wait until what was kept and forgotten so far is so on disk."""
        await self._opened().committed()

    def _append(self, item: Item, cause: str, reason: str) -> None:
        now_ms = self._clock.now_ns() // 1_000_000
        _, data = to_bytes(item.row, item.message, now_ms)
        letter = _encode(_Letter(data, cause, reason, now_ms, item.attempts))
        queue = self._opened()
        options = self.options
        if (
            queue.records >= options.max_records
            or queue.size_bytes + len(letter) > options.max_bytes
        ):
            self._lost(self._drop(max(1, queue.records // _ROOM)))
        queue.append(letter)

    async def _read(self, limit: int, offsets: Sequence[int] | None) -> Sequence[tuple[int, bytes]]:
        records: list[tuple[int, bytes]] = []
        if not self.waiting:
            return records
        queue = self._opened()
        at = self._oldest
        if offsets is not None:
            for offset in sorted({offset for offset in offsets if offset >= at} - self._picked)[
                :limit
            ]:
                records += await queue.peek(1, offset)
            return records
        while len(records) < limit and (some := await queue.peek(limit - len(records), at)):
            records += [letter for letter in some if letter[0] not in self._picked]
            at = some[-1][0] + 1
        return records

    def _drop(self, count: int) -> int:
        """The oldest records are no more, in the commit that has what was picked out; how many letters that were."""
        self._oldest += self._opened().drop_oldest(count)
        left = {offset for offset in self._picked if offset >= self._oldest}
        letters = count - len(self._picked - left)
        self._picked = left
        self._values.put(PREFIX + self._action, jsontext.encode(sorted(left)) if left else None)
        return letters

    def _opened(self) -> DurableQueue:
        if self._queue is None:
            self._queue = self._queues.open(PREFIX + self._action, max_records=_BIG, max_bytes=_BIG)
            self._oldest = self._queue.done_offset
            kept = self._values.get(PREFIX + self._action)
            self._picked = {
                offset for offset in jsontext.decode(kept or b"[]") if offset >= self._oldest
            }
        return self._queue


def _shown(offset: int, data: bytes) -> DeadLetterView:
    letter = _decode(data)
    item = from_bytes(letter.item, offset, 0.0)
    message = item.message
    return {
        "offset": offset,
        "time_ms": letter.time_ms,
        "cause": letter.cause,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "topic": message.topic,
        "clientid": message.client.client_id,
        "row": _row(item.row),
    }


def _row(row: dict[str, Any]) -> Any:
    """The row, or the beginning of its text where it is long."""
    try:
        text = jsontext.encode_any(row).decode()
    except jsontext.JsonError:
        return text_of(row)[:_SHOWN_TEXT]
    return marked(row) if len(text) <= _SHOWN_TEXT else text[:_SHOWN_TEXT] + "…"
