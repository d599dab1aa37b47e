"""What came from another cell: live messages by number, and records of its session log by offset.

A TAKEN frame at the end of a turn answers both. The position in the log is stored in the commit group that holds what
of its records is kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from broker.cluster.frames import (
    OF_LOG,
    Frame,
    Hello,
    Kept,
    LoggedRecord,
    LogRecords,
    Taken,
    decoded,
    encoded,
)
from broker.cluster.inbox import Inbox, OwnRoutes
from broker.cluster.peer import Peer
from broker.cluster.positions import Positions
from broker.core.errors import Unavailable
from broker.observe.log import get_logger

_log = get_logger(__name__)

# Released positions or offsets in one TAKEN frame.
_MOST_RELEASED: Final = 32_768


class Receiver:
    """Takes what another cell sends, and remembers how far that came."""

    def __init__(self, peer: Peer, positions: Positions, own_routes: OwnRoutes) -> None:
        self._peer = peer
        self._hub = peer.hub
        self._positions = positions
        self._own_routes = own_routes
        self._incarnations = 0
        self.heard = ""
        """Incarnation of the cell that the live messages are of."""
        self.live_count = 0
        self.held: set[int] = set()
        self.log_heard, self.kept = positions.at(peer.number)
        self.came = self._sealed_at = self.kept
        """Offset up to which records came; committed up to ``kept``."""
        self._given = self.kept
        """Offset up to which subscribers without a session in the store have them."""
        self._logged: deque[LogRecords] = deque()
        """Frames that came while a commit group with earlier ones is written: were that to fail, the position in a
        later group would be wrong."""
        self._is_open = self._is_flying = False
        self.take_retained: Callable[[LoggedRecord], None]
        """Takes a record for this cell's retained store."""
        self._hub.context.writer.before_commit(self._sealed)
        self._inbox = self._new_inbox()
        self._answers: dict[int, tuple[list[int], list[int]]] = {}
        """Positions or offsets held and released since the last TAKEN, by its flags."""

    def _new_inbox(self) -> Inbox:
        self._incarnations += 1
        released = partial(self._released, self._incarnations)
        return Inbox(self._hub, self._own_routes, released)

    def begin(self, hello: Hello, said: Hello) -> None:
        """The cell said HELLO: forget what another incarnation sent, or the positions in another log. Between ``said``,
        this cell's own, and the answer, subscribers may have taken messages, and a commit may have ended."""
        if hello.incarnation != self.heard:
            self.heard = hello.incarnation
            self.live_count = 0
            self.held.clear()
            self._answers.clear()
            self._inbox = self._new_inbox()
        elif released := set(said.held) - self.held:
            self._answer(0)[1].extend(released)
        self._inbox.begin()
        if hello.log != self.log_heard:
            self.log_heard = hello.log
            self.kept = self.came = self._sealed_at = self._given = 0
        elif self.kept > said.kept:
            self._peer.send(encoded(Kept(self.kept)))

    def end(self) -> None:
        """The link is down: records that wait are sent again."""
        self._logged.clear()

    def take_live(self, frame: Frame) -> None:
        """Hand live messages on."""
        inbox = self._inbox
        before = inbox.qos0
        count, held = inbox.take_live(frame.body, self.live_count)
        self.live_count += count
        self._peer.received_live.value += count + inbox.qos0 - before
        if count:
            self.held.update(held)
            self._answer(0)[0].extend(held)

    def _answer(self, flags: int) -> tuple[list[int], list[int]]:
        """Held and released positions or offsets of the next TAKEN, which leaves at the end of this turn."""
        if not self._answers:
            self._hub.context.defer(self._send_taken)
        return self._answers.setdefault(flags, ([], []))

    def _send_taken(self) -> None:
        answers = self._answers
        self._answers = {}
        for flags, (held, released) in answers.items():
            before = self.came if flags & OF_LOG else self.live_count
            self._peer.send(encoded(Taken(before, held, released[:_MOST_RELEASED]), flags))
            for at in range(_MOST_RELEASED, len(released), _MOST_RELEASED):
                part = released[at : at + _MOST_RELEASED]
                self._peer.send(encoded(Taken(before, [], part), flags))

    def _released(self, incarnation: int, key: int) -> None:
        """Slow subscribers have a message now: a live one, or with a negative key a record."""
        if incarnation != self._incarnations:
            return
        if key < 0:
            self._answer(OF_LOG)[1].append(-key - 1)
        elif key in self.held:
            self.held.discard(key)
            self._answer(0)[1].append(key)

    def take_logged(self, frame: Frame) -> None:
        """Hand records on, and store the position in the commit group that holds what of them is kept."""
        self._take_logged(decoded(LogRecords, frame))

    def _take_logged(self, frame: LogRecords) -> None:
        if self._is_flying:
            self._logged.append(frame)
            return
        try:
            self._take_records(frame.records)
            self.came = max(self.came, frame.following)
        except Unavailable as error:  # the store is opened again; what is left is sent again
            _log.warning("link.store_not_read", peer=self._peer.number, reason=str(error))
            self._peer.hang_up()
        finally:  # those before a record that breaks the rules are in the commit group
            self._positions.keep_at(self._peer.number, self.log_heard, self.came)
            if not self._is_open:
                self._is_open = True
                self._hub.context.writer.when_committed(self._committed)

    def _take_records(self, records: Iterable[LoggedRecord]) -> None:
        held, _ = self._answer(OF_LOG)
        for record in records:
            if record.offset < self.came:
                continue
            if record.stamp:
                self.take_retained(record)
            else:
                is_again = record.offset < self._given
                if self._inbox.take_logged(record, -record.offset - 1, is_again=is_again):
                    held.append(record.offset)
            self._peer.received_logged.value += 1
            self.came = record.offset + 1
            self._given = max(self._given, self.came)

    def _sealed(self) -> None:
        if self._is_open:
            self._is_open = False
            self._is_flying = True
            self._sealed_at = self.came

    def _committed(self, error: BaseException | None) -> None:
        self._is_flying = False
        waiting = self._logged
        self._logged = deque()
        if error is not None:  # sent again from the position that is committed
            self.came = self.kept
            self._peer.hang_up()
            return
        self.kept = self._sealed_at
        self._peer.send(encoded(Kept(self.kept)))
        for frame in waiting:
            if self._peer.is_up:  # else all that waits is sent again
                self._take_logged(frame)
