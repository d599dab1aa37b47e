"""A sum that several owners keep together."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Tally:
    """Bytes of one kind of thing that clients have the broker keep."""

    bytes: int = 0
