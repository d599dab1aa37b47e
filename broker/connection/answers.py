"""The answers of one connection, in order: while one waits for the commit that holds what it acknowledges, later ones
queue behind it. All that one commit releases leave in one write."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, Protocol

from broker.connection.context import Context
from broker.core import reason
from broker.core.memory import NOTHING, filled
from broker.session.session import Session

Answer = bytes | Callable[[], None]
"""An answer that waits for a commit, or what is to be done then."""
_PUBACK: Final = 0x40
_PUBREC: Final = 0x50
_SHORT: Final = 5
"""Size of a PUBACK or PUBREC without properties; only refusals have some."""


class Answering(Protocol):
    """A connection as its answers see it."""

    is_connected: bool
    is_closed: bool
    is_v5: bool
    session: Session

    def reply(self, packet: bytes) -> None:
        """Send a whole packet in this turn of the loop."""

    def on_internal_error(self) -> None:
        """A fault of the broker's own, or of its store."""


class StoredPublish(NamedTuple):
    """A publish that left something in the commit group, and what is lost with it when that cannot be written."""

    packet_id: int
    is_wanted: bool
    """Somebody was to get it."""
    is_refused: bool = False
    """Its answer says so whatever becomes of the group."""


class Answers:
    """``waiting`` are gathered in the present read, with the publishes that they acknowledge in ``stored``; ``batches``
    are those of earlier reads, each tied to a commit. ``unacknowledged`` counts the PUBACKs among both.

    The connection comes with each call: with a reference to it here, one that ended would wait for the collector.
    """

    __slots__ = ("_context", "batches", "stored", "unacknowledged", "waiting")

    def __init__(self, context: Context) -> None:
        self._context = context
        self.waiting: list[Answer] = []
        self.stored: list[StoredPublish] = []
        self.batches: deque[tuple[list[Answer], list[StoredPublish]]] = NOTHING
        self.unacknowledged = 0

    def add(self, c: Answering, data: Answer, *, waits: bool) -> None:
        """Send ``data``, or do it when it is a callable: in order, and after the present commit group if it
        ``waits``."""
        if waits or self.waiting or self.batches:
            self.waiting.append(data)
            self.unacknowledged += _is_puback(data)
        else:
            _release(c, data)

    def seal(self, c: Answering) -> None:
        """Tie the answers gathered in this read to the commit group that holds what they acknowledge."""
        self.batches = filled(self.batches)
        self.batches.append((self.waiting, self.stored))
        self.waiting, self.stored = [], []
        self._context.writer.when_committed(partial(self._committed, c))

    def _committed(self, c: Answering, error: BaseException | None) -> None:
        waiting, stored = self.batches.popleft()
        if error is not None:
            self._not_stored(c, waiting, stored)
            return
        for data in waiting:
            if c.is_closed:  # before, or by one of these
                return
            self.unacknowledged -= _is_puback(data)
            _release(c, data)

    def _not_stored(self, c: Answering, waiting: list[Answer], stored: list[StoredPublish]) -> None:
        """What the group held was not stored: say so for its publishes, and close where the protocol has no word for
        it.

        Other answers only queued behind them. Those of refusals stay as they are; a resend of what an earlier group
        holds is acknowledged as ever.
        """
        self._context.figures.not_stored.value += sum(one.is_wanted for one in stored)
        if stored and c.is_connected and c.session.inbound is not None:
            c.session.inbound.forget(one.packet_id for one in stored)
        if c.is_closed:
            return
        lost = {one.packet_id for one in stored if not one.is_refused}
        if not all(isinstance(data, bytes) and data[0] in (_PUBACK, _PUBREC) for data in waiting) or (
            stored and not c.is_v5
        ):
            c.on_internal_error()
            return
        for data in waiting:
            assert isinstance(data, bytes)
            self.unacknowledged -= _is_puback(data)
            if len(data) <= _SHORT and int.from_bytes(data[2:4]) in lost:
                c.reply(bytes((data[0], 3)) + data[2:4] + bytes((reason.QUOTA_EXCEEDED,)))
            else:
                c.reply(data)


def _is_puback(data: Answer) -> bool:
    return isinstance(data, bytes) and data[0] == _PUBACK


def _release(c: Answering, data: Answer) -> None:
    if isinstance(data, bytes):
        c.reply(data)
    else:
        data()
