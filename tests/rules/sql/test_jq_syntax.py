"""The JQ clause and block: where the program ends, and what becomes of its outputs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlglot import exp

from rules.sql.syntax.parser import parse
from rules.sql.syntax.tree import jq_of
from tests.rules.sql.evaluation import FAILED, result, value


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("{u: .username, c: .clientid}", "{u: .username, c: .clientid}"),
        (".from | .FROM", ".from | .FROM"),
        ('"from \\(.a | "FROM") x" + .b', '"from \\(.a | "FROM") x" + .b'),
        ("[.[] | select(.from == 1)] # FROM here\n | .[0]", "[.[] | select(.from == 1)] # FROM here\n | .[0]"),
        ("if .a then .b elif .c then 1 else 2 end", "if .a then .b elif .c then 1 else 2 end"),
        ("reduce .[] as $from (0; . + $from)", "reduce .[] as $from (0; . + $from)"),
        ("to_entries | from_entries", "to_entries | from_entries"),
        ("..", ".."),
        ("'.a, .b'", ".a, .b"),
        ("'it''s'", "it's"),
        ("@base64 \"\\(.)\"", "@base64 \"\\(.)\""),
        ("{\"a\\\"\": 1}", "{\"a\\\"\": 1}"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("word", ["JQ", "jq", "Jq"])
def test_a_program_ends_at_its_from(text: str, program: str, word: str) -> None:
    tree = parse(f'SELECT * {word} {text}\nFROM "t/#" WHERE qos = 1')
    call = jq_of(tree)
    assert call is not None
    literal, row = call.expressions
    assert (literal.name, type(row)) == (program, exp.Star)
    assert tree.args["from_"].this.name == "t/#"
    assert literal.meta["line"] == 1


@pytest.mark.parametrize(
    ("block", "program"),
    [
        ("JQ payload DO .a END", ".a"),
        ("JQ payload.x + 1 DO if . then 1 else 2 end END", "if . then 1 else 2 end"),
        ("JQ (payload) DO {end: .end} end", "{end: .end}"),
        ("JQ '[1]' DO .[] | \"end\" END", '.[] | "end"'),
        ("JQ [1, 2] DO map(. + 1)\n# end\nEND", "map(. + 1)\n# end"),
    ],
)
def test_a_block_is_a_call_of_jq(block: str, program: str) -> None:
    call = parse(f'SELECT {block} AS r FROM "t"').expressions[0].this
    assert isinstance(call, exp.Anonymous)
    assert (call.name, call.expressions[0].name, len(call.expressions)) == ("jq", program, 2)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT a jq FROM t",
        "SELECT jq, b jq, c FROM t",
        "SELECT jq + 1 FROM t",
        "SELECT jq.a FROM t",
    ],
)
def test_jq_may_still_be_a_name(sql: str) -> None:
    assert jq_of(parse(sql)) is None


def test_every_output_is_a_row() -> None:
    assert result('SELECT clientid, qos JQ {c: .clientid}, {q: (.qos + 1)} FROM "t/#"') == [
        {"c": "c1"},
        {"q": 2},
    ]
    assert result('SELECT clientid JQ empty FROM "t/#"') == []
    assert result('SELECT clientid JQ {a: 1} FROM "t/#" WHERE qos = 2') is None
    assert result('SELECT clientid JQ .clientid FROM "t/#"') == FAILED
    assert result('SELECT clientid, missing JQ {has: has("missing")} FROM "t/#"') == [
        {"has": False}
    ]


@pytest.mark.parametrize(
    ("expression", "want"),
    [
        ("JQ payload DO .l[] END", [1, 2, 3]),
        ("JQ payload.m DO reduce .[] as $x (0; . + $x.a) END[1]", 3),
        ("JQ {a: payload.i} DO .a END", [5]),
        ("JQ 'no json' DO . END", FAILED),
    ],
)
def test_a_block_gives_the_list_of_outputs(expression: str, want: Any) -> None:
    assert value(expression) == want


def test_a_saved_rule_writes_a_row_per_output(node: Any) -> None:
    node.rule(
        "SELECT clientid, payload.l AS l JQ .l[] as $x | {clientid, $x} FROM t",
        {"type": "stream", "stream": "hot"},
    )
    node.send("t", b'{"l":[1,2]}')
    node.send("t", b'{"l":[]}')
    node.send("t", b'{"l":5}')
    assert [json.loads(record.payload) for record in node.streams.records["hot"]] == [
        {"clientid": "c1", "x": 1},
        {"clientid": "c1", "x": 2},
    ]
    assert (
        node.count("passed"),
        node.count("failed.no_result"),
        node.count("failed.exception"),
    ) == (1, 1, 1)
