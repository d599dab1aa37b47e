"""Routes from a topic to its subscribers, and delivery to them.

What depends on the topic alone is worked out once, as ``Routes``, and kept in the topic's plan. Routes with the same
subscribers are one object, so that a run of packets on different topics to the same subscribers can be recognised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar, cast
from weakref import WeakValueDictionary

from broker.codec.encode import qos0_packets
from broker.codec.outgoing import Outgoing
from broker.core.client import Client
from broker.core.message import Message
from broker.core.receipt import Withholder
from broker.core.subscription import Subscription
from broker.core.topic import TopicFilter
from broker.core.topic_trie import FilterTrie
from broker.routing.shared import Memberships, RoutedGroup, RoutedGroups


class Subscriber(Protocol):
    """Routing's view of a session."""

    client_id: str
    is_durable: bool
    """True if messages of QoS 1 and 2 for it go through the session log, since it must outlive the process."""

    @property
    def is_v5(self) -> bool | None:
        """True if it has MQTT 5; None for a cell, which takes packets of either version as they come (``Relay``)."""

    @property
    def outlives(self) -> bool:
        """True if it lasts without a connection, on disk or in memory: messages sent to it are needed until it
        acknowledges them."""

    @property
    def is_away(self) -> bool:
        """True if it has no connection."""

    @property
    def may_have(self) -> Callable[[str, int], bool] | None:
        """Function whether it may have messages on a topic for a subscription of that QoS; None if it may have all."""

    def take_packets(self, packets: bytes, count: int) -> bool:
        """Send ``count`` encoded QoS 0 PUBLISH; False if ``deliver`` must check each first."""

    def deliver(
        self, outgoing: Outgoing, qos: int, retain: bool, identifiers: tuple[int, ...]
    ) -> None:
        """Take a message now: send it, queue it within bounds, or drop and count it."""

    def drop(self, outgoing: Outgoing, why: str) -> None:
        """Count a message that it does not get, by reason."""


class Relay(Protocol):
    """Another cell, as a subscriber that takes packets as they came (``broker.cluster.sender``)."""

    @property
    def takes_acknowledged(self) -> bool:
        """True if ``forward`` may be called: nothing has to be known of a message of QoS 1."""

    def take_run(self, packets: bytes, count: int, *, is_v5: bool) -> None:
        """Send ``count`` encoded QoS 0 PUBLISH without properties, or drop and count them."""

    def forward(self, packet: bytes, *, is_v5: bool) -> Withholder:
        """Send a QoS 1 PUBLISH without properties; returns what its acknowledgement waits for."""


class Listener(Protocol):
    """Hears of every plain subscription that begins or ends (``broker.cluster.routes``)."""

    def added(self, subscriber: Subscriber, subscription: Subscription) -> None:
        """A subscriber has this subscription from now on."""

    def removed(self, subscriber: Subscriber, subscription: Subscription) -> None:
        """A subscriber no longer has it."""


class RunRecorder(Protocol):
    """Chooses messages that go the long way, since they are recorded (``broker.pipeline.recording``)."""

    left: int
    """Number of messages without properties that pass before one must be offered to ``picks``: who forwards them counts
    them here."""

    def picks(self, client: Client, count: int) -> int:
        """Count the next ``count`` messages of a client, more than are left: the position of the first that has to go
        the long way, -1 for none."""


class Watch(Protocol):
    """Sees the messages of routes on their way (``broker.pipeline.tails``, ``broker.pipeline.recording``)."""

    @property
    def is_shown(self) -> bool:
        """True if it has to see every message that is delivered; it matters then whose they are."""

    @property
    def recorder(self) -> RunRecorder | None:
        """Chooses some of the messages."""

    def delivers(self, message: Message) -> None:
        """A message is handed to its subscribers."""

    def forwards(
        self, chunk: bytes, count: int, client: Client, now_ns: int, *, is_v5: bool
    ) -> None:
        """Packets are handed to their subscribers as they came."""


_ALL: Final = TopicFilter.parse("#")
# Subscribers of a topic from which on it is worth memory to deliver to them faster.
_MANY: Final = 32

S = TypeVar("S", bound=Subscriber)
T = TypeVar("T", covariant=True)


