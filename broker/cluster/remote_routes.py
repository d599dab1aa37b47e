"""The filters of another cell, which this cell's router follows, and the messages that tell it this cell's own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final

from broker.cluster.frames import Frame, FrameError, RouteChanges, Routed, decoded, encoded
from broker.cluster.peer import Peer
from broker.cluster.positions import Positions
from broker.cluster.routes import Kind
from broker.cluster.sender import Sender
from broker.core.errors import PeerError
from broker.core.subscription import Subscription
from broker.core.topic import TopicFilter
from broker.session.log_queue import LostRecords

# Filters in one frame, some milliseconds of both cells' loops, and their bytes.
_FILTERS: Final = 1024
_FILTER_BYTES: Final = 512 * 1024


class RemoteRoutes:
    """Routes to another cell by its filters. ``check_told`` is called when it follows more of this cell's filters."""

    def __init__(
        self, peer: Peer, positions: Positions, sender: Sender, check_told: Callable[[], None]
    ) -> None:
        self._peer = peer
        self._hub = peer.hub
        self._positions = positions
        self._sender = sender
        self._check_told = check_told
        self._followed: dict[str, tuple[int, Subscription]] = {}
        self._listed: set[str] | None = None
        self._unlisted: set[str] = set()
        """Filters that the other cell has no longer, which are removed in the turns to come."""
        self._to_tell: deque[Iterator[None]] = deque()
        self.routed = 0
        """Version of this cell's filters that the other one follows."""
        self._is_stored = False
        """True where the version that comes has a filter that is stored."""
        self._storing = 0
        """Versions that are answered once they are stored; later ones wait for them."""
        log_next = self._hub.session_log.log_next
        for text, kind, since_offset in positions.routes_of(peer.number):
            # a process that was killed may have stored one from behind records that it could not store
            self._put_route(text, kind, min(since_offset, log_next))

    def begin(self) -> None:
        """The link is up: the other cell is told all filters."""
        self.routed = self._storing = 0
        self._is_stored = False

    def end(self) -> None:
        """The link is down."""
        self._listed = None
        self._to_tell.clear()

    def forget_live(self) -> None:
        """The other cell is away for long: its live subscribers are gone."""
        self._hub.context.scheduler.run_in_background(self._remove_live())

    def _remove_live(self) -> Iterator[None]:
        lives = self._peer.lives
        for text, (kind, _) in list(self._followed.items()):
            if lives != self._peer.lives:
                return
            if not Kind.of(kind).is_durable:
                self._remove_route(text)
            yield

    def _remove_unlisted(self) -> Iterator[None]:
        while self._unlisted:
            self._remove_route(self._unlisted.pop())
            yield

    def take_routed(self, frame: Frame) -> None:
        """The other cell follows a version of this cell's filters."""
        self.routed = decoded(Routed, frame).version
        self._check_told()

    def tell(
        self, changes: Iterable[tuple[str, int | None]], version: int, *, is_whole: bool = False
    ) -> None:
        """Tell the other cell which filters changed, or all of them: one frame now, further ones in later turns."""
        self._to_tell.append(self._tell(changes, version, is_whole))
        if len(self._to_tell) == 1:
            self._tell_some(self._peer.lives)

    def _tell_some(self, lives: int) -> None:
        if lives != self._peer.lives:
            return
        while self._to_tell:
            for _ in self._to_tell[0]:
                self._hub.context.defer(self._tell_some, lives)
                return
            self._to_tell.popleft()

    def _tell(
        self, changes: Iterable[tuple[str, int | None]], version: int, is_first: bool
    ) -> Iterator[None]:
        part: list[tuple[str, int | None]] = []
        size = 0
        for change in changes:
            if len(part) >= _FILTERS or size >= _FILTER_BYTES:
                self._peer.send(encoded(RouteChanges(version, is_first, False, part)))
                yield
                is_first = False
                part = []
                size = 0
            part.append(change)
            size += len(change[0]) * 3
        self._peer.send(encoded(RouteChanges(version, is_first, True, part)))

    def take(self, frame: Frame) -> None:
        """Follow filters that changed, or all of them."""
        routes = decoded(RouteChanges, frame)
        if routes.is_first:
            self._listed = set()
        since_offset = self._hub.session_log.since_offset
        for text, kind in routes.changes:
            self._unlisted.discard(text)
            if kind is None:
                self._is_stored |= self._remove_route(text)
                continue
            if self._listed is not None:
                self._listed.add(text)
            earlier = self._followed.get(text)
            if earlier is not None and earlier[0] == kind:
                continue
            since = since_offset
            if earlier is not None and Kind.of(earlier[0]).is_durable:
                since = earlier[1].since_offset
            self._put_route(text, kind, since)
            self._is_stored |= self._store_route(text, kind, since, earlier)
        if not routes.is_last:
            return
        if self._listed is not None:
            self._unlisted = self._followed.keys() - self._listed
            self._listed = None
            self._hub.context.scheduler.run_in_background(self._remove_unlisted())
        routed = encoded(Routed(routes.version))
        if self._is_stored or self._storing:
            self._is_stored = False
            self._storing += 1
            self._peer.when_committed(partial(self._routed, routed))
        else:
            self._peer.send(routed)

    def _routed(self, routed: bytes, error: BaseException | None) -> None:
        self._storing -= 1
        if error is None:
            self._peer.send(routed)

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
        earlier = self._followed.get(text)
        if earlier is not None and _comes_by_log(Kind.of(earlier[0])) and not _comes_by_log(kind):
            self._sender.hold_up_live()
        self._followed[text] = (kind_number, subscription)
        if earlier is not None and Kind.of(earlier[0]).is_durable:
            self._peer.durable_filters -= 1
            if not kind.is_durable:
                self._sender.log.was_durable(earlier[1])
        self._peer.durable_filters += kind.is_durable
        cell: Any = self._sender.durable if kind.is_durable else self._sender.live
        self._hub.router.put_remote(cell, subscription)

    def take_back_offsets(self, lost: LostRecords) -> None:
        """Filters that were to hold from behind lost records on hold from those that get their offsets."""
        for text, (kind, subscription) in list(self._followed.items()):
            since = lost.moved(subscription.since_offset)
            if since != subscription.since_offset:
                self._put_route(text, kind, since)
                self._store_route(text, kind, since, None)

    def _remove_route(self, text: str) -> bool:
        """Remove a filter; returns whether that is to be stored."""
        route = self._followed.pop(text, None)
        if route is None:
            return False
        cell: Any = self._sender.durable
        self._hub.router.remove_remote(cell, route[1].filter)
        if _comes_by_log(Kind.of(route[0])):
            self._sender.hold_up_live()
        if not Kind.of(route[0]).is_durable:
            return False
        self._positions.keep_route(self._peer.number, text, None)
        self._peer.durable_filters -= 1
        self._sender.log.was_durable(route[1])
        return True

    def _store_route(
        self, text: str, kind: int, since_offset: int, earlier: tuple[int, Subscription] | None
    ) -> bool:
        """Store a filter with durable sessions behind it; returns whether something is stored."""
        if Kind.of(kind).is_durable:
            self._positions.keep_route(self._peer.number, text, (kind, since_offset))
            return True
        if earlier is not None and Kind.of(earlier[0]).is_durable:
            self._positions.keep_route(self._peer.number, text, None)
            return True
        return False


def _comes_by_log(kind: Kind) -> bool:
    """Whether messages come by the session log: all of QoS 1 and 2, or those that were published with QoS 2."""
    return kind.is_durable or kind.qos == 2
