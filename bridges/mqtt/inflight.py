"""Messages on their way to another broker: packet identifiers, windows, answers, and what is sent again. No I/O.

::

    QoS 1   PUBLISH ───▶ PUBACK: done
    QoS 2   PUBLISH ───▶ PUBREC, then PUBREL ───▶ PUBCOMP: done

A session outlives its connections, and so does its window. When the connection breaks, the batches that wait fail and
bring the same messages again. Until then those that were on the way stay where they are. If the other broker still
has the session, they continue with their packet identifiers [MQTT-4.4.0-1], in the order in which they were sent, and a
message that is brought again takes the place that it had: so QoS 2 stays exactly once. Otherwise they are forgotten,
and sent as new ones when they are brought.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from typing import Any, Final

from broker.codec.packets import Publish

# Windows for which messages that are done while no batch waits for them are kept, in case they are brought again.
_REMEMBERED: Final = 4


class InflightMessage:
    """One message on its way."""

    __slots__ = ("batch", "error", "identity", "is_done", "is_received", "packet", "place")

    def __init__(
        self, packet: Publish, identity: Hashable, batch: Batch | None, place: int
    ) -> None:
        self.packet = packet
        self.identity = identity
        self.batch = batch
        self.place = place
        self.is_received = self.is_done = False
        self.error: Exception | None = None


class InflightWindow:
    """The messages of one session. ``limit`` is how many may be on the way; identifiers are 1 to ``limit``."""

    def __init__(self, limit: int) -> None:
        self.limit = self.window = limit
        self._free = deque(range(1, limit + 1))
        self._unconfirmed: dict[int, InflightMessage] = {}
        """By packet identifier, in the order sent."""
        self._to_resend: deque[InflightMessage] = deque()
        self._left_behind: dict[Hashable, deque[InflightMessage]] = {}
        self._done_unasked: deque[InflightMessage] = deque()

    def __len__(self) -> int:
        return len(self._unconfirmed)

    @property
    def has_room(self) -> bool:
        """True if one more message may leave now; those that are sent again come first."""
        return not self._to_resend and len(self._unconfirmed) < self.window and bool(self._free)

    @property
    def next_id(self) -> int:
        """The identifier of the next message, where there is room."""
        return self._free[0]

    # A connection begins and ends

    def connected(self, *, is_resumed: bool, window: int) -> None:
        """There is a connection that takes ``window`` messages at once; ``is_resumed`` when the session is known."""
        self.window = min(self.limit, window)
        self._to_resend.clear()
        if is_resumed:
            self._to_resend.extend(self._unconfirmed.values())
            return
        self._free = deque(range(1, self.limit + 1))
        self._unconfirmed.clear()
        self._left_behind = {}
        self._done_unasked.clear()

    def to_resend(self) -> list[InflightMessage]:
        """The messages to send again now: PUBLISH with DUP, or PUBREL where ``is_received``. Fills the room."""
        room = self.window - (len(self._unconfirmed) - len(self._to_resend))
        return [self._to_resend.popleft() for _ in range(min(room, len(self._to_resend)))]

    def leave(self, batch: Batch) -> None:
        """The batch waits no more; its messages stay in flight."""
        for sent in self._unconfirmed.values():
            if sent.batch is batch:
                sent.batch = None
                self._left_behind.setdefault(sent.identity, deque()).append(sent)

    # Messages

    def reclaim(self, identity: Hashable, batch: Batch, place: int) -> bool:
        """Return whether that message is in flight already, or has arrived since; ``batch`` gets its outcome."""
        if not self._left_behind:
            return False
        behind = self._left_behind.get(identity)
        if not behind:
            return False
        sent = behind.popleft()
        if not behind:
            del self._left_behind[identity]
        if sent.is_done:
            batch.settle(place, sent.error)
        else:
            sent.batch = batch
            sent.place = place
        return True

    def send(self, packet: Publish, identity: Hashable, batch: Batch, place: int) -> None:
        """The packet leaves with ``next_id``; there must be room."""
        self._unconfirmed[self._free.popleft()] = InflightMessage(packet, identity, batch, place)

    # Answers of the other broker

    def topic_of(self, packet_id: int) -> str:
        """The topic of the message with that identifier; empty when there is none."""
        sent = self._unconfirmed.get(packet_id)
        return "" if sent is None else sent.packet.topic

    def received(self, packet_id: int) -> bool:
        """A PUBREC that takes the message has come; False when there is no such message."""
        sent = self._unconfirmed.get(packet_id)
        if sent is None or sent.packet.qos != 2:
            return False
        sent.is_received = True
        sent.packet.payload = b""  # is not sent again
        return True

    def completed(self, packet_id: int) -> None:
        """A PUBCOMP has come; one for which there was no PUBREC is about an older message."""
        sent = self._unconfirmed.get(packet_id)
        if sent is not None and sent.is_received:
            self.done(packet_id)

    def done(self, packet_id: int, error: Exception | None = None) -> None:
        """A PUBACK, or a PUBREC that refuses."""
        sent = self._unconfirmed.pop(packet_id, None)
        if sent is None:
            return
        self._free.append(packet_id)
        if sent.batch is not None:
            sent.batch.settle(sent.place, error)
            return
        sent.is_done = True
        sent.error = error
        self._done_unasked.append(sent)
        if len(self._done_unasked) > _REMEMBERED * self.limit:
            self._forget(self._done_unasked.popleft())

    def _forget(self, sent: InflightMessage) -> None:
        behind = self._left_behind.get(sent.identity)
        if behind and sent in behind:
            behind.remove(sent)
            if not behind:
                del self._left_behind[sent.identity]


class Batch:
    """Messages that are sent together; ``when_settled`` is called when all have an outcome."""

    __slots__ = ("answers", "left", "when_settled")

    def __init__(self, count: int, when_settled: Any) -> None:
        self.answers: list[Any] = [_UNSETTLED] * count
        self.left = count
        self.when_settled = when_settled

    def settle(self, place: int, error: Exception | None) -> None:
        """The message at that place was confirmed, or failed with ``error``."""
        if self.answers[place] is _UNSETTLED:
            self.answers[place] = error
            self.left -= 1
            if not self.left:
                self.when_settled()

    def fail_rest(self, error: Exception) -> None:
        """Fail the unsettled messages: this connection will not settle them."""
        for place, answer in enumerate(self.answers):
            if answer is _UNSETTLED:
                self.settle(place, error)

    @property
    def result(self) -> Sequence[Any] | None:
        """None when all went well, else an error or None for each."""
        return self.answers if any(answer is not None for answer in self.answers) else None


_UNSETTLED: Final = object()
