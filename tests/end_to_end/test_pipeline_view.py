"""Everything that acts on a topic, in one view, and a trial of all of it on one message."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.cli import exit_codes
from tests.support.local_node import Node, running, sluice

CONFIG = """
schema_registry.schemas = [{ name = reading, type = json
  source = { type = object, required = [temp], properties { temp { type = number } } } }]
schema_validation.validations = [
  { name = watch, topics = ["+/in"], strategy = all_pass, failure_action = drop, mode = shadow
    checks = [{ type = sql, sql = "SELECT * WHERE payload.temp < 50" }] }
  { name = gate, topics = ["a/#"], strategy = all_pass, failure_action = drop
    checks = [{ type = json, schema = reading }] }
  { name = off, topics = ["a/#"], enable = false, strategy = all_pass, failure_action = drop
    checks = [{ type = json, schema = reading }] }
]
message_transformation.transformations = [
  { name = convert, topics = ["a/in"], failure_action = drop
    payload_decoder = { type = json }, payload_encoder = { type = json }
    operations = [{ key = "payload.by", value = clientid }, { key = topic, value = "'b/out'" }] }
]
streams = [{ name = raw, topics = ["b/#"] }, { name = rows }]
rule_engine.rules = [
  { name = hot, sql = "SELECT payload.temp AS t, payload.by AS by FROM \\"b/#\\" WHERE payload.temp > 20"
    actions = [{ type = stream, stream = rows }] }
  { name = stop, sql = "SELECT 1 AS one FROM \\"b/#\\" WHERE payload.temp > 90", actions = [{ type = drop }] }
]
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("pipeline-view") / "node", config=CONFIG) as node:
        yield node


def preview(node: Node, payload: str) -> Any:
    return node.call(
        "POST",
        "/pipeline:preview",
        {"message": {"topic": "a/in", "payload": payload, "clientid": "m7"}},
    )


def test_the_view_lists_what_acts_on_a_topic_in_order(node: Node) -> None:
    stages = node.call("GET", "/pipeline?topic=a/in")["stages"]
    assert [(stage["stage"], stage["name"], stage["enabled"]) for stage in stages] == [
        ("validation", "watch", True), ("validation", "gate", True), ("validation", "off", False),
        ("transformation", "convert", True), ("subscribers", "subscribers", True),
    ]  # fmt: skip
    assert stages[0]["on_failure"] == "shadow"
    assert stages[0]["topics"] == ["+/in"]
    behind = node.call("GET", "/pipeline?topic=b/out")["stages"]
    assert [stage["name"] for stage in behind] == ["hot", "stop", "raw", "subscribers"]
    for topic in ("a/%23", "", "a%00"):
        node.call("GET", f"/pipeline?topic={topic}", expect=(400, 422))


@pytest.mark.parametrize(
    ("payload", "outcome", "steps"),
    [
        ('{"temp": 30}', "passed", ["passed", "passed", "changed", "rows", "no_result"]),
        ('{"temp": 60}', "passed", ["shadow", "passed", "changed", "rows", "no_result"]),
        ('{"temp": 95}', "drop", ["shadow", "passed", "changed", "rows", "drop"]),
        ('{"temp": "x"}', "drop", ["shadow", "drop"]),
        ("no json", "drop", ["shadow", "drop"]),
    ],
)
def test_a_message_is_tried_on_everything(
    node: Node, payload: str, outcome: str, steps: list[str]
) -> None:
    answer = preview(node, payload)
    assert answer["outcome"] == outcome
    assert [step["outcome"] for step in answer["steps"]] == steps
    last = answer["steps"][-1]
    ended_by = None if outcome == "passed" else {"stage": last["stage"], "name": last["name"]}
    assert answer.get("ended_by") == ended_by
    if outcome == "passed":
        temp = json.loads(payload)["temp"]
        assert answer["message"]["topic"] == "b/out"
        assert json.loads(answer["message"]["payload"]["data"]) == {"temp": temp, "by": "m7"}
        assert answer["steps"][3]["rows"] == [{"t": temp, "by": "m7"}]


