"""A broker loads no pandas: not at its start, and not with the first message either."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_IMPORT = "from broker.storage.records import decode, encode"
_ASK = "keep_pandas_out()"
_CODE = """
import sys
from broker.core.stream import StreamRecord
from broker.storage.without_pandas import keep_pandas_out
{}
assert "pandas" not in sys.modules, "on import"
{}
record = StreamRecord(1, "topic", b"payload", 0, False, "client", None, None, None)
assert decode(encode(7, [record])) == [(7, record)]
assert "pandas" not in sys.modules, "with the first record"
import pandas
assert pandas.DataFrame({{"a": [1]}}).shape == (1, 1)
"""


@pytest.mark.parametrize(
    "steps", [(_IMPORT, _ASK), (_ASK, _IMPORT)], ids=["imported first", "asked first"]
)
def test_records_are_written_and_read_without_pandas_which_can_be_imported_all_the_same(
    steps: tuple[str, str],
) -> None:
    code = _CODE.format(*steps)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
