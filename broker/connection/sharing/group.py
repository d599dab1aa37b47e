"""A share group at work: its queue, the messages of each member, and their return when a member goes.

Messages come to it in one of three ways. Without durable members they come from the router and wait in memory. With
one they are in the session log, stored once for all who want them, and the group keeps its place there. A group that
began in the past reads a stream that captures its topics and reads on in it, history and present alike.

A member is only given what its window has room for, so all that a member has was sent to it: QoS 1 goes to another
member when its connection is lost, QoS 2 stays with its session, QoS 0 is not kept. While no one else is here, QoS 1
stays as well, so that a member that comes back gets it under its old identifier.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from functools import partial
from math import inf
from typing import Final, cast

import msgspec
from msgspec.structs import replace as replace_member

from broker.codec.outgoing import Outgoing
from broker.connection.sessions.log import SESSION_LOG
from broker.connection.sharing.cursors import Cursor, Cursors
from broker.connection.sharing.dispatcher import Dispatcher
from broker.connection.sharing.member import Member
from broker.connection.sharing.queue import GroupQueue
from broker.connection.sharing.services import GroupServices, GroupState, Origin
from broker.connection.sharing.strategies import Keyed, Strategy, StrategyName, strategy_of
from broker.core.client import Client
from broker.core.message import Message
from broker.core.receipt import Receipt, Withheld
from broker.core.subscription import Subscription
from broker.core.topic import TopicFilter
from broker.session import slowing
from broker.session.delivery import NO_OFFSET, SharedDelivery
from broker.session.session import Session
from broker.session.state import Owner
from broker.storage.store import LogShard

# Messages of a log that a group has in memory before they are given out.
AHEAD: Final = 1024
_PIECES_A_TICK: Final = 20
_FOREVER_S: Final = 1 << 33
_NS: Final = 1_000_000_000
_VERSION: Final = 1


class _Position(msgspec.Struct, array_like=True, frozen=True):
    """``position``: nothing from there on was given out. ``pending``: offsets below it that are not settled."""

    log: int
    shard: int
    position: int
    pending: list[int]


class _Record(msgspec.Struct, array_like=True, frozen=True):
    """``filter`` is the text of the subscription, also where the group's key is another. ``stream`` is what the group
    is on, None for the session log."""

    version: int
    filter: str
    strategy: StrategyName
    stream: str | None
    is_kept: bool
    is_private: bool
    created_ns: int
    outstanding: int
    outstanding_bytes: int
    redelivered: int
    positions: list[_Position]
    members: list[FarMemberRecord] = []
    granted: list[Grant] = []


class FarMemberRecord(msgspec.Struct, array_like=True, frozen=True):
    """A member in another cell whose session outlives its process."""

    cell: int
    client_id: str
    qos: int


class Grant(msgspec.Struct, array_like=True, frozen=True):
    """A message that a member in another cell has, or may have: its offset in the log, and the QoS of the delivery."""

    cell: int
    client_id: str
    place: int
    qos: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Record).decode


class ShareGroup(GroupState):
    """One share group: its members, and what waits."""

    client_id: Final = ""
    owner: Final = None

    def __init__(
        self,
        key: str,
        topic_filter: TopicFilter,
        services: GroupServices,
        strategy: StrategyName,
        created_ns: int,
    ) -> None:
        super().__init__(key, topic_filter, created_ns)
        self.strategy_name: StrategyName = strategy
        self.members: dict[str, Member] = {}
        self.is_waited_for = self.is_acknowledging = True
        self.withheld: Withheld | None = None
        self._services = services
        self._strategy: Strategy[Member] = strategy_of(strategy)
        self._is_keyed = isinstance(self._strategy, Keyed)
        self._ack_ns = int(services.settings.ack_deadline_of(topic_filter.share_group) * _NS)
        crowded = partial(services.backpressure.crowded, self)
        relieved = partial(services.backpressure.relieved, self)
        self._queue = GroupQueue(services.settings, crowded, relieved, self._drained)
        self._cursors = Cursors(services)
        self._dispatcher = Dispatcher(
            self, services, self._strategy, self._queue, self._cursors, self._ack_ns
        )
        self._busy_away: set[Member] = set()
        self._leaving: set[Member] = set()
        self._is_reading = False

    # -- for the router and the log --

    @property
    def is_away(self) -> bool:
        """True if no member has a connection."""
        return not self._strategy.here.items

    def offer(self, outgoing: Outgoing) -> int:
        """Take a message that is not in the log; return 1 if a member gets it, else 0."""
        if self._cursors.stream is not None:
            return 1  # it comes with the stream
        if outgoing.message.qos == 0:
            return self._dispatcher.offer_qos0(outgoing)
        self._cursors.number += 1
        delivery = SharedDelivery(outgoing, None, NO_OFFSET, self._cursors.number)
        if not self._is_keyed and not self._queue.held:
            member = self._strategy.pick(outgoing.message)
            if member is not None:
                self._dispatcher.give(delivery, member)
                return 1
        if not self.slows_publishers:
            self._dispatcher.admit(delivery)
            self._dispatcher.keep_bound(delivery)
        elif self._takes(outgoing.size_bytes, outgoing.message.receipt):
            self._dispatcher.admit(delivery)
        else:
            self._dispatcher.lost(lambda: outgoing.message, "queue_full")
        return 1

    def _takes(self, size_bytes: int, receipt: Receipt | None) -> bool:
        """True if one more may wait in memory: it is within the bound, or its publisher waits."""
        if self._has_room(slowing.MOST):
            return True
        return self._services.withholding.queue_in_full(
            self, size_bytes, receipt
        ) or self._has_room(1)

    @property
    def takes_runs(self) -> bool:
        """True if the member that gets a packet of QoS 0 does not depend on its content."""
        return not self._is_keyed and self._cursors.stream is None

    def offer_run(self, chunk: bytes, client: Client, now_ns: int) -> int:
        """Take packets of QoS 0 without properties, as their publisher sent them; how many were sent on as they are."""
        return self._dispatcher.offer_run(chunk, client, now_ns)

    def note_kept(self, outgoing: Outgoing) -> None:
        """A message for it is being appended to the session log."""
        self.outstanding += 1
        self.outstanding_bytes += outgoing.size_bytes
        self._services.changed(self)
        if self.withheld is None and not self._has_room(slowing.MOST) and self.slows_publishers:
            self._services.withholding.fills(self)

    def accept_logged(
        self, offset: int, outgoing: Outgoing, qos: int, retain: bool, identifiers: tuple[int, ...]
    ) -> None:
        """Take a message that was committed to the session log at ``offset``; ``pump`` gives it out."""
        cursor = self._cursors.cursors[0]
        if cursor.is_behind or offset < cursor.next_offset or self.is_over:
            return
        if self.is_away or self._queue.held >= AHEAD:
            cursor.is_behind = True
            cursor.next_offset = offset
            return
        cursor.next_offset = offset + 1
        self._cursors.number += 1
        self._dispatcher.admit(SharedDelivery(outgoing, cursor, offset, self._cursors.number))

    def pump(self) -> None:
        """Give out what waits, and read on where there is more."""
        if self._queue.held:
            self._dispatcher.give_out()
        self._read_on()

    def grew(self) -> None:
        """The stream that it reads has more records."""
        self._cursors.grew()
        self._read_on()

    # -- members --

    def join(self, session: Session, subscription: Subscription) -> Member:
        """Make a session a member, or change how it is one."""
        member = self.members.get(session.client_id)
        if member is None:
            member = self.members[session.client_id] = Member(self, session)
        member.describe(subscription)
        self._tell(member)
        return member

    def enter(self, member: Member) -> None:
        """Take a member that is in another cell."""
        self.members[member.client_id] = member

    def leave(self, member: Member) -> None:
        """End a membership: by UNSUBSCRIBE, then what is in flight is finished in time, or with the session."""
        if self.members.get(member.client_id) is member:
            del self.members[member.client_id]
        member.is_member = False
        self._went(member)
        if member.cell is None and self._services.cells is not None:
            self._services.cells.left(self, member)
        if member.session.is_ended or member.session.is_away:
            self._abandon(member, for_good=member.session.is_ended)
        elif member.in_flight:
            timeout_ns = int(self._services.settings.unsubscribe_timeout * _NS)
            member.leaves_at_ns = self._services.context.clock.now_ns() + timeout_ns
            self._leaving.add(member)
        self.pump()

    def came(self, member: Member) -> None:
        """A member has a connection; others that have none lose what they were sent at QoS 1 and have not settled."""
        member.is_here = True
        if member.cell is not None:
            self._take_lane(member)  # in order again
        self._tell(member)
        self._strategy.came(member)
        self._busy_away.discard(member)
        for other in list(self._busy_away):
            self._busy_away.discard(other)
            self._take_back(other)

    def went_away(self, member: Member, *, for_good: bool) -> None:
        """A member's connection is lost, and its session has ended where it is ``for_good``."""
        self._went(member)
        self._tell(member)
        if for_good or not member.is_member:
            self._abandon(member, for_good=for_good)
        elif member.in_flight:
            if self.is_away:
                self._busy_away.add(member)
            else:
                self._take_back(member)
        if self.is_away:
            self._queue.rest()
        else:
            self.pump()

    def has_room(self, member: Member) -> None:
        """A member can take something; it has come when it was not here."""
        if not member.is_member:
            return
        if not member.is_here:
            self.came(member)
        if member.askers and member.has_room:
            member.askers[0].offer(member)
        self._strategy.opened(member)
        self._dispatcher.drain(member)
        if self._queue.held:
            self._dispatcher.give_out()
        if self._cursors.cursors:
            self._read_on()

    def settled(self, member: Member, delivery: SharedDelivery) -> None:
        """A member has acknowledged a message, or refused it; either way it is done with [MQTT-4.8.2-6]."""
        self.settled_count += 1
        self._dispatcher.unclaim(member, delivery)
        self._dispatcher.finish(delivery)
        self._drained()

    def adopt(self, member: Member, delivery: SharedDelivery) -> bool:
        """Take up what a restored session has in flight; False when the group does not know of it."""
        assert delivery.claim is not None
        cursor = self._cursors.at(LogShard(delivery.claim[1], delivery.claim[2]))
        pending = cursor.pending.get(delivery.place) if cursor is not None else None
        if cursor is None or pending is None:
            return False
        self._queue.take_up(pending)
        delivery.cursor = cursor
        delivery.number = pending.number
        delivery.holder = member
        cursor.pending[delivery.place] = delivery
        self._dispatcher.claim(member)
        self._busy_away.add(member)
        if self._cursors.load(delivery) is None and not delivery.is_released:
            self.settled(member, delivery)
            return False
        return True

    def part_with(self, member: Member, delivery: SharedDelivery) -> None:
        """Leave a message in flight to the member's session alone, where no one else may get it [MQTT-4.8.2-5]."""
        if delivery.qos == 2 and not isinstance(delivery.cursor, Cursor):
            self._dispatcher.unclaim(member, delivery)
            self._dispatcher.finish(delivery)
            delivery.cursor = None

    # -- other cells --

    def take_granted(self, member: Member, delivery: SharedDelivery) -> None:
        """Give a member of this cell, which has room, a message of another cell's part."""
        self._cursors.number += 1
        delivery.number = self._cursors.number
        self._dispatcher.give(delivery, member)

    def take_granted_qos0(self, member: Member, outgoing: Outgoing) -> None:
        """Give a member of this cell, or else another one of it, a message of QoS 0 of another cell's part."""
        self._dispatcher.offer_granted_qos0(member, outgoing)

    def take_up_granted(self, member: Member, delivery: SharedDelivery) -> None:
        """A member in another cell, or one here that has it from another cell, still has this after a restart."""
        delivery.holder = member
        self._dispatcher.claim(member)
        if member.cell is None:
            self._busy_away.add(member)

    def load(self, delivery: SharedDelivery) -> Outgoing | None:
        """The message of a delivery; None where the log no longer has it."""
        return delivery.outgoing or self._cursors.load(delivery)

    def returned(self, member: Member, delivery: SharedDelivery) -> None:
        """A member in another cell did not settle a message that it was sent."""
        self._dispatcher.unclaim(member, delivery)
        self._give_back(delivery)

    def refused(self, member: Member, refused: Sequence[SharedDelivery]) -> None:
        """A member in another cell was not sent these: it has no room now, or is gone."""
        for delivery in refused:
            self._dispatcher.unclaim(member, delivery)
            delivery.holder = None
            self._dispatcher.take_back(delivery)
            if not self.is_over:
                self._queue.give_back(delivery)
        if self._is_keyed and not self.is_over:
            # what waits for its member, too: the order of a key is that of the numbers
            self._take_lane(member)

    def let_go(self, member: Member) -> None:
        """A member in another cell left, and nothing is on its way to it: others get its messages."""
        self._strategy.let_go(member)
        self._take_lane(member)
        self.pump()

    def _take_lane(self, member: Member) -> None:
        lane, member.lane = member.lane, deque()
        for delivery in lane:
            self._dispatcher.release(delivery, member)
        self._queue.take_lane(lane)

    def not_taken(self, member: Member, delivery: SharedDelivery, why: str) -> None:
        """The client of a member in another cell may not have a message, or takes no packet so large."""
        self._dispatcher.unclaim(member, delivery)
        if not self.is_over:
            self._dispatcher.give_to_another(delivery, member, why)

    def _give_back(self, delivery: SharedDelivery) -> None:
        """Let others have what a member was sent at QoS 1 and has not acknowledged."""
        delivery.holder = delivery.claim = None
        origin = delivery.cursor
        if isinstance(origin, Origin):
            if origin.returned(delivery):
                return
            delivery.cursor = None
        if self.is_over:
            return
        self.redelivered += 1
        self._services.context.figures.shared_redelivered.value += 1
        self._queue.give_back(delivery)

    def _tell(self, member: Member) -> None:
        """Tell other cells how a member of this one is one."""
        if self._services.cells is not None and member.cell is None and not self.is_private:
            self._services.cells.told(self, member)

    # -- time --

    @property
    def is_timed(self) -> bool:
        """True if time can change anything: of many groups few have to be checked."""
        return bool(self._leaving or self._ack_ns or self._queue.held or self.is_durable)

    def tick(self, now_ns: int) -> None:
        """Take back what silent members and those who left have had for too long."""
        for member in [
            leaving
            for leaving in self._leaving
            if not leaving.in_flight or leaving.leaves_at_ns <= now_ns
        ]:
            self._leaving.discard(member)
            self._take_back(member)
        if self._ack_ns and len(self._strategy.here) > 1:
            for member in list(self._strategy.here.items):
                if member.in_flight:
                    self._take_back(member, now_ns - self._ack_ns)
        if self._queue.held:
            self._dispatcher.give_out()

    def drop_excess(self, now_ns: int, *, also_old: bool, least_offset: int = 0) -> None:
        """Drop the oldest of a durable group when too much waits or, where that is checked, for too long.

        What is in the session log below ``least_offset`` goes as well: all together have too much waiting there.
        """
        settings = self._services.settings
        waiting = self._queue
        if not self.is_durable or not (also_old or self._is_excessive()):
            return
        oldest_ns = now_ns - int(min(settings.max_waiting_age, _FOREVER_S) * _NS)
        for _ in range(_PIECES_A_TICK):
            if not waiting.fresh:
                waiting.fresh.extend(self._read_and_hold())
            if not waiting.fresh or not self._dispatcher.drop_oldest(
                self._is_excessive, oldest_ns, least_offset
            ):
                break
        if self.is_away:
            self._queue.rest()

    def _is_excessive(self) -> bool:
        settings = self._services.settings
        if self.slows_publishers:
            most_bytes = (
                settings.max_waiting_bytes + self._services.context.settings.max_withheld_bytes
            )
            return self.outstanding_bytes > most_bytes
        return (
            self.outstanding > settings.max_waiting_messages
            or self.outstanding_bytes > settings.max_waiting_bytes
        )

    # -- records --

    @property
    def cursors(self) -> Sequence[Cursor]:
        """Its positions in logs."""
        return self._cursors.cursors

    @property
    def stream(self) -> str | None:
        """The stream that it reads, None where that is the session log or nothing."""
        return self._cursors.stream

    def encode(self) -> bytes:
        """The group as the store keeps it: its positions in logs, and what is claimed and not settled."""
        positions = [
            _Position(
                cursor.shard.log, cursor.shard.shard, self.position(cursor), list(cursor.pending)
            )
            for cursor in self.cursors
        ]
        return _encode(
            _Record(
                _VERSION, self.filter.text, self.strategy_name, self.stream, self.is_kept, self.is_private,
                self.created_ns, self.outstanding, self.outstanding_bytes, self.redelivered, positions,
                *(([], []) if self._services.cells is None else self._encode_far()),
            )
        )  # fmt: skip

    def _encode_far(self) -> tuple[list[FarMemberRecord], list[Grant]]:
        """Members in other cells that outlive this process, and what members there have of the session log."""
        members = [
            FarMemberRecord(member.cell, member.client_id, member.qos)
            for member in self.members.values()
            if member.cell is not None and member.session.is_durable
        ]
        granted = [
            Grant(delivery.holder.cell, delivery.holder.client_id, place, delivery.qos)
            for cursor in self.cursors
            for place, delivery in cursor.pending.items()
            if isinstance(delivery.holder, Member) and delivery.holder.cell is not None
        ]
        return members, granted

    @classmethod
    def decode(cls, key: str, value: bytes, services: GroupServices) -> ShareGroup:
        """Restore a group from the result of ``encode``; some unsettled messages may have been sent."""
        record = _decode(value)
        group = cls(
            key,
            TopicFilter.parse(record.filter),
            services,
            record.strategy,
            record.created_ns,
        )
        group.is_kept = record.is_kept
        group.is_private = record.is_private
        group.is_persistent = True
        group.outstanding = record.outstanding
        group.outstanding_bytes = record.outstanding_bytes
        group.redelivered = record.redelivered
        group.stand_on([], record.stream)
        granted = {grant.place: grant for grant in record.granted}
        far: list[tuple[Grant, SharedDelivery]] = []
        for at in record.positions:
            cursor = Cursor(LogShard(at.log, at.shard), at.position, is_behind=True)
            for delivery in group._cursors.restore(cursor, at.pending):
                if delivery.place in granted:
                    far.append((granted[delivery.place], delivery))
                else:
                    group._queue.give_back(delivery)
        if services.cells is not None:
            services.cells.restore(group, record.members, far)
        return group

    def position(self, cursor: Cursor) -> int:
        """The offset from which on no member was given anything."""
        return self._cursors.position(cursor, self._queue.fresh)

    def low_offset(self, shard: LogShard) -> int | None:
        """The lowest offset of a log that the group still needs; None when it has no position there."""
        cursor = self._cursors.at(shard)
        return None if cursor is None else min(cursor.pending, default=self.position(cursor))

    def stand_on(self, cursors: Sequence[Cursor], stream: str | None = None) -> None:
        """From now on messages come from logs: the session log or, where it is named, a stream."""
        self._cursors.cursors.extend(cursors)
        self._cursors.stream = stream
        self.is_durable = stream is None

    def end(self) -> None:
        """The last member is gone, or the group was deleted: what waits is discarded."""
        self.is_over = True
        lost = self.waiting
        if lost > 0:
            self._services.context.figures.delivery_dropped("group_ended").value += lost
        self._queue.clear()
        self._drained()
        self.outstanding = self.outstanding_bytes = 0

    @property
    def waiting(self) -> int:
        """Number of messages that wait and were given to no member, as far as it can be counted; in streams it
        cannot."""
        return (
            max(self.outstanding - self.in_flight + self.borrowed, self._queue.held)
            if self.is_durable
            else self._queue.held
        )

    @property
    def connected(self) -> int:
        """Number of members of this cell with a connection."""
        return len(self._strategy.near)

    @property
    def own_members(self) -> Sequence[Member]:
        """Members of this cell."""
        return [member for member in self.members.values() if member.cell is None]

    @property
    def behind(self) -> int | None:
        """Number of records of its stream that it has not read; None when it reads none."""
        return self._cursors.behind

    @property
    def waiting_bytes(self) -> int:
        """Approximate bytes of those; of durable groups including the messages in flight."""
        return (
            self.outstanding_bytes
            if self.is_durable and self.stream is None
            else self._queue.held_bytes
        )

    # -- for publishers that wait --

    @property
    def name(self) -> str:
        """Name that users know it by."""
        return self.key

    @property
    def slows_publishers(self) -> bool:
        """True if publishers wait when too much waits for it: members are here and acknowledge what they get."""
        is_here = self.is_acknowledging and not self.is_away
        return is_here and self._services.context.settings.slow_subscriber == "slow_publishers"

    @property
    def ack_timeout_s(self) -> float:
        """Time within which a member has to acknowledge something, for publishers to wait for the group."""
        return self._services.context.settings.subscriber_ack_timeout

    @property
    def progress(self) -> Hashable:
        """Changes with each acknowledgement."""
        return self.settled_count

    @property
    def connections(self) -> list[Owner]:
        """The connections of its members."""
        return [
            member.session.owner
            for member in self.members.values()
            if member.session.owner is not None
        ]

    @property
    def is_unread(self) -> bool:
        """True if the broker reads from none of its members."""
        if not all(owner.is_unread for owner in self.connections):
            return False
        return len(self._strategy.near) == len(self._strategy.here)

    @property
    def has_caught_up(self) -> bool:
        """True if at most half as much waits for it as may."""
        return self._has_room(slowing.HALF)

    def room(self, withheld: int, withheld_bytes: int) -> tuple[float, float]:
        """Amount of the queue that may still be acknowledged to publishers, given the amount that is not."""
        messages, size_bytes = self._room(slowing.MOST)
        return messages + withheld, size_bytes + withheld_bytes

    def trim(self, at_most: int) -> bool:
        """Drop what is above the bound in memory, a part; whether there is more."""
        return not self.is_durable and self._dispatcher.trim(at_most)

    def _room(self, share: float) -> tuple[float, float]:
        if not self.is_durable:
            return self._queue.room(share)
        settings = self._services.settings
        messages = settings.max_waiting_messages * share - self.outstanding
        return messages, settings.max_waiting_bytes * share - self.outstanding_bytes

    def _has_room(self, share: float) -> bool:
        withheld, (messages, size_bytes) = self.withheld, self._room(share)
        if withheld:
            messages = messages + len(withheld)
            size_bytes = size_bytes + withheld.size_bytes
        return messages > 0 and size_bytes > 0

    def _drained(self) -> None:
        if self.withheld is not None:
            self._services.withholding.drained(self)

    # -- inside --

    def _went(self, member: Member) -> None:
        member.is_here = False
        self._strategy.left(member)
        self._take_lane(member)
        self._drained()

    def _abandon(self, member: Member, *, for_good: bool) -> None:
        """QoS 1 goes to others; QoS 2 to no one, and ends with the session [MQTT-4.8.2-5]."""
        self._busy_away.discard(member)
        self._leaving.discard(member)
        self._take_back(member)
        if for_good:
            for delivery in cast(list[SharedDelivery], member.session.window.give_up(member)):
                self.settled(member, delivery)

    def _take_back(self, member: Member, sent_before_ns: int | None = None) -> None:
        """Let others have what a member was sent at QoS 1 and has not acknowledged."""
        before_ns = inf if sent_before_ns is None else sent_before_ns
        deliveries = member.session.take_back(
            member,
            lambda delivery: (
                isinstance(delivery, SharedDelivery) and delivery.given_ns <= before_ns
            ),
        )
        for delivery in cast(list[SharedDelivery], deliveries):
            self._dispatcher.unclaim(member, delivery)
            self._give_back(delivery)

    def _read_on(self) -> None:
        if self._is_reading or self._queue.held * 2 > AHEAD or self.is_away or self.is_over:
            return
        if self._cursors.are_behind:
            self._is_reading = True
            self._services.context.defer(self._read_deferred)

    def _read_deferred(self) -> None:
        self._is_reading = False
        if self.is_away or self.is_over:
            return
        for delivery in self._cursors.read(self._is_meant):
            self._dispatcher.admit(delivery)
        self.pump()

    def _is_meant(self, message: Message) -> bool:
        if not self.filter.matches(message.topic):
            return False
        if not self.is_private:
            return True
        return not any(
            m.no_local and m.client_id == message.client.client_id for m in self.members.values()
        )

    def _read_and_hold(self) -> Iterator[SharedDelivery]:
        for delivery in self._cursors.read(self._is_meant):
            self._queue.hold(delivery)
            yield delivery


