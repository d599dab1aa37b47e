"""The lake job in a real Spark: killed in every way, it leaves each record in the table once."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from bridges.spark.broker_side.local import LocalSpark
from bridges.spark.broker_side.settings import LakeSettings
from bridges.spark.columns.place import Place
from bridges.spark.driver.api import LakeApi
from bridges.spark.driver.audit import audit_table
from bridges.spark.driver.batch import TableSpec, TableWriter
from bridges.spark.driver.executors import Executors, ExecutorsLack
from bridges.spark.driver.java import find_java
from bridges.spark.driver.ledger import Ledger
from bridges.spark.driver.query import Progress, QuerySettings, TableQuery
from bridges.spark.driver.replay import ReplayRun
from bridges.spark.driver.retype import retype
from bridges.spark.driver.upserts import open_writer
from bridges.spark.job import JobOptions, LakeJob
from tests.bridges.spark.conftest import ROOT
from tests.bridges.spark.stream_server import TOKEN, StreamServer
from tests.bridges.spark.test_refused_records import HARMFUL
from tests.support.node import eventually
from tests.support.waiting import until

pytestmark = pytest.mark.spark

DEADLINE_S = 180.0
COLUMNS = [{"name": "n", "type": "double"}]
PACE = {"commit_interval": 0.2, "commit_rows": 100_000}


def add_table(
    server: StreamServer, directory: Path, name: str = "readings", **spec: Any
) -> dict[str, Any]:
    server.make(name)
    path = str(directory / name)
    table = {
        "name": name,
        "stream": name,
        "format": "delta",
        "path": path,
        "columns": COLUMNS,
        **PACE,
        **spec,
    }
    server.tables[name] = table
    return table


def covered(server: StreamServer, name: str = "readings") -> int:
    """Up to which offset the job says that the table goes."""
    return int(server.reports.get(name, {}).get("offsets", {}).get("0", 0))


@pytest.fixture
def run_query(
    spark: Any, server: StreamServer, tmp_path: Path
) -> Iterator[Callable[[dict[str, Any]], TableQuery]]:
    """Start a table's query in the shared session; all are ended after the test."""
    queries: list[TableQuery] = []

    def run(spec: dict[str, Any]) -> TableQuery:
        settings = QuerySettings(max_rows=1000, job="test")
        query = TableQuery(spark, LakeApi(server.url, TOKEN), spec, settings, time.monotonic)
        queries.append(query)
        return query

    yield run
    for query in queries:
        query.stop()


