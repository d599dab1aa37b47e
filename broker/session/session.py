"""One client's state, and the way of a message to it: the queue, the in-flight window, the connection.

A session that ends with its connection (*clean*) queues in memory, and so does one in a zone that keeps sessions in
memory, while its client is away too; a restart ends both. Any other one (*durable*) gets its QoS 1 and 2 messages from
the session log, each stored once however many sessions wait for it: after the commit they are handed to
``accept_logged`` from memory, and what it cannot take waits there (``broker.session.share``). What of it may be sent
before the record of the session is written, ``broker.session.foretelling`` tells.

A new connection is sent what was in flight (``broker.session.resending``), then retained messages of new subscriptions
(``send_ahead``), then what waits. QoS 0 messages that cannot be sent at once wait in a ``LateQueue``, which loses its
oldest; they cannot while older messages of QoS 1 or 2 wait, which they must not overtake. What the client answers is in
``broker.session.answers``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from broker.codec.outgoing import Outgoing
from broker.core.client import Client
from broker.core.nothing import NOTHING
from broker.core.topic import TopicFilter
from broker.session import in_log, in_memory, qos0, resending, sending
from broker.session.ahead import Ahead
from broker.session.delivery import DENIED, Delivery, MayHave
from broker.session.foretelling import Foretelling
from broker.session.holder import Holder
from broker.session.inbound import Inbound
from broker.session.late import Late, LateQueue
from broker.session.outbox import Outbox
from broker.session.services import Owner, SessionServices
from broker.session.share import LogShare
from broker.session.subscriptions import Subscriptions
from broker.session.will import Will
from broker.session.window import Window

NEVER_S: Final = 0xFFFFFFFF
_UNLIMITED_BYTES: Final = 1 << 32
DEFAULT_ZONE: Final = "default"
"""The zone of listeners that name none."""


class Session:
    """One client's session. ``box`` is None while away; ``fast`` is ``box`` unless something of each message has to be
    looked at: the connection is slow, older messages or retained ones go before, the client limits the size of packets
    or takes topic aliases. ``log`` and ``foretelling`` are there when it is durable."""

    __slots__ = (
        "ahead",
        "away_since_ns",
        "box",
        "client",
        "client_id",
        "connected_ns",
        "dropped",
        "ends_at_ns",
        "expiry_s",
        "fast",
        "foretelling",
        "inbound",
        "is_blocked",
        "is_crowded",
        "is_durable",
        "is_ended",
        "is_slow",
        "is_v5",
        "is_waited_for",
        "late",
        "log",
        "max_packet_bytes",
        "may_have",
        "maybe_sent_below",
        "memberships",
        "owner",
        "pushed",
        "queue",
        "queue_bytes",
        "services",
        "subscriptions",
        "will",
        "will_at_ns",
        "window",
        "zone",
    )

    def __init__(self, client_id: str, services: SessionServices, *, is_durable: bool, next_offset: int = 0) -> None:
        self.client_id, self.services, self.is_durable = client_id, services, is_durable
        self.client = Client(client_id)
        self.is_v5 = False
        self.is_ended = False
        self.zone = DEFAULT_ZONE
        self.expiry_s = 0
        self.ends_at_ns = 0
        self.connected_ns = self.away_since_ns = 0
        self.dropped: dict[str, int] | None = None
        """Messages that it did not get, by reason; None when there were none."""
        self.subscriptions = Subscriptions(services.subscribed)
        self.memberships: dict[str, Holder] = {}
        self.inbound: Inbound | None = None
        self.will: Will | None = None
        self.will_at_ns = 0
        self.owner: Owner | None = None
        self.box: Outbox | None = None
        self.fast: Outbox | None = None
        self.is_slow = self.is_blocked = False
        self.is_waited_for = True
        self.is_crowded = False
        self.max_packet_bytes = _UNLIMITED_BYTES
        self.may_have: MayHave | None = None
        """What it may have of what it subscribed to, by QoS of the subscription; None for all. While it is away, by the
        rules of before; what waits is looked at once more when it is back."""
        self.window = Window(services.window)
        self.queue: deque[Delivery] = NOTHING
        self.queue_bytes = 0
        """Of the messages that wait in memory, topics and payloads."""
        self.pushed = 0
        """Messages added to the queue so far."""
        self.late = LateQueue()
        self.ahead: Ahead | None = None
        self.log = LogShare(next_offset) if is_durable else None
        self.foretelling = Foretelling(self.window) if is_durable else None
        self.maybe_sent_below = 0
        """Below this offset of the log a broker that crashed may have sent what no record tells of."""

    # -- what it is --

    @property
    def is_away(self) -> bool:
        """Whether it has no connection."""
        return self.box is None

    @property
    def outlives(self) -> bool:
        """Whether it goes on without a connection: on disk when it is durable, else in memory."""
        return self.is_durable or self.expiry_s > 0

    @property
    def keeps_qos0(self) -> bool:
        """Whether QoS 0 messages wait for it while it is away."""
        return self.outlives and self.services.limits.keeps_qos0

    @property
    def is_behind(self) -> bool:
        """Whether messages wait for it in the log that are not in its queue."""
        return self.log is not None and self.log.is_behind

    @property
    def next_offset(self) -> int:
        """Where it reads on in the log; 0 for one in memory."""
        return self.log.next_offset if self.log is not None else 0

    @property
    def waiting_messages(self) -> int:
        """How many messages wait for it: in memory, in the log, and QoS 0 ones for a slow connection."""
        return len(self.queue) + self.late.messages + (self.log.messages if self.log is not None else 0)

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the messages that wait for it, topics and payloads, wherever they wait."""
        return self.queue_bytes + self.late.size_bytes + (self.log.size_bytes if self.log is not None else 0)

    # -- connection --

    def enter_zone(self, zone: str, services: SessionServices) -> None:
        """A connection through a listener of this zone is about to take it: the zone's limits hold."""
        self.zone, self.services = zone, services

    def attach(self, owner: Owner, client: Client, box: Outbox, receive_maximum: int, max_packet_bytes: int) -> None:
        """A connection takes the session; ``resending.resume`` follows once its CONNACK has left."""
        self.owner, self.client, self.box = owner, client, box
        self.is_v5 = client.protocol_version == 5
        self.max_packet_bytes = max_packet_bytes or _UNLIMITED_BYTES
        self.window.open(min(receive_maximum, self.services.window))
        self.is_blocked = bool(self.queue) or self.is_behind
        self.set_slow(is_slow=False)
        self.ends_at_ns = self.will_at_ns = self.away_since_ns = 0

    def set_slow(self, *, is_slow: bool) -> None:
        """The connection has more unsent than its bound, or no longer has."""
        self.is_slow = is_slow
        self._set_fast()
        if is_slow:
            self.is_crowded = True
            return
        if self.ahead is not None:
            self.ahead.await_turn()
        elif self.late:
            qos0.send_kept(self)
        if self.is_crowded:
            in_memory.check_relief(self)
        if self.memberships:
            self.offer_room()

    def _set_fast(self) -> None:
        is_watched = self.has_to_wait or self.max_packet_bytes != _UNLIMITED_BYTES
        keeps_copies = self.services.resends and not self.is_v5  # what was sent in passing cannot be sent again
        box = self.box
        self.fast = None if is_watched or keeps_copies or box is None or not box.is_plain else box

    def detach(self, log_next: int) -> None:
        """The connection is gone; ``log_next`` is the log's next offset."""
        self.owner = self.box = self.fast = None
        self.window.close()
        if self.foretelling is not None:
            self.foretelling.let_go()
        if self.is_durable or not self.expiry_s:  # what is retained comes to a durable one through the log
            self.ahead = None
        if not self.keeps_qos0:
            qos0.drop_kept(self, "connection_closed")
        in_memory.check_relief(self)
        if self.log is not None:
            in_log.put_back(self, self.log, log_next)

    # -- messages --

    def take_packet(self, packet: bytes) -> bool:
        """Send an encoded QoS 0 PUBLISH; False when ``deliver`` has to look at it first."""
        box, services = self.fast, self.services
        if box is None or "message.delivered" in services.events.wanted:
            return False
        box.chunks.append(packet)
        if not box.is_dirty:
            box.mark()
        box.messages_out += 1
        services.sent[0].value += 1
        return True

    def deliver(self, outgoing: Outgoing, qos: int, retain: bool, identifiers: tuple[int, ...]) -> None:
        """Take a message that is not in the log: QoS 0, or any for a session in memory."""
        if qos:
            in_memory.enqueue(self, Delivery(outgoing, qos, retain, identifiers))
            self.pump()
        elif self.box is None and not self.keeps_qos0:
            self.drop(outgoing, "qos0_msg")
        elif self.box is None or self.has_to_wait:
            qos0.keep(self, Late(b"", 1, outgoing, retain, identifiers))
        else:
            qos0.send(self, outgoing, retain, identifiers)

    @property
    def has_to_wait(self) -> bool:
        """Whether QoS 0 messages have to wait while it is connected."""
        return self.is_slow or self.is_blocked or self.ahead is not None

    def send_ahead(self, topic_filter: str, deliveries: Iterator[Delivery]) -> None:
        """Send these before what waits and what comes, as the client takes them: the retained messages of a new
        subscription to this filter, as many as there are; see ``broker.session.ahead``."""
        if self.box is None:
            return
        if self.ahead is None:
            self.ahead = Ahead(self)
            self._set_fast()
        self.ahead.add(topic_filter, deliveries)
        self.ahead.await_turn()

    def accept_logged(
        self, offset: int, outgoing: Outgoing, qos: int, retain: bool, identifiers: tuple[int, ...]
    ) -> None:
        """Take a message that was committed to the log at ``offset``; ``pump`` sends it. It is left to wait there when
        earlier ones do, or there is no room."""
        log, services = self.log, self.services
        if log is None or self.is_ended or offset < log.next_offset:
            return
        if not log.is_behind:
            is_full = len(self.queue) >= services.max_queue or self.queue_bytes >= services.max_queue_bytes
            if self.box is not None and not is_full:
                log.next_offset = offset + 1
                self.push(Delivery(outgoing, qos, retain, identifiers, offset))
                return
            log.fall_behind(offset)
        in_log.wait(self, log, offset, outgoing.size_bytes)

    def push(self, delivery: Delivery) -> None:
        """Add to the queue, whatever is in it."""
        if self.queue is NOTHING:
            self.queue = deque()
        self.queue.append(delivery)
        self.pushed += 1
        if (outgoing := delivery.outgoing) is not None:
            self.queue_bytes += outgoing.size_bytes

    def pump(self) -> None:
        """Send what waits while the window has room."""
        if self.box is None:
            return
        window = self.window
        if window.unsent:
            resending.go_on(self)
        if self.ahead is not None and not self._send_some_ahead(self.ahead):
            return
        queue = self.queue
        if queue and window.quota > 0:
            now_ns = self.services.clock.now_ns()
            while queue and window.quota > 0:
                delivery = queue.popleft()
                if (outgoing := delivery.outgoing) is not None:
                    self.queue_bytes -= outgoing.size_bytes
                sending.send(self, delivery, now_ns)
                if self.late.messages:
                    qos0.send_kept(self)
        if self.is_blocked is not (bool(queue) or (self.log is not None and self.log.is_behind)):
            self._turn_block()
        if self.is_crowded:
            in_memory.check_relief(self)
        if window.quota > 0:
            if self.log is not None and self.log.is_behind and not queue:
                self.services.refill(self)
            if self.memberships:
                self.offer_room()

    def _turn_block(self) -> None:
        """Messages of QoS 1 and 2 begin to wait, which those of QoS 0 must not overtake, or wait no more."""
        self.is_blocked = not self.is_blocked
        self._set_fast()
        if self.late.messages:
            qos0.send_kept(self)

    def _send_some_ahead(self, ahead: Ahead) -> bool:
        if not ahead.send_some():
            return False
        self.ahead = None
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
        """What a share group has in flight here at QoS 1, as far as it is wanted: others are to have it."""
        found = self.window.take_back(holder, is_wanted, is_away=self.is_away)
        if found and self.is_durable:
            self.services.changed(self)
        return found

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
        """Of what waits in memory the client gets no more what it may not have. What waits in the log is looked at when
        it is read, what is in flight when it is sent again (``resending.resume``)."""
        if self.queue:
            self._keep_waiting(
                lambda one: one.outgoing is None or may_have(one.outgoing.message.topic, one.qos), DENIED
            )
        if self.late:
            qos0.withhold(self, may_have)

    def _keep_waiting(self, is_kept: Callable[[Delivery], bool], why: str) -> None:
        waiting, self.queue, self.queue_bytes = self.queue, NOTHING, 0
        self.pushed -= len(waiting)
        for delivery in waiting:
            if is_kept(delivery):
                self.push(delivery)
            else:
                self.drop_delivery(delivery, why)
        if self.box is not None and self.is_blocked and not self.queue and not self.is_behind:
            self._turn_block()

    # -- what it does not get --

    def drop(self, outgoing: Outgoing, why: str) -> None:
        """Count a message that this session does not get, by reason, and tell who wants to know."""
        services = self.services
        self.count_dropped(why, 1)
        if "delivery.dropped" in services.events.wanted:
            services.on_event("delivery.dropped", self, outgoing.message, why)
        if services.on_dropped is not None:
            services.on_dropped(self, outgoing.message, why)

    def drop_delivery(self, delivery: Delivery, why: str) -> None:
        """As ``drop``, also where the message is not known."""
        if delivery.outgoing is not None:
            self.drop(delivery.outgoing, why)
        else:
            self.count_dropped(why, 1)

    def drop_all(self, why: str) -> None:
        """Count all that waits for it as dropped: the session is over."""
        self.ahead = None
        qos0.drop_kept(self, why)
        for delivery in self.queue:
            self.drop_delivery(delivery, why)
        in_log.drop(self, why)

    def count_dropped(self, why: str, count: int) -> None:
        """Count messages that this session does not get, by reason."""
        self.services.dropped(why).value += count
        if self.foretelling is not None:
            self.foretelling.upset()  # what is passed over gets no identifier
        if self.dropped is None:
            self.dropped = {}
        self.dropped[why] = self.dropped.get(why, 0) + count
