"""Bridges of a whole broker: what was acknowledged is in the target, whenever the broker or the target ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from tests.support.node import Node, Reachable, eventually


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path / "data").start()
    yield made
    if made.process is not None and made.process.poll() is None:
        made.stop()


def define(node: Node, folder: Path, **options: Any) -> None:
    node.call(
        "POST", "/connectors", {"name": "log", "type": "file", "filepath": str(folder / "rows.log")}
    )
    spec = {"name": "rows", "type": "file", "connector": "log", "resource_opts": options}
    node.call("POST", "/actions", spec)
    rule = {
        "name": "all",
        "sql": 'SELECT payload.n AS n, clientid FROM "n/#"',
        "actions": ["file:rows"],
    }
    node.call("POST", "/rules", rule)


def publish(node: Reachable, numbers: range, *, version: int = 5) -> list[Any]:
    """Publish and wait; the reason codes."""
    client = paho.Client(
        CallbackAPIVersion.VERSION2, client_id="pump", protocol=MQTTProtocolVersion(version)
    )
    codes: list[Any] = []
    client.on_publish = lambda *arguments: codes.append(arguments[3])
    client.connect(*node.mqtt)
    client.loop_start()
    for info in [
        client.publish(f"n/{number % 3}", json.dumps({"n": number}), 1) for number in numbers
    ]:
        info.wait_for_publish(60)
    client.loop_stop()
    client.disconnect()
    return codes


def arrived(folder: Path) -> list[int]:
    file = folder / "rows.log"
    return (
        [json.loads(line)["n"] for line in file.read_text().splitlines()] if file.exists() else []
    )


def test_what_was_acknowledged_while_the_target_was_away_arrives_after_kill_nine(
    node: Node, tmp_path: Path
) -> None:
    folder = tmp_path / "rows"
    define(node, folder, buffer_mode="disk")
    publish(node, range(500))
    eventually(
        lambda: (
            "rows does not exist; create it" in node.call("GET", "/actions/rows")["status_reason"]
        )
    )
    node.kill()
    node.start()
    counts = node.call("GET", "/actions/rows")["metrics"]
    assert counts["matched"] == counts["queuing"] + counts["inflight"] == 500
    folder.mkdir()
    eventually(lambda: len(arrived(folder)) >= 500)
    assert arrived(folder) == list(range(500))


def test_kill_nine_while_rows_are_sent_loses_nothing_and_keeps_the_order(
    node: Node, tmp_path: Path
) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    define(node, folder, buffer_mode="disk", batch_time="0s", batch_size=20)
    for start in (0, 400):
        publish(node, range(start, start + 400))
        node.kill()
        node.start()
    eventually(lambda: set(arrived(folder)) == set(range(800)))
    eventually(lambda: node.call("GET", "/actions/rows")["metrics"]["queuing"] == 0)
    firsts = list(dict.fromkeys(arrived(folder)))
    assert firsts == sorted(firsts)


def test_a_full_buffer_that_refuses_tells_the_publisher(node: Node, tmp_path: Path) -> None:
    define(node, tmp_path / "rows", buffer_mode="disk", max_buffer_records=10, overflow="refuse")
    codes = [code.value for code in publish(node, range(20))]
    assert codes.count(0x83) == 10, codes
    (tmp_path / "rows").mkdir()
    eventually(lambda: arrived(tmp_path / "rows") == list(range(10)))


def test_rows_in_memory_are_sent_before_the_broker_ends(node: Node, tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    define(node, folder, batch_time="500ms", batch_size=100_000)
    publish(node, range(300))
    assert node.stop() == 0
    assert arrived(folder) == list(range(300))
