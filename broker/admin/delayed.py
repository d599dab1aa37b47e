"""The verbs of delayed messages: list, show, delete."""

from __future__ import annotations

from typing import Final, NotRequired

from typing_extensions import TypedDict

from broker.core.clock import Clock
from broker.core.json_values import WireMessage, message_to_wire
from broker.core.objects import Spec
from broker.core.times import rfc3339
from broker.routing.delayed import Delayed, DelayedMessage

MAX_LISTED: Final = 1000


class DelayedRow(TypedDict):
    """A message that is published when it is due."""

    id: str
    topic: str
    clientid: str
    username: str | None
    qos: int
    retain: bool
    payload_bytes: int
    published_at: str
    due_at: str
    due_in_s: float
    cell: NotRequired[int]


class DelayedView(DelayedRow):
    """A delayed message with its payload and properties."""

    message: WireMessage


class DelayedService:
    """Lists, shows and deletes delayed messages. Used on the event loop."""

    def __init__(self, delayed: Delayed, clock: Clock) -> None:
        self._delayed = delayed
        self._clock = clock

    def page(self, limit: int, cursor: tuple[str] | None) -> Spec:
        """A page of them in the order in which they are due, without payloads; a cursor is an identifier."""
        messages = self._delayed.page(cursor and cursor[0], min(limit, MAX_LISTED))
        following = (messages[-1].id,) if len(messages) == limit else None
        return {
            "items": list(map(self._shown, messages)),
            "next": following,
            "total": len(self._delayed),
            "places": [(message.id,) for message in messages],
        }

    def get(self, id: str) -> DelayedView:
        """One of them with its payload; raises ``NotFound``."""
        kept = self._delayed.get(id)
        return {**self._shown(kept), "message": message_to_wire(kept.message)}

    def delete(self, id: str) -> None:
        """Forget one; raises ``NotFound``."""
        self._delayed.delete(id)

    def _shown(self, kept: DelayedMessage) -> DelayedRow:
        message = kept.message
        return {
            "id": kept.id,
            "topic": message.topic,
            "clientid": message.client.client_id,
            "username": message.client.username,
            "qos": message.qos,
            "retain": message.retain,
            "payload_bytes": len(message.payload),
            "published_at": rfc3339(message.received_ns),
            "due_at": rfc3339(kept.due_ns),
            "due_in_s": round(max(kept.due_ns - self._clock.now_ns(), 0) / 1e9, 3),
        }
