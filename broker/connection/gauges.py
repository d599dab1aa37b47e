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
    gauge("subscription_bytes", lambda: hub.subscribed.bytes, "memory of the subscriptions of all sessions")
    gauge("will_bytes", lambda: hub.wills.size_bytes, "memory of the wills of all sessions")
    gauge("topic_alias_bytes", lambda: hub.aliased.bytes, "topics behind the aliases that clients set")
    gauge("user_property_bytes", lambda: hub.greeted.bytes, "memory of the user properties of connected clients")
    help = "memory of the records of what connected clients may send again"
    gauge("inbound_connected_bytes", lambda: hub.inbounds.connected.bytes, help)
    gauge("inbound_bytes", lambda: hub.inbounds.gone_bytes, "memory of what clients that are gone may send again")
    gauge("cached_plan_bytes", lambda: hub.plans.size_bytes, "memory of the plans that are kept by topic")
    gauge("retained_messages", lambda: hub.retained.count, "topics with a retained message")
    gauge("retained_bytes", lambda: hub.retained.size_bytes, "bytes of retained messages with topics")
    gauge("retained_replays", lambda: len(hub.replays), "subscriptions that retained messages are sent to")
