"""A whole broker under a limit it cannot keep: what the API, the command line, rules and balancers are told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.support.node import TOKEN, Node, eventually, running
from tests.support.plain_http import NO_TLS

_ROOT = Path(__file__).parents[2]
_ENVIRON = os.environ | {"SLUICE_API_TOKEN": TOKEN}
ALARM_SOON = "overload { interval = 50ms, polls = 2, alarm_after = 0s, max_loop_lag = 0, max_run_queue = 0"


def readiness(node: Node) -> tuple[int, str]:
    answer = httpx.get(f"{node.url}/readyz", trust_env=False, verify=NO_TLS)
    return answer.status_code, answer.text.strip()


def sluice(node: Node, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "broker.cli.main", *arguments, "--data-dir", str(node.data_dir)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=_ROOT, env=_ENVIRON)


def test_a_broker_above_its_memory_says_so_everywhere(tmp_path: Path) -> None:
    rule = """
    rule_engine.rules.tell {
      sql = \"\"\"SELECT name, details.memory_bytes AS used FROM "$events/sys/alarm_activated" \"\"\"
      actions = [{type = republish, topic = "alarms", payload = "${name}", retain = true}] }
    """
    with running(
        tmp_path / "n", config=ALARM_SOON + ", memory_limit = 1MB }\nalarms.disk_free_min = 0\n" + rule
    ) as node:
        assert eventually(lambda: readiness(node)[0] == 503)
        assert readiness(node)[1] == "overloaded: memory"
        items = eventually(lambda: node.call("GET", "/alarms")["items"])
        assert items[0]["name"] == "overload"
        assert items[0]["details"]["memory_bytes"] > 1_000_000
        health = node.call("GET", "/status")["health"]
        assert (health["overloaded"], health["ready"], health["alarms"]) == (True, False, ["overload"])
        host, port = node.mqtt
        tried = subprocess.run(
            ["mosquitto_pub", "-h", host, "-p", str(port), "-t", "t", "-m", "x"], capture_output=True, timeout=20
        )
        assert tried.returncode != 0
        shown = sluice(node, "alarms", "--json")
        assert shown.returncode == 0, shown.stderr
        assert json.loads(shown.stdout)["items"][0]["name"] == "overload"
        assert "overload" in sluice(node, "alarms").stdout
        assert "overloaded: memory" in sluice(node, "status").stdout
        assert node.call("GET", "/rules/tell")["metrics"]["matched"] >= 1


@pytest.mark.parametrize("reaction", ["health = degraded, refuse_connections = false"])
def test_reactions_can_be_switched_off(tmp_path: Path, reaction: str) -> None:
    config = f"{ALARM_SOON}, memory_limit = 1MB, {reaction} }}\nalarms.disk_free_min = 1000GB"
    with running(tmp_path / "n", config=config) as node:
        eventually(lambda: readiness(node) == (200, "degraded: overloaded: memory"))
        host, port = node.mqtt
        published = subprocess.run(
            ["mosquitto_pub", "-h", host, "-p", str(port), "-q", "1", "-t", "t", "-m", "x"], timeout=20
        )
        assert published.returncode == 0
        names = {item["name"] for item in node.call("GET", "/alarms")["items"]}
        assert "disk_nearly_full" in names
        assert node.call("GET", "/alarms/history")["items"] == []
        assert sluice(node, "alarms", "--forget").returncode == 0
        assert sluice(node, "alarms", "--history").stderr.strip() == "no alarm is over"
