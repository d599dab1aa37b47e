"""History of a table by its own log: files, versions and their operations, and schemas."""

from __future__ import annotations

from typing import Any

from bridges.spark.tables.contract import (
    EXPIRED,
    RETYPED,
    SMALL_FILE_BYTES,
    LakeTable,
    SchemaVersion,
    Version,
)
from broker.core.times import MILLISECONDS, rfc3339_or_none

_SCHEMAS = 20
# Words for users, by the name of an operation in Delta or Iceberg.
WORDS = {
    "CREATE TABLE": "created",
    "ADD COLUMN": "columns added",
    "UPDATE FIELD METADATA": "columns changed",
    "OPTIMIZE": "files joined",
    "replace": "files joined",
    "VACUUM START": "old files removed",
    "VACUUM END": "old files removed",
}
# Words for the kind of a commit that is not a batch.
_KINDS = {RETYPED: "retype", EXPIRED: "old rows removed"}


def history_of(table: LakeTable | None, limit: int) -> dict[str, Any]:
    """Files, the last ``limit`` versions and the schemas, newest first."""
    if table is None:
        nothing: dict[str, Any] = dict.fromkeys(("rows", "files", "bytes", "small_files"), 0)
        return {"version": None, **nothing, "versions": [], "schemas": []}
    sizes = [file.size for file in table.files()]
    return {
        "version": table.version(),
        "rows": table.rows(),
        "files": len(sizes),
        "bytes": sum(sizes),
        "small_files": sum(size < SMALL_FILE_BYTES for size in sizes),
        "versions": [_version(version) for version in table.versions(limit)],
        "schemas": [_schema(schema) for schema in table.schemas(_SCHEMAS)],
    }


def _version(version: Version) -> dict[str, Any]:
    details = version.details
    ranges = () if details is None or details.kind == EXPIRED else details.ranges
    operation = WORDS.get(version.operation, version.operation.lower())
    if details is not None:
        operation = _KINDS.get(details.kind) or ("replay" if details.replay else "batch")
    return {
        "version": version.version,
        "at": rfc3339_or_none(version.at_ms, MILLISECONDS),
        "operation": operation,
        "ranges": [{"shard": part.shard, "start": part.start, "end": part.end} for part in ranges],
        "rows": sum(part.row_count for part in ranges),
        "dead_letters": sum(part.dead for part in ranges),
        "filtered": sum(part.filtered for part in ranges),
        "replay": None if details is None else details.replay,
    }


def _schema(schema: SchemaVersion) -> dict[str, Any]:
    columns = [{"name": column.name, "type": column.type} for column in schema.columns]
    return {
        "version": schema.version,
        "at": rfc3339_or_none(schema.at_ms, MILLISECONDS),
        "columns": columns,
    }
