"""The data source in a real Spark: streaming, batch, rate limit, restarts of the broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyspark_sluice.options import Options
from pyspark_sluice.records import COLUMNS
from pyspark_sluice.source import SluiceStreamReader, register_source
from tests.bridges.spark.stream_server import START_US, TOKEN, StreamServer
from tests.support.node import eventually

pytestmark = pytest.mark.spark


def batch(spark: Any, server: StreamServer, **options: Any) -> list[tuple[int, int]]:
    reader = (
        spark.read.format("sluice")
        .option("url", server.url)
        .option("token", TOKEN)
        .option("stream", "s")
    )
    for name, value in options.items():
        reader = reader.option(name, value)
    return sorted(
        (row.shard, row.offset) for row in reader.load().select("shard", "offset").collect()
    )


def run_available(
    spark: Any, server: StreamServer, checkpoint: Path, source: str = "sluice", **options: Any
) -> list[list[int]]:
    """Run one availableNow query; the offsets of each micro-batch."""
    batches: list[list[int]] = []
    reader = (
        spark.readStream.format(source)
        .option("url", server.url)
        .option("token", TOKEN)
        .option("stream", "s")
    )
    for name, value in options.items():
        reader = reader.option(name, value)
    query = (
        reader.load()
        .writeStream.foreachBatch(
            lambda df, _: batches.append(sorted(row.offset for row in df.collect()))
        )
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    return batches


def test_batch_reads_offset_and_time_ranges(spark: Any, server: StreamServer) -> None:
    server.make("s", shards=2)
    server.append("s", [{"n": n} for n in range(30)], shard=0)
    server.append("s", [{"n": n} for n in range(5)], shard=1)
    assert len(batch(spark, server, partitions=4)) == 35
    picked = batch(spark, server, startingOffsets='{"0":10,"1":5}', endingOffsets='{"0":12,"1":5}')
    assert picked == [(0, 10), (0, 11)]
    by_time = batch(
        spark, server, startingTime=START_US // 1000 + 3, endingTime=START_US // 1000 + 5
    )
    assert by_time == [(0, 3), (0, 4), (1, 3), (1, 4)]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"columns": "shard,offset,payload"},
        {"filter": "plant/#"},
        {"startingTime": "2020-01-01T00:00:00Z", "endingTime": "2020-01-02T00:00:00Z"},
    ],
)
def test_a_stream_without_records_is_an_empty_frame(
    spark: Any, server: StreamServer, options: dict[str, str]
) -> None:
    server.make("s", shards=2)
    assert batch(spark, server, **options) == []


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": "latest"},
        {"startingOffsets": "4", "endingOffsets": "4"},
        {"startingOffsets": "latest", "filter": "plant/#", "partitions": "4"},
        {"startingTime": "2020-01-01T00:00:00Z", "endingTime": "2020-01-02T00:00:00Z"},
    ],
)
def test_an_empty_range_is_an_empty_frame(
    spark: Any, server: StreamServer, options: dict[str, str]
) -> None:
    server.make("s")
    server.append("s", [{"n": n} for n in range(10)])
    reader = (
        spark.read.format("sluice")
        .option("url", server.url)
        .option("token", TOKEN)
        .option("stream", "s")
    )
    frame = reader.options(**options).load()
    assert frame.count() == 0
    assert frame.columns == list(COLUMNS)
    assert frame.groupBy("topic").count().collect() == []


def test_a_filter_selects_topics_in_the_range_server(
    spark: Any, server: StreamServer, tmp_path: Path
) -> None:
    server.make("s")
    server.append("s", [{"n": number} for number in range(30)])  # five meters in turn
    assert batch(spark, server, filter="plant/+/meter/1", partitions=4) == [
        (0, n) for n in range(1, 30, 5)
    ]
    assert batch(spark, server, filter="plant/9/#") == []
    batches = run_available(
        spark, server, tmp_path / "c", filter="plant/7/meter/2", maxRowsPerTrigger=10
    )
    assert [offset for one in batches for offset in one] == list(range(2, 30, 5))


def test_stream_takes_batches_of_the_limit_and_goes_on_from_its_checkpoint(
    spark: Any, server: StreamServer, tmp_path: Path
) -> None:
    server.make("s")
    server.append("s", [{"n": n} for n in range(25)])
    sizes = [len(one) for one in run_available(spark, server, tmp_path / "c", maxRowsPerTrigger=10)]
    assert sizes == ([25] if spark.version < "4.2" else [10, 10, 5]), (
        "Spark 4.1 runs availableNow as one batch"
    )
    server.append("s", [{"n": n} for n in range(5)])
    assert run_available(spark, server, tmp_path / "c", maxRowsPerTrigger=10) == [
        [25, 26, 27, 28, 29]
    ]


@pytest.mark.parametrize(("delay_ms", "held_back"), [(3_600_000, True), (1, False)])
def test_a_few_rows_wait_for_more_or_for_the_end_of_the_delay(
    server: StreamServer, delay_ms: int, held_back: bool
) -> None:
    server.make("s")
    options = {
        "url": server.url,
        "token": TOKEN,
        "stream": "s",
        "minRowsPerTrigger": 10,
        "maxTriggerDelayMs": delay_ms,
    }
    reader = SluiceStreamReader(
        Options.parse({name: str(value) for name, value in options.items()})
    )
    at = reader.initialOffset()

    def takes(rows: int) -> bool:
        """Whether a batch of so many rows comes before one that has fewer."""
        nonlocal at
        before, at = at, reader.latestOffset(at, reader.getDefaultReadLimit())
        taken = at["s"]["0"] - before["s"]["0"]
        assert taken in (0, rows)
        return bool(taken)

    server.append("s", [{"n": 0}])
    eventually(lambda: takes(1), 30, what="the first row does not wait")
    server.append("s", [{"n": n} for n in range(9)])
    if not held_back:
        eventually(lambda: takes(9), 30, what="the delay is over")
        return
    eventually(lambda: reader.reportLatestOffset()["s"]["0"] == 10, 30)
    assert not takes(9)
    server.append("s", [{"n": 9}])
    eventually(lambda: takes(10), 30, what="there are enough rows")


def test_batches_are_bounded_where_spark_asks_without_start_and_limit(server: StreamServer) -> None:
    """The calls that Spark 4.1 makes: of a new query, and of one that goes on from its checkpoint."""
    server.make("s")
    server.append("s", [{"n": n} for n in range(25)])
    given = {"url": server.url, "token": TOKEN, "stream": "s", "maxRowsPerTrigger": "10"}
    assert SluiceStreamReader(Options.parse(given)).latestOffset()["s"] == {"0": 25}, (
        "availableNow has one batch"
    )
    reader = SluiceStreamReader(Options.parse({**given, "boundBatches": "true"}))
    first = reader.latestOffset()
    assert first["s"] == {"0": 10}
    reader.partitions(reader.initialOffset(), first)
    assert [reader.latestOffset()["s"] for _ in range(3)] == [{"0": 20}, {"0": 25}, {"0": 25}]
    again = SluiceStreamReader(Options.parse({**given, "boundBatches": "true"}))
    again.partitions(first, first)
    assert again.latestOffset()["s"] == {"0": 20}


def test_an_answer_cut_short_and_a_failing_range_server_lose_nothing(
    spark: Any, server: StreamServer, tmp_path: Path
) -> None:
    server.make("s")
    server.append("s", [{"n": n} for n in range(100)])
    server.failures, server.cut_after = 2, 40
    assert run_available(spark, server, tmp_path / "c") == [list(range(100))]


def test_trimmed_offsets_are_refused_with_a_sentence(spark: Any, server: StreamServer) -> None:
    server.make("s")
    server.append("s", [{"n": n} for n in range(100)])
    server.trim("s", 50)
    with pytest.raises(Exception, match=r"holds offsets \[50, 100\), not all of \[0, 100\)"):
        batch(spark, server, startingOffsets='{"0":0}')


def test_a_stream_made_anew_is_refused(spark: Any, server: StreamServer, tmp_path: Path) -> None:
    server.make("s")
    server.append("s", [{"n": 1}])
    run_available(spark, server, tmp_path / "c")
    server.make("s")
    server.append("s", [{"n": 1}, {"n": 2}])
    with pytest.raises(Exception, match="deleted and created again"):
        run_available(spark, server, tmp_path / "c")


def test_missing_options_are_named(spark: Any, server: StreamServer) -> None:
    with pytest.raises(Exception, match="option 'stream' is missing"):
        spark.read.format("sluice").option("url", server.url).load()


def test_sources_registered_apart_share_nothing_that_queries_change(spark: Any) -> None:
    """Spark's queries change the environment of their source without a lock, see ``register_source``."""
    names = [register_source(spark, "sluice-a"), register_source(spark, "sluice-b")]
    manager = spark._jsparkSession.sessionState().dataSourceManager()
    environments = [manager.lookupDataSource(name).dataSourceCls().envVars() for name in names]
    environments[0].put("SLUICE_TEST", "1")
    assert [environment.containsKey("SLUICE_TEST") for environment in environments] == [True, False]


def test_a_source_registered_under_a_name_reads_as_the_source_does(
    spark: Any, server: StreamServer, tmp_path: Path
) -> None:
    server.make("s")
    server.append("s", [{"n": n} for n in range(30)])
    name = register_source(spark, "sluice-c")
    assert run_available(spark, server, tmp_path / "c", source=name) == [list(range(30))]
