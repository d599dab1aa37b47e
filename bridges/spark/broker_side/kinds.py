"""Tables of the lakehouse."""

from __future__ import annotations

from broker.core.kinds import Kind

KINDS = (
    Kind(
        name="lake table",
        path="lake/tables",
        section="lake.tables",
        models=("bridges.spark.broker_side.table_spec:LakeTableSpec",),
        read_only="bridges.spark.broker_side.views:TableReadOnly",
        about="A Delta or Iceberg table that follows a stream.",
        tag="Lake",
        columns={"name": "name", "stream": "stream", "format": "format", "path": "path", "state": "state"},
        word="table",
        command="lake tables",
    ),
)
