"""What the columns of a rule's rows are made of: columns of the event, and places in its payload."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from broker.core.lazy_module import LazyModule
from broker.core.schema import FieldType

if TYPE_CHECKING:
    from rules.sql.type_checker import arrow_schema
else:
    arrow_schema = LazyModule("rules.sql.type_checker.arrow_schema")


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
    """Where a rule's rows come from; ``types`` are those of all origins."""

    columns: tuple[ColumnLineage, ...]
    conditions: tuple[ConditionLineage, ...]
    types: Mapping[Origin, FieldType]

    def as_dict(self) -> dict[str, Any]:
        """As the API shows it."""
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
                {"clause": one.clause, "expression": one.expression, "from": self._shown(one.origins)}
                for one in self.conditions
            ],
        }

    def _shown(self, origins: Iterable[Origin]) -> list[dict[str, Any]]:
        return [
            {"column": origin.column, "path": origin.path or None, "type": self.types[origin].name}
            for origin in sorted(origins)
        ]
