"""Upkeep of a large table in a worker of Spark, while the driver and other workers fill other tables."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from bridges.spark.driver import upkeep
from bridges.spark.driver.audit import audit_table
from bridges.spark.driver.batch import TableWriter
from bridges.spark.driver.ledger import Ledger
from bridges.spark.driver.replay import retype_column
from bridges.spark.driver.upkeep import in_one_worker, tidy
from bridges.spark.job import JobOptions, LakeJob
from bridges.spark.tables.contract import MANY_SMALL_FILES
from bridges.spark.tables.formats import open_table
from broker.core.errors import Invalid
from tests.bridges.spark.batches import records, tasks
from tests.bridges.spark.stream_server import TOKEN, StreamServer
from tests.bridges.spark.test_lake_audit import Lake
from tests.bridges.spark.test_lake_job import DEADLINE_S, add_table, covered, order
from tests.support.node import eventually

pytestmark = pytest.mark.spark

LARGE = 200_000
PAD = "x" * 40


def refuse(text: str) -> None:
    raise Invalid(text)


def fail(text: str) -> None:
    raise ValueError(text)


def test_upkeep_runs_in_a_process_of_its_own_and_its_errors_are_said(spark: Any) -> None:
    assert in_one_worker(spark, os.getpid) != os.getpid()
    assert in_one_worker(None, os.getpid) == os.getpid()
    with pytest.raises(Exception, match=r"^not so$"):
        in_one_worker(spark, refuse, "not so")
    with pytest.raises(Exception, match=r"^ValueError: no such value$"):
        in_one_worker(spark, fail, "no such value")


class CountedLock:
    """A lock that counts the calls that have come to it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.calls = 0

    def __enter__(self) -> None:
        self.calls += 1
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()


