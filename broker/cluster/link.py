"""The link to one other cell: its connection, what is sent over it, and what came.

The connection is a stream socket over which both cells say HELLO with their progress, so that nothing of QoS 1 and 2 is
lost or doubled when it breaks: live messages are counted, and sent again from the position that the other cell
names; records of the session log are sent from the offset that it has committed. Packets leave at the end of a turn of
the loop, or once the kernel has taken those before, so frames grow with load.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from logging import getLogger
from typing import TYPE_CHECKING, Any, Final, cast

from broker.cluster.frames import (
    OF_LOG,
    PROTOCOL,
    Frame,
    FrameDecoder,
    FrameError,
    FrameType,
    Hello,
    Kept,
    LogRecords,
    RouteChanges,
    Routed,
    Taken,
    decoded,
    encoded,
    header,
)
from broker.cluster.inbox import Inbox
from broker.cluster.log_sender import LogSender
from broker.cluster.remote import (
    MAX_TRANSIT_BYTES,
    MAX_TRANSITS,
    MAX_UNSENT_BYTES,
    LinkBox,
    RemoteCell,
    Transit,
    Transits,
    packet_of,
)
from broker.cluster.routes import Kind
from broker.codec.framing import frame_at
from broker.codec.outgoing import Outgoing
from broker.core.errors import PeerError
from broker.core.subscription import Subscription
from broker.core.topic import TopicFilter
from broker.routing.router import Target

if TYPE_CHECKING:
    from broker.cluster.links import Links

_log = getLogger(__name__)

# Bytes of packets in one frame, unless one alone is larger.
_FRAME_BYTES: Final = 256 * 1024
# Bytes that the kernel has not taken: with more, packets wait for the next frame.
_BUSY_BYTES: Final = 64 * 1024
# Filters in one frame, and their bytes.
_FILTERS: Final = 4096
_FILTER_BYTES: Final = 512 * 1024
# Seconds after which the live subscribers of a cell that is away are forgotten.
GRACE_S: Final = 10.0


class Channel(asyncio.Protocol):
    """One connection of a link. It belongs to none until the other cell has said HELLO."""

    def __init__(self, links: Links, link: Link | None) -> None:
        self._links = links
        self.link = link
        self._decoder = FrameDecoder()
        self.transport: asyncio.Transport | None = None
        self.is_begun = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's
        self.transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(_BUSY_BYTES)
        self._links.channels.add(self)
        if self.link is not None:
            self.write(encoded(self._links.hello(self.link)))

    def write(self, data: bytes) -> None:
        """Send bytes, unless the connection has ended."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._decoder.feed(data):
                self._take(frame)
                if self.transport is None or self.transport.is_closing():
                    return
        except FrameError as error:
            _log.error("link.bad_frame cell=%s reason=%s", self._name, error)
            self._links.bad_frames.value += 1
            self.abort()

    @property
    def _name(self) -> str:
        return "not known" if self.link is None else str(self.link.number)

    def _take(self, frame: Frame) -> None:
        if self.is_begun:
            assert self.link is not None
            self.link.take(frame)
            return
        if frame.type is not FrameType.HELLO:
            raise FrameError(f"expected HELLO, got {frame.type.name}")
        hello = decoded(Hello, frame)
        link = self._links.link_of(hello)
        if self.link is None:
            link.hang_up()
            self.link = link
            self.write(encoded(self._links.hello(link)))
        elif self.link is not link:
            raise FrameError(f"expected cell {self.link.number}, got {link.number}")
        self.is_begun = True
        link.begin(self, hello)

    def pause_writing(self) -> None:
        if self.link is not None:
            self.link.is_busy = True

    def resume_writing(self) -> None:
        if self.link is not None:
            self.link.go_on()

    def abort(self) -> None:
        """Cut the connection off."""
        if self.transport is not None:
            self.transport.abort()
        self._over()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._over()
        self._links.channels.discard(self)
        self.transport = None

    def _over(self) -> None:
        if self.is_begun and self.link is not None and self.link.channel is self:
            self.link.end()