class Entry(NamedTuple, Generic[S]):
    """One subscriber of a topic, its overlapping subscriptions joined into one [MQTT-3.3.4-2]."""

    subscriber: S
    qos: int
    no_local: bool
    retain_as_published: bool
    identifiers: tuple[int, ...]
    own: Entry[S] | None = None
    """Entry for the subscriber's own messages, when it has some subscriptions with No Local and some without."""

    @property
    def is_plain(self) -> bool:
        """True if only the QoS affects the packets."""
        return not (self.no_local or self.retain_as_published or self.identifiers)


class Target(NamedTuple, Generic[T]):
    """One session or share group that a logged message is for, and the form in which it gets it; groups decide
    what their members are sent."""

    subscriber: T
    qos: int
    retain: bool
    identifiers: tuple[int, ...]


# Appends a message to the session log for its targets. True: only for these (what is retained).
Keep = Callable[[Outgoing, Sequence[Target[S | RoutedGroup]], bool], None]


class Routes(Generic[S]):
    """Receivers of the messages of a topic.

    ``plain_v3``, ``plain_v5`` and ``cells`` hold every subscriber by protocol version when ``is_plain``: nothing but
    the QoS bears on what is sent, and there is no share group or there is one alone, ``only_group``. ``cells`` are
    other cells with the QoS they get messages at, ``own`` the entries of this one's clients. ``is_live`` adds
    that there is no group and no subscriber that outlives its connection. ``plain_qos`` is the highest QoS of messages
    that all subscribers get alike, as QoS 0: 2 where no subscription asks for more, -1 where they differ. ``watch`` is
    to see what goes the short way.
    """

    watch: Watch | None = None

    __slots__ = (
        "__weakref__", "_keep", "_known_targets", "cells", "entries", "groups", "is_empty", "is_live", "is_plain",
        "matched", "only_group", "own", "plain_qos", "plain_v3", "plain_v5",
    )  # fmt: skip

    def __init__(
        self, entries: Sequence[Entry[S]], groups: Sequence[RoutedGroup], keep: Keep[S]
    ) -> None:
        self.entries, self.groups, self._keep = tuple(entries), tuple(groups), keep
        self.is_empty = not (entries or groups)
        is_group_only = len(groups) == 1 and not entries and groups[0].takes_runs
        self.only_group = groups[0] if is_group_only else None
        self.is_plain = is_group_only or (not groups and all(entry.is_plain for entry in entries))
        self.is_live = (
            self.is_plain and not groups and not any(entry.subscriber.outlives for entry in entries)
        )
        self.plain_qos = -1
        if self.is_plain and not groups:
            self.plain_qos = 0 if any(entry.qos for entry in entries) else 2
        self.plain_v3 = [entry.subscriber for entry in entries if entry.subscriber.is_v5 is False]
        self.plain_v5 = [entry.subscriber for entry in entries if entry.subscriber.is_v5]
        self.cells: list[tuple[Relay, int]] = [
            (cast(Relay, entry.subscriber), entry.qos)
            for entry in entries
            if entry.subscriber.is_v5 is None
        ]
        self.own = self.entries
        if self.cells:
            self.own = tuple(entry for entry in entries if entry.subscriber.is_v5 is not None)
        self._known_targets: dict[tuple[int, bool], Sequence[Target[S]]] | None = None
        self.matched: list[tuple[S, Subscription]] | None = None
        """Subscriptions that these were first made of, kept so that the identities stay in use."""

    def deliver(self, message: Message, topic: bytes | None = None) -> int:
        """Hand the message to every subscriber, or of one that came before and was not committed to those that get it
        after the commit; returns how many subscribers there are."""
        if self.is_empty:
            return 0
        receipt = message.receipt
        is_again = receipt is not None and receipt.is_again
        if message.qos <= self.plain_qos and not (message.retain and self.cells):
            if is_again:
                return len(self.entries)
            return self._deliver_plain(message, message.topic.encode() if topic is None else topic)
        outgoing = Outgoing(message, topic or b"")
        publisher = message.client.client_id
        count = 0
        kept: list[Target[S | RoutedGroup]] = []
        for entry, target in zip(self.entries, self._targets(message), strict=True):
            subscriber = entry.subscriber
            if entry.no_local and subscriber.client_id == publisher:  # [MQTT-3.8.3-3]
                if entry.own is None:
                    subscriber.drop(outgoing, "no_local")
                    continue
                target = _target(entry.own, message)
            count += 1
            if subscriber.is_durable and target.qos:
                kept.append(target)
            # another cell gets QoS 2 by the log, so it lacks what was not committed
            elif not is_again or (target.qos and subscriber.is_v5 is None):
                subscriber.deliver(outgoing, target.qos, target.retain, target.identifiers)
        for group in self.groups:
            if group.is_durable and message.qos:
                group.note_kept(outgoing)
                kept.append(Target(group, message.qos, False, ()))
                count += 1
            else:
                count += is_again or group.offer(outgoing)
        if kept:
            self._keep(outgoing, kept, False)
        return count

    def _targets(self, message: Message) -> Sequence[Target[S]]:
        """Target of a message for each entry. Many entries have them made once and kept, by QoS and RETAIN: to
        make 6,000 of them for each message takes longer than the rest, and keeps the garbage collector busy."""
        if len(self.entries) < _MANY:
            return [_target(entry, message) for entry in self.entries]
        if self._known_targets is None:
            self._known_targets = {}
        targets = self._known_targets.get((message.qos, message.retain))
        if targets is None:
            targets = tuple(_target(entry, message) for entry in self.entries)
            self._known_targets[message.qos, message.retain] = targets
        return targets

    def _deliver_plain(self, message: Message, topic: bytes) -> int:
        """QoS 0 to subscribers that differ in nothing but their version: one packet each version, shared by all."""
        if message.properties:
            outgoing = Outgoing(message, topic)
            for entry in self.entries:
                entry.subscriber.deliver(outgoing, 0, False, ())
        else:
            self.deliver_run(((message, topic),))
        return len(self.entries)

    def deliver_run(self, run: Sequence[tuple[Message, bytes]]) -> None:
        """Hand messages without properties, of QoS ``plain_qos`` at most, to every subscriber, as ``deliver`` would one
        by one; each with the bytes of its topic."""
        for sessions, is_v5 in ((self.plain_v3, False), (self.plain_v5, True)):
            if sessions:
                packets = qos0_packets(run, is_v5=is_v5)
                for session in sessions:
                    if not session.take_packets(packets, len(run)):
                        for message, topic in run:
                            session.deliver(Outgoing(message, topic), 0, False, ())
        if self.cells:
            packets = qos0_packets(run, is_v5=False)
            for cell, _ in self.cells:
                cell.take_run(packets, len(run), is_v5=False)


