"""The columns of a lake table: provenance, then what the stream carries. Used on the driver and in tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from bridges.spark.columns.types import (
    JSON,
    MOST_COLUMNS,
    NESTED,
    ColumnType,
    NotAType,
    column_name,
    folded,
    parse_type,
)


@dataclass(frozen=True, slots=True)
class Column:
    """A table's column: ``key`` is the row's member it is filled from, ``name`` what readers call it, ``type`` its type
    as text. ``ids`` are Iceberg's identifiers of it and of its members, if the table has any."""

    key: str
    name: str
    type: str
    ids: tuple[int, ...] = field(default=(), compare=False, repr=False)

    @property
    def has_ids(self) -> bool:
        """True if the identifiers are those of the type: members may have been added since."""
        return len(self.ids) == self.parsed.ids

    @property
    def parsed(self) -> ColumnType:
        return parse_type(self.type)


def _fixed(names_and_types: Mapping[str, str]) -> tuple[Column, ...]:
    return tuple(Column(name, name, kind) for name, kind in names_and_types.items())


_PROVENANCE = {
    "_stream": "string",
    "_shard": "integer",
    "_offset": "long",
    "_published_at": "timestamp",
    "_topic": "string",
    "_client_id": "string",
    "_rule": "string",
}
# Provenance of a row; first in every table.
PROVENANCE = tuple(
    Column(name, name, kind, (at,)) for at, (name, kind) in enumerate(_PROVENANCE.items(), 1)
)
# Columns of a table of a *topics* stream: the message as it was published.
RAW = _fixed(
    {
        "payload": "binary",
        "qos": "integer",
        "retain": "boolean",
        "username": "string",
        "properties": "string",
    }
)
# The number of a row among those of its record, from 0, in a table with a rule. Null in rows from before it was there.
# Its key is not that of a member called ``_item``.
ITEM = Column("sluice.item", "_item", "integer")
# Columns of a dead-letter table after provenance.
DEAD_LETTER = _fixed({"payload": "binary", "_error": "string", "_error_stage": "string"})


def arrow_schema(columns: Iterable[Column]) -> pa.Schema:
    """The Arrow schema of a file with these columns, with identifiers where all of them have any: readers of Iceberg
    take a column without for missing, if another one has."""
    columns = tuple(columns)
    if all(column.has_ids for column in columns):
        return pa.schema([column.parsed.field(column.name, iter(column.ids)) for column in columns])
    return pa.schema([pa.field(column.name, column.parsed.arrow) for column in columns])


def columns_of_api(entries: Iterable[Mapping[str, Any]]) -> tuple[list[Column], list[str]]:
    """The columns that a rule's inferred output gives, and the keys whose type only data can tell.

    A column that has more members than a table takes in addition is JSON text.
    """
    columns: list[Column] = []
    pending: list[str] = []
    width = 0
    for entry in entries:
        if entry["name"] == ITEM.key:
            continue
        kind = _type_of_api(entry["type"])
        if kind is None:
            pending.append(entry["name"])
            continue
        if kind.width > 1 and width + kind.width > MOST_COLUMNS:
            kind = JSON
        width += kind.width
        columns.append(Column(entry["name"], column_name(entry["name"], taken(columns)), kind.text))
    return columns, pending


def _type_of_api(text: str) -> ColumnType | None:
    """JSON text for an array or a map with contents of unknown type; None if the type is unknown."""
    if text in NESTED:
        return JSON
    try:
        return parse_type(text)
    except NotAType:
        return None


# Names of columns that readers of Iceberg and Delta make themselves; they refuse tables that have them.
_RESERVED = frozenset(
    {
        "_file",
        "_pos",
        "_partition",
        "_spec_id",
        "_deleted",
        "_row_id",
        "_last_updated_sequence_number",
    }
    | {
        "_change_type",
        "_commit_version",
        "_commit_timestamp",
        "_change_ordinal",
        "_commit_snapshot_id",
    }
)


def taken(columns: Iterable[Column], partitions: Iterable[str] = ()) -> set[str]:
    """Names that a further column cannot have, ``folded``. ``partitions`` are names that only partitions have."""
    names = (*(column.name for column in (*PROVENANCE, ITEM, *columns)), *partitions)
    return {*_RESERVED, *(folded(name) for name in names)}