class Link:
    """Everything that this cell and another one send each other."""

    def __init__(self, links: Links, number: int) -> None:
        self._links = links
        self.number = number
        self.hub = hub = links.hub
        self.withholding = hub.withholding
        counter = links.metrics.counter
        cell = str(number)
        self.sent_live = counter("cell_messages_sent", "live messages sent to a cell", cell=cell)
        self.sent_logged = counter(
            "cell_records_sent", "records of the session log sent to a cell", cell=cell
        )
        self.received_live = counter(
            "cell_messages_received",
            "live messages of QoS 1 and 2 that came from a cell",
            cell=cell,
        )
        self.received_logged = counter(
            "cell_records_received", "records of a session log that came from a cell", cell=cell
        )
        self.channel: Channel | None = None
        self.is_up = self.is_busy = self.is_crowded = False
        self.box = LinkBox(hub.context.pending_writes, self)
        self.live = RemoteCell(self, is_durable=False)
        self.durable = RemoteCell(self, is_durable=True)
        self._transits = Transits()
        self._lives = 0
        """Times that the link came up or went down."""
        self._barrier = 0
        """Live messages go by the session log until the other cell has committed all below this offset."""
        # what came
        self._incarnations = 0
        self.heard = ""
        self.live_count = 0
        self.held: set[int] = set()
        self.log_heard, self.kept_here = links.position_of(number)
        self._kept_next = self.kept_here
        """Offset up to which records came; committed up to ``kept_here``."""
        self._inbox = self._new_inbox()
        self._answers: dict[int, tuple[list[int], list[int]]] = {}
        """Positions or offsets held and released since the last TAKEN, by its flags."""
        # routes
        self.routes: dict[str, tuple[int, Subscription]] = {}
        self.has_durable = False
        self._listed: set[str] | None = None
        self.routed = 0
        """Version of this cell's filters that the other one follows."""
        self._stored_kept = -1
        self.log = LogSender(self, links.kept_by(number))
        for text, kind, since_offset in links.stored_routes(number):
            self._put_route(text, kind, since_offset)

    def _new_inbox(self) -> Inbox:
        self._incarnations += 1
        released = partial(self._released, self._incarnations)
        return Inbox(self.hub, self._links.own_routes, self.number, released)

    # -- the connection --

    def begin(self, channel: Channel, hello: Hello) -> None:
        """The other cell said HELLO: send what it lacks."""
        links = self._links
        self.channel = channel
        self.is_up = True
        self._lives += 1
        if hello.incarnation != self.heard:
            self.heard = hello.incarnation
            self.live_count = 0
            self.held.clear()
            self._answers.clear()
            self._inbox = self._new_inbox()
        if hello.log != self.log_heard:
            self.log_heard = hello.log
            self.kept_here = 0
        self._kept_next = self.kept_here
        again: list[bytes] | None = []
        if hello.heard == links.incarnation:
            again = self._transits.resume(hello.live, hello.held)
        else:
            self.count_dropped("link_lost", self._transits.end())
            self._transits = Transits()
        if again is None:
            raise FrameError(f"HELLO frame: expected fewer live messages than {hello.live}")
        for cell in (self.live, self.durable):
            cell.box = cell.fast = self.box
            cell.is_waited_for = True
        self.is_crowded = False
        if again:
            self.send_live(again)
        self.log.begin(hello.kept if hello.log_heard == links.log_identity else 0)
        self.routed = 0
        self.tell(links.interest.all(), links.version, is_whole=True)
        links.came_up(self)
        _log.info("link.up cell=%d", self.number)

    def end(self) -> None:
        """The connection is lost."""
        self.channel = None
        self.is_up = self.is_busy = False
        self._lives += 1
        lost = sum(map(_qos0_in, self.box.chunks))
        self.box.chunks.clear()
        self.hub.context.figures.sent[0].value -= self.box.take_count()
        for cell in (self.live, self.durable):
            cell.box = cell.fast = None
            self.hub.backpressure.relieved(cell)  # type: ignore[arg-type]
        self.is_crowded = False
        self._listed = None
        if lost:
            self.count_dropped("link_lost", lost)
        self.log.end()
        self.hub.context.later(GRACE_S, self._forget, self._lives)
        self._links.went_down(self)
        _log.warning("link.down cell=%d", self.number)

    def hang_up(self) -> None:
        """End the connection, if there is one."""
        if self.channel is not None:
            self.channel.abort()

    def _forget(self, lives: int) -> None:
        """The other cell is away for long: its live subscribers are gone."""
        if lives != self._lives:
            return
        self.count_dropped("link_lost", self._transits.end())
        for text, (kind, _) in list(self.routes.items()):
            if not Kind.of(kind).is_durable:
                self._remove_route(text)

    def stop(self) -> None:
        """The node stops: no publisher waits any longer."""
        self.hang_up()
        self._lives += 1
        self._transits.end()

    def send(self, frame: bytes) -> None:
        """Send a frame, if the link is up."""
        if self.channel is not None:
            self.channel.write(frame)

    def write(self, data: bytes) -> None:
        """See ``Outbox``: packets go by ``send_live``."""
        self.send_live([data])

    # -- live messages --

    def send_live(self, packets: Sequence[bytes]) -> int:
        """Send packets in as few frames as they fit into; returns their bytes."""
        count = self.box.take_count()
        if count:  # counted as sent to clients where they were handed out
            self.hub.context.figures.sent[0].value -= count
            self.sent_live.value += count
        size = 0
        total = 0
        parts: list[bytes] = []
        for packet in packets:
            if size and size + len(packet) > _FRAME_BYTES:
                self.send(header(FrameType.LIVE, size) + b"".join(parts))
                parts = []
                total += size
                size = 0
            parts.append(packet)
            size += len(packet)
        self.send(header(FrameType.LIVE, size) + b"".join(parts))
        return total + size

    def send_qos0(self, outgoing: Outgoing, retain: bool) -> None:
        """Send a message of QoS 0, or drop and count it."""
        if not self.is_up:
            self.count_dropped("link_lost", 1)
            return
        self.sent_live.value += 1
        packet = packet_of(outgoing, 0, self.hub.context.clock.now_ns(), retain=retain)
        box = self.box
        if self.is_crowded and not self.takes_more():
            self.sent_live.value -= 1
            self.count_dropped("link_full", 1)
            return
        box.chunks.append(packet)
        if not box.is_dirty:
            box.mark()

    def send_acknowledged(
        self, cell: RemoteCell, outgoing: Outgoing, qos: int, retain: bool
    ) -> None:
        """Send a message of QoS 1 or 2: live, or by the session log where it must outlive this process or would
        overtake others."""
        message = outgoing.message
        if qos == 2 or self._barrier > self.log.kept:
            addressed = Outgoing(
                message.changed(message.topic, message.payload, qos, retain, message.properties)
            )
            target: Target[Any] = Target(self.durable, qos, retain, ())
            self.hub.session_log.keep(addressed, [target], True)
            if qos == 1:
                self._barrier = self.hub.session_log.since_offset
            return
        transits = self._transits
        is_over = len(transits) >= MAX_TRANSITS or transits.size_bytes >= MAX_TRANSIT_BYTES
        receipt = message.receipt
        transit = Transit(
            self, packet_of(outgoing, qos, self.hub.context.clock.now_ns(), retain=retain)
        )
        waits = self.withholding.wait_for(transit, outgoing.size_bytes, receipt)
        if not waits and (is_over or (receipt is not None and receipt.is_over)):
            self.count_dropped("link_full", 1)
            return
        transits.add(transit)
        self.sent_live.value += 1
        if self.is_up:
            box = self.box
            box.chunks.append(transit.packet)
            if not box.is_dirty:
                box.mark()
        if len(transits) * 2 > MAX_TRANSITS or transits.size_bytes * 2 > MAX_TRANSIT_BYTES:
            self._crowd()
            self.hub.backpressure.crowded(cell)  # type: ignore[arg-type]

    def check_crowd(self) -> None:
        """The kernel takes no more for now: where much waits, packets go the careful way."""
        if not self.is_crowded and sum(map(len, self.box.chunks)) >= MAX_UNSENT_BYTES // 2:
            self._crowd()

    def _crowd(self) -> None:
        if self.is_up:
            self.is_crowded = True
            self.live.fast = self.durable.fast = None

    def takes_more(self) -> bool:
        """One more packet of QoS 0 comes to a link that is crowded; returns whether it may wait."""
        cell = self.live
        self.hub.backpressure.crowded(cell)  # type: ignore[arg-type]
        return sum(map(len, self.box.chunks)) < (
            MAX_UNSENT_BYTES if cell.is_waited_for else MAX_UNSENT_BYTES // 2
        )

    def go_on(self) -> None:
        """The kernel has taken what was written."""
        self.is_busy = False
        self.box.flush()
        self._relieve()

    def _relieve(self) -> None:
        transits = self._transits
        if (
            self.is_crowded
            and not self.is_busy
            and len(transits) * 4 <= MAX_TRANSITS
            and transits.size_bytes * 4 <= MAX_TRANSIT_BYTES
        ):
            self.is_crowded = False
            for cell in (self.live, self.durable):
                cell.fast = cell.box
                self.hub.backpressure.relieved(cell)  # type: ignore[arg-type]

    def count_dropped(self, why: str, count: int) -> None:
        """Count messages that the other cell does not get, by reason."""
        if count:
            self._links.dropped(self.number, why).value += count

    # -- frames --

    def take(self, frame: Frame) -> None:
        """Take a frame of the other cell.

        Raises:
            FrameError: it breaks the rules.
        """
        if frame.type is FrameType.LIVE:
            count, held = self._inbox.take_live(frame.body, self.live_count)
            self.live_count += count
            if count:
                self.received_live.value += count
                self.held.update(held)
                self._answer(0)[0].extend(held)
        elif frame.type is FrameType.TAKEN:
            taken = decoded(Taken, frame)
            if frame.flags & OF_LOG:
                self.log.taken(taken.before, taken.held, taken.released)
            elif not self._transits.taken(taken.before, taken.held, taken.released):
                raise FrameError(f"TAKEN frame: expected fewer live messages than {taken.before}")
            self._relieve()
        elif frame.type is FrameType.LOG:
            self._take_logged(decoded(LogRecords, frame))
        elif frame.type is FrameType.KEPT:
            if not self.log.take_kept(decoded(Kept, frame).offset):
                raise FrameError("KEPT frame: expected an offset below the next record's")
        elif frame.type is FrameType.ROUTES:
            self._take_routes(decoded(RouteChanges, frame))
        elif frame.type is FrameType.ROUTED:
            self.routed = decoded(Routed, frame).version
            self._links.check_told()
        elif frame.type is FrameType.HELLO:
            raise FrameError("expected one HELLO, got another")

    def _answer(self, flags: int) -> tuple[list[int], list[int]]:
        """Held and released positions or offsets of the next TAKEN, which leaves at the end of this turn."""
        if not self._answers:
            self.hub.context.defer(self._send_taken)
        return self._answers.setdefault(flags, ([], []))

    def _send_taken(self) -> None:
        answers = self._answers
        self._answers = {}
        for flags, (held, released) in answers.items():
            before = self._kept_next if flags & OF_LOG else self.live_count
            self.send(encoded(Taken(before, held, released), flags))

    def _released(self, incarnation: int, key: int) -> None:
        """Slow subscribers have a message now: a live one, or with a negative key a record."""
        if incarnation != self._incarnations:
            return
        if key < 0:
            self._answer(OF_LOG)[1].append(-key - 1)
        elif key in self.held:
            self.held.discard(key)
            self._answer(0)[1].append(key)

    # -- the session log --

    def _take_logged(self, frame: LogRecords) -> None:
        """Hand the records on, and store the position in the commit group that holds what of them is kept."""
        writer = self.hub.context.writer
        held, _ = self._answer(OF_LOG)
        for record in frame.records:
            if record.offset < self._kept_next:
                continue
            self._kept_next = record.offset + 1
            self.received_logged.value += 1
            if self._inbox.take_logged(record, -record.offset - 1):
                held.append(record.offset)
        following = self._kept_next = max(self._kept_next, frame.following)
        self._links.keep_position(self.number, self.log_heard, following)
        writer.when_committed(partial(self._committed, self._lives, following))

    def _committed(self, lives: int, following: int, error: BaseException | None) -> None:
        if lives != self._lives:
            if error is None:
                self.kept_here = max(self.kept_here, following)
            return
        if error is not None:  # sent again from the position that is committed
            self.hang_up()
            return
        self.kept_here = following
        self.send(encoded(Kept(following)))

    def keep_kept(self) -> None:
        """Store how far the other cell has committed this cell's log, for a restart."""
        if self.log.kept != self._stored_kept:
            self._stored_kept = self.log.kept
            self._links.keep_kept(self.number, self.log.kept)

    # -- routes --

    def tell(self, changes: Any, version: int, *, is_whole: bool = False) -> None:
        """Tell the other cell which filters changed, or all of them."""
        part: list[tuple[str, int | None]] = []
        size = 0
        is_first = is_whole
        for change in changes:
            if len(part) >= _FILTERS or size >= _FILTER_BYTES:
                self.send(encoded(RouteChanges(version, is_first, False, part)))
                is_first = False
                part = []
                size = 0
            part.append(change)
            size += len(change[0]) * 3
        self.send(encoded(RouteChanges(version, is_first, True, part)))

    def _take_routes(self, routes: RouteChanges) -> None:
        if routes.is_first:
            self._listed = set()
        is_stored = False
        since_offset = self.hub.session_log.since_offset
        for text, kind in routes.changes:
            if kind is None:
                is_stored |= self._remove_route(text)
                continue
            if self._listed is not None:
                self._listed.add(text)
            earlier = self.routes.get(text)
            if earlier is not None and earlier[0] == kind:
                continue
            since = earlier[1].since_offset if earlier is not None else since_offset
            self._put_route(text, kind, since)
            is_stored |= self._store_route(text, kind, since, earlier)
        if not routes.is_last:
            return
        if self._listed is not None:
            for text in self.routes.keys() - self._listed:
                is_stored |= self._remove_route(text)
            self._listed = None
        routed = encoded(Routed(routes.version))
        if is_stored:
            self.hub.context.writer.when_committed(partial(self._routed, self._lives, routed))
        else:
            self.send(routed)

    def _routed(self, lives: int, routed: bytes, error: BaseException | None) -> None:
        if error is None and lives == self._lives:
            self.send(routed)

    def _put_route(self, text: str, kind_number: int, since_offset: int) -> None:
        kind = Kind.of(kind_number)
        try:
            topic_filter = TopicFilter.parse(text)
        except PeerError as error:
            raise FrameError(f"ROUTES frame: {text[:100]!r}: {error}") from None
        if topic_filter.share_group is not None:
            raise FrameError(f"ROUTES frame: expected no share group, got {text[:100]!r}")
        subscription = Subscription(
            topic_filter,
            kind.qos,
            retain_as_published=kind.retains,
            since_offset=since_offset,
        )
        earlier = self.routes.get(text)
        if earlier is not None and Kind.of(earlier[0]).is_durable and not kind.is_durable:
            self._barrier = self.hub.session_log.since_offset
        self.routes[text] = (kind_number, subscription)
        self.has_durable = self.has_durable or kind.is_durable
        cell: Any = self.durable if kind.is_durable else self.live
        self.hub.router.put_remote(cell, subscription)

    def _remove_route(self, text: str) -> bool:
        """Remove a filter; returns whether that is to be stored."""
        route = self.routes.pop(text, None)
        if route is None:
            return False
        cell: Any = self.durable
        self.hub.router.remove_remote(cell, route[1].filter)
        if not Kind.of(route[0]).is_durable:
            return False
        self._barrier = self.hub.session_log.since_offset
        self._links.keep_route(self.number, text, None)
        self.has_durable = any(Kind.of(kind).is_durable for kind, _ in self.routes.values())
        return True

    def _store_route(
        self, text: str, kind: int, since_offset: int, earlier: tuple[int, Subscription] | None
    ) -> bool:
        """Store a filter with durable sessions behind it; returns whether something is stored."""
        if Kind.of(kind).is_durable:
            self._links.keep_route(self.number, text, (kind, since_offset))
            return True
        if earlier is not None and Kind.of(earlier[0]).is_durable:
            self._links.keep_route(self.number, text, None)
            return True
        return False

    def hello(self) -> Hello:
        """This cell's HELLO on the link."""
        links = self._links
        return Hello(
            PROTOCOL, links.place.number, links.place.count, links.incarnation, links.log_identity, self.heard,
            self.live_count, sorted(self.held), self.log_heard, self.kept_here,
        )  # fmt: skip


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
