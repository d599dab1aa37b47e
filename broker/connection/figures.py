"""What the server counts, resolved once: the hot path adds to ``value`` and asks nobody."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from broker.observe.metrics import Counter, Metrics

_VERSIONS: Final = {3: "3.1", 4: "3.1.1", 5: "5.0"}


class Figures:
    """Counters of the MQTT server.

    The ledger holds at every moment between two packets: messages received (by clients or made inside) = passed +
    refused by reason + resent and already taken.
    """

    def __init__(self, metrics: Metrics, dropped: Callable[[str], Counter]) -> None:
        counter = metrics.counter
        self.bytes_received = counter("bytes_received", "bytes read from clients")
        self.bytes_sent = counter("bytes_sent", "bytes written to clients")
        self.packets_received = counter("packets_received", "packets read from clients")
        self.received = _by_qos(metrics, "messages_received", "messages published by clients, by QoS")
        self.sent = _by_qos(metrics, "messages_sent", "messages sent to subscribers, by the QoS of the delivery")
        self.already_taken = counter(
            "messages_resent_already_taken", "publishes with DUP that had been taken before, acknowledged again"
        )
        self.unknown_acknowledgements = counter(
            "acknowledgements_unknown", "PUBACK, PUBREC and PUBCOMP of clients for nothing that was in flight; ignored"
        )
        self.passed = counter("messages_passed", "messages that passed all gates")
        self.connected_by_version = dict.fromkeys(_VERSIONS, 0)
        for version, name in _VERSIONS.items():
            read = partial(self.connected_by_version.__getitem__, version)
            metrics.gauge("connections_by_version", read, "clients connected, by version of MQTT", version=name)
        self.connected = counter("connections_accepted", "connections that got a CONNACK with success")
        self.closed = counter("connections_closed", "connections that ended")
        self.reauthentication_failed = counter(
            "reauthentication_failed", "clients cut off since authenticating again failed, or was not gone on with"
        )
        self.subscriptions_revoked = counter(
            "subscriptions_revoked", "subscriptions taken from clients since rules no longer allow them"
        )
        self.dropped = dropped
        self._metrics = metrics
        self._delivery_dropped: dict[str, Counter] = {}

    def delivery_dropped(self, why: str) -> Counter:
        """The counter of deliveries to one subscriber that were dropped for a reason."""
        found = self._delivery_dropped.get(why)
        if found is None:
            help = "messages not delivered to one of their subscribers, by reason"
            found = self._delivery_dropped[why] = self._metrics.counter("deliveries_dropped", help, reason=why)
        return found

    def disconnected(self, why: str) -> None:
        """Count the end of a connection that had been accepted, by reason."""
        help = "connections that ended after their CONNACK, by reason"
        self._metrics.counter("disconnections", help, reason=why).value += 1

    def refused_subscription(self, why: str) -> None:
        """Count a subscription that was refused, by reason."""
        help = "subscriptions refused, by reason"
        self._metrics.counter("subscriptions_refused", help, reason=why).value += 1

    def refused_connection(self, why: str) -> None:
        """Count a connection that was refused or cut off, by reason."""
        self._metrics.counter("connections_refused", "connections refused or cut off, by reason", reason=why).value += 1


def _by_qos(metrics: Metrics, name: str, help: str) -> tuple[Counter, Counter, Counter]:
    zero, one, two = (metrics.counter(name, help, qos=str(qos)) for qos in range(3))
    return zero, one, two
