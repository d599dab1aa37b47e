"""Long work as jobs: listed, watched, cancelled between two pieces, and taken up again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from tests.support.local_node import Node, running, sluice
from tests.support.node import Reachable, eventually
from tests.support.node import running as running_process

MESSAGES = 3000
ASYNC = {"Prefer": "respond-async"}


def _schema(temp: Any) -> dict[str, Any]:
    return {
        "name": "reading",
        "type": "json",
        "source": json.dumps({"type": "object", "properties": {"temp": temp}}),
    }


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A broker with messages in a quarantine whose cause is fixed."""
    with running(tmp_path_factory.mktemp("jobs") / "data") as node:
        _fill(node)
        yield node


def _fill(node: Reachable) -> None:
    node.call("POST", "/schemas", _schema({"type": "number"}))
    node.call("POST", "/streams", {"name": "kept"})
    node.call("POST", "/streams", {"name": "passed", "topics": ["meters/#"]})
    checks = [{"type": "json", "schema": "reading"}]
    gate = {
        "name": "gate",
        "topics": ["meters/#"],
        "strategy": "all_pass",
        "failure_action": "drop",
    }
    node.call("POST", "/validations", {**gate, "checks": checks, "quarantine": "kept"})
    client = mqtt.Client(CallbackAPIVersion.VERSION2, "meters")
    client.connect(*node.mqtt)
    client.loop_start()
    for number in range(MESSAGES):
        sent = client.publish(f"meters/{number}", b'{"temp": "21"}', 1)
    sent.wait_for_publish(60)
    eventually(lambda: node.call("GET", "/quarantine")["items"][0]["waiting"] == MESSAGES)
    client.disconnect()
    client.loop_stop()
    node.call("PUT", "/schemas/reading", _schema({"type": ["number", "string"]}))


def _sluice(node: Reachable, *arguments: str, expect: int = 0) -> str:
    done = sluice(node, "jobs", *arguments)
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout if expect == 0 else done.stdout + done.stderr


def _over(node: Reachable, id: str) -> dict[str, Any]:
    eventually(lambda: node.call("GET", f"/jobs/{id}")["state"] != "running")
    found: dict[str, Any] = node.call("GET", f"/jobs/{id}")
    return found


def test_a_job_is_cancelled_between_two_pieces_and_the_next_one_takes_the_rest(node: Node) -> None:
    with node.client() as client:
        client.headers.update(ASYNC)
        started = client.post("/quarantine/kept:take-again", json={"limit": 100_000})
        assert started.status_code == 202
        job = started.json()
        assert started.headers["location"] == f"/api/v1/jobs/{job['id']}"
        assert (job["kind"], job["name"], job["progress"]) == (
            "quarantine", "kept", {"done": 0, "total": MESSAGES, "unit": "messages"},
        )  # fmt: skip
        client.post(f"/jobs/{job['id']}:cancel").raise_for_status()
        ended = _over(node, job["id"])
        assert ended["state"] == "cancelled"
        read = ended["result"]["read"]
        assert read == ended["progress"]["done"] < MESSAGES
        assert ended["result"]["waiting"] == MESSAGES - read
        rest = client.post("/quarantine/kept:take-again", json={"limit": 100_000}).json()["id"]
    assert (
        _sluice(node, "watch", rest)
        == f"quarantine kept: done, {MESSAGES - read:,} of {MESSAGES - read:,} messages\n"
    )
    assert node.call("GET", "/streams/passed")["records"] == MESSAGES
    again = _sluice(node, "cancel", rest)
    assert again == f"job {rest} is to end\n"
    assert node.call("GET", f"/jobs/{rest}")["state"] == "done"


