"""The link to one other cell: what is sent over it, what came, and the filters of both.

The connection is a stream socket over which both cells say HELLO with their progress, so that nothing of QoS 1 and 2 is
lost or doubled when it breaks: live messages are counted, and sent again from the position that the other cell
names; records of the session log are sent from the offset that it has committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from logging import getLogger
from typing import Final, Protocol
from uuid import uuid4

from broker.cluster.frames import MAX_NUMBERS, OLDEST, PROTOCOL, Frame, FrameError, FrameType, Hello
from broker.cluster.inbox import OwnRoutes
from broker.cluster.log_sender import LogSender
from broker.cluster.peer import Peer
from broker.cluster.positions import Positions
from broker.cluster.receiver import Receiver
from broker.cluster.remote_routes import RemoteRoutes
from broker.cluster.routes import Interest
from broker.cluster.sender import RemoteCell, Sender
from broker.connection.hub import Hub
from broker.core.cells import Place
from broker.core.signals import Signal
from broker.session.log_queue import LostRecords

_log = getLogger(__name__)

# Seconds after which the live subscribers of a cell that is away are forgotten.
GRACE_S: Final = 10.0


class LinkPart(Protocol):
    """A part of a link with frames of its own."""

    def begin(self) -> None:
        """The link is up."""

    def end(self) -> None:
        """The link is down."""


class Link:
    """Everything that this cell and another one send each other."""

    def __init__(self, common: Common, number: int) -> None:
        self._common = common
        self.number = number
        self.hub = common.hub
        positions = common.positions
        self._peer = peer = Peer(common.hub, number)
        self._sender = sender = Sender(peer, positions.kept_by(number))
        self.receiver = receiver = Receiver(peer, positions, common.own_routes)
        self._stored_kept = -1
        self._said: Hello
        """The last HELLO of this cell."""
        self.parts: list[LinkPart] = []
        """What else begins and ends with the connection."""
        self.keep_kept()
        self._routes = routes = RemoteRoutes(peer, positions, sender, common.check_told)
        self.takers: dict[FrameType, Callable[[Frame], None]] = {
            FrameType.LIVE: receiver.take_live,
            FrameType.TAKEN: sender.take_taken,
            FrameType.LOG: receiver.take_logged,
            FrameType.KEPT: sender.take_kept,
            FrameType.ROUTES: routes.take,
            FrameType.ROUTED: routes.take_routed,
            FrameType.PING: _ignore,
        }
        """What takes each type of frames."""
        self.protocol = PROTOCOL
        """The protocol that both cells use, once the other one has said HELLO."""
        self.refused = ""
        """Reason of the last connection that ended with a frame error, until the link is up."""
        self.send: Final = peer.send
        self.when_committed: Final = peer.when_committed
        self.count_dropped: Final = peer.count_dropped
        self.send_in_order: Final = sender.send_in_order
        self.pause: Final = sender.pause
        self.go_on: Final = sender.go_on

    @property
    def is_up(self) -> bool:
        """True if the cells are connected."""
        return self._peer.is_up

    @property
    def routed(self) -> int:
        """Version of this cell's filters that the other one follows."""
        return self._routes.routed

    @property
    def live(self) -> RemoteCell:
        """The other cell as a subscriber without a session on disk."""
        return self._sender.live

    @property
    def heard(self) -> str:
        """Incarnation of the other cell."""
        return self.receiver.heard

    @property
    def log_heard(self) -> str:
        """Identity of its session log."""
        return self.receiver.log_heard

    @property
    def log(self) -> LogSender:
        """The session log on its way to the other cell."""
        return self._sender.log

    def check_protocol(self, hello: Hello) -> None:
        """Check that the cells have a protocol in common.

        Raises:
            FrameError: they have none.
        """
        if hello.protocol < OLDEST:
            raise FrameError(
                f"HELLO frame: expected protocol {OLDEST} or newer, got {hello.protocol}: the release of cell"
                f" {hello.cell} is too old for this one; upgrade its machine"
            )
        if hello.oldest > PROTOCOL:
            raise FrameError(
                f"HELLO frame: expected protocol {PROTOCOL} or older, got {hello.oldest}: this release is too old for"
                f" that of cell {hello.cell}; upgrade this machine"
            )

    def begin(self, write: Callable[[bytes], None], end: Callable[[], None], hello: Hello) -> None:
        """The other cell said HELLO over a connection that these functions write to and end: send what it lacks.

        Raises:
            FrameError: its progress cannot be.
        """
        common = self._common
        is_log_known = hello.log_heard == common.positions.identity
        if is_log_known and max(hello.kept, hello.came) > self.hub.session_log.log_next:
            common.positions.renew()
            raise FrameError(
                f"HELLO frame: expected an offset up to {self.hub.session_log.log_next}, got {hello.kept}: the store"
                " of this cell lost its newest records"
            )
        self.protocol = min(PROTOCOL, hello.protocol)
        again = self._sender.resume(hello, common.incarnation)
        self._peer.begin(write, end)
        self.receiver.begin(hello, self._said)
        self._sender.begin(again, *((hello.kept, hello.came) if is_log_known else (0, 0)))
        self._routes.begin()
        self.tell(common.interest.all(), common.interest.version, is_whole=True)
        for part in self.parts:
            part.begin()
        self.refused = ""
        common.on_link(self)
        _log.info("link.up peer=%d protocol=%d", self.number, self.protocol)

    def end(self) -> None:
        """The connection is lost."""
        self._peer.end()
        self._sender.end()
        self._routes.end()
        self.receiver.end()
        for part in self.parts:
            part.end()
        self.hub.context.later(GRACE_S, self._forget, self._peer.lives)
        self._common.check_told()
        self._common.on_link(self)
        _log.warning("link.down peer=%d", self.number)

    def expect(self, end: Callable[[], None]) -> None:
        """HELLO is said over a connection that ``end`` ends: a commit that fails before the answer takes it back."""
        self._peer.hang_up = end

    def hang_up(self) -> None:
        """End the connection, if there is one."""
        self._peer.hang_up()

    def _forget(self, lives: int) -> None:
        """The other cell is away for long: its live subscribers are gone."""
        if lives == self._peer.lives:
            self._sender.end_transits()
            self.log.forget_live()
            self._routes.forget_live()

    def take_back_offsets(self, lost: LostRecords) -> None:
        """Records of the session log could not be stored: those behind them get their offsets."""
        self._routes.take_back_offsets(lost)
        self._sender.take_back_offsets(lost)

    def stop(self) -> None:
        """The node stops: no publisher waits any longer."""
        self.hang_up()
        self._peer.lives += 1
        self._sender.end_transits()
        self.log.end_transits()

    def take(self, frame: Frame) -> None:
        """Take a frame of the other cell.

        Raises:
            FrameError: it breaks the rules.
        """
        taker = self.takers.get(frame.type)
        if taker is None:
            raise FrameError(f"expected no {frame.type.name} now")
        taker(frame)

    def tell(
        self, changes: Iterable[tuple[str, int | None]], version: int, *, is_whole: bool = False
    ) -> None:
        """Tell the other cell which filters changed, or all of them."""
        self._routes.tell(changes, version, is_whole=is_whole)

    def keep_kept(self) -> None:
        """Store how far the other cell has committed this cell's log, for a restart."""
        kept = self.log.kept
        if kept != self._stored_kept:
            self._stored_kept = kept
            self._common.positions.keep_kept(self.number, kept)

    def hello(self) -> Hello:
        """This cell's HELLO on the link."""
        common = self._common
        place = common.place
        came = self.receiver
        self._said = Hello(
            PROTOCOL, place.number, place.count, common.incarnation, common.positions.identity, came.heard,
            came.live_count, sorted(came.held)[-MAX_NUMBERS:], came.log_heard, came.kept, came.came, OLDEST,
        )  # fmt: skip
        return self._said


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
        self.on_link = Signal[Link]()
        """With a link that is up, or down."""
        self.channels: set[Callable[[], None]] = set()
        """The connections of all links, as functions that end them."""
        self.bad_frames = hub.context.metrics.counter(
            "cell_bad_frames", "connections of links that ended with bytes that are no frames"
        )
        self._refused = ""
        """Reason of the last frame error of a connection whose cell was not known."""
        self.links = {number: Link(self, number) for number in place.others}

    def refuse(self, link: Link | None, reason: str) -> None:
        """Note that a connection ended with a frame error; cells try again several times a second, so each reason is
        logged once. ``link`` is None before the other cell is known."""
        self.bad_frames.value += 1
        last = self._refused if link is None else link.refused
        if reason == last:
            return
        if link is None:
            self._refused = reason
        else:
            link.refused = reason
        peer = "not known" if link is None else str(link.number)
        _log.error("link.bad_frame peer=%s reason=%s", peer, reason)

    def link_of(self, hello: Hello) -> Link:
        """The link that a HELLO belongs to.

        Raises:
            FrameError: it is of no other cell.
        """
        if hello.cells != self.place.count:
            raise FrameError(f"HELLO frame: expected {self.place.count} cells, got {hello.cells}")
        link = self.links.get(hello.cell)
        if link is None:
            raise FrameError(f"HELLO frame: expected another cell, got {hello.cell}")
        return link


def _ignore(_frame: Frame) -> None:
    """PING: that it came is noted where bytes come."""
