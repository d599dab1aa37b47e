"""Messages that come from another broker: who is to have each, and when it is acknowledged. No I/O.

A message with QoS 1 or 2 is acknowledged when every source that reads it has said that what it led to is committed, in
the order in which messages came [MQTT-4.6.0-2]. One with QoS 2 has a *position* until its PUBREL: the framework keeps
it in the commit of the message's consequences, so that a message that comes again after a crash is known.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from broker.codec.packets import Publish
from broker.core.topic import levels_match

Levels = tuple[str, ...]
# Messages with QoS 0 that wait for a source; what comes then is dropped and counted.
_MOST_QOS0: Final = 20_000
_MOST_TOPICS: Final = 10_000


def shard_of(packet_id: int) -> str:
    """Shard of the position of a message with QoS 2."""
    return f"id {packet_id}"


class Delivery:
    """One message. ``left`` is how many sources have not said that it is committed."""

    __slots__ = ("left", "packet", "since_s")

    def __init__(self, packet: Publish, since_s: float) -> None:
        self.packet = packet
        self.since_s = since_s
        self.left = 0


class Inbox:
    """The messages that wait for one source. ``arrived`` is called when there is one."""

    def __init__(self, name: str, filters: Sequence[Levels], arrived: Callable[[], None]) -> None:
        self.name = name
        self.filters = filters
        self._arrived = arrived
        self._waiting: deque[Delivery] = deque()

    def wants(self, topic: str) -> bool:
        """True if a filter matches."""
        return any(levels_match(levels, topic) for levels in self.filters)

    def put(self, delivery: Delivery) -> bool:
        """Let it wait; False when there are too many of its kind."""
        if not delivery.packet.qos and len(self._waiting) >= _MOST_QOS0:
            return False
        delivery.left += 1
        self._waiting.append(delivery)
        self._arrived()
        return True

    def take(self, most: int) -> list[Delivery]:
        """The first that wait."""
        waiting = self._waiting
        if len(waiting) <= most:
            self._waiting = deque()
            return list(waiting)
        return [waiting.popleft() for _ in range(most)]

    def __len__(self) -> int:
        return len(self._waiting)


class Releases:
    """Messages with QoS 2 of a session that are not released yet. Outlives connections. ``last`` is the last position
    of earlier ones."""

    def __init__(self, session: int, last: int = 0) -> None:
        self.session = session
        self._last = max(session, last)
        self._positions: dict[int, int] = {}
        self._recorded: set[int] = set()
        self._seen: set[int] = set()

    def next_session(self, now_ns: int) -> Releases:
        """State of a session that begins: no earlier position is of it, whatever the clock says."""
        return Releases(max(self._last + 1, now_ns))

    def position(self, packet_id: int, kept: Callable[[], int | None], now_ns: int) -> int:
        """The position of a message: that of the one with this identifier which was not released, else a new one.

        ``kept`` gives what was committed, for the first message with this identifier in this process.
        """
        number = self._positions.get(packet_id)
        if number is None and packet_id not in self._seen:
            before = kept()
            number = before if before is not None and before >= self.session else None
        if number is None:
            number = max(self._last + 1, now_ns)
        self._last = max(self._last, number)
        self._seen.add(packet_id)
        self._positions[packet_id] = number
        return number

    def is_recorded(self, packet_id: int) -> bool:
        """True if its PUBREC was sent."""
        return packet_id in self._recorded

    def record(self, packet_id: int) -> None:
        """Its PUBREC is being sent."""
        self._recorded.add(packet_id)

    def release(self, packet_id: int) -> None:
        """Its PUBREL has come."""
        self._seen.add(packet_id)
        self._positions.pop(packet_id, None)
        self._recorded.discard(packet_id)


class InboundMessages:
    """The messages of one connection on their way to sources. ``acknowledge`` sends PUBACK or PUBREC."""

    def __init__(
        self, acknowledge: Callable[[Publish], None], dropped: Callable[[str], None]
    ) -> None:
        self._acknowledge = acknowledge
        self._dropped = dropped
        self.inboxes: dict[str, Inbox] = {}
        self._unclaimed: deque[Delivery] = deque()
        self._unacknowledged: deque[Delivery] = deque()
        self._routes: dict[str, list[Inbox]] = {}

    def attach(self, inbox: Inbox) -> None:
        """A source reads from now on; what no one has wanted and it wants is its."""
        self.inboxes[inbox.name] = inbox
        self._routes.clear()
        unclaimed = self._unclaimed
        self._unclaimed = deque()
        for delivery in unclaimed:
            delivery.left = 0
            self._route(delivery)

    def detach(self, name: str) -> None:
        """The source reads no more; what it has not taken is there for the next."""
        inbox = self.inboxes.pop(name, None)
        self._routes.clear()
        if inbox is not None:
            left = inbox.take(len(inbox))
            alone = [delivery for delivery in left if delivery.left == 1]
            self.committed([delivery for delivery in left if delivery.left > 1])
            self._unclaimed.extendleft(reversed(alone))

    def take(self, delivery: Delivery) -> None:
        """A message has come."""
        if delivery.packet.qos:
            self._unacknowledged.append(delivery)
        self._route(delivery)

    def leave_out(self, delivery: Delivery) -> None:
        """A message has come that no one shall have: it is acknowledged in its turn."""
        if delivery.packet.qos:
            self._unacknowledged.append(delivery)
            self._advance()

    def committed(self, deliveries: Sequence[Delivery]) -> None:
        """A source is done with messages."""
        for delivery in deliveries:
            delivery.left -= 1
        self._advance()

    def nobody_reads_since(self) -> float | None:
        """When the first message came that no source wants; None when there is none."""
        return self._unclaimed[0].since_s if self._unclaimed else None

    def give_up_unclaimed(self) -> None:
        """Acknowledge and count what no source wants."""
        unclaimed = self._unclaimed
        self._unclaimed = deque()
        for delivery in unclaimed:
            delivery.left = 0
            self._dropped("nobody_reads")
        self._advance()

    def _route(self, delivery: Delivery) -> None:
        topic = delivery.packet.topic
        matching = self._routes.get(topic)
        if matching is None:
            matching = [inbox for inbox in self.inboxes.values() if inbox.wants(topic)]
            if len(self._routes) >= _MOST_TOPICS:
                self._routes.clear()
            self._routes[topic] = matching
        if matching:
            for inbox in matching:
                if not inbox.put(delivery):
                    self._dropped("queue_full")
        elif delivery.packet.qos or len(self._unclaimed) < _MOST_QOS0:
            delivery.left = 1  # the source that will take it
            self._unclaimed.append(delivery)
        else:
            self._dropped("queue_full")

    def _advance(self) -> None:
        waiting = self._unacknowledged
        while waiting and not waiting[0].left:
            self._acknowledge(waiting.popleft().packet)
