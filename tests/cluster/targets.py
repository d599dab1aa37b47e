"""What the rule of ``tests.cluster.kills`` feeds besides its stream: a topic of Kafka, exactly once, and a Delta and an
Iceberg table, which the lake job of whichever machine has the first cell fills."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import pyarrow as pa
from deltalake import DeltaTable
from pyiceberg.table import StaticTable

from tests.cluster.kills import ROWS, define
from tests.support.kafka_server import Kafka
from tests.support.kafka_topic import Topic
from tests.support.network import Network
from tests.support.node import Node, eventually

TABLES: Final = ("delta", "iceberg")
_PACE: Final = {"commit_interval": 1, "commit_rows": 100_000}
_FILLED_S: Final = 240.0


class Targets:
    """Kafka in a network of its own, and tables in a directory that all machines reach."""

    def __init__(self, directory: Path, network: Network) -> None:
        self.kafka = Kafka(directory / "kafka", network=network)
        self.kafka.start()
        self._topic = asyncio.run(Topic(self.kafka).make())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kafka.kill()

    @staticmethod
    def settings(directory: Path) -> str:
        """Settings of the machines."""
        lake = f'directory = "{directory / "lake"}", master = "local[1,4]", driver_memory = 512m'
        return f"overload.enable = false\nlake {{ {lake} }}\n"

    def define(self, node: Node) -> None:
        """The rule, its action and its tables."""
        hosts = {"bootstrap_hosts": self.kafka.bootstrap}
        node.call("POST", "/connectors", {"name": "plant", "type": "kafka", **hosts})
        message = {"key": "${clientid}", "value": "${payload}"}
        parameters = {"topic": self._topic.name, "message": message, "exactly_once": True}
        action = {"name": ROWS, "type": "kafka", "connector": "plant", "parameters": parameters}
        node.call("POST", "/actions", action)
        define(node, [f"kafka:{ROWS}"])
        for kind in TABLES:
            node.call(
                "POST", "/lake/tables", {"name": kind, "stream": ROWS, "format": kind, **_PACE}
            )

    def check(self, node: Node, told: Sequence[bytes]) -> None:
        """Every message that was acknowledged is one record of the topic and one row of each table."""
        expected = Counter(told)
        eventually(lambda: self._records() == expected, _FILLED_S, 1)
        for kind in TABLES:
            eventually(partial(self._has_rows, node, kind, len(told)), _FILLED_S, 1)
            rows = _rows(node.call("GET", f"/lake/tables/{kind}"))
            assert Counter(value.encode() for value in rows["payload"].to_pylist()) == expected
            places = zip(rows["_shard"].to_pylist(), rows["_offset"].to_pylist(), strict=True)
            assert max(Counter(places).values()) == 1
            audit = node.call("POST", f"/lake/tables/{kind}:audit")
            assert audit["ok"], audit

    @staticmethod
    def _has_rows(node: Node, table: str, count: int) -> bool:
        return bool(node.call("GET", f"/lake/tables/{table}")["rows"] == count)

    def _records(self) -> Counter[bytes]:
        records = asyncio.run(self._topic.records(committed=True))
        return Counter(record.value for record in records)


def _rows(table: dict[str, Any]) -> pa.Table:
    """The rows of a table, by a reader that is none of Spark."""
    if table["format"] == "delta":
        return DeltaTable(table["path"]).to_pyarrow_table()
    return StaticTable.from_metadata(table["path"]).scan().to_arrow()
