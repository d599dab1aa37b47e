"""A table continues on the broker that was restored from a backup."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.end_to_end.test_backup import KEY, sluice
from tests.end_to_end.test_lost_tables import DEADLINE_S, has, publish
from tests.support.node import eventually, running

pytestmark = pytest.mark.spark


def test_a_table_continues_after_a_restore(tmp_path: Path) -> None:
    config = f'overload.enable = false\nlake.directory = "{tmp_path / "tables"}"\n'
    with running(tmp_path / "data", config=config) as node:
        node.call("POST", "/streams", {"name": "m", "topics": ["m/#"]})
        spec = {"name": "t", "stream": "m", "format": "delta", "commit_interval": 0.5}
        node.call("POST", "/lake/tables", spec)
        publish(node, range(20))
        eventually(partial(has, node, "t", 20, 20), DEADLINE_S, what="a table with 20 rows")
        sluice(node.data_dir, "backup", str(tmp_path / "backup"), key=KEY)
    sluice(tmp_path / "restored", "restore", str(tmp_path / "backup"), key=KEY)
    with running(tmp_path / "restored") as restored:
        publish(restored, range(20, 30))
        eventually(partial(has, restored, "t", 30, 30), DEADLINE_S, what="a table with 30 rows")
