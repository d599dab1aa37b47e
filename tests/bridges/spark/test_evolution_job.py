"""A change of a table's columns while the lake job fills it, in Spark."""

from __future__ import annotations

import json
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bridges.spark.driver.api import LakeApi
from bridges.spark.driver.audit import audit_table
from bridges.spark.driver.query import QuerySettings, TableQuery
from broker.core.column_text import column_text
from schema_validation.serdes.avro import AvroSerde
from tests.bridges.spark.stream_server import TOKEN, StreamServer
from tests.support.node import eventually

pytestmark = pytest.mark.spark


def avro_decimal(precision: int, scale: int) -> AvroSerde:
    kind = {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
    return AvroSerde(json.dumps(kind))


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_a_running_job_takes_a_change_up_and_spark_reads_the_files(
    spark: Any, server: StreamServer, tmp_path: Path, table_format: str
) -> None:
    server.make("readings")
    path = str(tmp_path / "readings")
    pace = {"commit_interval": 0.2, "commit_rows": 100_000}
    table = {"name": "readings", "stream": "readings", "format": table_format, "path": path, **pace}
    price, total = avro_decimal(8, 2), avro_decimal(38, 9)
    paid = {
        "price": price.decode(price.encode("12.34")),
        "total": total.decode(total.encode("-0.000000001")),
    }
    versions: list[list[dict[str, str]]] = [
        [{"name": "pos", "type": "struct<lat: double>"}, {"name": "n", "type": "long"}],
        [
            {"name": "pos", "type": "struct<lat: double, at: timestamp>"},
            {"name": "n", "type": "string"},
            {"name": "price", "type": column_text(price.field_type())},
            {"name": "total", "type": column_text(total.field_type())},
        ],
    ]
    batches: list[list[bytes | dict[str, Any]]] = [
        [{"pos": {"lat": n}, "n": n} for n in range(1000)],
        [
            *(
                {"pos": {"lat": n, "at": "2026-01-02T03:04:05Z"}, "n": n, **paid}
                for n in range(1000)
            ),
            {"n": "x"},
        ],
    ]
    settings = QuerySettings(max_rows=700, job="test")
    ends = 0
    for columns, batch in zip(versions, batches, strict=True):
        server.tables["readings"] = {**table, "columns": columns}
        server.append("readings", batch)
        ends += len(batch)
        query = TableQuery(
            spark, LakeApi(server.url, TOKEN), server.tables["readings"], settings, time.monotonic
        )

        def reached(query: TableQuery = query, end: str = str(ends)) -> bool:
            query.step()
            return bool(query.report()["offsets"].get("0") == end)

        eventually(reached, 180.0, what="the query did not get there")
        report = query.report()
        query.stop()
    assert (report["rows"], report["dead_letters"]) == (2000, 1)
    assert [(one["name"], one["type"], one["wanted"]) for one in report["held"]] == [
        ("n", "long", "string")
    ]
    assert audit_table("readings", url=server.url, token=TOKEN).problems == []
    files = [one for one in Path(path).rglob("*.parquet") if pq.read_metadata(one).num_rows]
    frame = spark.read.option("mergeSchema", "true").parquet(*map(str, files))
    assert frame.where("pos.at IS NOT NULL AND pos.lat >= 500").count() == 500
    sums = frame.selectExpr("sum(price)", "sum(total)").first()
    assert tuple(sums) == (Decimal("12340.00"), Decimal("-0.000001000"))
    assert pa.types.is_struct(pq.read_schema(files[0]).field("pos").type)