def test_upkeep_of_one_table_runs_at_a_time(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = CountedLock()
    monkeypatch.setattr(upkeep, "_one_at_a_time", counted)
    held, log = tmp_path / "held", tmp_path / "held.log"
    both = [threading.Thread(target=in_one_worker, args=(spark, hold, str(held))) for _ in range(2)]
    for one in both:
        one.start()
    eventually(
        lambda: counted.calls == 2 and log.exists(),
        DEADLINE_S,
        what="a worker, and a call that waits",
    )
    assert counted.lock.locked()
    (tmp_path / "held.released").touch()
    for one in both:
        one.join(DEADLINE_S)
    assert log.read_text() == "alone alone "


def hold(path: str) -> None:
    """Note whether another call has the same path, and keep it until it is released."""
    try:
        Path(path).mkdir()
        text = "alone "
    except FileExistsError:
        text = "together "
    with open(f"{path}.log", "a", encoding="utf-8") as log:
        log.write(text)
    eventually(Path(f"{path}.released").exists, DEADLINE_S, what="the release")
    with suppress(FileNotFoundError):
        Path(path).rmdir()


@contextmanager
def running(job: LakeJob) -> Iterator[None]:
    stopping = threading.Event()
    thread = threading.Thread(target=job.run, args=(stopping,))
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def ordered_state(server: StreamServer) -> str:
    return str((server.reports.get("large", {}).get("replay") or {}).get("state", ""))


def fill_large(server: StreamServer, tmp_path: Path, table_format: str) -> None:
    columns = [{"name": "n", "type": "double"}, {"name": "pad", "type": "string"}]
    add_table(server, tmp_path, "large", columns=columns, format=table_format)
    add_table(server, tmp_path, "small")
    server.append("large", [{"n": n, "pad": PAD} for n in range(LARGE)])
    eventually(lambda: covered(server, "large") == LARGE, DEADLINE_S, what="the large table")


def workers(spark: Any) -> list[psutil.Process]:
    jvm = psutil.Process(spark.sparkContext._gateway.proc.pid)
    return [one for one in jvm.children(recursive=True) if one.name().startswith("python")]


def cpu_s(processes: list[psutil.Process]) -> float:
    return float(sum(one.cpu_times().user for one in processes if one.is_running()))


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_other_tables_are_filled_while_a_large_one_is_retyped(
    server: StreamServer, tmp_path: Path, spark: Any, table_format: str
) -> None:
    with running(LakeJob(spark, JobOptions(server.url, TOKEN, tmp_path))):
        fill_large(server, tmp_path, table_format)
        driver_s, worker_s = time.process_time(), cpu_s(workers(spark))
        server.tables["large"]["replay"] = order("o1", retype={"column": "n", "type": "json"})
        commits = 0
        small = partial(covered, server, "small")
        while ordered_state(server) not in ("done", "failed"):
            server.append("small", [{"n": commits}])
            commits += 1
            eventually(lambda end=commits: small() >= end, DEADLINE_S, what="the small table")  # type: ignore[misc]
        driver_s, worker_s = time.process_time() - driver_s, cpu_s(workers(spark)) - worker_s
        replay = server.reports["large"]["replay"]
        assert replay["state"] == "done", replay
        assert replay["result"]["rows_after"] == LARGE
    assert commits >= 2, "no batch of the small table was committed meanwhile"
    assert driver_s < worker_s, "rows were converted by the driver"
    assert audit_table("large", url=server.url, token=TOKEN).problems == []
    assert audit_table("small", url=server.url, token=TOKEN).problems == []


def test_a_retype_whose_workers_are_killed_leaves_each_record_once(
    server: StreamServer, tmp_path: Path, spark: Any
) -> None:
    with running(LakeJob(spark, JobOptions(server.url, TOKEN, tmp_path))):
        fill_large(server, tmp_path, "delta")
        before = {one.pid: cpu_s([one]) for one in workers(spark)}
        server.tables["large"]["replay"] = order("o1", retype={"column": "n", "type": "json"})

        def busy() -> list[psutil.Process]:
            return [one for one in workers(spark) if cpu_s([one]) - before.get(one.pid, 0.0) > 0.3]

        for victim in eventually(
            busy, DEADLINE_S, every_s=0.01, what="a worker that converts rows"
        ):
            victim.kill()
        assert ordered_state(server) != "done", "killed too late"
        eventually(
            lambda: ordered_state(server) in ("done", "failed"), DEADLINE_S, what="the retype"
        )
        assert ordered_state(server) == "done", server.reports["large"]
    audit = audit_table("large", url=server.url, token=TOKEN)
    assert (audit.problems, audit.shards[0].rows) == ([], LARGE)


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_many_small_files_are_joined_by_a_worker_beside_batches(
    server: StreamServer, tmp_path: Path, spark: Any, table_format: str
) -> None:
    lake = Lake(server, tmp_path, table_format)
    writer = TableWriter(lake.spec, "job")
    for number in range(MANY_SMALL_FILES):
        lake.publish([{"a": number}])
        writer.write(tasks(records(number, [{"a": number}])))
    calls = []

    def beside(session: Any, run: Callable[[Any], str], pieces: list[Any]) -> list[str]:
        calls.append(len(pieces))
        lake.publish([{"a": 1}])
        writer.write(tasks(records(MANY_SMALL_FILES, [{"a": 1}])))
        return list(session.sparkContext.parallelize(pieces, 1).map(run).collect())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(upkeep, "in_workers", beside)
        tidy(lake.spec, Ledger(lake.spec.place, lake.spec.name), time.monotonic(), spark)
    assert calls == [1]
    table = open_table(lake.spec.format, lake.spec.place, lake.spec.binding)
    assert table is not None
    assert (table.rows(), len(table.files()) < MANY_SMALL_FILES) == (MANY_SMALL_FILES + 1, True)
    assert audit_table("readings", url=server.url, token=TOKEN).problems == []


def test_a_retype_in_this_process_gives_the_same_report(
    server: StreamServer, tmp_path: Path
) -> None:
    lake = Lake(server, tmp_path, "delta")
    lake.publish([{"a": 1}])
    lake.fill()
    [column] = [one.name for one in lake.spec.columns if one.key == "a"] or ["a"]
    report = in_one_worker(None, retype_column, lake.spec, "job", column, "json")
    assert (report["rows_after"], report["type"]) == (1, "json")
