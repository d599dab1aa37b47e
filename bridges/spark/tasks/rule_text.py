"""A rule as it travels: from the API to the lake job, and from there to tasks. Imports nothing of the broker."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RuleText:
    """``node`` is the broker's name, for the column of that name."""

    name: str
    sql: str
    node: str = ""
