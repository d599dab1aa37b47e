"""The in-flight window: QoS 1 and 2 messages that one client was sent and has not acknowledged yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from broker.core.memory import NOTHING, filled
from broker.session.delivery import RAW, Delivery, Holder

MAX_PACKET_ID: Final = 65_535
# The quota of a session whose connection has no CONNACK yet: no number of early acknowledgements makes it positive.
_NOTHING_YET: Final = -MAX_PACKET_ID - 1


class Window:
    """Deliveries in flight by packet identifier, in the order in which they were sent first.

    ``size`` is how many may be in flight: the client's receive maximum, or the broker's own. ``quota`` is how many more
    may be sent now [MQTT-4.9.0-1]. The hot path sees to ``inflight`` and ``quota`` itself.
    """

    __slots__ = ("inflight", "next_id", "quota", "size", "unsent")

    def __init__(self, size: int) -> None:
        self.size = self.quota = size
        self.inflight: dict[int, Delivery] = {}
        self.next_id = 1
        """Start of the search for the next packet identifier."""
        self.unsent: deque[int] = NOTHING
        """Identifiers in flight from before, and not sent again yet: beyond the receive maximum of this connection."""

    def open(self, size: int) -> None:
        """There is a new connection; nothing is sent before its CONNACK has left."""
        self.size = size
        self.quota = _NOTHING_YET

    @property
    def is_open(self) -> bool:
        """True if a connection's CONNACK has been sent."""
        return self.quota != _NOTHING_YET

    def close(self) -> None:
        """The connection is gone."""
        self.unsent = NOTHING

    def next_packet_id(self) -> int:
        """An identifier that is not in flight [MQTT-2.2.1-4]."""
        packet_id = self.next_id
        inflight = self.inflight
        while packet_id in inflight:
            packet_id = packet_id % MAX_PACKET_ID + 1
        self.next_id = packet_id % MAX_PACKET_ID + 1
        return packet_id

    def put_off(self, packet_id: int) -> None:
        """Send this again once there is quota: the receive maximum may be smaller than before [MQTT-4.9.0-2]."""
        self.unsent = filled(self.unsent)
        self.unsent.append(packet_id)

    def take_back(
        self, holder: Holder, is_wanted: Callable[[Delivery], bool], *, is_away: bool
    ) -> list[Delivery]:
        """Take back messages of a share group that are in flight here at QoS 1 and ``is_wanted``, for other members.

        While the client is connected it may still acknowledge one, so the identifier stays taken until it does.
        """
        by_packet_id = {
            packet_id: delivery
            for packet_id, delivery in self.inflight.items()
            if delivery.holder is holder and delivery.qos == 1 and is_wanted(delivery)
        }
        for packet_id in by_packet_id:
            if is_away:
                del self.inflight[packet_id]
            elif packet_id in self.unsent:
                del self.inflight[packet_id]
                self.unsent.remove(packet_id)
            else:
                self.inflight[packet_id] = RAW
        return list(by_packet_id.values())

    def give_up(self, holder: Holder) -> list[Delivery]:
        """Remove and return the messages of a share group in flight here, after the end of the session."""
        by_packet_id = {
            packet_id: delivery
            for packet_id, delivery in self.inflight.items()
            if delivery.holder is holder
        }
        for packet_id in by_packet_id:
            del self.inflight[packet_id]
        return list(by_packet_id.values())
