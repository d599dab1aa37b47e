"""Tables that are removed under a running broker with its own lake job: failed, then made again by a replay."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.clients import Client
from tests.support.node import Node, eventually, running, sluice

pytestmark = pytest.mark.spark
DEADLINE_S = 180.0
FORMATS = ("delta", "iceberg")
CONFIG = "overload.enable = false\nstream_defaults { retention_interval = 200ms, sealing_interval = 100ms }\n"


def publish(node: Node, numbers: range) -> None:
    with Client(node, "meter") as client:
        for number in numbers:
            client.publish("m/1", b'{"n": %d}' % number, 1)


def table(node: Node, name: str) -> dict[str, Any]:
    found: dict[str, Any] = node.call("GET", f"/lake/tables/{name}")
    return found


def has(node: Node, name: str, rows: int, end: int) -> bool:
    report = table(node, name)["report"] or {}
    return (report.get("rows"), report.get("offsets"), report.get("state")) == (
        rows,
        {"0": str(end)},
        "running",
    )


def is_failed(node: Node, name: str) -> bool:
    return bool(table(node, name)["state"] == "failed")


def first(node: Node) -> int:
    return int(node.call("GET", "/streams/m")["positions"][0]["first_offset"])


def test_a_replay_makes_removed_tables_again_and_says_what_is_missing(tmp_path: Path) -> None:
    with running(tmp_path / "data", config=CONFIG) as node:
        node.call("POST", "/streams", {"name": "m", "topics": ["m/#"], "retention": {"age": "1s"}})
        for name in FORMATS:
            spec = {"name": name, "stream": "m", "format": name, "commit_interval": 0.5}
            node.call("POST", "/lake/tables", spec)
        publish(node, range(20))
        for name in FORMATS:
            eventually(
                partial(has, node, name, 20, 20), DEADLINE_S, what=f"table {name} with 20 rows"
            )
        eventually(
            lambda: first(node) == 20, what="a stream without the records that both tables have"
        )
        for name in FORMATS:
            shutil.rmtree(table(node, name)["path"])
        for name in FORMATS:
            eventually(partial(is_failed, node, name), what=f"that {name} is failed")
        names = {f"table_failed:{name}" for name in FORMATS}
        eventually(
            lambda: names <= {one["name"] for one in node.call("GET", "/alarms")["items"]},
            what="alarms",
        )
        publish(node, range(20, 23))
        for name in FORMATS:
            refused = node.call(
                "POST", f"/lake/tables/{name}:replay?dry_run=true", {"from": 1}, expect=409
            )
            assert f"table '{name}' is gone from" in refused["detail"]
            done = sluice(node, "replay", name)
            assert done.returncode == 0, done.stderr
            assert (
                f"filled table {name} again from [20, 23) of shard 0: it has 3 rows" in done.stdout
            )
            assert "the stream no longer has [0, 20) of shard 0" in done.stdout
        publish(node, range(23, 25))
        for name in FORMATS:
            eventually(
                partial(has, node, name, 5, 25), DEADLINE_S, what=f"table {name} that goes on"
            )
            audit = node.call("POST", f"/lake/tables/{name}:audit")
            assert (
                audit["problems"],
                audit["shards"][0]["expired"],
                audit["shards"][0]["rows"],
            ) == ([], 20, 5)
        eventually(
            lambda: not names & {one["name"] for one in node.call("GET", "/alarms")["items"]},
            what="no alarm",
        )
