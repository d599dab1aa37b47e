"""Nodes that passed a message on between brokers: bridges mark it with their origins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from broker.core.values import Values

# The user property of a mark. In CONNECT a bridge says by it who it is, and a Sluice answers so in CONNACK.
MARK: Final = "sluice-bridge"
_KEY: Final = "node/origin"


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of a node: its name, the version of the product, and an origin that no other node has."""

    name: str
    version: str
    origin: str


# A node that no bridge reads from.
UNNAMED: Final = Identity("sluice", "unknown", "")


def origin_of(node: str, values: Values) -> str:
    """The node's name with something that no other node has, the same after a restart."""
    kept = values.get(_KEY)
    if kept is None:
        kept = uuid4().hex[:12].encode()
        values.put(_KEY, kept)
    return f"{node}/{kept.decode()}"
