"""The short way of a PUBLISH: subscribers get the received bytes unchanged.

QoS 0 packets that follow each other to the same subscribers are forwarded as one piece of the buffer, QoS 1 packets
with new identifiers between the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from broker.codec.encode import publish_parts, qos0_packets
from broker.codec.framing import plain_publishes
from broker.codec.outgoing import Outgoing
from broker.codec.primitives import PACKET_ID_BYTES, malformed, protocol_error
from broker.connection.acknowledgements import Answers
from broker.connection.connection import Connection
from broker.connection.context import Context
from broker.connection.dead_letters import DeadLetters
from broker.connection.permits import FindKind, FindPlan
from broker.connection.withholding import Withholding
from broker.core.client import Client
from broker.core.message import Message
from broker.core.receipt import FullQueue, Receipt
from broker.pipeline.pipeline import Pipeline
from broker.pipeline.plan import Kind, Plans, SessionRoutes, TopicPlan
from broker.routing.router import RunRecorder
from broker.session import qos0
from broker.session.delivery import RAW
from broker.session.qos0_queue import Qos0Item
from broker.session.session import Session

# Subscribers from which on one message of theirs may take long.
WIDE: Final = 32
# Events that are raised message by message: when one has listeners, nothing goes the short way.
_WATCHED: Final = frozenset(
    (
        "message.delivered",
        "message.acked",
        "message.dropped",
        "delivery.dropped",
        "client.check_authz_complete",
    )
)
# Bytes of a publisher's messages that wait for other cells: with more, the next ones go the long way.
_MOST_HELD_BYTES: Final = 512 * 1024
_PUBACK: Final = b"\x40\x02"
_PUBACK_5_NO_SUBSCRIBERS: Final = b"\x40\x03"


class Source(Protocol):
    """A connection, or another cell, that packets came from."""

    is_v5: bool

    @property
    def client(self) -> Client:
        """Publisher of the packets."""

    @property
    def now_ns(self) -> int:
        """Time at which they were read."""


class Forwarding:
    """Forwards PUBLISH without looking at more than its topic."""

    def __init__(
        self,
        context: Context,
        plans: Plans,
        pipeline: Pipeline,
        dead_letters: DeadLetters,
        withholding: Withholding,
    ) -> None:
        self._withholding = withholding
        self._admission = context.admission
        self._events = context.events
        self._figures = context.figures
        self._plans = plans
        self._pipeline = pipeline
        self._has_dead_letters = dead_letters.is_on
        self._unused = Receipt()
        """For the next message: on the short way most are not needed, and nothing else keeps one."""
        self.together = pipeline.together

    def is_allowed(self) -> bool:
        """True if nothing has to be known of each message now."""
        if self._has_dead_letters or self._admission.drops_qos0:
            return False
        return _WATCHED.isdisjoint(self._events.wanted)

    @property
    def is_unwatched(self) -> bool:
        """True if nothing has to be known of each message that another cell took."""
        return _WATCHED.isdisjoint(self._events.wanted)

    def finders(self, c: Connection) -> tuple[FindPlan, FindPlan, FindKind]:
        """Functions by which a connection's reads find the plans of QoS 0 and QoS 1 publishes by topic, and the kind of
        a QoS 0 publish by its head."""
        permits = c.permits
        plans = self._plans
        if permits is None:
            return plans.by_topic.get, plans.by_topic.get, plans.by_head.get
        return permits.find, permits.find_qos1, permits.find_kind

    def remember_head(self, c: Connection, head: bytes, routes: SessionRoutes, size: int) -> Kind:
        """QoS 0 publishes of a client that begin with these bytes have nothing to them but these routes and this
        size."""
        if c.permits is not None:
            c.permits.remember_head(head)
        return self._plans.remember_head(head, routes, size)

    def plan(self, c: Connection, topic: bytes, first: int) -> TopicPlan:
        """The plan for a publish of this client."""
        if not topic:
            raise protocol_error("PUBLISH has neither a topic nor a topic alias")
        return self._plans.plan(topic) if c.permits is None else c.permits.plan(topic, first)

    def run(
        self,
        c: Connection,
        routes: SessionRoutes,
        chunk: bytes,
        count: int,
        *,
        is_unrecorded: bool = False,
    ) -> int:
        """Hand a run of QoS 0 packets, as they came, to their subscribers; returns their number. Some may have to be
        recorded, unless the run ``is_unrecorded``."""
        if self.together.run:
            self.together.deliver()
        watch = routes.watch
        if watch is not None:
            recorder = None if is_unrecorded else watch.recorder
            if recorder is not None:
                if recorder.left >= count:
                    recorder.left -= count
                elif (picked := recorder.picks(c.client, count)) >= 0:
                    self._run_picked(c, routes, recorder, chunk, count, picked)
                    return count
            if watch.is_shown:
                watch.forwards(chunk, count, c.client, c.now_ns, is_v5=c.is_v5)
        figures = self._figures
        figures.packets_received.value += count
        figures.received[0].value += count
        figures.passed.value += count
        figures.published_bytes_received.value += len(chunk)
        if routes.is_empty:
            self._pipeline.no_subscribers(count)
            return count
        if routes.only_group is not None:
            figures.sent[0].value += routes.only_group.offer_run(chunk, c.client, c.now_ns)
            return count
        same, other = (
            (routes.plain_v5, routes.plain_v3) if c.is_v5 else (routes.plain_v3, routes.plain_v5)
        )
        self.hand_out(c, same, chunk, count)
        if other:
            self.hand_out(c, other, in_other_version(chunk, from_v5=c.is_v5), count)
        if routes.cells:
            for cell, _ in routes.cells:
                cell.take_run(chunk, count, is_v5=c.is_v5)
        return count

    def _run_picked(
        self,
        c: Connection,
        routes: SessionRoutes,
        recorder: RunRecorder,
        chunk: bytes,
        count: int,
        picked: int,
    ) -> None:
        """Hand on a run of packets some of which, the first at ``picked``, take the long way to be recorded."""
        figures = self._figures
        start = passed = 0
        for number, (position, topic, payload_at, stop) in enumerate(
            plain_publishes(chunk, is_v5=c.is_v5)
        ):
            if number != picked:
                continue
            if number > passed:
                before = chunk[start:position]
                self.run(c, routes, before, number - passed, is_unrecorded=True)
            figures.packets_received.value += 1
            figures.received[0].value += 1
            figures.published_bytes_received.value += stop - position
            plan = self.plan(c, topic, 0x30)
            self._pipeline.process(
                Message(plan.topic, chunk[payload_at:stop], 0, False, c.client, c.now_ns), plan
            )
            start = stop
            passed = number + 1
            position_of_next = recorder.picks(c.client, count - passed) if passed < count else -1
            if position_of_next < 0:
                break
            picked = passed + position_of_next
        if passed < count:
            self.run(c, routes, chunk[start:], count - passed, is_unrecorded=True)

    def run_together(self, run: Sequence[tuple[Connection, bytes]], routes: SessionRoutes) -> None:
        """Hand QoS 0 packets of several clients of one version, as they came, to the subscribers they have in
        common. Those that may have to be recorded go alone."""
        c, chunk = run[0]
        count = len(run)
        if count > 1:
            if self._differs_by_client(routes, is_v5=c.is_v5):
                for arrival in run:
                    self.run_together((arrival,), routes)
                return
            recorder = None if routes.watch is None else routes.watch.recorder
            if recorder is not None and recorder.left < count:
                self._run_apart(run, routes, recorder)
                return
            chunk = b"".join([data for _, data in run])
        self.run(c, routes, chunk, count)
        if c.services.backpressure.fresh:
            c.services.backpressure.hold(c)

    def _run_apart(
        self,
        run: Sequence[tuple[Connection, bytes]],
        routes: SessionRoutes,
        recorder: RunRecorder,
    ) -> None:
        """Hand on those between packets that may have to be recorded in one piece each."""
        start = 0
        while (picked := start + recorder.left) < len(run):
            if picked > start:
                self.run_together(run[start:picked], routes)
            self.run_together(run[picked : picked + 1], routes)
            start = picked + 1
        if start < len(run):
            self.run_together(run[start:], routes)

    @staticmethod
    def _differs_by_client(routes: SessionRoutes, *, is_v5: bool) -> bool:
        """True if it matters whose packets these are, or they go to a subscriber that has to be checked."""
        same, other = (
            (routes.plain_v5, routes.plain_v3) if is_v5 else (routes.plain_v3, routes.plain_v5)
        )
        is_watched = routes.watch is not None and routes.watch.is_shown
        return (
            bool(other or is_watched or routes.only_group)
            or any(session.fast is None for session in same)
            or any(not cell.takes_acknowledged for cell, _ in routes.cells)
        )

    def hand_out(self, c: Source, sessions: list[Session], chunk: bytes, count: int) -> None:
        """Hand packets of one version, as they came, to sessions that speak it."""
        sent = 0
        for session in sessions:
            box = session.fast
            if box is None:
                sent += self._hand_out_carefully(c, session, chunk, count)
                continue
            box.chunks.append(chunk)
            if not box.is_dirty:
                box.mark()
            box.messages_out += count
            sent += count
        self._figures.sent[0].value += sent

    def _hand_out_carefully(self, c: Source, session: Session, chunk: bytes, count: int) -> int:
        """For a session that is away, slow, or whose client limits the size of packets; returns how many were sent."""
        box = session.box
        figures = self._figures
        if box is None:
            self._hand_out_away(c, session, chunk, count)
            return 0
        waits = session.has_to_wait
        is_whole = box.is_plain and session.max_packet_bytes >= len(chunk)
        if waits and is_whole:
            qos0.keep(session, Qos0Item(chunk, count))
            return 0
        sent = 0
        for position, _, _, stop in plain_publishes(chunk, is_v5=c.is_v5):
            if stop - position > session.max_packet_bytes:  # [MQTT-3.1.2-24, -25]
                figures.delivery_dropped("packet_too_large").value += 1
            elif waits:
                qos0.keep(session, Qos0Item(chunk[position:stop], 1))
            else:
                box.add(chunk[position:stop])
                box.messages_out += 1
                sent += 1
        return sent

    def _hand_out_away(self, c: Source, session: Session, chunk: bytes, count: int) -> None:
        """For a session that is away: what it gets when it is back does not depend on how it spoke before."""
        if not session.keeps_qos0:
            session.count_dropped("qos0_msg", count)
            return
        for _, topic, payload_at, stop in plain_publishes(chunk, is_v5=session.is_v5):
            message = Message(topic.decode(), chunk[payload_at:stop], 0, False, c.client, c.now_ns)
            session.deliver(Outgoing(message, topic), 0, False, ())

    def qos1(
        self,
        c: Connection,
        find: Callable[[bytes], TopicPlan | None],
        data: bytes,
        position: int,
        body: int,
        stop: int,
    ) -> int:
        """Hand a QoS 1 packet, new identifiers apart as it came, to its subscribers; their number and 1, or 0 when it
        must go the long way."""
        if body + 4 > stop:
            return 0
        topic_end = body + 2 + (data[body] << 8 | data[body + 1])
        payload_at = topic_end + 2
        if payload_at > stop:
            return 0
        if c.is_v5:
            if payload_at == stop or data[payload_at]:
                return 0
            payload_at += 1
        topic = data[body + 2 : topic_end]
        plan = find(topic) or self.plan(c, topic, 0x32)
        if plan.is_staged:
            return 0
        taken = self.hand_on(
            c, plan, data[position:stop], topic_end - position, payload_at - position
        )
        if self.together.run:
            self.together.deliver()
        return taken

    def hand_on(
        self, c: Connection, plan: TopicPlan, packet: bytes, topic_end: int, payload_at: int
    ) -> int:
        """Hand a QoS 1 packet without properties, on a topic without stages, to its subscribers, as ``qos1``; what goes
        to them as QoS 0 is gathered with the messages that follow (``broker.pipeline.pipeline.Together``)."""
        answers = c.answers
        routes = plan.routes
        if answers.waiting or answers.batches or not routes.is_live:
            return 0
        if (answers.held or routes.cells) and not self._may_cross(answers, routes):
            return 0
        packet_id = packet[topic_end : topic_end + 2]
        if packet_id == b"\0\0":
            raise malformed("PUBLISH has packet identifier 0")
        watch = routes.watch
        if watch is not None and (recorder := watch.recorder) is not None:
            if recorder.left > 0:
                recorder.left -= 1
            elif recorder.picks(c.client, 1) >= 0:
                return 0
        figures = self._figures
        is_v5 = c.is_v5
        figures.received[1].value += 1
        figures.passed.value += 1
        if routes.plain_qos and not routes.is_empty:
            # no subscriber gets it with an identifier of its own
            self.together.add(
                c, Message(plan.topic, packet[payload_at:], 1, False, c.client, c.now_ns), plan
            )
            c.box.add(_PUBACK + packet_id)
            return len(routes.entries) + 1
        if watch is not None and watch.is_shown:
            watch.forwards(packet, 1, c.client, c.now_ns, is_v5=is_v5)
        if routes.is_empty:
            self._pipeline.no_subscribers(1)
            c.box.add(
                _PUBACK_5_NO_SUBSCRIBERS + packet_id + b"\x10" if is_v5 else _PUBACK + packet_id
            )
            if is_v5:
                figures.note_longer_puback()
            return 1
        if self.together.run:
            self.together.deliver()
        crossing: list[FullQueue] = []
        for cell, qos in routes.cells:
            if qos:
                crossing.append((cell.forward(packet, is_v5=is_v5), len(packet)))
            else:
                message = Message(plan.topic, packet[payload_at:], 0, False, c.client, c.now_ns)
                cell.take_run(
                    qos0_packets(((message, plan.topic_bytes),), is_v5=False), 1, is_v5=False
                )
        receipt = None
        if routes.own:
            receipt = self.deliver_qos1(c, plan.topic_bytes, routes, packet, topic_end, payload_at)
        if receipt is not None or crossing:
            self._withhold(c, packet_id, receipt, crossing)
        else:
            c.box.add(_PUBACK + packet_id)
        return len(routes.entries) + 1

    def _may_cross(self, answers: Answers, routes: SessionRoutes) -> bool:
        """True if a QoS 1 packet may go to other cells as it came, or its publisher waits for none of their answers."""
        if answers.held and (
            not routes.cells or routes.plain_qos > 0 or answers.held_bytes > _MOST_HELD_BYTES
        ):
            return False
        for cell, _ in routes.cells:
            if not cell.takes_acknowledged:
                return False
        return not self._withholding.is_full

    def deliver_qos1(
        self,
        c: Source,
        topic: bytes,
        routes: SessionRoutes,
        packet: bytes,
        topic_end: int,
        payload_at: int,
    ) -> Receipt | None:
        """Hand a QoS 1 packet without properties to this cell's own subscribers, with identifiers of their own; the
        receipt if full queues took it or too much is withheld."""
        is_v5 = c.is_v5
        outgoing: Outgoing | None = None
        head = tail = b""
        sent = 0
        for entry in routes.own:
            session = entry.subscriber
            box = session.fast
            window = session.window
            if (
                not (entry.qos and box is not None and window.quota > 0 and session.is_v5 is is_v5)
                or session.queue
            ):
                if outgoing is None:
                    # no earlier acknowledgement waits for a full queue
                    message = Message(
                        topic.decode(),
                        packet[payload_at:],
                        1,
                        False,
                        c.client,
                        c.now_ns,
                        None,
                        False,
                        (),
                        self._unused,
                    )
                    outgoing = Outgoing(message, topic)
                    outgoing.adopt(
                        is_v5,
                        packet[:topic_end],
                        packet[topic_end + 2 :] if is_v5 else message.payload,
                    )
                session.deliver(outgoing, 1 if entry.qos else 0, False, ())
                continue
            if not head:
                head = packet[:topic_end]
                tail = packet[topic_end + 2 :]
            new_id = window.next_packet_id()
            window.inflight[new_id] = RAW
            window.quota -= 1
            box.chunks += (head, PACKET_ID_BYTES[new_id], tail)
            if not box.is_dirty:
                box.mark()
            box.messages_out += 1
            sent += 1
        self._figures.sent[1].value += sent
        if outgoing is None:
            return None
        outgoing.message.receipt = None
        receipt = self._unused
        if not (receipt.full_queues or receipt.is_over):
            return None
        self._unused = Receipt()
        return receipt

    def _withhold(
        self,
        c: Connection,
        packet_id: bytes,
        receipt: Receipt | None,
        crossing: list[FullQueue],
    ) -> None:
        """Withhold the PUBACK of a message that is in full queues, or on its way to other cells.

        Raises:
            PeerError: a full queue did not take it, since too much is withheld.
        """
        if receipt is not None:
            crossing += receipt.full_queues
            receipt.close()
            if receipt.is_over:
                raise self._withholding.too_much()
        identifier = packet_id[0] << 8 | packet_id[1]
        self._withholding.withhold(c, _PUBACK + packet_id, identifier, crossing, commits=0)
        self._figures.note_pubacks(0, -1)  # counted when it is sent


def in_other_version(chunk: bytes, *, from_v5: bool) -> bytes:
    """QoS 0 packets without properties, as version 5 has them or as the versions below do."""
    pieces: list[bytes] = []
    for _, topic, payload_at, stop in plain_publishes(chunk, is_v5=from_v5):
        pieces += publish_parts(
            topic, chunk[payload_at:stop], 0x30, b"" if from_v5 else b"\0", False
        )
    return b"".join(pieces)