class WatchedRoutes(Routes[S]):
    """Routes whose messages are shown to open tails."""

    __slots__ = ("_base", "watch")

    def __init__(self, base: Routes[S], watch: Watch) -> None:
        super().__init__(base.entries, base.groups, base._keep)
        self._base = base
        self.watch = watch

    def deliver(self, message: Message, topic: bytes | None = None) -> int:
        """Hand the message to every subscriber, and show it."""
        assert self.watch is not None
        self.watch.delivers(message)
        return super().deliver(message, topic)


def _target(entry: Entry[S], message: Message) -> Target[S]:
    retain = message.retain and entry.retain_as_published  # [MQTT-3.3.1-12, -13]
    return Target(entry.subscriber, min(message.qos, entry.qos), retain, entry.identifiers)


class Router(Generic[S]):
    """All subscriptions of the node. ``on_change`` gets the filter whose topics' routes are no longer right.

    Shared subscriptions, and those that begin in the past, are memberships of groups: ``memberships`` keeps these,
    ``groups`` are those that get messages.
    """

    def __init__(
        self,
        keep: Keep[S],
        on_change: Callable[[TopicFilter], None],
        memberships: Memberships[S],
        groups: RoutedGroups,
    ) -> None:
        self._keep = keep
        self._on_change = on_change
        self._memberships = memberships
        self._groups = groups
        self._plain: FilterTrie[tuple[S, Subscription]] = FilterTrie()
        self._interned: WeakValueDictionary[tuple[object, ...], Routes[S]] = WeakValueDictionary()
        self._by_match: WeakValueDictionary[tuple[int, ...], Routes[S]] = WeakValueDictionary()
        """Routes by the identities of the subscriptions of a topic's filters: a new topic of known subscribers needs no
        entries."""
        self._watched: WeakValueDictionary[tuple[int, int], WatchedRoutes[S]] = (
            WeakValueDictionary()
        )
        self._remote: FilterTrie[tuple[S, Subscription]] = FilterTrie()
        """Filters of the clients of other cells, whose subscribers are those cells."""
        self.listener: Listener | None = None
        self._leaving: set[S] = set()
        self._limited: set[S] = set()
        self.subscription_count = self.shared_subscription_count = 0

    def subscribe(self, subscriber: S, subscription: Subscription, is_new: bool) -> None:
        """Add or replace a subscription; ``is_new``: whether the session had none of this filter."""
        self.subscription_count += is_new
        self.shared_subscription_count += is_new and subscription.filter.share_group is not None
        topic_filter = subscription.filter
        if subscription.is_membership:
            if not is_new and topic_filter.share_group is None:
                self._take_out(subscriber, topic_filter)
            self._memberships.join(subscriber, subscription)
        else:
            if not is_new:
                self._memberships.leave(subscriber, topic_filter.text)
            if self.listener is not None:
                if (
                    earlier := self._plain.get(topic_filter.levels, subscriber.client_id)
                ) is not None:
                    self.listener.removed(*earlier)
                self.listener.added(subscriber, subscription)
            self._plain.put(topic_filter.levels, subscriber.client_id, (subscriber, subscription))
        self._on_change(topic_filter)

    def unsubscribe(self, subscriber: S, topic_filter: TopicFilter) -> None:
        """Remove a subscription that the session had."""
        self.subscription_count -= 1
        self.shared_subscription_count -= topic_filter.share_group is not None
        if not self._memberships.leave(subscriber, topic_filter.text):
            self._take_out(subscriber, topic_filter)
        self._on_change(topic_filter)

    def _take_out(self, subscriber: S, topic_filter: TopicFilter) -> None:
        """Remove a plain subscription."""
        if (
            self.listener is not None
            and (entry := self._plain.get(topic_filter.levels, subscriber.client_id)) is not None
        ):
            self.listener.removed(*entry)
        self._plain.remove(topic_filter.levels, subscriber.client_id)

    def put_remote(self, cell: S, subscription: Subscription) -> None:
        """Send what a filter matches to a cell that has subscribers for it, too."""
        self._remote.put(subscription.filter.levels, cell.client_id, (cell, subscription))
        self._on_change(subscription.filter)

    def remove_remote(self, cell: S, topic_filter: TopicFilter) -> None:
        """Send a cell no more what only this filter matches."""
        self._remote.remove(topic_filter.levels, cell.client_id)
        self._on_change(topic_filter)

    def remote(self, topic: str) -> list[tuple[S, Subscription]]:
        """Every filter of other cells that matches a topic name."""
        return [value for _, value in self._remote.match(topic)]

    def regroup(self) -> None:
        """A subscriber changed its version, or the messages it may have: all routes are outdated."""
        self.forget_routes()
        self._on_change(_ALL)

    def limit(self, subscriber: S) -> None:
        """Register a change of a subscriber's rights; ``regroup`` must follow if it has subscriptions."""
        if subscriber.may_have is None:
            self._limited.discard(subscriber)
        else:
            self._limited.add(subscriber)

    def leave(self, subscriber: S, subscriptions: Sequence[Subscription]) -> Iterator[None]:
        """Remove all that a subscriber had: it gets nothing from now on, and what is left of it goes with the steps.
        Until they are done there may be another one of its name."""
        for subscription in subscriptions:
            if subscription.is_membership:
                self.unsubscribe(subscriber, subscription.filter)
        filters = [
            subscription.filter for subscription in subscriptions if not subscription.is_membership
        ]
        self.subscription_count -= len(filters)
        self._leaving.add(subscriber)
        self.regroup()
        return self._remove(subscriber, filters)

    def _remove(self, subscriber: S, filters: Sequence[TopicFilter]) -> Iterator[None]:
        for topic_filter in filters:
            entry = self._plain.get(topic_filter.levels, subscriber.client_id)
            if entry is not None and entry[0] is subscriber:
                self._take_out(subscriber, topic_filter)
            yield
        self._leaving.discard(subscriber)

    @property
    def leaving(self) -> int:
        """Number of subscribers that left but still have subscriptions here."""
        return len(self._leaving)

    def routes(self, topic: str) -> Routes[S]:
        """The routes of a topic name, shared with other topics that have the same subscribers."""
        matched = self._match(topic)
        if not self._remote.is_empty:
            matched = matched + self._remote.match(topic)
        return self._routes_of(matched, [group for _, group in self._groups.match(topic)])

    def own_routes(self, topic: str) -> Routes[S]:
        """The same without other cells and share groups, for a message that one of them sent: it has given it to its
        part of the groups."""
        return self._routes_of(self._match(topic), [])

    def _routes_of(
        self, matched: list[tuple[str, tuple[S, Subscription]]], groups: list[RoutedGroup]
    ) -> Routes[S]:
        ids = tuple([id(value) for _, value in matched] + [id(group) for group in groups])
        known_routes = self._by_match.get(ids)
        if known_routes is not None:
            return known_routes
        by_client: dict[str, Entry[S]] = {}
        for client_id, (subscriber, subscription) in matched:
            entry = _entry(subscriber, subscription)
            earlier = by_client.get(client_id)
            by_client[client_id] = entry if earlier is None else _joined(earlier, entry)
        key = (
            *(_identity(entry) for entry in by_client.values()),
            *(id(group) for group in groups),
        )
        routes = self._interned.get(key)
        if routes is None:
            routes = self._interned[key] = Routes(list(by_client.values()), groups, self._keep)
        if routes.matched is None:
            routes.matched = [value for _, value in matched]
            self._by_match[ids] = routes
        return routes

    def watched(self, routes: Routes[S], watch: Watch) -> Routes[S]:
        """The routes, showing their messages to a watch; one object for both."""
        key = id(routes), id(watch)
        watched = self._watched.get(key)
        if watched is None:
            watched = self._watched[key] = WatchedRoutes(routes, watch)
        return watched

    def matching(self, topic: str) -> list[tuple[S, Subscription]]:
        """Every plain subscription that matches a topic name."""
        return [value for _, value in self._match(topic)]

    def subscribed(self, topic: str) -> list[tuple[S, Subscription]]:
        """The same with those that get nothing, since access rules withhold the topic."""
        return [value for _, value in self._plain.match(topic)]

    def _match(self, topic: str) -> list[tuple[str, tuple[S, Subscription]]]:
        matched = self._plain.match(topic)
        if self._leaving:
            matched = [match for match in matched if match[1][0] not in self._leaving]
        if self._limited:
            matched = [match for match in matched if self._gets(topic, *match[1])]
        return matched

    def _gets(self, topic: str, subscriber: S, subscription: Subscription) -> bool:
        if subscriber not in self._limited:
            return True
        may_have = subscriber.may_have
        return may_have is None or may_have(topic, subscription.qos)

    def matching_groups(self, topic: str) -> list[str]:
        """The keys of the groups that get messages on a topic name."""
        return [key for key, _ in self._groups.match(topic)]

    def forget_routes(self) -> None:
        """Make routes again from now on, since a subscriber changed its version or durability."""
        self._interned.clear()
        self._by_match.clear()


def _entry(subscriber: S, subscription: Subscription) -> Entry[S]:
    identifiers = (subscription.identifier,) if subscription.identifier else ()
    return Entry(
        subscriber,
        subscription.qos,
        subscription.no_local,
        subscription.retain_as_published,
        identifiers,
    )


def _identity(entry: Entry[S]) -> tuple[object, ...]:
    own = entry.own
    return (id(entry.subscriber), *entry[1:-1], None if own is None else own[1:-1])


def _joined(first: Entry[S], other: Entry[S]) -> Entry[S]:
    """Overlapping subscriptions as one: highest QoS, all identifiers; those with No Local not for own messages."""
    own = None
    if first.no_local or other.no_local:
        mine = [
            item
            for entry in (first, other)
            if (item := entry.own if entry.no_local else entry) is not None
        ]
        own = mine[0] if len(mine) == 1 else _joined(*mine) if mine else None
    return Entry(
        # another cell with durable sessions gets everything by the session log
        first.subscriber if first.subscriber.is_durable else other.subscriber,
        max(first.qos, other.qos),
        first.no_local or other.no_local,
        first.retain_as_published or other.retain_as_published,
        first.identifiers + other.identifiers,
        own,
    )
