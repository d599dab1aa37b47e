"""A whole broker with two zones: what their clients find after a reconnect, and after ``kill -9``."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from copy import copy
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest

from tests.end_to_end.clients import Client, publish
from tests.support.node import TOKEN, Node, eventually, running

CONFIG = """
lake.run_spark = false
zones.telemetry { sessions = memory, mqtt { max_queued_messages = 5, max_packet_size = 2KB } }
listeners.tcp.telemetry { bind = "127.0.0.1:0", zone = telemetry }
"""
DOORS = ("default", "telemetry")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with running(tmp_path / "node", config=CONFIG) as node:
        yield node


def door(node: Node, zone: str) -> Node:
    """The node as clients of one zone's listener see it."""
    [shown] = [one for one in node.call("GET", "/listeners")["items"] if one["zone"] == zone]
    host, _, port = shown["address"].rpartition(":")
    seen = copy(node)
    seen.mqtt = (host, int(port))
    return seen


def lasting(node: Node, zone: str, version: int = paho.MQTTv5) -> Client:
    """The client of a zone, with a session that outlives its connection."""
    return Client(door(node, zone), f"in-{zone}", version=version, is_clean=False, expiry_s=3600)


def leave_and_publish(node: Node, *payloads: str, version: int = paho.MQTTv5) -> None:
    """Both zones' clients subscribe and go; then there are messages for them."""
    for zone in DOORS:
        with lasting(node, zone, version) as client:
            client.subscribe("plant/#", 1)
    eventually(
        lambda: all(not session["connected"] for session in node.call("GET", "/sessions")["items"])
    )
    for payload in payloads:
        publish(node, "plant/1", payload, "-q", "1")


@pytest.mark.parametrize("version", [paho.MQTTv311, paho.MQTTv5], ids=["3.1.1", "5.0"])
def test_both_keep_sessions_over_a_reconnect_and_one_over_a_kill(node: Node, version: int) -> None:
    leave_and_publish(node, "one", "two", version=version)
    for zone in DOORS:
        with lasting(node, zone, version) as client:
            assert client.flags.session_present
            assert [client.take().payload for _ in range(2)] == [b"one", b"two"]
    leave_and_publish(node, "three", version=version)
    node.kill()
    node.start()
    with lasting(node, "default", version) as client:
        assert client.flags.session_present
        assert client.take().payload == b"three"
    with lasting(node, "telemetry", version) as client:
        assert not client.flags.session_present


def test_people_see_where_sessions_are(node: Node) -> None:
    leave_and_publish(node, *map(str, range(8)))

    def sessions() -> dict[str, Any]:
        found = {one["clientid"]: one for one in node.call("GET", "/sessions")["items"]}
        return found if len(found) == len(DOORS) else {}

    seen = eventually(sessions, what="the publishers to have left")
    shown = {name: (one["zone"], one["durable"], one["queued"]) for name, one in seen.items()}
    assert shown == {"in-default": ("default", True, 8), "in-telemetry": ("telemetry", False, 5)}
    assert seen["in-telemetry"]["dropped_by_reason"] == {"queue_full": 3}
    [client] = node.call("GET", "/clients?zone=tele*")["items"]
    assert (client["clientid"], client["zone"], client["durable"]) == (
        "in-telemetry",
        "telemetry",
        False,
    )
    command = [
        *(
            sys.executable,
            "-m",
            "broker.cli.main",
            "sessions",
            "ls",
            "--zone",
            "telemetry",
            "--json",
        ),
        *("--url", node.url),
    ]
    told = subprocess.run(
        command, capture_output=True, text=True, check=True, env={"SLUICE_API_TOKEN": TOKEN}
    )
    assert [one["clientid"] for one in json.loads(told.stdout)["items"]] == ["in-telemetry"]


def test_sessions_of_a_zone_are_purged(node: Node) -> None:
    leave_and_publish(node, "one")
    purged = node.call("POST", "/sessions:purge", {"zone": "telemetry"})
    assert (purged["samples"], purged["queued"]) == (["in-telemetry"], 1)
    with lasting(node, "default") as client:
        assert client.take().payload == b"one"
    with lasting(node, "telemetry") as client:
        assert not client.flags.session_present


def test_zones_change_while_the_broker_runs(node: Node) -> None:
    leave_and_publish(node, "one")
    config = node.data_dir / "sluice.conf"
    config.write_text(CONFIG.replace("sessions = memory", "sessions = disk").replace("2KB", "4KB"))
    told = node.call("POST", "/config:reload")
    assert set(told["settings"]) == {
        "zones.telemetry.sessions",
        "zones.telemetry.mqtt.max_packet_size",
    }
    assert told["needs_restart"] == []
    with lasting(node, "telemetry") as client:
        assert client.take().payload == b"one"
        eventually(lambda: "session.moved_to_disk" in node.log.read_text())
        assert node.call("GET", "/sessions/in-telemetry")["durable"]
    node.kill()
    node.start()
    with lasting(node, "telemetry") as client:
        assert client.flags.session_present


@pytest.mark.parametrize("more", ["", ", enable = false"], ids=["enabled", "disabled"])
def test_a_zone_that_is_not_there_is_told(node: Node, more: str) -> None:
    config = node.data_dir / "sluice.conf"
    config.write_text(CONFIG.replace("zone = telemetry", f"zone = telemtry{more}"))
    told = node.call("POST", "/config:reload", expect=422)
    said = "listener 'tcp:telemetry' is in zone 'telemtry', which is not there; did you mean 'telemetry'?"
    assert said in json.dumps(told)
