"""Audit and replay of real tables, without Spark: the same code over record batches in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from bridges.spark.columns.store import place_of
from bridges.spark.driver import audit
from bridges.spark.driver import ledger as ledger_module
from bridges.spark.driver.api import LakeApi
from bridges.spark.driver.audit import audit_spec, audit_table
from bridges.spark.driver.batch import Point, RunTasks, TableSpec, TableWriter, starts_of
from bridges.spark.driver.history import history_of
from bridges.spark.driver.ledger import Ledger
from bridges.spark.driver.progress import RangeProgress
from bridges.spark.driver.replay import Replayed, ReplayReport, ReplayRun, is_alone, planned
from bridges.spark.tables import iceberg
from bridges.spark.tables.catalogs import catalog_of
from bridges.spark.tables.contract import Binding, Range
from bridges.spark.tables.formats import open_table
from bridges.spark.tasks.task import Plan, TaskResult
from broker.cli.lake import audit_text
from broker.core.errors import Invalid, Unreadable
from broker.core.times import rfc3339_of
from pyspark_sluice.client import Positions, StreamClient
from tests.bridges.spark.batches import dead_letters_of, records, rows_of, tasks
from tests.bridges.spark.stream_server import START_US, TOKEN, StreamServer
from tests.support.node import eventually

Payloads = list[Any]


class Lake:
    """A stream with a table of it."""

    def __init__(
        self,
        server: StreamServer,
        directory: Path | str,
        table_format: str,
        store: dict[str, Any] | None = None,
    ) -> None:
        self.server, self.stream = server, server.make("hot")
        self.api_spec: dict[str, Any] = {
            "name": "readings",
            "stream": "hot",
            "format": table_format,
            "path": f"{directory}/readings",
            "store": store,
        }
        server.tables["readings"] = self.api_spec
        binding = Binding("hot", self.stream.epoch)
        self.spec = TableSpec("readings", table_format, place_of(self.api_spec), "rows", binding)
        self._payloads: Payloads = []

    @property
    def client(self) -> StreamClient:
        return StreamClient(self.server.url, TOKEN, "hot", deadline_s=30)

    def positions(self) -> Positions:
        return self.client.positions()

    def publish(self, payloads: Payloads) -> None:
        self.server.append("hot", payloads)
        self._payloads += payloads

    def fill(self) -> TableWriter:
        """Bring all that was published into the table, as one batch from its end on."""
        writer = TableWriter(self.spec, "job")
        start = writer.table.next(0) or 0
        writer.write(tasks(records(start, self._payloads[start:])))
        return writer

    def plan(
        self, start: Point = None, end: Point = None, records: Sequence[tuple[int, int]] = ()
    ) -> ReplayReport:
        """What a replay would do."""

        def positions(at: datetime | None) -> Positions:
            return self.client.positions(None if at is None else rfc3339_of(at))

        return planned(self.spec, positions, start, end, records)

    def read(self, ranges: Sequence[Range]) -> RunTasks:
        return tasks(*(records(one.start, self._payloads[one.start : one.end]) for one in ranges))

    def republish(self, payloads: Payloads) -> None:
        """What a range gives when it is read again with another conversion; stands in for a changed one."""
        self._payloads = payloads


@pytest.fixture(params=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, server: StreamServer, tmp_path: Path) -> Lake:
    return Lake(server, tmp_path, request.param)


@pytest.fixture
def delta(server: StreamServer, tmp_path: Path) -> Lake:
    return Lake(server, tmp_path, "delta")


def test_a_table_that_has_everything_once_passes(lake: Lake) -> None:
    lake.publish([{"a": 1}, b"bad", {"a": 2}])
    lake.fill()
    lake.publish([{"a": 3}, b"bad"])
    lake.fill()
    lake.publish([{"a": 4}])
    report = audit_table("readings", url=lake.server.url, token=TOKEN)
    assert report.problems == []
    shard = report.shards[0]
    assert (shard.first, shard.next, shard.rows, shard.dead_letters, shard.lag) == (0, 5, 3, 2, 1)
    assert (
        "5 records = 3 rows + 2 dead letters + 0 filtered; 1 more wait in the stream"
        in audit_text(report.as_dict())
    )


def test_a_table_that_was_not_made_yet_is_all_lag(lake: Lake) -> None:
    lake.publish([{"a": 1}])
    report = audit_spec(lake.api_spec, lake.positions())
    assert (report.ok, report.shards[0].lag) == (True, 1)


def test_a_row_removed_by_hand_is_missing(delta: Lake) -> None:
    delta.publish([{"a": n} for n in range(10)])
    delta.fill()
    DeltaTable(delta.spec.place.path).delete("_offset = 4")
    report = audit_spec(delta.api_spec, delta.positions())
    assert report.problems == ["shard 0: record 4 is in neither the table nor its dead letters"]
    assert report.shards[0].missing_at == [{"start": 4, "end": 5}]
    assert not report.as_dict()["ok"]


def test_rows_doubled_by_hand_are_found(delta: Lake) -> None:
    delta.publish([{"a": n} for n in range(10)])
    delta.fill()
    write_deltalake(
        delta.spec.place.path, DeltaTable(delta.spec.place.path).to_pyarrow_table(), mode="append"
    )
    report = audit_spec(delta.api_spec, delta.positions())
    assert report.problems == ["shard 0: 10 records are there more than once (0, 1, 2, 3, 4, ...)"]


def test_rows_that_are_of_no_record_are_named(lake: Lake) -> None:
    lake.publish([{"a": n} for n in range(4)])
    lake.fill()
    for shard, offset in ((0, 9), (7, 0), (None, None)):
        place = {"_shard": pa.array([shard], pa.int32()), "_offset": pa.array([offset], pa.int64())}
        append(lake, pa.table({**place, "a": pa.array([1.0])}))
    assert audit_spec(lake.api_spec, lake.positions()).problems == [
        "shard 0: 1 row with offsets outside of [0, 4)",
        "2 rows are of no shard of the stream",
    ]


def append(lake: Lake, rows: pa.Table) -> None:
    """Add rows as another engine would."""
    if lake.spec.format == "delta":
        write_deltalake(lake.spec.place.path, rows, mode="append", schema_mode="merge")
    else:
        catalog_of(lake.spec.place).load_table(iceberg._identifier(lake.spec.place)).append(rows)


def test_an_audit_reads_the_table_by_ranges_of_offsets(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(5):
        lake.publish([b"bad" if n % 4 == 3 else {"a": n} for n in range(20)])
        lake.fill()
    table = open_table(lake.spec.format, lake.spec.place, lake.spec.binding)
    assert table is not None
    table.compact()
    monkeypatch.setattr(audit, "_PIECE_ROWS", 8)
    read: list[int] = []
    together = audit._together
    monkeypatch.setattr(audit, "_together", lambda parts: note(read, together(parts)))
    steps = Steps()
    report = audit_spec(lake.api_spec, lake.positions(), steps)
    assert (report.problems, report.shards[0].rows, report.shards[0].dead_letters) == ([], 75, 25)
    assert len(read) > 30
    assert max(read) <= 8
    assert steps.seen == sorted(set(steps.seen))
    assert (len(steps.seen) > 10, steps.done) == (True, 100)


class Steps(RangeProgress):
    """Progress that keeps how far the work was after each piece."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def through(self, parts: Iterable[list[Range]]) -> Iterator[list[Range]]:
        for piece in super().through(parts):
            self.seen.append(self.done)
            yield piece


