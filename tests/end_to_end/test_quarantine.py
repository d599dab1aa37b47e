"""What a gate stops is kept, and taken again once the cause is mended: nothing lost, nothing twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.end_to_end.clients import Client
from tests.support.local_node import running, sluice
from tests.support.node import Reachable, eventually
from tests.support.node import running as running_process


def _schema(temp: Any) -> dict[str, Any]:
    source = json.dumps({"type": "object", "properties": {"temp": temp}})
    return {"name": "reading", "type": "json", "source": source}


def _prepare(node: Reachable) -> None:
    node.call("POST", "/schemas", _schema({"type": "number"}))
    node.call("POST", "/streams", {"name": "kept"})
    node.call("POST", "/streams", {"name": "passed", "topics": ["meters/#"]})
    node.call("POST", "/validations", {
        "name": "gate", "topics": ["meters/#"], "strategy": "all_pass", "failure_action": "drop",
        "checks": [{"type": "json", "schema": "reading"}], "quarantine": "kept",
    })  # fmt: skip


def _offset(node: Reachable, stream: str) -> int:
    return int(node.call("GET", f"/streams/{stream}/positions")["shards"][0]["next_offset"])


def _publish(node: Reachable, *payloads: str) -> None:
    with Client(node, "m") as client:
        for number, payload in enumerate(payloads):
            client.publish(f"meters/{number}", payload)


def test_messages_wait_in_quarantine_and_are_taken_again_after_the_mend(tmp_path: Path) -> None:
    with running(tmp_path / "node") as node:
        _wait_and_are_taken_again(node, node.stop)


def test_messages_in_quarantine_outlive_a_kill(tmp_path: Path) -> None:
    with running_process(tmp_path / "node") as node:
        _wait_and_are_taken_again(node, node.kill)


def _wait_and_are_taken_again(node: Reachable, end: Callable[[], object]) -> None:
    _prepare(node)
    _publish(node, *['{"temp": "21"}'] * 3, "no json")
    assert node.call("GET", "/quarantine")["items"] == [{"stream": "kept", "waiting": 4}]
    waiting = node.call("GET", "/quarantine/kept")["items"]
    assert [row["topic"] for row in waiting] == [f"meters/{number}" for number in range(4)]
    assert waiting[0]["path"] == "payload.temp"
    assert waiting[0]["payload"] == '{"temp": "21"}'

    end()
    node.start()  # what waits is durable
    assert node.call("GET", "/quarantine")["items"][0]["waiting"] == 4
    node.call("PUT", "/schemas/reading", _schema({"type": ["number", "string"]}))
    with Client(node) as subscriber:
        subscriber.subscribe("meters/#", 1)
        effect = node.call("POST", "/quarantine/kept:take-again?dry_run=true", {})
        before = node.call("GET", "/quarantine/kept")
        assert effect["consequences"] == [
            f"{before['waiting']} messages are published again, through all stages."
        ]
        one = node.call("POST", "/quarantine/kept:take-again?dry_run=true", {"limit": 1})
        assert one["consequences"] == ["1 message is published again, through all stages."]
        shown = sluice(node, "quarantine", "take-again", "kept", "--dry-run").stdout
        assert shown.splitlines()[0] == f"dry run: {effect['summary']}"
        assert node.call("GET", "/quarantine/kept") == before
        answer = node.call("POST", "/quarantine/kept:take-again", {})
        messages = [subscriber.take() for _ in range(3)]
    assert (answer["read"], answer["published"], answer["failed"], answer["waiting"]) == (
        4,
        3,
        1,
        1,
    )
    assert [(message.topic, message.payload) for message in messages] == [
        (f"meters/{number}", b'{"temp": "21"}') for number in range(3)
    ]
    assert "not JSON" in answer["failures"][0]["reason"]
    eventually(lambda: _offset(node, "passed") == 3)

    end()
    node.start()
    again = node.call("POST", "/quarantine/kept:take-again", {})
    assert (again["read"], again["published"], again["failed"]) == (1, 0, 1)
    assert _offset(node, "passed") == 3
    ledger = node.call("GET", "/status")["ledger"]
    assert ledger["residual"] == 0


def test_single_messages_are_taken_before_older_ones(tmp_path: Path) -> None:
    with running(tmp_path / "node") as node:
        _single_ones_are_taken(node, node.stop)


def test_single_messages_that_were_taken_are_known_after_a_kill(tmp_path: Path) -> None:
    with running_process(tmp_path / "node") as node:
        _single_ones_are_taken(node, node.kill)


def _single_ones_are_taken(node: Reachable, end: Callable[[], object]) -> None:
    _prepare(node)
    _publish(node, *['{"temp": "21"}'] * 4)
    node.call("PUT", "/schemas/reading", _schema({"type": ["number", "string"]}))

    def taken(*records: str) -> tuple[int, int, int]:
        only = "?" + "&".join(f"record={record}" for record in records) if records else ""
        answer = node.call("POST", f"/quarantine/kept:take-again{only}", {})
        return answer["read"], answer["published"], answer["waiting"]

    def waiting() -> list[int]:
        return [row["offset"] for row in node.call("GET", "/quarantine/kept")["items"]]

    assert taken("0/2") == (1, 1, 3)
    assert taken("0/2", "0/9", "5/0") == (0, 0, 3)
    end()
    node.start()
    assert waiting() == [0, 1, 3]
    shown = sluice(node, "quarantine", "take-again", "kept", "--record", "0/0", "--record", "0/1")
    assert shown.returncode == 0, shown.stderr
    assert waiting() == [3]
    assert taken() == (1, 1, 0)
    eventually(lambda: _offset(node, "passed") == 4)
    node.call("POST", "/quarantine/kept:take-again?record=0-1", {}, expect=422)


def test_a_quarantine_in_use_is_not_deleted_and_bad_requests_are_told(tmp_path: Path) -> None:
    with running(tmp_path / "node") as node:
        _prepare(node)
        with node.client() as client:
            refused = client.delete("/streams/kept")
            assert refused.status_code == 409
            assert "validation 'gate'" in refused.json()["detail"]
            assert client.post("/quarantine/passed:take-again", json={}).status_code == 404
            assert client.post("/quarantine/none:take-again", json={}).status_code == 404
            assert client.post("/quarantine/kept:take-again", json={"limit": 0}).status_code == 422
            assert client.get("/quarantine/none").status_code == 404