def test_a_trial_counts_and_stores_nothing(node: Node) -> None:
    before = [
        node.call("GET", f"/{path}")["metrics"]
        for path in ("validations/gate", "transforms/convert", "rules/hot")
    ]
    preview(node, '{"temp": 30}')
    after = [
        node.call("GET", f"/{path}")["metrics"]
        for path in ("validations/gate", "transforms/convert", "rules/hot")
    ]
    assert [one["matched"] for one in before] == [one["matched"] for one in after] == [0, 0, 0]
    assert node.call("GET", "/streams/rows/positions")["shards"][0]["next_offset"] == "0"


def test_drafts_are_tried_in_place_of_saved_ones_of_their_name(node: Node) -> None:
    convert = {"name": "convert", "topics": ["a/in"], "failure_action": "drop"}
    rename = {**convert, "operations": [{"key": "topic", "value": "'b/draft'"}]}
    late = {
        **convert,
        "name": "late",
        "topics": ["#"],
        "operations": [{"key": "qos", "value": "1"}],
    }
    strict = {"type": "sql", "sql": "SELECT * WHERE payload.temp < 10"}
    gate = {
        "name": "gate",
        "topics": ["a/#"],
        "strategy": "all_pass",
        "failure_action": "drop",
        "checks": [strict],
    }
    message = {"topic": "a/in", "payload": '{"temp": 30}'}
    changed = node.call(
        "POST", "/pipeline:preview", {"message": message, "transformations": [rename, late]}
    )
    assert changed["message"]["topic"] == "b/draft"
    assert changed["message"]["qos"] == 1
    assert [step["name"] for step in changed["steps"]] == [
        "watch",
        "gate",
        "convert",
        "late",
        "hot",
        "stop",
    ]
    stopped = node.call("POST", "/pipeline:preview", {"message": message, "validations": [gate]})
    assert [(step["name"], step["outcome"]) for step in stopped["steps"]] == [
        ("watch", "passed"),
        ("gate", "drop"),
    ]
    assert preview(node, message["payload"])["outcome"] == "passed"
    wrong = {"message": message, "transformations": [{**late, "failure_action": "explode"}]}
    refused = node.call("POST", "/pipeline:preview", wrong, expect=422)
    assert refused["errors"][0]["pointer"] == "/transformations/0/failure_action"


