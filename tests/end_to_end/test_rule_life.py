"""The life of a rule on a whole broker: over HTTP, on the command line, over a restart and a kill."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.local_node import Node, command, running
from tests.support.node import TOKEN, Reachable, eventually
from tests.support.node import running as running_process

SQL = "SELECT payload.t AS t FROM 'm/#' WHERE payload.t > 20"
CASE = {
    "name": "warm",
    "event": {"topic": "m/1", "payload": '{"t": 21}'},
    "expect": {"rows": [{"t": 21}]},
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("rule-life") / "data") as started:
        started.call("POST", "/streams", {"name": "raw", "topics": ["m/#"]})
        started.call("POST", "/streams", {"name": "hot"})
        for t in range(40):
            started.call(
                "POST", "/messages:publish", {"topic": "m/1", "payload": json.dumps({"t": t})}
            )
        yield started


def sluice(node: Node, *arguments: str, expect: int = 0, stdin: str | None = None) -> str:
    """What a command prints; its errors too when it is to fail."""
    done = command(*arguments, text=stdin or "", SLUICE_URL=node.url, SLUICE_API_TOKEN=TOKEN)
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout if expect == 0 else done.stdout + done.stderr


def test_a_rule_lives_on_the_command_line(node: Node, tmp_path: Path) -> None:
    file = tmp_path / "rule.json"
    file.write_text(
        json.dumps({"name": "warm", "sql": SQL, "actions": [{"type": "console"}], "tests": [CASE]})
    )
    assert sluice(node, "rules", "create", "-f", str(file)) == "rule warm created\n"
    assert "exists already" in sluice(node, "rules", "create", "-f", str(file), expect=6)
    file.write_text(json.dumps({"name": "warm", "sql": SQL.replace("20", "30"), "tests": [CASE]}))
    refused = sluice(node, "rules", "apply", "-f", str(file), expect=1)
    assert "/tests/0: test case 'warm': expected 1 row, got no result" in refused
    assert sluice(node, "rules", "apply", "-f", str(file), "--force") == "rule warm replaced\n"
    assert "FAILED warm: warm" in sluice(node, "rules", "test", "warm", expect=7)
    assert "-sql: SELECT payload.t AS t FROM 'm/#' WHERE payload.t > 20" in sluice(
        node, "rules", "diff", "warm"
    )
    assert (
        sluice(node, "rules", "restore", "warm", "1")
        == 'rolled back rule "warm" to version 1 (saved as version 3)\n'
    )
    assert "restored version 1" in sluice(node, "rules", "versions", "warm")
    assert json.loads(sluice(node, "rules", "versions", "warm", "--json"))["total"] == 3
    assert sluice(node, "rules", "test") == "ok     warm: warm\n1 passed, 0 failed\n"
    assert sluice(node, "rules", "disable", "warm") == "rule warm disabled\n"
    assert (
        json.loads(sluice(node, "rules", "enable", "warm", "--json"))["items"][0]["state"]
        == "running"
    )
    assert sluice(node, "rules", "show", "warm", "--code").startswith("def rule(message):")
    node.call("POST", "/messages:publish", {"topic": "m/1", "payload": '{"t": 25}'})
    assert json.loads(sluice(node, "rules", "metrics", "warm", "--json"))["matched"] == 1
    assert "console" in sluice(node, "rules", "metrics", "warm")
    assert sluice(node, "rules", "reset", "warm") == "counters of rule warm are zero\n"
    assert "warm" in sluice(node, "rules", "list", "--match", "m/7", "--enabled")
    assert "warm" not in sluice(node, "rules", "ls", "--disabled")
    assert sluice(node, "rules", "delete", "warm", "--yes") == "rule warm removed\n"
    assert "Try: sluice rules ls" in sluice(node, "rules", "show", "warm", expect=5)


def test_sql_is_run_on_an_event_of_a_file(node: Node, tmp_path: Path) -> None:
    event = tmp_path / "event.json"
    event.write_text(
        json.dumps({"topic": "m/1", "payload": '{"t": 21, "big": 123456789012345678901234567890}'})
    )
    sql = "SELECT payload.big AS b FROM 'm/#' WHERE payload.t > 20"
    expected = {"outcome": "rows", "rows": [{"b": 123456789012345678901234567890}]}
    assert (
        json.loads(sluice(node, "rules", "run", "--sql", sql, "--event", str(event), "--json"))
        == expected
    )
    assert sluice(
        node, "rules", "run", "--sql", sql, "--event", "-", stdin=event.read_text()
    ).startswith('{"b": 123')
    file = tmp_path / "rule.sql"
    file.write_text("SELECT payload.t div 0 AS d FROM 'm/#'")
    failed = sluice(
        node,
        "rules",
        "run",
        "--sql",
        f"@{file}",
        "--topic",
        "m/1",
        "--payload",
        '{"t":1}',
        expect=7,
    )
    assert "line 1, column 8" in failed
    assert "no function 'uper'" in sluice(
        node, "rules", "run", "--sql", "SELECT uper(a) FROM 't'", expect=7
    )
    event.write_text("[]")
    assert "must hold an object" in sluice(
        node, "rules", "run", "--sql", sql, "--event", str(event), expect=2
    )


def test_explain_is_a_tree(node: Node) -> None:
    told = sluice(node, "rules", "explain", "--sql", SQL, "--topic", "m/1", "--payload", '{"t": 7}')
    assert told.splitlines() == [
        "✓ FROM m/#",
        "SELECT payload.t AS t = 7",
        "✗ WHERE payload.t > 20",
        "└─ payload.t = 7",
        "→ no result",
    ]


def test_a_back_test_compares_with_the_rule_that_runs(node: Node) -> None:
    node.call(
        "POST",
        "/rules",
        {"name": "bt", "sql": SQL, "actions": [{"type": "stream", "stream": "hot"}]},
    )
    before = node.call("GET", "/rules/bt/metrics")
    new = "SELECT CASE payload.t WHEN 39 THEN -1 ELSE payload.t END AS t FROM 'm/#' WHERE payload.t > 15"
    found = json.loads(
        sluice(
            node, "rules", "backtest", "bt", "--sql", new, "--stream", "raw", "--to", "40", "--json"
        )
    )
    assert (found["state"], found["result"]["complete"]) == ("done", True)
    assert found["result"]["rows"] == {
        "before": 19, "after": 24, "unchanged": 18, "added": 5, "lost": 0, "changed": 1,
    }  # fmt: skip
    [changed] = found["result"]["samples"]["changed"]
    assert (changed["offset"], changed["before"], changed["after"]) == ("39", {"t": 39}, {"t": -1})
    assert "5 added, 0 lost, 1 changed" in sluice(
        node,
        "rules",
        "backtest",
        "bt",
        "--sql",
        new,
        "--stream",
        "raw",
        "--from",
        "0",
        "--to",
        "40",
    )
    # nothing was run live
    assert node.call("GET", "/rules/bt/metrics")["matched"] == before["matched"]
    assert node.call("GET", "/backtests")["total"] == 2
    node.call("DELETE", "/rules/bt")


def test_a_back_test_knows_the_schemas_of_the_node(node: Node) -> None:
    schema = {"type": "record", "name": "r", "fields": [{"name": "t", "type": "long"}]}
    node.call("POST", "/schemas", {"name": "reading", "type": "avro", "source": json.dumps(schema)})
    sql = "SELECT schema_encode('reading', json_decode(payload)) AS e FROM 'm/#'"
    job = node.call(
        "POST", "/rules:backtest", {"sql": sql, "stream": "raw", "limit": 3}, expect=202
    )
    done = eventually(lambda: _over(node, job["id"]))
    assert (done["result"]["rows"]["added"], done["result"]["errors"]["after"]) == (3, [])


def test_a_back_test_without_end_is_cancelled_and_leaves_no_process(node: Node) -> None:
    sql = "SELECT jq('def f: f; f', payload, 100000) AS x FROM 'm/#'"
    job = node.call(
        "POST", "/rules:backtest", {"sql": sql, "stream": "raw", "timeout_s": 100}, expect=202
    )
    eventually(lambda: _backtests())
    assert node.call("POST", f"/backtests/{job['id']}:cancel")["state"] == "cancelled"
    eventually(lambda: not _backtests())


def _backtests() -> list[int]:
    """The processes of back-tests."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has just ended
            if "broker.app.backtest" in process.cmdline():
                found.append(process.pid)
    return found


