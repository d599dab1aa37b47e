"""The schema of a rule's rows, for Arrow and for Spark.

What no type is known of, and maps of which no member is known, are JSON text. Every column may be null: a row
need not have it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from broker.core.schema import UNKNOWN, FieldType

_ARROW: Final = {
    "boolean": pa.bool_(), "long": pa.int64(), "double": pa.float64(), "string": pa.string(), "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}  # fmt: skip
_SPARK: Final = {
    "boolean": "BOOLEAN", "long": "BIGINT", "double": "DOUBLE", "string": "STRING", "binary": "BINARY",
    "timestamp": "TIMESTAMP",
}  # fmt: skip
_JSON_TEXT: Final = "STRING"

Columns = Iterable[tuple[str, FieldType]]


def arrow_type(kind: FieldType) -> pa.DataType:
    """The Arrow type of the values of a type."""
    if kind.name == "array":
        return pa.list_(arrow_type(kind.item or UNKNOWN))
    if kind.name == "map" and kind.item is not None:
        return pa.map_(pa.string(), arrow_type(kind.item))
    if kind.name == "struct" and kind.fields:
        return pa.struct([pa.field(name, arrow_type(inner)) for name, inner in kind.fields.items()])
    return _ARROW.get(kind.name, pa.string())


def arrow_schema(columns: Columns) -> pa.Schema:
    """The Arrow schema of rows with these columns."""
    return pa.schema([pa.field(name, arrow_type(kind)) for name, kind in columns])


def spark_type(kind: FieldType) -> str:
    """The type as Spark's DDL writes it; ``from_json`` takes it for columns that a table keeps as JSON text."""
    if kind.name == "array":
        return f"ARRAY<{spark_type(kind.item or UNKNOWN)}>"
    if kind.name == "map" and kind.item is not None:
        return f"MAP<STRING, {spark_type(kind.item)}>"
    if kind.name == "struct" and kind.fields:
        return f"STRUCT<{', '.join(f'{_quoted(name)}: {spark_type(inner)}' for name, inner in kind.fields.items())}>"
    return _SPARK.get(kind.name, _JSON_TEXT)


def spark_schema(columns: Columns) -> str:
    """The columns as Spark's DDL: ``t DOUBLE, clientid STRING``."""
    return ", ".join(f"{_quoted(name)} {spark_type(kind)}" for name, kind in columns)


def _quoted(name: str) -> str:
    return name if name.isidentifier() and name.isascii() else f"`{name.replace('`', '``')}`"
