"""Another cell as a subscriber: to the router it is a client that speaks MQTT 5, to the session log a durable session.

Packets of QoS 0 go into the link's box in passing, as into a client's. A message of QoS 1 is a *transit* until the
other cell has taken it: its publisher's acknowledgement waits for that, and a new connection of the link sends it
again, from the position that the other cell names. Messages of QoS 2, and all for durable sessions there, go by the
session log (``broker.cluster.log_sender``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Final

from broker.codec.outgoing import Outgoing
from broker.core.receipt import Acknowledgement
from broker.session.outbox import Outbox, PendingWrites
from broker.session.state import UNLIMITED_BYTES

if TYPE_CHECKING:
    from broker.cluster.link import Link

# Live messages that the other cell has not taken: from half of this on publishers wait.
MAX_TRANSITS: Final = 8192
MAX_TRANSIT_BYTES: Final = 4 * 1024 * 1024
# Bytes of packets that wait for the kernel: from this on publishers wait, and from twice as much on QoS 0 is dropped.
MAX_UNSENT_BYTES: Final = 4 * 1024 * 1024
# The packet identifier of a message in a LIVE frame says nothing: positions are counted.
_PACKET_ID: Final = b"\0\1"


class Transit:
    """A message of QoS 1 or 2 that the other cell has not taken."""

    __slots__ = ("_acknowledgement", "_is_over", "_link", "_size_bytes", "outgoing", "packet")

    def __init__(self, link: Link, packet: bytes) -> None:
        self._link = link
        self.packet = packet
        self.outgoing: Outgoing | None = None
        """The message while its record is not committed."""
        self._acknowledgement: Acknowledgement | None = None
        self._size_bytes = 0
        self._is_over = False

    def add(self, acknowledgement: Acknowledgement, size_bytes: int) -> None:
        """Withhold the acknowledgement of the message until it is taken."""
        self._acknowledgement = acknowledgement
        self._size_bytes = size_bytes
        if self._is_over:
            self.end()

    def end(self) -> None:
        """The other cell has it, or never will."""
        self._is_over = True
        acknowledgement = self._acknowledgement
        if acknowledgement is not None:
            self._acknowledgement = None
            self._link.withholding.let_go(acknowledgement, self._size_bytes)


class LinkBox(Outbox):
    """Packets that wait to be put into a frame: at the end of a turn, or once the kernel took the one before."""

    __slots__ = ("_counted", "_link")

    def __init__(self, pending: PendingWrites, link: Link) -> None:
        super().__init__(pending, link.write)
        self._link = link
        self._counted = 0

    def add(self, chunk: bytes) -> None:
        """A packet that goes the careful way, since the link is full."""
        link = self._link
        if link.is_crowded and not link.takes_more():
            self.messages_out -= 1
            link.count_dropped("link_full", 1)
            return
        super().add(chunk)

    def flush(self) -> int:
        self.is_dirty = False
        link = self._link
        if link.is_busy:
            link.check_crowd()
            return 0
        chunks = self.chunks[:]
        self.chunks.clear()
        return link.send_live(chunks) if chunks else 0

    def take_count(self) -> int:
        """Number of QoS 0 messages that connections added since the last call."""
        count = self.messages_out - self._counted
        self._counted = self.messages_out
        return count


class _ClosedWindow:
    """The window of a subscriber that wants to see each message of QoS 1 and 2."""

    quota = 0


_CLOSED: Final = _ClosedWindow()


class RemoteCell:
    """Another cell among the subscribers of a topic: for filters with live subscribers only, or durable ones too.

    Has what the router and the ways of a message look at of ``broker.session.session.Session``.
    """

    __slots__ = ("box", "client_id", "fast", "is_durable", "is_waited_for", "link", "name")

    is_v5 = True
    is_ended = has_to_wait = keeps_qos0 = is_behind = False
    may_have = None
    max_packet_bytes = UNLIMITED_BYTES
    window = _CLOSED
    queue: Sequence[object] = ()
    owner = None

    def __init__(self, link: Link, *, is_durable: bool) -> None:
        self.link = link
        self.is_durable = is_durable
        self.client_id = f"\0cell:{link.number}"
        self.name = f"cell {link.number}"
        self.box: Outbox | None = None
        self.fast: Outbox | None = None
        self.is_waited_for = True

    @property
    def outlives(self) -> bool:
        """True if it gets messages without a connection, by the session log."""
        return self.is_durable

    @property
    def is_away(self) -> bool:
        """True if the link is down."""
        return self.box is None

    def take_packets(self, packets: bytes, count: int) -> bool:
        """Send ``count`` encoded QoS 0 PUBLISH; False if ``deliver`` must check each first."""
        box = self.fast
        if box is None:
            return False
        box.chunks.append(packets)
        if not box.is_dirty:
            box.mark()
        self.link.sent_live.value += count
        return True

    def deliver(
        self, outgoing: Outgoing, qos: int, retain: bool, identifiers: tuple[int, ...]
    ) -> None:
        """Take a message that is not in the session log."""
        del identifiers
        if qos:
            self.link.send_acknowledged(self, outgoing, qos, retain)
        else:
            self.link.send_qos0(outgoing, retain)

    def accept_logged(
        self, offset: int, outgoing: Outgoing, qos: int, retain: bool, identifiers: tuple[int, ...]
    ) -> None:
        """Take a message that was committed to the session log; ``pump`` sends it."""
        del identifiers
        self.link.log.accept(offset, outgoing, qos, retain)

    def pump(self) -> None:
        """Send what was accepted."""
        self.link.log.flush()

    def drop(self, outgoing: Outgoing, why: str) -> None:
        """Count a message that it does not get."""
        del outgoing
        self.link.count_dropped(why, 1)

    def count_dropped(self, why: str, count: int) -> None:
        """Count messages that it does not get since the link is down."""
        del why
        self.link.count_dropped("link_lost", count)


class Transits:
    """The live messages of QoS 1 that were sent and not taken, in order, by position."""

    def __init__(self) -> None:
        self._waiting: deque[Transit] = deque()
        self._first = 0
        """Position of the first that waits."""
        self._held: dict[int, Transit] = {}
        """By position, those that arrived and wait for slow subscribers."""
        self._is_broken = False
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._waiting) + len(self._held)

    def add(self, transit: Transit) -> None:
        """A message is sent."""
        self._waiting.append(transit)
        self.size_bytes += len(transit.packet)

    def taken(self, before: int, held: Sequence[int], released: Sequence[int]) -> bool:
        """End those that the other cell has; False if it names some that were never sent."""
        count = before - self._first
        if not 0 <= count <= len(self._waiting):
            return False
        keeps = set(held)
        for position in range(self._first, before):
            transit = self._waiting.popleft()
            self.size_bytes -= len(transit.packet)
            transit.packet = b""
            if position in keeps:
                self._held[position] = transit
            else:
                transit.end()
        self._first = before
        for position in released:
            if (transit_held := self._held.pop(position, None)) is not None:
                transit_held.end()
        return True

    def resume(self, arrived: int, held: Sequence[int]) -> list[bytes] | None:
        """Packets to send again to a cell at which so many arrived; None if it cannot be."""
        if self._is_broken:
            self._is_broken = False
            self._first = arrived
        if not self.taken(arrived, held, ()):
            return None
        keeps = set(held)
        self.taken(arrived, (), [position for position in self._held if position not in keeps])
        return [transit.packet for transit in self._waiting]

    def end(self) -> int:
        """The other cell has ended, or was away for too long; returns how many it did not get."""
        waiting = self._waiting
        held = self._held
        self._waiting = deque()
        self._held = {}
        self.size_bytes = 0
        self._is_broken = True
        for transit in (*waiting, *held.values()):
            transit.end()
        return len(waiting)

    @property
    def progress(self) -> Hashable:
        """Changes with each message that is taken."""
        return self._first, len(self._held)


def packet_of(outgoing: Outgoing, qos: int, now_ns: int, *, retain: bool) -> bytes:
    """The PUBLISH as it is sent to another cell."""
    head, tail = outgoing.parts_for(True, qos, retain, (), now_ns)
    return head + _PACKET_ID + tail if qos else head + tail
