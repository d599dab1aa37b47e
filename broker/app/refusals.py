"""The last messages that gates stopped, with the reason, for display."""

from __future__ import annotations

from collections import deque
from typing import Any

from broker.core.message import Message
from broker.core.stage import Refusal
from broker.core.times import rfc3339

_KEPT = 50


class Refusals:
    """The last of them; older ones are counted by reason and no more."""

    def __init__(self) -> None:
        self._kept: deque[tuple[Message, Refusal]] = deque(maxlen=_KEPT)

    def note(self, message: Message, refusal: Refusal) -> None:
        """Remember one."""
        self._kept.append((message, refusal))

    def newest_first(self) -> list[dict[str, Any]]:
        """Messages in the API's form."""
        return [
            {
                "at": rfc3339(message.received_ns),
                "topic": message.topic,
                "client_id": message.client.client_id,
                "stage": refusal.stage,
                "name": refusal.name,
                "reason": refusal.reason,
                "text": refusal.text,
            }
            for message, refusal in reversed(self._kept)
        ]
