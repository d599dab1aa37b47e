"""Effects of changes: the objects that would break, and how many messages and rows are stopped, deleted or kept."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.local_node import Node, running, sluice
from tests.support.node import TOKEN, Reachable, eventually

SQL = 'SELECT payload.t AS t FROM "m/#"'


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(
        tmp_path_factory.mktemp("effects") / "data", config="lake.run_spark = false\n"
    ) as node:
        yield node


def publish(node: Reachable, topic: str, *values: int) -> None:
    for value in values:
        node.call(
            "POST",
            "/messages:publish",
            {"topic": topic, "payload": f'{{"t": {value}}}'},
            expect=(200, 422),
        )


def consequences(node: Reachable, method: str, path: str, body: Any = None) -> list[str]:
    sentences: list[str] = node.call(
        method, f"{path}{'&' if '?' in path else '?'}dry_run=true", body
    )["consequences"]
    return sentences


def test_a_rule_that_a_table_runs_is_deleted_only_by_force(node: Node) -> None:
    node.call("POST", "/rules", {"name": "run", "sql": SQL})
    node.call("POST", "/streams", {"name": "raw", "topics": ["m/#"]})
    node.call("POST", "/lake/tables", {"name": "readings", "stream": "raw", "rule": "run"})
    for query in ("", "?dry_run=true"):
        refusal = node.call("DELETE", f"/rules/run{query}", expect=409)
        assert (refusal["code"], refusal["users"]) == ("in_use", ["lake table 'readings'"])
    refused = sluice(node, "rules", "rm", "run", "--yes")
    assert (refused.returncode != 0, "lake table 'readings'" in refused.stderr) == (True, True)
    forced = node.call("DELETE", "/rules/run?force=true&dry_run=true")
    assert forced["affected"] == [{"kind": "lake table", "name": "readings", "how": "uses it"}]
    changed = {"sql": 'SELECT payload.t + 1 AS t FROM "m/#"'}
    assert consequences(node, "PATCH", "/rules/run", changed) == [
        "Table 'readings' keeps its rows as they are; the changed rule makes its new rows."
    ]
    node.call("DELETE", "/rules/run?force=true")


def test_a_deleted_stream_says_how_many_records_go_and_a_rule_how_many_rows_it_made(
    node: Node,
) -> None:
    node.call("POST", "/streams", {"name": "kept"})
    rule = {
        "name": "keeps",
        "sql": 'SELECT payload.t AS t FROM "k/#"',
        "actions": [{"type": "stream", "stream": "kept"}],
    }
    node.call("POST", "/rules", rule)
    publish(node, "k/1", 1, 2, 3)
    eventually(lambda: node.call("GET", "/streams/kept")["records"] == 3)
    made = ["It made rows of 3 of 3 messages for stream 'kept'. It would make no more."]
    assert consequences(node, "DELETE", "/rules/keeps") == made
    assert consequences(node, "POST", "/rules/keeps:disable") == made
    assert consequences(node, "PATCH", "/rules/keeps", {"description": "other"}) == []
    node.call("DELETE", "/rules/keeps")
    (lost,) = consequences(node, "DELETE", "/streams/kept")
    assert lost.startswith("3 records (")
    assert lost.endswith(" bytes) of stream 'kept' are deleted.")


def test_enforcing_a_validation_says_how_many_messages_it_would_stop(node: Node) -> None:
    body = {
        "topics": ["v/#"],
        "mode": "shadow",
        "checks": [{"type": "sql", "sql": "SELECT * WHERE payload.t < 30"}],
    }
    body |= {"strategy": "all_pass", "failure_action": "drop"}
    node.call("PUT", "/validations/hot", body)
    enforced = {"mode": "enforce"}
    (unknown,) = consequences(node, "PATCH", "/validations/hot", enforced)
    assert unknown.startswith("No message was checked this way yet")
    publish(node, "v/1", 20, 21, 22, 23, 24, 40)
    eventually(lambda: node.call("GET", "/validations/hot")["metrics"]["matched"] == 6)
    (stops,) = consequences(node, "PATCH", "/validations/hot", enforced)
    assert stops.startswith("It would have stopped 1 of 6 messages since ")
    assert stops.endswith("Z (17 %).")
    assert consequences(node, "PUT", "/validations/hot", body | enforced) == [stops]
    (other,) = consequences(node, "PUT", "/validations/hot", body | enforced | {"topics": ["w/#"]})
    assert other == unknown
    node.call("PATCH", "/validations/hot", enforced)
    publish(node, "v/1", 20, 40)
    eventually(lambda: node.call("GET", "/validations/hot")["metrics"]["matched"] == 2)
    for method, path in (("DELETE", "/validations/hot"), ("POST", "/validations/hot:disable")):
        stopped, passed = consequences(node, method, path)
        assert stopped.startswith("It stopped 1 of 2 messages since ")
        assert stopped.endswith("Z (50 %). Messages that fail would pass.")
        assert passed.startswith("It passed 1 message since ")


def test_a_command_shows_the_effects_before_it_asks(node: Node) -> None:
    node.call("POST", "/streams", {"name": "asked"})
    ours, its = pty.openpty()
    command = [sys.executable, "-m", "broker.cli.main", "streams", "rm", "asked"]
    environment = {**os.environ, "SLUICE_API_TOKEN": TOKEN, "SLUICE_URL": node.url}
    asking = subprocess.Popen(
        command, stdin=its, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    os.write(ours, b"n\n")
    _, said = asking.communicate(timeout=240)
    os.close(ours)
    os.close(its)
    assert b"  0 records (0 bytes) of stream 'asked' are deleted.\n" in said, said
    assert said.index(b"are deleted") < said.index(b"Remove stream 'asked'?")
    assert node.call("GET", "/streams/asked")["name"] == "asked"


def test_a_deleted_action_says_how_many_rows_wait_and_one_that_is_a_fallback_stays(
    node: Node,
) -> None:
    connector = {"type": "mqtt", "server": "127.0.0.1:1"}
    node.call("POST", "/connectors", {"name": "away", **connector})
    action = {"type": "mqtt", "connector": "away", "parameters": {"topic": "out"}}
    node.call("POST", "/actions", {"name": "spare", **action})
    fallback = {"kind": "reference", "type": "mqtt", "name": "spare"}
    node.call("POST", "/actions", {"name": "first", **action, "fallback_actions": [fallback]})
    rule = {"name": "sends", "sql": 'SELECT payload.t AS t FROM "a/#"'}
    node.call("POST", "/rules", {**rule, "actions": [{"type": "bridge", "bridge": "mqtt:first"}]})
    publish(node, "a/1", 1, 2)
    eventually(lambda: node.call("GET", "/rules/sends/metrics")["matched"] == 2)
    assert node.call("DELETE", "/actions/spare", expect=409)["users"] == ["action 'mqtt:first'"]
    assert node.call("GET", "/actions/spare")["rules"] == []
    node.call("DELETE", "/rules/sends")
    assert consequences(node, "DELETE", "/actions/first") == [
        "2 rows that wait in its buffer and 0 dead letters are deleted."
    ]
