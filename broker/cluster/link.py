"""The link to one other cell: its connection, what is sent over it, and what came.

The connection is a stream socket over which both cells say HELLO with their progress, so that nothing of QoS 1 and 2 is
lost or doubled when it breaks: live messages are counted, and sent again from the position that the other cell
names; records of the session log are sent from the offset that it has committed. Packets leave at the end of a turn of
the loop, or once the kernel has taken those before, so frames grow with load.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from logging import getLogger
from typing import Any, Final, cast
from uuid import uuid4

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
from broker.cluster.inbox import Inbox, OwnRoutes
from broker.cluster.log_sender import LogSender
from broker.cluster.positions import Positions
from broker.cluster.routes import Interest, Kind
from broker.cluster.transits import MAX_TRANSIT_BYTES, MAX_TRANSITS, Transit, Transits
from broker.codec.framing import frame_at
from broker.codec.outgoing import Outgoing
from broker.connection.hub import Hub
from broker.core.cells import Place
from broker.core.errors import PeerError
from broker.core.subscription import Subscription
from broker.core.topic import TopicFilter
from broker.observe.metrics import Counter
from broker.routing.router import Target
from broker.session.outbox import Outbox, PendingWrites
from broker.session.state import UNLIMITED_BYTES

_log = getLogger(__name__)

# Bytes of packets in one frame, unless one alone is larger.
_FRAME_BYTES: Final = 256 * 1024
# Bytes that the kernel has not taken: with more, packets wait for the next frame.
_BUSY_BYTES: Final = 64 * 1024
# Filters in one frame, and their bytes.
_FILTERS: Final = 4096
_FILTER_BYTES: Final = 512 * 1024
# Seconds within which the other cell says HELLO.
_HELLO_S: Final = 5.0
# Seconds after which the live subscribers of a cell that is away are forgotten.
GRACE_S: Final = 10.0
# Bytes of packets that wait for the kernel: from half of this on publishers wait.
MAX_UNSENT_BYTES: Final = 4 * 1024 * 1024
# The packet identifier of a message in a LIVE frame says nothing: positions are counted.
_PACKET_ID: Final = b"\0\1"


class Channel(asyncio.Protocol):
    """One connection of a link. It belongs to none until the other cell has said HELLO."""

    def __init__(self, common: Common, link: Link | None) -> None:
        self._common = common
        self.link = link
        self._decoder = FrameDecoder()
        self.transport: asyncio.Transport | None = None
        self.is_begun = False
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's
        self.transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(_BUSY_BYTES)
        self._common.channels.add(self)
        self._common.hub.context.later(_HELLO_S, self._expect_begun)
        if self.link is not None:
            self.write(encoded(self.link.hello()))

    def _expect_begun(self) -> None:
        if not self.is_begun:
            self.abort()

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
            self._common.bad_frames.value += 1
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
        link = self._common.link_of(hello)
        if self.link is None:
            link.hang_up()
            self.link = link
            self.write(encoded(link.hello()))
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
        self._common.channels.discard(self)
        self.transport = None
        self.ended.set()

    def _over(self) -> None:
        if self.is_begun and self.link is not None and self.link.channel is self:
            self.link.end()


class Link:
    """Everything that this cell and another one send each other."""

    def __init__(self, common: Common, number: int) -> None:
        self._common = common
        self.number = number
        self.hub = hub = common.hub
        self.withholding = hub.withholding
        metrics = hub.context.metrics
        peer = str(number)
        self.sent_live = metrics.counter(
            "cell_messages_sent", "live messages sent to a cell", peer=peer
        )
        self.sent_logged = metrics.counter(
            "cell_records_sent", "records of the session log sent to a cell", peer=peer
        )
        self.received_live = metrics.counter(
            "cell_messages_received",
            "live messages of QoS 1 and 2 that came from a cell",
            peer=peer,
        )
        self.received_logged = metrics.counter(
            "cell_records_received", "records of a session log that came from a cell", peer=peer
        )
        self._dropped: dict[str, Counter] = {}
        self.channel: Channel | None = None
        self.is_up = self.is_busy = self.is_crowded = False
        self.box = LinkBox(hub.context.pending_writes, self)
        self.live = RemoteCell(self, is_durable=False)
        self.durable = RemoteCell(self, is_durable=True)
        self.client_id = self.durable.client_id
        self._transits = Transits()
        self._lives = 0
        """Times that the link came up or went down."""
        self._barrier = 0
        """Live messages of QoS 1 wait until the other cell has committed all below this offset; 0 for none."""
        self._corked: list[Transit] = []
        # what came
        self._incarnations = 0
        self.heard = ""
        self.live_count = 0
        self.held: set[int] = set()
        self.log_heard, self.kept_here = common.positions.at(number)
        self._came = self._sealed_at = self.kept_here
        """Offset up to which records came; committed up to ``kept_here``."""
        self._logged: deque[LogRecords] = deque()
        """Frames that came while a commit group with earlier ones is written: were that to fail, the position in a
        later group would be wrong."""
        self._is_open = self._is_flying = False
        hub.context.writer.before_commit(self._sealed)
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
        self.takers: dict[FrameType, Callable[[Frame], None]] = {}
        """What further types of frames are for."""
        self.log = LogSender(self, common.positions.kept_by(number))
        self.keep_kept()
        for text, kind, since_offset in common.positions.routes_of(number):
            self._put_route(text, kind, since_offset)

    def _new_inbox(self) -> Inbox:
        self._incarnations += 1
        released = partial(self._released, self._incarnations)
        return Inbox(self.hub, self._common.own_routes, released)

    # -- the connection --

    def begin(self, channel: Channel, hello: Hello) -> None:
        """The other cell said HELLO: send what it lacks."""
        common = self._common
        is_log_known = hello.log_heard == common.positions.identity
        if is_log_known and max(hello.kept, hello.came) > self.hub.session_log.log_next:
            common.positions.renew()
            raise FrameError(
                f"HELLO frame: expected an offset up to {self.hub.session_log.log_next}, got {hello.kept}: the store"
                " of this cell lost its newest records"
            )
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
            self.kept_here = self._came = self._sealed_at = 0
        again: list[bytes] | None = []
        if hello.heard == common.incarnation:
            again = self._transits.resume(hello.live, hello.held)
        else:
            self._end_transits()
            self._transits = Transits()
        if again is None:
            raise FrameError(f"HELLO frame: expected fewer live messages than {hello.live}")
        for cell in (self.live, self.durable):
            cell.box = cell.fast = self.box
            cell.is_waited_for = True
        self.is_crowded = False
        if again:
            self.send_live(again)
        self.log.begin(*((hello.kept, hello.came) if is_log_known else (0, 0)))
        self.routed = 0
        self.tell(common.interest.all(), common.interest.version, is_whole=True)
        _log.info("link.up cell=%d", self.number)

    def end(self) -> None:
        """The connection is lost."""
        self.channel = None
        self.is_up = self.is_busy = False
        self._lives += 1
        lost = sum(map(_qos0_in, self.box.take()))
        self.hub.context.figures.sent[0].value -= self.box.take_count()
        for cell in (self.live, self.durable):
            cell.box = cell.fast = None
            self.hub.backpressure.relieved(cell)
        self.is_crowded = False
        self._listed = None
        if lost:
            self.count_dropped("link_lost", lost)
        self.log.end()
        self._logged.clear()
        self.hub.context.later(GRACE_S, self._forget, self._lives)
        self._common.check_told()
        _log.warning("link.down cell=%d", self.number)

    def hang_up(self) -> None:
        """End the connection, if there is one."""
        if self.channel is not None:
            self.channel.abort()

    def _forget(self, lives: int) -> None:
        """The other cell is away for long: its live subscribers are gone."""
        if lives != self._lives:
            return
        self._end_transits()
        for text, (kind, _) in list(self.routes.items()):
            if not Kind.of(kind).is_durable:
                self._remove_route(text)

    def stop(self) -> None:
        """The node stops: no publisher waits any longer."""
        self.hang_up()
        self._lives += 1
        self._end_transits()
        self.log.end_transits()

    def _end_transits(self) -> None:
        """Live messages that the other cell has not taken are lost: their subscribers are gone."""
        self._corked.clear()
        self.count_dropped("link_lost", self._transits.end())

    def send(self, frame: bytes) -> None:
        """Send a frame, if the link is up."""
        if self.channel is not None:
            self.channel.write(frame)

    def send_in_order(self, frame: bytes) -> None:
        """Send a frame behind the packets that wait."""
        if self.box.chunks:
            self.send_live(self.box.take())
        self.send(frame)

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
        if self.is_crowded and not self.takes_more():
            self.sent_live.value -= 1
            self.count_dropped("link_full", 1)
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
            target: Target[Any] = Target(self.durable, qos, retain, ())
            self.hub.session_log.keep(addressed, [target], True)
            return
        transits = self._transits
        is_over = len(transits) >= MAX_TRANSITS or transits.size_bytes >= MAX_TRANSIT_BYTES
        receipt = message.receipt
        transit = Transit(
            self.withholding,
            packet_of(outgoing, qos, self.hub.context.clock.now_ns(), retain=retain),
        )
        waits = self.withholding.wait_for(transit, outgoing.size_bytes, receipt)
        if not waits and (is_over or (receipt is not None and receipt.is_over)):
            self.count_dropped("link_full", 1)
            return
        transits.add(transit)
        self.sent_live.value += 1
        if self._barrier:
            transit.is_corked = True
            self._corked.append(transit)
        elif self.is_up:
            self.box.add_sent(transit.packet)
        if len(transits) * 2 > MAX_TRANSITS or transits.size_bytes * 2 > MAX_TRANSIT_BYTES:
            self._crowd()
            self.hub.backpressure.crowded(cell)

    def _hold_up_live(self) -> None:
        """Messages for a filter came by the session log until now: those that come live must not overtake them."""
        self._barrier = self.hub.session_log.since_offset
        self.hub.context.writer.when_committed(lambda _: self.uncork())

    def uncork(self) -> None:
        """Send what had to wait for the session log, once that is with the other cell."""
        if not self._barrier or not self.log.is_past(self._barrier):
            return
        self._barrier = 0
        corked = self._corked
        self._corked = []
        for transit in corked:
            transit.is_corked = False
            if self.is_up:
                self.box.add_sent(transit.packet)

    def check_crowd(self) -> None:
        """While the kernel takes no more, and much waits, each further packet is counted before it may wait too."""
        if not self.is_crowded and self.box.waiting_bytes() >= MAX_UNSENT_BYTES // 2:
            self._crowd()

    def _crowd(self) -> None:
        if self.is_up:
            self.is_crowded = True
            self.live.fast = self.durable.fast = None

    def takes_more(self) -> bool:
        """One more packet of QoS 0 comes to a link that is crowded; returns whether it may wait."""
        cell = self.live
        self.hub.backpressure.crowded(cell)
        return self.box.waiting_bytes() < (
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
                self.hub.backpressure.relieved(cell)

    def count_logged(self, count: int) -> None:
        """Count records that were sent."""
        self.sent_logged.value += count

    def _dropped_by(self, why: str) -> Counter:
        counter = self._dropped.get(why)
        if counter is None:
            counter = self._dropped[why] = self.hub.context.metrics.counter(
                "cell_messages_dropped",
                "messages that a cell did not get, by reason",
                peer=str(self.number),
                reason=why,
            )
        return counter

    def count_dropped(self, why: str, count: int) -> None:
        """Count messages that the other cell does not get, by reason."""
        if count:
            self._dropped_by(why).value += count

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
            self.uncork()
        elif frame.type is FrameType.ROUTES:
            self._take_routes(decoded(RouteChanges, frame))
        elif frame.type is FrameType.ROUTED:
            self.routed = decoded(Routed, frame).version
            self._common.check_told()
        elif frame.type in self.takers:
            self.takers[frame.type](frame)
        else:
            raise FrameError(f"expected no {frame.type.name} now")

    def _answer(self, flags: int) -> tuple[list[int], list[int]]:
        """Held and released positions or offsets of the next TAKEN, which leaves at the end of this turn."""
        if not self._answers:
            self.hub.context.defer(self._send_taken)
        return self._answers.setdefault(flags, ([], []))

    def _send_taken(self) -> None:
        answers = self._answers
        self._answers = {}
        for flags, (held, released) in answers.items():
            before = self._came if flags & OF_LOG else self.live_count
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
        if self._is_flying:
            self._logged.append(frame)
            return
        held, _ = self._answer(OF_LOG)
        for record in frame.records:
            if record.offset < self._came:
                continue
            self._came = record.offset + 1
            self.received_logged.value += 1
            if self._inbox.take_logged(record, -record.offset - 1):
                held.append(record.offset)
        self._came = max(self._came, frame.following)
        self._common.positions.keep_at(self.number, self.log_heard, self._came)
        if not self._is_open:
            self._is_open = True
            self.hub.context.writer.when_committed(self._committed)

    def _sealed(self) -> None:
        if self._is_open:
            self._is_open = False
            self._is_flying = True
            self._sealed_at = self._came

    def _committed(self, error: BaseException | None) -> None:
        self._is_flying = False
        waiting = self._logged
        self._logged = deque()
        if error is not None:  # sent again from the position that is committed
            self._came = self.kept_here
            self.hang_up()
            return
        self.kept_here = self._sealed_at
        self.send(encoded(Kept(self.kept_here)))
        for frame in waiting:
            self._take_logged(frame)

    def keep_kept(self) -> None:
        """Store how far the other cell has committed this cell's log, for a restart."""
        if self.log.kept != self._stored_kept:
            self._stored_kept = self.log.kept
            self._common.positions.keep_kept(self.number, self.log.kept)

    # -- routes --

    def tell(
        self, changes: Iterable[tuple[str, int | None]], version: int, *, is_whole: bool = False
    ) -> None:
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
            self._hold_up_live()
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
        self._hold_up_live()
        self._common.positions.keep_route(self.number, text, None)
        self.has_durable = any(Kind.of(kind).is_durable for kind, _ in self.routes.values())
        return True

    def _store_route(
        self, text: str, kind: int, since_offset: int, earlier: tuple[int, Subscription] | None
    ) -> bool:
        """Store a filter with durable sessions behind it; returns whether something is stored."""
        if Kind.of(kind).is_durable:
            self._common.positions.keep_route(self.number, text, (kind, since_offset))
            return True
        if earlier is not None and Kind.of(earlier[0]).is_durable:
            self._common.positions.keep_route(self.number, text, None)
            return True
        return False

    def hello(self) -> Hello:
        """This cell's HELLO on the link."""
        common = self._common
        place = common.place
        return Hello(
            PROTOCOL, place.number, place.count, common.incarnation, common.positions.identity, self.heard,
            self.live_count, sorted(self.held), self.log_heard, self.kept_here, self._came,
        )  # fmt: skip


