"""What the node takes of clients at this moment: connections up to a number, and less while it is overloaded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Admission:
    """Counted and set from outside: by the listeners, and by what watches the node's health."""

    most: float
    """The most connections; the server lowers it to what the system has file descriptors for."""
    admitted: int = 0
    """Connections within the limits of their listeners; others are there for an answer only."""
    refused_with: int = 0
    """The reason code that new connections are refused with while the node is overloaded, else 0."""
    server_reference: str | None = None
    """Where clients go that are refused with 0x9C, use another server."""
    drops_qos0: bool = False
    """Whether QoS 0 messages of clients are dropped as they come, since the node is overloaded."""