def note(read: list[int], places: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    read.append(len(places[0]))
    return places


def test_the_lake_job_runs_an_audit_beside_the_query_until_it_is_cancelled(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "_PIECE_ROWS", 5)
    lake.publish([{"a": n} for n in range(100)])
    lake.fill()
    order: dict[str, Any] = {
        "id": "j1",
        "ranges": [],
        "columns": [],
        "rule_text": None,
        "retype": None,
        "accept_gap": False,
    }
    order |= {"clean": None, "cancel": False, "pause": False, "audit": "deep"}
    api = LakeApi(lake.server.url, TOKEN)
    assert not is_alone({**lake.api_spec, "key": ["a"], "replay": order})
    run = ReplayRun(None, api, {**lake.api_spec, "replay": order})
    eventually(lambda: run.report()["state"] != "running", what="the end of the audit")
    report = run.report()
    assert (report["state"], report["done"], report["result"]["ok"]) == ("done", 100, True)
    paused = ReplayRun(None, api, {**lake.api_spec, "replay": {**order, "pause": True}})
    paused.follow({**order, "cancel": True})
    eventually(lambda: paused.report()["state"] != "running", what="the end of the audit")
    assert (paused.report()["state"], paused.report()["result"]) == ("cancelled", None)
    together = audit._together
    midway = ReplayRun(None, api, {**lake.api_spec, "replay": {**order, "pause": True}})

    def cancelling(parts: Any) -> Any:
        midway.cancel()
        return together(parts)

    with monkeypatch.context() as reading:
        reading.setattr(audit, "_together", cancelling)
        midway.follow(order)
        eventually(lambda: midway.report()["state"] != "running", what="the end of the audit")
    report = midway.report()
    assert (report["state"], report["done"], report["error"]) == ("cancelled", 5, None)
    monkeypatch.setattr(audit, "open_table", lambda *_: 1 / 0)
    broken = ReplayRun(None, api, {**lake.api_spec, "replay": order})
    eventually(lambda: broken.report()["state"] != "running", what="the end of the audit")
    assert f"table 'readings' at {lake.spec.place.path} cannot be read" in str(
        broken.report()["error"]
    )


def check_that_one_of_two_drivers_commits(lake: Lake) -> None:
    """Of two drivers with the same batch the second finds it committed, wherever the table is."""
    lake.publish([{"a": n} for n in range(4)])
    first, second = TableWriter(lake.spec, "first"), TableWriter(lake.spec, "second")
    run = tasks(records(0, [{"a": n} for n in range(4)]))

    def overtaken(plan: Plan) -> list[TaskResult]:
        results = run(plan)
        first.write(run)
        return results

    assert second.write(overtaken).written == 0
    assert rows_of(lake.spec, "_offset") == [(n,) for n in range(4)]
    assert audit_table("readings", url=lake.server.url, token=TOKEN).problems == []


def test_what_retention_took_before_the_table_had_it_is_a_problem(delta: Lake) -> None:
    delta.publish([{"a": n} for n in range(10)])
    delta.fill()
    delta.publish([{"a": n} for n in range(10)])
    delta.server.trim("hot", 15)
    report = audit_spec(delta.api_spec, delta.positions())
    assert report.problems == [
        "shard 0: retention removed the records [10, 15) before the table had them"
    ]
    assert report.shards[0].lag == 5


def test_a_gap_that_was_accepted_is_in_the_ledger_and_no_problem(lake: Lake) -> None:
    lake.publish([{"a": n} for n in range(10)])
    writer = lake.fill()
    ledger = Ledger(lake.spec.place, "readings")
    ledger.sync(lake.spec, 0.0)
    lake.publish([{"a": n} for n in range(10)])
    lake.server.trim("hot", 15)
    [gap], version = writer.accept_gap(lake.positions())
    assert (gap.start, gap.end, gap.lost, version) == (10, 15, 5, writer.table.version())
    assert writer.accept_gap(lake.positions()) == ((), version)
    lake.fill()
    ledger.sync(lake.spec, 0.0)
    rows = ledger.rows(writer.table.identity()).sort_by("from_offset").to_pylist()
    assert [(row["from_offset"], row["to_offset"], row["lost"]) for row in rows] == [
        (0, 10, 0),
        (10, 15, 5),
        (15, 20, 0),
    ]
    report = audit_spec(lake.api_spec, lake.positions())
    assert (report.problems, report.shards[0].expired, report.shards[0].missing) == ([], 5, 0)


@pytest.mark.parametrize("harm", ["a file is gone", "the table is gone"])
def test_a_table_that_cannot_be_read_is_not_said_to_be_complete(lake: Lake, harm: str) -> None:
    lake.publish([{"a": n} for n in range(10)])
    lake.fill()
    spec = {**lake.api_spec, "report": {"offsets": {"0": "10"}}}
    if harm == "a file is gone":
        [file] = Path(lake.spec.place.path).glob("*.parquet")
        file.unlink()
    else:
        Path(lake.spec.place.path).rename(Path(lake.spec.place.path).with_name("elsewhere"))
    with pytest.raises(
        Unreadable, match=r"table 'readings' (at .* cannot be read|is not at .*, where its job)"
    ):
        audit_spec(spec, lake.positions())


def test_what_retention_took_afterwards_is_none(delta: Lake) -> None:
    delta.publish([{"a": n} for n in range(10)])
    delta.fill()
    delta.server.trim("hot", 10)
    assert audit_spec(delta.api_spec, delta.positions()).ok


def test_the_ledger_has_a_row_a_batch_and_is_written_once(lake: Lake) -> None:
    for at in range(3):
        lake.publish([{"a": at}, b"bad"])
        writer = lake.fill()
    ledger = Ledger(lake.spec.place, "readings")
    assert [ledger.sync(lake.spec, 0.0), ledger.sync(lake.spec, 0.0)] == [3, 0]
    rows = ledger.rows(writer.table.identity()).sort_by("from_offset").to_pylist()
    assert [(row["from_offset"], row["to_offset"], row["read"], row["written"], row["dead"]) for row in rows] == [
        (0, 2, 2, 1, 1), (2, 4, 2, 1, 1), (4, 6, 2, 1, 1),
    ]  # fmt: skip
    assert audit_spec(lake.api_spec, lake.positions()).ok


@pytest.mark.parametrize("has_ledger", [True, False])
def test_two_drivers_that_write_the_ledger_at_once_write_each_batch_once(
    lake: Lake, has_ledger: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (Ledger(lake.spec.place, "readings") for _ in range(2))
    for at in range(3):
        lake.publish([{"a": at}])
        lake.fill()
        if has_ledger and not at:
            one.sync(lake.spec, 0.0)
    make = ledger_module.ledger_rows
    made: list[None] = []

    def after_the_other(*arguments: Any) -> Any:
        made.append(None)
        if len(made) == 1:
            assert other.sync(lake.spec, 0.0) == 3 - has_ledger
        return make(*arguments)

    monkeypatch.setattr(ledger_module, "ledger_rows", after_the_other)
    assert one.sync(lake.spec, 0.0) == 0
    assert audit_spec(lake.api_spec, lake.positions()).ok


def test_a_range_replayed_twice_leaves_the_same_table(lake: Lake) -> None:
    lake.publish([{"a": n} for n in range(8)] + [b"bad", {"a": 9}])
    lake.fill()
    before = rows_of(lake.spec, "_offset", "a")
    for _ in range(2):
        report = Replayed(lake.spec).run(lake.plan(3, 10).ranges, lake.read)
        assert (
            report.records,
            report.rows_before,
            report.rows_after,
            report.dead_letters_after,
        ) == (7, 6, 6, 1)
    assert rows_of(lake.spec, "_offset", "a") == before
    assert dead_letters_of(lake.spec, "_offset") == [(8,)]
    assert audit_spec(lake.api_spec, lake.positions()).ok


def test_a_replay_changes_exactly_its_range(lake: Lake) -> None:
    lake.publish([{"a": n} for n in range(6)])
    lake.fill()
    lake.republish([{"a": 100 + n} for n in range(4)] + [b"bad now", {"a": 105, "b": "new"}])
    report = Replayed(lake.spec).run(lake.plan(2, 6).ranges, lake.read)
    assert rows_of(lake.spec, "_offset", "a", "b") == [
        (0, 0.0, None), (1, 1.0, None), (2, 102.0, None), (3, 103.0, None), (5, 105.0, "new"),
    ]  # fmt: skip
    assert dead_letters_of(lake.spec, "_offset") == [(4,)]
    assert (report.ranges, report.records, report.rows_before) == ([Range(0, 2, 6)], 4, 4)
    assert (report.rows_after, report.dead_letters_after) == (3, 1)
    assert audit_spec(lake.api_spec, lake.positions()).ok


def test_a_replay_of_single_records_changes_exactly_these(lake: Lake) -> None:
    lake.publish([{"a": n} if n % 3 else b"bad" for n in range(300)])
    lake.fill()
    lake.republish([{"a": -n} for n in range(300)])
    chosen = [(0, n) for n in range(0, 300, 3)]
    assert lake.plan(records=[(0, 0), (0, 1), (0, 3)]).ranges == [Range(0, 0, 2), Range(0, 3, 4)]
    plan = lake.plan(records=chosen)
    assert (plan.records, plan.rows_before, plan.dead_letters_before) == (100, 0, 100)
    report = Replayed(lake.spec).run(plan.ranges, lake.read)
    assert (report.rows_after, report.dead_letters_after) == (100, 0)
    assert rows_of(lake.spec, "_offset", "a") == [
        (n, float(n if n % 3 else -n)) for n in range(300)
    ]
    assert dead_letters_of(lake.spec, "_offset") == []
    assert audit_spec(lake.api_spec, lake.positions()).ok
    for one, problem in (((0, 300), "not all of"), ((7, 0), "no shard 7")):
        with pytest.raises(Invalid, match=problem):
            lake.plan(records=[one])
    with pytest.raises(Invalid, match="no range in addition to single records"):
        lake.plan(0, 2, [(0, 0)])


def test_a_range_by_time_is_cut_to_what_the_table_has(lake: Lake) -> None:
    lake.publish([{"a": n} for n in range(6)])
    lake.fill()
    lake.publish([{"a": 6}])
    start = datetime.fromtimestamp(START_US / 1e6 + 0.003, UTC)
    plan = lake.plan(start, datetime(2027, 1, 1, tzinfo=UTC))
    assert plan.ranges == [Range(0, 3, 6)]
    assert (plan.published_from, plan.published_to) == (
        "2026-01-01T00:00:00.003Z",
        "2026-01-01T00:00:00.005Z",
    )
    assert lake.plan(None, start).ranges == [Range(0, 0, 3)]
    assert lake.plan(datetime(2027, 1, 1, tzinfo=UTC), None).ranges == []


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_a_table_begins_and_is_replayed_by_shard(
    server: StreamServer, tmp_path: Path, table_format: str
) -> None:
    stream = server.make("two", shards=2)
    server.append("two", [{"a": n} for n in range(6)])
    server.append("two", [{"a": n} for n in range(4)], shard=1)
    server.trim("two", 2)
    path = str(tmp_path / "readings")
    api_spec = {"name": "readings", "stream": "two", "format": table_format, "path": path}
    binding = Binding("two", stream.epoch)
    spec = TableSpec("readings", table_format, place_of(api_spec), "rows", binding, shards=(0, 1))

    def where(at: datetime | None = None) -> Positions:
        return StreamClient(server.url, TOKEN, "two", deadline_s=30).positions(
            None if at is None else rfc3339_of(at)
        )

    writer = TableWriter(spec, "job")
    with pytest.raises(Invalid, match="expected at most offset 4 of shard 1, got 5"):
        starts_of(where, 5)
    writer.begin(starts_of(where, {1: 3}))
    assert [one.lag for one in audit_spec(api_spec, where()).shards] == [4, 1]
    writer.write(
        tasks(records(2, [{"a": n} for n in range(2, 6)]), records(3, [{"a": 3}], shard=1))
    )
    audit = audit_spec(api_spec, where())
    assert audit.problems == []
    assert [(one.first, one.next, one.rows) for one in audit.shards] == [(2, 6, 4), (3, 4, 1)]

    assert planned(spec, where, {0: 3}, {0: 5}).ranges == [Range(0, 3, 5)]
    assert planned(spec, where, {0: 3, 1: 3}, None).ranges == [Range(0, 3, 6), Range(1, 3, 4)]
    assert planned(spec, where, datetime(2020, 1, 1, tzinfo=UTC), {1: 4}).ranges == [Range(1, 3, 4)]
    with pytest.raises(Invalid, match="expected a shard from 0 to 1 of stream 'two', got 7"):
        planned(spec, where, {7: 3}, None)


def test_a_rebuild_is_all_of_the_table_that_the_stream_has(lake: Lake) -> None:
    assert lake.plan(None, None).ranges == []
    lake.publish([{"a": n} for n in range(6)])
    lake.fill()
    lake.publish([{"a": 6}])
    assert lake.plan(None, None).ranges == [Range(0, 0, 6)]
    lake.server.trim("hot", 4)
    assert lake.plan(None, None).ranges == [Range(0, 4, 6)]


@pytest.mark.parametrize(
    ("start", "end", "reason"),
    [
        (2, 7, r"table 'readings' has offsets \[0, 6\) of shard 0, not all of \[2, 7\)"),
        (5, 2, "it ends at offset 2, before its start at 5"),
    ],
)
def test_a_range_that_is_not_in_the_table_is_refused(
    delta: Lake, start: int, end: int, reason: str
) -> None:
    delta.publish([{"a": n} for n in range(7)])
    delta.republish([{"a": n} for n in range(6)])
    delta.fill()
    with pytest.raises(Invalid, match=reason):
        delta.plan(start, end)


def test_a_range_that_was_trimmed_is_refused(delta: Lake) -> None:
    delta.publish([{"a": n} for n in range(6)])
    delta.fill()
    delta.server.trim("hot", 3)
    with pytest.raises(Invalid, match=r"holds offsets \[3, 6\), not all of \[2, 6\)"):
        delta.plan(2, 6)


def test_a_dry_run_counts_and_changes_nothing(lake: Lake) -> None:
    lake.publish([{"a": n} for n in range(6)])
    version = lake.fill().table.version()
    plan = lake.plan(1, 4)
    assert (plan.dry_run, plan.ranges, plan.records) == (True, [Range(0, 1, 4)], 3)
    assert (plan.rows_before, plan.dead_letters_before, plan.rows_after) == (3, 0, None)
    assert TableWriter(lake.spec, "look").table.version() == version


def test_joining_small_files_changes_no_row_and_stops_no_writer(lake: Lake) -> None:
    for at in range(101):
        lake.publish([{"a": at}])
        writer = lake.fill()
    other = open_table(lake.spec.format, lake.spec.place, lake.spec.binding)
    assert other is not None
    lake.publish([{"a": 101}])
    batch = tasks(records(101, [{"a": 101}]))

    def overtaken(plan: Plan) -> list[TaskResult]:
        results = batch(plan)
        assert other.tidy()
        return results

    assert writer.write(overtaken).written == 1
    assert not other.tidy()
    assert len(other.files()) == 2
    assert rows_of(lake.spec, "_offset", "a") == [(n, float(n)) for n in range(102)]
    assert [row["a"] for row in other.newest(3).to_pylist()] == [101.0, 100.0, 99.0]
    assert audit_spec(lake.api_spec, lake.positions()).problems == []


def test_job_and_replay_at_once_lose_nothing(lake: Lake) -> None:
    lake.publish([{"a": n} for n in range(10)])
    writer = lake.fill()
    lake.publish([{"a": n} for n in range(10, 20)])
    replayed = Replayed(lake.spec)

    def meanwhile(run: RunTasks, other: Callable[[], Any]) -> RunTasks:
        def both(plan: Any) -> Any:
            results = run(plan)
            other()
            return results

        return both

    batch = tasks(records(10, [{"a": n} for n in range(10, 20)]))
    ranges = (Range(0, 2, 8),)
    replayed.run(ranges, lambda _: meanwhile(lake.read(ranges), lambda: writer.write(batch)))
    lake.publish([{"a": n} for n in range(20, 30)])
    second = Replayed(lake.spec)
    third = tasks(records(20, [{"a": n} for n in range(20, 30)]))
    writer.write(meanwhile(third, lambda: second.run(ranges, lake.read)))
    assert rows_of(lake.spec, "_offset", "a") == [(n, float(n)) for n in range(30)]
    assert audit_spec(lake.api_spec, lake.positions()).ok


def test_a_table_says_what_each_version_did(lake: Lake) -> None:
    assert history_of(None, 10)["versions"] == []
    lake.publish([{"a": 1}, b"bad"])
    lake.fill()
    lake.publish([{"a": 2, "b": "new"}])
    lake.fill()
    Replayed(lake.spec).run(lake.plan(0, 2).ranges, lake.read)
    table = open_table(lake.spec.format, lake.spec.place, lake.spec.binding)
    assert table is not None
    found = history_of(table, 10)
    assert (found["version"], found["rows"]) == (table.version(), 2)
    assert found["small_files"] == found["files"] >= 1
    assert found["bytes"] > 0
    done = [one for one in found["versions"] if one["ranges"]]
    assert [(one["operation"], one["rows"], one["dead_letters"]) for one in done] == [
        ("replay", 1, 1), ("batch", 1, 0), ("batch", 1, 1),
    ]  # fmt: skip
    assert done[1]["ranges"] == [{"shard": 0, "start": 2, "end": 3}]
    assert done[0]["replay"]
    assert history_of(table, 1)["versions"] == found["versions"][:1]
    newest, *older = found["schemas"]
    assert [column["name"] for column in newest["columns"]] == ["a", "b"]
    assert [column["name"] for column in older[-1]["columns"]] == []
    assert newest["at"]
