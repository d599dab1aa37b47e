"""The state machine of a connection: what a packet of each type leads to, by how far its connection has come.

The table is MQTT 5.0 sections 3.1, 3.14, 3.15 and 4.12. The content of a packet is not checked here, and types that a
version does not have (0, and AUTH below version 5) never get this far: the codec calls them malformed.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from broker.codec import properties as p
from broker.codec.primitives import protocol_error


class Phase(Enum):
    """Stage of a connection."""

    OPENED = auto()
    """Its link is open."""
    AUTHENTICATING = auto()
    """Its CONNECT named an authentication method, and the exchange is under way."""
    CONNECTED = auto()
    CONNECTED_BY_METHOD = auto()
    """Connected, and it may authenticate again by the method of its CONNECT."""
    WAITING = auto()
    """For the decision about its login or message, or for its next turn of the loop."""
    CLOSED = auto()


class Effect(Enum):
    """Action that follows when a packet arrives."""

    TAKE = auto()
    KEEP = auto()
    """The packet is taken once the connection no longer waits."""
    IGNORE = auto()
    CLOSE = auto()
    """The link is closed without a packet [MQTT-3.1.0-1]."""
    REFUSE = auto()
    """CONNACK 0x82, protocol error, then the end [MQTT-3.1.2-30]."""
    DISCONNECT = auto()
    """DISCONNECT 0x82, protocol error, to version 5 clients, then the end."""


_OF_CLIENTS: Final = (
    p.PUBLISH, p.PUBACK, p.PUBREC, p.PUBREL, p.PUBCOMP, p.SUBSCRIBE, p.UNSUBSCRIBE, p.PINGREQ, p.DISCONNECT
)  # fmt: skip


def _row(taken: tuple[int, ...], others: Effect) -> dict[int, Effect]:
    return {
        packet_type: Effect.TAKE if packet_type in taken else others
        for packet_type in range(1, len(p.NAMES))
    }


ORDER: Final[Mapping[Phase, Mapping[int, Effect]]] = {
    Phase.OPENED: _row((p.CONNECT,), Effect.CLOSE),
    Phase.AUTHENTICATING: _row((p.AUTH, p.DISCONNECT), Effect.REFUSE),
    Phase.CONNECTED: _row(_OF_CLIENTS, Effect.DISCONNECT),
    Phase.CONNECTED_BY_METHOD: _row((*_OF_CLIENTS, p.AUTH), Effect.DISCONNECT),
    Phase.WAITING: _row((), Effect.KEEP),
    Phase.CLOSED: _row((), Effect.IGNORE),
}


def check_order(phase: Phase, packet_type: int) -> None:
    """Refuse a packet that may not come now.

    Raises:
        PeerError: 0x82, with a sentence for the client.
    """
    if ORDER[phase][packet_type] is Effect.TAKE:
        return
    name = p.NAMES[packet_type]
    if phase is Phase.AUTHENTICATING:
        raise protocol_error(f"{name} came before authentication had ended")
    if packet_type == p.AUTH:
        # [MQTT-4.12.0-6]
        raise protocol_error("AUTH came without an authentication method in the CONNECT")
    raise protocol_error(f"{name} is not a packet that a client may send now")
