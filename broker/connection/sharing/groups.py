"""All share groups of a node: who is in which, what of them is kept in the store, and what time brings them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from broker.connection.backpressure import Backpressure
from broker.connection.context import Context
from broker.connection.dead_letters import DeadLetters
from broker.connection.sessions.log import SessionLog
from broker.connection.sharing.cursors import Cursor
from broker.connection.sharing.group import ShareGroup
from broker.connection.sharing.member import Member
from broker.connection.sharing.services import (
    OF_CELL,
    GroupLosses,
    GroupServices,
    GroupState,
    OtherCells,
)
from broker.connection.sharing.settings import SharedSettings
from broker.connection.sharing.strategies import StrategyName
from broker.connection.withholding import Withholding
from broker.core import reason
from broker.core.contributor import Change, Contributor, Uses
from broker.core.errors import AlreadyExists, Invalid, NotFound, PeerError
from broker.core.kinds import are, counted
from broker.core.objects import Reference, saving
from broker.core.subscription import Subscription
from broker.core.topic import TopicFilter
from broker.routing.shared import RoutedGroups
from broker.session.delivery import SharedDelivery
from broker.session.log_queue import LostRecords
from broker.session.session import Session
from broker.storage.collection import RAW, TEXT, Collection
from broker.streams.starts import Start, StreamStarts

# Interval of the search for messages that are too old.
_OLD_TICKS: Final = 60


# User property of a SUBSCRIBE that begins in the past: ``earliest``, ``latest``, a time, or ``offset:N``.
OFFSET: Final = "stream-offset"
# The user property that names a stream, where several capture the topics.
STREAM: Final = "stream"


class NoStart(PeerError):
    """The subscription cannot begin where it asks to; code 0x83, and the text is for the client."""

    def __init__(self, text: str) -> None:
        super().__init__(reason.IMPLEMENTATION_SPECIFIC_ERROR, text)


def asked_start(properties: dict[str, Any]) -> tuple[str, str | None] | None:
    """Position at which a SUBSCRIBE asks to begin, and its stream; None when it does not."""
    asked = dict(properties.get("User-Property", ()))
    return (asked[OFFSET], asked.get(STREAM)) if OFFSET in asked else None


class ShareGroups(Contributor):
    """All share groups of a node; implements ``broker.routing.shared.Memberships``."""

    def __init__(
        self,
        context: Context,
        settings: SharedSettings,
        session_log: SessionLog,
        routed: RoutedGroups,
        dead_letters: DeadLetters,
        backpressure: Backpressure,
        withholding: Withholding,
        starts: StreamStarts | None,
    ) -> None:
        self.settings = settings
        self.starts = starts
        metrics = context.metrics
        self.groups: dict[str, ShareGroup] = {}
        self._writer = context.writer
        self._session_log = session_log
        self._routed = routed
        self._clock = context.clock
        self._stored = Collection(context.writer, b"share-group/", TEXT, RAW)
        self._dirty: dict[GroupState, None] = {}
        self._starts: dict[tuple[str, str], Start] = {}
        self._listening: set[int] = set()
        self._ticks = 0
        self._services = GroupServices(
            context=context,
            settings=settings,
            session_log=session_log,
            backpressure=backpressure,
            withholding=withholding,
            losses=GroupLosses(context.events, dead_letters),
            changed=self._changed,
            when_recorded=self._when_recorded,
        )
        session_log.when_lost(self._take_back_offsets)
        metrics.gauge("shared_groups", lambda: len(self.groups), "share groups")
        metrics.gauge(
            "shared_waiting", lambda: sum(group.waiting for group in self.groups.values()),
            "messages that wait for a member of their share group",
        )  # fmt: skip
        metrics.gauge(
            "shared_inflight", lambda: sum(
                member.in_flight for group in self.groups.values() for member in group.own_members
            ),
            "messages of share groups sent and not acknowledged",
        )  # fmt: skip

    # -- other cells --

    def span(self, cells: OtherCells) -> None:
        """Let groups have members in other cells, from before ``load`` on."""
        self._services.cells = cells

    def join_far(self, topic_filter: TopicFilter, member: Member, *, is_durable: bool) -> None:
        """Make a session of another cell a member; its group is told when it comes."""
        group = self.groups.get(topic_filter.text)
        if group is None:
            group = self._new(topic_filter.text, topic_filter, None, is_private=False)
        member.group = group
        group.enter(member)
        if is_durable or group.is_kept or self.settings.durable == "all":
            if not group.is_persistent:
                self._make_durable(group)
            self._changed(group)

    def when_recorded(
        self, group: ShareGroup, done: Callable[[BaseException | None], None]
    ) -> None:
        """Write the record of a group, and call a function once it is committed."""
        self._when_recorded(group, done)

    def leave_far(self, member: Member) -> None:
        """A session of another cell is no longer a member."""
        group = self.groups.get(member.group.key)
        if group is None or group is not member.group:
            return
        group.leave(member)
        self._changed(group)
        if not group.members and not group.is_kept:
            self._end(group)

    # -- memberships --

    def begin(
        self, session: Session, topic_filter: TopicFilter, asked: tuple[str, str | None]
    ) -> None:
        """Begin the session's next subscription where it asks to. One that exists, or whose group does, continues
        from its position.

        Raises:
            NoStart: no stream has the topics, or the start is not valid.
        """
        if self._services.cells is not None and topic_filter.share_group is not None:
            raise NoStart("a share group over several cells cannot begin in the past")
        if self.is_there(session, topic_filter):
            return
        if self.starts is None:
            raise NoStart("this broker has no streams to begin in")
        try:
            self._starts[(session.client_id, topic_filter.text)] = self.starts.find(
                topic_filter, *asked
            )
        except Invalid as error:
            raise NoStart(str(error)) from error

    def check(self, session: Session, topic_filter: TopicFilter) -> None:
        """Refuse a session that outlives its connection where no group keeps messages on disk.

        Raises:
            PeerError: 0x9E.
        """
        if (
            topic_filter.share_group is not None
            and session.is_durable
            and self.settings.durable == "off"
        ):
            raise PeerError(
                reason.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED,
                "sessions that outlive their connection may not share subscriptions here; "
                "connect with expiry interval 0",
            )

    def brings_retained(self, session: Session, subscription: Subscription) -> bool:
        """True if a subscription is sent retained messages. Groups get none (section 4.8.2) or, where that is set, only
        their first member; a stream that a subscription begins in has them among the others."""
        if not subscription.is_membership:
            return True
        if subscription.is_replayed or self.settings.retained == "none":
            return False
        return not self.is_there(session, subscription.filter)

    def is_there(self, session: Session, topic_filter: TopicFilter) -> bool:
        """True if there is a group that a subscription of the session with this filter joins."""
        return group_key(session.client_id, topic_filter) in self.groups

    def join(self, subscriber: Session, subscription: Subscription) -> None:
        """Make a session a member, or change how it is one."""
        topic_filter = subscription.filter
        key = group_key(subscriber.client_id, topic_filter)
        group = self.groups.get(key)
        start = self._starts.pop((subscriber.client_id, topic_filter.text), None)
        if group is None:
            group = self._new(key, topic_filter, start, is_private=topic_filter.share_group is None)
        self._settle_durability(group, subscriber, subscription)
        member = group.join(subscriber, subscription)
        subscriber.memberships[topic_filter.text] = member
        if not subscriber.is_away:
            group.came(member)
            if subscriber.window.quota > 0:
                member.offer_room()

    def leave(self, subscriber: Session, text: str) -> bool:
        """End a membership by the text of its subscription; False when there was none."""
        member = subscriber.memberships.pop(text, None)
        if not isinstance(member, Member):
            return False
        group = self.groups[member.group.key]
        group.leave(member)
        if not group.members and not group.is_kept:
            self._end(group)
        return True

    def here(self, session: Session) -> None:
        """The session has a connection, and its CONNACK is sent."""
        for holder in session.memberships.values():
            if isinstance(holder, Member):
                holder.group.came(holder)

    def away(self, session: Session, *, for_good: bool = False) -> None:
        """The session's connection is lost, or the session ends: others get what it leaves."""
        holders = {
            delivery.holder: None for delivery in session.window.inflight.values()
        } | dict.fromkeys(session.memberships.values())
        for holder in holders:
            if isinstance(holder, Member):
                holder.group.went_away(holder, for_good=for_good)

    def may_be_durable(self, session: Session) -> bool:
        """True if a session in memory may go to disk with its memberships."""
        return self.settings.durable != "off" or not session.memberships

    def part_with(self, session: Session) -> None:
        """A session in memory is about to go to disk, with messages in flight that no group has a record of."""
        for delivery in session.window.inflight.values():
            if isinstance(delivery, SharedDelivery) and isinstance(delivery.holder, Member):
                delivery.holder.group.part_with(delivery.holder, delivery)

    def member_is_durable(self, session: Session) -> None:
        """A session in memory has gone to disk: so do the groups that it is in."""
        for text, holder in session.memberships.items():
            if isinstance(holder, Member):
                self._settle_durability(
                    self.groups[holder.group.key], session, session.subscriptions[text]
                )

    # -- actions of users --

    def make(
        self, topic_filter: TopicFilter, start: Start | None, strategy: StrategyName | None
    ) -> ShareGroup:
        """A group that outlives its members.

        Raises:
            AlreadyExists: there is one.
        """
        text = topic_filter.text
        if text in self.groups:
            raise AlreadyExists("share group", text)
        if start is not None and self._services.cells is not None:
            raise Invalid(
                "start: expected none with --workers: a share group over several cells cannot begin in the past"
            )
        saving()
        group = self._new(text, topic_filter, start, is_private=False, strategy=strategy)
        group.is_kept = True
        self._make_durable(group)
        self._writer.touch()
        return group

    def delete(self, key: str) -> None:
        """Discard what waits for a group. While it has members, it continues empty; else it is deleted.

        Raises:
            NotFound: there is none.
        """
        group = self.groups.get(key)
        if group is None:
            raise NotFound("share group", key)
        saving()
        self._end(group)
        members = list(group.members.values())
        for member in members:
            if member.cell is not None and self._services.cells is not None:
                self._services.cells.rejoin(group, member)
                continue
            session = member.session
            text = group.filter.text
            member.is_member = False
            subscription = session.subscriptions.get(text)
            session.memberships.pop(text, None)
            if subscription is not None:
                self.join(session, subscription)
        self._writer.touch()

    # -- the store --

    def load(self) -> None:
        """Restore groups, before the sessions that are their members."""
        for key, value in self._stored.stored():
            self._add(ShareGroup.decode(key, value, self._services))

    def adopt(self, session: Session) -> None:
        """Give a restored session what it has in flight for groups, or let it forget that."""
        for packet_id, delivery in list(session.window.inflight.items()):
            if not isinstance(delivery, SharedDelivery) or delivery.claim is None:
                continue
            if (
                self._services.cells is not None
                and delivery.claim[0].startswith(OF_CELL)
                and self._services.cells.adopt(session, packet_id, delivery)
            ):
                continue
            group = self.groups.get(delivery.claim[0])
            member = None if group is None else group.members.get(session.client_id)
            if group is None or member is None or not group.adopt(member, delivery):
                del session.window.inflight[packet_id]

    def loaded(self) -> None:
        """All sessions are back: groups whose members all ended with the process end as well."""
        for group in list(self.groups.values()):
            if not group.members and not group.is_kept:
                self._end(group)

    def save(self) -> None:
        """Put what changed into the commit group that is being sealed."""
        dirty = self._dirty
        self._dirty = {}
        for state in dirty:
            group = self.groups.get(state.key)
            value = group.encode() if group is not None and group.is_persistent else None
            self._stored.put(state.key, value)
        if dirty:
            self._writer.when_committed(
                lambda error: self._not_saved(dirty) if error is not None else None
            )

    def _not_saved(self, dirty: dict[GroupState, None]) -> None:
        """The group could not be written: the next one has what changed."""
        self._dirty = dirty | self._dirty

    def kept_from(self) -> int:
        """The lowest offset of the session log that a group still needs."""
        shard = self._session_log.shard
        log_next = self._session_log.log_next
        lows = (group.low_offset(shard) for group in self.groups.values())
        return min((low for low in lows if low is not None), default=log_next)

    def _take_back_offsets(self, lost: LostRecords) -> None:
        """Groups that were to begin behind lost records begin with those that get their offsets."""
        for group in self.groups.values():
            if group.stream is None:
                for cursor in group.cursors:
                    if (offset := lost.moved(cursor.next_offset)) != cursor.next_offset:
                        cursor.next_offset = offset
                        self._changed(group)

    def uses(self) -> Uses:
        """The streams that groups read."""
        for group in self.groups.values():
            if group.stream is not None:
                yield Reference("share group", group.key), Reference("stream", group.stream)

    def consequences(self, change: Change) -> Iterator[str]:
        """The messages that a group loses when it is deleted, and its members."""
        group = self.groups.get(change.target.name)
        if group is None or change.target.kind != "share group" or change.after is not None:
            return
        if group.waiting:
            yield f"{are(group.waiting, 'message')} discarded."
        if group.behind:
            yield f"It leaves {counted(group.behind, 'record')} of stream {group.stream!r} unread."
        if group.members:
            yield f"It continues empty with {counted(len(group.members), 'member')}."

    # -- time --

    def tick(self) -> None:
        """Move what members have had for too long, drop what waits for too long."""
        now_ns = self._clock.now_ns()
        self._ticks += 1
        is_old_due = self._ticks % _OLD_TICKS == 0
        least_offset = self._session_log.offset_within_bound() if is_old_due and self.groups else 0
        for group in [group for group in self.groups.values() if group.is_timed]:
            group.tick(now_ns)
            group.drop_excess(now_ns, also_old=is_old_due, least_offset=least_offset)
        if self._dirty:
            self._writer.touch()

    # -- inside --

    def _new(
        self,
        key: str,
        topic_filter: TopicFilter,
        start: Start | None,
        *,
        is_private: bool,
        strategy: StrategyName | None = None,
    ) -> ShareGroup:
        name = topic_filter.share_group
        group = ShareGroup(
            key,
            topic_filter,
            self._services,
            strategy or self.settings.strategy_of(name),
            self._clock.now_ns(),
        )
        group.is_private, group.is_kept = is_private, self.settings.is_kept(name)
        if start is not None:
            group.stand_on(
                [Cursor(shard, offset, is_behind=True) for shard, offset in start.offsets],
                start.stream,
            )
        self._add(group)
        return group

    def _add(self, group: ShareGroup) -> None:
        self.groups[group.key] = group
        self._routed.add(group.filter, group.key, group)
        if group.stream is not None:
            for cursor in group.cursors:
                self._listen(cursor.shard.log)

    def _end(self, group: ShareGroup) -> None:
        group.end()
        del self.groups[group.key]
        self._routed.remove(group.filter, group.key)
        if group.is_persistent:
            self._dirty[group] = None
            self._writer.touch()

    def _settle_durability(
        self, group: ShareGroup, session: Session, subscription: Subscription
    ) -> None:
        is_wanted = (
            group.is_kept
            or self.settings.durable == "all"
            or (session.is_durable and subscription.qos > 0)
        )
        if is_wanted and not group.is_persistent:
            self._make_durable(group)

    def _make_durable(self, group: ShareGroup) -> None:
        group.is_persistent = True
        if group.stream is None and not group.cursors:
            group.stand_on(
                [Cursor(self._session_log.shard, self._session_log.since_offset, is_behind=False)]
            )
        self._changed(group)

    def _changed(self, group: GroupState) -> None:
        if group.is_persistent:
            self._dirty[group] = None

    def _when_recorded(
        self, group: GroupState, done: Callable[[BaseException | None], None]
    ) -> None:
        self._changed(group)
        self._writer.touch()
        self._writer.when_committed(done)

    def _listen(self, log: int) -> None:
        """Groups on a stream read on when it grows. Listening is never ended: a log keeps its number."""
        if log in self._listening:
            return
        self._listening.add(log)
        self._writer.listen(log, lambda first, records, tokens: self._grew(log))

    def _grew(self, log: int) -> None:
        for group in list(self.groups.values()):
            if group.stream is not None and group.cursors[0].shard.log == log:
                group.grew()


def group_key(client_id: str, topic_filter: TopicFilter) -> str:
    """Key of a subscription's group: its text or, where it is one client's alone, that with the client."""
    return (
        topic_filter.text
        if topic_filter.share_group is not None
        else f"$replay/{client_id}/{topic_filter.text}"
    )
