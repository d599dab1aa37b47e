"""A share group at work: what waits for it, who has what, and what becomes of it when a member goes.

Messages come to it in one of three ways. Without durable members they come from the router and wait in memory. With
one they stand in the session log, stored once for all who want them, and the group keeps its place there. A group that
began in the past stands on a stream that captures its topics and reads on in it, history and present alike.

A member is only given what its window has room for, so all that a member has was sent to it: QoS 1 goes to another
member when its connection is lost, QoS 2 stays with its session, QoS 0 is not kept. While nobody else is here, QoS 1
stays as well, so that whoever comes back gets it under its old identifier.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final, Protocol, cast

from broker.codec.framing import frame_at
from broker.codec.outgoing import Outgoing
from broker.connection.sharing.settings import SharedSettings
from broker.core.client import Client
from broker.core.clock import Clock
from broker.core.message import Message
from broker.core.subscription import Subscription
from broker.core.topic import TopicFilter
from broker.observe.metrics import Counter
from broker.routing.strategies import Keyed, Strategy, StrategyName, strategy_of
from broker.session.session import Session
from broker.session.shared_delivery import NO_PLACE, SharedDelivery
from broker.storage.store import LogShard

AHEAD: Final = 1024
"""Messages of a log that a group has in memory before they are given out."""
READ_RECORDS: Final = 256
"""Records read at a time: some 100 µs of the loop's time."""
_PIECES_A_TICK: Final = 20
_FOREVER_S: Final = 1 << 33
_CROWDED: Final = 500
"""When so many wait in memory publishers wait as well: few enough to be given out before that is given up."""
_ONE_BYTE: Final = 128
"""A remaining length below this takes one byte."""
_NS: Final = 1_000_000_000
_NO_MESSAGE: Final = Message("", b"", 0, False, Client(""), 0)

Found = Sequence[tuple[int, Message | None]]
"""Offsets and what stands there; None for what is not meant for groups."""


class Losses(Protocol):
    """Told of messages that nobody of a group gets."""

    def wants(self, why: str) -> bool:
        """Whether somebody wants to know of those that are lost for this reason."""
        ...

    def take(self, topic_filter: TopicFilter, message: Message, why: str) -> None:
        """The group with this filter has lost a message."""
        ...


@dataclass(slots=True)
class GroupServices:
    """What all groups share. ``read`` gives what is committed and was told of, ``changed`` has the record written."""

    settings: SharedSettings
    clock: Clock
    read: Callable[[LogShard, int, int], Found]
    first_offset: Callable[[LogShard], int]
    next_offset: Callable[[LogShard], int]
    log_next: Callable[[], int]
    defer: Callable[[Callable[[], None]], object]
    changed: Callable[[ShareGroup], None]
    when_recorded: Callable[[ShareGroup, Callable[[BaseException | None], None]], None]
    dropped: Callable[[str], Counter]
    redelivered: Counter
    crowded: Callable[[ShareGroup], None]
    relieved: Callable[[ShareGroup], None]
    losses: Losses | None = None


class Cursor:
    """A group's place in one shard of a log: what is below ``next_offset`` was read; of that, ``pending`` is not
    settled. ``is_behind`` tells that there may be more to read."""

    __slots__ = ("is_behind", "next_offset", "pending", "shard")

    def __init__(self, shard: LogShard, next_offset: int, *, is_behind: bool) -> None:
        self.shard, self.next_offset, self.is_behind = shard, next_offset, is_behind
        self.pending: dict[int, SharedDelivery] = {}


