"""How much there is of what a hub holds, read when somebody asks for the metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.observe.metrics import Metrics

if TYPE_CHECKING:
    from broker.connection.hub import Hub


def show_sizes(hub: Hub, metrics: Metrics) -> None:
    """Add the gauges of a hub."""
    gauge = metrics.gauge
    gauge("connections", lambda: len(hub.connections), "clients connected")
    gauge("sessions", lambda: len(hub.sessions), "sessions, connected or away")
    gauge("subscriptions", lambda: hub.router.subscription_count, "subscriptions of all sessions")
    gauge("retained_messages", lambda: hub.retained.count, "topics with a retained message")
    gauge("retained_bytes", lambda: hub.retained.size_bytes, "bytes of retained messages with topics")
    gauge("retained_replays", lambda: len(hub.replays), "subscriptions that retained messages are sent to")