def output(node: Node, *arguments: str) -> str:
    """Standard output of a command that must succeed."""
    done = sluice(node, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_command_shows_both(node: Node, tmp_path: Path) -> None:
    shown = output(node, "pipeline", "a/in")
    assert [line.split()[:2] for line in shown.splitlines()[1:4]] == [
        ["validation", "watch"], ["validation", "gate"], ["validation", "off"],
    ]  # fmt: skip
    tried = output(node, "pipeline", "a/in", "-m", '{"temp": 30}', "--client", "m7")
    assert "outcome: passed" in tried
    assert '"by":"m7"' in tried
    file = tmp_path / "late.conf"
    file.write_text(
        'name = late, topics = [z], failure_action = drop, operations = [{ key = qos, value = "1" }]'
    )
    assert "late " in output(node, "pipeline", "z", "-m", "text", "--transforms", str(file))
    assert json.loads(output(node, "pipeline", "a/in", "-o", "json"))["topic"] == "a/in"


def test_gates_are_switched_ordered_and_counted_from_the_command_line(node: Node) -> None:
    node.call(
        "POST",
        "/transforms",
        {"name": "late", "topics": "z", "failure_action": "drop", "operations": []},
    )
    assert "transform late disabled" in output(node, "transforms", "disable", "late")
    assert node.call("GET", "/transforms/late")["enable"] is False
    assert "transform late enabled" in output(node, "transforms", "enable", "late")
    assert "matched" in output(node, "transforms", "metrics", "late", "--reset")
    assert "convert, late" in output(node, "transforms", "reorder", "convert", "late")


def test_gates_are_found_and_tried_from_the_command_line(node: Node, tmp_path: Path) -> None:
    shown = json.loads(output(node, "validations", "ls", "--topic", "a/in", "--enabled", "--json"))
    assert [item["name"] for item in shown["items"]] == ["watch", "gate"]
    assert [
        line.split()[0]
        for line in output(node, "validations", "ls", "--schema", "reading").splitlines()[1:]
    ] == [
        "gate",
        "off",
    ]
    tried = json.loads(
        output(node, "transforms", "try", "convert", "-t", "a/in", "-m", '{"temp": 1}', "--json")
    )
    assert tried["message"]["topic"] == "b/out"
    assert [step["key"] for step in tried["steps"]] == ["payload.by", "topic"]
    file = tmp_path / "new.conf"
    file.write_text(
        "name = new, topics = [x], failure_action = drop, operations = [{ key = qos, value = \"'7'\" }]"
    )
    stopped = sluice(node, "transforms", "try", "-f", str(file), "-t", "x", "-m", "text")
    assert stopped.returncode == exit_codes.CHECK_SAID_NO
    assert (
        "new, operation 1 failed (transformation_eval_operation_failure): QoS is 0, 1 or 2"
        in stopped.stdout
    )
    refused = sluice(node, "validations", "try", "gate", "-t", "a/in", "-m", '{"temp": "x"}')
    assert "payload.temp" in refused.stdout
    assert "outcome: drop" in refused.stdout
    assert "outcome: pass" in output(
        node, "validations", "try", "gate", "-t", "a/in", "-m", '{"temp": 1}'
    )


def test_expressions_are_evaluated_from_the_command_line(node: Node, tmp_path: Path) -> None:
    assert output(node, "variform", "upper(x)", "--set", "x=a=b") == "A=B\n"
    assert (
        output(node, "variform", "payload.n", "--raw", "--bindings", '{"payload": {"n": 1.0}}')
        == "1.0\n"
    )
    (tmp_path / "e").write_text("concat([x,\n  '!'])\n")
    assert json.loads(output(node, "variform", f"@{tmp_path / 'e'}", "--set", "x=a", "--json")) == {
        "value": "a!"
    }


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (
            ["variform", "uper(x)"],
            exit_codes.FAILED,
            "line 1, column 1: no function 'uper'; did you mean 'upper'?",
        ),
        (["variform", "x"], exit_codes.FAILED, "variable 'x' has no value"),
        (["variform", "x", "--set", "x"], exit_codes.USAGE, "--set: expected NAME=VALUE"),
        (["variform", "x", "--bindings", "["], exit_codes.USAGE, "--bindings is not valid JSON"),
        (["variform", "x", "--bindings", "[]"], exit_codes.USAGE, "--bindings is a JSON object"),
        (["transforms", "try", "-t", "a"], exit_codes.USAGE, "give names of saved ones, or a file"),
        (
            ["transforms", "try", "nobody", "-t", "a"],
            exit_codes.NOT_FOUND,
            "there is no transformation 'nobody'",
        ),
        (["validations", "try", "gate", "-t", "a/#"], exit_codes.FAILED, "a/#"),
        (
            ["validations", "enable", "nobody"],
            exit_codes.NOT_FOUND,
            "there is no validation 'nobody'",
        ),
        (["validations", "ls", "--type", "xml"], exit_codes.FAILED, "external_http"),
        (
            ["validations", "reorder", "gate"],
            exit_codes.CONFLICT,
            "the order must begin with 'watch', 'gate'",
        ),
        (["quarantine", "show", "nothing"], exit_codes.NOT_FOUND, "there is no stream 'nothing'"),
    ],
)
def test_wrong_input_is_told_in_a_sentence(
    node: Node, arguments: list[str], code: int, said: str
) -> None:
    refused = sluice(node, *arguments)
    assert refused.returncode == code, refused.stderr
    assert said in refused.stderr
    assert "Traceback" not in refused.stderr