def test_what_is_too_much_for_one_message_is_said_in_a_back_test_and_ends_nothing_else(
    tmp_path: Path,
) -> None:
    config = "rule_engine.backtest_memory = 64MiB"
    with running(tmp_path / "data", config=config) as small:
        small.call("POST", "/streams", {"name": "raw", "topics": ["m/#"]})
        small.call("POST", "/messages:publish", {"topic": "m/1", "payload": "😀" * 250_000})
        eventually(
            lambda: small.call("GET", "/streams/raw/positions")["shards"][0]["next_offset"] == "1"
        )
        doubled = [f"concat({one}, {one}) AS {other}" for one, other in pairwise("abcdef")]
        # 8 MB each, 4 bytes a character
        copies = [f"concat(d, '{number}') AS g{number}" for number in range(4)]
        sql = f"SELECT payload AS a, {', '.join(doubled + copies)} FROM 'm/#'"
        job = small.call("POST", "/rules:backtest", {"sql": sql, "stream": "raw"}, expect=202)
        done = eventually(lambda: _over(small, job["id"]))
        assert "too much text" in str(done["result"]["errors"]["after"]), done
        assert small.call("GET", "/status")["node"]


def _over(node: Node, id: str) -> Any:
    job = node.call("GET", f"/backtests/{id}")
    return job if job["state"] != "running" else None


def test_versions_and_cases_survive_a_restart_and_a_kill(tmp_path: Path) -> None:
    with running_process(tmp_path / "data") as node:
        node.call("POST", "/rules", {"name": "r1", "sql": SQL, "tests": [CASE]})
        node.call("PATCH", "/rules/r1", {"description": "second"})
        etag, shown = _etag(node), node.call("GET", "/rules/r1")
        node.kill()
        node.start()
        assert node.call("GET", "/rules/r1") == shown
        assert _etag(node) == etag
        node.call("POST", "/rules/r1/versions/1:restore")
        node.stop()
        node.start()
        changes = [one["change"] for one in node.call("GET", "/rules/r1/versions")["items"]]
        assert changes == ["restored version 1", "changed description", "created"]
        assert node.call("POST", "/rules/r1:test-cases")["passed"] == 1


def _etag(node: Reachable) -> str:
    with node.client() as client:
        return client.get("/rules/r1").headers["etag"]
