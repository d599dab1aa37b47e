"""From bytes to packets to what takes them: the loop that every received byte passes.

PUBLISH is read in place, without a packet object. A topic whose plan has no stages and whose subscribers differ in
nothing but QoS goes the short way: QoS 0 packets that follow each other to the same subscribers are forwarded as one
piece of the buffer, QoS 1 packets with new identifiers between the same bytes. Everything else takes the way through
``broker.connection.publish``. What is measured for each choice stands in ``benchmarks/bare.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from broker.codec.decode import decode_packet
from broker.codec.encode import PINGRESP_BYTES, publish_parts
from broker.codec.framing import frame_at
from broker.codec.outgoing import Outgoing
from broker.codec.packets import (
    Auth,
    Disconnect,
    Packet,
    PingReq,
    PubAck,
    PubComp,
    PubRec,
    PubRel,
    Subscribe,
    Unsubscribe,
)
from broker.codec.wire import PACKET_ID_BYTES, malformed, protocol_error
from broker.connection import acknowledge, announce, close, publish, subscribe
from broker.connection.authentication import logins
from broker.connection.authentication.permits import finders, remember_head
from broker.connection.turns import LOOK_S
from broker.core import reason
from broker.core.errors import PeerError
from broker.core.message import Message
from broker.pipeline.plan import TopicPlan
from broker.routing.router import Routes
from broker.session import answers, qos0
from broker.session.delivery import RAW
from broker.session.late import Late
from broker.session.session import Session

if TYPE_CHECKING:
    from broker.connection.connection import Connection

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


def read_packets(c: Connection, data: bytes, position: int) -> int:
    """Handle every complete packet from ``position`` on; returns where the first incomplete one begins.

    Raises:
        PeerError: the connection has to be closed; packets before the bad one have been handled.
    """
    hub, end, limit, extra = c.hub, len(data), c.max_packet_bytes, 1 if c.is_v5 else 0
    (find_plan, find_qos1, find_kind), startswith = finders(c), data.startswith
    is_unwatched = _WATCHED.isdisjoint(hub.events.wanted) and not (hub.admission.drops_qos0 or hub.dead_letters.is_on)
    takes_qos1 = is_unwatched and hub.settings.maximum_qos > 0
    now_s, looks_at = hub.clock.monotonic_s, _LOOK_EVERY
    turns = hub.turns
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
                    plan = known or _plan(c, topic, first)
                    routes = plan.routes
                    if plan.is_staged:
                        if run_routes is not None:
                            _forward(c, run_routes, data[run_start:position], run_count)
                            run_routes = None
                        position = publish.take_run(c, plan, data, position, head_end, stop)
                        if c.is_closed:
                            return end
                        if c.is_parked:
                            break
                        looks_at = rounds
                        continue
                    if routes.is_plain:
                        if routes is not run_routes:
                            if run_routes is not None:
                                _forward(c, run_routes, data[run_start:position], run_count)
                                if len(run_routes.entries) > _WIDE:
                                    looks_at = rounds
                            run_routes, run_start, run_count = routes, position, 0
                        # packets on one topic and of one size begin with the same bytes: no need to read them again
                        size, head, head_size = stop - position, data[position:head_end], head_end - position
                        position, run_count, last = stop, run_count + 1, end - size
                        while position <= last and startswith(head, position):
                            position += size
                            run_count += 1
                        kind = find_kind(head) or (remember_head(c, head, routes, size) if known else _NEW)
                        while position <= last and find_kind(data[position : position + head_size]) is kind:
                            position += size
                            run_count += 1
                        continue
            if run_routes is not None:
                _forward(c, run_routes, data[run_start:position], run_count)
                run_routes = None
            packets += 1
            if first == 0x40 and length == 2:
                pubacks += 1
                if not answers.puback(c.session, data[body] << 8 | data[body + 1]):
                    acknowledge.unfit(c, "PUBACK", data[body] << 8 | data[body + 1])
            elif first & 0xF0 == 0x30:
                published_bytes += stop - position
                if first == 0x32 and takes_qos1 and (wide := _forward_qos1(c, find_qos1, data, position, body, stop)):
                    answered += 1
                    if wide > _WIDE:
                        looks_at = rounds
                else:
                    publish.take(c, first, data, body, stop)
                    if c.is_parked:
                        position = stop
                        break
                    looks_at = rounds
            elif length == 2 and first in _BY_IDENTIFIER and data[body : body + 2] != b"\0\0":
                hub.figures.received_by_type[first >> 4].value += 1
                _BY_IDENTIFIER[first](c, data[body] << 8 | data[body + 1])
            else:
                if stop - body > _LONG and (take_long := _LONG_TAKERS.get(first & (0xFF if c.version > 3 else 0xF6))):
                    hub.figures.received_by_type[first >> 4].value += 1
                    take_long(c, data, body, stop)
                else:
                    _dispatch(c, decode_packet(first, data, body, stop, c.version))
                looks_at = rounds
            if c.is_closed:
                return end
            position = stop
    finally:
        if run_routes is not None:
            _forward(c, run_routes, data[run_start:position], run_count)
        hub.figures.packets_received.value += packets
        if published_bytes:
            hub.figures.published_bytes_received.value += published_bytes
        if pubacks or answered:
            hub.figures.note_pubacks(pubacks, answered)
    if (took_s := now_s() - began_s) > LOOK_S and turns.spend(took_s) and not c.is_parked:
        turns.give_way(c)  # the system may have more of this client to read in the same turn
    if c.session.is_slow:
        c.hold_back_if_unread()
    return position


def _plan(c: Connection, topic: bytes, first: int) -> TopicPlan[Routes[Session]]:
    if not topic:
        raise protocol_error("PUBLISH has neither a topic nor a topic alias")
    return c.hub.plans.plan(topic) if c.permits is None else c.permits.plan(topic, first)


def _too_large(size: int, limit: int) -> PeerError:
    return PeerError(reason.PACKET_TOO_LARGE, f"a packet of {size} bytes is larger than the maximum of {limit}")


def _forward(c: Connection, routes: Routes[Session], chunk: bytes, count: int) -> None:
    """Hand a run of QoS 0 packets, as they came, to their subscribers."""
    figures = c.hub.figures
    figures.packets_received.value += count
    figures.received[0].value += count
    figures.passed.value += count
    figures.published_bytes_received.value += len(chunk)
    if routes.is_empty:
        c.hub.pipeline.no_subscribers(count)
        return
    if routes.only_group is not None:
        figures.sent[0].value += routes.only_group.offer_run(chunk, c.client, c.now_ns)
        return
    same, other = (routes.plain_v5, routes.plain_v3) if c.is_v5 else (routes.plain_v3, routes.plain_v5)
    _hand_out(c, same, chunk, count)
    if other:
        _hand_out(c, other, _in_other_version(chunk, from_v5=c.is_v5), count)


def _hand_out(c: Connection, sessions: list[Session], chunk: bytes, count: int) -> None:
    sent = 0
    for session in sessions:
        box = session.fast
        if box is None:
            sent += _hand_out_carefully(c, session, chunk, count)
            continue
        box.chunks.append(chunk)
        if not box.is_dirty:
            box.mark()
        box.messages_out += count
        sent += count
    c.hub.figures.sent[0].value += sent


def _hand_out_carefully(c: Connection, session: Session, chunk: bytes, count: int) -> int:
    """For a session that is away, slow, or whose client limits the size of packets; returns how many were sent."""
    box, figures = session.box, c.hub.figures
    if box is None:
        _hand_out_away(c, session, chunk, count)
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


def _hand_out_away(c: Connection, session: Session, chunk: bytes, count: int) -> None:
    """For a session that is away: what it gets when it is back does not depend on how it spoke before."""
    if not session.keeps_qos0:
        session.count_dropped("qos0_msg", count)
        return
    position = 0
    while position < len(chunk):
        body, stop = _frame(chunk, position)
        topic_end = body + 2 + (chunk[body] << 8 | chunk[body + 1])
        topic, payload = chunk[body + 2 : topic_end], chunk[topic_end + 1 if session.is_v5 else topic_end : stop]
        session.deliver(Outgoing(Message(topic.decode(), payload, 0, False, c.client, c.now_ns), topic), 0, False, ())
        position = stop


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


def _forward_qos1(
    c: Connection,
    find: Callable[[bytes], TopicPlan[Routes[Session]] | None],
    data: bytes,
    position: int,
    body: int,
    stop: int,
) -> int:
    """Hand a QoS 1 packet, new identifiers apart as it came, to its subscribers; their number and 1, or 0 when it must
    go the long way."""
    if c.waiting or c.batches or body + 4 > stop:
        return 0
    topic_end = body + 2 + (data[body] << 8 | data[body + 1])
    tail_at = topic_end + 2
    if tail_at > stop or (c.is_v5 and (tail_at == stop or data[tail_at])):
        return 0
    topic = data[body + 2 : topic_end]
    plan = find(topic) or _plan(c, topic, 0x32)
    routes = plan.routes
    if plan.is_staged or not routes.is_live:
        return 0
    packet_id = data[topic_end:tail_at]
    if packet_id == b"\0\0":
        raise malformed("PUBLISH has packet identifier 0")
    figures, is_v5 = c.hub.figures, c.is_v5
    figures.received[1].value += 1
    figures.passed.value += 1
    if routes.is_empty:
        c.hub.pipeline.no_subscribers(1)
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


def _dispatch(c: Connection, packet: Packet) -> None:
    kind = type(packet)
    take = _TAKERS.get(kind)
    if take is None:
        raise protocol_error(f"{kind.__name__.upper()} is not a packet that a client may send now")
    c.hub.figures.received_by_type[_TYPES[kind]].value += 1
    take(c, packet)


def _ping(c: Connection, _packet: PingReq) -> None:
    c.reply(PINGRESP_BYTES)
    announce.ping(c)


_BY_IDENTIFIER: Final[dict[int, Callable[[Connection, int], None]]] = {
    0x50: acknowledge.received,
    0x62: acknowledge.release,
    0x70: acknowledge.completed,
}
"""Of QoS 2, by first byte, what says no more than an identifier: no packet object is made of that."""
_LONG_TAKERS: Final[dict[int, Callable[[Connection, bytes, int, int], None]]] = {
    0x82: subscribe.take_long_subscribe,
    0xA2: subscribe.take_long_unsubscribe,
}
"""By first byte, what may hold very many topic filters: it is read while it is worked off."""
_TAKERS: Final[dict[type[Packet], Callable[[Connection, Any], None]]] = {
    PubAck: acknowledge.take_puback,
    PubRec: acknowledge.take_pubrec,
    PubRel: acknowledge.take_pubrel,
    PubComp: acknowledge.take_pubcomp,
    Subscribe: subscribe.take_subscribe,
    Unsubscribe: subscribe.take_unsubscribe,
    PingReq: _ping,
    Disconnect: close.take_disconnect,
    Auth: logins.take_auth,
}
_TYPES: Final = {
    PubAck: 4, PubRec: 5, PubRel: 6, PubComp: 7, Subscribe: 8, Unsubscribe: 10, PingReq: 12, Disconnect: 14, Auth: 15
}  # fmt: skip