class Member:
    """One session's part in a group. Who leaves and comes again is another member."""

    __slots__ = ("group", "identifiers", "in_flight", "is_here", "is_member", "lane", "leaves_at_ns", "no_local", "qos",
                 "retain_as_published", "session")  # fmt: skip

    def __init__(self, group: ShareGroup, session: Session) -> None:
        self.group, self.session = group, session
        self.in_flight = 0
        self.is_here, self.is_member = False, True
        self.leaves_at_ns = 0
        self.lane: deque[SharedDelivery] = deque()

    @property
    def client_id(self) -> str:
        """Whose session it is."""
        return self.session.client_id

    @property
    def has_room(self) -> bool:
        """Whether it can take a message now."""
        session = self.session
        return session.quota > 0 and not session.is_slow

    def describe(self, subscription: Subscription) -> None:
        """Take the options of its latest SUBSCRIBE."""
        self.qos, self.no_local = subscription.qos, subscription.no_local
        self.retain_as_published = subscription.retain_as_published
        self.identifiers = (subscription.identifier,) if subscription.identifier else ()

    def settle(self, delivery: SharedDelivery) -> None:
        """The client has acknowledged a message, or refused it."""
        self.group.settled(self, delivery)

    def offer_room(self) -> None:
        """The session can take something."""
        self.group.has_room(self)


