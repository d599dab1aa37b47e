"""Counters of the server, resolved once: the hot path only adds to ``value``."""

from __future__ import annotations

from functools import partial
from typing import Final

from broker.core import reason
from broker.core.errors import PeerError
from broker.observe.metrics import Counter, Metrics
from broker.pipeline.pipeline import DROPPED_HELP

_VERSIONS: Final = {3: "3.1", 4: "3.1.1", 5: "5.0"}
# Names of packet types, by the upper half of their first byte.
PACKET_TYPES: Final = {
    1: "connect", 2: "connack", 3: "publish", 4: "puback", 5: "pubrec", 6: "pubrel", 7: "pubcomp", 8: "subscribe",
    9: "suback", 10: "unsubscribe", 11: "unsuback", 12: "pingreq", 13: "pingresp", 14: "disconnect", 15: "auth",
}  # fmt: skip
CONNECT: Final = 1
PUBLISH: Final = 3
PUBACK: Final = 4
_ONLY_RECEIVED: Final = frozenset((1, 8, 10, 12))
_ONLY_SENT: Final = frozenset((2, 9, 11, 13))


class Figures:
    """Counters of the MQTT server.

    The ledger holds at every moment between two packets: messages received (by clients or made inside) = passed +
    refused by reason + resent and already taken.
    """

    def __init__(self, metrics: Metrics) -> None:
        counter = metrics.counter
        self.bytes_received = counter("bytes_received", "bytes read from clients")
        self.bytes_sent = counter("bytes_sent", "bytes written to clients")
        self.packets_received = counter("packets_received", "packets read from clients")
        self.received = _by_qos(
            metrics, "messages_received", "messages published by clients, by QoS"
        )
        self.sent = _by_qos(
            metrics, "messages_sent", "messages sent to subscribers, by the QoS of the delivery"
        )
        self.published_bytes_received = counter(
            "publish_bytes_received", "bytes of PUBLISH packets read from clients"
        )
        self.received_by_type = _by_type(
            metrics, "packets_received_by_type", "packets read, by type", _ONLY_SENT
        )
        self.sent_by_type = _by_type(
            metrics, "packets_sent_by_type", "packets written, by type", _ONLY_RECEIVED
        )
        metrics.total(
            "packets_received_by_type",
            lambda: _sum(self.received),
            "packets read, by type",
            type="publish",
        )
        metrics.total(
            "packets_sent_by_type",
            lambda: _sum(self.sent),
            "packets written, by type",
            type="publish",
        )
        metrics.total(
            "publish_bytes_sent",
            lambda: self.published_bytes_sent,
            "bytes of PUBLISH packets written",
        )
        self._other_bytes_sent = 0
        self.already_taken = counter(
            "messages_resent_already_taken",
            "publishes with DUP that had been taken before, acknowledged again",
        )
        self.inbounds_forgotten = counter(
            "inbounds_forgotten",
            "clients that are gone whose resends are taken as new, because of max_inbound_bytes_total",
        )
        self.unknown_acknowledgements = counter(
            "acknowledgements_unknown",
            "PUBACK, PUBREC and PUBCOMP of clients with identifiers that are not in flight; ignored",
        )
        self.not_stored = counter("messages_dropped", DROPPED_HELP, reason="not_stored")
        self.passed = counter("messages_passed", "messages that passed all gates")
        self.connected_by_version = dict.fromkeys(_VERSIONS, 0)
        for version, name in _VERSIONS.items():
            read = partial(self.connected_by_version.__getitem__, version)
            metrics.gauge(
                "connections_by_version",
                read,
                "clients connected, by version of MQTT",
                version=name,
            )
        self.connected = counter(
            "connections_accepted", "connections that got a CONNACK with success"
        )
        self.closed = counter("connections_closed", "connections that ended")
        self.sessions_expired = counter(
            "sessions_expired",
            "sessions that ended since their clients stayed away for as long as they asked to be kept",
        )
        self.reauthentication_failed = counter(
            "reauthentication_failed",
            "clients cut off since authenticating again failed, or was not gone on with",
        )
        self.subscriptions_revoked = counter(
            "subscriptions_revoked",
            "subscriptions taken from clients since rules no longer allow them",
        )
        self.subscriptions_filtered = counter(
            "subscriptions_filtered",
            "subscriptions granted though rules deny some of their topics: those are withheld",
        )
        help = "messages of share groups taken back for another member"
        self.shared_redelivered = counter("shared_redelivered", help)
        self._metrics = metrics
        self._delivery_dropped: dict[str, Counter] = {}

    @property
    def published_bytes_sent(self) -> int:
        """Bytes of PUBLISH packets written: what was written of no other type."""
        return max(self.bytes_sent.value - self._other_bytes_sent, 0)

    def note_sent(self, packet: bytes) -> None:
        """Count a packet that is written, or one of that size and type. PUBLISH is counted where it is made."""
        self.sent_by_type[packet[0] >> 4].value += 1
        self._other_bytes_sent += len(packet)

    def note_before_connack(self, kind: int) -> None:
        """Count a packet that came before there was a CONNACK."""
        self.packets_received.value += 1
        self.received_by_type[kind].value += 1

    def note_pubacks(self, received: int, sent: int) -> None:
        """Count PUBACK packets that went the short way."""
        self.received_by_type[PUBACK].value += received
        self.sent_by_type[PUBACK].value += sent
        self._other_bytes_sent += 4 * sent

    def note_longer_puback(self) -> None:
        """One of those has a reason code."""
        self._other_bytes_sent += 1

    def delivery_dropped(self, why: str) -> Counter:
        """The counter of deliveries to one subscriber that were dropped for a reason."""
        counter = self._delivery_dropped.get(why)
        if counter is None:
            help = "messages not delivered to one of their subscribers, by reason"
            counter = self._delivery_dropped[why] = self._metrics.counter(
                "deliveries_dropped", help, reason=why
            )
        return counter

    def disconnected(self, why: str) -> None:
        """Count the end of a connection that had been accepted, by reason."""
        help = "connections that ended after their CONNACK, by reason"
        self._metrics.counter("disconnections", help, reason=why).value += 1

    def refused_subscription(self, why: str) -> None:
        """Count a subscription that was refused, by reason."""
        help = "subscriptions refused, by reason"
        self._metrics.counter("subscriptions_refused", help, reason=why).value += 1

    def over_limit(self, setting: str, text: str) -> PeerError:
        """Count what is refused because of a limit, by its setting; the error to answer with (0x97)."""
        self.limit_reached(setting)
        return PeerError(reason.QUOTA_EXCEEDED, text)

    def limit_reached(self, setting: str) -> None:
        """Count what is refused because of a limit, by its setting."""
        help = "packets and subscriptions refused because of a limit, by its setting"
        self._metrics.counter("limits_reached", help, limit=setting).value += 1

    def refused_connection(self, why: str) -> None:
        """Count a connection that was refused or cut off, by reason."""
        self._metrics.counter(
            "connections_refused", "connections refused or cut off, by reason", reason=why
        ).value += 1


def _by_qos(metrics: Metrics, name: str, help: str) -> tuple[Counter, Counter, Counter]:
    qos0, qos1, qos2 = (metrics.counter(name, help, qos=str(qos)) for qos in range(3))
    return qos0, qos1, qos2


def _by_type(metrics: Metrics, name: str, help: str, without: frozenset[int]) -> dict[int, Counter]:
    kinds = PACKET_TYPES.keys() - without - {PUBLISH}
    return {kind: metrics.counter(name, help, type=PACKET_TYPES[kind]) for kind in sorted(kinds)}


def _sum(counters: tuple[Counter, Counter, Counter]) -> int:
    return sum(counter.value for counter in counters)
