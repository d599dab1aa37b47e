"""PUBLISH in, the way through the pipeline: a message is made, its stages run, the answer sent or tied to a commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from broker.codec import properties as p
from broker.codec.primitives import PACKET_ID_BYTES, Reader, malformed, protocol_error
from broker.codec.properties import decode_properties
from broker.connection.acknowledgements import StoredPublish, refusal_packet
from broker.connection.connection import Connection
from broker.connection.context import Context
from broker.connection.protocol.limits import check_publish, check_user_properties, is_as_claimed
from broker.connection.protocol.parking import Decided, Parking
from broker.connection.sessions.inbounds import StoredInbounds
from broker.connection.withholding import Withholding
from broker.core import reason
from broker.core.errors import PeerError
from broker.core.message import Message
from broker.core.receipt import FullQueue, Receipt
from broker.core.stage import Outcome, Refusal
from broker.pipeline.pipeline import Pipeline
from broker.pipeline.plan import Plans, TopicPlan
from broker.session.inbound import Inbound, digest

# The first byte of the answer, by QoS.
_FIRST: Final = (b"", b"\x40", b"\x50")
# QoS 0 packets that are taken through stages between two looks at the time.
MOST_AT_ONCE: Final = 64


class Publishing:
    """Takes PUBLISH through the pipeline, and answers it."""

    def __init__(
        self,
        context: Context,
        plans: Plans,
        pipeline: Pipeline,
        parking: Parking,
        inbounds: StoredInbounds,
        withholding: Withholding,
    ) -> None:
        self._withholding = withholding
        self._plans = plans
        self._pipeline = pipeline
        self._parking = parking
        self._inbounds = inbounds
        self._context = context
        self._figures = context.figures

    def take_run(
        self, c: Connection, plan: TopicPlan, data: bytes, position: int, head_end: int, stop: int
    ) -> tuple[int, bool]:
        """Take the QoS 0 PUBLISH in ``data[position:stop]``, without properties, and those behind it that begin like
        it.

        Deliveries are gathered with the messages that follow (``broker.pipeline.pipeline.Together``).

        They are on one topic and of one size, so nothing but their payloads is read: 0.5 µs a message less. The payload
        begins at ``head_end``, the plan is the topic's; what remains is to run its stages. Where these wait for another
        process one packet is taken, and the connection parked. No more are taken than ``MOST_AT_ONCE``: stages may
        take long.

        Returns:
            How many were taken, and whether they left something in the store's commit group.
        """
        if plan.resolve is not None:
            plan = plan.resolve(c.client)
        if plan.waits:
            self._figures.packets_received.value += 1
            self._figures.received[0].value += 1
            self._figures.published_bytes_received.value += stop - position
            self._park_qos0(
                c, Message(plan.topic, data[head_end:stop], 0, False, c.client, c.now_ns), plan
            )
            return 1, False
        head = data[position:head_end]
        size = stop - position
        pipeline = self._pipeline
        if data.startswith(head, stop):
            end = min(len(data), position + MOST_AT_ONCE * size)
            payloads = [data[head_end:stop]]
            at = stop
            while at + size <= end and data.startswith(head, at):
                head_end += size
                at += size
                payloads.append(data[head_end:at])
            count, outcome = pipeline.gather_run(c, c.client, payloads, plan, c.now_ns)
        else:
            message = Message(plan.topic, data[head_end:stop], 0, False, c.client, c.now_ns)
            count = 1
            outcome = pipeline.gather(c, message, plan)
        figures = self._figures
        figures.received[0].value += count
        figures.packets_received.value += count
        figures.published_bytes_received.value += count * size
        refusal = outcome.refusal
        if refusal is not None and refusal.disconnect:
            pipeline.together.deliver()
            c.refused(refusal)
        return count, outcome.is_stored

    def take_qos1(
        self, c: Connection, plan: TopicPlan, packet: bytes, topic_end: int, payload_at: int
    ) -> None:
        """Take a QoS 1 PUBLISH without properties, retain flag and DUP, whose topic ends where its identifier is; its
        deliveries are gathered with the messages that follow.

        Raises:
            PeerError: it breaks the protocol.
        """
        packet_id = packet[topic_end] << 8 | packet[topic_end + 1]
        if packet_id == 0:
            raise malformed("PUBLISH has packet identifier 0")  # [MQTT-2.2.1-3]
        if plan.resolve is not None:
            plan = plan.resolve(c.client)
        self._figures.received[1].value += 1
        receipt = Receipt(c.answers.held_bytes)
        message = Message(
            plan.topic, packet[payload_at:], 1, False, c.client, c.now_ns, None, False, (), receipt
        )
        self._acknowledge(c, message, plan, packet_id, gathers=True)

    def take(self, c: Connection, first: int, data: bytes, body: int, stop: int) -> bool:
        """Take the PUBLISH whose body is ``data[body:stop]``.

        Returns:
            Whether one of QoS 0 left something in the store's commit group; of others, their answers wait for it.

        Raises:
            PeerError: it breaks the protocol.
        """
        qos = first >> 1 & 3
        if qos == 3:
            raise malformed("PUBLISH has QoS 3")  # [MQTT-3.3.1-4]
        if first & 8 and not qos:
            raise malformed("PUBLISH has DUP with QoS 0")  # [MQTT-3.3.1-2]
        if self._context.restricts_publish:
            check_publish(c.terms, qos, retain=first & 1 == 1)
        at = body + 2 + (data[body] << 8 | data[body + 1]) if body + 2 <= stop else stop + 1
        topic = data[body + 2 : at]
        packet_id = 0
        if qos:
            packet_id = data[at] << 8 | data[at + 1] if at + 2 <= stop else 0
            at += 2
            if packet_id == 0 and at <= stop:
                raise malformed("PUBLISH has packet identifier 0")  # [MQTT-2.2.1-3]
        if at > stop:
            raise malformed("PUBLISH is cut short")
        properties: dict[str, Any] | None = None
        if c.is_v5:
            if at < stop and data[at] == 0:
                at += 1
            else:
                reader = Reader(data, at, stop, "PUBLISH")
                properties = decode_properties(reader, p.CLIENT_PUBLISH)  # [MQTT-3.3.4-6]
                check_user_properties(self._context.settings, self._figures, properties)
                at = reader.position
                topic = self._without_alias(c, topic, properties)
        if not topic:
            if c.is_v5:
                raise protocol_error("PUBLISH has neither a topic nor a topic alias")
            raise PeerError(reason.TOPIC_NAME_INVALID, "a topic name must not be empty")
        plan = self._plans.plan(topic) if c.permits is None else c.permits.plan(topic, first)
        if plan.resolve is not None:
            plan = plan.resolve(c.client)
        receipt = Receipt(c.answers.held_bytes) if qos else None
        message = Message(
            plan.topic, data[at:stop], qos, first & 1 == 1, c.client, c.now_ns, properties or None, first & 8 == 8, (),
            receipt,
        )  # fmt: skip
        self._figures.received[qos].value += 1
        if (
            properties
            and self._context.settings.check_payload_format
            and not is_as_claimed(message.payload, properties)
        ):
            self._refuse_payload(c, message, plan, packet_id)
        elif qos:
            self._acknowledge(c, message, plan, packet_id)
        elif self._context.admission.drops_qos0:
            self._pipeline.dropped("overload").value += 1
        elif plan.waits:
            self._park_qos0(c, message, plan)
        else:
            outcome = self._pipeline.process(message, plan)
            if outcome.refusal is not None and outcome.refusal.disconnect:
                c.refused(outcome.refusal)
            return outcome.is_stored
        return False

    def _refuse_payload(
        self, c: Connection, message: Message, plan: TopicPlan, packet_id: int
    ) -> None:
        """A payload is marked as text and is not UTF-8 [MQTT-3.3.2-4]."""
        text = "the payload is not UTF-8, as its Payload Format Indicator says"
        refusal = Refusal(
            "payload_format",
            "payload_format",
            "payload_format_invalid",
            reason.PAYLOAD_FORMAT_INVALID,
            text,
        )
        outcome = self._pipeline.conclude(message, refusal)
        if message.qos:
            self._answer(c, message, plan.topic_bytes, packet_id, outcome)

    def _park_qos0(self, c: Connection, message: Message, plan: TopicPlan) -> None:
        """Let another process decide on a QoS 0 message."""

        def finish(decided: Decided) -> None:
            outcome = self._pipeline.conclude(message, decided)
            if outcome.refusal is not None and outcome.refusal.disconnect:
                c.refused(outcome.refusal)
            elif outcome.is_stored and self._context.writer.is_congested:
                c.services.backpressure.hold_for_store(c)

        self._parking.park(c, message, plan, finish)

    def _without_alias(self, c: Connection, topic: bytes, properties: dict[str, Any]) -> bytes:
        """The topic of a topic alias, which may be set by this packet; removes what belongs to the connection from the
        properties."""
        alias = properties.pop("Topic-Alias", None)
        if alias is None:
            return topic
        if not 0 < alias <= c.terms.topic_alias_maximum:
            raise PeerError(
                reason.TOPIC_ALIAS_INVALID, f"topic alias {alias} is not between 1 and the maximum"
            )
        if topic:
            self._set_alias(c, alias, topic)
            return topic
        aliased_topic = c.aliases.get(alias)
        if aliased_topic is None:
            raise protocol_error(f"topic alias {alias} was never set")
        return aliased_topic

    def _set_alias(self, c: Connection, alias: int, topic: bytes) -> None:
        settings = self._context.settings
        added = len(topic) - len(c.aliases.get(alias, b""))
        if c.aliases.size_bytes + added > settings.max_topic_alias_bytes:
            limit = "max_topic_alias_bytes"
        elif self._context.aliased.bytes + added > settings.max_topic_alias_bytes_total:
            limit = "max_topic_alias_bytes_total"
        else:
            c.aliases[alias] = topic
            return
        raise self._figures.over_limit(
            limit, f"no room for the topic of a topic alias; see mqtt.{limit}"
        )

    def _acknowledge(
        self,
        c: Connection,
        message: Message,
        plan: TopicPlan,
        packet_id: int,
        *,
        gathers: bool = False,
    ) -> None:
        """Run the stages for a QoS 1 or 2 message and answer it; see ``broker.session.inbound`` for resent ones.

        Deliveries may be gathered with the messages that follow.
        """
        session = c.session
        qos = message.qos
        topic = plan.topic_bytes
        inbound = session.inbound
        if c.is_v5:
            self._check_receive_maximum(c, packet_id)
        if inbound is not None:
            is_open = qos == 2 and packet_id in inbound.open_qos2
            message_digest = digest(topic, message.payload) if is_open or message.dup else b""
            code = inbound.taken_with(packet_id, message_digest, c.now_ns) if message.dup else None
            if is_open or code is not None:
                self._figures.already_taken.value += 1
                if qos == 2 and not is_open and not code:
                    inbound.open(packet_id)
                    self._inbounds.changed(session)
                self._answer_again(c, message, message_digest, packet_id, code or 0)
                return
            if qos == 2 and message.dup and inbound.was_given(packet_id, message_digest):
                assert message.receipt is not None
                message.receipt.is_again = True
        if qos == 2 and not self._inbounds.may_open(inbound):
            text = "no room for one more open QoS 2 packet identifier; see mqtt.max_inbound_bytes_connected"
            raise self._figures.over_limit("max_inbound_bytes_connected", text)
        if plan.waits:
            self._park(c, message, plan, packet_id)
            return
        if gathers:
            outcome = self._pipeline.gather(c, message, plan)
        else:  # clients that get their own messages have them before the answer
            outcome = self._pipeline.process(message, plan)
        self._answer(c, message, topic, packet_id, outcome)

    def _park(self, c: Connection, message: Message, plan: TopicPlan, packet_id: int) -> None:
        """Let another process decide on a QoS 1 or 2 message, then answer it."""

        def finish(decided: Decided) -> None:
            outcome = self._pipeline.conclude(message, decided)
            self._answer(c, message, plan.topic_bytes, packet_id, outcome)

        self._parking.park(c, message, plan, finish)

    def _answer(
        self, c: Connection, message: Message, topic: bytes, packet_id: int, outcome: Outcome
    ) -> None:
        """Answer a message with its outcome.

        Raises:
            PeerError: a full queue did not take it, since too much is withheld.
        """
        receipt = message.receipt
        assert receipt is not None
        receipt.is_closed = True
        if receipt.full_queues or receipt.is_over:
            receipt.close()
            if receipt.is_over:
                raise self._withholding.too_much()
        session = c.session
        qos = message.qos
        success = _FIRST[qos] + b"\x02" + PACKET_ID_BYTES[packet_id]
        is_stored = outcome.is_stored
        full_queues = outcome.full_queues
        if outcome.refusal is not None:
            if is_stored and not outcome.refusal.disconnect:
                self._remember_refused(
                    c, message, topic, packet_id, outcome.refusal.reason_code if c.is_v5 else 0
                )
            self._answer_refusal(c, qos, packet_id, outcome)
            return
        if is_stored or qos == 2:
            self._remember(c, message, topic, packet_id, outcome)
        if outcome.receivers == 0 and not is_stored and c.is_v5:
            success = _FIRST[qos] + b"\x03" + PACKET_ID_BYTES[packet_id] + b"\x10"
        waits = is_stored or (qos == 2 and session.is_durable)
        self._acknowledge_with(c, success, packet_id, full_queues, waits=waits)

    def _acknowledge_with(
        self,
        c: Connection,
        packet: bytes,
        packet_id: int,
        full_queues: Sequence[FullQueue],
        *,
        waits: bool,
    ) -> None:
        """Send an acknowledgement: after the commit, those before it, and when full queues have room."""
        if full_queues or c.answers.held:
            acknowledgement = self._withholding.withhold(
                c, packet, packet_id, full_queues, commits=1
            )
            c.answers.add(c, acknowledgement, waits=waits)
        else:
            c.answers.add(c, packet, waits=waits)

    def _check_receive_maximum(self, c: Connection, packet_id: int) -> None:
        open_qos2 = c.session.inbound.open_qos2 if c.session.inbound is not None else ()
        is_new = packet_id not in open_qos2
        if is_new and c.answers.unacknowledged + len(open_qos2) >= c.terms.receive_maximum:
            # [MQTT-3.3.4-7]
            raise PeerError(
                reason.RECEIVE_MAXIMUM_EXCEEDED,
                "more publishes are open than the receive maximum allows",
            )

    def _answer_again(
        self, c: Connection, message: Message, message_digest: bytes, packet_id: int, code: int
    ) -> None:
        """Answer a resend of a message that was accepted: it may still be on its way to the store, and may yet be lost
        there."""
        if packet_id in c.answers.held:  # there will be one for both
            return
        first = _FIRST[message.qos]
        answer = (
            first
            + (b"\x03" if code else b"\x02")
            + PACKET_ID_BYTES[packet_id]
            + (bytes((code,)) if code else b"")
        )

        def release() -> None:
            inbound = c.session.inbound
            is_open = inbound is not None and message.qos == 2 and packet_id in inbound.open_qos2
            if is_open or (
                inbound is not None
                and inbound.taken_with(packet_id, message_digest, c.now_ns) is not None
            ):
                c.reply(answer)
            else:
                c.on_internal_error()

        c.answers.add(c, release, waits=True)

    def _remember(
        self, c: Connection, message: Message, topic: bytes, packet_id: int, outcome: Outcome
    ) -> None:
        """Note the identifier in the commit group of the message's records."""
        session = c.session
        is_stored = outcome.is_stored
        inbound = session.inbound or self._inbounds.of(session)
        if message.qos == 2:
            inbound.open(packet_id)
            if is_stored or session.is_durable:
                self._inbounds.changed(session)
        if is_stored or session.is_durable:
            message_digest = digest(topic, message.payload)
            if is_stored:
                self._remember_taken(c, inbound, packet_id, message_digest, 0)
            is_wanted = is_stored and outcome.receivers > 0
            told_apart_by = message_digest if message.qos == 2 else b""
            c.answers.stored.append(StoredPublish(packet_id, is_wanted, False, told_apart_by))

    def _remember_refused(
        self, c: Connection, message: Message, topic: bytes, packet_id: int, code: int
    ) -> None:
        """Same as ``_remember``, for a message that was refused and left something behind."""
        inbound = self._inbounds.of(c.session)
        self._remember_taken(c, inbound, packet_id, digest(topic, message.payload), code)
        c.answers.stored.append(StoredPublish(packet_id, is_wanted=False, is_refused=True))

    def _remember_taken(
        self, c: Connection, inbound: Inbound, packet_id: int, message_digest: bytes, code: int
    ) -> None:
        """Note what may come again; where memory is tight, only as far back as answers are on their way."""
        unacknowledged = c.answers.unacknowledged + len(inbound.open_qos2)
        is_tight = self._inbounds.is_tight
        if is_tight:
            self._figures.limit_reached("max_inbound_bytes_connected")
        entry = inbound.remember(
            packet_id, message_digest, c.now_ns, unacknowledged, code, is_tight=is_tight
        )
        self._inbounds.took(c.session.client_id, inbound, entry)

    def _answer_refusal(self, c: Connection, qos: int, packet_id: int, outcome: Outcome) -> None:
        refusal = outcome.refusal
        assert refusal is not None
        if refusal.disconnect:
            self._pipeline.together.deliver()
            c.refused(refusal)
            return
        if not c.is_v5:  # acknowledged and dropped: 3.1.1 has no word for refusing
            if qos == 2:
                self._inbounds.of(c.session).open(packet_id)
            data = _FIRST[qos] + b"\x02" + PACKET_ID_BYTES[packet_id]
        else:
            data = refusal_packet(c, qos, packet_id, refusal)
        self._acknowledge_with(c, data, packet_id, outcome.full_queues, waits=outcome.is_stored)
