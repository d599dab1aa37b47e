"""Acknowledgements by a client of QoS 1 and 2 messages that it was sent, and their effects.

Each takes a packet identifier and returns False for one that it does not fit. QoS 1 ends with PUBACK; QoS 2 goes from
PUBREC, upon which PUBREL is sent until there is PUBCOMP [MQTT-4.3.2-1, MQTT-4.3.3-1].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.codec.primitives import PACKET_ID_BYTES
from broker.core.message import Properties
from broker.session import sending
from broker.session.delivery import RAW, Delivery

if TYPE_CHECKING:
    from broker.session.session import Session

# Acknowledgements taken at once: each may have a message sent, and the reader looks at the time after some runs.
_RUN: Final = 64


def puback_run(session: Session, data: bytes, position: int) -> int:
    """Take the PUBACKs without properties from ``position`` on whose messages are no longer needed, then send
    waiting messages: one call for each costs 1 µs more. No more are taken than ``_RUN``.

    Returns:
        Where the first packet begins that is not one of these.
    """
    inflight = session.window.inflight
    start = position
    stop = min(len(data) - 3, position + _RUN * 4)
    while position < stop and data[position] == 0x40 and data[position + 1] == 2:
        packet_id = data[position + 2] << 8 | data[position + 3]
        if inflight.get(packet_id) is not RAW:
            break
        del inflight[packet_id]
        position += 4
    if position > start:
        session.window.quota += (position - start) // 4
        _go_on(session)
    return position


def puback(session: Session, packet_id: int, properties: Properties | None = None) -> bool:
    """A QoS 1 delivery is done; False for an identifier that is not in flight with QoS 1.

    ``properties`` are those of the client's packet.
    """
    window = session.window
    delivery = window.inflight.get(packet_id)
    if delivery is RAW:
        # most are, where there is much to do: as ``_done``, without what such a one cannot be
        del window.inflight[packet_id]
        window.quota += 1
        _go_on(session)
        return True
    if delivery is None or delivery.qos != 1:
        return False
    _done(session, packet_id, delivery)
    if "message.acked" in session.services.events.wanted:
        _tell(session, delivery, properties)
    return True


def pubrec(session: Session, packet_id: int) -> bool:
    """The client owns a QoS 2 message: release it; False for an identifier that is not in flight with QoS 2."""
    delivery = session.window.inflight.get(packet_id)
    if delivery is None or delivery.qos != 2:
        return False
    delivery.is_released = True
    sending.write_recorded(session, b"\x62\x02" + PACKET_ID_BYTES[packet_id])
    return True


def pubcomp(session: Session, packet_id: int, properties: Properties | None = None) -> bool:
    """A QoS 2 delivery is over; False for an identifier that was not released."""
    delivery = session.window.inflight.get(packet_id)
    if delivery is None or not delivery.is_released:
        return False
    _done(session, packet_id, delivery)
    if "message.acked" in session.services.events.wanted:
        _tell(session, delivery, properties)
    return True


def refusal(session: Session, packet_id: int, qos: int) -> bool:
    """The client answered PUBACK or PUBREC with a code of 0x80 and above: the message is not sent again, and counts
    as dropped [MQTT-4.4.0-2]. False for an identifier that is not in flight with ``qos``, or was released."""
    delivery = session.window.inflight.get(packet_id)
    if delivery is None or delivery.qos != qos or delivery.is_released:
        return False
    _done(session, packet_id, delivery)
    if delivery.outgoing is not None:
        session.drop(delivery.outgoing, "refused_by_client")
    else:
        session.services.dropped("refused_by_client").value += 1
    return True


def _done(session: Session, packet_id: int, delivery: Delivery) -> None:
    window = session.window
    prediction = session.prediction
    log = session.log
    del window.inflight[packet_id]
    if window.unsent and packet_id in window.unsent:
        window.unsent.remove(packet_id)  # acknowledged from the connection before: it used no quota
    else:
        window.quota += 1
    if prediction is not None:
        prediction.freed(packet_id)
    if delivery.holder is not None:
        delivery.holder.settle(delivery)
    if prediction is not None:
        session.services.moved(session)
    is_behind = log is not None and log.is_behind
    if is_behind or session.queue or session.retained_queue is not None or window.unsent:
        session.pump()
    elif session.memberships:
        session.offer_room()


def _go_on(session: Session) -> None:
    """Send what waits for a session whose log has nothing for it."""
    if session.queue or session.retained_queue is not None:
        session.pump()
    elif session.memberships:
        session.offer_room()


def _tell(session: Session, delivery: Delivery, properties: Properties | None) -> None:
    if delivery.outgoing is not None:
        session.services.on_event(
            "message.acked", session, delivery.outgoing.message, "", properties
        )
