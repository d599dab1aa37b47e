"""A broker whose own disk gets full while rows wait on it for a target that is away."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from tests.support.node import Node, eventually
from tests.support.small_disk import SmallDisk, small_disk

CONFIG: Final = "lake.run_spark = false\noverload.enable = false\nalarms { interval = 200ms, disk_free_min = 0 }\n"
RULE: Final = {
    "name": "all",
    "sql": 'SELECT payload.n AS n, payload.pad AS pad, topic FROM "n/#"',
    "actions": ["file:rows"],
}
REFUSED: Final = (0x97, 0x83)
ROOM_LEFT: Final = 2_000_000
PAD: Final = "x" * 5000


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "small", 48) as mounted:
        yield mounted


@pytest.fixture
def node(disk: SmallDisk, tmp_path: Path) -> Iterator[Node]:
    node = Node(
        disk.path / "data",
        config=CONFIG,
        environ={"SLUICE_ALLOWED__DIRECTORIES": json.dumps([str(tmp_path)])},
    )
    node.log = tmp_path / "node.log"
    node.start()
    yield node
    assert node.stop() == 0
    assert "Traceback" not in node.log.read_text()


def publish(node: Node, numbers: range) -> tuple[list[int], list[int]]:
    """Publish one after the other; what was acknowledged and what was refused."""
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id="pump", protocol=paho.MQTTv5)
    codes: dict[int, int] = {}
    client.on_publish = lambda *told: codes.__setitem__(told[2], told[3].value)
    client.connect(*node.mqtt)
    client.loop_start()
    sent = {}
    for number in numbers:
        info = client.publish(f"n/{number % 3}", json.dumps({"n": number, "pad": PAD}), 1)
        sent[info.mid] = number
        info.wait_for_publish(60)
    eventually(lambda: len(codes) == len(numbers))
    client.disconnect()
    client.loop_stop()
    assert {code for code in codes.values() if code >= 0x80} <= set(REFUSED), codes
    taken = [number for mid, number in sent.items() if codes[mid] < 0x80]
    return taken, [number for mid, number in sent.items() if codes[mid] >= 0x80]


def shown(node: Node) -> dict[str, Any]:
    """The action; its counters add up."""
    found: dict[str, Any] = node.call("GET", "/actions/rows")
    counts = found["metrics"]
    ends = (
        counts["success"]
        + counts["failed"]
        + counts["dropped"]
        + counts["queuing"]
        + counts["inflight"]
    )
    assert counts["matched"] == ends, counts
    return found


def alarms(node: Node) -> list[str]:
    return [one["name"] for one in node.call("GET", "/alarms")["items"]]


def test_rows_that_find_no_room_are_refused_to_the_publisher_and_the_others_arrive(
    node: Node, disk: SmallDisk, tmp_path: Path
) -> None:
    folder = tmp_path / "rows"
    node.call(
        "POST", "/connectors", {"name": "log", "type": "file", "filepath": str(folder / "rows.log")}
    )
    options = {"buffer_mode": "disk", "health_check_interval": "500ms"}
    node.call(
        "POST",
        "/actions",
        {"name": "rows", "type": "file", "connector": "log", "resource_opts": options},
    )
    node.call("POST", "/rules", RULE)
    taken, refused = publish(node, range(100))
    assert (len(taken), refused) == (100, [])
    disk.fill(left_bytes=ROOM_LEFT)
    more, refused = publish(node, range(100, 1100))
    assert more
    assert refused, "the disk did not get full"
    counts = shown(node)["metrics"]
    assert (counts["matched"], counts["dropped"], counts["dropped.not_stored"]) == (
        1100,
        len(refused),
        len(refused),
    )
    eventually(lambda: "store_not_writable" in alarms(node))
    disk.grow()
    folder.mkdir()
    eventually(lambda: not alarms(node))
    eventually(lambda: shown(node)["metrics"]["success"] == 100 + len(more))
    last, refused = publish(node, range(1100, 1200))
    assert (len(last), refused) == (100, [])
    eventually(lambda: shown(node)["metrics"]["success"] == 200 + len(more))
    found = [json.loads(line)["n"] for line in (folder / "rows.log").read_text().splitlines()]
    assert list(dict.fromkeys(found)) == taken + more + last
    assert shown(node)["status"] == "connected"
