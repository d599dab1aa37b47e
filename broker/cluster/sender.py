"""What is sent to another cell: packets in LIVE frames, with what waits for them to be taken, and the session log.

Packets leave at the end of a turn of the loop, or once the kernel has taken those before, so frames grow with load.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from broker.cluster.frames import (
    OF_LOG,
    Frame,
    FrameError,
    FrameType,
    Hello,
    Kept,
    Taken,
    decoded,
    header,
)
from broker.cluster.log_sender import LogSender
from broker.cluster.peer import Peer
from broker.cluster.transits import MAX_TRANSIT_BYTES, MAX_TRANSITS, Transit, Transits
from broker.codec.framing import frame_at
from broker.codec.outgoing import Outgoing
from broker.routing.router import Target
from broker.session.outbox import Outbox
from broker.session.state import UNLIMITED_BYTES

# Bytes of packets in one frame, unless one alone is larger.
_FRAME_BYTES: Final = 256 * 1024
# Bytes of packets that wait for the kernel: from half of this on publishers wait.
MAX_UNSENT_BYTES: Final = 4 * 1024 * 1024
# The packet identifier of a message in a LIVE frame says nothing: positions are counted.
_PACKET_ID: Final = b"\0\1"


class Sender:
    """Sends another cell what its subscribers are to get."""

    def __init__(self, peer: Peer, kept: int | None) -> None:
        self.peer = peer
        self._hub = peer.hub
        self.is_crowded = False
        self.box = LinkBox(self)
        self.log = LogSender(peer, kept, self.send_in_order, self.uncork)
        self.live = RemoteCell(peer, self, is_durable=False)
        self.durable = RemoteCell(peer, self, is_durable=True)
        self.cells = (self.live, self.durable)
        self._transits = Transits()
        self._barrier = 0
        """Live messages of QoS 1 wait until the other cell has committed all below this offset; 0 for none."""
        self._corked: list[Transit] = []

    def resume(self, hello: Hello, incarnation: str) -> list[bytes]:
        """Packets to send again to a cell that said HELLO to this incarnation of this cell.

        Raises:
            FrameError: it has more than was sent.
        """
        if hello.heard != incarnation:
            self.end_transits()
            self._transits = Transits()
            return []
        again = self._transits.resume(hello.live, hello.held)
        if again is None:
            raise FrameError(f"HELLO frame: expected fewer live messages than {hello.live}")
        return again

    def begin(self, again: Sequence[bytes], kept: int, came: int) -> None:
        """The link is up. The other cell has committed all of the log below ``kept``, and got all below ``came``."""
        for cell in self.cells:
            cell.box = cell.fast = self.box
            cell.is_waited_for = True
        self.is_crowded = False
        if again:
            self.send_live(again)
        self.log.begin(kept, came)

    def end(self) -> None:
        """The link is down."""
        lost = sum(map(_qos0_in, self.box.take()))
        self._hub.context.figures.sent[0].value -= self.box.take_count()
        for cell in self.cells:
            cell.box = cell.fast = None
            self._hub.backpressure.relieved(cell)
        self.is_crowded = False
        self.peer.count_dropped("link_lost", lost)
        self.log.end()

    def end_transits(self) -> None:
        """Live messages that the other cell has not taken are lost: their subscribers are gone."""
        self._corked.clear()
        self.peer.count_dropped("link_lost", self._transits.end())

    def send_in_order(self, frame: bytes) -> None:
        """Send a frame behind the packets that wait."""
        if self.box.chunks:
            self.send_live(self.box.take())
        self.peer.send(frame)

    def write(self, data: bytes) -> None:
        """See ``Outbox``: packets go by ``send_live``."""
        self.send_live([data])

    def send_live(self, packets: Sequence[bytes]) -> int:
        """Send packets in as few frames as they fit into; returns their bytes."""
        count = self.box.take_count()
        if count:  # counted as sent to clients where they were handed out
            self._hub.context.figures.sent[0].value -= count
            self.peer.sent_live.value += count
        size = 0
        total = 0
        parts: list[bytes] = []
        for packet in packets:
            if size and size + len(packet) > _FRAME_BYTES:
                self.peer.send(header(FrameType.LIVE, size) + b"".join(parts))
                parts = []
                total += size
                size = 0
            parts.append(packet)
            size += len(packet)
        self.peer.send(header(FrameType.LIVE, size) + b"".join(parts))
        return total + size

    def send_qos0(self, outgoing: Outgoing, retain: bool) -> None:
        """Send a message of QoS 0, or drop and count it."""
        if not self.peer.is_up:
            self.peer.count_dropped("link_lost", 1)
            return
        self.peer.sent_live.value += 1
        packet = packet_of(outgoing, 0, self._hub.context.clock.now_ns(), retain=retain)
        if self.is_crowded and not self.takes_more():
            self.peer.sent_live.value -= 1
            self.peer.count_dropped("link_full", 1)
            return
        self.box.add_sent(packet)

    def send_acknowledged(
        self, cell: RemoteCell, outgoing: Outgoing, qos: int, retain: bool
    ) -> None:
        """Send a message of QoS 1 or 2: live, or by the session log where it must outlive this process or would
        overtake others."""
        message = outgoing.message
        if qos == 2:
            addressed = Outgoing(
                message.changed(message.topic, message.payload, qos, retain, message.properties)
            )
            target: Target[Any] = Target(self.cells[1], qos, retain, ())
            self._hub.session_log.keep(addressed, [target], True)
            return
        transits = self._transits
        is_over = len(transits) >= MAX_TRANSITS or transits.size_bytes >= MAX_TRANSIT_BYTES
        receipt = message.receipt
        transit = Transit(
            self._hub.withholding,
            packet_of(outgoing, qos, self._hub.context.clock.now_ns(), retain=retain),
        )
        waits = self._hub.withholding.wait_for(transit, outgoing.size_bytes, receipt)
        if not waits and (is_over or (receipt is not None and receipt.is_over)):
            self.peer.count_dropped("link_full", 1)
            return
        transits.add(transit)
        self.peer.sent_live.value += 1
        if self._barrier:
            transit.is_corked = True
            self._corked.append(transit)
        elif self.peer.is_up:
            self.box.add_sent(transit.packet)
        if len(transits) * 2 > MAX_TRANSITS or transits.size_bytes * 2 > MAX_TRANSIT_BYTES:
            self._crowd()
            self._hub.backpressure.crowded(cell)

    def hold_up_live(self) -> None:
        """Messages for a filter came by the session log until now: those that come live must not overtake them."""
        self._barrier = self._hub.session_log.since_offset
        self._hub.context.writer.when_committed(lambda _: self.uncork())

    def uncork(self) -> None:
        """Send what had to wait for the session log, once that is with the other cell."""
        if not self._barrier or not self.log.is_past(self._barrier):
            return
        self._barrier = 0
        corked = self._corked
        self._corked = []
        for transit in corked:
            transit.is_corked = False
            if self.peer.is_up:
                self.box.add_sent(transit.packet)

    def check_crowd(self) -> None:
        """While the kernel takes no more, and much waits, each further packet is counted before it may wait too."""
        if not self.is_crowded and self.box.waiting_bytes() >= MAX_UNSENT_BYTES // 2:
            self._crowd()

    def _crowd(self) -> None:
        if self.peer.is_up:
            self.is_crowded = True
            for cell in self.cells:
                cell.fast = None

    def takes_more(self) -> bool:
        """One more packet of QoS 0 comes to a link that is crowded; returns whether it may wait."""
        cell = self.cells[0]
        self._hub.backpressure.crowded(cell)
        return self.box.waiting_bytes() < (
            MAX_UNSENT_BYTES if cell.is_waited_for else MAX_UNSENT_BYTES // 2
        )

    def pause(self) -> None:
        """The kernel takes no more: packets wait for the next frame."""
        self.peer.is_busy = True

    def go_on(self) -> None:
        """The kernel has taken what was written."""
        self.peer.is_busy = False
        self.box.flush()
        self._relieve()

    def _relieve(self) -> None:
        transits = self._transits
        if (
            self.is_crowded
            and not self.peer.is_busy
            and len(transits) * 4 <= MAX_TRANSITS
            and transits.size_bytes * 4 <= MAX_TRANSIT_BYTES
        ):
            self.is_crowded = False
            for cell in self.cells:
                cell.fast = cell.box
                self._hub.backpressure.relieved(cell)

    def take_taken(self, frame: Frame) -> None:
        """Subscribers of the other cell have messages."""
        taken = decoded(Taken, frame)
        if frame.flags & OF_LOG:
            self.log.taken(taken.before, taken.held, taken.released)
        elif not self._transits.taken(taken.before, taken.held, taken.released):
            raise FrameError(f"TAKEN frame: expected fewer live messages than {taken.before}")
        self._relieve()

    def take_kept(self, frame: Frame) -> None:
        """The other cell committed records."""
        if not self.log.take_kept(decoded(Kept, frame).offset):
            raise FrameError("KEPT frame: expected an offset below the next record's")
        self.uncork()


class LinkBox(Outbox):
    """Packets that wait to be put into a frame: at the end of a turn, or once the kernel took the one before."""

    __slots__ = ("_counted", "_sender", "_weighed", "_weighed_bytes")

    def __init__(self, sender: Sender) -> None:
        super().__init__(sender.peer.hub.context.pending_writes, sender.write)
        self._sender = sender
        self._counted = self._weighed = self._weighed_bytes = 0

    def take(self) -> list[bytes]:
        """Take out what waits."""
        chunks = self.chunks[:]
        self.chunks.clear()
        self._weighed = self._weighed_bytes = 0
        return chunks

    def waiting_bytes(self) -> int:
        """Bytes that wait. Each chunk is looked at once, since many may wait and this is asked for each further one."""
        chunks = self.chunks
        if self._weighed < len(chunks):
            self._weighed_bytes += sum(map(len, chunks[self._weighed :]))
            self._weighed = len(chunks)
        return self._weighed_bytes

    def add(self, chunk: bytes) -> None:
        """A packet that goes the careful way, since the link is full."""
        sender = self._sender
        if sender.is_crowded and not sender.takes_more():
            self.messages_out -= 1
            sender.peer.count_dropped("link_full", 1)
            return
        super().add(chunk)

    def add_sent(self, packet: bytes) -> None:
        """A packet that the link counts itself."""
        self.chunks.append(packet)
        if not self.is_dirty:
            self.mark()

    def flush(self) -> int:
        self.is_dirty = False
        sender = self._sender
        if sender.peer.is_busy:
            sender.check_crowd()
            return 0
        chunks = self.take()
        return sender.send_live(chunks) if chunks else 0

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

    __slots__ = (
        "box",
        "client_id",
        "fast",
        "is_durable",
        "is_waited_for",
        "name",
        "peer",
        "sender",
    )

    is_v5 = True
    is_ended = has_to_wait = keeps_qos0 = is_behind = False
    may_have = None
    max_packet_bytes = UNLIMITED_BYTES
    window = _CLOSED
    queue: Sequence[object] = ()
    owner = None

    def __init__(self, peer: Peer, sender: Sender, *, is_durable: bool) -> None:
        self.peer = peer
        self.sender = sender
        self.is_durable = is_durable
        self.client_id = peer.client_id
        self.name = f"cell {peer.number}"
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
        self.peer.sent_live.value += count
        return True

    def deliver(
        self, outgoing: Outgoing, qos: int, retain: bool, identifiers: tuple[int, ...]
    ) -> None:
        """Take a message that is not in the session log."""
        del identifiers
        if qos:
            self.sender.send_acknowledged(self, outgoing, qos, retain)
        else:
            self.sender.send_qos0(outgoing, retain)

    def accept_logged(
        self, offset: int, outgoing: Outgoing, qos: int, retain: bool, identifiers: tuple[int, ...]
    ) -> None:
        """Take a message that was committed to the session log; ``pump`` sends it."""
        del identifiers
        self.sender.log.accept(offset, outgoing, qos, retain)

    def pump(self) -> None:
        """Send what was accepted."""
        self.sender.log.flush()

    def drop(self, outgoing: Outgoing, why: str) -> None:
        """Count a message that it does not get."""
        del outgoing
        self.peer.count_dropped(why, 1)

    def count_dropped(self, why: str, count: int) -> None:
        """Count messages that it does not get since the link is down."""
        del why
        self.peer.count_dropped("link_lost", count)


def packet_of(outgoing: Outgoing, qos: int, now_ns: int, *, retain: bool) -> bytes:
    """The PUBLISH as it is sent to another cell."""
    head, tail = outgoing.parts_for(True, qos, retain, (), now_ns)
    return head + _PACKET_ID + tail if qos else head + tail


def _qos0_in(packets: bytes) -> int:
    """Number of QoS 0 PUBLISH in packets that follow each other."""
    count = 0
    position = 0
    end = len(packets)
    while position < end:
        frame = frame_at(packets, position, end)
        if frame is None:
            break
        count += not packets[position] & 6
        position = frame[1]
    return count
