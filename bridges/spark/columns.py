"""The columns of a lake table: provenance, then what the stream carries. Used on the driver and in tasks."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

ARROW_TYPES = {
    "boolean": pa.bool_(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "json": pa.string(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
"""Column types and how they lie in files. ``json`` is a value of any shape as JSON text."""
_NESTED = frozenset({"array", "map", "struct"})
_UNFIT = re.compile(r"[ ,;{}()\n\t=\"`]")


@dataclass(frozen=True, slots=True)
class Column:
    """A table's column: ``key`` is the row's member it is filled from, ``name`` what readers call it."""

    key: str
    name: str
    type: str

    @property
    def arrow(self) -> pa.Field:
        return pa.field(self.name, ARROW_TYPES[self.type])


def _fixed(names_and_types: Mapping[str, str]) -> tuple[Column, ...]:
    return tuple(Column(name, name, kind) for name, kind in names_and_types.items())


PROVENANCE = _fixed(
    {
        "_stream": "string",
        "_shard": "integer",
        "_offset": "long",
        "_published_at": "timestamp",
        "_topic": "string",
        "_client_id": "string",
        "_rule": "string",
    }
)
"""Where a row comes from; first in every table."""
RAW = _fixed({"payload": "binary", "qos": "integer", "retain": "boolean", "username": "string", "properties": "string"})
"""What a table of a *topics* stream holds: the message as it was published."""
DEAD_LETTER = _fixed({"payload": "binary", "_error": "string", "_error_stage": "string"})
"""What a dead-letter table holds besides provenance."""


def arrow_schema(columns: Iterable[Column]) -> pa.Schema:
    """The Arrow schema of a file with these columns."""
    return pa.schema([column.arrow for column in columns])


def columns_of_api(entries: Iterable[Mapping[str, Any]]) -> tuple[list[Column], list[str]]:
    """The columns that a rule's inferred output gives, and the keys whose type only data can tell."""
    columns: list[Column] = []
    pending: list[str] = []
    for entry in entries:
        kind = "json" if entry["type"] in _NESTED else entry["type"]
        if kind in ARROW_TYPES:
            columns.append(Column(entry["name"], column_name(entry["name"], taken(columns)), kind))
        else:
            pending.append(entry["name"])
    return columns, pending


def taken(columns: Iterable[Column]) -> set[str]:
    """Names that a further column cannot have, in lower case, as readers do not tell cases apart."""
    return {column.name.lower() for column in (*PROVENANCE, *columns)}


def column_name(key: str, taken_names: Collection[str]) -> str:
    """The column name for a row's key: characters that table formats refuse become ``_``, clashes get a suffix."""
    name = _UNFIT.sub("_", key) or "_"
    if name.lower() in taken_names:
        name = f"{name}_{hashlib.sha256(key.encode()).hexdigest()[:6]}"
    return name
