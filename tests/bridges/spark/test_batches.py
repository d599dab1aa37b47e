"""The pace of micro-batches, and their thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from bridges.spark.driver.batches import Batches, Pace
from bridges.spark.tasks.mapping import joined
from pyspark_sluice.client import Positions, StreamClient
from pyspark_sluice.errors import SourceError
from pyspark_sluice.ranges import Range
from tests.bridges.spark.stream_server import TOKEN, StreamServer
from tests.support.node import eventually

PACE = Pace(interval_s=1.0, rows=100, most_rows=1000)


@pytest.mark.parametrize(
    ("waiting", "since_s", "is_due"),
    [(0, 60.0, False), (1, 0.99, False), (1, 1.0, True), (99, 0.5, False), (100, 0.0, True)],
)
def test_a_batch_begins_with_enough_records_or_after_its_interval(
    waiting: int, since_s: float, is_due: bool
) -> None:
    assert PACE.is_due(waiting, since_s) is is_due


def test_a_batch_that_can_have_no_more_records_begins_at_once() -> None:
    assert Pace(interval_s=60.0, rows=100, most_rows=10).is_due(10, 0.0)


@pytest.mark.parametrize(
    ("interval_s", "waiting", "since_s", "pause_s"),
    [
        (1.0, 0, 9.0, 1.0),
        (0.2, 0, 9.0, 0.2),
        (60.0, 0, 9.0, 1.0),
        (1.0, 5, 0.75, 0.25),
        (60.0, 5, 1.0, 1.0),
    ],
)
def test_the_stream_is_asked_every_second_and_when_waiting_records_are_due(
    interval_s: float, waiting: int, since_s: float, pause_s: float
) -> None:
    assert Pace(interval_s, rows=100, most_rows=1000).pause_s(waiting, since_s) == pause_s


class Context:
    """A Spark context as the thread of the batches uses it."""

    defaultParallelism = 2

    def __init__(self) -> None:
        self.cancelled: list[str] = []

    def setJobGroup(self, group: str, description: str) -> None: ...

    def setLocalProperty(self, name: str, value: str) -> None: ...

    def cancelJobGroup(self, group: str) -> None:
        self.cancelled.append(group)


def start(
    server: StreamServer, run: Callable[[Positions, Sequence[Range]], dict[int, int]], **begun: int
) -> Batches:
    stream = StreamClient(server.url, TOKEN, "s", deadline_s=1.0)
    ends = {int(shard.removeprefix("s")): end for shard, end in begun.items()}
    return Batches(Context(), stream, stream.positions().epoch, ends, PACE, run, name="lake s")


def test_batches_follow_each_other_and_what_the_table_has_by_then_is_left_out(
    server: StreamServer,
) -> None:
    server.make("s")
    server.append("s", [{"n": n} for n in range(2500)])
    ranges: list[Range] = []

    def run(_: Positions, pieces: Sequence[Range]) -> dict[int, int]:
        ranges.extend(pieces)
        return {0: 1500 if pieces[-1].end == 1100 else 0}  # another job has committed records

    batches = start(server, run, s0=100)
    eventually(lambda: ranges and ranges[-1].end == 2500, what="the last batch")
    batches.stop()
    assert ranges == [Range(0, 100, 1100), Range(0, 1500, 2500)]
    assert not batches.is_active


def test_a_batch_that_fails_ends_them_with_its_reason(server: StreamServer) -> None:
    server.make("s")
    server.append("s", [{"n": 1}])

    def run(_: Positions, pieces: Sequence[Range]) -> dict[int, int]:
        raise OSError("no room")

    batches = start(server, run)
    eventually(lambda: not batches.is_active, what="the end")
    assert str(batches.failure) == "no room"


def test_a_stream_that_ends_before_the_table_or_is_another_one_is_refused(
    server: StreamServer,
) -> None:
    def run(_: Positions, pieces: Sequence[Range]) -> dict[int, int]:
        raise AssertionError("nothing is read")

    server.make("s")
    server.append("s", [{"n": 1}])
    behind = start(server, run, s0=5)
    eventually(lambda: not behind.is_active, what="the end")
    assert isinstance(behind.failure, SourceError)
    assert "the broker's data is older" in str(behind.failure)
    stream = StreamClient(server.url, TOKEN, "s")
    other = Batches(Context(), stream, "another epoch", {}, PACE, run, name="lake s")
    eventually(lambda: not other.is_active, what="the end")
    assert "was deleted and created again" in str(other.failure)


def test_small_record_batches_are_joined_in_their_order() -> None:
    parts = [pa.RecordBatch.from_pydict({"n": pa.array([number])}) for number in range(10_001)]
    whole = list(joined(iter(parts)))
    assert [batch.num_rows for batch in whole] == [10_000, 1]
    numbers: list[Any] = [number for batch in whole for number in batch.column("n").to_pylist()]
    assert numbers == list(range(10_001))


def test_large_values_are_not_joined() -> None:
    large = pa.RecordBatch.from_pydict({"payload": pa.array([b"x" * 10_000_000])})
    assert [batch.num_rows for batch in joined(iter([large] * 5))] == [2, 2, 1]
