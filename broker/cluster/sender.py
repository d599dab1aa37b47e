"""What is sent to another cell: packets in LIVE frames, with what waits for them to be taken, and the session log.

Packets leave at the end of a turn of the loop, or once the kernel has taken those before, so frames grow with load.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from broker.cluster.frames import (
    MARK_LETTER,
    MARK_TRACE,
    MARK_V3,
    MARK_V5,
    OF_LOG,
    TRACE,
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
from broker.core.message import DEAD_LETTER
from broker.core.tracing import sampled_context
from broker.routing.router import Target
from broker.session.log_queue import LostRecords
from broker.session.outbox import Outbox

# Bytes of packets in one frame, unless one alone is larger.
_FRAME_BYTES: Final = 256 * 1024
# Bytes of packets that wait for the kernel: from half of this on publishers wait.
MAX_UNSENT_BYTES: Final = 4 * 1024 * 1024
# The packet identifier of a message in a LIVE frame says nothing: positions are counted.
_PACKET_ID: Final = b"\0\1"
# The lower half of the identifier of a trace.
_LOW: Final = (1 << 64) - 1


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
        self.barrier = 0
        """Live messages of QoS 1 wait until the other cell has committed all below this offset; 0 for none."""
        self._corked: list[Transit] = []

    def resume(self, hello: Hello, incarnation: str) -> list[Transit]:
        """Messages to send again to a cell that said HELLO to this incarnation of this cell.

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

    def begin(self, again: Sequence[Transit], kept: int, came: int) -> None:
        """The link is up. The other cell has committed all of the log below ``kept``, and got all below ``came``."""
        for cell in self.cells:
            cell.fast = self.box
            cell.is_waited_for = True
        self.is_crowded = False
        self.box.is_v5 = True
        for transit in again:
            self.box.put(transit.packet, is_v5=transit.is_v5)
        self.log.begin(kept, came)

    def end(self) -> None:
        """The link is down."""
        lost = sum(map(_qos0_in, self.box.take()))
        for cell in self.cells:
            cell.fast = None
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
        total = sum(map(len, packets))
        if total <= _FRAME_BYTES:
            self.peer.send(b"".join((header(FrameType.LIVE, total), *packets)))
            return total
        size = 0
        parts: list[bytes] = []
        for packet in packets:
            if size and size + len(packet) > _FRAME_BYTES:
                self.peer.send(b"".join((header(FrameType.LIVE, size), *parts)))
                parts = []
                size = 0
            parts.append(packet)
            size += len(packet)
        self.peer.send(b"".join((header(FrameType.LIVE, size), *parts)))
        return total

    def send_qos0(self, outgoing: Outgoing, retain: bool) -> None:
        """Send a message of QoS 0, or drop and count it."""
        if not self.peer.is_up:
            self.peer.count_dropped("link_lost", 1)
            return
        if self.is_crowded and not self.takes_more():
            self.peer.count_dropped("link_full", 1)
            return
        self.peer.sent_live.value += 1
        packet = packet_of(outgoing, 0, self._hub.context.clock.now_ns(), retain=retain)
        self.box.put(packet, is_v5=True)

    def send_run(self, packets: bytes, count: int, *, is_v5: bool) -> None:
        """Send QoS 0 packets over a link that is full, or drop and count them."""
        if not self.peer.is_up:
            self.peer.count_dropped("link_lost", count)
        elif self.is_crowded and not self.takes_more():
            self.peer.count_dropped("link_full", count)
        else:
            self.peer.sent_live.value += count
            self.box.put(packets, is_v5=is_v5)

    def forward(self, packet: bytes, *, is_v5: bool) -> Transit:
        """Send a QoS 1 packet without properties as it came, while nothing has to wait."""
        transit = Transit(self._hub.withholding, packet, is_v5)
        self.peer.sent_live.value += 1
        self.box.put(packet, is_v5=is_v5)
        if self._transits.add(transit):
            self._crowd()
            self._hub.backpressure.crowded(self.live)
        return transit

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
        is_many = transits.add(transit)
        self.peer.sent_live.value += 1
        if self.barrier:
            transit.is_corked = True
            self._corked.append(transit)
        elif self.peer.is_up:
            self.box.put(transit.packet, is_v5=True)
        if is_many:
            self._crowd()
            self._hub.backpressure.crowded(cell)

    def hold_up_live(self) -> None:
        """Messages for a filter came by the session log until now: those that come live must not overtake them."""
        self.barrier = self._hub.session_log.since_offset
        self._hub.context.writer.when_committed(lambda _: self.uncork())

    def take_back_offsets(self, lost: LostRecords) -> None:
        """Records could not be stored: no publisher waits for the other cell, and no live message for their offsets."""
        self.log.take_back_offsets(lost)
        if lost.moved(self.barrier) != self.barrier:
            self.hold_up_live()
            self.uncork()

    def uncork(self) -> None:
        """Send what had to wait for the session log, once that is with the other cell."""
        if self.barrier and not self.log.is_past(self.barrier):
            return
        self.barrier = 0
        corked = self._corked
        self._corked = []
        for transit in corked:
            transit.is_corked = False
            if self.peer.is_up:
                self.box.put(transit.packet, is_v5=True)

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
                cell.fast = self.box
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

    __slots__ = ("_sender", "_weighed", "_weighed_bytes", "is_v5")

    def __init__(self, sender: Sender) -> None:
        super().__init__(sender.peer.hub.context.pending_writes, sender.write)
        self._sender = sender
        self.is_v5 = True
        """True if the last packets are of version 5."""
        self._weighed = self._weighed_bytes = 0

    def put(self, packets: bytes, *, is_v5: bool) -> None:
        """Send packets of a version in the present turn."""
        if is_v5 is not self.is_v5:
            self.is_v5 = is_v5
            self.chunks.append(MARK_V5 if is_v5 else MARK_V3)
        self.chunks.append(packets)
        if not self.is_dirty:
            self.mark()

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

    def flush(self) -> int:
        self.is_dirty = False
        sender = self._sender
        if sender.peer.is_busy:
            sender.check_crowd()
            return 0
        chunks = self.take()
        return sender.send_live(chunks) if chunks else 0


