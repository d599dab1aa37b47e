"""Explaining: every step in order, with values and places, told by the compiled rule itself."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.core.errors import Invalid, NotFound
from tests.rules.conftest import Node
from tests.support.examples import examples

EVENT = {
    "topic": "m/1",
    "payload": '{"t": 21.5, "n": 1, "a": [{"v": 1}, {"v": 2}]}',
    "qos": 1,
    "clientid": "c1",
}


def explained(sql: str, event: dict[str, Any] | None = None) -> Any:
    return Node().service.explain({"sql": sql, "event": EVENT if event is None else event})


def outline(found: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Clause and text of each step, and whether it holds or what it gave."""
    return [
        (step["clause"], step.get("text"), step.get("holds", step.get("value", step.get("type"))))
        for step in found["steps"]
    ]


def test_select_comes_item_by_item_then_each_condition() -> None:
    found = explained(
        "SELECT payload.t AS t, t * 2 AS d, missing FROM 'm/#', 'x/+' WHERE t > 20 AND payload.n = 2"
    )
    assert found["outcome"] == "no_result"
    assert outline(found) == [
        ("FROM", "m/#", True),
        ("FROM", "x/+", False),
        ("SELECT", "payload.t AS t", 21.5),
        ("SELECT", "t * 2 AS d", 43.0),
        ("SELECT", "missing", "undefined"),
        ("WHERE", "t > 20", True),
        ("WHERE", "payload.n = 2", False),
    ]


def test_every_sub_expression_has_its_value_and_place() -> None:
    found = explained("SELECT\n  upper(topic) = 'M/1' AND payload.n + 1 > 5 AS ok\nFROM 'm/#'")
    [whole] = found["steps"][1]["expressions"]
    assert (whole["line"], whole["column"], whole["value"]) == (2, 3, False)
    left, right = whole["expressions"]
    assert (left["text"], left["value"], left["expressions"][0]["text"]) == (
        "upper(topic) = 'M/1'",
        True,
        "upper(topic)",
    )
    assert left["expressions"][0]["expressions"] == [
        {"text": "topic", "line": 2, "column": 9, "type": "string", "value": "m/1"}
    ]
    assert (right["text"], right["column"], right["expressions"][0]["value"]) == (
        "payload.n + 1 > 5",
        28,
        2,
    )


def test_what_was_not_evaluated_is_not_told() -> None:
    found = explained(
        "SELECT CASE WHEN payload.n = 1 THEN 'one' ELSE upper(topic) END AS c FROM 'm/#' WHERE 1=1 OR qos=2"
    )
    [case], [either] = (step["expressions"] for step in found["steps"][1:])
    assert [part["text"] for part in case["expressions"]] == ["payload.n = 1"]
    assert [part["text"] for part in either["expressions"]] == ["1 = 1"]


def test_foreach_is_told_item_by_item() -> None:
    found = explained("FOREACH payload.a AS s DO s.v AS v INCASE s.v > 1 FROM 'm/#'")
    assert outline(found) == [
        ("FROM", "m/#", True),
        ("FOREACH", "payload.a AS s", [{"v": 1}, {"v": 2}]),
        ("ITEM", None, {"v": 1}),
        ("INCASE", "s.v > 1", False),
        ("ITEM", None, {"v": 2}),
        ("INCASE", "s.v > 1", True),
        ("DO", "s.v AS v", 2),
    ]
    assert found["rows"] == [{"v": 2}]
    assert [step.get("item") for step in found["steps"]] == [None, None, 1, 1, 2, 2, 2]


def test_an_error_is_told_at_the_step_where_it_came_up() -> None:
    found = explained("SELECT topic, payload.t div 0 AS d, qos FROM 'm/#'")
    assert [step["clause"] for step in found["steps"]] == ["FROM", "SELECT", "SELECT"]
    assert found["steps"][-1]["error"] == found["error"]
    assert "value" not in found["steps"][-1]
    assert (found["error"]["line"], found["error"]["column"]) == (1, 15)


@pytest.mark.parametrize(
    ("sql", "column"),
    [
        ("FOREACH payload.a AS s DO s.v AS v INCASE s.v + true = 2 FROM 'm/#'", 43),
        ("SELECT 1 AS a FROM 'm/#' WHERE qos = 1 AND topic > 5", 44),
        ("SELECT CASE WHEN topic > 5 THEN 1 END AS a FROM 'm/#'", 18),
    ],
)
def test_a_failing_condition_has_its_place_and_does_not_hold(sql: str, column: int) -> None:
    found = explained(sql)
    assert found["error"]["column"] == column
    assert "holds" not in found["steps"][-1]


