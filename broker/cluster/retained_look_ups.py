"""Look-ups of retained messages over all cells, for subscriptions of this cell's clients.

A look-up finds what is retained when its subscription is made; later messages come live. Each message is sent once,
and none of a topic after a newer one:

* The cells are asked, behind the frame that tells them the filter, to say when all messages with RETAIN that they have
  published are with the cells of their topics, and with this one. They name a stamp: their later messages have higher
  ones and come live, so values with those are passed over.
* The topic of each message with RETAIN that arrives after the subscription is noted, and its value passed over: the
  message was live.

Slices are read as a client takes them, one ahead. A cell that does not answer in time is left out and asked again when
it answers, or is back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from broker.cluster.frames import (
    FoundSlice,
    Frame,
    FrameError,
    LookUp,
    RetainedAsked,
    RetainedFound,
    decoded,
    encoded,
)
from broker.cluster.inbox import OwnRoutes
from broker.cluster.link import Link
from broker.connection.hub import Hub
from broker.core.cells import Place
from broker.core.errors import PeerError
from broker.core.message import Message
from broker.core.topic import SYSTEM_LEVEL, TopicFilter, system_of_clients
from broker.core.topic_keys import FilterWalk, topic_of
from broker.routing.retained_record import decode_retained, origin_of, stamp_of

# Seconds within which a cell has to answer.
ANSWER_S: Final = 2.0
# Messages in a slice, and about their bytes.
_MESSAGES: Final = 256
_BYTES: Final = 64 * 1024
# Slices that one cell is asked for at a time; further requests wait.
_MOST_ASKED: Final = 64
# Bytes of filters and positions in one frame of requests, unless one alone is larger.
_ASKED_BYTES: Final = 256 * 1024
# Seconds of a turn of the loop for answers to other cells.
_TURN_S: Final = 0.002
# Topics that are noted, and their characters: with more, the cells are asked to settle again.
_MOST_NOTED: Final = 20_000
_MOST_NOTED_CHARS: Final = 2_000_000


class _State(msgspec.Struct, array_like=True, frozen=True):
    """A look-up as the store keeps it: what it needs to continue in another process."""

    since: dict[int, int]
    as_of: dict[int, int]
    left: dict[int, bytes]
    unsettled: list[int]


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_State).decode


class LookUpOfCells:
    """The retained messages of one subscription. Implements
    ``broker.connection.sessions.retained_delivery.LookUp``."""

    __slots__ = (
        "_arrived", "_as_of", "_asked", "_before", "_look_ups", "_missing", "_noted_at", "_on_more", "_round", "filter",
        "has_begun", "is_closed", "is_settling", "left", "own_as_of", "since", "unsettled", "walk",
    )  # fmt: skip

    def __init__(
        self, look_ups: LookUps, topic_filter: TopicFilter, on_more: Callable[[], None]
    ) -> None:
        self._look_ups = look_ups
        self.filter = topic_filter.filter
        self.walk = FilterWalk(topic_filter)
        self._on_more = on_more
        self.since: dict[int, int] = {}
        """By cell, the stamp above which its messages come live."""
        self.left: dict[int, bytes] = {}
        """Cells that have more, with the key where they continue."""
        self._missing: dict[int, bytes] = {}
        """Cells that did not answer, with the key where they would continue."""
        self.unsettled: set[int] = set()
        """Cells of which messages may yet come to the others that are not live."""
        self._as_of: dict[int, int] = {}
        """By cell, the stamp up to which this pass sees its messages; and earlier passes saw them."""
        self._before: dict[int, int] = {}
        self._noted_at = self._round = 0
        self._arrived: dict[int, FoundSlice] = {}
        self._asked: dict[int, int] = {}
        """Requests that are not answered, by cell."""
        self.has_begun = False
        """True once each cell has sent a slice, or is left out."""
        self.own_as_of = 0
        self.is_settling = self.is_closed = False

    @property
    def is_over(self) -> bool:
        """True if there is nothing more, unless a cell that did not answer does so yet."""
        return not (self.is_settling or self.left)

    @property
    def is_complete(self) -> bool:
        """True if all cells have answered."""
        return self.is_over and not self._missing and not self.unsettled

    def take(self) -> list[Message] | None:
        """The next messages, which may be none; None if there are none yet: ``on_more`` is called then."""
        if self.is_settling:
            return None
        if self.is_over:
            return []
        if self._round != self._look_ups.round:
            self._arrived.clear()
            self._asked.clear()
            self._look_ups.settle(self)
            return None
        own = self._look_ups.number
        cell = next((cell for cell in self.left if cell == own or cell in self._arrived), None)
        if cell is None:
            return None
        found = self._arrived.pop(cell, None) or self._look_ups.own_slice(self, self.left[cell])
        messages = [
            message for key, value in found.values if (message := self._wanted(cell, key, value))
        ]
        self._as_of.setdefault(cell, found.as_of)
        if found.position is None:
            del self.left[cell]
            self._before[cell] = max(self._before.get(cell, 0), self._as_of.pop(cell))
        else:
            self.left[cell] = found.position
            self._ask(cell)
        return messages

    def _ask(self, cell: int) -> None:
        if cell != self._look_ups.number and cell not in self._asked:
            self._asked[cell] = self._look_ups.ask(self, cell, self.left[cell])

    def _wanted(self, cell: int, key: bytes, value: bytes) -> Message | None:
        """The message of a value, None for one that came live, or was sent before."""
        stamp = stamp_of(value)
        if stamp <= self._before.get(cell, 0):
            return None
        origin = origin_of(value)
        source, source_stamp = (cell, stamp) if origin is None else origin
        since = self.since.get(source)
        if since is not None and source_stamp > since:
            return None
        topic = topic_of(key)
        if self._look_ups.is_noted(topic, self._noted_at):
            return None
        return decode_retained(topic, value)

    def state(self) -> bytes:
        """All that another process needs to continue."""
        left = {**self._missing, **self.left}
        if self.is_settling and not left:
            left = dict.fromkeys(self._look_ups.owners(self.walk), b"")
        return _encode(_State(self.since, self._before, left, sorted(self.unsettled)))

    def restore(self, state: bytes) -> None:
        """Continue from ``state``."""
        known = _decode(state)
        self.since.update(known.since)
        self._before.update(known.as_of)
        self.left.update(known.left)
        self.unsettled.update(known.unsettled)

    def close(self) -> None:
        """Drop the rest."""
        self.is_closed = True
        self._look_ups.forget(self)

    # -- from the look-ups --

    def settling(self, noted_at: int, current: int, own_as_of: int) -> None:
        """The cells are asked to settle."""
        self.own_as_of = own_as_of
        self.is_settling = True
        if not self._noted_at:
            self._noted_at = noted_at
        self._round = current

    def settled(self, since: Mapping[int, int], missing: set[int]) -> None:
        """They have, but for some."""
        self.is_settling = False
        for cell, stamp in since.items():
            self.since.setdefault(cell, stamp)
        self.unsettled |= missing
        self.unsettled -= since.keys()
        if not self.left and not self._missing:
            self.left = dict.fromkeys(self._look_ups.owners(self.walk), b"")
        for cell in filter(self._look_ups.is_here, list(self._missing)):
            self.left[cell] = self._missing.pop(cell)  # it came back meanwhile
        for cell in list(self.left):
            if self._look_ups.is_here(cell):
                self._ask(cell)
            else:
                self._missing[cell] = self.left.pop(cell)
        self._go_on()

    def _go_on(self) -> None:
        self.has_begun = self.has_begun or not self._asked
        self._on_more()

    def awaits(self, cell: int, number: int) -> bool:
        """True if it waits for the answer to a request."""
        return self._asked.get(cell) == number

    def found(self, cell: int, found: FoundSlice) -> None:
        """A slice came."""
        del self._asked[cell]
        self._arrived[cell] = found
        self._go_on()

    def not_found(self, cell: int) -> None:
        """The cell that was asked did not answer, or is away."""
        self._asked.pop(cell, None)
        if cell in self.left:
            self._missing[cell] = self.left.pop(cell)
        self._go_on()

    def lacks(self, cell: int) -> bool:
        """True if a cell did not answer."""
        return cell in self._missing or cell in self.unsettled

    def resume(self, cell: int) -> None:
        """A cell that did not answer is back."""
        if cell in self.unsettled:
            self.left.update(dict.fromkeys(self._look_ups.owners(self.walk), b""))
            self._missing.clear()
        elif cell in self._missing:
            self.left[cell] = self._missing.pop(cell)
        self._look_ups.settle(self)


class _Presence:
    """A question whether a topic of another cell has a message."""

    __slots__ = ("asked", "filter", "is_closed", "is_there")

    def __init__(self, topic: str) -> None:
        self.filter = topic
        self.asked: int | None = None
        self.is_closed = False
        self.is_there: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def awaits(self, _cell: int, number: int) -> bool:
        """True if it waits for the answer to a request."""
        return self.asked == number

    def found(self, _cell: int, found: FoundSlice) -> None:
        """The answer."""
        if not self.is_there.done():
            self.is_there.set_result(bool(found.values))

    def not_found(self, _cell: int) -> None:
        """There is none."""
        if not self.is_there.done():
            self.is_there.set_result(False)


class _Group:
    """Look-ups that begin in one turn of the loop, and the cells that have not settled yet."""

    __slots__ = ("awaited", "is_over", "look_ups", "missing", "since")

    def __init__(self, look_ups: list[LookUpOfCells]) -> None:
        self.look_ups = look_ups
        self.awaited: set[int] = set()
        self.missing: set[int] = set()
        self.since: dict[int, int] = {}
        self.is_over = False


class LookUps:
    """The look-ups of this cell's subscriptions, and the answers to those of others."""

    def __init__(
        self,
        place: Place,
        hub: Hub,
        links: Mapping[int, Link],
        own_routes: OwnRoutes,
        tell_routes: Callable[[], None],
    ) -> None:
        self._place = place
        self.number = place.number
        self._hub = hub
        self._links = links
        self._own_routes = own_routes
        self._tell_routes = tell_routes
        self._retained = hub.retained
        self._open: dict[LookUpOfCells, None] = {}
        self._joining: list[LookUpOfCells] = []
        self._groups: dict[int, _Group] = {}
        self._settles = self._requests = 0
        self._asked: dict[int, tuple[LookUpOfCells | _Presence, int]] = {}
        """Requests without an answer: by number, the look-up and the cell."""
        self._count = dict.fromkeys(links, 0)
        """Requests without an answer, by cell."""
        self._queued: dict[int, deque[LookUp]] = {number: deque() for number in links}
        self._is_asking = False
        self._noted: dict[str, int] = {}
        self._noted_chars = 0
        self._notes = 1
        self.round = 1
        """Grows each time that noted topics are forgotten while a look-up is under way."""
        self._answers: deque[tuple[Link, LookUp, int]] = deque()
        """Requests of other cells, with the stamp up to which their answers see messages."""
        self._is_answering = False

    def covers(self, topic_filter: TopicFilter) -> bool:
        """True if other cells may have retained messages that match."""
        levels = topic_filter.levels
        return levels[0] != SYSTEM_LEVEL or bool(system_of_clients(levels))

    def begin(
        self, topic_filter: TopicFilter, on_more: Callable[[], None], state: bytes | None = None
    ) -> LookUpOfCells:
        """Look up the retained messages of a subscription that is made now, or that ``state`` is of. ``on_more`` is
        called each time that there is more to take, or nothing more."""
        look_up = LookUpOfCells(self, topic_filter, on_more)
        if state is None:
            look_up.since[self.number] = self._retained.stamp
        else:
            look_up.restore(state)
        self._open[look_up] = None
        self._own_routes.on_retained = self.note
        self.settle(look_up)
        return look_up

    def forget(self, look_up: LookUpOfCells) -> None:
        """A look-up is over."""
        self._open.pop(look_up, None)
        if not self._open:
            self._own_routes.on_retained = None
            self._noted.clear()
            self._noted_chars = 0

    def owners(self, walk: FilterWalk) -> list[int]:
        """The cells that may have matching messages, this one first."""
        if walk.exact is not None:
            return [self._place.cell_of(topic_of(walk.exact))]
        return [self.number, *self._links]

    def is_here(self, cell: int) -> bool:
        """True if a cell can be asked."""
        return cell == self.number or self._links[cell].is_up

    # -- what came live --

    def note(self, topic: str) -> None:
        """A message with RETAIN is published here, or came from another cell."""
        if not self._open:
            return
        if topic not in self._noted:
            self._noted_chars += len(topic)
            if len(self._noted) >= _MOST_NOTED or self._noted_chars > _MOST_NOTED_CHARS:
                self._noted.clear()
                self._noted_chars = len(topic)
                self.round += 1
        self._notes += 1
        self._noted[topic] = self._notes

    def is_noted(self, topic: str, since: int) -> bool:
        """True if a topic was noted after this many notes."""
        return self._noted.get(topic, 0) > since

    # -- settling --

    def settle(self, look_up: LookUpOfCells) -> None:
        """Ask all cells to settle, once for all look-ups of this turn."""
        look_up.settling(self._notes, self.round, self._retained.stamp)
        if not self._joining:
            self._hub.context.defer(self._ask_to_settle)
        self._joining.append(look_up)

    def _ask_to_settle(self) -> None:
        self._tell_routes()  # which the others have to follow first
        group = _Group(self._joining)
        self._joining = []
        self._settles += 1
        number = self._settles
        self._groups[number] = group
        group.awaited.add(self.number)
        for cell, link in self._links.items():
            if link.is_up:
                group.awaited.add(cell)
                link.send(encoded(RetainedAsked(number)))
            else:
                group.missing.add(cell)
        self._hub.context.writer.when_committed(
            lambda _: self._settled(number, self.number, self._retained.stamp)
        )
        self._hub.context.later(ANSWER_S, self._settle_late, number)

    def settled(self, link: Link, number: int, since: int) -> None:
        """A cell has settled."""
        self._settled(number, link.number, since)

    def _settled(self, number: int, cell: int, since: int | None) -> None:
        group = self._groups.get(number)
        if group is None or cell not in group.awaited:
            return
        group.awaited.discard(cell)
        if since is None:
            group.missing.add(cell)
        else:
            group.since[cell] = since
            if group.is_over:
                self._resume(group.look_ups, cell)
        if not group.awaited:
            del self._groups[number]
            self._end(group)

    def _settle_late(self, number: int) -> None:
        group = self._groups.get(number)
        if group is not None:
            group.missing |= group.awaited
            self._end(group)

    @staticmethod
    def _end(group: _Group) -> None:
        if group.is_over:
            return
        group.is_over = True
        for look_up in group.look_ups:
            if not look_up.is_closed:
                look_up.settled(group.since, group.missing)

    def _resume(self, look_ups: Sequence[LookUpOfCells], cell: int) -> None:
        """A cell answers, or is back: those that lack it are continued."""
        for look_up in look_ups:
            if not look_up.is_closed and not look_up.is_settling and look_up.lacks(cell):
                look_up.resume(cell)

    # -- slices --

    def own_slice(self, look_up: LookUpOfCells, position: bytes) -> FoundSlice:
        """A slice of this cell's own messages."""
        values, following = self._retained.read_values(
            look_up.walk, position, _MESSAGES, _BYTES * 4
        )
        return FoundSlice(0, look_up.own_as_of, values, following)

    async def among(self, topics: Sequence[str]) -> set[str]:
        """Topics of other cells that have a message."""
        asked = list[_Presence]()
        for topic in topics:
            cell = self._place.cell_of(topic)
            if self.is_here(cell):
                question = _Presence(topic)
                question.asked = self.ask(question, cell, b"", has_values=False)
                asked.append(question)
        return {question.filter for question in asked if await question.is_there}

    def ask(
        self,
        look_up: LookUpOfCells | _Presence,
        cell: int,
        position: bytes,
        *,
        has_values: bool = True,
    ) -> int:
        """Ask a cell for a slice; returns the request's number."""
        self._requests += 1
        number = self._requests
        self._asked[number] = look_up, cell
        self._queued[cell].append(LookUp(number, look_up.filter, position, has_values))
        self._ask_soon()
        self._hub.context.later(ANSWER_S, self._ask_late, number)
        return number

    def _ask_soon(self) -> None:
        if not self._is_asking:
            self._is_asking = True
            self._hub.context.defer(self._ask)

    def _ask(self) -> None:
        self._is_asking = False
        for cell, queued in self._queued.items():
            requests = list[LookUp]()
            size = 0
            while queued and self._count[cell] < _MOST_ASKED:
                request = queued.popleft()
                entry = self._asked.get(request.number)
                if entry is None:
                    continue
                if entry[0].is_closed:
                    del self._asked[request.number]
                    continue
                self._count[cell] += 1
                if size >= _ASKED_BYTES:
                    self._links[cell].send(encoded(RetainedAsked(0, requests)))
                    requests = []
                    size = 0
                requests.append(request)
                size += len(request.filter) * 3 + len(request.position)
            if requests:
                self._links[cell].send(encoded(RetainedAsked(0, requests)))

    def _ask_late(self, number: int) -> None:
        """A cell has not answered in time: it may yet."""
        entry = self._asked.get(number)
        if entry is not None and entry[0].awaits(entry[1], number):
            entry[0].not_found(entry[1])

    def take_found(self, link: Link, frame: Frame) -> None:
        """Take the slices of a RETAINED_FOUND frame."""
        for found in decoded(RetainedFound, frame).slices:
            entry = self._asked.pop(found.number, None)
            if entry is None or entry[1] != link.number:
                raise FrameError(
                    f"RETAINED_FOUND frame: expected an open request, got {found.number}"
                )
            self._count[link.number] -= 1
            look_up = entry[0]
            if look_up.is_closed:
                continue
            if look_up.awaits(link.number, found.number):
                look_up.found(link.number, found)
            elif isinstance(look_up, LookUpOfCells):
                self._resume([look_up], link.number)
        if self._queued[link.number]:
            self._ask_soon()

    def link_changed(self, link: Link) -> None:
        """A link is up, or down."""
        cell = link.number
        if link.is_up:
            for number, group in self._groups.items():
                if cell in group.missing and not group.is_over:
                    group.missing.discard(cell)
                    group.awaited.add(cell)
                    link.send(encoded(RetainedAsked(number)))
            self._resume(list(self._open), cell)
            return
        self._answers = deque(answer for answer in self._answers if answer[0] is not link)
        self._queued[cell].clear()
        self._count[cell] = 0
        for number in [number for number, entry in self._asked.items() if entry[1] == cell]:
            look_up, _ = self._asked.pop(number)
            if not look_up.is_closed and look_up.awaits(cell, number):
                look_up.not_found(cell)
        for number in list(self._groups):
            self._settled(number, cell, None)

    # -- answers to other cells --

    def answer(self, link: Link, requests: Sequence[LookUp]) -> None:
        """Answer look-ups of another cell, once all is committed that it may have to find."""
        as_of = self._retained.stamp
        if self._retained.waiting:
            link.when_committed(partial(self._answer, link, requests, as_of))
        else:
            self._answer(link, requests, as_of, None)

    def _answer(
        self, link: Link, requests: Sequence[LookUp], as_of: int, _error: BaseException | None
    ) -> None:
        self._answers.extend((link, request, as_of) for request in requests)
        if not self._is_answering:
            self._is_answering = True
            self._hub.context.defer(self._answer_some)

    def _answer_some(self) -> None:
        """Answer some, as many as this turn of the loop has time for."""
        self._is_answering = False
        clock = self._hub.context.clock
        until_s = clock.monotonic_s() + _TURN_S
        slices: list[FoundSlice] = []
        size = 0
        while self._answers and size < _BYTES * 4:
            link, request, as_of = self._answers.popleft()
            found = self._slice(link, request, as_of)
            if found is not None:
                slices.append(found)
                size += sum(len(key) + len(value) for key, value in found.values)
            is_last = not self._answers or self._answers[0][0] is not link
            if slices and (is_last or size >= _BYTES * 4):
                link.send(encoded(RetainedFound(slices)))
                slices = []
            if clock.monotonic_s() > until_s:
                break
        if slices:
            link.send(encoded(RetainedFound(slices)))
        if self._answers:
            self._is_answering = True
            self._hub.context.defer(self._answer_some)

    def _slice(self, link: Link, request: LookUp, as_of: int) -> FoundSlice | None:
        try:
            walk = FilterWalk(TopicFilter.parse(request.filter))
            values, position = self._retained.read_values(walk, request.position, _MESSAGES, _BYTES)
        except PeerError:
            link.hang_up()
            return None
        if not request.has_values:
            values = [(key, b"") for key, _ in values]
        return FoundSlice(request.number, as_of, values, position)
