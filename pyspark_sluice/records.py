"""The one layout of stream records: as the broker sends them, and as Spark sees them."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

# A record batch as the broker's range server sends it.
WIRE_SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("ts", pa.timestamp("us", tz="UTC")),
        ("topic", pa.string()),
        ("payload", pa.binary()),
        ("qos", pa.int8()),
        ("retain", pa.bool_()),
        ("client_id", pa.string()),
        ("username", pa.string()),
        ("properties", pa.string()),
        ("rule", pa.string()),
    ]
)

_SPARK_TYPES = {
    "shard": "INT",
    "offset": "BIGINT",
    "ts": "TIMESTAMP",
    "topic": "STRING",
    "payload": "BINARY",
    "qos": "TINYINT",
    "retain": "BOOLEAN",
    "client_id": "STRING",
    "username": "STRING",
    "properties": "STRING",
    "rule": "STRING",
}
# The source's columns in order: the shard, then those of a record.
COLUMNS = tuple(_SPARK_TYPES)


def spark_schema(columns: Sequence[str]) -> str:
    """The schema of these columns in Spark's DDL."""
    return ", ".join(f"{name} {_SPARK_TYPES[name]}" for name in columns)


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """The Arrow schema of these columns, exactly as Spark derives it; any other one is refused by Spark."""
    return pa.schema(
        [
            pa.field("shard", pa.int32()) if name == "shard" else WIRE_SCHEMA.field(name)
            for name in columns
        ]
    )


def project(batch: pa.RecordBatch, shard: int, schema: pa.Schema) -> pa.RecordBatch:
    """A batch from the wire with the columns of ``schema``, cast where the sender chose another Arrow type."""
    arrays = []
    for field in schema:
        if field.name == "shard":
            arrays.append(pa.repeat(pa.scalar(shard, pa.int32()), batch.num_rows))
            continue
        column = batch.column(batch.schema.get_field_index(field.name))
        arrays.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