def step_until(query: TableQuery, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    def reached() -> bool:
        query.step()
        query.tend()
        return condition(query.report())

    eventually(reached, DEADLINE_S, what=f"the query did not get there: {query.report()}")
    return query.report()


def reaches(end: int) -> Callable[[dict[str, Any]], bool]:
    return lambda report: report["offsets"].get("0") == str(end)


def test_a_query_that_starts_again_goes_on_from_the_end_of_the_table(
    run_query: Callable[[dict[str, Any]], TableQuery], server: StreamServer, tmp_path: Path
) -> None:
    spec = add_table(server, tmp_path, start={"0": 500})
    server.append("readings", [{"n": n} for n in range(1500)] + [b"bad"])
    first = run_query(spec)
    step_until(first, reaches(1501))
    first.stop()
    server.append("readings", [{"n": 1}])
    report = step_until(run_query(spec), reaches(1502))
    assert (report["rows"], report["dead_letters"], report["state"]) == (1001, 1, "running")
    audit = audit_table("readings", url=server.url, token=TOKEN)
    assert (audit.problems, audit.shards[0].first, audit.shards[0].next) == ([], 500, 1502)


def test_a_record_that_the_table_refuses_is_a_dead_letter_and_the_others_are_rows(
    run_query: Callable[[dict[str, Any]], TableQuery], server: StreamServer, tmp_path: Path
) -> None:
    columns = [*COLUMNS, {"name": "text", "type": "string"}]
    spec = add_table(server, tmp_path, format="iceberg", columns=columns)
    rows: list[dict[str, Any]] = [{"n": n, "text": "plain"} for n in range(200)]
    rows[77]["text"] = HARMFUL
    rows[150] = {"host.temp": 21.5, "_N": 1, "n": 150, "x\0": 1}
    server.append("readings", rows)
    report = step_until(run_query(spec), reaches(200))
    assert (report["rows"], report["dead_letters"], report["state"]) == (199, 1, "running")
    assert audit_table("readings", url=server.url, token=TOKEN).problems == []


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
@pytest.mark.parametrize("records", [0, 5], ids=["idle", "busy"])
def test_a_table_that_is_removed_is_failed_until_it_is_recreated(
    run_query: Callable[[dict[str, Any]], TableQuery],
    server: StreamServer,
    tmp_path: Path,
    records: int,
    table_format: str,
) -> None:
    spec = add_table(server, tmp_path, format=table_format)
    server.append("readings", [{"n": n} for n in range(20)])
    query = run_query(spec)
    step_until(query, reaches(20))
    query.expected = query.report()["parts"]
    server.trim("readings", 19)
    shutil.rmtree(tmp_path / "readings")
    server.append("readings", [{"n": n} for n in range(records)])
    report = step_until(query, lambda report: report["state"] == "failed" and not report["offsets"])
    assert "table 'readings' is gone from" in report["last_error"]["message"]
    assert "sluice lake tables recreate readings" in report["last_error"]["message"]
    assert not (tmp_path / "readings").exists()
    assert report["is_lost"]
    query.expected, query.begins = {}, {"0": "0"}
    report = step_until(query, reaches(20 + records))
    assert (report["rows"], report["is_lost"], report["begins"]) == (1 + records, False, {"0": "0"})
    audit = audit_table("readings", url=server.url, token=TOKEN)
    assert (audit.problems, audit.shards[0].expired) == ([], 19)


@pytest.mark.parametrize("part", ["__dead_letters", "__tables/t_1"])
def test_a_part_of_a_table_that_is_removed_is_noticed_without_records(
    run_query: Callable[[dict[str, Any]], TableQuery],
    server: StreamServer,
    tmp_path: Path,
    part: str,
) -> None:
    spec = add_table(server, tmp_path, **({"tables": "t_${n}"} if "tables" in part else {}))
    server.append("readings", [{"n": 1}, b"bad"])
    query = run_query(spec)
    query.expected = step_until(query, reaches(2))["parts"]
    assert part in query.expected
    shutil.rmtree(tmp_path / f"readings{part}")
    report = step_until(query, lambda report: report["is_lost"])
    assert "of table 'readings' is gone from" in report["last_error"]["message"]
    query.expected = {}
    server.append("readings", [{"n": 1}, b"bad"])
    report = step_until(query, lambda report: reaches(4)(report) and report["state"] == "running")
    assert (report["rows"], report["dead_letters"]) == ((2, 1) if "dead" in part else (1, 2))


def test_a_table_that_readers_cannot_open_is_failed_while_its_job_has_it_open(
    run_query: Callable[[dict[str, Any]], TableQuery], server: StreamServer, tmp_path: Path
) -> None:
    spec = add_table(server, tmp_path)
    query = run_query(spec)
    for n in range(3):
        server.append("readings", [{"n": n}])
        step_until(query, reaches(n + 1))
    log = tmp_path / "readings" / "_delta_log" / f"{1:020}.json"
    content = log.read_bytes()
    log.unlink()
    query._ledger = Ledger(Place(spec["path"]), "readings")  # as if its time had come
    report = step_until(query, lambda report: report["state"] == "failed")
    assert "the log of the Delta table cannot be read" in report["last_error"]["message"]
    log.write_bytes(content)
    server.append("readings", [{"n": 3}])
    assert step_until(query, reaches(4))["rows"] == 4


def test_two_jobs_at_once_double_nothing(
    run_query: Callable[[dict[str, Any]], TableQuery],
    server: StreamServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reported: list[tuple[int | None, int]] = []
    count = Progress.count

    def counted(progress: Progress, writer: TableWriter) -> None:
        reported.append((progress.ends.get(0), progress.rows))
        count(progress, writer)

    monkeypatch.setattr(Progress, "count", counted)
    spec = add_table(server, tmp_path)
    server.append("readings", [{"n": n} for n in range(3000)])
    first = run_query(spec)
    step_until(first, reaches(3000))
    second = run_query(spec)
    second.step()
    server.append("readings", [{"n": n} for n in range(2000)])
    step_until(second, reaches(5000))
    assert step_until(first, reaches(5000))["rows"] == 5000
    assert (3000, 3000) in reported
    assert (5000, 3000) not in reported, "a report had the end without the rows"
    assert audit_table("readings", url=server.url, token=TOKEN).problems == []


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_a_table_with_a_key_is_merged_and_retyped_by_tasks_of_spark(
    run_query: Callable[[dict[str, Any]], TableQuery],
    server: StreamServer,
    tmp_path: Path,
    spark: Any,
    table_format: str,
) -> None:
    columns = [*COLUMNS, {"name": "v", "type": "double"}]
    spec = add_table(
        server,
        tmp_path,
        key=["n"],
        delete_when="payload.n >= 90",
        format=table_format,
        columns=columns,
    )
    server.append("readings", [{"n": n % 100} for n in range(2500)] + [b"bad"])
    first = run_query(spec)
    report = step_until(first, reaches(2501))
    assert (report["rows"], report["dead_letters"], report["files"]) == (90, 1, 1)
    first.stop()
    server.append("readings", [{"n": 1}, {"n": 500}, {"n": 42.5}])
    second = run_query(spec)
    assert step_until(second, reaches(2504))["rows"] == 91
    audit = audit_table("readings", url=server.url, token=TOKEN)
    assert (audit.problems, audit.shards[0].rows, audit.shards[0].superseded) == ([], 91, 2504 - 92)
    server.append(
        "readings",
        [{"n": 1, "v": "old"}, {"n": 2, "v": "text"}, {"n": 3, "v": "x"}, {"n": 1, "v": 1}],
    )
    assert step_until(second, reaches(2508))["dead_letters"] == 4
    second.stop()
    where = LakeApi(server.url, TOKEN).stream("readings").positions()
    writer = open_writer(TableSpec.of_api(spec, where), "retype", spark)
    done = retype(writer, "v", "json")
    assert (done.rows_after, done.dead_letters_after) == (91, 1)
    audit = audit_table("readings", url=server.url, token=TOKEN)
    assert (audit.problems, audit.shards[0].rows, audit.shards[0].superseded) == ([], 91, 2508 - 92)
    rows = writer.table.scan(["n", "v"]).to_pylist()
    assert {one["n"]: one["v"] for one in rows if one["v"]} == {
        1.0: "1.0",
        2.0: '"text"',
        3.0: '"x"',
    }


def test_tables_share_the_python_processes_of_the_workers(
    server: StreamServer, tmp_path: Path, spark: Any
) -> None:
    """A table that starts needs none of its own, which a busy machine may not start in time."""
    names = [f"table{number}" for number in range(5)]
    for name in names:
        add_table(server, tmp_path, name)
        server.append(name, [{"n": n} for n in range(100)])
    stopping = threading.Event()
    job = LakeJob(spark, JobOptions(server.url, TOKEN, tmp_path))
    [jvm] = [one for one in psutil.Process().children() if one.name() == "java"]
    running = threading.Thread(target=job.run, args=(stopping,))
    running.start()
    try:
        eventually(
            lambda: all(covered(server, name) == 100 for name in names),
            DEADLINE_S,
            what="all tables filled",
        )
        pythons = [one for one in jvm.children(recursive=True) if one.name().startswith("python")]
    finally:
        stopping.set()
        running.join()
    daemon, workers = 1, spark.sparkContext.defaultParallelism
    assert len(pythons) <= daemon + workers, [one.cmdline() for one in pythons]


def test_a_query_is_running_once_a_batch_has_succeeded(
    run_query: Callable[[dict[str, Any]], TableQuery], server: StreamServer, tmp_path: Path
) -> None:
    query = run_query(add_table(server, tmp_path))
    step_until(query, lambda _: query._batches is not None)
    query.step()
    assert query.report()["state"] == "starting", "nothing has succeeded yet"
    server.append("readings", [{"n": 1}])
    report = step_until(query, lambda report: report["state"] == "running")
    assert (report["rows"], report["files"]) == (1, 1)
    assert 0 < report["commit_s"] < DEADLINE_S


def test_a_table_that_fails_says_why_and_the_broker_away_fails_nothing(
    run_query: Callable[[dict[str, Any]], TableQuery], server: StreamServer, tmp_path: Path
) -> None:
    (tmp_path / "blocked").write_text("in the way")
    broken = run_query(add_table(server, tmp_path, "blocked"))
    good = run_query(add_table(server, tmp_path))
    error = step_until(broken, lambda report: report["state"] == "failed")["last_error"]
    assert "cannot be written" in error["message"]
    server.append("readings", [{"n": 1}])
    step_until(good, reaches(1))
    server.stop()
    eventually(lambda: not server.is_serving, DEADLINE_S, what="the server did not stop")
    server.start()
    server.append("readings", [{"n": 2}])
    step_until(good, reaches(2))
    assert good.report()["last_error"] is None


def test_a_worker_with_its_own_disk_is_named_and_nothing_is_committed(
    run_query: Callable[[dict[str, Any]], TableQuery],
    server: StreamServer,
    spark: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = add_table(server, tmp_path)
    # Workers in a mount namespace of their own: what they write into the table's directory, no one else sees.
    own_disk = f"mkdir -p {spec['path']} && mount -t tmpfs none {spec['path']}"
    monkeypatch.setattr(spark.sparkContext, "pythonExec", python_after(tmp_path, own_disk))
    server.append("readings", [{"n": n} for n in range(5000)])
    query = run_query(spec)
    report = step_until(query, lambda report: report["state"] == "failed")
    assert (
        f"of worker {socket.gethostname()!r}, got none: the worker has a disk of its own"
        in (report["last_error"]["message"])
    )
    query.stop()
    assert (report["rows"], report["offsets"]) == (0, {})
    monkeypatch.undo()
    assert step_until(run_query(spec), reaches(5000))["rows"] == 5000


WITHOUT_MSGSPEC = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name == "msgspec":
            raise ModuleNotFoundError("No module named 'msgspec'", name="msgspec")
sys.meta_path.insert(0, Absent())
"""


def no_package(server: StreamServer, directory: Path) -> str:
    (directory / "sitecustomize.py").write_text(WITHOUT_MSGSPEC)
    return f"export PYTHONPATH={directory}:$PYTHONPATH"


def read_only_store(server: StreamServer, directory: Path) -> str:
    return f"mount --bind -o ro {directory / 'readings'} {directory / 'readings'}"


def full_store(server: StreamServer, directory: Path) -> str:
    return f"mount -t tmpfs -o size=4k none {directory / 'readings'}"


def expired(server: StreamServer, directory: Path) -> str:
    server.trim("readings", 1500)
    return ":"


def broken_catalog(server: StreamServer, directory: Path) -> str:
    metadata = directory / "readings" / "metadata"
    (metadata / "v99.metadata.json").write_bytes(b"garbage")
    return ":"


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (no_package, "a Python process of Spark lacks package 'msgspec'. Try: pip install"),
        (read_only_store, "the table's files cannot be written: Read-only file system"),
        (full_store, "the table's files cannot be written: No space left on device"),
        (
            expired,
            "retention removed the records [1000, 1500) of shard 0 of stream 'readings' before the table had them",
        ),
        (broken_catalog, "the table's catalog cannot be used: "),
    ],
)
def test_a_table_fails_within_seconds_and_says_why(
    run_query: Callable[[dict[str, Any]], TableQuery],
    server: StreamServer,
    spark: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    harm: Callable[[StreamServer, Path], str],
    sentence: str,
) -> None:
    spec = add_table(server, tmp_path, format="iceberg" if harm is broken_catalog else "delta")
    server.append("readings", [{"n": n} for n in range(1000)])
    first = run_query(spec)
    step_until(first, reaches(1000))
    first.stop()
    server.append("readings", [{"n": n} for n in range(1000)])
    monkeypatch.setattr(
        spark.sparkContext, "pythonExec", python_after(tmp_path, harm(server, tmp_path))
    )
    query = run_query(spec)
    groups = set()

    def has_failed(report: dict[str, Any]) -> bool:
        groups.update([] if query._batches is None else [query._batches.group])
        return bool(report["state"] == "failed")

    report = step_until(query, has_failed)
    assert sentence in report["last_error"]["message"]
    assert "\n" not in report["last_error"]["message"]
    assert failed_tasks(spark, groups) == 0, "Spark repeats failed tasks before it gives up"


def failed_tasks(spark: Any, groups: Iterable[str]) -> int:
    """How many tasks of groups of jobs failed."""
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for group in groups for job in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(stage) for job in jobs for stage in job.stageIds]
    return sum(stage.numFailedTasks for stage in stages)


def own_disk(server: StreamServer, directory: Path) -> str:
    return f"mount -t tmpfs none {directory / 'readings'}"


def no_range_server(server: StreamServer, directory: Path) -> str:
    server.stop_ranges()
    return ":"


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (no_package, "package 'msgspec' is missing in .* Try: pip install pyspark-sluice"),
        (
            own_disk,
            "it does not see the driver's files in .*/readings. Try: a directory that all hosts share",
        ),
        (read_only_store, "the table's files cannot be written: Read-only file system"),
        (
            no_range_server,
            "no answer from the range server at http://127.0.0.1:.* Try: an address of this broker",
        ),
    ],
)
def test_what_executors_lack_is_reported_by_host(
    server: StreamServer,
    spark: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    harm: Callable[[StreamServer, Path], str],
    sentence: str,
) -> None:
    spec = TableSpec.of_api(
        add_table(server, tmp_path), LakeApi(server.url, TOKEN).stream("readings").positions()
    )
    TableWriter(spec, "test")
    Executors(spark, server.url, TOKEN).check(spec)
    monkeypatch.setattr(
        spark.sparkContext, "pythonExec", python_after(tmp_path, harm(server, tmp_path))
    )
    with pytest.raises(ExecutorsLack, match=f"^host '.+': {sentence}"):
        Executors(spark, server.url, TOKEN).check(spec)
    assert not list((tmp_path / "readings").glob("*probe*"))


def test_a_table_behind_retention_continues_once_the_gap_is_accepted(
    run_query: Callable[[dict[str, Any]], TableQuery],
    server: StreamServer,
    tmp_path: Path,
    spark: Any,
) -> None:
    spec = add_table(server, tmp_path)
    server.append("readings", [{"n": n} for n in range(10)])
    query = run_query(spec)
    step_until(query, reaches(10))
    query.stop()
    server.append("readings", [{"n": n} for n in range(10)])
    server.trim("readings", 15)
    report = step_until(run_query(spec), lambda report: report["state"] == "failed")
    assert report["last_error"]["message"] == (
        "retention removed the records [10, 15) of shard 0 of stream 'readings' before the table had them. "
        "Try: sluice lake tables accept-gap readings."
    )
    assert ordered(server, spark, tmp_path, accept_gap=True)["result"]["records"] == 5
    report = step_until(run_query(spec), reaches(20))
    assert (report["rows"], report["state"]) == (15, "running")
    assert audit_table("readings", url=server.url, token=TOKEN).problems == []


def test_dead_letters_of_a_wrong_type_become_rows_by_a_retype_of_the_job(
    server: StreamServer, tmp_path: Path, spark: Any
) -> None:
    """The job stops the table's query for it, and starts it again."""
    add_table(server, tmp_path, columns=[])
    server.append("readings", [{"n": "text"}] * 1500)
    job = LakeJob(spark, JobOptions(server.url, TOKEN, tmp_path))
    stopping = threading.Event()
    running = threading.Thread(target=job.run, args=(stopping,))
    running.start()
    try:
        eventually(lambda: covered(server) == 1500, DEADLINE_S, what="the first rows")
        server.append("readings", [{"n": n} for n in range(3000)])
        eventually(
            lambda: server.reports["readings"]["dead_letters"] == 3000,
            DEADLINE_S,
            what="the dead letters",
        )
        server.tables["readings"]["replay"] = order("o1", retype={"column": "n", "type": "double"})
        eventually(
            lambda: (server.reports["readings"]["replay"] or {}).get("result"),
            DEADLINE_S,
            what="the retype",
        )
        done = server.reports["readings"]["replay"]
        assert (done["result"]["rows_after"], done["result"]["dead_letters_after"]) == (3000, 1500)
        server.tables["readings"]["replay"] = None
        server.append("readings", [{"n": 1}])
        eventually(lambda: covered(server) == 4501, DEADLINE_S, what="the rows after it")
        eventually(lambda: server.reports["readings"]["rows"] == 3001, DEADLINE_S, what="the count")
    finally:
        stopping.set()
        running.join()
    assert audit_table("readings", url=server.url, token=TOKEN).problems == []


def order(id: str, **given: Any) -> dict[str, Any]:
    nothing: dict[str, Any] = {
        "ranges": [],
        "columns": [],
        "rule_text": None,
        "retype": None,
        "accept_gap": False,
        "clean": None,
        "cancel": False,
    }
    return {"id": id, **nothing, **given}


def ordered(server: StreamServer, spark: Any, directory: Path, **given: Any) -> dict[str, Any]:
    """What an order of the broker ends with."""
    table = {**server.tables["readings"], "replay": order("o1", **given)}
    run = ReplayRun(spark, LakeApi(server.url, TOKEN), table)
    eventually(lambda: run.report()["state"] != "running", DEADLINE_S, what="the order is not done")
    assert run.report()["state"] == "done", run.report()
    return run.report()


SUBMIT = [
    str(Path(sys.executable).with_name("spark-submit")),
    "--master",
    "local[1]",
    "--name",
    "mine",
]


@pytest.mark.parametrize(
    ("command", "printed"),
    [
        (SUBMIT, "local[1] 7 mine 1 50000 true"),
        ([sys.executable], "local[2,4] 7 sluice lake 2 50000 true"),
    ],
)
def test_what_the_user_configured_for_spark_is_used(
    tmp_path: Path, command: list[str], printed: str
) -> None:
    script = tmp_path / "submitted.py"
    script.write_text(_SUBMITTED)
    settings = "spark.sql.shuffle.partitions 7\nspark.master local[3]\nspark.ui.enabled true\nspark.ui.port 0\n"
    (tmp_path / "spark-defaults.conf").write_text(settings)
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    variables["SPARK_CONF_DIR"] = str(tmp_path)
    find_java(tmp_path).apply(variables)
    full = [*command, str(script), str(tmp_path)]
    done = subprocess.run(
        full, env=variables, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip().splitlines()[-1] == printed, done.stderr


_SUBMITTED = """
import sys
from pathlib import Path
from bridges.spark.driver.session import start_session
session = start_session("local[2,4]", driver_memory="1g", work_dir=Path(sys.argv[1]) / "work")
context, conf = session.sparkContext, session.conf
arrow = conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")
page = conf.get("spark.ui.enabled")
tasks = conf.get("spark.sql.shuffle.partitions")
print(context.master, tasks, context.appName, context.defaultParallelism, arrow, page)
session.stop()
"""


def python_after(directory: Path, commands: str) -> str:
    """A Python for Spark's workers that starts in namespaces of its own, after these shell commands."""
    script = directory / "worker-python"
    arguments = shlex.join(
        [
            "unshare",
            "--map-root-user",
            "--mount",
            "sh",
            "-c",
            f'{commands} && exec {sys.executable} "$@"',
        ]
    )
    script.write_text(f'#!/bin/sh\nexec {arguments} python "$@"\n')
    script.chmod(0o700)
    return str(script)


@pytest.mark.heavy
@pytest.mark.parametrize("key", [[], ["n"]])
def test_killed_driver_and_killed_worker_lose_and_double_nothing(
    server: StreamServer, tmp_path: Path, key: list[str]
) -> None:
    add_table(server, tmp_path / "lake", key=key)
    local = LocalSpark(LakeSettings(), tmp_path / "lake", tmp_path / "logs" / "lake.log")

    async def live() -> None:
        local.want(True)
        await local.start(server.url, TOKEN)
        harms: list[Callable[[int], None]] = [_kill_driver, _kill_workers, lambda _: None]
        for stage, harm in enumerate(harms, start=1):
            server.append("readings", [{"n": n} for n in range(30_000)] + [b"bad"])
            end, log = stage * 30_001, _log(tmp_path)
            await until(lambda end=end: covered(server) == end, log, timeout_s=DEADLINE_S)  # type: ignore[misc]
            server.append("readings", [])
            harm(local.state()["pid"])
        pid = local.state()["pid"]
        family = psutil.Process(pid).children(recursive=True)
        await local.stop()
        await until(lambda: not any(_alive(one) for one in family), f"the end of {family}")

    asyncio.run(live())
    assert local.state()["state"] == "stopped"
    assert local.state()["restarts"] >= 1
    report = audit_table("readings", url=server.url, token=TOKEN)
    rows = 30_000 if key else 90_000
    assert (report.problems, report.shards[0].rows, report.shards[0].dead_letters) == ([], rows, 3)


def test_nothing_outlives_a_broker_that_was_killed(server: StreamServer, tmp_path: Path) -> None:
    add_table(server, tmp_path / "lake")
    server.append("readings", [{"n": 1}])
    parent = subprocess.Popen([sys.executable, "-c", _PARENT, server.url, str(tmp_path)], cwd=ROOT)
    try:
        eventually(lambda: covered(server) == 1, DEADLINE_S, what=_log(tmp_path))
        family = psutil.Process(parent.pid).children(recursive=True)
        assert {one.name() for one in family} >= {"java"}
    finally:
        parent.kill()
        parent.wait()
    eventually(lambda: not any(_alive(one) for one in family), what=f"the end of {family}")


_PARENT = """
import asyncio, sys
from pathlib import Path
from bridges.spark.driver.ledger import Ledger
from bridges.spark.broker_side.local import LocalSpark
from bridges.spark.broker_side.settings import LakeSettings
from bridges.spark.columns.place import Place

async def live():
    directory = Path(sys.argv[2])
    local = LocalSpark(LakeSettings(), directory / "lake", directory / "logs" / "lake.log")
    local.want(True)
    await local.start(sys.argv[1], "test-token")
    await asyncio.Event().wait()

asyncio.run(live())
"""


def _kill_driver(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def _kill_workers(pid: int) -> None:
    """Kill the Python processes under the JVM: workers and their daemon."""
    for process in psutil.Process(pid).children(recursive=True):
        if process.name().startswith("python"):
            process.kill()


def _alive(process: psutil.Process) -> bool:
    return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)


def _log(directory: Path) -> str:
    return f"see {directory / 'logs' / 'lake.log'}"
