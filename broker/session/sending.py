"""Packet of a delivery: an identifier, a look at expiry and size, and when it may leave."""

from __future__ import annotations

from broker.codec.primitives import PACKET_ID_BYTES
from broker.session.delivery import DENIED, RAW, Delivery, MayHave
from broker.session.state import SessionState


def send(session: SessionState, delivery: Delivery, now_ns: int) -> None:
    """Send a message for which the window has room, or drop it: it has expired, or is too large for the client."""
    delivery = delivery.own()
    outgoing = delivery.outgoing
    assert outgoing is not None
    if outgoing.expires_ns and outgoing.is_expired(now_ns):
        session.drop(outgoing, "expired")
        return
    window = session.window
    next_id = window.next_id
    packet_id = window.next_packet_id()
    if packet_id != next_id and session.prediction is not None:
        session.prediction.upset()
    if not emit(
        session, packet_id, delivery, now_ns, dup=0 <= delivery.offset < session.maybe_sent_below
    ):
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
    """True if the client takes packets as large as this one."""
    outgoing = delivery.outgoing
    now_ns = session.services.clock.now_ns()
    if outgoing is None:
        return True
    head, tail = outgoing.parts_for(
        session.is_v5, delivery.qos, delivery.retain, delivery.identifiers, now_ns
    )
    return len(head) + len(tail) + 2 <= session.max_packet_bytes


def emit(
    session: SessionState, packet_id: int, delivery: Delivery, now_ns: int, *, dup: bool = False
) -> bool:
    """Write the packet of a delivery, as soon as it may leave; False when the client takes no packet so large."""
    delivery.sent_ns = now_ns
    if delivery.is_released:
        write_recorded(session, b"\x62\x02" + PACKET_ID_BYTES[packet_id])
        return True
    outgoing = delivery.outgoing
    if outgoing is None:
        return True
    qos = delivery.qos
    head, tail = outgoing.parts_for(
        session.is_v5, qos, delivery.retain, delivery.identifiers, now_ns, dup
    )
    if len(head) + len(tail) + 2 > session.max_packet_bytes:
        return False
    data = b"%b%b%b" % (head, PACKET_ID_BYTES[packet_id], tail)
    prediction = session.prediction
    if prediction is not None and not (qos == 1 and prediction.covers(delivery)):
        prediction.upset()  # those behind it must not overtake it
        write_recorded(session, data)
    elif session.box is not None:
        session.box.add(data)
        if prediction is not None:
            session.services.moved(session)
    return True


def write_recorded(session: SessionState, data: bytes) -> None:
    """Write a packet; where the session is durable, once a record says so."""
    if session.prediction is not None:
        session.prediction.hold(data)
        session.services.changed(session)
    elif session.box is not None:
        session.box.add(data)


def _sent(session: SessionState, packet_id: int, delivery: Delivery) -> None:
    window = session.window
    services = session.services
    box = session.box
    window.inflight[packet_id] = delivery
    window.quota -= 1
    services.sent[delivery.qos].value += 1
    if box is not None:
        box.messages_out += 1
    if "message.delivered" in services.events.wanted and delivery.outgoing is not None:
        services.on_event("message.delivered", session, delivery.outgoing.message, "", None)


def resume(session: SessionState, may_have: MayHave | None = None) -> None:
    """Send what is in flight again, in its order and with its identifiers [MQTT-4.4.0-1].

    Not more at once than the client's receive maximum, which may be smaller than before [MQTT-4.9.0-2]. Messages that
    the client may no longer have are dropped; ``may_have`` is None where it may have everything.
    """
    window = session.window
    now_ns = session.services.clock.now_ns()
    left = window.size
    for packet_id, delivery in list(window.inflight.items()):
        if delivery is RAW:  # taken back while it was connected
            del window.inflight[packet_id]
        elif may_have is not None and _is_withheld(delivery, may_have):
            _give_up(session, packet_id, delivery, DENIED)
        elif left <= 0 and not delivery.is_released:
            window.put_off(packet_id)
        elif _send_again(session, packet_id, delivery, now_ns):
            left -= 1
    window.quota = left


def go_on(session: SessionState) -> None:
    """Send more of the messages that ``resume`` deferred, as far as there is quota."""
    window = session.window
    now_ns = session.services.clock.now_ns()
    while window.unsent and window.quota > 0:
        packet_id = window.unsent.popleft()
        window.quota -= _send_again(session, packet_id, window.inflight[packet_id], now_ns)


def resend(session: SessionState, sent_before_ns: int) -> None:
    """Send again, in order, what the client of an older version has left unacknowledged since then."""
    if session.is_slow or session.is_v5 or not session.window.is_open:
        # [MQTT-4.4.0-1]: never in version 5
        return
    now_ns = session.services.clock.now_ns()
    for packet_id, delivery in list(session.window.inflight.items()):
        if 0 < delivery.sent_ns <= sent_before_ns:
            emit(session, packet_id, delivery, now_ns, dup=True)


def _send_again(session: SessionState, packet_id: int, delivery: Delivery, now_ns: int) -> bool:
    """Send on a new connection what the one before was sent; False when this client takes no packet so large."""
    if emit(session, packet_id, delivery, now_ns, dup=True):
        return True
    _give_up(session, packet_id, delivery, "packet_too_large")
    return False


def _is_withheld(delivery: Delivery, may_have: MayHave) -> bool:
    outgoing = delivery.outgoing
    return (
        outgoing is not None
        and not delivery.is_released
        and not may_have(outgoing.message.topic, delivery.qos)
    )


def _give_up(session: SessionState, packet_id: int, delivery: Delivery, why: str) -> None:
    del session.window.inflight[packet_id]
    session.drop_delivery(delivery, why)
    if delivery.holder is not None:
        delivery.holder.settle(delivery)
    if session.is_durable:
        session.services.changed(session)
