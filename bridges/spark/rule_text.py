"""A rule as it travels: from the API to the lake job, and from there to tasks. Imports nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class RuleText:
    """``node`` is the broker's name, for the column of that name."""

    name: str
    sql: str
    node: str = ""

    @classmethod
    def of_api(cls, spec: Mapping[str, Any]) -> RuleText | None:
        """The rule of a table as the API tells it; None when the table has none."""
        rule = spec.get("rule_text")
        return cls(rule["name"], rule["sql"], rule["node"]) if rule else None