def test_a_source_that_does_not_match_ends_it() -> None:
    found = explained("SELECT * FROM '$events/client/connected', 'x'")
    assert outline(found) == [("FROM", "$events/client/connected", False), ("FROM", "x", False)]


def test_events_are_explained_too() -> None:
    found = explained(
        "SELECT clientid FROM '$events/client/connected'",
        {"event": "client.connected", "clientid": "c9"},
    )
    assert found["rows"] == [{"clientid": "c9"}]


def test_long_values_and_many_are_cut() -> None:
    found = explained("SELECT payload FROM 'm/#'", {**EVENT, "payload": "x" * 10_000})
    assert (found["steps"][1]["is_cut"], len(found["steps"][1]["value"])) == (True, 4096)
    array = "[" + ",".join(["1"] * 30_000) + "]"
    found = explained("FOREACH payload DO item AS i FROM 'm/#'", {**EVENT, "payload": array})
    assert (found["is_cut"], len(found["rows"])) == (True, 30_000)


def test_actions_are_rehearsed_and_not_done(node: Node) -> None:
    actions: list[dict[str, object]] = [
        {"type": "stream", "stream": "hot"},
        {"type": "republish", "topic": "out/${t}", "payload": "${.}", "qos": 1},
        {"type": "republish", "topic": "${t}/+"},
        {"type": "bridge", "bridge": "kafka:orders"},
        {"type": "console"},
        {"type": "drop"},
    ]
    node.rule("SELECT payload.t AS t FROM 'm/#'", *actions)
    steps = [
        step
        for step in node.service.explain({"name": "r1", "event": EVENT})["steps"]
        if "action" in step
    ]
    appended, published, failed, discarded, logged, dropped = steps
    assert appended["effects"] == [
        {"append": {"stream": "hot", "topic": "m/1", "row": {"t": 21.5}}}
    ]
    assert published["effects"][0]["publish"]["topic"] == "out/21.5"
    assert published["effects"][0]["publish"]["payload"] == {
        "encoding": "utf8",
        "data": '{"t":21.5}',
    }
    assert "must not contain '+'" in failed["error"]["message"]
    assert discarded["discarded"] == "bridge kafka:orders is missing"
    assert logged["effects"] == [{"log": {"t": 21.5}}]
    assert dropped["effects"][0]["drop"]["disconnect"] is False
    assert (node.published, node.streams.records["hot"], node.count("matched")) == ([], [], 0)


def test_what_cannot_be_explained_is_refused(node: Node) -> None:
    with pytest.raises(NotFound):
        node.service.explain({"name": "r9", "event": {}})
    both = {"name": "r1", "sql": "SELECT 1 FROM 't'"}
    bodies: list[Any] = [{}, {"sql": "SELECT nosuch(1) FROM 't'"}, both, {"name": 7}, []]
    for body in bodies:
        with pytest.raises(Invalid):
            node.service.explain(body)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(-9, 9)
    | st.sampled_from(["", "a", "7"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abv"), inner, max_size=3)
    ),
    max_leaves=6,
)
STATEMENTS = [
    "SELECT payload.a AS a, a.b, payload.v + 1 AS v FROM '#' WHERE payload.a = 1 OR NOT (v > 2)",
    "SELECT *, CASE payload.a WHEN 1 THEN 'x' ELSE payload.b[1] END AS c FROM '#'",
    "SELECT [payload.a, payload.b] AS l, payload.v IN (1, 'a') AS i FROM '#' WHERE is_not_null(payload.a)",
    "FOREACH payload.a AS s, payload.b DO s, item.v AS v INCASE item.v > 0 FROM '#'",
    "SELECT payload.a.b[1].v AS x, -payload.v AS n, payload.a || 'z' AS z FROM '#' WHERE payload.v BETWEEN 0 AND 2",
]


@settings(max_examples=examples(200), deadline=None)
@given(st.sampled_from(STATEMENTS), st.dictionaries(st.sampled_from("abv"), VALUES))
def test_an_explained_rule_does_what_the_rule_does(sql: str, payload: dict[str, Any]) -> None:
    event = {"topic": "t", "payload": {"encoding": "json", "data": payload}}
    found = SERVICE.explain({"sql": sql, "event": event})
    tried = SERVICE.test({"sql": sql, "event": event})
    for volatile in ("id", "timestamp", "publish_received_at"):
        for row in found.get("rows", []) + tried.get("rows", []):
            row.pop(volatile, None)
    assert {key: value for key, value in found.items() if key != "steps"} == tried


SERVICE = Node().service
