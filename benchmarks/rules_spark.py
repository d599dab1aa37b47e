"""A rule in Spark: records a second, once as the compiled rule (``mapInArrow``) and once as Spark SQL.

    python -m benchmarks.rules_spark [--rows 2000000] [--master local[2]]

The records lie in Parquet with the columns of a stream, 128 B of JSON each, so that what is measured is the rule and
the way in and out of Python, not the fetching (``benchmarks/lake.py`` measures that). All columns of the rows are
computed and then thrown away. ``scan`` reads the columns that the rule needs and does nothing; ``identity`` takes them
to Python and back.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bridges.spark.driver.java import find_java
from bridges.spark.driver.session import prepare_environment, start_session
from bridges.spark.rule_frame import rule_rows, sql_rows
from bridges.spark.tasks.rule_text import RuleText
from broker.core.schema import FieldType
from pyspark_sluice.records import arrow_schema
from rules.functions.library import standard
from rules.sql.sources import sources
from rules.sql.spark.transpiler import IRREGULAR, to_spark
from rules.sql.spark.values import RECORDS
from rules.sql.syntax.parser import parse

CANONICAL = 'SELECT payload.temp AS t, payload.temp * 1.8 + 32 AS f, clientid FROM "bench/#" WHERE payload.temp > 20'
OUTPUT = [
    {"name": "t", "type": "double"},
    {"name": "f", "type": "double"},
    {"name": "clientid", "type": "string"},
]
WANTED_PER_S = 400_000
SCHEMA = arrow_schema(
    (
        "shard",
        "offset",
        "ts",
        "topic",
        "payload",
        "qos",
        "retain",
        "client_id",
        "username",
        "properties",
        "rule",
    )
)
PARTS = 8


def main() -> int:
    """Measure once and print; 1 when the compiled rule is slower than wanted."""
    options = _options()
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        _fill(directory / "records", options.rows)
        prepare_environment(directory, os.environ)
        find_java(directory / "_spark").apply(os.environ)
        # SQL needs both of Java's compilers
        scratch, java_options = (
            directory / "scratch",
            "-XX:+UseSerialGC",
        )
        session = start_session(
            options.master, driver_memory="1g", work_dir=scratch, java_options=java_options
        )
        try:
            return _measure(session.read.parquet(str(directory / "records")), options.rows)
        finally:
            session.stop()


def _measure(records: Any, rows: int) -> int:
    rule = RuleText("canonical", CANONICAL)
    needed = records.select("shard", "offset", "ts", "topic", "payload", "client_id")
    _time("scan", lambda: needed, rows)
    _time("identity in mapInArrow", lambda: needed.mapInArrow(_identity, needed.schema), rows)
    compiled = _time("compiled rule in mapInArrow", lambda: rule_rows(records, rule, OUTPUT), rows)
    tree = parse(CANONICAL)
    statement = to_spark(
        tree, sources(tree), standard(), FieldType("struct", fields={"temp": FieldType("double")})
    )
    records.createOrReplaceTempView(RECORDS)
    regular = f"SELECT * FROM ({statement.sql}) WHERE NOT {IRREGULAR}"
    _time("Spark SQL alone", lambda: records.sparkSession.sql(regular), rows)
    _time(
        "Spark SQL, what it cannot answer for compiled",
        lambda: sql_rows(records, rule, statement),
        rows,
    )
    return int(compiled < WANTED_PER_S)


def _identity(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _time(name: str, frame: Callable[[], Any], rows: int) -> float:
    """The best of three: the first one also starts Python and compiles."""
    best = 0.0
    for _ in range(3):
        began = time.perf_counter()
        frame().write.format("noop").mode("overwrite").save()
        best = max(best, rows / (time.perf_counter() - began))
    print(f"{name}: {best:,.0f} records/s")
    return best


def _fill(directory: Path, rows: int) -> None:
    directory.mkdir()
    source, each = random.Random(1), rows // PARTS
    for part in range(PARTS):
        payloads = [_payload(source) for _ in range(each)]
        first = part * each
        arrays = {
            "shard": pa.array([0] * each, pa.int32()),
            "offset": pa.array(range(first, first + each), pa.int64()),
            "ts": pa.array(range(first, first + each), pa.int64()).cast(SCHEMA.field("ts").type),
            "topic": pa.array([f"bench/{number % 100}" for number in range(each)]),
            "payload": pa.array(payloads, pa.binary()),
            "client_id": pa.array([f"client-{number % 100}" for number in range(each)]),
        }
        whole = [arrays.get(field.name, pa.nulls(each, field.type)) for field in SCHEMA]
        pq.write_table(
            pa.Table.from_arrays(whole, schema=SCHEMA), directory / f"part-{part}.parquet"
        )


def _payload(source: random.Random) -> bytes:
    reading = f'"temp":{source.uniform(0, 45):.2f},"hum":{source.randint(0, 100)}'
    text = f'{{{reading},"device":"meter-{source.randint(1, 999)}"'
    return f'{text},"pad":"{"x" * (117 - len(text))}"}}'.encode()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--master", default="local[2]")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
