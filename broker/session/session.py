"""One client's state: its place in the way of deliveries, its in-flight window, its queue.

A session that ends with its connection (*clean*) queues in memory, and so does one in a zone that keeps sessions in
memory, while its client is away too; a restart ends both. Any other one (*durable*) gets its QoS 1 and 2 messages from
the session log, each stored once however many sessions wait for it: after the commit they are handed to
``accept_logged`` from memory, and when the session is away or its queue is full it falls *behind*, to be refilled from
the log at ``next_offset``.

After a crash the same message is sent again under the same identifier. Identifiers are given to messages in the order
of the log, so the record of a session, the subscriptions and the log foretell which message has which: a QoS 1 PUBLISH
leaves as soon as its message is committed, and the record that notes it is written a little later, many changes at a
time. What the record on disk does not foretell waits until one is there that does (``take_held``): QoS 2, so that
nothing is doubled, messages that do not come from the log, and whatever follows a message that was passed over.

A new connection is sent what was in flight, as far as the client's receive maximum allows, then retained messages of
new subscriptions (``send_ahead``), then what waits. QoS 0 messages that cannot be sent at once wait in a ``LateQueue``,
which loses its oldest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from broker.codec.outgoing import Outgoing
from broker.codec.wire import PACKET_ID_BYTES
from broker.core.client import Client
from broker.core.message import Message, Properties
from broker.core.nothing import NOTHING, filled
from broker.core.subscription import Subscription
from broker.core.topic import TopicFilter
from broker.session.delivery import RAW, Delivery
from broker.session.holder import Holder
from broker.session.inbound import Inbound
from broker.session.late import Late, LateQueue
from broker.session.matching import FEW, Matching, matching_filters, matching_subscriptions
from broker.session.outbox import Outbox
from broker.session.services import Owner, SessionServices
from broker.session.share import LogShare
from broker.session.will import Will

MAX_PACKET_ID: Final = 65_535
NEVER_S: Final = 0xFFFFFFFF
_UNLIMITED_BYTES: Final = 1 << 32
_NOTHING_YET: Final = -MAX_PACKET_ID - 1
"""The quota of a session whose connection has no CONNACK yet: no number of early acknowledgements makes it positive."""
_FORETOLD_MAX: Final = 16_384
"""Identifiers that are given before a record is written that notes them; far from coming round."""
_AHEAD_AT_ONCE: Final = 256
"""Retained messages sent in one turn of the loop; the end of those of a subscription counts as ``_LOOK_UP`` of them,
since the next one's have to be looked for."""
_LOOK_UP: Final = 16
_LOOK_UPS_S: Final = 0.002
"""After so long no more of them are begun."""
DEFAULT_ZONE: Final = "default"
"""The zone of listeners that name none."""