class ShareGroup:
    """See the module. ``key`` is the text of the subscription, or stands for one that began in the past.

    ``is_kept`` tells that it outlives its members. ``outstanding`` and ``outstanding_bytes`` are what is in the session
    log for it and not settled. ``is_persistent`` tells that its place in a log is kept in the store.
    """

    client_id: Final = ""
    owner: Final = None

    def __init__(
        self, key: str, topic_filter: TopicFilter, services: GroupServices, strategy: StrategyName, created_ns: int
    ) -> None:
        self.key, self.filter, self.created_ns = key, topic_filter, created_ns
        self.strategy_name: StrategyName = strategy
        self.members: dict[str, Member] = {}
        self.cursors: list[Cursor] = []
        self.stream: str | None = None
        self.is_durable = self.is_kept = self.is_over = False
        self.is_private = self.is_persistent = False
        self.is_waited_for = True
        self.in_flight = self.outstanding = self.outstanding_bytes = 0
        self.given = self.redelivered = 0
        self._services = services
        self._strategy: Strategy[Member] = strategy_of(strategy)
        self._keyed: Keyed[Member] | None = self._strategy if isinstance(self._strategy, Keyed) else None
        self._ack_ns = int(services.settings.ack_deadline_of(topic_filter.share_group) * _NS)
        self._waiting: deque[SharedDelivery] = deque()
        self._returned: list[SharedDelivery] = []
        self._held = self._held_bytes = self._number = 0
        self._busy_away: set[Member] = set()
        self._leaving: set[Member] = set()
        self._is_crowded = self._is_reading = False

    # -- for the router and the log --

    @property
    def is_away(self) -> bool:
        """Whether no member has a connection."""
        return not self._strategy.here.items

    def offer(self, outgoing: Outgoing) -> int:
        """Take a message that is not in the log; returns whether somebody gets it, as 1 or 0."""
        if self.stream is not None:
            return 1  # it comes with the stream
        if outgoing.message.qos == 0:
            return self._offer_qos0(outgoing)
        self._number += 1
        delivery = SharedDelivery(outgoing, None, NO_PLACE, self._number)
        if self._keyed is None and not self._held:
            member = self._strategy.pick(outgoing.message)
            if member is not None:
                self._give(delivery, member)
                return 1
        self._admit(delivery)
        self._keep_bound(delivery)
        return 1

    @property
    def takes_runs(self) -> bool:
        """Whether who gets a packet of QoS 0 does not depend on what is in it."""
        return self._keyed is None and self.stream is None

    def offer_run(self, chunk: bytes, client: Client, now_ns: int) -> int:
        """Take packets of QoS 0 without properties, as their publisher sent them; how many were sent on as they are.

        0.7 µs each, where ``offer`` takes 2.5.
        """
        pick, is_v5, position, end, sent = self._strategy.pick_any, client.protocol_version == 5, 0, len(chunk), 0
        while position < end:
            length, body = chunk[position + 1], position + 2
            if length < _ONE_BYTE:
                stop = body + length
            else:
                body, stop = frame_at(chunk, position, end) or (end, end)
            member = pick(_NO_MESSAGE)
            session = None if member is None else member.session
            box = None if session is None else session.fast
            if box is None or session is None or session.is_v5 is not is_v5 or (member and member.identifiers):
                self._offer_qos0(Outgoing(_message_in(chunk, body, stop, client, now_ns)))
            else:
                box.chunks.append(chunk[position:stop])
                if not box.is_dirty:
                    box.mark()
                box.messages_out += 1
                sent += 1
            position = stop
        self.given += sent
        return sent

    def note_kept(self, outgoing: Outgoing) -> None:
        """A message for it is being appended to the session log."""
        self.outstanding += 1
        self.outstanding_bytes += outgoing.size_bytes
        self._services.changed(self)

    def accept_logged(
        self, offset: int, outgoing: Outgoing, qos: int, retain: bool, identifiers: tuple[int, ...]
    ) -> None:
        """Take a message that was committed to the session log at ``offset``; ``pump`` gives it out."""
        cursor = self.cursors[0]
        if cursor.is_behind or offset < cursor.next_offset or self.is_over:
            return
        if self.is_away or self._held >= AHEAD:
            cursor.is_behind, cursor.next_offset = True, offset
            return
        cursor.next_offset = offset + 1
        self._number += 1
        self._admit(SharedDelivery(outgoing, cursor, offset, self._number))

    def pump(self) -> None:
        """Give out what waits, and read on where there is more."""
        if self._held:
            self._give_out()
        self._read_on()

    def grew(self) -> None:
        """The stream that it stands on has more records."""
        for cursor in self.cursors:
            cursor.is_behind = True
        self._read_on()

    # -- members --

    def join(self, session: Session, subscription: Subscription) -> Member:
        """Make a session a member, or change how it is one."""
        member = self.members.get(session.client_id)
        if member is None:
            member = self.members[session.client_id] = Member(self, session)
        member.describe(subscription)
        return member

    def leave(self, member: Member) -> None:
        """End a membership: by UNSUBSCRIBE, then what is in flight is finished in time, or with the session."""
        if self.members.get(member.client_id) is member:
            del self.members[member.client_id]
        member.is_member = False
        self._went(member)
        if member.session.is_ended or member.session.is_away:
            self._abandon(member, for_good=member.session.is_ended)
        elif member.in_flight:
            timeout_ns = int(self._services.settings.unsubscribe_timeout * _NS)
            member.leaves_at_ns = self._services.clock.now_ns() + timeout_ns
            self._leaving.add(member)
        self.pump()

    def came(self, member: Member) -> None:
        """A member has a connection; others that have none lose what they were sent at QoS 1 and have not settled."""
        member.is_here = True
        self._strategy.came(member)
        self._busy_away.discard(member)
        for other in list(self._busy_away):
            self._busy_away.discard(other)
            self._take_back(other)

    def went_away(self, member: Member, *, for_good: bool) -> None:
        """A member's connection is lost, and its session has ended where it is ``for_good``."""
        self._went(member)
        if for_good or not member.is_member:
            self._abandon(member, for_good=for_good)
        elif member.in_flight:
            if self.is_away:
                self._busy_away.add(member)
            else:
                self._take_back(member)
        if self.is_away:
            self._rest()
        else:
            self.pump()

    def has_room(self, member: Member) -> None:
        """A member can take something; it has come when it was not here."""
        if not member.is_member:
            return
        if not member.is_here:
            self.came(member)
        self._strategy.opened(member)
        self._drain(member)
        if self._held:
            self._give_out()
        if self.cursors:
            self._read_on()

    def settled(self, member: Member, delivery: SharedDelivery) -> None:
        """A member has acknowledged a message, or refused it; either way it is done with [MQTT-4.8.2-6]."""
        self._unclaim(member, delivery)
        self._finish(delivery)

    def adopt(self, member: Member, delivery: SharedDelivery) -> bool:
        """Take up what a restored session has in flight; False when the group does not know of it."""
        assert delivery.claim is not None
        place = LogShard(delivery.claim[1], delivery.claim[2])
        cursor = next((one for one in self.cursors if one.shard == place), None)
        known = cursor.pending.get(delivery.place) if cursor is not None else None
        if cursor is None or known is None:
            return False
        self._returned.remove(known)
        heapify(self._returned)
        self._held -= 1
        delivery.cursor, delivery.number = cursor, known.number
        delivery.holder = member
        cursor.pending[delivery.place] = delivery
        self._claim(member, delivery)
        self._busy_away.add(member)
        if self._load(delivery) is None and not delivery.is_released:
            self.settled(member, delivery)
            return False
        return True

    def part_with(self, member: Member, delivery: SharedDelivery) -> None:
        """Leave a message in flight to the member's session alone, where nobody else may get it [MQTT-4.8.2-5]."""
        if delivery.qos == 2 and not isinstance(delivery.cursor, Cursor):
            self._unclaim(member, delivery)
            delivery.holder = None

    # -- time --

    @property
    def is_timed(self) -> bool:
        """Whether time can change anything: of many groups few have to be looked at."""
        return bool(self._leaving or self._ack_ns or self._held or self.is_durable)

    def tick(self, now_ns: int) -> None:
        """Take back what silent members and those who left have had for too long."""
        for member in [one for one in self._leaving if not one.in_flight or one.leaves_at_ns <= now_ns]:
            self._leaving.discard(member)
            self._take_back(member)
        if self._ack_ns and len(self._strategy.here) > 1:
            for member in list(self._strategy.here.items):
                if member.in_flight:
                    self._take_back(member, now_ns - self._ack_ns)
        if self._held:
            self._give_out()

    def drop_excess(self, now_ns: int, *, also_old: bool, least_offset: int = 0) -> None:
        """Of a durable group the oldest go when too much waits or, where that is to be looked at, for too long.

        What stands in the session log below ``least_offset`` goes as well: all together have too much waiting there.
        """
        settings = self._services.settings
        if not self.is_durable or not (also_old or self._is_full):
            return
        oldest_ns = now_ns - int(min(settings.max_waiting_age, _FOREVER_S) * _NS)
        for _ in range(_PIECES_A_TICK):
            if not self._waiting:
                self._waiting.extend(self._read_and_hold())
            if not self._waiting or not self._drop_from_waiting(oldest_ns, least_offset):
                break
        if self.is_away:
            self._rest()

    @property
    def _is_full(self) -> bool:
        settings = self._services.settings
        return self.outstanding > settings.max_waiting_messages or self.outstanding_bytes > settings.max_waiting_bytes

    # -- records --

    def position(self, cursor: Cursor) -> int:
        """The offset from which on nothing was given out."""
        for delivery in self._waiting:
            if delivery.cursor is cursor:
                return delivery.place
        if cursor.is_behind or self.stream is not None:
            return cursor.next_offset
        return max(cursor.next_offset, self._services.log_next())

    def claimed(self, cursor: Cursor) -> list[int]:
        """Offsets below the position that are not settled."""
        return list(cursor.pending)

    def low_offset(self, shard: LogShard) -> int | None:
        """The lowest offset of a log that the group still needs; None when it does not stand there."""
        for cursor in self.cursors:
            if cursor.shard == shard:
                return min(cursor.pending, default=self.position(cursor))
        return None

    def stand_on(self, cursors: Sequence[Cursor], stream: str | None = None) -> None:
        """From now on messages come from logs: the session log or, where it is named, a stream."""
        self.cursors.extend(cursors)
        self.stream, self.is_durable = stream, stream is None

    def restore(self, cursor: Cursor, pending: Sequence[int]) -> None:
        """Take a place in a log, and what was not settled there: some of it may have been sent."""
        self.cursors.append(cursor)
        for place in pending:
            self._number += 1
            delivery = SharedDelivery(None, cursor, place, self._number)
            delivery.may_be_seen = True
            cursor.pending[place] = delivery
            self._returned.append(delivery)
            self._held += 1

    def end(self) -> None:
        """The last member is gone, or somebody deleted it: what waits is discarded."""
        self.is_over = True
        lost = self.waiting
        if lost > 0:
            self._services.dropped("group_ended").value += lost
        self._waiting.clear()
        self._returned.clear()
        self._held = self._held_bytes = self.outstanding = self.outstanding_bytes = 0
        self._relieve()

    @property
    def waiting(self) -> int:
        """How many messages wait and were given to nobody, as far as that is known; in streams it is not."""
        return max(self.outstanding - self.in_flight, self._held) if self.is_durable else self._held

    @property
    def connected(self) -> int:
        """How many members have a connection."""
        return len(self._strategy.here)

    @property
    def behind(self) -> int | None:
        """How many records of its stream it has not read; None when it stands on none."""
        if self.stream is None:
            return None
        return sum(max(self._services.next_offset(one.shard) - one.next_offset, 0) for one in self.cursors)

    @property
    def waiting_bytes(self) -> int:
        """About how many bytes those are; of durable groups with what is in flight."""
        return self.outstanding_bytes if self.is_durable and self.stream is None else self._held_bytes

    # -- inside: giving --

    def _offer_qos0(self, outgoing: Outgoing) -> int:
        member = self._strategy.pick_any(outgoing.message)
        if member is None:
            self._lost(lambda: outgoing.message, "qos0_msg")
            return 0
        if member.session.is_slow and self._keyed is None:
            member = self._strategy.pick_any(outgoing.message) or member
        self._give_qos0(outgoing, member)
        return 1

    def _give_qos0(self, outgoing: Outgoing, member: Member) -> None:
        message, session = outgoing.message, member.session
        if member.identifiers or (message.retain and member.retain_as_published):
            session.deliver(outgoing, 0, message.retain and member.retain_as_published, member.identifiers)
        elif message.properties or not session.take_packet(b"".join(outgoing.parts(session.is_v5, 0, False))):
            session.deliver(outgoing, 0, False, ())
        self.given += 1

    def _admit(self, delivery: SharedDelivery) -> None:
        """Let a message wait: for its member where it has a key, else for whoever has room first."""
        keyed = self._keyed
        if keyed is not None:
            message = self._message(delivery)
            member = keyed.pick(message)
            if member is not None:
                delivery.key = keyed.key_of(message)
                keyed.hold(delivery.key, member)
                if not member.lane and member.has_room:
                    self._give(delivery, member)
                else:
                    self._into_lane(delivery, member)
                return
        self._hold(delivery)
        self._waiting.append(delivery)

    def _into_lane(self, delivery: SharedDelivery, member: Member) -> None:
        self._hold(delivery)
        member.lane.append(delivery)
        if isinstance(delivery.cursor, Cursor):
            delivery.cursor.pending[delivery.place] = delivery

    def _hold(self, delivery: SharedDelivery) -> None:
        self._held += 1
        if delivery.outgoing is not None:
            self._held_bytes += delivery.outgoing.size_bytes

    def _let_go(self, delivery: SharedDelivery) -> None:
        self._held -= 1
        if not self._held:
            self._held_bytes = 0  # what a restart left had no size when it began to wait
        elif delivery.outgoing is not None:
            self._held_bytes = max(self._held_bytes - delivery.outgoing.size_bytes, 0)
        if self._is_crowded:
            self._check_relief()

    def _give_out(self) -> None:
        if self.is_away:
            return
        if self._keyed is not None:
            for delivery in self._take_waiting():
                self._admit(delivery)
            return
        strategy = self._strategy
        while (first := self._first()) is not None:
            member = strategy.pick(_NO_MESSAGE)
            if member is None:
                return
            if self._returned:
                heappop(self._returned)
            else:
                self._waiting.popleft()
            self._let_go(first)
            self._give(first, member)

    def _first(self) -> SharedDelivery | None:
        if self._returned:
            return self._returned[0]
        return self._waiting[0] if self._waiting else None

    def _take_waiting(self) -> list[SharedDelivery]:
        """All that waits for anybody, in order."""
        if not (self._waiting or self._returned):
            return []
        taken = sorted([*self._returned, *self._waiting])
        self._returned.clear()
        self._waiting.clear()
        for delivery in taken:
            self._let_go(delivery)
        return taken

    def _drain(self, member: Member) -> None:
        lane = member.lane
        while lane and member.has_room:
            delivery = lane.popleft()
            self._let_go(delivery)
            self._give(delivery, member)

    def _give(self, delivery: SharedDelivery, member: Member) -> None:
        outgoing, services, session = delivery.outgoing or self._load(delivery), self._services, member.session
        if outgoing is None:
            self._lose(delivery, member, "not_found")
            return
        if outgoing.expires_ns and outgoing.is_expired(services.clock.now_ns()):
            session.drop(outgoing, "expired")
            self._forget(delivery, member)
            return
        message = outgoing.message
        qos = message.qos if message.qos < member.qos else member.qos
        retain = message.retain and member.retain_as_published
        delivery.qos, delivery.retain, delivery.identifiers = qos, retain, member.identifiers
        self.given += 1
        if qos == 0:
            session.deliver(outgoing, 0, retain, member.identifiers)
            self._forget(delivery, member)
            return
        cursor = delivery.cursor
        delivery.holder = member
        if isinstance(cursor, Cursor):
            if qos == 2 and not session.is_durable:
                self._give_once_recorded(delivery, member)
                return
            if session.is_durable and self.is_persistent:
                delivery.claim = (self.key, cursor.shard.log, cursor.shard.shard, delivery.place)
            cursor.pending[delivery.place] = delivery
            if self.is_persistent:
                services.changed(self)
        if self._ack_ns:
            delivery.given_ns = services.clock.now_ns()
        if session.send_shared(delivery, dup=delivery.may_be_seen):
            delivery.may_be_seen = True
            self._claim(member, delivery)
        else:
            self._give_to_another(delivery, member)

    def _claim(self, member: Member, delivery: SharedDelivery) -> None:
        member.in_flight += 1
        self.in_flight += 1
        if self._strategy.counts:
            self._strategy.changed(member)

    def _unclaim(self, member: Member, delivery: SharedDelivery) -> None:
        member.in_flight -= 1
        self.in_flight -= 1
        if self._strategy.counts:
            self._strategy.changed(member)
        self._release(delivery, member)

    def _give_once_recorded(self, delivery: SharedDelivery, member: Member) -> None:
        """QoS 2 for a session in memory: once sent, nobody else may get it [MQTT-4.8.2-5], also after a crash; so it is
        written down as given first."""
        session = member.session
        owner = session.owner
        outgoing = delivery.outgoing
        assert outgoing is not None  # it was looked at for its QoS
        self._finish(delivery)
        delivery.cursor, delivery.holder = None, member  # counted as in flight until it is acknowledged
        self._claim(member, delivery)
        session.quota -= 1

        def send(error: BaseException | None) -> None:
            is_queued = session.owner is not owner and not session.is_durable and not session.is_ended
            if is_queued and error is None:  # the connection that had room is gone: its turn is to come
                self._unclaim(member, delivery)
                session.deliver(outgoing, delivery.qos, delivery.retain, delivery.identifiers)
                return
            session.quota += session.owner is owner
            if error is not None or session.is_ended or not session.send_shared(delivery, dup=False):
                self._unclaim(member, delivery)
                if delivery.outgoing is not None:
                    session.drop(delivery.outgoing, "packet_too_large" if error is None else "not_stored")

        self._services.when_recorded(self, send)

    def _give_to_another(self, delivery: SharedDelivery, member: Member) -> None:
        """The packet is larger than the member takes: another may take it [MQTT-3.1.2-25]."""
        self._release(delivery, member)
        for other in self._strategy.here.items:
            if other is member:
                continue
            delivery.qos = min(self._message(delivery).qos, other.qos)
            delivery.identifiers = other.identifiers
            if delivery.qos and other.session.fits(delivery):
                if self._keyed is not None and delivery.key is not None:
                    self._keyed.hold(delivery.key, other)
                self._into_lane(delivery, other)
                self._drain(other)
                return
        if delivery.outgoing is not None:
            member.session.drop(delivery.outgoing, "packet_too_large")
        self._finish(delivery)

    def _forget(self, delivery: SharedDelivery, member: Member) -> None:
        self._release(delivery, member)
        self._finish(delivery)

    def _lose(self, delivery: SharedDelivery, member: Member, why: str) -> None:
        self._lost(partial(self._message, delivery), why)
        self._forget(delivery, member)

    def _release(self, delivery: SharedDelivery, member: Member) -> None:
        if self._keyed is not None and delivery.key is not None:
            self._keyed.release(delivery.key, member)

    def _finish(self, delivery: SharedDelivery) -> None:
        """Nobody needs the message any more."""
        cursor = delivery.cursor
        delivery.holder = None
        if not isinstance(cursor, Cursor) or self.is_over:
            return
        cursor.pending.pop(delivery.place, None)
        if self.stream is None:
            self.outstanding = max(self.outstanding - 1, 0)
            size = delivery.outgoing.size_bytes if delivery.outgoing is not None else 0
            self.outstanding_bytes = max(self.outstanding_bytes - size, 0) if self.outstanding else 0
        if self.is_persistent:
            self._services.changed(self)

    # -- inside: members --

    def _went(self, member: Member) -> None:
        member.is_here = False
        self._strategy.left(member)
        lane, member.lane = member.lane, deque()
        for delivery in lane:
            self._release(delivery, member)
            heappush(self._returned, delivery)

    def _abandon(self, member: Member, *, for_good: bool) -> None:
        """QoS 1 goes to others; QoS 2 to nobody, and ends with the session [MQTT-4.8.2-5]."""
        self._busy_away.discard(member)
        self._leaving.discard(member)
        self._take_back(member)
        if for_good:
            for delivery in cast(list[SharedDelivery], member.session.give_up(member)):
                self.settled(member, delivery)

    def _take_back(self, member: Member, sent_before_ns: int | None = None) -> None:
        """Let others have what a member was sent at QoS 1 and has not acknowledged."""
        before_ns = inf if sent_before_ns is None else sent_before_ns
        found = member.session.take_back(
            member, lambda one: isinstance(one, SharedDelivery) and one.given_ns <= before_ns
        )
        for delivery in cast(list[SharedDelivery], found):
            self._unclaim(member, delivery)
            delivery.holder = delivery.claim = None
            if self.is_over:
                continue
            self.redelivered += 1
            self._services.redelivered.value += 1
            self._hold(delivery)
            heappush(self._returned, delivery)

    def _rest(self) -> None:
        """Nobody is here: what has not been given out is in the log, and need not be in memory."""
        if not self.cursors:
            return
        kept = [delivery for delivery in self._waiting if not isinstance(delivery.cursor, Cursor)]
        for delivery in self._waiting:
            cursor = delivery.cursor
            if isinstance(cursor, Cursor):
                self._let_go(delivery)
                if not cursor.is_behind or delivery.place < cursor.next_offset:
                    cursor.is_behind, cursor.next_offset = True, delivery.place
        self._waiting = deque(kept)

    # -- inside: reading and bounds --

    def _read_on(self) -> None:
        if self._is_reading or self._held * 2 > AHEAD or self.is_away or self.is_over:
            return
        if any(cursor.is_behind for cursor in self.cursors):
            self._is_reading = True
            self._services.defer(self._read_deferred)

    def _read_deferred(self) -> None:
        self._is_reading = False
        if self.is_away or self.is_over:
            return
        for delivery in self._read():
            self._admit(delivery)
        self.pump()

    def _read(self) -> Iterator[SharedDelivery]:
        """The next messages of each log, at most ``READ_RECORDS`` of each."""
        for cursor in self.cursors:
            if not cursor.is_behind:
                continue
            start = cursor.next_offset
            found = self._services.read(cursor.shard, start, READ_RECORDS)
            self._count_gap(cursor, found[0][0] if found else None)
            cursor.is_behind = len(found) >= READ_RECORDS
            if not cursor.is_behind and self.stream is None:
                cursor.next_offset = max(cursor.next_offset, self._services.log_next())
            for offset, message in found:
                cursor.next_offset = max(cursor.next_offset, offset + 1)
                if message is not None and self._is_meant(message):
                    self._number += 1
                    yield SharedDelivery(Outgoing(message), cursor, offset, self._number)

    def _is_meant(self, message: Message) -> bool:
        if not self.filter.matches(message.topic):
            return False
        if not self.is_private:
            return True
        return not any(m.no_local and m.client_id == message.client.client_id for m in self.members.values())

    def _count_gap(self, cursor: Cursor, first: int | None) -> None:
        """Records of a stream that its retention forgot before they were read."""
        if self.stream is None:
            return
        oldest = self._services.first_offset(cursor.shard) if first is None else first
        if oldest > cursor.next_offset:
            self._services.dropped("stream_retention").value += oldest - cursor.next_offset
            cursor.next_offset = oldest

    def _keep_bound(self, delivery: SharedDelivery) -> None:
        """In memory: the oldest goes when there are too many; publishers wait a little before that."""
        settings = self._services.settings
        limit, limit_bytes = settings.max_queued_messages, settings.max_queued_bytes
        if self._held > min(limit // 2, _CROWDED) or self._held_bytes * 2 > limit_bytes:
            self._is_crowded = True
            self._services.crowded(self)
        if self._held > limit or (self._held_bytes > limit_bytes and self._held > 1):
            member = self._keyed.pick(self._message(delivery)) if self._keyed is not None else None
            oldest = member.lane.popleft() if member is not None and member.lane else self._pop_first()
            self._let_go(oldest)
            self._lost(partial(self._message, oldest), "queue_full")
            if member is not None:
                self._release(oldest, member)
            self._finish(oldest)

    def _pop_first(self) -> SharedDelivery:
        return heappop(self._returned) if self._returned else self._waiting.popleft()

    def _check_relief(self) -> None:
        settings = self._services.settings
        few = min(settings.max_queued_messages, 2 * _CROWDED) // 4
        if self._held <= few and self._held_bytes * 4 <= settings.max_queued_bytes:
            self._relieve()

    def _relieve(self) -> None:
        self._is_crowded = False
        self._services.relieved(self)

    def _drop_from_waiting(self, oldest_ns: int, least_offset: int) -> bool:
        """Drop what is too much or too old from the front; whether nothing was left there."""
        while self._waiting:
            delivery = self._waiting[0]
            is_full = self._is_full or NO_PLACE < delivery.place < least_offset
            if not is_full and self._message(delivery).received_ns >= oldest_ns:
                return False
            self._waiting.popleft()
            self._let_go(delivery)
            self._lost(partial(self._message, delivery), "group_full" if is_full else "group_expired")
            self._finish(delivery)
        return True

    def _lost(self, find: Callable[[], Message], why: str) -> None:
        """Count a message that nobody gets; who wants to know is told once the group is as it should be."""
        services = self._services
        services.dropped(why).value += 1
        if services.losses is None or not services.losses.wants(why):
            return
        message = find()
        if message is not _NO_MESSAGE:
            services.defer(partial(services.losses.take, self.filter, message, why))

    def _read_and_hold(self) -> Iterator[SharedDelivery]:
        for delivery in self._read():
            self._hold(delivery)
            yield delivery

    def _load(self, delivery: SharedDelivery) -> Outgoing | None:
        """The message of what a restart left with its place only."""
        cursor = delivery.cursor
        if delivery.outgoing is None and isinstance(cursor, Cursor):
            found = self._services.read(cursor.shard, delivery.place, 1)
            if found and found[0][0] == delivery.place and found[0][1] is not None:
                delivery.outgoing = Outgoing(found[0][1])
        return delivery.outgoing

    def _message(self, delivery: SharedDelivery) -> Message:
        outgoing = delivery.outgoing or self._load(delivery)
        return _NO_MESSAGE if outgoing is None else outgoing.message


def _message_in(data: bytes, body: int, stop: int, client: Client, now_ns: int) -> Message:
    """The message in a PUBLISH of QoS 0 without properties, whose body is ``data[body:stop]``."""
    topic_end = body + 2 + (data[body] << 8 | data[body + 1])
    payload_at = topic_end + (client.protocol_version == 5)
    return Message(data[body + 2 : topic_end].decode(), data[payload_at:stop], 0, False, client, now_ns)
