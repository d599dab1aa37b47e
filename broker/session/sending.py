"""From a delivery to its packet: an identifier, a look at expiry and size, and when it may leave."""

from __future__ import annotations

from broker.codec.wire import PACKET_ID_BYTES
from broker.session.delivery import Delivery
from broker.session.state import SessionState


def send(session: SessionState, delivery: Delivery, now_ns: int) -> None:
    """Send a message for which the window has room, or drop it: it has expired, or is too large for the client."""
    outgoing = delivery.outgoing
    assert outgoing is not None
    if outgoing.expires_ns and outgoing.is_expired(now_ns):
        session.drop(outgoing, "expired")
        return
    window = session.window
    next_id, packet_id = window.next_id, window.next_packet_id()
    if packet_id != next_id and session.foretelling is not None:
        session.foretelling.upset()
    if not emit(session, packet_id, delivery, now_ns, dup=0 <= delivery.offset < session.maybe_sent_below):
        session.drop(outgoing, "packet_too_large")  # counts as delivered [MQTT-3.1.2-25]
        return
    _sent(session, packet_id, delivery)


def send_shared(session: SessionState, delivery: Delivery, *, dup: bool) -> bool:
    """Send a message of a share group, for which the window has room; False when the packet is too large."""
    packet_id = session.window.next_packet_id()
    if not emit(session, packet_id, delivery, session.services.clock.now_ns(), dup=dup):
        return False
    _sent(session, packet_id, delivery)
    return True


def fits(session: SessionState, delivery: Delivery) -> bool:
    """Whether the client takes packets as large as this one."""
    outgoing, now_ns = delivery.outgoing, session.services.clock.now_ns()
    if outgoing is None:
        return True
    head, tail = outgoing.parts_for(session.is_v5, delivery.qos, delivery.retain, delivery.identifiers, now_ns)
    return len(head) + len(tail) + 2 <= session.max_packet_bytes


def emit(session: SessionState, packet_id: int, delivery: Delivery, now_ns: int, *, dup: bool = False) -> bool:
    """Write the packet of a delivery, as soon as it may leave; False when the client takes no packet so large."""
    delivery.sent_ns = now_ns
    if delivery.is_released:
        write_recorded(session, b"\x62\x02" + PACKET_ID_BYTES[packet_id])
        return True
    outgoing = delivery.outgoing
    if outgoing is None:
        return True
    qos = delivery.qos
    head, tail = outgoing.parts_for(session.is_v5, qos, delivery.retain, delivery.identifiers, now_ns, dup)
    if len(head) + len(tail) + 2 > session.max_packet_bytes:
        return False
    data, foretelling = b"%b%b%b" % (head, PACKET_ID_BYTES[packet_id], tail), session.foretelling
    if foretelling is not None and not (qos == 1 and foretelling.tells(delivery)):
        foretelling.upset()  # those behind it must not overtake it
        write_recorded(session, data)
    elif session.box is not None:
        session.box.add(data)
        if foretelling is not None:
            session.services.moved(session)
    return True


def write_recorded(session: SessionState, data: bytes) -> None:
    """Write a packet; where the session is durable, once a record says so."""
    if session.foretelling is not None:
        session.foretelling.hold(data)
        session.services.changed(session)
    elif session.box is not None:
        session.box.add(data)


def _sent(session: SessionState, packet_id: int, delivery: Delivery) -> None:
    window, services, box = session.window, session.services, session.box
    window.inflight[packet_id] = delivery
    window.quota -= 1
    services.sent[delivery.qos].value += 1
    if box is not None:
        box.messages_out += 1
    if "message.delivered" in services.events.wanted and delivery.outgoing is not None:
        services.on_event("message.delivered", session, delivery.outgoing.message, "")