def test_a_back_test_is_a_job_too(node: Node) -> None:
    body = {"sql": "SELECT topic FROM 'meters/#'", "stream": "passed"}
    with node.client() as client:
        started = client.post("/rules:backtest", json=body)
        assert started.status_code == 202
        id = started.json()["id"]
    ended = _over(node, id)
    assert (ended["kind"], ended["state"], ended["progress"]["unit"]) == (
        "back-test",
        "done",
        "messages",
    )
    assert (
        node.call("GET", ended["result_url"].removeprefix("/api/v1"))["result"]["rows"]["added"]
        == MESSAGES
    )
    rows = json.loads(_sluice(node, "ls", "--json"))["items"]
    assert {row["kind"] for row in rows} == {"back-test", "quarantine"}
    assert [row["started_at"] for row in rows] == sorted(
        (row["started_at"] for row in rows), reverse=True
    )
    assert id in _sluice(node, "ls")


def test_a_back_test_that_ran_when_the_broker_stopped_is_listed_as_interrupted(
    tmp_path: Path,
) -> None:
    with running(tmp_path / "data") as node:
        _a_back_test_is_interrupted(node, node.stop)


def test_a_back_test_that_ran_when_the_broker_was_killed_is_listed_as_interrupted(
    tmp_path: Path,
) -> None:
    with running_process(tmp_path / "data") as node:
        _a_back_test_is_interrupted(node, node.kill)


def _a_back_test_is_interrupted(node: Reachable, end: Callable[[], object]) -> None:
    node.call("POST", "/streams", {"name": "passed", "topics": ["meters/#"]})
    node.call("POST", "/messages:publish", {"topic": "meters/1", "payload": "1", "qos": 1})
    body = {"sql": "SELECT topic FROM 'meters/#'", "stream": "passed"}
    over = node.call("POST", "/rules:backtest", body, 202)["id"]
    assert _over(node, over)["state"] == "done"
    for _ in range(5):  # one that is over before the broker ends is not interrupted
        ran = node.call("POST", "/rules:backtest", body, 202)["id"]
        node.call("POST", "/messages:publish", {"topic": "other", "payload": "", "qos": 1})
        end()
        node.start()
        if listed := node.call("GET", "/jobs")["items"]:
            break
    [found] = listed
    assert (found["id"], found["kind"], found["name"], found["state"]) == (
        ran,
        "back-test",
        "passed",
        "interrupted",
    )
    assert found["result_url"] is None
    assert "was interrupted: The broker stopped while" in _sluice(node, "watch", ran, expect=1)


def test_a_job_that_fails_says_why(node: Node) -> None:
    node.call("POST", "/streams", {"name": "captures", "topics": ["other/#"]})
    with node.client() as client:
        waited = client.post("/quarantine/captures:take-again", json={})
        started = client.post("/quarantine/captures:take-again", json={}, headers=ASYNC).json()
    assert (waited.status_code, _over(node, started["id"])["error"]) == (
        404,
        waited.json()["detail"],
    )
    assert "the quarantine failed: " in _sluice(node, "watch", started["id"], expect=1)
    assert "there is no job 'nothing'" in _sluice(node, "show", "nothing", expect=5)


def test_a_job_that_ran_when_the_broker_stopped_is_listed_as_interrupted(tmp_path: Path) -> None:
    with running(tmp_path / "data") as node:
        _a_job_is_interrupted(node, node.stop)


def test_a_job_that_ran_when_the_broker_was_killed_is_listed_as_interrupted(
    tmp_path: Path,
) -> None:
    with running_process(tmp_path / "data") as node:
        _a_job_is_interrupted(node, node.kill)


def _a_job_is_interrupted(node: Reachable, end: Callable[[], object]) -> None:
    _fill(node)
    with node.client() as client:
        job = client.post(
            "/quarantine/kept:take-again", json={"limit": 100_000}, headers=ASYNC
        ).json()
        client.post(
            "/messages:publish", json={"topic": "other", "payload": "", "qos": 1}
        ).raise_for_status()
    end()
    node.start()
    found = node.call("GET", f"/jobs/{job['id']}")
    assert (found["kind"], found["name"], found["state"]) == (
        "quarantine",
        "kept",
        "interrupted",
    )
    assert "was interrupted: The broker stopped while" in _sluice(
        node, "watch", job["id"], expect=1
    )
    rest = node.call("POST", "/quarantine/kept:take-again", {"limit": 100_000})
    assert rest["waiting"] == 0
    assert node.call("GET", "/jobs")["items"][1]["id"] == job["id"]
