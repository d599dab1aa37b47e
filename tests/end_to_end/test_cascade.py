"""Deletions that cascade: an object with all that use it, in one change, and nothing where a part of it is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.local_node import Node, running, sluice
from tests.support.node import Reachable
from tests.support.node import running as running_process

CONFIG = "lake.run_spark = false\n"
FIXED = """
rule_engine.rules.written {
  sql = "SELECT payload.t AS t FROM \\"fixed/#\\""
  actions = [{type = stream, stream = shared}]
}
"""
LISTS = (
    "streams",
    "schemas",
    "rules",
    "validations",
    "transforms",
    "connectors",
    "actions",
    "sources",
    "lake/tables",
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("cascade") / "data", config=CONFIG) as node:
        yield node


def objects(node: Reachable) -> set[tuple[str, str]]:
    return {
        (path, item["name"])
        for path in LISTS
        for item in node.call("GET", f"/{path}?limit=1000")["items"]
    }


def make_chain(node: Reachable, prefix: str) -> None:
    """A stream that a rule and a validation write to, a rule that reads that rule, and a table that runs it."""
    node.call("POST", "/streams", {"name": f"{prefix}-raw", "topics": [f"{prefix}/#"]})
    node.call("POST", "/streams", {"name": f"{prefix}-rows"})
    write = [{"type": "stream", "stream": f"{prefix}-rows"}]
    sql = f'SELECT payload.t AS t FROM "{prefix}/#"'
    node.call("POST", "/rules", {"name": f"{prefix}-first", "sql": sql, "actions": write})
    chained = f'SELECT t FROM "$rules/{prefix}-first"'
    node.call("POST", "/rules", {"name": f"{prefix}-second", "sql": chained})
    node.call(
        "POST",
        "/lake/tables",
        {"name": f"{prefix}-table", "stream": f"{prefix}-raw", "rule": f"{prefix}-first"},
    )
    check = {"type": "sql", "sql": "SELECT * WHERE payload.t < 30"}
    kept = {"strategy": "all_pass", "failure_action": "drop", "quarantine": f"{prefix}-rows"}
    node.call(
        "PUT", f"/validations/{prefix}-kept", {"topics": [f"{prefix}/#"], "checks": [check], **kept}
    )


def cascaded(effect: Any, name: str, path: str) -> set[tuple[str, str]]:
    """What a dry run says would be deleted."""
    paths = {"lake table": "lake/tables", "transformation": "transforms"}
    affected = {
        (paths.get(one["kind"], f"{one['kind']}s"), one["name"].rpartition(":")[2])
        for one in effect["affected"]
    }
    return affected | {(path, name)}


def test_a_cascade_deletes_what_its_dry_run_lists_in_one_line_of_the_file(node: Node) -> None:
    make_chain(node, "a")
    before = objects(node)
    assert node.call("DELETE", "/streams/a-rows", expect=409)["code"] == "in_use"
    effect = node.call("DELETE", "/streams/a-rows?cascade=true&dry_run=true")
    assert (effect["change"], objects(node)) == ("delete", before)
    assert {one["name"]: one["how"] for one in effect["affected"]} == {
        "a-first": "is deleted too",
        "a-kept": "is deleted too",
        "a-second": "is deleted too: it uses rule 'a-first'",
        "a-table": "is deleted too: it uses rule 'a-first'",
    }
    assert any(sentence.startswith("lake table 'a-table': ") for sentence in effect["consequences"])
    lines = (node.data_dir / "api.hocon").read_text().count("\n")
    assert node.call("DELETE", "/streams/a-rows?cascade=true", expect=204) is None
    assert before - objects(node) == cascaded(effect, "a-rows", "streams")
    assert (node.data_dir / "api.hocon").read_text().count("\n") == lines + 1
    # nothing uses it any more
    assert node.call("DELETE", "/streams/a-raw?cascade=true", expect=204) is None


def test_a_cascade_is_kept_by_a_broker_that_is_killed_right_after_it(tmp_path: Path) -> None:
    with running_process(tmp_path / "data", config=CONFIG) as node:
        make_chain(node, "b")
        node.call("DELETE", "/streams/b-rows?cascade=true", expect=204)
        left = objects(node)
        node.kill()
        node.start()
        assert objects(node) == left
        make_chain_again = {"name": "b-rows"}
        assert node.call("POST", "/streams", make_chain_again)["records"] == 0


def test_a_cascade_over_an_object_of_a_file_is_refused_as_a_whole(node: Node) -> None:
    node.call("POST", "/streams", {"name": "shared"})
    own = {
        "name": "own",
        "sql": 'SELECT 1 AS a FROM "c/#"',
        "actions": [{"type": "stream", "stream": "shared"}],
    }
    node.call("POST", "/rules", own)
    (node.data_dir / "sluice.conf").write_text(CONFIG + FIXED)
    node.call("POST", "/config:reload")
    before = objects(node)
    for query in ("?cascade=true", "?cascade=true&dry_run=true"):
        refusal = node.call("DELETE", f"/streams/shared{query}", expect=409)
        assert refusal["code"] == "read_only"
        assert refusal["detail"].startswith(
            "stream 'shared' cannot be deleted with its users: rule 'written' is"
        )
        assert objects(node) == before
    (node.data_dir / "sluice.conf").write_text(CONFIG)
    node.call("POST", "/config:reload")
    node.call("DELETE", "/streams/shared?cascade=true", expect=204)


def test_a_cascade_whose_file_cannot_be_written_changes_nothing(node: Node) -> None:
    make_chain(node, "d")
    before = objects(node)
    file = node.data_dir / "api.hocon"
    text = file.read_text()
    file.write_text(text + "\n# edited by hand\n")
    refusal = node.call("DELETE", "/streams/d-rows?cascade=true", expect=503)
    assert "was edited after the broker read it" in refusal["detail"]
    assert objects(node) == before
    assert node.call("GET", "/rules/d-second")["state"] == "running"
    node.call("POST", "/config:reload")
    node.call("DELETE", "/streams/d-rows?cascade=true", expect=204)
    node.call("DELETE", "/streams/d-raw", expect=204)


def test_a_connector_goes_with_its_actions_their_fallbacks_and_the_rules_that_use_them(
    node: Node,
) -> None:
    node.call("POST", "/connectors", {"name": "away", "type": "mqtt", "server": "127.0.0.1:1"})
    node.call("POST", "/connectors", {"name": "other", "type": "mqtt", "server": "127.0.0.1:1"})
    action = {"type": "mqtt", "parameters": {"topic": "out"}}
    node.call("POST", "/actions", {"name": "spare", "connector": "away", **action})
    fallback = {"kind": "reference", "type": "mqtt", "name": "spare"}
    node.call(
        "POST",
        "/actions",
        {"name": "first", "connector": "other", **action, "fallback_actions": [fallback]},
    )
    node.call(
        "POST",
        "/sources",
        {"name": "in", "type": "mqtt", "connector": "away", "parameters": {"topic": "in"}},
    )
    send = [{"type": "bridge", "bridge": "mqtt:first"}]
    node.call(
        "POST", "/rules", {"name": "sends", "sql": 'SELECT 1 AS a FROM "e/#"', "actions": send}
    )
    node.call("POST", "/rules", {"name": "reads", "sql": 'SELECT * FROM "$bridges/mqtt:in"'})
    before = objects(node)
    refusal = node.call("DELETE", "/connectors/away", expect=409)
    assert refusal["users"] == ["action 'mqtt:spare'", "source 'mqtt:in'"]
    effect = node.call("DELETE", "/connectors/away?cascade=true&dry_run=true")
    node.call("DELETE", "/connectors/away?cascade=true", expect=204)
    gone = {("connectors", "away"), ("rules", "sends"), ("rules", "reads"), ("sources", "in")}
    gone |= {("actions", "spare"), ("actions", "first")}
    assert before - objects(node) == cascaded(effect, "away", "connectors") == gone


def test_a_schema_goes_with_the_schemas_that_refer_to_it(node: Node) -> None:
    inner = {"name": "inner", "type": "json", "source": '{"type": "object"}'}
    node.call("POST", "/schemas", inner)
    outer = {"name": "outer", "type": "json", "source": '{"$ref": "inner"}'}
    outer["references"] = [{"name": "inner", "schema": "inner", "version": 1}]  # type: ignore[assignment]
    node.call("POST", "/schemas", outer)
    check = {"type": "sql", "sql": "SELECT * WHERE schema_check('outer', payload)"}
    node.call(
        "PUT",
        "/validations/by-sql",
        {"topics": ["f/#"], "checks": [check], "strategy": "all_pass", "failure_action": "drop"},
    )
    before = objects(node)
    assert node.call("DELETE", "/schemas/outer", expect=409)["users"] == ["validation 'by-sql'"]
    assert node.call("DELETE", "/schemas/inner", expect=409)["code"] == "in_use"
    effect = node.call("DELETE", "/schemas/inner?cascade=true&dry_run=true")
    node.call("DELETE", "/schemas/inner?cascade=true", expect=204)
    gone = {("schemas", "inner"), ("schemas", "outer"), ("validations", "by-sql")}
    assert before - objects(node) == cascaded(effect, "inner", "schemas") == gone
    saved = node.call("POST", "/schemas", {**inner, "source": '{"type": "array"}'})
    assert saved["version"] == 2  # the versions of a deleted schema are kept
    node.call("DELETE", "/schemas/inner?force=true")


def test_a_registry_that_a_rule_names_is_in_use(node: Node) -> None:
    node.call(
        "POST",
        "/schema-registries",
        {"name": "far", "type": "confluent", "url": "http://127.0.0.1:1"},
    )
    node.call(
        "POST",
        "/rules",
        {"name": "tagged", "sql": "SELECT schema_decode_tagged('far', payload) AS v FROM \"g\""},
    )
    assert node.call("DELETE", "/schema-registries/far", expect=409)["users"] == ["rule 'tagged'"]
    node.call("DELETE", "/schema-registries/far?cascade=true", expect=204)
    assert ("rules", "tagged") not in objects(node)


def test_a_share_group_that_reads_a_stream_goes_with_it(node: Node) -> None:
    node.call("POST", "/streams", {"name": "h-raw", "topics": ["h/#"]})
    node.call("POST", "/groups", {"group": "$share/h/h/#", "start": "earliest"})
    assert node.call("DELETE", "/streams/h-raw", expect=409)["users"] == [
        "share group '$share/h/h/#'"
    ]
    effect = node.call("DELETE", "/streams/h-raw?cascade=true&dry_run=true")
    assert [(one["kind"], one["name"]) for one in effect["affected"]] == [
        ("share group", "$share/h/h/#")
    ]
    node.call("DELETE", "/streams/h-raw?cascade=true", expect=204)
    assert node.call("GET", "/groups")["items"] == []


def test_the_command_cascades_when_asked(node: Node) -> None:
    make_chain(node, "i")
    refused = sluice(node, "rules", "rm", "i-first", "--yes")
    assert (refused.returncode, "--cascade" in refused.stderr) == (6, True), refused.stderr
    dry = sluice(node, "streams", "rm", "i-rows", "--cascade", "--dry-run")
    assert "affects rule i-first: is deleted too" in dry.stdout, dry.stdout + dry.stderr
    done = sluice(node, "rules", "rm", "i-first", "--cascade", "--yes")
    assert done.returncode == 0, done.stderr
    assert not {("rules", "i-first"), ("rules", "i-second"), ("lake/tables", "i-table")} & objects(
        node
    )
    assert sluice(node, "streams", "rm", "i-rows", "--cascade", "--yes").returncode == 0
    assert ("validations", "i-kept") not in objects(node)
    node.call("DELETE", "/streams/i-raw")