def is_idle(value: bytes, next_offset_of: Callable[[LogShard], int]) -> bool:
    """True if a stored group has read its logs to their ends, and nothing of it is unsettled."""
    return all(
        not at.pending and at.position >= next_offset_of(LogShard(at.log, at.shard))
        for at in _decode(value).positions
    )


def filter_of(value: bytes) -> str:
    """Topic filter of a stored group."""
    return _decode(value).filter


def waiting_in(value: bytes) -> int:
    """Number of messages that wait for a stored group, those in flight included."""
    return _decode(value).outstanding


def granted_in(value: bytes) -> list[Grant]:
    """Messages of a stored group that members in other cells have."""
    return _decode(value).granted


def part_of(value: bytes) -> bytes:
    """The record of a stored group's part in a new cell, which reads its session log from the beginning."""
    start = _Position(log=SESSION_LOG.log, shard=SESSION_LOG.shard, position=0, pending=[])
    return _encode(
        replace_member(
            _decode(value), stream=None, outstanding=0, outstanding_bytes=0, redelivered=0,
            positions=[start], members=[], granted=[],
        )
    )  # fmt: skip


def with_members(
    value: bytes, members: list[FarMemberRecord], home_of: Callable[[str], int | None]
) -> bytes:
    """The record of a group with these members in other cells. ``home_of`` gives the cell of a client, None for one of
    this cell, which claims what it was granted."""
    record = _decode(value)
    granted = [
        replace_member(grant, cell=home)
        for grant in record.granted
        if (home := home_of(grant.client_id)) is not None
    ]
    return _encode(replace_member(record, members=members, granted=granted))


def without(value: bytes, places: Collection[tuple[int, int, int]]) -> bytes:
    """The record of a group without some of its messages in flight, by log, shard and offset."""
    record = _decode(value)
    positions = []
    gone = 0
    for at in record.positions:
        pending = [place for place in at.pending if (at.log, at.shard, place) not in places]
        gone += len(at.pending) - len(pending)
        positions.append(replace_member(at, pending=pending))
    left = max(record.outstanding - gone, 0)
    size_bytes = record.outstanding_bytes * left // max(record.outstanding, 1)
    return _encode(
        replace_member(record, positions=positions, outstanding=left, outstanding_bytes=size_bytes)
    )
