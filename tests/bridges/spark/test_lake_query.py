"""The reason that a failed query gives, and its next start."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bridges.spark.driver.api import LakeApi
from bridges.spark.driver.query import QuerySettings, TableQuery
from bridges.spark.driver.spark_errors import sentence_of
from tests.bridges.spark.stream_server import TOKEN, StreamServer
from tests.support.node import eventually


@pytest.mark.parametrize(
    ("trace", "sentence"),
    [
        (
            (
                "[STREAM_FAILED] Query [id = 1] terminated with exception: boom\n"
                "Traceback (most recent call last):\n"
                '  File "source.py", line 1\n'
                "pyspark_sluice.errors.RangeGone: stream 's' shard 0 holds offsets [5, 9), not all of [0, 9)\n"
                "\tat org.apache.spark.Something\n"
            ),
            "stream 's' shard 0 holds offsets [5, 9), not all of [0, 9)",
        ),
        (
            (
                "An error occurred while calling o1.load.\n: java.lang.IllegalStateException: outer\n"
                "Caused by: java.io.IOException: disk full\n"
            ),
            "java.io.IOException: disk full",
        ),
        (
            "Traceback:\nModuleNotFoundError: No module named 'msgspec.json'\n SQLSTATE: 38000",
            "a Python process of Spark lacks package 'msgspec'. Try: pip install 'sluicemq[spark]' on every host.",
        ),
        (
            (
                "pyspark.errors.exceptions.captured.PythonException: a worker\n"
                "OSError: [Errno 30] Failed to open local file '/x'. Detail: [errno 30] Read-only file system\n"
            ),
            "the table's files cannot be written: Read-only file system",
        ),
        (
            "sqlalchemy.exc.DatabaseError: (sqlite3.DatabaseError) file is not a database",
            "the table's catalog cannot be used: (sqlite3.DatabaseError) file is not a database",
        ),
        ("ValueError: shard 0: 3 records came", "ValueError: shard 0: 3 records came"),
        (
            'java.io.IOException: Cannot run program "/opt/python": error=2, No such file or directory\n\tat java.base',
            "Python '/opt/python' cannot be started. Try: PYSPARK_PYTHON with the path of a Python on every host.",
        ),
        (
            (
                "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has "
                "different version: 3.12 than that in driver: 3.11, PySpark cannot run with different minor versions."
            ),
            "expected Python 3.11, as the driver has, got 3.12. Try: PYSPARK_PYTHON with its path.",
        ),
        (
            (
                "[STREAM_FAILED] Query [id = 1] terminated with exception: Python worker failed to connect back. "
                "SQLSTATE: XXKST\n=== Streaming Query ===\nIdentifier: [id = 1]\n"
            ),
            "a Python process of Spark did not start within 10 s: the machine is busy, or that Python does not run.",
        ),
        ("Stream closed", "a Python process of Spark ended (Stream closed)"),
        ("", "no reason given"),
    ],
)
def test_a_trace_becomes_a_sentence(trace: str, sentence: str) -> None:
    assert sentence_of(trace) == sentence


class FailingSession:
    """A Spark that runs no jobs."""

    def __init__(self, why: str) -> None:
        self.attempts = 0
        self._why = why

    @property
    def sparkContext(self) -> Any:
        self.attempts += 1
        raise RuntimeError(self._why)


@pytest.mark.parametrize(
    ("why", "pauses_s"),
    [
        ("java.lang.IllegalStateException: no room", [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]),
        (
            "org.apache.spark.SparkException: Python worker failed to connect back.",
            [30.0, 30.0, 30.0],
        ),
    ],
)
def test_a_query_pauses_longer_after_a_python_process_that_did_not_connect(
    server: StreamServer, tmp_path: Path, why: str, pauses_s: list[float]
) -> None:
    server.make("s")
    spec = {
        "name": "t",
        "stream": "s",
        "format": "delta",
        "path": str(tmp_path / "t"),
        "columns": [],
    }
    session, now = FailingSession(why), 0.0
    settings = QuerySettings(max_rows=1000, job="test")
    query = TableQuery(
        session,
        LakeApi(server.url, TOKEN),
        {**spec, "commit_interval": 1.0, "commit_rows": 9},
        settings,
        lambda: now,
    )

    def has_attempted(times: int) -> bool:
        query.step()
        return session.attempts == times

    eventually(partial(has_attempted, 1), 30.0, what="the query was not started")
    for attempt, pause_s in enumerate(pauses_s, start=1):
        eventually(lambda: query._watch._began is None, 30.0, what="the watch did not end a look")
        now += pause_s - 0.01
        query.step()
        assert session.attempts == attempt, f"started again before {pause_s} s"
        now += 0.02
        eventually(
            partial(has_attempted, attempt + 1), 30.0, what=f"no new start after {pause_s} s"
        )
