"""Evolution of a table's columns when the schema or the rule behind them changes.

Added in place are columns and members of structs, and widened in place is what the format can: Iceberg takes more
digits of decimals; Delta through delta-rs does not, and cannot read files that lack a member inside a map. Integers and
floats need no widening, as they are ``long`` and ``double`` from the start. Everything else is *held*: the table is
filled as it is, until a user has the column converted (``bridges.spark.driver.retype``).
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from bridges.spark.columns.column import Column
from bridges.spark.columns.types import NESTED, ColumnType

# Types whose columns take the values of another type as they are.
_TAKES: Final = frozenset({("double", "long"), ("string", "enum"), ("enum", "string")})


@dataclass(frozen=True, slots=True)
class Format:
    """Changes that a table format makes in place: members of structs, also inside maps, and digits of decimals."""

    map_members: bool
    digits: bool
    members: bool = True


_ALL: Final = Format(map_members=True, digits=True)
_FORMATS: Final = {"delta": Format(map_members=False, digits=False), "iceberg": _ALL}


@dataclass(frozen=True, slots=True)
class Held:
    """A change that is not made in place: the column, its type, and the type that it would be converted to."""

    column: str
    type: str
    wanted: str

    def as_dict(self, table: str) -> dict[str, str]:
        command = shlex.join(
            ["sluice", "lake", "tables", "retype", table, self.column, self.wanted]
        )
        effect = (
            f"column {self.column!r} is {self.type} and would be {self.wanted}, which cannot be done in place; until "
            f"then it is filled as it is. Try: {command}, which converts all rows and dead letters again."
        )
        return {"name": self.column, "type": self.type, "wanted": self.wanted, "effect": effect}


def in_place(has: Sequence[Column], wanted: Sequence[Column], table_format: str) -> list[Column]:
    """The columns, new or with another type than the table has, that it can be given as it is."""
    present = {column.key: column for column in has}
    changed = []
    for column in wanted:
        before = present.get(column.key)
        if before is None:
            changed.append(column)
            continue
        kind = _evolved_column(before.parsed, column.parsed, table_format)[0]
        if kind != before.parsed:
            changed.append(replace(before, type=kind.text))
    return changed


def held(has: Sequence[Column], wanted: Sequence[Column], table_format: str) -> list[Held]:
    """The changes that are not made in place, of columns that the table has by now."""
    present = {column.key: column for column in has}
    held_columns = []
    for column in wanted:
        if (before := present.get(column.key)) is not None:
            kind, target = _evolved_column(before.parsed, column.parsed, table_format)
            if kind != target:
                held_columns.append(Held(before.name, kind.text, target.text))
    return held_columns


def both(first: ColumnType, second: ColumnType) -> ColumnType:
    """The type with the members that either has, as two tasks found them; where they differ, the first one's."""
    return _evolved(first, second, _ALL)[0]


def _evolved_column(
    has: ColumnType, wanted: ColumnType, table_format: str
) -> tuple[ColumnType, ColumnType]:
    if wanted.name == "json" and has.name not in (*NESTED, "json"):
        return has, wanted
    return _evolved(has, wanted, _FORMATS[table_format])


def _evolved(has: ColumnType, wanted: ColumnType, able: Format) -> tuple[ColumnType, ColumnType]:
    """The type after changes in place, and the type after all: the same where nothing is held.

    JSON text stands for a type that is not known, and changes nothing that the table has.
    """
    if has == wanted or (has.name, wanted.name) in _TAKES or wanted.name == "json":
        return has, has
    if has.name == wanted.name == "struct":
        return _evolved_struct(has, wanted, able)
    if has.name == wanted.name and has.item is not None and wanted.item is not None:
        inside = replace(able, members=able.map_members) if has.name == "map" else able
        kind, target = _evolved(has.item, wanted.item, inside)
        return replace(has, item=kind), replace(has, item=target)
    if has.name == wanted.name == "decimal":
        return _evolved_decimal(has, wanted, able)
    return has, wanted


def _evolved_struct(
    has: ColumnType, wanted: ColumnType, able: Format
) -> tuple[ColumnType, ColumnType]:
    kinds = dict(has.members)
    targets = dict(has.members)
    for key, kind in wanted.members:
        if key in kinds:
            kinds[key], targets[key] = _evolved(kinds[key], kind, able)
            continue
        targets[key] = kind
        if able.members:
            kinds[key] = kind
    return replace(has, members=tuple(kinds.items())), replace(has, members=tuple(targets.items()))


def _evolved_decimal(
    has: ColumnType, wanted: ColumnType, able: Format
) -> tuple[ColumnType, ColumnType]:
    scale = max(has.scale, wanted.scale)
    precision = scale + max(has.precision - has.scale, wanted.precision - wanted.scale)
    target = replace(has, precision=min(precision, 38), scale=scale)
    return (target if able.digits and scale == has.scale else has), target
