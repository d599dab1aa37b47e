"""How much may wait for one session, and what happens when it is more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

WhenFull = Literal["drop_oldest", "drop_newest", "disconnect"]


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """The same for all sessions of a node.

    ``when_full`` is for QoS 1 and 2 messages that wait in memory for a session that ends with its connection.
    ``late_messages`` bounds QoS 0 messages that wait for a connection. ``stored_messages`` and ``stored_bytes`` bound
    what one session may leave waiting in the session log; the oldest are passed over. ``keeps_qos0`` has QoS 0
    messages wait in memory for sessions that are away.
    """

    when_full: WhenFull = "drop_oldest"
    late_messages: int = 1000
    stored_messages: int = 1_000_000
    stored_bytes: int = 1 << 30
    keeps_qos0: bool = False
