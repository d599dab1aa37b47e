"""``sluice export`` and ``sluice apply`` on a running broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.local_node import Done, Node, command, running
from tests.support.node import TOKEN

DECLARED = """
mqtt.max_subscriptions = 77
streams { readings { topics = ["meters/#"] } }
rule_engine.rules {
  warm { sql = "SELECT payload.t AS t FROM \\"meters/#\\"", actions = [ { type = console } ] }
  cold { sql = "SELECT 1 AS one FROM \\"a\\"" }
}
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with running(tmp_path / "data") as started:
        yield started


def _run(node: Node, *arguments: str) -> Done:
    return command(*arguments, "--data-dir", str(node.data_dir), SLUICE_API_TOKEN=TOKEN)


def _cli(node: Node, *arguments: str, status: int = 0) -> str:
    done = _run(node, *arguments)
    assert done.returncode == status, f"{done.returncode}: {done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def test_files_are_applied_and_exported_again(node: Node, tmp_path: Path) -> None:
    wanted = tmp_path / "wanted"
    wanted.mkdir()
    (wanted / "10-all.conf").write_text(DECLARED)
    node.call("POST", "/rules", {"name": "other", "sql": 'SELECT 2 AS two FROM "b"'})
    node.call("POST", "/schemas", {"name": "kept", "type": "json", "source": "{}"})
    plan = json.loads(_cli(node, "apply", "-f", str(wanted), "--dry-run", "--json", status=2))
    assert {(one["kind"], one["name"], one["change"]) for one in plan["items"]} == {
        ("setting", "mqtt", "change"), ("stream", "readings", "create"), ("rule", "warm", "create"),
        ("rule", "cold", "create"),
    }  # fmt: skip
    assert plan["items"][0]["differences"] == ["mqtt.max_subscriptions: 10000 -> 77"]
    assert node.call("GET", "/streams")["items"] == []
    assert "4 changes applied" in _cli(node, "apply", "-f", str(wanted))
    assert "nothing to change" in _cli(node, "apply", "-f", str(wanted), "--dry-run")
    assert node.call("GET", "/config/mqtt.max_subscriptions")["value"] == 77
    assert "delete rule other" in _cli(
        node, "apply", "-f", str(wanted), "--prune", "--dry-run", status=2
    )
    assert "1 change applied" in _cli(node, "apply", "-f", str(wanted), "--prune")
    assert [rule["name"] for rule in node.call("GET", "/rules")["items"]] == ["warm", "cold"]
    assert node.call("GET", "/schemas/kept")
    exported = tmp_path / "exported"
    _cli(node, "export", str(exported))
    text = (exported / "sluice.conf").read_bytes()
    assert "nothing to change" in _cli(node, "apply", "-f", str(exported), "--prune")
    _cli(node, "export", str(exported))
    assert (exported / "sluice.conf").read_bytes() == text
    with running(tmp_path / "second") as empty:
        _cli(empty, "apply", "-f", str(exported))
        _cli(empty, "export", str(tmp_path / "again"))
    assert (tmp_path / "again" / "sluice.conf").read_bytes() == text


def test_what_cannot_be_applied_is_refused(node: Node, tmp_path: Path) -> None:
    file = tmp_path / "wrong.conf"
    for text, problem in (
        ("rule_engine.rules { hot {} }", "sql"),
        ("mqtt.maximum_qos = 7", "maximum_qos"),
        ("users { a { password = x } }", "users"),
        ("authentication = [ { mechanism = cinfo } ]", "sluice access"),
        ("mqtt = {", "wrong.conf"),
        ("rule_engine.rules = 5", "list of objects"),
    ):
        file.write_text(text)
        done = _run(node, "apply", "-f", str(file))
        assert done.returncode not in (0, None), text
        assert problem in done.stdout + done.stderr, done.stderr
    _cli(node, "apply", "-f", str(tmp_path / "missing"), status=2)
    node.call("POST", "/rules", {"name": "last", "sql": 'SELECT 2 AS two FROM "b"'})
    file.write_text("rule_engine.rules {}")
    assert "delete rule last" in _cli(node, "apply", "-f", str(file), "--prune")
    assert node.call("GET", "/rules")["items"] == []
