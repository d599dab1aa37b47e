"""Packets of a durable session that may leave before a record of them is on disk, and packets that wait for one.

After a crash the same message is sent again under the same identifier. Identifiers are given to messages in the order
of the log, so the record of a session, the subscriptions and the log predict which message has which: a QoS 1 PUBLISH
leaves as soon as its message is committed, and the record that notes it is written a little later, many changes at a
time. What the record on disk does not predict waits until one is there that does (``take_held``): QoS 2, so that
nothing is doubled, messages that do not come from the log, and whatever follows a message that was passed over.
"""

from __future__ import annotations

from typing import Final

from broker.session.delivery import Delivery
from broker.session.window import MAX_PACKET_ID, Window

# Identifiers that are given before a record is written that notes them; far from coming round.
PREDICTED_MAX: Final = 16_384


class IdPrediction:
    """Decides which packets of a durable session may leave before its record is on disk.

    ``is_true`` means that what was sent until now is as a record would predict it.
    """

    __slots__ = ("_first_id", "_held", "_is_settling", "_is_true", "_record", "_window")

    def __init__(self, window: Window, *, is_true: bool = True) -> None:
        self._window = window
        self._held: list[bytes] = []
        self._is_true = (
            is_true  # of the record on disk: which identifiers the messages in the log get
        )
        self._is_settling = False  # a record that predicts them again is being written
        self._first_id = window.next_id  # the first that the last record does not know
        self._record = 0  # which one that was

    def upset(self) -> None:
        """A message of the log gets no identifier or not the next one, or something else gets one."""
        self._is_true = False

    def freed(self, packet_id: int) -> None:
        """An identifier is in flight no more. Where it is about to be given again, the record has it as taken."""
        if (packet_id - self._window.next_id) % MAX_PACKET_ID < PREDICTED_MAX:
            self._is_true = False

    def covers(self, delivery: Delivery) -> bool:
        """True if the record on disk predicts the identifier of this QoS 1 message."""
        if delivery.offset < 0 or delivery.holder is not None:
            self._is_true = False
        if not self._is_true or self._is_settling:
            return False
        return (self._window.next_id - self._first_id) % MAX_PACKET_ID < PREDICTED_MAX

    @property
    def is_holding(self) -> bool:
        """True if packets wait for a record: later packets then wait too."""
        return bool(self._held) or self._is_settling

    def hold(self, data: bytes) -> None:
        """Keep a packet until the next record is there."""
        self._held.append(data)

    def let_go(self) -> None:
        """The connection that what is held was for is gone."""
        self._held.clear()

    def take_held(self, number: int) -> list[bytes]:
        """Packets that may leave once the record made now is committed; ``recorded`` follows with this number."""
        packets = self._held
        self._held = []
        self._record = number
        self._is_settling = bool(packets) or self._is_settling or not self._is_true
        self._is_true = True
        self._first_id = self._window.next_id
        return packets

    def recorded(self, number: int, *, is_written: bool) -> None:
        """The record of that number was committed, or could not be written; what it held back leaves now."""
        if not is_written:
            self._is_true = False
        if number == self._record:
            self._is_settling = False