class RemoteCell:
    """Another cell among the subscribers of a topic: for filters with live subscribers only, or durable ones too.

    Has what the router and the session log look at of ``broker.session.session.Session``.
    """

    __slots__ = (
        "client_id",
        "fast",
        "forward",
        "is_durable",
        "is_waited_for",
        "name",
        "peer",
        "sender",
    )

    is_v5: bool | None = None
    is_ended = is_behind = False
    may_have = None
    owner = None

    def __init__(self, peer: Peer, sender: Sender, *, is_durable: bool) -> None:
        self.peer = peer
        self.sender = sender
        self.forward = sender.forward
        self.is_durable = is_durable
        self.client_id = peer.client_id
        self.name = f"cell {peer.number}"
        self.fast: LinkBox | None = None
        """Where packets go while the link is up and takes more; else each is checked first."""
        self.is_waited_for = True

    @property
    def box(self) -> LinkBox | None:
        """Where packets go, if they may go at once."""
        return self.fast

    @property
    def messages_out(self) -> int:
        """Live messages that were sent."""
        return int(self.peer.sent_live.value)

    @property
    def outlives(self) -> bool:
        """True if it gets messages without a connection, by the session log."""
        return self.is_durable

    @property
    def is_away(self) -> bool:
        """True if the link is down."""
        return not self.peer.is_up

    @property
    def takes_acknowledged(self) -> bool:
        """True if ``forward`` may be called: the link is up and takes more, and nothing waits for the session log."""
        return self.fast is not None and not self.sender.barrier

    def take_run(self, packets: bytes, count: int, *, is_v5: bool) -> None:
        """Send ``count`` encoded QoS 0 PUBLISH without properties, or drop and count them."""
        box = self.fast
        if box is None:
            self.sender.send_run(packets, count, is_v5=is_v5)
            return
        if is_v5 is not box.is_v5:
            box.put(packets, is_v5=is_v5)
        else:
            box.chunks.append(packets)
            if not box.is_dirty:
                box.mark()
        self.peer.sent_live.value += count

    def deliver(
        self, outgoing: Outgoing, qos: int, retain: bool, identifiers: tuple[int, ...]
    ) -> None:
        """Take a message that is not in the session log. It goes with RETAIN as it was published: the other cell has to
        know that it replaces the retained one."""
        del retain, identifiers
        if qos:
            self.sender.send_acknowledged(self, outgoing, qos, outgoing.message.retain)
        else:
            self.sender.send_qos0(outgoing, outgoing.message.retain)

    def accept_logged(
        self, offset: int, outgoing: Outgoing, qos: int, retain: bool, identifiers: tuple[int, ...]
    ) -> None:
        """Take a message that was committed to the session log; ``pump`` sends it."""
        del retain, identifiers
        self.sender.log.accept(offset, outgoing, qos, outgoing.message.retain)

    def pump(self) -> None:
        """Send what was accepted."""
        self.sender.log.flush()

    def drop(self, outgoing: Outgoing, why: str) -> None:
        """Count a message that it does not get."""
        del outgoing
        self.peer.count_dropped(why, 1)


def packet_of(outgoing: Outgoing, qos: int, now_ns: int, *, retain: bool) -> bytes:
    """The PUBLISH as it is sent to another cell."""
    head, tail = outgoing.parts_for(True, qos, retain, (), now_ns)
    packet = head + _PACKET_ID + tail if qos else head + tail
    message = outgoing.message
    if message.via:
        if DEAD_LETTER in message.via:
            packet = MARK_LETTER + packet
        if (context := sampled_context(message)) is not None:
            ids = TRACE.pack(context.trace_id >> 64, context.trace_id & _LOW, context.span_id)
            packet = MARK_TRACE + ids + packet
    return packet


def _qos0_in(packets: bytes) -> int:
    """Number of QoS 0 PUBLISH in packets that follow each other."""
    if packets in (MARK_V5, MARK_V3):
        return 0
    count = 0
    position = 1 + TRACE.size if packets.startswith(MARK_TRACE) else 0
    position += packets.startswith(MARK_LETTER, position)
    end = len(packets)
    while position < end:
        frame = frame_at(packets, position, end)
        if frame is None:
            break
        count += not packets[position] & 6
        position = frame[1]
    return count
