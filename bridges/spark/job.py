"""The lake job: every table that is configured is filled from its stream, exactly once.

One driver with one Spark and a thread of batches per table. Runs as a child of the broker
(``bridges.spark.broker_side.local``), by hand (``sluice lake run``) and under ``spark-submit``, always the same: the
API says which tables there are, the tables themselves say how far they are. Stopped by SIGTERM or SIGINT.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridges.spark.driver.api import LakeApi, Spec
from bridges.spark.driver.batch import TableSpec, TableWriter
from bridges.spark.driver.executors import Executors, ExecutorsLack
from bridges.spark.driver.orphan import die_with_parent
from bridges.spark.driver.query import QuerySettings, TableQuery, monotonic
from bridges.spark.driver.replay import ReplayRun, is_alone
from bridges.spark.driver.session import lake_session
from broker.config.allowed import trusted
from broker.core.errors import SluiceError, Unavailable
from broker.core.process import keep_files_private
from pyspark_sluice.errors import SourceError

log = logging.getLogger("sluice.lake")
TOKEN_VARIABLE = "SLUICE_API_TOKEN"
CHECK_SAID_NO = 7
_TICK_S = 0.5
_TABLES_EVERY_S = 1.0
_REPORT_EVERY_S = 1.0
# Interval between reports that say the same as the last one: the broker knows that the job is alive.
_REPORT_AT_LEAST_EVERY_S = 5.0
# A change of one of these restarts a table's query; the rest of a spec is for users.
_OWN_FIELDS = (
    "name",
    "stream",
    "format",
    "path",
    "store",
    "catalog",
    "catalog_table",
    "catalog_settings",
    "columns",
    "rule_text",
    "start",
    "key",
    "tables",
    "max_tables",
    "delete_when",
    "commit_interval",
    "commit_rows",
    "partition_by",
    "sort_by",
    "retention",
)


@dataclass(frozen=True, slots=True)
class JobOptions:
    """Settings of the job. ``directory`` of this machine takes scratch files; lasting state is in the tables."""

    url: str
    token: str
    directory: Path
    master: str = "local[2,4]"
    max_rows: int = 500_000
    driver_memory: str = "1g"
    check: bool = False


class LakeJob:
    """Keeps a query per table, runs the replays that are asked for, and reports on both to the API."""

    def __init__(self, session: Any, options: JobOptions) -> None:
        self._session = session
        self._api = LakeApi(options.url, options.token)
        job = f"lake-{uuid.uuid4().hex[:12]}"
        executors = Executors(session, options.url, options.token)
        others = None if executors.are_local else executors
        self._settings = QuerySettings(options.max_rows, job, others)
        self._queries: dict[str, TableQuery] = {}
        self._replays: dict[str, ReplayRun] = {}
        self._news = threading.Event()
        """Set where a report should not wait for its turn."""
        self._reported: dict[str, tuple[dict[str, Any], float]] = {}
        """The last report about a table, and its time."""

    def run(self, stopping: threading.Event) -> None:
        """Work until ``stopping`` is set.

        Raises:
            Unavailable: Spark has ended the session.
        """
        tables_at = 0.0
        # On a thread of its own: a query that starts takes its time.
        reporting = threading.Thread(
            target=self._keep_reporting, args=(stopping,), name="reports", daemon=True
        )
        reporting.start()
        threading.Thread(
            target=self._keep_tidy, args=(stopping,), name="upkeep", daemon=True
        ).start()
        while not stopping.is_set():
            if self._has_ended() and not stopping.is_set():
                stopping.set()
                raise Unavailable(
                    "Spark has ended the session; its log says why. Try: start the job again."
                )
            now = monotonic()
            if now >= tables_at:
                self._look_for_tables()
                tables_at = now + _TABLES_EVERY_S
            for name, query in self._queries.items():
                if not self._is_alone(name):
                    query.step()
            stopping.wait(_TICK_S)
        reporting.join()
        for query in self._queries.values():
            query.stop()
        self._report()

    def _has_ended(self) -> bool:
        from py4j.protocol import Py4JError

        try:
            return bool(self._session.sparkContext._jsc.sc().isStopped())
        except (OSError, Py4JError):  # so has the JVM
            return True

    def _keep_reporting(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            self._news.wait(_REPORT_EVERY_S)
            self._news.clear()
            try:
                self._report()
            except Exception:  # a table that cannot say how it is must not silence the others
                log.exception("lake.report_failed")

    def _keep_tidy(self, stopping: threading.Event) -> None:
        """Tidy one table after the other."""
        self._session.sparkContext.setLocalProperty("spark.scheduler.pool", "upkeep")
        while not stopping.wait(_TICK_S):
            for name, query in list(self._queries.items()):
                if not self._is_alone(name) and not stopping.is_set():
                    query.tend()

    def _look_for_tables(self) -> None:
        try:
            tables = self._api.tables()
        except Unavailable as error:
            log.warning("lake.broker_away reason=%s", error)
            return
        wanted = {spec["name"]: _own(spec) for spec in tables}
        for name in [
            name for name, query in self._queries.items() if wanted.get(name) != query.spec
        ]:
            self._queries.pop(name).stop()
            self._reported.pop(name, None)
        for name, spec in wanted.items():
            if name not in self._queries:
                self._queries[name] = TableQuery(
                    self._session, self._api, spec, self._settings, monotonic
                )
        for table in tables:
            query = self._queries[table["name"]]
            query.expected, query.begins = table.get("expected") or {}, table.get("begins")
        self._look_for_replays({spec["name"]: spec for spec in tables if spec.get("replay")})

    def _look_for_replays(self, wanted: dict[str, Spec]) -> None:
        for name, run in list(self._replays.items()):
            order = wanted[name]["replay"] if name in wanted else None
            if order is None or order["id"] != run.id:
                run.cancel()
            else:
                run.follow(order)
            if order is None or order["id"] != run.id:
                del self._replays[name]
        for name, table in wanted.items():
            if name not in self._replays:
                order = table["replay"]
                if name in self._queries and is_alone(table):
                    self._queries[name].stop()
                self._replays[name] = ReplayRun(self._session, self._api, table, self._news.set)

    def _is_alone(self, name: str) -> bool:
        return name in self._replays and self._replays[name].is_alone

    def _report(self) -> None:
        for name, query in list(self._queries.items()):
            replay = self._replays.get(name)
            report = {**query.report(), "replay": None if replay is None else replay.report()}
            last, at = self._reported.get(name, ({}, 0.0))
            if (
                _without_time(report) == _without_time(last)
                and monotonic() - at < _REPORT_AT_LEAST_EVERY_S
            ):
                continue
            try:
                self._api.report(name, report)
                self._reported[name] = report, monotonic()
            except SluiceError as error:
                log.warning("lake.report_failed table=%s reason=%s", name, error)


def _own(spec: Spec) -> Spec:
    return {field: spec.get(field) for field in _OWN_FIELDS}


def _without_time(report: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in report.items() if key != "at"}


def run_job(options: JobOptions, stopping: threading.Event) -> int:
    """Start Spark and work until ``stopping`` is set, or only check the executors; the exit status.

    Raises:
        MissingDependency: PySpark or Java is not there; says what to install.
    """
    with lake_session(options.directory, options.master, options.driver_memory) as session:
        if options.check:
            return check_executors(session, options)
        LakeJob(session, options).run(stopping)
    return 0


def check_executors(session: Any, options: JobOptions) -> int:
    """Print what executors lack to fill each table; the exit status."""
    api = LakeApi(options.url, options.token)
    executors = Executors(session, options.url, options.token)
    status = 0
    for table in api.tables():
        try:
            spec = TableSpec.of_api(table, api.stream(table["stream"], deadline_s=5.0).positions())
            TableWriter(spec, job="check")
            executors.check(spec)
            print(f"table {table['name']}: ok")
        except ExecutorsLack as error:
            status = CHECK_SAID_NO
            print("\n".join(f"table {table['name']}: {sentence}" for sentence in error.sentences))
    return status


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m bridges.spark.job``; the token is in SLUICE_API_TOKEN, never among the arguments."""
    options = parse_arguments(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    die_with_parent()
    keep_files_private()
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    try:
        with trusted():
            return run_job(options, stopping)
    except (SluiceError, SourceError) as error:
        print(f"sluice lake: {error}", file=sys.stderr)
        return 1


def _directory(text: str) -> Path:
    return Path(text).resolve()


def parse_arguments(arguments: Sequence[str] | None) -> JobOptions:
    """Options from the command line and the environment."""
    parser = argparse.ArgumentParser(
        prog="sluice lake run", description="Fill the configured lake tables."
    )
    defaults = JobOptions("", "", Path())
    parser.add_argument(
        "--url", default="http://127.0.0.1:18083", help="address of the management API"
    )
    parser.add_argument("--directory", type=_directory, required=True, help="for scratch files")
    parser.add_argument("--master", default=defaults.master, help="Spark master")
    parser.add_argument(
        "--max-rows", type=int, default=defaults.max_rows, help="rows of a micro-batch at most"
    )
    parser.add_argument(
        "--driver-memory", default=defaults.driver_memory, help="memory of Spark's driver"
    )
    parser.add_argument(
        "--check", action="store_true", help="report what executors lack for each table, and end"
    )
    return JobOptions(
        token=os.environ.get(TOKEN_VARIABLE, ""), **vars(parser.parse_args(arguments))
    )


if __name__ == "__main__":
    sys.exit(main())
