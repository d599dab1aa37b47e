"""Rules over topics of Kafka: the example of the documentation, with a real Kafka and Spark's package for it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest

from bridges.kafka.headers import of_message
from bridges.spark.driver.java import find_java
from bridges.spark.kafka_frame import kafka_records
from broker.core.client import Client
from broker.core.errors import Invalid
from broker.core.message import Message
from broker.core.stored import message_of
from broker.core.stream import StreamRecord
from pyspark_sluice.records import COLUMNS
from tests.support.jars import CACHE, jars
from tests.support.kafka_server import Kafka
from tests.support.kafka_topic import Topic
from tests.support.spark_cluster import SPARK_HOME

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = "".join(
    f'<dependency org="{org}" name="{name}" rev="{version}" conf="default->master(*)"/>'
    for org, name, version in (
        ("org.apache.spark", "spark-sql-kafka-0-10_2.13", pyspark.__version__),
        ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", pyspark.__version__),
        ("org.apache.kafka", "kafka-clients", "3.9.1"),
        ("org.apache.commons", "commons-pool2", "2.12.1"),
    )
)
"""Spark's package for Kafka with what PySpark lacks of its dependencies."""
PAGE = ROOT / "docs/how-to/run-a-rule-over-history.md"
AS_BATCH = """
records = spark.read.format("kafka").option("kafka.bootstrap.servers", "localhost:9092")
records = kafka_records(records.option("subscribe", "meters.attic").load(), topic="replace(topic, '.', '/')")
rule_rows(records, RuleText("hot", sql), columns).write.mode("overwrite").parquet("batch")
"""


@pytest.mark.spark
@pytest.mark.heavy
def test_a_rule_runs_over_a_topic_once_for_all_and_as_a_stream_that_continues(
    tmp_path: Path,
) -> None:
    files = ",".join(map(str, jars(f"spark-kafka-{pyspark.__version__}", PACKAGE).glob("*.jar")))
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    find_java(CACHE).apply(environ)
    with Kafka(tmp_path / "kafka") as kafka:
        [job] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
        (tmp_path / "hot.py").write_text(
            (job + AS_BATCH).replace("localhost:9092", kafka.bootstrap)
        )
        topic = Topic(kafka, name="meters.attic")
        asyncio.run(topic.make())
        command = [str(SPARK_HOME / "bin" / "spark-submit"), "--jars", files, "hot.py"]
        bad = [b'{"temp": "warm"}', None]
        for values in (
            [*(json.dumps({"temp": temp}).encode() for temp in range(100)), *bad],
            [b'{"temp": 100}'],
        ):
            asyncio.run(topic.send(*values, key=b"attic"))
            done = subprocess.run(
                command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr[-4000:]
    expected = {temp: (temp * 1.8 + 32, "meters/attic") for temp in range(21, 100)} | {
        102: (212.0, "meters/attic")
    }
    for found in (_rows(tmp_path / "batch"), _rows(tmp_path / "rows")):
        assert {offset: row for offset, (*row, error) in found.items() if error is None} == {
            offset: [*row] for offset, row in expected.items()
        }
        assert sorted(offset for offset, (_, _, error) in found.items() if error) == [100, 101]
        assert "line 1, column 8: '*' cannot take a string" in found[100][2]


def _rows(directory: Path) -> dict[int, tuple[Any, ...]]:
    rows = pq.read_table(directory).to_pylist()
    found = {row["_offset"]: (row["f"], row["topic"], row["_error"]) for row in rows}
    assert len(found) == len(rows), "a row is there twice"
    return found


@pytest.mark.spark
def test_messages_that_the_broker_wrote_to_kafka_are_what_they_were(spark: Any) -> None:
    user = [("unit", "°C"), ("mqtt.topic", "not ours"), ("unit", "")]
    properties = {
        "Content-Type": "text/plain",
        "Correlation-Data": b"\xff\0",
        "Response-Topic": "a",
        "Payload-Format-Indicator": 1,
        "User-Property": user,
    }
    messages = [
        Message(
            "meters/attic",
            b"1",
            2,
            True,
            Client("meter-1", "alice"),
            1_700_000_000_123_000_000,
            properties,
        ),
        Message("meters/cellar", b"", 0, False, Client("meter-2", None), 1_700_000_000_124_000_000),
    ]
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    given = {
        "topic": pa.array(["readings"] * 2),
        "partition": pa.array([3, 3], pa.int32()),
        "offset": pa.array([7, 8]),
        "timestamp": pa.array(
            [one.received_ns // 1000 for one in messages], pa.timestamp("us", "UTC")
        ),
        "value": pa.array([messages[0].payload, None], pa.binary()),
        "headers": pa.array(
            [[{"key": k, "value": v} for k, v in of_message(one)] for one in messages],
            pa.list_(header),
        ),
    }
    frame = spark.createDataFrame(pa.table(given))
    assert [row.topic for row in kafka_records(frame.drop("headers")).collect()] == [
        "readings",
        "readings",
    ]
    assert [
        row.topic for row in kafka_records(frame, "nullif(concat('o/', offset), 'o/7')").collect()
    ] == ["o/8"]
    table = kafka_records(frame).toArrow()
    assert table.schema.names == list(COLUMNS)
    records = table.set_column(2, "ts_us", table.column("ts").cast(pa.int64())).to_pylist()
    assert [(one.pop("shard"), one.pop("offset")) for one in records] == [(3, 7), (3, 8)]
    assert [message_of(StreamRecord(**one)) for one in records] == messages


def test_a_frame_that_is_not_of_kafka_is_refused() -> None:
    class Frame:
        columns = ("topic", "value")

    with pytest.raises(
        Invalid, match=r"expected the columns .*, got none named partition, offset, timestamp"
    ):
        kafka_records(Frame())
