"""What a client was sent and has not acknowledged, sent again: on a new connection, and by the clock."""

from __future__ import annotations

from broker.session import sending
from broker.session.delivery import DENIED, RAW, Delivery, MayHave
from broker.session.state import SessionState


def resume(session: SessionState, may_have: MayHave | None = None) -> None:
    """Send what is in flight again, in its order and with its identifiers [MQTT-4.4.0-1].

    Not more at once than the client's receive maximum, which may be smaller than before [MQTT-4.9.0-2]. What the client
    may not have any more is dropped; ``may_have`` is None where it may have everything.
    """
    window, now_ns = session.window, session.services.clock.now_ns()
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
    """Send more of what ``resume`` had to put off, as there is quota."""
    window, now_ns = session.window, session.services.clock.now_ns()
    while window.unsent and window.quota > 0:
        packet_id = window.unsent.popleft()
        window.quota -= _send_again(session, packet_id, window.inflight[packet_id], now_ns)


def resend(session: SessionState, sent_before_ns: int) -> None:
    """Send again, in order, what the client of an older version has left unacknowledged since then."""
    if session.is_slow or session.is_v5 or not session.window.is_open:  # [MQTT-4.4.0-1]: never in version 5
        return
    now_ns = session.services.clock.now_ns()
    for packet_id, delivery in list(session.window.inflight.items()):
        if 0 < delivery.sent_ns <= sent_before_ns:
            sending.emit(session, packet_id, delivery, now_ns, dup=True)


def _send_again(session: SessionState, packet_id: int, delivery: Delivery, now_ns: int) -> bool:
    """Send on a new connection what the one before was sent; False when this client takes no packet so large."""
    if sending.emit(session, packet_id, delivery, now_ns, dup=True):
        return True
    _give_up(session, packet_id, delivery, "packet_too_large")
    return False


def _is_withheld(delivery: Delivery, may_have: MayHave) -> bool:
    outgoing = delivery.outgoing
    return outgoing is not None and not delivery.is_released and not may_have(outgoing.message.topic, delivery.qos)


def _give_up(session: SessionState, packet_id: int, delivery: Delivery, why: str) -> None:
    del session.window.inflight[packet_id]
    session.drop_delivery(delivery, why)
    if delivery.holder is not None:
        delivery.holder.settle(delivery)
    if session.is_durable:
        session.services.changed(session)
