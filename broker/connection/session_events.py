"""What happens to deliveries and subscriptions, told as events where somebody wants to know."""

from __future__ import annotations

from broker.codec import packets
from broker.core.events import Events, property_columns
from broker.core.message import Message, Properties
from broker.pipeline.columns import delivery_columns, session_columns
from broker.session.state import SessionState


class SessionEvents:
    """Callers have asked whether somebody wants the event."""

    def __init__(self, events: Events) -> None:
        self._events = events

    def delivery(
        self, name: str, session: SessionState, message: Message, why: str, properties: Properties | None = None
    ) -> None:
        """``message.delivered``, ``message.acked`` and ``delivery.dropped``; ``why`` is the reason of the last."""
        columns = delivery_columns(message, session.client)
        if name == "message.acked":
            columns["puback_props"] = property_columns(properties)
        if why:
            columns["reason"] = why
        self._events.emit(name, columns, message)

    def subscription(
        self, name: str, session: SessionState, topic: str, qos: int, properties: packets.Properties
    ) -> None:
        """``session.subscribed`` and ``session.unsubscribed``."""
        member = "sub_props" if name == "session.subscribed" else "unsub_props"
        columns = {"topic": topic, "qos": qos, member: property_columns(properties)}
        self._events.emit(name, {**session_columns(session.client), **columns})
