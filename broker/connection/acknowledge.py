"""Answers: those that may leave at once, and those that wait for the commit that holds what they acknowledge.

The answers of a connection stay in order: while one waits, later ones queue behind it. All that one commit releases
leave in one write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.codec.encode import encode_fitting
from broker.codec.packets import PubAck, PubComp, PubRec, PubRel, SubAck, UnsubAck
from broker.codec.wire import PACKET_ID_BYTES, malformed, protocol_error
from broker.connection import close
from broker.core import reason
from broker.core.message import Properties
from broker.core.nothing import filled
from broker.session import answers

if TYPE_CHECKING:
    from broker.connection.connection import Connection
    from broker.connection.kept import Kept, Waiting

_PUBACK: Final = 0x40
_PUBREC: Final = 0x50
_PUBREL: Final = b"\x62\x02\0\0"
"""One that the session sends, by its type and size."""
_SHORT: Final = 5
"""Size of a PUBACK or PUBREC without properties; only refusals have some."""


def answer(c: Connection, data: Waiting, *, waits: bool) -> None:
    """Send ``data``, or do it when it is a callable: in order, and after the present commit group if it ``waits``."""
    if waits or c.waiting or c.batches:
        c.waiting.append(data)
        c.unacknowledged += _is_puback(data)
    else:
        _release(c, data)


def answer_fitting(c: Connection, packet: SubAck | UnsubAck, *, waits: bool) -> None:
    """Answer within the client's maximum packet size; a client whose maximum is below the least there is to say is cut
    off [MQTT-3.1.2-24]."""
    encoded = encode_fitting(packet, c.version, c.max_sent_bytes)
    if len(encoded) <= c.max_sent_bytes:
        answer(c, encoded, waits=waits)
        return
    text = f"an answer of {len(encoded)} bytes is above the Maximum Packet Size of {int(c.max_sent_bytes)}"
    close.disconnect(c, reason.PACKET_TOO_LARGE, "answer_too_large", text=text)


def seal(c: Connection) -> None:
    """Tie the answers gathered in this read to the commit group that holds what they acknowledge."""
    c.batches = filled(c.batches)
    c.batches.append((c.waiting, c.kept))
    c.waiting, c.kept = [], []
    c.hub.writer.when_committed(lambda error: _committed(c, error))


def take_puback(c: Connection, packet: PubAck) -> None:
    """A delivery is done, or refused with a code of 0x80 and above; it is not sent again either way [MQTT-4.4.0-2]."""
    if packet.reason_code >= reason.UNSPECIFIED_ERROR:
        is_known = answers.refusal(c.session, packet.packet_id, 1)
    else:
        is_known = answers.puback(c.session, packet.packet_id, packet.properties)
    if not is_known:
        unfit(c, "PUBACK", packet.packet_id)


def take_pubrec(c: Connection, packet: PubRec) -> None:
    """A QoS 2 delivery is owned by the client; an identifier that is not in flight is told so."""
    if packet.reason_code >= reason.UNSPECIFIED_ERROR:
        if not answers.refusal(c.session, packet.packet_id, 2):
            unfit(c, "PUBREC", packet.packet_id)
    else:
        received(c, packet.packet_id)


def received(c: Connection, packet_id: int) -> None:
    """PUBREC with success."""
    if not answers.pubrec(c.session, packet_id):
        _check_unknown(c, "PUBREC", packet_id)
        code = reason.PACKET_IDENTIFIER_NOT_FOUND if c.is_v5 else reason.SUCCESS
        c.reply(encode_fitting(PubRel(packet_id, code), c.version, c.max_sent_bytes))
    else:
        c.hub.figures.note_sent(_PUBREL)


def take_pubcomp(c: Connection, packet: PubComp) -> None:
    """A QoS 2 delivery is over."""
    completed(c, packet.packet_id, packet.properties)


def completed(c: Connection, packet_id: int, properties: Properties | None = None) -> None:
    """PUBCOMP."""
    if not answers.pubcomp(c.session, packet_id, properties):
        unfit(c, "PUBCOMP", packet_id)


def unfit(c: Connection, name: str, packet_id: int) -> None:
    """An acknowledgement that ends no delivery: counted and ignored when its identifier is not in flight.

    Raises:
        PeerError: the identifier is 0, or that of a delivery that another packet acknowledges now.
    """
    _check_unknown(c, name, packet_id)
    c.hub.figures.unknown_acknowledgements.value += 1


def _check_unknown(c: Connection, name: str, packet_id: int) -> None:
    if packet_id == 0:
        raise malformed(f"{name} has packet identifier 0")
    delivery = c.session.window.inflight.get(packet_id)
    if delivery is not None:
        expected = "PUBACK" if delivery.qos == 1 else "PUBCOMP" if delivery.is_released else "PUBREC"
        raise protocol_error(f"packet identifier {packet_id}: expected {expected}, got {name}")


def take_pubrel(c: Connection, packet: PubRel) -> None:
    """The client has our PUBREC."""
    release(c, packet.packet_id)


def release(c: Connection, packet_id: int) -> None:
    """PUBREL: the identifier is free, once that is stored [MQTT-4.3.3-11]."""
    session = c.session
    inbound = session.inbound
    is_stored = inbound is not None and (session.is_durable or packet_id in inbound.recent)
    if inbound is None or not inbound.release(packet_id, forget=session.is_durable):
        code = reason.PACKET_IDENTIFIER_NOT_FOUND if c.is_v5 else reason.SUCCESS
        answer(c, encode_fitting(PubComp(packet_id, code), c.version, c.max_sent_bytes), waits=False)
        return
    if is_stored:
        c.hub.records.inbound_changed(session.client_id, inbound)
    answer(c, b"\x70\x02" + PACKET_ID_BYTES[packet_id], waits=is_stored)


def _is_puback(data: Waiting) -> bool:
    return isinstance(data, bytes) and data[0] == _PUBACK


def _committed(c: Connection, error: BaseException | None) -> None:
    waiting, kept = c.batches.popleft()
    if error is not None:
        _fail(c, waiting, kept)
        return
    for data in waiting:
        if c.is_closed:  # before, or by one of these
            return
        c.unacknowledged -= _is_puback(data)
        _release(c, data)


def _release(c: Connection, data: Waiting) -> None:
    if isinstance(data, bytes):
        c.reply(data)
    else:
        data()


def _fail(c: Connection, waiting: list[Waiting], kept: list[Kept]) -> None:
    """What the group held was not stored: say so for its publishes, and close where the protocol has no word for it.

    Other answers only queued behind them. Those of refusals stay as they are; a resend of what an earlier group holds
    is acknowledged as ever.
    """
    c.hub.pipeline.dropped("not_stored").value += sum(one.is_wanted for one in kept)
    if kept and c.is_connected and c.session.inbound is not None:
        c.session.inbound.forget(one.packet_id for one in kept)
    if c.is_closed:
        return
    lost = {one.packet_id for one in kept if not one.is_refused}
    if not all(isinstance(data, bytes) and data[0] in (_PUBACK, _PUBREC) for data in waiting) or (
        kept and c.version < 5
    ):
        close.on_internal_error(c)
        return
    for data in waiting:
        assert isinstance(data, bytes)
        c.unacknowledged -= _is_puback(data)
        if len(data) <= _SHORT and int.from_bytes(data[2:4]) in lost:
            c.reply(bytes((data[0], 3)) + data[2:4] + bytes((reason.QUOTA_EXCEEDED,)))
        else:
            c.reply(data)
