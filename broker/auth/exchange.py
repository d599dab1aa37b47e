"""Authentication in several steps (MQTT 5.0, 4.12): what a method is to the connection that carries its data.

An exchange is made when a client names the method in CONNECT, or asks to be authenticated again, and is kept with the
connection until it has finished. It knows no clock; the connection bounds its life.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from broker.auth.attempt import ConnectAttempt
from broker.auth.decision import Decision


@dataclass(frozen=True, slots=True)
class Continue:
    """The client is to answer ``data``."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Finished:
    """End of an exchange. ``data`` goes with the success; ``user`` is the name that was claimed in it."""

    decision: Decision
    data: bytes = b""
    user: str = field(default="", compare=False)


class Exchange(Protocol):
    """One authentication under way."""

    def step(self, data: bytes | None) -> Continue | Finished | Coroutine[Any, Any, Decision]:
        """Take what the client sent, None when it sent no authentication data; never raises. What has to be waited
        for is awaited, and is the end."""
        ...


@runtime_checkable
class ExchangeAuthenticator(Protocol):
    """An authenticator that knows methods of several steps."""

    methods: Sequence[str]

    def begin(self, method: str, attempt: ConnectAttempt) -> Exchange:
        """Start an exchange by one of its methods."""
        ...
