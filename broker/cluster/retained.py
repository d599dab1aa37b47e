"""Retained messages over several cells: each cell has those of the topics whose hash leads to it.

A message with RETAIN goes to the cell of its topic by the session log of the publisher's cell, in the commit group of
all that it leaves there, so no crash of either loses or doubles it. Its acknowledgement waits until that cell has
it stored, or says why it is refused. What begins with ``$SYS`` is each cell's own, but
for states of bridges.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from broker.cluster.frames import (
    Frame,
    FrameError,
    FrameType,
    LoggedRecord,
    Refused,
    RetainedAsked,
    RetainedTold,
    decoded,
    encoded,
)
from broker.cluster.inbox import OwnRoutes
from broker.cluster.link import Link
from broker.cluster.log_sender import retained_addressee
from broker.cluster.retained_look_ups import LookUps
from broker.codec.outgoing import Outgoing
from broker.connection.hub import Hub
from broker.core import reason
from broker.core.cells import Place
from broker.core.client import Client
from broker.core.message import Message
from broker.core.receipt import Acknowledgement
from broker.core.stage import Refusable, Refusal
from broker.core.stored import CorruptMessage
from broker.core.topic import SYS_PREFIX, is_bridge_state
from broker.routing.retained_record import Origin, decode_retained, encode_retained
from broker.routing.router import Target

# Refusals that are remembered for each cell, in case that a break of the link lost them.
_MOST_REFUSED: Final = 256
# Seconds between two frames with totals, while these are far below every limit.
_TOTALS_S: Final = 1.0
_STAGE: Final = "retained"
_NO_CLIENT: Final = Client("")


class _Sent:
    """A message for the retained store of another cell: a subscriber for the session log, and what its publisher's
    acknowledgement waits for."""

    __slots__ = (
        "_acknowledgement", "_cells", "_is_answer", "_is_over", "_size_bytes", "client_id", "link", "offset", "stamp"
    )  # fmt: skip

    def __init__(self, cells: RetainedOfCells, link: Link, message: Message, stamp: int) -> None:
        self._cells = cells
        # the refusal of what a rule publishes is not that of the message it ran on
        self._is_answer = not message.via
        self.link = link
        self.stamp = stamp
        self.client_id = retained_addressee(link.number, stamp)
        self.offset = -1
        self._acknowledgement: Acknowledgement | None = None
        self._size_bytes = 0
        self._is_over = False

    def add(self, acknowledgement: Acknowledgement, size_bytes: int) -> None:
        """Withhold the acknowledgement until the other cell has the message."""
        self._acknowledgement = acknowledgement
        self._size_bytes = size_bytes
        if self._is_over:
            self.end(None)

    def end(self, refusal: Refusal | None) -> None:
        """The other cell has it, or refused it."""
        self._is_over = True
        acknowledgement = self._acknowledgement
        if acknowledgement is not None:
            self._acknowledgement = None
            if refusal is not None and self._is_answer and isinstance(acknowledgement, Refusable):
                acknowledgement.refuse(refusal)
            self._cells.hub.withholding.let_go(acknowledgement, self._size_bytes)

    def accept_logged(
        self, offset: int, outgoing: Outgoing, qos: int, retain: bool, identifiers: tuple[int, ...]
    ) -> None:
        """The record is committed."""
        del identifiers
        self.offset = offset
        self._cells.committed(self)
        self.link.log.accept(offset, outgoing, qos, retain, self.stamp)

    def pump(self) -> None:
        """Send what was accepted."""
        self.link.log.flush()


class _Settling:
    """A cell that waits until all that was published here before is where it has to be."""

    __slots__ = ("bound", "link", "number", "since")

    def __init__(self, link: Link, number: int, since: int, bound: int) -> None:
        self.link, self.number, self.since, self.bound = link, number, since, bound


class RetainedOfCells:
    """The retained messages of the other cells, as ``broker.routing.retained_store.Owners``."""

    def __init__(
        self,
        place: Place,
        hub: Hub,
        links: Mapping[int, Link],
        own_routes: OwnRoutes,
        tell_routes: Callable[[], None],
    ) -> None:
        self._place = place
        self.hub = hub
        self._links = links
        self._retained = hub.retained
        self._waiting: dict[int, deque[_Sent]] = {number: deque() for number in links}
        """Committed messages whose publishers wait for the other cell, by cell, in the order of their offsets."""
        self._open: list[_Sent] = []
        self._refusals: dict[int, dict[int, Refusal]] = {number: {} for number in links}
        self._heard: set[int] = set()
        """Cells whose totals came since the link is up, and with them the refusals that a break may have lost."""
        self._refused_here: dict[int, deque[Refused]] = {
            number: deque(maxlen=_MOST_REFUSED) for number in links
        }
        self._totals = dict.fromkeys(links, (0, 0))
        self.count = self.size_bytes = 0
        self._is_told_now = self._is_told_soon = False
        self._is_new = False
        self._bound = 0
        """Offset behind the last message with RETAIN in this cell's session log."""
        self._settling: list[_Settling] = []
        self._is_checked_soon = False
        self.look_ups = LookUps(place, hub, links, own_routes, tell_routes)
        hub.context.writer.before_commit(self._sealed)
        for number, link in links.items():
            link.takers[FrameType.RETAINED_ASKED] = partial(self._take_asked, link)
            link.takers[FrameType.RETAINED_TOLD] = partial(self._take_told, link)
            link.takers[FrameType.RETAINED_FOUND] = partial(self.look_ups.take_found, link)
            link.receiver.take_retained = partial(self._take, link)
            link.log.on_kept = partial(self._kept, number)
        self._retained.owners = self
        hub.replays.cells = self.look_ups

    def link_changed(self, link: Link) -> None:
        """A link is up, or down."""
        if link.is_up:
            refusals = self._refusals[link.number]
            for offset in [at for at in refusals if at >= link.log.next_offset]:
                del refusals[offset]  # the message is sent again, and may be retained then
            came = link.receiver.came  # what is behind comes again
            again = [refused for refused in self._refused_here[link.number] if refused[0] < came]
            link.send(encoded(self._told(refused=again)))
        else:
            self._heard.discard(link.number)
            self._settling = [asked for asked in self._settling if asked.link is not link]
        self._check_soon()
        self.look_ups.link_changed(link)

    # -- messages of this cell's publishers --

    def has(self, topic: str) -> bool:
        """See ``Owners``."""
        is_own = topic.startswith(SYS_PREFIX) and not is_bridge_state(topic)
        return not is_own and not self._place.has(topic)

    async def among(self, topics: Sequence[str]) -> set[str]:
        """See ``Owners``."""
        return await self.look_ups.among(topics)

    def noted(self, message: Message) -> None:
        """See ``Owners``."""
        self._is_new = True
        self.look_ups.note(message.topic)

    def send(self, message: Message, stamp: int) -> None:
        """See ``Owners``. A message that too much is withheld for already is refused, and not sent."""
        receipt = message.receipt
        if receipt is not None and receipt.is_over:
            return
        sent = _Sent(self, self._links[self._place.cell_of(message.topic)], message, stamp)
        value = encode_retained(message, stamp) if message.payload else b""
        outgoing = Outgoing(
            Message(message.topic, value, message.qos, True, message.client, message.received_ns)
        )
        waits = self.hub.withholding.wait_for(sent, outgoing.size_bytes, receipt)
        if receipt is not None and receipt.is_over:
            return
        target: Target[Any] = Target(sent, message.qos, True, ())
        self.hub.session_log.keep(outgoing, [target], True)
        if waits:
            if not self._open:
                self.hub.context.writer.when_committed(partial(self._settle, self._open))
            self._open.append(sent)

    def _sealed(self) -> None:
        if self._open:
            self._open = []

    @staticmethod
    def _settle(sent: list[_Sent], error: BaseException | None) -> None:
        if error is not None:  # their publishers hear of it
            for message in sent:
                message.end(None)

    def committed(self, sent: _Sent) -> None:
        """A message is in this cell's session log."""
        self._waiting[sent.link.number].append(sent)

    def _kept(self, number: int, offset: int, is_lost: bool) -> None:
        """Another cell has everything below an offset, or lost some."""
        if number not in self._heard and not is_lost:
            return
        waiting = self._waiting[number]
        refusals = self._refusals[number]
        while waiting and waiting[0].offset < offset:
            sent = waiting.popleft()
            refusal = refusals.pop(sent.offset, None)
            if refusal is None and is_lost:
                text = f"cell {number}, which has the topic, is away, and too much waits for it"
                refusal = Refusal(_STAGE, _STAGE, "cell_behind", reason.QUOTA_EXCEEDED, text)
            sent.end(refusal)
        for old in [at for at in refusals if at < offset]:
            del refusals[old]
        self._check_soon()

    # -- messages of other cells' publishers --

    def _take(self, link: Link, record: LoggedRecord) -> None:
        """Retain a message, in the commit group that holds how far the other cell's log is kept; or refuse it."""
        if self.has(record.topic):
            raise FrameError(
                f"LOG frame: expected a topic of this cell, got {record.topic[:100]!r}"
            )
        try:
            message = decode_retained(record.topic, record.payload) if record.payload else None
        except CorruptMessage as error:
            raise FrameError(f"LOG frame: expected a retained message, got {error}") from None
        if message is None:
            message = Message(record.topic, b"", record.qos, True, _NO_CLIENT, 0)
        refusal = self._retained.refusal(message)
        refused_here = self._refused_here[link.number]
        while refused_here and refused_here[-1][0] >= record.offset:
            refused_here.pop()
        if refusal is None:
            self._retained.take(message, Origin(link.number, record.stamp))
        else:
            refused = (record.offset, refusal.reason, refusal.reason_code, refusal.text)
            refused_here.append(refused)
            link.send(encoded(self._told(refused=[refused])))

    # -- totals --

    def changed(self) -> None:
        """See ``Owners``: the others hear of it, at once where a limit is near."""
        is_near = self._retained.is_near_limit
        if is_near and not self._is_told_now:
            self._is_told_now = True
            self.hub.context.defer(self._tell)
        elif not (is_near or self._is_told_soon):
            self._is_told_soon = True
            self.hub.context.later(_TOTALS_S, self._tell_late)

    def _tell_late(self) -> None:
        self._is_told_soon = False
        self._tell()

    def _tell(self) -> None:
        self._is_told_now = False
        told = encoded(self._told())
        for link in self._links.values():
            link.send(told)

    def _told(self, **members: Any) -> RetainedTold:
        return RetainedTold(
            max(0, self._retained.count), max(0, self._retained.size_bytes), **members
        )

    def _take_told(self, link: Link, frame: Frame) -> None:
        told = decoded(RetainedTold, frame)
        number = link.number
        self._totals[number] = told.count, told.size_bytes
        self.count = sum(count for count, _ in self._totals.values())
        self.size_bytes = sum(size for _, size in self._totals.values())
        if self._is_told_soon:
            self.changed()  # at once, if a limit is near now
        is_again = number not in self._heard
        waiting = self._waiting[number]
        for offset, why, code, text in told.refused:
            if is_again and (
                not waiting or offset < waiting[0].offset or offset in self._refusals[number]
            ):
                continue
            self._refused(number, offset, Refusal(_STAGE, _STAGE, why, code, text))
        if is_again:
            self._heard.add(number)
            self._kept(number, link.log.kept, False)
        if told.settled:
            self.look_ups.settled(link, told.settled, told.since)

    def _refused(self, number: int, offset: int, refusal: Refusal) -> None:
        """Another cell does not retain a message of this cell's log."""
        self._refusals[number][offset] = refusal
        for at, message, _ in self.hub.session_log.part(offset):
            if at == offset and message.payload:
                message = decode_retained(message.topic, message.payload)
                self.hub.pipeline.not_retained(message, refusal)
            break

    # -- what was published before --

    def _take_asked(self, link: Link, frame: Frame) -> None:
        asked = decoded(RetainedAsked, frame)
        if asked.settles:
            if self._is_new:
                self._is_new = False
                self._bound = self.hub.session_log.since_offset
            settling = _Settling(link, asked.settles, self._retained.stamp, self._bound)
            link.when_committed(partial(self._asked_committed, settling))
        if asked.look_ups:
            self.look_ups.answer(link, asked.look_ups)

    def _asked_committed(self, settling: _Settling, _error: BaseException | None) -> None:
        # a commit that failed gives the offsets of its records to later ones
        settling.bound = min(settling.bound, self.hub.session_log.log_next)
        self._settling.append(settling)
        self._check()

    def _check_soon(self) -> None:
        if self._settling and not self._is_checked_soon:
            self._is_checked_soon = True
            self.hub.context.defer(self._check)

    def _check(self) -> None:
        """Tell those that wait for no more."""
        self._is_checked_soon = False
        waiting = self._settling
        self._settling = []
        for settling in waiting:
            if all(link.log.is_past(settling.bound) for link in self._links.values() if link.is_up):
                told = self._told(settled=settling.number, since=settling.since)
                settling.link.send_in_order(encoded(told))
            else:
                self._settling.append(settling)
