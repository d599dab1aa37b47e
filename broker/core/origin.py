"""Nodes that passed a message on between brokers: bridges mark it with their origins."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

from broker.core.values import Values

# The user property of a mark. In CONNECT a bridge says by it who it is, and a Sluice answers so in CONNACK.
MARK: Final = "sluice-bridge"
_KEY: Final = "node/origin"


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of a node: its name, the version of the product, and an origin that no other node has but the cells of
    the same broker."""

    name: str
    version: str
    origin: str


# A node that no bridge reads from.
UNNAMED: Final = Identity("sluice", "unknown", "")


def origin_of(name: str, values: Values, of_cells: Path | None = None) -> str:
    """The name of the broker with something that no other one has, the same after a restart. ``of_cells`` is the file
    with that for all its cells: one has to know what another one has sent to a third broker. A broker that was one of a
    single process has what this had, copied into each store."""
    kept = values.get(_KEY)
    if kept is None and of_cells is not None:
        kept = of_cells.read_bytes()
    elif kept is None:
        kept = uuid4().hex[:12].encode()
        values.put(_KEY, kept)
    return f"{name}/{kept.decode()}"