class LinkBox(Outbox):
    """Packets that wait to be put into a frame: at the end of a turn, or once the kernel took the one before."""

    __slots__ = ("_counted", "_link", "_weighed", "_weighed_bytes")

    def __init__(self, pending: PendingWrites, link: Link) -> None:
        super().__init__(pending, link.write)
        self._link = link
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
        link = self._link
        if link.is_crowded and not link.takes_more():
            self.messages_out -= 1
            link.count_dropped("link_full", 1)
            return
        super().add(chunk)

    def add_sent(self, packet: bytes) -> None:
        """A packet that the link counts itself."""
        self.chunks.append(packet)
        if not self.is_dirty:
            self.mark()

    def flush(self) -> int:
        self.is_dirty = False
        link = self._link
        if link.is_busy:
            link.check_crowd()
            return 0
        chunks = self.take()
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


class Common:
    """Everything that the links of a cell share. ``check_told`` is called when a cell follows more of this cell's
    filters, or is away."""

    def __init__(
        self, place: Place, hub: Hub, interest: Interest, check_told: Callable[[], None]
    ) -> None:
        self.place = place
        self.hub = hub
        self.interest = interest
        self.check_told = check_told
        self.incarnation = uuid4().hex
        self.positions = Positions(hub.context.writer)
        self.own_routes = OwnRoutes(hub)
        self.channels: set[Channel] = set()
        self.bad_frames = hub.context.metrics.counter(
            "cell_bad_frames", "connections of links that ended with bytes that are no frames"
        )
        self.links = {number: Link(self, number) for number in place.others}

    def link_of(self, hello: Hello) -> Link:
        """The link that a HELLO belongs to.

        Raises:
            FrameError: it is of another protocol, or of no other cell.
        """
        if hello.protocol < PROTOCOL:
            raise FrameError(f"HELLO frame: expected protocol {PROTOCOL}, got {hello.protocol}")
        if hello.cells != self.place.count:
            raise FrameError(f"HELLO frame: expected {self.place.count} cells, got {hello.cells}")
        link = self.links.get(hello.cell)
        if link is None:
            raise FrameError(f"HELLO frame: expected another cell, got {hello.cell}")
        return link


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
