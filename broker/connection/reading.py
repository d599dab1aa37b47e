"""From bytes to packets to what takes them: the loop that every received byte passes.

PUBLISH is read in place, without a packet object. A topic whose plan has no stages and whose subscribers differ in
nothing but QoS goes the short way: QoS 0 packets that follow each other to the same subscribers are forwarded as one
piece of the buffer, QoS 1 packets with new identifiers between the same bytes. Everything else takes the way through
``broker.connection.publish``. What is measured for each choice stands in ``benchmarks/bare.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from broker.codec import properties as p
from broker.codec.decode import decode_packet
from broker.codec.encode import PINGRESP_BYTES, publish_parts
from broker.codec.framing import frame_at
from broker.codec.outgoing import Outgoing
from broker.codec.packets import Connect, Packet, PingReq
from broker.codec.wire import PACKET_ID_BYTES, malformed, protocol_error
from broker.connection.acknowledge import Acknowledgements
from broker.connection.admission import Admission
from broker.connection.announce import Announcements
from broker.connection.authentication.logins import Logins
from broker.connection.authentication.permits import FindKind, FindPlan, SessionKind
from broker.connection.connect import Connecting
from broker.connection.connection import Connection
from broker.connection.dead_letters import DeadLetters
from broker.connection.figures import CONNECT, Figures
from broker.connection.order import ORDER, Effect, check_order
from broker.connection.publish import Publishing
from broker.connection.state import NodeState
from broker.connection.subscribe import Subscribing
from broker.connection.turns import LOOK_S, Turns
from broker.core import reason
from broker.core.clock import Clock
from broker.core.errors import PeerError
from broker.core.events import Events
from broker.core.message import Message
from broker.pipeline.pipeline import Pipeline
from broker.pipeline.plan import Plans, TopicPlan
from broker.routing.router import Routes
from broker.session import answers, qos0
from broker.session.delivery import RAW
from broker.session.late import Late
from broker.session.session import Session

_WATCHED: Final = frozenset(
    ("message.delivered", "message.acked", "message.dropped", "delivery.dropped", "client.check_authz_complete")
)
"""Events that are raised message by message: when one is wanted, nothing goes the short way."""
_LOOK_EVERY: Final = 64
"""So many PUBLISH and acknowledgements are taken between two looks at the time, other packets one by one. What goes the
short way in one piece counts as one of them, and after what may take long the time is looked at anyhow."""
_WIDE: Final = 32
"""Subscribers from which on one message of theirs may take long."""
_LONG: Final = 4096
"""Bytes of a SUBSCRIBE or UNSUBSCRIBE from which on it is worked off in several turns of the loop, if need be: what is
below has a thousand filters at most, some 10 ms."""
_NEW: Final = object()
"""The kind of packets on a topic that was never seen before: it may never be again."""
_PUBACK: Final = b"\x40\x02"
_PUBACK_5_NO_SUBSCRIBERS: Final = b"\x40\x03"


class PacketReader:
    """Finds the packets in what was read, and hands them on; implements ``broker.connection.connection.Reader``."""

    def __init__(
        self,
        *,
        connecting: Connecting,
        logins: Logins,
        publishing: Publishing,
        acknowledgements: Acknowledgements,
        subscribing: Subscribing,
        announcements: Announcements,
        plans: Plans[Routes[Session]],
        pipeline: Pipeline[Routes[Session]],
        dead_letters: DeadLetters,
        admission: Admission,
        turns: Turns,
        events: Events,
        clock: Clock,
        figures: Figures,
        state: NodeState,
    ) -> None:
        self._connecting, self._logins, self._publishing = connecting, logins, publishing
        self._acknowledgements, self._announcements = acknowledgements, announcements
        self._plans, self._pipeline, self._dead_letters = plans, pipeline, dead_letters
        self._admission, self._turns, self._events, self._clock = admission, turns, events, clock
        self._figures, self._state = figures, state
        self._by_identifier: dict[int, Callable[[Connection, int], None]] = {
            0x50: acknowledgements.received,
            0x62: acknowledgements.release,
            0x70: acknowledgements.completed,
        }
        """Of QoS 2, by first byte, what says no more than an identifier: no packet object is made of that."""
        self._long_takers: dict[int, Callable[[Connection, bytes, int, int], None]] = {
            0x82: subscribing.take_long_subscribe,
            0xA2: subscribing.take_long_unsubscribe,
        }
        """By first byte, what may hold very many topic filters: it is read while it is worked off."""
        self._takers: dict[int, Callable[[Connection, Any], None]] = {
            p.PUBACK: acknowledgements.take_puback,
            p.PUBREC: acknowledgements.take_pubrec,
            p.PUBREL: acknowledgements.take_pubrel,
            p.PUBCOMP: acknowledgements.take_pubcomp,
            p.SUBSCRIBE: subscribing.take_subscribe,
            p.UNSUBSCRIBE: subscribing.take_unsubscribe,
            p.PINGREQ: self._ping,
            p.DISCONNECT: connecting.take_disconnect,
            p.AUTH: logins.take_auth,
        }

    def read_first(self, c: Connection, data: bytes) -> int:
        """Take the CONNECT and all that came with it. Anything else closes without a packet [MQTT-3.1.0-1]."""
        if c.login is not None:
            return self._read_on(c, data, self._logins.read_exchange(c, data, 0))
        if not data:
            return 0
        if ORDER[c.phase].get(data[0] >> 4) is not Effect.TAKE:
            c.refuse_silently("protocol_error", "what came first is no CONNECT")
            return len(data)
        try:
            frame = frame_at(data, 0, c.max_packet_bytes)
        except PeerError as error:
            return self._connecting.on_bad_connect_header(c, error, data)
        if frame is None:
            return 0
        start, stop = frame
        if stop > len(data):
            c.wanted = stop
            return 0
        try:
            packet = decode_packet(data[0], data, start, stop, 0)
        except PeerError as error:
            self._connecting.on_bad_connect(c, error, data, start, stop)
            return len(data)
        assert isinstance(packet, Connect)
        self._figures.note_before_connack(CONNECT)
        self._connecting.take_connect(c, packet)
        if c.login is not None:
            stop = self._logins.read_exchange(c, data, stop)
        return self._read_on(c, data, stop)

    def _read_on(self, c: Connection, data: bytes, position: int) -> int:
        """Take what came behind what was used of the CONNECT and the exchange; it stays while somebody decides."""
        if c.is_closed:
            return len(data)
        return self.read_packets(c, data, position) if c.is_connected else position

    def read_packets(self, c: Connection, data: bytes, position: int) -> int:
        """Handle every complete packet from ``position`` on; returns where the first incomplete one begins.

        Raises:
            PeerError: the connection has to be closed; packets before the bad one have been handled.
        """
        end, limit, extra = len(data), c.max_packet_bytes, 1 if c.is_v5 else 0
        (find_plan, find_qos1, find_kind), startswith = self._finders(c), data.startswith
        is_unwatched = _WATCHED.isdisjoint(self._events.wanted) and not (
            self._admission.drops_qos0 or self._dead_letters.is_on
        )
        takes_qos1 = is_unwatched and self._state.settings.maximum_qos > 0
        now_s, looks_at = self._clock.monotonic_s, _LOOK_EVERY
        turns, figures = self._turns, self._figures
        began_s = now_s()
        look_s = began_s + (LOOK_S if turns.left_s > LOOK_S else turns.left_s)
        run_routes: Routes[Session] | None = None
        run_start = run_count = packets = pubacks = answered = published_bytes = rounds = 0
        try:
            while end - position > 1:
                if rounds >= looks_at:
                    if c.is_parked:
                        break
                    looks_at = rounds + _LOOK_EVERY
                    if (present_s := now_s()) > look_s or turns.left_s <= 0:
                        if turns.spend(present_s - began_s):
                            turns.give_way(c)
                            break
                        began_s, look_s = present_s, present_s + LOOK_S
                rounds += 1
                first, length, body = data[position], data[position + 1], position + 2
                if length > 126:  # with one of 127 and its header, a packet is above the least maximum, 128
                    if length > 127 and body < end and 0 < data[body] < 128:
                        length, body = length & 127 | data[body] << 7, body + 1
                        stop = body + length
                        if stop - position > limit:
                            raise _too_large(stop - position, limit)
                    else:
                        frame = frame_at(data, position, limit)
                        if frame is None:
                            break
                        body, stop = frame
                else:
                    stop = body + length
                if stop > end:
                    c.wanted = stop - position
                    break
                if first == 0x30 and is_unwatched and body + 2 < stop:
                    topic_end = body + 2 + (data[body] << 8 | data[body + 1])
                    head_end = topic_end + extra
                    if head_end <= stop and not (extra and data[topic_end]):
                        topic = data[body + 2 : topic_end]
                        known = find_plan(topic)
                        plan = known or self._plan(c, topic, first)
                        routes = plan.routes
                        if plan.is_staged:
                            if run_routes is not None:
                                self._forward(c, run_routes, data[run_start:position], run_count)
                                run_routes = None
                            position = self._publishing.take_run(c, plan, data, position, head_end, stop)
                            if c.is_closed:
                                return end
                            if c.is_parked:
                                break
                            looks_at = rounds
                            continue
                        if routes.is_plain:
                            if routes is not run_routes:
                                if run_routes is not None:
                                    self._forward(c, run_routes, data[run_start:position], run_count)
                                    if len(run_routes.entries) > _WIDE:
                                        looks_at = rounds
                                run_routes, run_start, run_count = routes, position, 0
                            # packets on one topic and of one size begin with the same bytes: no need to read them again
                            size, head, head_size = stop - position, data[position:head_end], head_end - position
                            position, run_count, last = stop, run_count + 1, end - size
                            while position <= last and startswith(head, position):
                                position += size
                                run_count += 1
                            kind = find_kind(head) or (self._remember_head(c, head, routes, size) if known else _NEW)
                            while position <= last and find_kind(data[position : position + head_size]) is kind:
                                position += size
                                run_count += 1
                            continue
                if run_routes is not None:
                    self._forward(c, run_routes, data[run_start:position], run_count)
                    run_routes = None
                packets += 1
                if first == 0x40 and length == 2:
                    pubacks += 1
                    if not answers.puback(c.session, data[body] << 8 | data[body + 1]):
                        self._acknowledgements.unfit(c, "PUBACK", data[body] << 8 | data[body + 1])
                elif first & 0xF0 == 0x30:
                    published_bytes += stop - position
                    if (
                        first == 0x32
                        and takes_qos1
                        and (wide := self._forward_qos1(c, find_qos1, data, position, body, stop))
                    ):
                        answered += 1
                        if wide > _WIDE:
                            looks_at = rounds
                    else:
                        self._publishing.take(c, first, data, body, stop)
                        if c.is_parked:
                            position = stop
                            break
                        looks_at = rounds
                elif length == 2 and first in self._by_identifier and data[body : body + 2] != b"\0\0":
                    figures.received_by_type[first >> 4].value += 1
                    self._by_identifier[first](c, data[body] << 8 | data[body + 1])
                else:
                    if stop - body > _LONG and (
                        take_long := self._long_takers.get(first & (0xFF if c.version > 3 else 0xF6))
                    ):
                        figures.received_by_type[first >> 4].value += 1
                        take_long(c, data, body, stop)
                    else:
                        self._dispatch(c, first >> 4, decode_packet(first, data, body, stop, c.version))
                    looks_at = rounds
                if c.is_closed:
                    return end
                position = stop
        finally:
            if run_routes is not None:
                self._forward(c, run_routes, data[run_start:position], run_count)
            figures.packets_received.value += packets
            if published_bytes:
                figures.published_bytes_received.value += published_bytes
            if pubacks or answered:
                figures.note_pubacks(pubacks, answered)
        if (took_s := now_s() - began_s) > LOOK_S and turns.spend(took_s) and not c.is_parked:
            turns.give_way(c)  # the system may have more of this client to read in the same turn
        if c.session.is_slow:
            c.hold_back_if_unread()
        return position

    def _finders(self, c: Connection) -> tuple[FindPlan, FindPlan, FindKind]:
        """How a connection's reads find the plans of QoS 0 and QoS 1 publishes by topic, and the kind of a QoS 0
        publish by its head."""
        permits, plans = c.permits, self._plans
        if permits is None:
            return plans.by_topic.get, plans.by_topic.get, plans.by_head.get
        return permits.find, permits.find_qos1, permits.find_kind

    def _remember_head(self, c: Connection, head: bytes, routes: Routes[Session], size: int) -> SessionKind:
        """QoS 0 publishes of a client that begin with these bytes have nothing to them but these routes and this
        size."""
        if c.permits is not None:
            c.permits.remember_head(head)
        return self._plans.remember_head(head, routes, size)

    def _plan(self, c: Connection, topic: bytes, first: int) -> TopicPlan[Routes[Session]]:
        if not topic:
            raise protocol_error("PUBLISH has neither a topic nor a topic alias")
        return self._plans.plan(topic) if c.permits is None else c.permits.plan(topic, first)

    def _forward(self, c: Connection, routes: Routes[Session], chunk: bytes, count: int) -> None:
        """Hand a run of QoS 0 packets, as they came, to their subscribers."""
        figures = self._figures
        figures.packets_received.value += count
        figures.received[0].value += count
        figures.passed.value += count
        figures.published_bytes_received.value += len(chunk)
        if routes.is_empty:
            self._pipeline.no_subscribers(count)
            return
        if routes.only_group is not None:
            figures.sent[0].value += routes.only_group.offer_run(chunk, c.client, c.now_ns)
            return
        same, other = (routes.plain_v5, routes.plain_v3) if c.is_v5 else (routes.plain_v3, routes.plain_v5)
        self._hand_out(c, same, chunk, count)
        if other:
            self._hand_out(c, other, _in_other_version(chunk, from_v5=c.is_v5), count)

    def _hand_out(self, c: Connection, sessions: list[Session], chunk: bytes, count: int) -> None:
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

    def _hand_out_carefully(self, c: Connection, session: Session, chunk: bytes, count: int) -> int:
        """For a session that is away, slow, or whose client limits the size of packets; returns how many were sent."""
        box, figures = session.box, self._figures
        if box is None:
            self._hand_out_away(c, session, chunk, count)
            return 0
        waits, is_whole = session.has_to_wait, box.is_plain and session.max_packet_bytes >= len(chunk)
        if waits and is_whole:
            qos0.keep(session, Late(chunk, count))
            return 0
        position = sent = 0
        while position < len(chunk):
            _, stop = _frame(chunk, position)
            if stop - position > session.max_packet_bytes:  # [MQTT-3.1.2-24, -25]
                figures.delivery_dropped("packet_too_large").value += 1
            elif waits:
                qos0.keep(session, Late(chunk[position:stop], 1))
            else:
                box.add(chunk[position:stop])
                box.messages_out += 1
                sent += 1
            position = stop
        return sent

    def _hand_out_away(self, c: Connection, session: Session, chunk: bytes, count: int) -> None:
        """For a session that is away: what it gets when it is back does not depend on how it spoke before."""
        if not session.keeps_qos0:
            session.count_dropped("qos0_msg", count)
            return
        position = 0
        while position < len(chunk):
            body, stop = _frame(chunk, position)
            topic_end = body + 2 + (chunk[body] << 8 | chunk[body + 1])
            topic, payload = chunk[body + 2 : topic_end], chunk[topic_end + 1 if session.is_v5 else topic_end : stop]
            session.deliver(
                Outgoing(Message(topic.decode(), payload, 0, False, c.client, c.now_ns), topic), 0, False, ()
            )
            position = stop

    def _forward_qos1(
        self,
        c: Connection,
        find: Callable[[bytes], TopicPlan[Routes[Session]] | None],
        data: bytes,
        position: int,
        body: int,
        stop: int,
    ) -> int:
        """Hand a QoS 1 packet, new identifiers apart as it came, to its subscribers; their number and 1, or 0 when it
        must go the long way."""
        if c.waiting or c.batches or body + 4 > stop:
            return 0
        topic_end = body + 2 + (data[body] << 8 | data[body + 1])
        tail_at = topic_end + 2
        if tail_at > stop or (c.is_v5 and (tail_at == stop or data[tail_at])):
            return 0
        topic = data[body + 2 : topic_end]
        plan = find(topic) or self._plan(c, topic, 0x32)
        routes = plan.routes
        if plan.is_staged or not routes.is_live:
            return 0
        packet_id = data[topic_end:tail_at]
        if packet_id == b"\0\0":
            raise malformed("PUBLISH has packet identifier 0")
        figures, is_v5 = self._figures, c.is_v5
        figures.received[1].value += 1
        figures.passed.value += 1
        if routes.is_empty:
            self._pipeline.no_subscribers(1)
            c.box.add(_PUBACK_5_NO_SUBSCRIBERS + packet_id + b"\x10" if is_v5 else _PUBACK + packet_id)
            if is_v5:
                figures.note_longer_puback()
            return 1
        outgoing: Outgoing | None = None
        head = tail = b""
        for entry in routes.entries:
            session = entry.subscriber
            box, window = session.fast, session.window
            if not (entry.qos and box is not None and window.quota > 0 and session.is_v5 is is_v5) or session.queue:
                if outgoing is None:
                    payload = data[tail_at + 1 if is_v5 else tail_at : stop]
                    outgoing = Outgoing(Message(plan.topic, payload, 1, False, c.client, c.now_ns), topic)
                session.deliver(outgoing, 1 if entry.qos else 0, False, ())
                continue
            if not head:
                head, tail = data[position:topic_end], data[tail_at:stop]
            new_id = window.next_packet_id()
            window.inflight[new_id] = RAW
            window.quota -= 1
            box.chunks += (head, PACKET_ID_BYTES[new_id], tail)
            if not box.is_dirty:
                box.mark()
            box.messages_out += 1
            figures.sent[1].value += 1
        c.box.add(_PUBACK + packet_id)
        return len(routes.entries) + 1

    def _dispatch(self, c: Connection, packet_type: int, packet: Packet) -> None:
        check_order(c.phase, packet_type)
        self._figures.received_by_type[packet_type].value += 1
        self._takers[packet_type](c, packet)

    def _ping(self, c: Connection, _packet: PingReq) -> None:
        c.reply(PINGRESP_BYTES)
        self._announcements.ping(c)


def _too_large(size: int, limit: int) -> PeerError:
    return PeerError(reason.PACKET_TOO_LARGE, f"a packet of {size} bytes is larger than the maximum of {limit}")


def _in_other_version(chunk: bytes, *, from_v5: bool) -> bytes:
    """QoS 0 packets without properties, as version 5 has them or as the versions below do."""
    position = 0
    pieces: list[bytes] = []
    while position < len(chunk):
        body, stop = _frame(chunk, position)
        topic_end = body + 2 + (chunk[body] << 8 | chunk[body + 1])
        payload = chunk[topic_end + 1 if from_v5 else topic_end : stop]
        pieces += publish_parts(chunk[body + 2 : topic_end], payload, 0x30, b"" if from_v5 else b"\0", False)
        position = stop
    return b"".join(pieces)


def _frame(chunk: bytes, position: int) -> tuple[int, int]:
    frame = frame_at(chunk, position, len(chunk))
    assert frame is not None  # the chunk is made of whole packets
    return frame
