"""Gives the messages of a share group to its members, one each, and settles those that no member can have."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from broker.codec.framing import frame_at, plain_publishes
from broker.codec.outgoing import Outgoing
from broker.connection.sharing.cursors import Cursor, Cursors
from broker.connection.sharing.member import Member
from broker.connection.sharing.queue import GroupQueue
from broker.connection.sharing.services import NO_MESSAGE, GroupServices, GroupState, Origin
from broker.connection.sharing.strategies import Keyed, Strategy
from broker.core.client import Client
from broker.core.message import Message
from broker.session.delivery import DENIED, NO_OFFSET, SharedDelivery

# A remaining length below this takes one byte.
_ONE_BYTE: Final = 128


class Dispatcher:
    """Gives the messages of a share group to its members.

    ``ack_ns`` is how long a member may have a message before another gets it, 0 for ever.
    """

    __slots__ = ("_ack_ns", "_cursors", "_group", "_keyed", "_queue", "_services", "_strategy")

    def __init__(
        self,
        group: GroupState,
        services: GroupServices,
        strategy: Strategy[Member],
        waiting: GroupQueue,
        places: Cursors,
        ack_ns: int,
    ) -> None:
        self._group = group
        self._services = services
        self._ack_ns = ack_ns
        self._strategy = strategy
        self._queue = waiting
        self._cursors = places
        self._keyed: Keyed[Member] | None = strategy if isinstance(strategy, Keyed) else None

    def offer_qos0(self, outgoing: Outgoing) -> int:
        """Give a message of QoS 0 to a connected member; return 1 if there is one, else 0."""
        return self._offer_qos0_to(self._strategy.pick_any(outgoing.message), outgoing)

    def _offer_qos0_to(self, member: Member | None, outgoing: Outgoing) -> int:
        if member is None:
            self.lost(lambda: outgoing.message, "qos0_msg")
            return 0
        if member.session.is_slow and self._keyed is None:
            member = self._strategy.pick_any(outgoing.message) or member
        if member.cell is not None and not member.is_here:
            # its key has not moved yet
            self._give_qos0_to_another(outgoing)
            return int(bool(self._strategy.here.items))
        if not member.may_have(outgoing.message.topic):
            return self._give_qos0_to_another(outgoing)
        self._give_qos0(outgoing, member)
        return 1

    def _give_qos0_to_another(self, outgoing: Outgoing) -> int:
        for other in self._strategy.here.items:
            if other.may_have(outgoing.message.topic):
                self._give_qos0(outgoing, other)
                return 1
        self.lost(lambda: outgoing.message, DENIED)
        return 0

    def offer_granted_qos0(self, member: Member, outgoing: Outgoing) -> None:
        """Give a message of QoS 0 of another cell's part to a member of this cell, to no further cell."""
        topic = outgoing.message.topic
        for own in (member, *self._strategy.near.items):
            if own.is_here and own.may_have(topic):
                self._give_qos0(outgoing, own)
                return
        self.lost(lambda: outgoing.message, DENIED if member.is_here else "qos0_msg")

    def _give_qos0(self, outgoing: Outgoing, member: Member) -> None:
        message = outgoing.message
        session = member.session
        if member.identifiers or (message.retain and member.retain_as_published):
            session.deliver(
                outgoing, 0, message.retain and member.retain_as_published, member.identifiers
            )
        elif message.properties or not session.take_packets(
            b"".join(outgoing.parts(session.is_v5, 0, False)), 1
        ):
            session.deliver(outgoing, 0, False, ())
        self._group.given += 1

    def offer_run(self, chunk: bytes, client: Client, now_ns: int) -> int:
        """Take packets of QoS 0 without properties, as their publisher sent them; how many were sent on as they are.

        0.7 µs each, where ``offer`` takes 2.5.
        """
        pick = self._strategy.pick_any
        is_v5 = client.protocol_version == 5
        position = 0
        end = len(chunk)
        sent = 0
        while position < end:
            length = chunk[position + 1]
            body = position + 2
            if length < _ONE_BYTE:
                stop = body + length
            else:
                body, stop = frame_at(chunk, position, end) or (end, end)
            member = pick(NO_MESSAGE)
            session = None if member is None else member.session
            box = None if session is None else session.fast
            if (
                box is None
                or session is None
                or session.is_v5 is not is_v5
                or session.may_have is not None
                or (member and member.identifiers)
            ):
                self._offer_qos0_to(
                    member, Outgoing(_message_in(chunk[position:stop], client, now_ns))
                )
            else:
                box.chunks.append(chunk[position:stop])
                if not box.is_dirty:
                    box.mark()
                box.messages_out += 1
                sent += 1
            position = stop
        self._group.given += sent
        return sent

    def admit(self, delivery: SharedDelivery) -> None:
        """Let a message wait: for its member where it has a key, else for the first member that has room."""
        keyed = self._keyed
        if keyed is not None:
            message = self._cursors.message_of(delivery)
            member = keyed.pick(message)
            if member is not None:
                delivery.key = keyed.key_of(message)
                keyed.hold(delivery.key, member)
                if not member.lane and member.has_room:
                    self.give(delivery, member)
                else:
                    self._into_lane(delivery, member)
                return
        self._queue.add(delivery)

    def _into_lane(self, delivery: SharedDelivery, member: Member) -> None:
        self._queue.hold(delivery)
        member.lane.append(delivery)
        if isinstance(delivery.cursor, Cursor):
            delivery.cursor.pending[delivery.place] = delivery

    def keep_bound(self, delivery: SharedDelivery) -> None:
        """In memory, of a message that waits now: the oldest goes when there are too many."""
        if not self._queue.has_too_much():
            return
        self._drop_first(
            self._keyed.pick(self._cursors.message_of(delivery))
            if self._keyed is not None
            else None
        )

    def trim(self, at_most: int) -> bool:
        """Drop the oldest that are too many in memory, a part; whether there are more."""
        lanes = (member for member in self._strategy.here.items for _ in range(len(member.lane)))
        for _ in range(at_most):
            member = next(lanes, None)
            if not self._queue.has_too_much() or (member is None and self._queue.first() is None):
                return False
            self._drop_first(member)
        return True

    def _drop_first(self, member: Member | None) -> None:
        """Drop the oldest message that waits for one member, or for any."""
        oldest = (
            member.lane.popleft() if member is not None and member.lane else self._queue.pop_first()
        )
        self._queue.let_go(oldest)
        self.lost(partial(self._cursors.message_of, oldest), "queue_full")
        if member is not None:
            self.release(oldest, member)
        self.finish(oldest)

    def drop_oldest(
        self, is_excessive: Callable[[], bool], oldest_ns: int, least_offset: int
    ) -> bool:
        """Drop messages that are too many or too old, or have too low an offset in a log, from the front of the queue;
        return whether nothing was left there."""
        waiting = self._queue
        message_of = self._cursors.message_of
        while waiting.fresh:
            delivery = waiting.fresh[0]
            is_full = is_excessive() or NO_OFFSET < delivery.place < least_offset
            if not is_full and message_of(delivery).received_ns >= oldest_ns:
                return False
            waiting.fresh.popleft()
            waiting.let_go(delivery)
            self.lost(partial(message_of, delivery), "group_full" if is_full else "group_expired")
            self.finish(delivery)
        return True

    def give_out(self) -> None:
        """Give members the messages that wait for any of them, as far as they have room."""
        if not self._strategy.here.items:
            return
        if self._keyed is not None:
            for delivery in self._queue.take_all():
                self.admit(delivery)
            return
        strategy = self._strategy
        while (first := self._queue.first()) is not None:
            member = strategy.pick(NO_MESSAGE)
            if member is None:
                return
            self._queue.let_go(self._queue.pop_first())
            self.give(first, member)

    def drain(self, member: Member) -> None:
        """Give a member what waits for it alone, as far as it has room."""
        lane = member.lane
        while lane and member.has_room:
            delivery = lane.popleft()
            self._queue.let_go(delivery)
            self.give(delivery, member)

    def give(self, delivery: SharedDelivery, member: Member) -> None:
        """Send a message to a member that has room, unless it may no longer be delivered."""
        outgoing = delivery.outgoing or self._cursors.load(delivery)
        services = self._services
        session = member.session
        group = self._group
        if outgoing is None:
            self._lose(delivery, member, "not_found")
            return
        if outgoing.expires_ns and outgoing.is_expired(services.context.clock.now_ns()):
            session.drop(outgoing, "expired")
            self._forget(delivery, member)
            return
        message = outgoing.message
        qos = message.qos if message.qos < member.qos else member.qos
        retain = message.retain and member.retain_as_published
        delivery.qos = qos
        delivery.retain = retain
        delivery.identifiers = member.identifiers
        if not member.may_have(message.topic):
            self._give_to_another(delivery, member, DENIED)
            return
        group.given += 1
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
            if session.is_durable and group.is_persistent:
                delivery.claim = (group.key, cursor.shard.log, cursor.shard.shard, delivery.place)
            cursor.pending[delivery.place] = delivery
            if group.is_persistent:
                services.changed(group)
        if self._ack_ns:
            delivery.given_ns = services.context.clock.now_ns()
        if member.emit(session, delivery, dup=delivery.may_be_seen):
            delivery.may_be_seen = True
            self.claim(member)
        else:
            self._give_to_another(delivery, member, "packet_too_large")

    def claim(self, member: Member) -> None:
        """A member has one more in flight."""
        member.in_flight += 1
        self._group.in_flight += 1
        if self._strategy.counts:
            self._strategy.changed(member)

    def unclaim(self, member: Member, delivery: SharedDelivery) -> None:
        """A member has a message in flight no more."""
        member.in_flight -= 1
        self._group.in_flight -= 1
        if self._strategy.counts:
            self._strategy.changed(member)
        self.release(delivery, member)

    def _give_once_recorded(self, delivery: SharedDelivery, member: Member) -> None:
        """QoS 2 for a session in memory: once sent, no one else may get it [MQTT-4.8.2-5], also after a crash; so it is
        written down as given first."""
        session = member.session
        owner = session.owner
        outgoing = delivery.outgoing
        assert outgoing is not None  # its QoS was read from it
        cursor = delivery.cursor
        self.finish(delivery)
        # counted as in flight until it is acknowledged
        delivery.cursor = None
        delivery.given_from = cursor
        delivery.holder = member
        self.claim(member)
        session.window.quota -= 1

        def send(error: BaseException | None) -> None:
            is_queued = (
                session.owner is not owner and not session.is_durable and not session.is_ended
            )
            if is_queued and error is None:
                # the connection that had room is gone: its turn is to come
                self.unclaim(member, delivery)
                session.deliver(outgoing, delivery.qos, delivery.retain, delivery.identifiers)
                return
            session.window.quota += session.owner is owner
            if (
                error is not None
                or session.is_ended
                or not member.emit(session, delivery, dup=False)
            ):
                self.unclaim(member, delivery)
                if delivery.outgoing is not None:
                    session.drop(
                        delivery.outgoing, "packet_too_large" if error is None else "not_stored"
                    )

        self._services.when_recorded(self._group, send)

    def take_back(self, delivery: SharedDelivery) -> None:
        """A message that was written down as given was not sent: it waits in the log again, so that a session on disk
        can have it from there."""
        cursor = delivery.given_from
        group = self._group
        if cursor is None or group.is_over:
            return
        delivery.given_from = None
        delivery.cursor = cursor
        cursor.pending[delivery.place] = delivery
        if self._cursors.stream is None:
            group.outstanding += 1
            group.outstanding_bytes += (
                delivery.outgoing.size_bytes if delivery.outgoing is not None else 0
            )
        if group.is_persistent:
            self._services.changed(group)

    def _give_to_another(self, delivery: SharedDelivery, member: Member, why: str) -> None:
        """The packet is larger than the member takes, or on a topic that it may not have: another may take it
        [MQTT-3.1.2-25]."""
        if isinstance(delivery.cursor, Origin):
            delivery.cursor.refused(delivery, why)
            return
        self.give_to_another(delivery, member, why)

    def give_to_another(self, delivery: SharedDelivery, member: Member, why: str) -> None:
        """Let a member have what this one may not have or cannot take, or drop it."""
        self.release(delivery, member)
        self.take_back(delivery)
        message = self._cursors.message_of(delivery)
        delivery.tried = (*delivery.tried, member)
        for other in self._strategy.here.items:
            if other in delivery.tried:
                continue
            delivery.qos = min(message.qos, other.qos)
            delivery.identifiers = other.identifiers
            takes = other.may_have(message.topic) and (delivery.qos > 0 or why is DENIED)
            if takes and other.fits(other.session, delivery):
                if self._keyed is not None and delivery.key is not None:
                    self._keyed.hold(delivery.key, other)
                self._into_lane(delivery, other)
                self.drain(other)
                return
        if delivery.outgoing is not None:
            member.session.drop(delivery.outgoing, why)
        self.finish(delivery)

    def _forget(self, delivery: SharedDelivery, member: Member) -> None:
        self.release(delivery, member)
        self.finish(delivery)

    def _lose(self, delivery: SharedDelivery, member: Member, why: str) -> None:
        self.lost(partial(self._cursors.message_of, delivery), why)
        self._forget(delivery, member)

    def release(self, delivery: SharedDelivery, member: Member) -> None:
        """A member need not have what else comes with the message's key for its sake."""
        if self._keyed is not None and delivery.key is not None:
            self._keyed.release(delivery.key, member)

    def finish(self, delivery: SharedDelivery) -> None:
        """Release a message that no member needs."""
        cursor = delivery.cursor
        group = self._group
        delivery.holder = None
        if cursor is None:
            return
        if not isinstance(cursor, Cursor):
            if isinstance(cursor, Origin):
                cursor.settled(delivery)
            return
        if group.is_over:
            return
        cursor.pending.pop(delivery.place, None)
        if self._cursors.stream is None:
            group.outstanding = max(group.outstanding - 1, 0)
            size = delivery.outgoing.size_bytes if delivery.outgoing is not None else 0
            group.outstanding_bytes = (
                max(group.outstanding_bytes - size, 0) if group.outstanding else 0
            )
        if group.is_persistent:
            self._services.changed(group)

    def lost(self, find: Callable[[], Message], why: str) -> None:
        """Count a message that no member gets. Rules and dead letters get it in a later turn of the loop, when the
        group is consistent again."""
        services = self._services
        services.context.figures.delivery_dropped(why).value += 1
        if not services.losses.wants(why):
            return
        message = find()
        if message is not NO_MESSAGE:
            services.context.defer(partial(services.losses.take, self._group.filter, message, why))


def _message_in(packet: bytes, client: Client, now_ns: int) -> Message:
    """The message in a PUBLISH of QoS 0 without properties."""
    _, topic, payload_at, _ = next(plain_publishes(packet, is_v5=client.protocol_version == 5))
    return Message(topic.decode(), packet[payload_at:], 0, False, client, now_ns)
