"""``sluice serve --workers 2`` with a table: one lake job fills it from the shards of both cells, each record once,
while cells are killed."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from deltalake import DeltaTable
from paho.mqtt.enums import CallbackAPIVersion

from broker.core.cells import Place
from pyspark_sluice.client import StreamClient
from tests.end_to_end.meters import ForgettingLess
from tests.support.node import TOKEN, Node, eventually

pytestmark = pytest.mark.spark

DEADLINE_S = 420.0
PACE = {"commit_interval": 1, "commit_rows": 100_000}
PLACE = Place(0, 2, Path())


class Device:
    """A client that publishes numbers with QoS 1 and a session, until it is stopped; what is acknowledged counts."""

    def __init__(self, node: Node, name: str) -> None:
        self.name = name
        self.taken: set[int] = set()
        self.sent = 0
        self._numbers: dict[int, int] = {}
        self._ended = threading.Event()
        self._client = ForgettingLess(
            CallbackAPIVersion.VERSION2, name, protocol=paho.MQTTv311, clean_session=False
        )
        self._client.reconnect_delay_set(1, 1)
        self._client.on_publish = self._on_publish
        self._client.connect(*node.mqtt)
        self._client.loop_start()
        self._thread = threading.Thread(target=self._publish, name=name, daemon=True)
        self._thread.start()

    def _on_publish(self, _client: Any, _data: Any, mid: int, *_: Any) -> None:
        self.taken.add(self._numbers[mid])

    def _publish(self) -> None:
        while not self._ended.wait(0.02):
            if self.sent - len(self.taken) < 50:
                info = self._client.publish(
                    f"meters/{self.name}", f'{{"d": "{self.name}", "n": {self.sent}}}', 1
                )
                self._numbers[info.mid] = self.sent
                self.sent += 1

    def stop(self) -> None:
        """Publish no more, and wait for the acknowledgements."""
        self._ended.set()
        self._thread.join()
        eventually(lambda: len(self.taken) == self.sent, DEADLINE_S, what="acknowledgements")
        self._client.disconnect()
        self._client.loop_stop()


def names_of(cell: int, count: int, prefix: str = "device") -> list[str]:
    names = (f"{prefix}-{number}" for number in range(1000))
    own = (name for name in names if PLACE.cell_of(name) == cell)
    return [next(own) for _ in range(count)]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    node = Node(tmp_path_factory.mktemp("cells") / "data", workers=2).start()
    node.call("POST", "/streams", {"name": "meters", "shards": 2})
    node.call("POST", "/rules", {
        "name": "meters", "sql": 'SELECT payload.d AS d, payload.n AS n FROM "meters/#"',
        "actions": [{"type": "stream", "stream": "meters"}],
    })  # fmt: skip
    node.call(
        "POST", "/lake/tables", {"name": "meters", "stream": "meters", "format": "delta", **PACE}
    )
    yield node
    node.stop()
    for cell in range(2):
        with suppress(OSError):
            node.cell(cell).kill()


def rows_of(node: Node) -> list[dict[str, Any]]:
    """The rows of the table."""
    path = node.call("GET", "/lake/tables/meters")["path"]
    rows: list[dict[str, Any]] = DeltaTable(path).to_pyarrow_table().to_pylist()
    return rows


def stale(node: Node) -> list[int]:
    """The shards whose cell does not answer."""
    shards = node.call("GET", "/streams/meters/positions")["shards"]
    return [shard["shard"] for shard in shards if shard.get("stale")]


def check(node: Node, devices: list[Device]) -> None:
    """Everything that was acknowledged is in the table, and each record of the stream once."""
    for device in devices:
        device.stop()
    eventually(lambda: not stale(node), DEADLINE_S, what="all cells answer")
    where = StreamClient(node.url, TOKEN, "meters").positions()
    wanted = Counter(
        {(shard.shard, offset): 1 for shard in where.shards for offset in range(shard.next)}
    )
    total = sum(wanted.values())
    assert [shard.shard for shard in where.shards] == [0, 1, 2, 3]
    assert all(sum(shard.next for shard in where.shards[part:][:2]) for part in (0, 2))
    eventually(
        lambda: node.call("GET", "/lake/tables/meters")["rows"] == total,
        DEADLINE_S,
        0.5,
        what=f"{total} rows",
    )
    rows = rows_of(node)
    assert Counter((row["_shard"], row["_offset"]) for row in rows) == wanted
    for device in devices:
        got = Counter(row["n"] for row in rows if row["d"] == device.name)
        assert set(got) == device.taken
        assert got.total() == len(device.taken), "a resend was a row again"


def test_a_table_has_the_rows_of_all_cells(node: Node) -> None:
    devices = [Device(node, name) for cell in range(2) for name in names_of(cell, 4)]
    eventually(lambda: min(len(device.taken) for device in devices) >= 50, DEADLINE_S)
    check(node, devices)


@pytest.mark.parametrize("cell", [1, 0])
def test_each_row_is_there_once_after_a_kill_under_load(node: Node, cell: int) -> None:
    before = node.call("GET", "/lake/tables/meters")["rows"] or 0
    devices = [Device(node, name) for of in range(2) for name in names_of(of, 4, f"kill-{cell}")]
    rows = eventually(
        lambda: (
            (count := node.call("GET", "/lake/tables/meters")["rows"] or 0) > before + 100 and count
        ),
        DEADLINE_S,
    )
    node.cell(cell).send_signal(signal.SIGKILL)
    # rows go on to come, those of the cell that was killed among them
    eventually(
        lambda: (node.call("GET", "/lake/tables/meters")["rows"] or 0) > rows + 1000,
        DEADLINE_S,
        0.5,
    )
    check(node, devices)
