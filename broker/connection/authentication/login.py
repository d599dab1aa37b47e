"""How a connection logs in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker.auth.attempt import ConnectAttempt
from broker.auth.decision import Decision
from broker.auth.exchange import Exchange

Told = dict[str, Any]
Done = Callable[[Decision, Told], None]
"""Called with what was decided, and the properties of AUTH that belong into the CONNACK."""


class Login:
    """Kept as long as the connection lives, for authenticating again.

    ``exchange`` is there while one is under way, and ends by ``deadline_s`` when that follows a CONNACK.
    """

    __slots__ = ("attempt", "deadline_s", "done", "exchange", "method")

    def __init__(self, method: str, attempt: ConnectAttempt, done: Done) -> None:
        self.method, self.attempt, self.done = method, attempt, done
        self.exchange: Exchange | None = None
        self.deadline_s = 0.0
