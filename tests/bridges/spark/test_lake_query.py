"""What is told of a query that failed."""

from __future__ import annotations

import pytest

from bridges.spark.failures import sentence_of


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
        ("Stream closed", "a Python process of Spark ended (Stream closed)"),
        ("", "no reason given"),
    ],
)
def test_a_trace_becomes_a_sentence(trace: str, sentence: str) -> None:
    assert sentence_of(trace) == sentence
