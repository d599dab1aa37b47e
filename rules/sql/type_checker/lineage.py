"""Origins of the columns of a rule's rows: columns of the event, and places in its payload."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from typing_extensions import TypedDict

from broker.core.lazy_module import LazyModule
from broker.core.schema import FieldType

if TYPE_CHECKING:
    from rules.sql.type_checker import arrow_schema
else:
    arrow_schema = LazyModule("rules.sql.type_checker.arrow_schema")


class LineageOrigin(TypedDict):
    """A column of the event; ``path`` is a place in it, as ``tags[].k``."""

    column: str
    path: str | None
    type: str


LineageColumn = TypedDict(
    "LineageColumn",
    {"name": str, "type": str, "spark_type": str, "expression": str, "from": list[LineageOrigin]},
)
LineageColumn.__doc__ = (
    """A column of the rows: its type, the SQL that makes it, and what that reads."""
)
LineageCondition = TypedDict(
    "LineageCondition", {"clause": str, "expression": str, "from": list[LineageOrigin]}
)  # fmt: skip
LineageCondition.__doc__ = (
    """A condition that decides whether there is a row: ``WHERE`` or ``INCASE``."""
)


class RowLineage(TypedDict):
    """Origins of the columns of a rule's rows, and the conditions for a row."""

    columns: list[LineageColumn]
    conditions: list[LineageCondition]


class RuleLineage(RowLineage):
    """Origins of the columns of the rows of ``rule``, and the conditions for a row."""

    rule: str


@dataclass(frozen=True, slots=True, order=True)
class Origin:
    """A column of the event and a place in it: ``tags[].k`` is the member ``k`` of any element of ``tags``."""

    column: str
    path: str = ""

    def below(self, step: str) -> Origin:
        """The place one step (``.k``, ``[1]``, ``[]``) further in."""
        return Origin(self.column, (self.path + step).removeprefix("."))


@dataclass(frozen=True, slots=True)
class ColumnLineage:
    """An output column: the SQL that makes it, and what that reads."""

    name: str
    type: FieldType
    expression: str
    origins: frozenset[Origin]


@dataclass(frozen=True, slots=True)
class ConditionLineage:
    """A condition that decides whether there is a row; ``clause`` is WHERE or INCASE."""

    clause: str
    expression: str
    origins: frozenset[Origin]


@dataclass(frozen=True, slots=True)
class Lineage:
    """Origins of a rule's rows; ``types`` are those of all origins."""

    columns: tuple[ColumnLineage, ...]
    conditions: tuple[ConditionLineage, ...]
    types: Mapping[Origin, FieldType]

    def as_dict(self) -> RowLineage:
        """View for the API."""
        return {
            "columns": [
                {
                    "name": column.name,
                    "type": column.type.name,
                    "spark_type": arrow_schema.spark_type(column.type),
                    "expression": column.expression,
                    "from": self._shown(column.origins),
                }
                for column in self.columns
            ],
            "conditions": [
                {
                    "clause": condition.clause,
                    "expression": condition.expression,
                    "from": self._shown(condition.origins),
                }
                for condition in self.conditions
            ],
        }

    def _shown(self, origins: Iterable[Origin]) -> list[LineageOrigin]:
        return [
            {"column": origin.column, "path": origin.path or None, "type": self.types[origin].name}
            for origin in sorted(origins)
        ]
