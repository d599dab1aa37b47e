"""A whole broker under a limit it cannot keep: what the API, the command line, rules and balancers are told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.support.node import Node, eventually, running, sluice
from tests.support.plain_http import NO_TLS

ALARM_SOON = (
    "overload { interval = 50ms, polls = 2, alarm_after = 0s, max_loop_lag = 0, max_run_queue = 0"
)


def readiness(node: Node) -> tuple[int, str]:
    answer = httpx.get(f"{node.url}/readyz", trust_env=False, verify=NO_TLS)
    return answer.status_code, answer.text.strip()


def mosquitto_pub(node: Node) -> subprocess.CompletedProcess[bytes]:
    host, port = node.mqtt
    command = ["mosquitto_pub", "-h", host, "-p", str(port), "-q", "1", "-t", "t", "-m", "x"]
    return subprocess.run(command, capture_output=True, timeout=240)


def test_a_broker_above_its_memory_says_so_everywhere(tmp_path: Path) -> None:
    rule = """
    rule_engine.rules.tell {
      sql = \"\"\"SELECT name, details.memory_bytes AS used FROM "$events/sys/alarm_activated" \"\"\"
      actions = [{type = republish, topic = "alarms", payload = "${name}", retain = true}] }
    """
    with running(
        tmp_path / "n",
        config=ALARM_SOON + ", memory_limit = 1MB }\nalarms.disk_free_min = 0\n" + rule,
    ) as node:
        assert eventually(lambda: readiness(node)[0] == 503)
        assert readiness(node)[1] == "overloaded: memory"
        items = eventually(lambda: node.call("GET", "/alarms")["items"])
        assert items[0]["name"] == "overload"
        assert items[0]["details"]["memory_bytes"] > 1_000_000
        health = node.call("GET", "/status")["health"]
        assert (health["overloaded"], health["ready"], health["alarms"]) == (
            True,
            False,
            ["overload"],
        )
        assert health["overloaded_since"].endswith("Z")
        assert "of its memory (limit 90%)" in health["overloaded_because"][0]
        assert mosquitto_pub(node).returncode != 0
        shown = sluice(node, "alarms", "ls", "--json")
        assert shown.returncode == 0, shown.stderr
        assert json.loads(shown.stdout)["items"][0]["name"] == "overload"
        assert "overload" in sluice(node, "alarms", "ls").stdout
        status = sluice(node, "status").stdout
        assert "overloaded: memory" in status
        assert "overloaded since" in status
        assert "because the process uses" in status
        assert node.call("GET", "/rules/tell")["metrics"]["matched"] >= 1


@pytest.mark.parametrize("reaction", ["health = degraded, refuse_connections = false"])
def test_reactions_can_be_switched_off(tmp_path: Path, reaction: str) -> None:
    config = f"{ALARM_SOON}, memory_limit = 1MB, {reaction} }}\nalarms.disk_free_min = 1000GB"
    with running(tmp_path / "n", config=config) as node:
        eventually(lambda: readiness(node) == (200, "degraded: overloaded: memory"))
        assert mosquitto_pub(node).returncode == 0
        names = {item["name"] for item in node.call("GET", "/alarms")["items"]}
        assert "disk_nearly_full" in names
        assert node.call("GET", "/alarms/history")["items"] == []
        assert sluice(node, "alarms", "forget", "--yes").returncode == 0
        assert json.loads(sluice(node, "alarms", "history", "--json").stdout)["items"] == []


BUSY = "import os; os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nwhile True: pass"
"""A runnable program that takes no processor time from others."""


def test_alarms_survive_a_kill_with_their_history_and_acknowledgements(tmp_path: Path) -> None:
    full = "overload.enable = false\nalarms { disk_free_min = 1000000GB, interval = 50ms }\n"
    with running(tmp_path / "n", config=full) as node:
        [alarm] = eventually(lambda: node.call("GET", "/alarms")["items"])
        assert alarm["name"] == "disk_nearly_full"
        node.call("POST", "/alarms/disk_nearly_full:acknowledge", {"note": "a disk is ordered"})
        node.kill()
        node.start()
        [again] = eventually(lambda: node.call("GET", "/alarms")["items"])
        assert again["activated_at"] == alarm["activated_at"]
        assert (again["acknowledged_by"], again["note"]) == ("administrator", "a disk is ordered")
    with running(tmp_path / "n", config="overload.enable = false\n") as node:
        [past] = node.call("GET", "/alarms/history?search=disk")["items"]
        assert (past["name"], past["note"]) == ("disk_nearly_full", "a disk is ordered")
        node.call("DELETE", "/alarms/history")
        assert node.call("GET", "/alarms/history")["items"] == []


def test_other_programs_that_keep_the_processors_busy_refuse_no_client(tmp_path: Path) -> None:
    busy = [
        subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(12 * (os.cpu_count() or 1))
    ]
    try:
        with running(tmp_path / "n", config="overload { interval = 100ms, polls = 2 }") as node:
            eventually(lambda: node.call("GET", "/status")["health"]["run_queue"] > 10)
            for _ in range(5):
                published = mosquitto_pub(node)
                assert published.returncode == 0, published.stderr
            assert readiness(node)[0] == 200
            metrics = httpx.get(f"{node.url}/metrics", trust_env=False, verify=NO_TLS).text
            assert "sluice_overload_times_total 0" in metrics
    finally:
        for process in busy:
            process.kill()
            process.wait()
