"""Acknowledgements of clients: for messages sent to them, and PUBREL for their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from broker.codec import properties as p
from broker.codec.encode import encode_fitting
from broker.codec.packets import PubAck, PubComp, PubRec, PubRel
from broker.codec.primitives import PACKET_ID_BYTES, malformed, protocol_error
from broker.connection.connection import Connection
from broker.connection.context import Context
from broker.connection.sessions.inbounds import StoredInbounds
from broker.core import reason
from broker.core.message import Properties
from broker.session import acks

# One that the session sends, by its type and size.
_PUBREL: Final = b"\x62\x02\0\0"


class Acknowledgements:
    """Takes PUBACK, PUBREC, PUBREL and PUBCOMP."""

    def __init__(self, context: Context, inbounds: StoredInbounds) -> None:
        self._inbounds = inbounds
        self._figures = context.figures
        self.by_identifier: Mapping[int, Callable[[Connection, int], None]] = {
            0x50: self.received,
            0x62: self.release,
            0x70: self.completed,
        }
        """Acknowledgements of QoS 2, by first byte, with nothing but an identifier: no packet object is made of
        those."""
        self.takers: Mapping[int, Callable[[Connection, Any], None]] = {
            p.PUBACK: self.take_puback,
            p.PUBREC: self.take_pubrec,
            p.PUBREL: lambda c, packet: self.release(c, packet.packet_id),
            p.PUBCOMP: lambda c, packet: self.completed(c, packet.packet_id, packet.properties),
        }
        """By packet type."""

    def take_puback(self, c: Connection, packet: PubAck) -> None:
        """A delivery is done, or refused with a code of 0x80 and above; it is not sent again either way
        [MQTT-4.4.0-2]."""
        if packet.reason_code >= reason.UNSPECIFIED_ERROR:
            is_known = acks.refusal(c.session, packet.packet_id, 1)
        else:
            is_known = acks.puback(c.session, packet.packet_id, packet.properties)
        if not is_known:
            self.unfit(c, "PUBACK", packet.packet_id)

    def take_pubrec(self, c: Connection, packet: PubRec) -> None:
        """The client has taken over a QoS 2 delivery; the answer says so when the identifier is not in flight."""
        if packet.reason_code >= reason.UNSPECIFIED_ERROR:
            if not acks.refusal(c.session, packet.packet_id, 2):
                self.unfit(c, "PUBREC", packet.packet_id)
        else:
            self.received(c, packet.packet_id)

    def received(self, c: Connection, packet_id: int) -> None:
        """PUBREC with success."""
        if not acks.pubrec(c.session, packet_id):
            _check_unknown(c, "PUBREC", packet_id)
            code = reason.PACKET_IDENTIFIER_NOT_FOUND if c.is_v5 else reason.SUCCESS
            c.reply(encode_fitting(PubRel(packet_id, code), c.version, c.max_sent_bytes))
        else:
            self._figures.note_sent(_PUBREL)

    def completed(
        self, c: Connection, packet_id: int, properties: Properties | None = None
    ) -> None:
        """PUBCOMP."""
        if not acks.pubcomp(c.session, packet_id, properties):
            self.unfit(c, "PUBCOMP", packet_id)

    def unfit(self, c: Connection, name: str, packet_id: int) -> None:
        """An acknowledgement that ends no delivery: counted and ignored when its identifier is not in flight.

        Raises:
            PeerError: the identifier is 0, or that of a delivery that another packet acknowledges now.
        """
        _check_unknown(c, name, packet_id)
        self._figures.unknown_acknowledgements.value += 1

    def release(self, c: Connection, packet_id: int) -> None:
        """PUBREL: the identifier is free, once that is stored [MQTT-4.3.3-11]."""
        session = c.session
        inbound = session.inbound
        is_stored = inbound is not None and (session.is_durable or packet_id in inbound.recent)
        if inbound is None or not inbound.release(packet_id, forget=session.is_durable):
            code = reason.PACKET_IDENTIFIER_NOT_FOUND if c.is_v5 else reason.SUCCESS
            c.answers.add(
                c,
                encode_fitting(PubComp(packet_id, code), c.version, c.max_sent_bytes),
                waits=False,
            )
            return
        if is_stored:
            self._inbounds.changed(session)
        c.answers.add(c, b"\x70\x02" + PACKET_ID_BYTES[packet_id], waits=is_stored)


def _check_unknown(c: Connection, name: str, packet_id: int) -> None:
    if packet_id == 0:
        raise malformed(f"{name} has packet identifier 0")
    delivery = c.session.window.inflight.get(packet_id)
    if delivery is not None:
        expected = (
            "PUBACK" if delivery.qos == 1 else "PUBCOMP" if delivery.is_released else "PUBREC"
        )
        raise protocol_error(f"packet identifier {packet_id}: expected {expected}, got {name}")
