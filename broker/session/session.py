"""One client's state, and the way of a message to it: the queue, the in-flight window, the connection.

A session that ends with its connection (*clean*) queues in memory, and so does one in a zone that keeps sessions in
memory, while its client is away too; a restart ends both. Any other one (*durable*) gets its QoS 1 and 2 messages from
the session log, each stored once however many sessions wait for it: after the commit they are handed to
``accept_logged`` from memory, and what it cannot take waits there (``broker.session.log_queue``). Which of it may be
sent before the record of the session is written is decided by ``broker.session.prediction``.

A new connection is sent what was in flight (``broker.session.sending``), then retained messages of new subscriptions
(``send_ahead``), then what waits. QoS 0 messages that cannot be sent at once wait in a ``Qos0Queue``, which loses its
oldest; they cannot while older messages of QoS 1 or 2 wait, which they must not overtake. What the client answers is in
``broker.session.acks``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Final

from broker.codec.outgoing import Outgoing
from broker.codec.primitives import PACKET_ID_BYTES
from broker.core.client import Client
from broker.core.memory import NOTHING
from broker.core.topic import TopicFilter
from broker.session import backlog, qos0, sending, slowing
from broker.session.delivery import DENIED, RAW, Delivery, Holder, MayHave
from broker.session.outbox import Outbox
from broker.session.qos0_queue import Qos0Item
from broker.session.retained_queue import RetainedQueue
from broker.session.state import UNLIMITED_BYTES, Owner, SessionServices, SessionState
from broker.session.window import MAX_PACKET_ID

# Maximum number of messages above the bound of a queue that are dropped with each new message.
_TRIMMED: Final = 100


class Session(SessionState):
    """One client's session."""

    __slots__ = ()

    retained_queue: RetainedQueue | None

    # -- connection --

    def enter_zone(self, zone: str, services: SessionServices) -> None:
        """A connection through a listener of this zone is about to take it: the zone's limits hold."""
        self.zone = zone
        self.services = services

    def attach(
        self, owner: Owner, client: Client, box: Outbox, receive_maximum: int, max_packet_bytes: int
    ) -> None:
        """A connection takes the session; ``resume`` follows once its CONNACK has left."""
        self.owner = owner
        self.client = client
        self.box = box
        self.is_v5 = client.protocol_version == 5
        self.max_packet_bytes = max_packet_bytes or UNLIMITED_BYTES
        self.window.open(min(receive_maximum, self.services.limits.max_inflight))
        self.is_blocked = bool(self.queue) or self.is_behind
        self.is_acknowledging = True
        self.set_slow(is_slow=False)
        self.ends_at_ns = self.will_at_ns = self.away_since_ns = 0

    def resume(self, may_have: MayHave | None = None) -> None:
        """Send what is in flight again, then what waits; see ``broker.session.sending``."""
        sending.resume(self, may_have)
        self.pump()

    def set_slow(self, *, is_slow: bool) -> None:
        """The connection has more unsent than its bound, or no longer has."""
        self.is_slow = is_slow
        self._set_fast()
        if is_slow:
            self.is_crowded = True
            return
        if self.retained_queue is not None:
            self.retained_queue.await_turn()
        elif self.qos0_queue:
            qos0.send_kept(self)
        if self.is_crowded:
            self._check_relief()
        if self.memberships:
            self.offer_room()

    def _set_fast(self) -> None:
        is_watched = self.has_to_wait or self.max_packet_bytes != UNLIMITED_BYTES
        # what was sent in passing cannot be sent again
        keeps_copies = self.services.resends and not self.is_v5
        box = self.box
        self.fast = None if is_watched or keeps_copies or box is None or not box.is_plain else box

    def detach(self, log_next: int) -> None:
        """The connection is gone; ``log_next`` is the log's next offset."""
        self.owner = self.box = self.fast = None
        self.window.close()
        if self.prediction is not None:
            self.prediction.let_go()
        if self.is_durable or not self.expiry_s:
            # what is retained comes to a durable one through the log
            self.retained_queue = None
        if not self.keeps_qos0:
            qos0.drop_kept(self, "connection_closed")
        self._check_relief()
        if self.log is not None:
            backlog.put_back(self, self.log, log_next)

    # -- messages --

    @property
    def messages_out(self) -> int:
        """Messages that were sent on its present connection."""
        return 0 if self.box is None else self.box.messages_out

    def take_packets(self, packets: bytes, count: int) -> bool:
        """Send ``count`` encoded QoS 0 PUBLISH; False if ``deliver`` must check each first."""
        box = self.fast
        services = self.services
        if box is None or "message.delivered" in services.events.wanted:
            return False
        box.chunks.append(packets)
        if not box.is_dirty:
            box.mark()
        box.messages_out += count
        services.sent[0].value += count
        return True

    def deliver(
        self, outgoing: Outgoing, qos: int, retain: bool, identifiers: tuple[int, ...]
    ) -> None:
        """Take a message that is not in the log: QoS 0, or any for a session in memory."""
        if qos:
            self._enqueue(
                self.services.deliveries.of(outgoing, qos, retain, identifiers), outgoing.size_bytes
            )
            if self.window.quota > 0 or not self.is_blocked:
                self.pump()
        elif self.box is None and not self.keeps_qos0:
            self.drop(outgoing, "qos0_msg")
        elif self.box is None or self.has_to_wait:
            qos0.keep(self, Qos0Item(b"", 1, outgoing, retain, identifiers))
        else:
            qos0.send(self, outgoing, retain, identifiers)

    def _enqueue(self, delivery: Delivery, size_bytes: int) -> None:
        """Queue in memory."""
        limits = self.services.limits
        messages = len(self.queue) + 1
        queue_bytes = self.queue_bytes + size_bytes
        if messages * 2 > limits.max_queued_messages or queue_bytes * 2 > limits.max_queued_bytes:
            self._enqueue_in_crowd(delivery, size_bytes)
        else:
            self.push(delivery, size_bytes)

    def _enqueue_in_crowd(self, delivery: Delivery, size_bytes: int) -> None:
        """The queue is half full: publishers wait for a moment, and for their acknowledgements where it is nearly full.
        Where they do not, a setting says which message is dropped and counted."""
        if self.withheld or self.slows_publishers:
            self.is_crowded = True
            if not self.withheld:
                # a burst is over soon: not to read costs less than to answer one by one
                self.services.crowded(self)
            receipt = None if delivery.outgoing is None else delivery.outgoing.message.receipt
            if slowing.takes(self, size_bytes, receipt):
                self.push(delivery, size_bytes)
            else:
                self.drop_delivery(delivery, "queue_full")
        elif self._takes_more(delivery):
            self.push(delivery, size_bytes)
            self.is_crowded = True
            self.services.crowded(self)
            slowing.trim(self, _TRIMMED)

    def _takes_more(self, delivery: Delivery) -> bool:
        """True if there is room, or will be made; else the new message is dropped."""
        limits = self.services.limits
        queue = self.queue
        if not queue or limits.queue_full == "drop_oldest":
            return True
        has_room = self.queue_bytes + delivery.size_bytes <= limits.max_queued_bytes
        if has_room and len(queue) < limits.max_queued_messages:
            return True
        self.drop_delivery(delivery, "queue_full")
        if limits.queue_full == "disconnect" and self.owner is not None:
            self.owner.overrun()
        return False

    def _check_relief(self) -> None:
        """Something left the queue, or the connection takes more: with room again, publishers are not held back."""
        limits = self.services.limits
        is_small = self.queue_bytes * 4 <= limits.max_queued_bytes
        has_room = is_small and len(self.queue) * 4 <= limits.max_queued_messages
        if self.withheld is not None:
            self.services.drained(self)
        if self.box is None or (has_room and not self.is_slow):
            self.is_crowded = self.withheld is not None
            self.services.relieved(self)

    # -- for publishers that wait --

    @property
    def name(self) -> str:
        """Name in messages for users."""
        return self.client_id

    @property
    def connections(self) -> Iterable[object]:
        """Its connection."""
        return () if self.owner is None else (self.owner,)

    @property
    def is_unread(self) -> bool:
        """True if the broker does not read from its client."""
        return self.owner is not None and self.owner.is_unread

    @property
    def ack_timeout_s(self) -> float:
        """Time limit for its client to acknowledge something, for publishers to wait for it."""
        return self.services.limits.subscriber_ack_timeout

    @property
    def progress(self) -> Hashable:
        """Changes with each acknowledgement, and with nothing else: a message that is sent takes one more identifier
        and is one more in flight."""
        return (self.window.next_id - len(self.window.inflight)) % MAX_PACKET_ID

    @property
    def has_caught_up(self) -> bool:
        """True if its queue is at most half full."""
        return slowing.has_room(self, slowing.HALF)

    def room(self, withheld: int, withheld_bytes: int) -> tuple[float, float]:
        """Messages and bytes of its queue that may still be acknowledged to publishers; ``withheld`` ones are not."""
        return slowing.room(self, withheld, withheld_bytes)

    def trim(self, at_most: int) -> bool:
        """Drop by the queue's policy what is above its bound, a part; whether there is more."""
        return slowing.trim(self, at_most)

    def send_ahead(self, topic_filter: str, deliveries: Iterator[Delivery]) -> None:
        """Send these before waiting and new messages, as the client takes them: the retained messages of a new
        subscription to this filter, as many as there are; see ``broker.session.retained_queue``."""
        if self.box is None:
            return
        if self.retained_queue is None:
            self.retained_queue = RetainedQueue(self, self.pump)
            self._set_fast()
        self.retained_queue.add(topic_filter, deliveries)
        self.retained_queue.await_turn()

    def accept_logged(
        self, offset: int, outgoing: Outgoing, qos: int, retain: bool, identifiers: tuple[int, ...]
    ) -> None:
        """Take a message that was committed to the log at ``offset``; ``pump`` sends it. It is left to wait there when
        earlier ones do, or there is no room."""
        log = self.log
        limits = self.services.limits
        if log is None or self.is_ended or offset < log.next_offset:
            return
        if not log.is_behind:
            is_full = (
                len(self.queue) >= limits.max_queued_messages
                or self.queue_bytes >= limits.max_queued_bytes
            )
            if self.box is not None and not is_full:
                log.next_offset = offset + 1
                self.push(
                    self.services.deliveries.of(outgoing, qos, retain, identifiers, offset),
                    outgoing.size_bytes,
                )
                return
            log.fall_behind(offset)
        backlog.wait(self, log, offset, outgoing.size_bytes)

    def pump(self) -> None:
        """Send what waits while the window has room."""
        if self.box is None:
            return
        window = self.window
        if window.unsent:
            sending.go_on(self)
        if self.retained_queue is not None and not self._send_some_ahead(self.retained_queue):
            return
        queue = self.queue
        if queue and window.quota > 0:
            self._send_queued()
        if self.is_blocked is not (bool(queue) or (self.log is not None and self.log.is_behind)):
            self._turn_block()
        if self.is_crowded:
            self._check_relief()
        if window.quota > 0:
            if self.log is not None and self.log.is_behind and not queue:
                self.services.refill(self)
            if self.memberships:
                self.offer_room()

    def _send_queued(self) -> None:
        """Send what is queued in memory while the window has room.

        Of messages that came the short way nothing will be needed again (``RAW``) by a session that ends with its
        connection; others are kept, for dead letters and for lists of messages in flight.
        """
        services = self.services
        window = self.window
        box = self.box
        queue = self.queue
        wanted = services.events.wanted
        now_ns = services.clock.now_ns()
        sent = 0
        is_forgotten = (
            box is not None
            and box.is_plain
            and not (self.outlives or (services.resends and not self.is_v5))
            and self.max_packet_bytes == UNLIMITED_BYTES
            and not ("message.delivered" in wanted or "message.acked" in wanted)
        )
        while queue and window.quota > 0:
            delivery = queue.popleft()
            outgoing = delivery.outgoing
            if outgoing is not None:
                self.queue_bytes -= outgoing.size_bytes
            if (
                is_forgotten
                and outgoing is not None
                and outgoing.is_as_received
                and delivery.qos == 1
            ):
                assert box is not None
                if delivery.identifiers:
                    head, tail = outgoing.parts_for(
                        self.is_v5, 1, delivery.retain, delivery.identifiers, now_ns
                    )
                else:  # it has no properties, so none that changes while it waits
                    head, tail = outgoing.parts(self.is_v5, 1, delivery.retain)
                packet_id = window.next_packet_id()
                window.inflight[packet_id] = RAW
                window.quota -= 1
                box.chunks += (head, PACKET_ID_BYTES[packet_id], tail)
                if not box.is_dirty:
                    box.mark()
                sent += 1
            else:
                sending.send(self, delivery, now_ns)
            if self.qos0_queue.messages:
                qos0.send_kept(self)
        if sent and box is not None:
            box.messages_out += sent
            services.sent[1].value += sent

    def take_backlog(self, deliveries: list[Delivery], next_offset: int, *, is_end: bool) -> None:
        """Take what a refill read from the log below ``next_offset``; ``is_end`` means that there is no more."""
        if self.log is None:
            return
        for delivery in self.log.read_on(deliveries, next_offset, is_end=is_end):
            self.push(delivery, delivery.size_bytes)
        self.pump()

    def _turn_block(self) -> None:
        """Messages of QoS 1 and 2 begin to wait, which those of QoS 0 must not overtake, or wait no more."""
        self.is_blocked = not self.is_blocked
        self._set_fast()
        if self.qos0_queue.messages:
            qos0.send_kept(self)

    def _send_some_ahead(self, ahead: RetainedQueue) -> bool:
        if not ahead.send_some():
            return False
        self.retained_queue = None
        self._set_fast()
        qos0.send_kept(self)
        return True

    def offer_room(self) -> None:
        """Share groups have their turn, each time another one first."""
        window = self.window
        if self.box is None or window.quota <= 0:
            return
        memberships = self.memberships
        if len(memberships) > 1:
            first = next(iter(memberships))
            memberships[first] = memberships.pop(first)
        for holder in list(memberships.values()):
            holder.offer_room()
            if window.quota <= 0:
                return

    def take_back(self, holder: Holder, is_wanted: Callable[[Delivery], bool]) -> list[Delivery]:
        """Take back the messages of a share group that are in flight here at QoS 1 and ``is_wanted``, for other
        members.
        """
        deliveries = self.window.take_back(holder, is_wanted, is_away=self.is_away)
        if deliveries and self.is_durable:
            self.services.changed(self)
        return deliveries

    def subscriptions_changed(self, given_up: Sequence[TopicFilter]) -> None:
        """Subscriptions were added, replaced or removed. QoS 1 and 2 messages that waited because of filters
        ``given_up``, which were removed or lowered to QoS 0, and that no other asks for, do not wait on. Those in
        flight are finished [MQTT-3.10.4-3]."""
        self.subscriptions.changed()
        if not (self.queue and given_up):
            return
        unwanted = set(self.subscriptions.without(self.queue, given_up))
        self._keep_waiting(lambda delivery: delivery not in unwanted, "unsubscribed")

    def withhold(self, may_have: MayHave) -> None:
        """Drop messages that wait in memory and that the client may not have. Messages in the log are checked when they
        are read, messages in flight when they are sent again (``resume``)."""
        if self.queue:
            self._keep_waiting(
                lambda kept: (
                    kept.outgoing is None or may_have(kept.outgoing.message.topic, kept.qos)
                ),
                DENIED,
            )
        if self.qos0_queue:
            qos0.withhold(self, may_have)

    def _keep_waiting(self, is_kept: Callable[[Delivery], bool], why: str) -> None:
        waiting = self.queue
        self.queue = NOTHING
        self.queue_bytes = 0
        self.pushed -= len(waiting)
        for delivery in waiting:
            if is_kept(delivery):
                self.push(delivery, delivery.size_bytes)
            else:
                self.drop_delivery(delivery, why)
        if self.box is not None and self.is_blocked and not self.queue and not self.is_behind:
            self._turn_block()

    def drop_all(self, why: str) -> None:
        """Count all that waits for it as dropped: the session is over."""
        self.retained_queue = None
        qos0.drop_kept(self, why)
        self.drop_deliveries(self.queue, why)
        backlog.drop(self, why)