class Session:
    """See the module. ``box`` is None while away; ``fast`` is ``box`` unless something of each message has to be
    looked at: the connection is slow, retained messages go before, the client limits the size of packets or takes topic
    aliases."""

    __slots__ = (
        "_ahead",
        "_given",
        "_held",
        "_index",
        "_is_crowded",
        "_is_foretold",
        "_is_settling",
        "_late",
        "_next_id",
        "_queue_bytes",
        "_record",
        "_services",
        "_unsent",
        "away_since_ns",
        "box",
        "client",
        "client_id",
        "connected_ns",
        "dropped",
        "ends_at_ns",
        "expiry_s",
        "fast",
        "inbound",
        "inflight",
        "is_behind",
        "is_durable",
        "is_ended",
        "is_slow",
        "is_v5",
        "is_waited_for",
        "max_packet_bytes",
        "maybe_sent_below",
        "memberships",
        "next_offset",
        "owner",
        "queue",
        "quota",
        "share",
        "subscriptions",
        "will",
        "will_at_ns",
        "window",
        "zone",
    )  # fmt: skip

    def __init__(self, client_id: str, services: SessionServices, *, is_durable: bool) -> None:
        self.client_id, self._services, self.is_durable = client_id, services, is_durable
        self.client = Client(client_id)
        self.is_v5 = False
        self.is_ended = False
        self.zone = DEFAULT_ZONE
        self.expiry_s = 0
        self.ends_at_ns = 0
        self.connected_ns = self.away_since_ns = 0
        self.dropped: dict[str, int] | None = None
        """Messages that it did not get, by reason; None when there were none."""
        self.subscriptions: dict[str, Subscription] = {}
        self.memberships: dict[str, Holder] = {}
        self.inbound: Inbound | None = None
        self.will: Will | None = None
        self.will_at_ns = 0
        self.owner: Owner | None = None
        self.box: Outbox | None = None
        self.is_slow = False
        self.is_waited_for = True
        self._is_crowded = False
        self.fast: Outbox | None = None
        self.max_packet_bytes = _UNLIMITED_BYTES
        self.window = self.quota = services.window
        self.inflight: dict[int, Delivery] = {}
        self.queue: deque[Delivery] = NOTHING
        self.is_behind = False
        self.next_offset = 0
        self.share = LogShare()
        """What waits in the log from ``next_offset`` on."""
        self._queue_bytes = 0
        self._next_id = 1
        self._held: list[bytes] = []
        self._is_foretold = True  # by the record on disk: which identifiers the messages in the log get
        self._is_settling = False  # a record that foretells them anew is being written
        self._given = 0  # identifiers since the last record
        self._record = 0  # which one that was
        self.maybe_sent_below = 0
        """Below this offset of the log a broker that crashed may have sent what no record tells of."""
        self._late = LateQueue()
        self._ahead: deque[Iterator[Delivery]] = NOTHING
        self._unsent: deque[int] = NOTHING  # in flight from before, and beyond the receive maximum of this connection
        self._index: Matching[Subscription] | None = None

    # -- connection --

    @property
    def is_away(self) -> bool:
        """Whether it has no connection."""
        return self.box is None

    @property
    def outlives(self) -> bool:
        """Whether it goes on without a connection: on disk when it is durable, else in memory."""
        return self.is_durable or self.expiry_s > 0

    def enter_zone(self, zone: str, services: SessionServices) -> None:
        """A connection through a listener of this zone is about to take it: the zone's limits hold."""
        self.zone, self._services = zone, services

    def attach(self, owner: Owner, client: Client, box: Outbox, receive_maximum: int, max_packet_bytes: int) -> None:
        """A connection takes the session; ``resume`` follows once its CONNACK has left."""
        self.owner, self.client, self.box = owner, client, box
        self.is_v5 = client.protocol_version == 5
        self.max_packet_bytes = max_packet_bytes or _UNLIMITED_BYTES
        self.quota = _NOTHING_YET
        self.set_slow(is_slow=False)
        self.window = min(receive_maximum, self._services.window)
        self.ends_at_ns = self.will_at_ns = self.away_since_ns = 0

    def set_slow(self, *, is_slow: bool) -> None:
        """The connection has more unsent than its bound, or no longer has."""
        self.is_slow = is_slow
        self._set_fast()
        if is_slow:
            self._is_crowded = True
            return
        if self._ahead:
            self._services.later(self)
        elif self._late:
            self._send_late()
        if self._is_crowded:
            self._check_relief()
        if self.memberships:
            self._offer_room()

    def resume(self) -> None:
        """Send what is in flight again, in its order and with its identifiers [MQTT-4.4.0-1], then what waits.

        Not more at once than the client's receive maximum, which may be smaller than before [MQTT-4.9.0-2].
        """
        now_ns, left = self._services.clock.now_ns(), self.window
        for packet_id, delivery in list(self.inflight.items()):
            if delivery is RAW:  # taken back while it was connected
                del self.inflight[packet_id]
            elif left <= 0 and not delivery.is_released:
                self._unsent = filled(self._unsent)
                self._unsent.append(packet_id)
            elif self._emit_again(packet_id, delivery, now_ns):
                left -= 1
        self.quota = left
        self.pump()

    def resend(self, sent_before_ns: int) -> None:
        """Send again, in order, what the client of an older version has left unacknowledged since then."""
        if self.is_slow or self.is_v5 or self.quota == _NOTHING_YET:  # [MQTT-4.4.0-1]: never in version 5
            return
        now_ns = self._services.clock.now_ns()
        for packet_id, delivery in list(self.inflight.items()):
            if 0 < delivery.sent_ns <= sent_before_ns:
                self._emit(packet_id, delivery, now_ns, dup=True)

    def detach(self, log_next: int) -> None:
        """The connection is gone; ``log_next`` is the log's next offset. What waited in memory is in the log."""
        self.owner = self.box = self.fast = None
        self._held.clear()
        self._unsent = NOTHING
        if self.is_durable or not self.expiry_s:  # what is retained comes to a durable one through the log
            self._ahead = NOTHING
        if not self.keeps_qos0:
            for item in self._late.take_all():
                self._drop_late(item, "connection_closed")
        self._check_relief()
        if not self.is_durable:
            return
        if self.queue and self.share.to_skip:  # later ones were passed over since too many wait: these are older
            for delivery in self.queue:
                self._drop_delivery(delivery, "queue_full")
        elif self.queue:
            self.next_offset = self.queue[0].offset
            self.share.put_back(self.next_offset, len(self.queue), self._queue_bytes)
        elif not self.is_behind:
            self.next_offset = max(self.next_offset, log_next)
        self.is_behind = True
        self.queue = NOTHING
        self._queue_bytes = 0

    # -- deliveries --

    def take_packet(self, packet: bytes) -> bool:
        """Send an encoded QoS 0 PUBLISH; False when ``deliver`` has to look at it first."""
        box, services = self.fast, self._services
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
            self._enqueue(Delivery(outgoing, qos, retain, identifiers))
            self.pump()
            return
        if self.box is None and not self.keeps_qos0:
            self.drop(outgoing, "qos0_msg")
        elif self.box is None or self.has_to_wait:
            self.take_late(Late(b"", 1, outgoing, retain, identifiers))
        else:
            self._send_qos0(outgoing, retain, identifiers)

    @property
    def has_to_wait(self) -> bool:
        """Whether QoS 0 messages go to ``take_late``."""
        return self.is_slow or bool(self._ahead)

    def take_late(self, item: Late) -> None:
        """Keep QoS 0 messages until the connection takes them; the oldest go when there are too many. Publishers
        are held back either way."""
        services = self._services
        services.crowded(self)
        for gone in self._late.add(item, services.limits.late_messages, services.max_late_bytes):
            self._drop_late(gone, "queue_full")

    def send_ahead(self, deliveries: Iterator[Delivery]) -> None:
        """Send these before what waits and what comes, as the client takes them: a new subscription's retained
        messages, as many as there are. They are drawn a part in each turn of the loop; one without a message ends the
        turn's part."""
        if self.box is None:
            return
        self._ahead = filled(self._ahead)
        self._ahead.append(deliveries)
        self._set_fast()
        self.pump()

    def accept_logged(
        self, offset: int, outgoing: Outgoing, qos: int, retain: bool, identifiers: tuple[int, ...]
    ) -> None:
        """Take a message that was committed to the log at ``offset``; ``pump`` sends it. Ignored when behind."""
        if self.is_ended or offset < self.next_offset:
            return
        if not self.is_behind and (self.box is None or len(self.queue) >= self._services.max_queue or self._is_heavy):
            self.is_behind, self.next_offset = True, offset
        if self.is_behind:
            self._wait_in_log(offset, outgoing.size_bytes)
            return
        self.next_offset = offset + 1
        self._push(Delivery(outgoing, qos, retain, identifiers, offset))

    def accept_backlog(self, deliveries: list[Delivery], next_offset: int, is_end: bool) -> None:
        """Take what a refill read from the log below ``next_offset``; ``is_end`` tells that there is no more."""
        self.next_offset, self.is_behind = next_offset, not is_end
        self.share.take(len(deliveries), sum(map(_size, deliveries)))
        if is_end:
            self.share.clear()
        for delivery in deliveries:
            self._push(delivery)
        self.pump()

    def count_logged(self, offset: int, messages: int, size_bytes: int) -> None:
        """So many messages from ``offset`` on were found to wait in the log, when what waits is counted anew."""
        if self.is_behind:
            self._wait_in_log(offset, size_bytes, messages)

    def pass_over(self, deliveries: list[Delivery]) -> list[Delivery]:
        """What is left of deliveries read from the log at ``next_offset`` without those that were to be passed over."""
        skipped = min(self.share.to_skip, len(deliveries))
        self.share.to_skip -= skipped
        return deliveries[skipped:]

    def shed_below(self, offset: int) -> None:
        """Pass over what waits in the log below ``offset``: all sessions together have too much waiting there."""
        if self.is_behind:
            self._shed(*self.share.shed_below(offset))

    def match_logged(self, offset: int, message: Message, addressee: str | None) -> Delivery | None:
        """Whether a record of the log is for this session, by the subscriptions that held when it was appended."""
        if addressee is not None and addressee != self.client_id:
            return None
        is_addressed = addressee is not None
        found = [
            subscription
            for subscription in self._matching(message.topic)
            if is_addressed or (not subscription.is_membership and subscription.since_offset <= offset)
        ]
        if not is_addressed and message.client.client_id == self.client_id:
            found = [subscription for subscription in found if not subscription.no_local]
        qos = min(message.qos, max((subscription.qos for subscription in found), default=0))
        if qos == 0:
            return None
        retain = message.retain and (is_addressed or any(item.retain_as_published for item in found))
        identifiers = tuple(item.identifier for item in found if item.identifier)
        return Delivery(Outgoing(message), qos, retain, identifiers, offset)

    def subscriptions_changed(self, given_up: Sequence[TopicFilter]) -> None:
        """Subscriptions were added, replaced or removed. QoS 1 and 2 messages that waited because of filters
        ``given_up``, which were removed or lowered to QoS 0, and that no other asks for, do not wait on. Those in
        flight are finished [MQTT-3.10.4-3]."""
        self._index = None
        if not (self.queue and given_up):
            return
        waiting, self.queue, self._queue_bytes = self.queue, deque(), 0
        was_asked = matching_filters({topic_filter.text: True for topic_filter in given_up})
        for delivery in waiting:
            if delivery.outgoing is not None and self._is_given_up(delivery.outgoing.message.topic, was_asked):
                self.drop(delivery.outgoing, "unsubscribed")
            else:
                self._push(delivery)

    def _is_given_up(self, topic: str, was_asked: Matching[bool]) -> bool:
        return any(was_asked(topic)) and not any(item.qos for item in self._matching(topic))

    def take_back_offsets(self, next_offset: int) -> None:
        """The log's next record gets this offset after all: what was to begin behind it begins with it."""
        self.next_offset = min(self.next_offset, next_offset)
        for text, item in self.subscriptions.items():
            if item.since_offset > next_offset:
                self.subscriptions[text] = replace(item, since_offset=next_offset)
        self._index = None

    def drop(self, outgoing: Outgoing, why: str) -> None:
        """Count a message that this session does not get, by reason, and tell who wants to know."""
        services = self._services
        self.count_dropped(why, 1)
        if "delivery.dropped" in services.events.wanted:
            services.on_event("delivery.dropped", self, outgoing.message, why)
        if services.on_dropped is not None:
            services.on_dropped(self, outgoing.message, why)

    def count_dropped(self, why: str, count: int) -> None:
        """Count messages that this session does not get, by reason."""
        self._services.dropped(why).value += count
        self._is_foretold = False  # what is passed over gets no identifier
        if self.dropped is None:
            self.dropped = {}
        self.dropped[why] = self.dropped.get(why, 0) + count

    @property
    def keeps_qos0(self) -> bool:
        """Whether QoS 0 messages wait for it while it is away."""
        return self.outlives and self._services.limits.keeps_qos0

    def drop_all(self, why: str) -> None:
        """Count all that waits for it as dropped: the session is over."""
        self._ahead = NOTHING
        for item in self._late.take_all():
            self._drop_late(item, why)
        for delivery in self.queue:
            self._drop_delivery(delivery, why)
        share, services = self.share, self._services
        if share.messages:
            self.count_dropped(why, share.messages)
            if services.shed is not None:
                services.shed(self, why, self.next_offset, share.to_skip, share.messages)
        share.clear()

    @property
    def waiting_messages(self) -> int:
        """How many messages wait for it: in memory, in the log, and QoS 0 ones for a slow connection."""
        return len(self.queue) + self.share.messages + self._late.messages

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the messages that wait for it, topics and payloads, wherever they wait."""
        return self._queue_bytes + self.share.size_bytes + self._late.size_bytes

    @property
    def queue_bytes(self) -> int:
        """Bytes of the messages that wait in memory, topics and payloads."""
        return self._queue_bytes

    def pump(self) -> None:
        """Send what waits while the window has room."""
        if self.box is None:
            return
        if self._unsent:
            self._send_rest_again()
        if self._ahead and not self._send_some_ahead():
            return
        queue = self.queue
        if queue and self.quota > 0:
            now_ns = self._services.clock.now_ns()
            while queue and self.quota > 0:
                delivery = queue.popleft()
                self._queue_bytes -= _size(delivery)
                self._send(delivery, now_ns)
        if self._is_crowded:
            self._check_relief()
        if self.is_behind and not queue and self.quota > 0:
            self._services.refill(self)
        if self.memberships and self.quota > 0:
            self._offer_room()

    def next_packet_id(self) -> int:
        """An identifier that is not in flight [MQTT-2.2.1-4]."""
        packet_id, inflight = self._next_id, self.inflight
        while packet_id in inflight:
            packet_id = packet_id % MAX_PACKET_ID + 1
            self._is_foretold = False
        self._next_id = packet_id % MAX_PACKET_ID + 1
        self._given += 1
        return packet_id

    # -- share groups --

    def send_shared(self, delivery: Delivery, *, dup: bool) -> bool:
        """Send a message of a share group, for which the window has room; False when the packet is too large."""
        packet_id = self.next_packet_id()
        if not self._emit(packet_id, delivery, self._services.clock.now_ns(), dup=dup):
            return False
        self._sent(packet_id, delivery)
        return True

    def fits(self, delivery: Delivery) -> bool:
        """Whether the client takes packets as large as this one."""
        outgoing, now_ns = delivery.outgoing, self._services.clock.now_ns()
        if outgoing is None:
            return True
        head, tail = outgoing.parts_for(self.is_v5, delivery.qos, delivery.retain, delivery.identifiers, now_ns)
        return len(head) + len(tail) + 2 <= self.max_packet_bytes

    def take_back(self, holder: Holder, is_wanted: Callable[[Delivery], bool]) -> list[Delivery]:
        """What a share group has in flight here at QoS 1, as far as it is wanted: others are to have it.

        While the client is connected it may still acknowledge one, so the identifier stays taken until it does.
        """
        found = {
            packet_id: delivery
            for packet_id, delivery in self.inflight.items()
            if delivery.holder is holder and delivery.qos == 1 and is_wanted(delivery)
        }
        for packet_id in found:
            if self.box is None:
                del self.inflight[packet_id]
            elif packet_id in self._unsent:
                del self.inflight[packet_id]
                self._unsent.remove(packet_id)
            else:
                self.inflight[packet_id] = RAW
        if found and self.is_durable:
            self._services.changed(self)
        return list(found.values())

    def give_up(self, holder: Holder) -> list[Delivery]:
        """What a share group has in flight here, of a session that has ended."""
        found = {packet_id: delivery for packet_id, delivery in self.inflight.items() if delivery.holder is holder}
        for packet_id in found:
            del self.inflight[packet_id]
        return list(found.values())

    def _offer_room(self) -> None:
        """Share groups have their turn, each time another one first."""
        if self.box is None or self.quota <= 0:
            return
        memberships = self.memberships
        if len(memberships) > 1:
            first = next(iter(memberships))
            memberships[first] = memberships.pop(first)
        for holder in list(memberships.values()):
            holder.offer_room()
            if self.quota <= 0:
                return

    # -- answers of the client --

    def on_puback(self, packet_id: int, properties: Properties | None = None) -> bool:
        """A QoS 1 delivery is done; False for an identifier that is not in flight with QoS 1.

        ``properties`` are those of the client's packet.
        """
        delivery = self.inflight.get(packet_id)
        if delivery is RAW:  # most are, where there is much to do: as ``_done``, without what such a one cannot be
            del self.inflight[packet_id]
            self.quota += 1
            if self.queue or self._ahead:
                self.pump()
            elif self.memberships:
                self._offer_room()
            return True
        if delivery is None or delivery.qos != 1:
            return False
        self._done(packet_id, delivery)
        if delivery.outgoing is not None and "message.acked" in self._services.events.wanted:
            self._services.on_event("message.acked", self, delivery.outgoing.message, "", properties)
        return True

    def on_pubrec(self, packet_id: int) -> bool:
        """The client owns a QoS 2 message: release it; False for an identifier that is not in flight with QoS 2."""
        delivery = self.inflight.get(packet_id)
        if delivery is None or delivery.qos != 2:
            return False
        delivery.is_released = True
        self._out(b"\x62\x02" + PACKET_ID_BYTES[packet_id])
        return True

    def on_pubcomp(self, packet_id: int, properties: Properties | None = None) -> bool:
        """A QoS 2 delivery is over; False for an identifier that was not released."""
        delivery = self.inflight.get(packet_id)
        if delivery is None or not delivery.is_released:
            return False
        self._done(packet_id, delivery)
        if delivery.outgoing is not None and "message.acked" in self._services.events.wanted:
            self._services.on_event("message.acked", self, delivery.outgoing.message, "", properties)
        return True

    def on_refused(self, packet_id: int) -> bool:
        """The client answered PUBACK or PUBREC with a code of 0x80 and above: the message is not sent again, and counts
        as dropped [MQTT-4.4.0-2]. False for an identifier that is not in flight."""
        delivery = self.inflight.get(packet_id)
        if delivery is None or delivery.is_released:
            return False
        self._done(packet_id, delivery)
        if delivery.outgoing is not None:
            self.drop(delivery.outgoing, "refused_by_client")
        else:
            self._services.dropped("refused_by_client").value += 1
        return True

    # -- from memory to disk --

    def enter_log(self, next_offset: int) -> tuple[list[Delivery], list[Delivery]]:
        """Be durable from now on, while it is away. Returns what is in flight and what waits: both are to be appended
        to the log in this order, addressed to it, from ``next_offset`` on. What waits comes back from there.
        """
        flying = [
            delivery
            for delivery in self.inflight.values()
            if delivery.outgoing is not None and delivery.holder is None and not delivery.is_released
        ]
        for offset, delivery in enumerate(flying, next_offset):
            delivery.offset = offset
        waiting, self.queue, self._queue_bytes = list(self.queue), NOTHING, 0
        self.is_durable, self._is_foretold = True, False
        self.next_offset, self.is_behind = next_offset + len(flying), False
        return flying, waiting

    def leave_log(self, waiting: list[Delivery]) -> None:
        """As before ``enter_log``: what it had could not be stored, and is in memory still."""
        self.is_durable = self.is_behind = False
        self.share.clear()
        for delivery in self.inflight.values():
            delivery.offset = -1
        self.queue, self._queue_bytes = NOTHING, 0
        for delivery in waiting:
            self._push(delivery)

    # -- records --

    def low_offset(self, log_next: int) -> int:
        """The lowest offset of the log that this session still needs."""
        low = self.next_offset if self.is_behind else log_next
        if self.queue:
            low = min(low, self.queue[0].offset)
        return min((delivery.offset for delivery in self.inflight.values() if delivery.offset >= 0), default=low)

    def position(self, log_next: int) -> int:
        """Where to go on reading after a restart: all before it is in flight or done."""
        if self.queue:
            return self.queue[0].offset
        return self.next_offset if self.is_behind else max(self.next_offset, log_next)

    def take_held(self, number: int) -> list[bytes]:
        """Packets that may leave once the record made now is committed; ``recorded`` tells when, by this number."""
        held, self._held, self._record = self._held, [], number
        self._is_settling = bool(held) or self._is_settling or not self._is_foretold
        self._is_foretold, self._given = True, 0
        return held

    def recorded(self, number: int, *, is_written: bool) -> None:
        """The record of that number was committed, or could not be written; what it held back leaves now."""
        if not is_written:
            self._is_foretold = False
        if number == self._record:
            self._is_settling = False

    @property
    def next_id(self) -> int:
        """Where the search for the next packet identifier begins."""
        return self._next_id

    def restore_window(self, inflight: dict[int, Delivery], next_id: int, next_offset: int) -> None:
        """What a record of an earlier run holds; the session is away and behind."""
        self.inflight, self._next_id, self.next_offset, self.is_behind = inflight, next_id, next_offset, True

    # -- inside --

    def _set_fast(self) -> None:
        is_watched = self.has_to_wait or self.max_packet_bytes != _UNLIMITED_BYTES
        keeps_copies = self._services.resends and not self.is_v5  # what was sent in passing cannot be sent again
        box = self.box
        self.fast = None if is_watched or keeps_copies or box is None or not box.is_plain else box

    def _done(self, packet_id: int, delivery: Delivery) -> None:
        del self.inflight[packet_id]
        if (packet_id - self._next_id) % MAX_PACKET_ID < _FORETOLD_MAX:
            self._is_foretold = False  # free here, and taken in the record: an old one that is about to be used again
        if self._unsent and packet_id in self._unsent:
            self._unsent.remove(packet_id)  # acknowledged by what the connection before was sent: it used no quota
        else:
            self.quota += 1
        if delivery.holder is not None:
            delivery.holder.settle(delivery)
        if self.is_durable:
            self._services.moved(self)
        if self.queue or self.is_behind or self._ahead or self._unsent:
            self.pump()
        elif self.memberships:
            self._offer_room()

    def _matching(self, topic: str) -> Iterable[Subscription]:
        """The subscriptions whose filters match a topic name, shared ones among them."""
        if len(self.subscriptions) <= FEW:
            return [item for item in self.subscriptions.values() if item.filter.matches(topic)]
        if self._index is None:
            self._index = matching_subscriptions(self.subscriptions)
        return self._index(topic)

    def _emit_again(self, packet_id: int, delivery: Delivery, now_ns: int) -> bool:
        """Send on a new connection what the one before was sent; False when this client takes no packet so large."""
        if self._emit(packet_id, delivery, now_ns, dup=True):
            return True
        del self.inflight[packet_id]
        assert delivery.outgoing is not None
        self.drop(delivery.outgoing, "packet_too_large")
        if delivery.holder is not None:
            delivery.holder.settle(delivery)
        if self.is_durable:
            self._services.changed(self)
        return False

    def _send_rest_again(self) -> None:
        now_ns = self._services.clock.now_ns()
        while self._unsent and self.quota > 0:
            packet_id = self._unsent.popleft()
            self.quota -= self._emit_again(packet_id, self.inflight[packet_id], now_ns)

    def _send_some_ahead(self) -> bool:
        """Send some of what goes before everything else; whether that was the last of it."""
        clock = self._services.clock
        now_ns, until_s, left = clock.now_ns(), clock.monotonic_s() + _LOOK_UPS_S, _AHEAD_AT_ONCE
        while left > 0:
            left -= 1
            if self.is_slow or self.quota <= 0:
                return False  # ``set_slow`` or an acknowledgement goes on
            try:
                delivery = next(self._ahead[0], None)
            except Exception as error:  # noqa: BLE001  the store cannot be read: this client's trouble alone
                assert self.owner is not None
                self.owner.fail(error)
                return False
            if delivery is None:
                self._ahead.popleft()
                if not self._ahead:
                    self._set_fast()
                    self._send_late()
                    return True
                left -= _LOOK_UP
                if clock.monotonic_s() > until_s:
                    break
                continue
            if delivery.outgoing is None:
                break
            if delivery.qos:
                self._send(delivery, now_ns)
            else:
                self._send_qos0(delivery.outgoing, delivery.retain, delivery.identifiers)
        self._services.later(self)
        return False

    def _send_late(self) -> None:
        """Send the QoS 0 messages that had to wait."""
        assert self.box is not None
        for item in self._late.take_all():
            if item.outgoing is not None:
                self._send_qos0(item.outgoing, item.retain, item.identifiers)
            else:
                self.box.add(item.data)
                self._services.sent[0].value += item.packets

    def _drop_late(self, item: Late, why: str) -> None:
        if item.outgoing is not None:
            self.drop(item.outgoing, why)
        else:
            self.count_dropped(why, item.packets)

    def _send_qos0(self, outgoing: Outgoing, retain: bool, identifiers: tuple[int, ...]) -> None:
        box, services = self.box, self._services
        assert box is not None
        now_ns = services.clock.now_ns() if outgoing.expires_ns else 0
        if outgoing.expires_ns and outgoing.is_expired(now_ns):
            self.drop(outgoing, "expired")
            return
        head, tail = outgoing.parts_for(self.is_v5, 0, retain, identifiers, now_ns)
        if len(head) + len(tail) > self.max_packet_bytes:
            self.drop(outgoing, "packet_too_large")
            return
        box.add(head + tail)
        box.messages_out += 1
        services.sent[0].value += 1
        if "message.delivered" in services.events.wanted:
            services.on_event("message.delivered", self, outgoing.message, "")

    @property
    def _is_heavy(self) -> bool:
        return self._queue_bytes >= self._services.max_queue_bytes

    def _wait_in_log(self, offset: int, size_bytes: int, messages: int = 1) -> None:
        """A message waits in the log, or several; when there are too many the oldest are passed over."""
        limits, share = self._services.limits, self.share
        share.add(offset, size_bytes, messages)
        if share.messages > limits.stored_messages or share.size_bytes > limits.stored_bytes:
            begin, skipped = self.next_offset, share.to_skip
            self._shed(*share.shed(limits.stored_messages, limits.stored_bytes), begin, skipped)

    def _shed(self, count: int, offset: int | None, begin: int = -1, skipped: int = 0) -> None:
        """So many messages in the log are passed over; it reads on at ``offset`` where that is not None."""
        if not count:
            return
        services = self._services
        self.count_dropped("queue_full", count)
        if services.shed is not None:
            services.shed(self, "queue_full", self.next_offset if begin < 0 else begin, skipped, count)
        if offset is not None:
            self.next_offset = offset
            services.changed(self)

    def _drop_delivery(self, delivery: Delivery, why: str) -> None:
        if delivery.outgoing is not None:
            self.drop(delivery.outgoing, why)
        else:
            self.count_dropped(why, 1)

    def _takes_more(self, delivery: Delivery) -> bool:
        """Whether the queue of a session in memory has room, or makes it; else the new message is dropped."""
        services, size_bytes = self._services, _size(delivery)
        is_full = len(self.queue) >= services.max_queue or self._queue_bytes + size_bytes > services.max_queue_bytes
        if not is_full or not self.queue or services.limits.when_full == "drop_oldest":
            return True
        self._drop_delivery(delivery, "queue_full")
        if services.limits.when_full == "disconnect" and self.owner is not None:
            self.owner.overrun()
        return False

    def _enqueue(self, delivery: Delivery) -> None:
        """Queue for a session in memory; when it is full the settings say which message goes, and it is counted."""
        if not self._takes_more(delivery):
            return
        self._push(delivery)
        services = self._services
        if len(self.queue) * 2 > services.max_queue or self._queue_bytes * 2 > services.max_queue_bytes:
            self._is_crowded = True
            services.crowded(self)
        while len(self.queue) > 1 and (len(self.queue) > self._services.max_queue or self._is_heavy):
            oldest = self.queue.popleft()
            self._queue_bytes -= _size(oldest)
            if oldest.outgoing is not None:
                self.drop(oldest.outgoing, "queue_full")

    def _check_relief(self) -> None:
        services = self._services
        has_room = len(self.queue) * 4 <= services.max_queue and self._queue_bytes * 4 <= services.max_queue_bytes
        if self.box is None or (has_room and not self.is_slow):
            self._is_crowded = False
            services.relieved(self)

    def _push(self, delivery: Delivery) -> None:
        if self.queue is NOTHING:
            self.queue = deque()
        self.queue.append(delivery)
        self._queue_bytes += _size(delivery)

    def _send(self, delivery: Delivery, now_ns: int) -> None:
        outgoing = delivery.outgoing
        assert outgoing is not None
        if outgoing.expires_ns and outgoing.is_expired(now_ns):
            self.drop(outgoing, "expired")
            return
        packet_id = self.next_packet_id()
        if not self._emit(packet_id, delivery, now_ns, dup=0 <= delivery.offset < self.maybe_sent_below):
            self.drop(outgoing, "packet_too_large")  # counts as delivered [MQTT-3.1.2-25]
            return
        self._sent(packet_id, delivery)

    def _sent(self, packet_id: int, delivery: Delivery) -> None:
        self.inflight[packet_id] = delivery
        self.quota -= 1
        self._services.sent[delivery.qos].value += 1
        if self.box is not None:
            self.box.messages_out += 1
        outgoing = delivery.outgoing
        if outgoing is not None and "message.delivered" in self._services.events.wanted:
            self._services.on_event("message.delivered", self, outgoing.message, "")

    def _emit(self, packet_id: int, delivery: Delivery, now_ns: int, *, dup: bool = False) -> bool:
        delivery.sent_ns = now_ns
        if delivery.is_released:
            self._out(b"\x62\x02" + PACKET_ID_BYTES[packet_id])
            return True
        outgoing = delivery.outgoing
        if outgoing is None:
            return True
        head, tail = outgoing.parts_for(self.is_v5, delivery.qos, delivery.retain, delivery.identifiers, now_ns, dup)
        if len(head) + len(tail) + 2 > self.max_packet_bytes:
            return False
        data = b"%b%b%b" % (head, PACKET_ID_BYTES[packet_id], tail)
        if self.is_durable and delivery.qos == 1 and self._foretells(delivery):
            assert self.box is not None
            self.box.add(data)
            self._services.moved(self)
        else:
            self._is_foretold = False  # those behind it must not overtake it
            self._out(data)
        return True

    def _foretells(self, delivery: Delivery) -> bool:
        """Whether the record on disk tells the identifier that this message gets."""
        if delivery.offset < 0 or delivery.holder is not None:
            self._is_foretold = False
        return self._is_foretold and not self._is_settling and self._given < _FORETOLD_MAX

    def _out(self, data: bytes) -> None:
        if self.is_durable:
            self._held.append(data)
            self._services.changed(self)
        elif self.box is not None:
            self.box.add(data)


def _size(delivery: Delivery) -> int:
    return delivery.outgoing.size_bytes if delivery.outgoing is not None else 0
