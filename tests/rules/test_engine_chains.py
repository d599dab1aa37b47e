"""Rules that read the rows of other rules, connectors as sources, and rules that cannot be used."""

from __future__ import annotations

import json
from typing import Any

import pytest

from broker.codec.packets import Publish, SubscriptionRequest
from broker.core.errors import ConfigError, Conflict, InUse, Invalid
from broker.core.objects import Spec
from rules.chains import MAX_LENGTH
from rules.settings import RulesSettings
from tests.support.mqtt_server import on_loop
from tests.support.rules_server import running_rules

HOT = {"type": "stream", "stream": "hot"}
COLD = {"type": "stream", "stream": "cold"}


def rows(node: Any, stream: str = "hot") -> list[Any]:
    return [json.loads(record.payload) for record in node.streams.records[stream]]


def problem_of(node: Any, sql: str, name: str = "r1") -> Any:
    with pytest.raises(Invalid) as refused:
        node.rule(sql, name=name)
    (problem,) = refused.value.problems
    return problem


def test_rows_of_one_rule_are_the_events_of_another(node: Any) -> None:
    node.rule("SELECT payload.t AS t, clientid FROM 'in' WHERE payload.t > 20", name="hot")
    node.rule("SELECT *, t * 2 AS twice FROM '$rules/hot' WHERE t < 90", HOT, name="doubled")
    for text in (b'{"t":10}', b'{"t":30}', b'{"t":99}', b"no json"):
        node.send("in", text)
    (row,) = rows(node)
    assert row | {"timestamp": 0} == {
        "node": "n1",
        "timestamp": 0,
        "t": 30,
        "clientid": "c1",
        "event": "$rules/hot",
        "metadata": {"rule_id": "doubled"},
        "twice": 60,
    }
    metrics = [node.service.get(name)["metrics"] for name in ("hot", "doubled")]
    assert [
        (one["matched"], one["passed"], one["failed.no_result"], one["failed.exception"])
        for one in metrics
    ] == [
        (4, 2, 1, 1),
        (2, 1, 1, 0),
    ]


def test_every_row_is_read_and_columns_of_rows_win_over_the_common_ones(node: Any) -> None:
    node.rule("FOREACH payload AS p DO p AS timestamp, payload FROM 'in'", name="split")
    node.rule(
        "SELECT timestamp AS t, payload[1] AS first, event AS e FROM '$rules/split'",
        HOT,
        name="reader",
    )
    node.send("in", b"[7,8]")
    assert rows(node) == [
        {"t": 7, "first": 7, "e": "$rules/split"},
        {"t": 8, "first": 7, "e": "$rules/split"},
    ]


@on_loop
async def test_a_row_s_own_actions_come_before_its_readers_and_readers_in_order() -> None:
    async with running_rules() as node:
        node.rule(
            "a",
            "FOREACH payload AS p DO p FROM 'in'",
            {"type": "republish", "topic": "a", "payload": "${p}"},
        )
        node.rule(
            "c", "SELECT * FROM '$rules/a'", {"type": "republish", "topic": "c", "payload": "${p}"}
        )
        node.rule(
            "b", "SELECT * FROM '$rules/a'", {"type": "republish", "topic": "b", "payload": "${p}"}
        )
        client = await node.server.client("c1", 5)
        await client.subscribe(SubscriptionRequest("+"))
        client.send(Publish("in", b"[1,2]"))
        got = [await client.expect(Publish) for _ in range(7)]
        assert [(one.topic, one.payload) for one in got[:6]] == [
            ("a", b"1"), ("c", b"1"), ("b", b"1"), ("a", b"2"), ("c", b"2"), ("b", b"2"),
        ]  # fmt: skip


def test_user_properties_of_the_message_go_along_a_chain(node: Any) -> None:
    node.rule("SELECT payload FROM 'in'", name="a")
    to_out = {
        "type": "republish",
        "topic": "out",
        "user_properties": "${pub_props.'User-Property'}",
    }
    node.rule("SELECT * FROM '$rules/a'", to_out, name="b")
    node.publish_with([("k", "1"), ("k", "2")])
    assert node.published[-1].user_properties == [("k", "1"), ("k", "2")]


def test_only_enabled_rules_take_part(node: Any) -> None:
    node.rule("SELECT 1 AS n FROM 'in'", name="a")
    node.rule("SELECT * FROM '$rules/a'", HOT, name="b")
    node.service.replace("b", {**node.service.get("b"), "enable": False})
    node.send("in", b"")
    node.service.replace("b", {**node.service.get("b"), "enable": True})
    node.service.replace("a", {**node.service.get("a"), "enable": False})
    node.send("in", b"")
    assert rows(node) == []
    assert (node.count("matched", "a"), node.count("matched", "b")) == (1, 0)


def test_a_reader_on_topics_too_runs_for_each(node: Any) -> None:
    node.rule("SELECT 'row' AS what FROM 'in'", name="a")
    node.rule("SELECT coalesce(what, 'message') AS what FROM '$rules/a', 'in'", HOT, name="b")
    node.send("in", b"")
    assert rows(node) == [{"what": "row"}, {"what": "message"}]


@on_loop
async def test_a_reader_may_drop_the_message_that_led_to_the_row() -> None:
    async with running_rules() as node:
        node.rule("a", "SELECT payload.x AS x FROM 'in'")
        node.rule("b", "SELECT * FROM '$rules/a' WHERE x > 9", {"type": "drop"})
        node.rule("c", "SELECT * FROM '$rules/a'", HOT)
        client = await node.server.client("c1", 5)
        await client.subscribe(SubscriptionRequest("in"))
        client.send(Publish("in", b'{"x":10}'), Publish("in", b'{"x":1}'))
        assert (await client.expect(Publish)).payload == b'{"x":1}'
        assert node.server.dropped("dropped_by_rule:b") == 1
        assert node.count("c", "matched") == 1


def test_a_name_that_no_rule_has_is_refused_with_a_suggestion(node: Any) -> None:
    node.rule("SELECT 1 AS n FROM 'in'", name="meters")
    problem = problem_of(node, "SELECT *\n  FROM '$rules/meter'")
    assert (problem.message, problem.suggestion) == (
        "there is no rule 'meter'",
        "did you mean 'meters'?",
    )
    assert (problem.pointer, problem.line, problem.column) == ("/sql", 2, 8)


def test_rows_do_not_go_round(node: Any) -> None:
    assert (
        problem_of(node, "SELECT * FROM '$rules/r1'").message
        == "the rule would read itself: r1 → r1"
    )
    node.rule("SELECT * FROM 'in'", name="a")
    node.rule("SELECT * FROM '$rules/a'", name="b")
    node.rule("SELECT * FROM '$rules/b'", name="c")
    with pytest.raises(Invalid) as refused:
        node.service.replace("a", {"sql": "SELECT * FROM 'in', '$rules/c'"})
    assert [problem.message for problem in refused.value.problems] == [
        "rows would go round: a → b → c → a"
    ]
    assert node.service.get("a")["from"] == ["in"]


def test_a_chain_is_not_endless(node: Any) -> None:
    node.rule("SELECT * FROM 'in'", name="r0")
    for number in range(1, MAX_LENGTH):
        node.rule(f"SELECT * FROM '$rules/r{number - 1}'", name=f"r{number}")
    problem = problem_of(node, f"SELECT * FROM '$rules/r{MAX_LENGTH - 1}'", "one-more")
    assert problem.message == f"more than {MAX_LENGTH} rules would read one another in a row"


def test_there_is_no_message_to_drop_behind_a_rule_on_events(node: Any) -> None:
    node.rule("SELECT * FROM '$events/client/connected'", name="a")
    node.rule("SELECT * FROM 'in'", name="b")
    with pytest.raises(Invalid, match="'r1' stops messages, and rule 'a' runs on events"):
        node.rule("SELECT * FROM '$rules/a'", {"type": "drop"})
    node.rule("SELECT * FROM '$rules/b'", {"type": "drop"})
    with pytest.raises(Invalid, match="rule 'r1' would break"):
        node.service.replace("b", {"sql": "SELECT * FROM '$events/client/connected'"})


def test_a_rule_that_others_read_goes_only_by_force_and_they_stand_still_until_it_is_back(
    node: Any,
) -> None:
    node.rule("SELECT 1 AS n FROM 'in'", name="a")
    node.rule("SELECT * FROM '$rules/a'", HOT, name="b")
    with pytest.raises(InUse, match="rule 'a' is used by rule 'b'"):
        node.service.delete("a")
    node.service.delete("a", force=True)
    shown = node.service.get("b")
    assert (shown["state"], shown["problem"]) == (
        "failed",
        "line 1, column 15: there is no rule 'a'",
    )
    node.send("in", b"")
    node.rule("SELECT 1 AS n FROM 'in'", name="a")
    assert node.service.get("b")["state"] == "running"
    node.send("in", b"")
    assert len(rows(node)) == 1


def stored(name: str, sql: str, *actions: Any) -> Spec:
    return {"name": name, "sql": sql, "actions": list(actions), "enable": True, "description": ""}


@on_loop
async def test_rules_are_loaded_in_any_order() -> None:
    async with running_rules(
        stored("b", "SELECT * FROM '$rules/a'", HOT), stored("a", "SELECT 1 AS n FROM 'in'")
    ) as node:
        client = await node.server.client("c1", 4)
        client.send(Publish("in", b""))
        await client.silence()
        assert len(rows(node)) == 1
        assert [rule["state"] for rule in node.feature.service.list()] == ["running", "running"]


@on_loop
async def test_a_rule_that_cannot_be_used_any_more_is_kept_and_the_others_run() -> None:
    broken = stored("broken", "SELECT nosuch(1) FROM 'in'", {"type": "telepathy"})
    async with running_rules(
        broken, stored("good", "SELECT 1 AS n FROM 'in'", HOT), stored("reader", "SELECT * FROM '$rules/broken'"),
        stored("x", "SELECT * FROM '$rules/y'"), stored("y", "SELECT * FROM '$rules/x'"),
    ) as node:  # fmt: skip
        client = await node.server.client("c1", 4)
        client.send(Publish("in", b""))
        await client.silence()
        assert len(rows(node)) == 1
        states = {rule["name"]: rule["state"] for rule in node.feature.service.list()}
        assert states == {
            "broken": "failed",
            "good": "running",
            "reader": "running",
            "x": "failed",
            "y": "failed",
        }
        assert "'telepathy'" in node.shown("broken")["problem"]
        assert node.shown("x")["problem"] == "line 1, column 15: rows would go round: x → y → x"
        with pytest.raises(Conflict, match="rule 'broken' cannot be used"):
            node.feature.service.metrics("broken")
        node.feature.service.reorder(["good", "broken", "reader", "x", "y"])
        assert node.section.load()[1] == broken, "what cannot be read is not lost"
        node.feature.service.replace("broken", {"sql": "SELECT 2 AS n FROM 'in'"})
        assert node.shown("broken")["state"] == "running"
        node.feature.service.delete("x", force=True)
        assert node.shown("y")["problem"].endswith("there is no rule 'x'")


def test_a_broker_may_be_told_not_to_start_then() -> None:
    @on_loop
    async def run() -> None:
        settings = RulesSettings(unusable_rules="refuse")
        async with running_rules(stored("broken", "SELECT nosuch(1) FROM 'in'"), settings=settings):
            pass

    with pytest.raises(
        ConfigError, match=r"rule 'broken' cannot be used: line 1, column 8: .*nosuch"
    ):
        run()


def test_names_are_needed_even_for_rules_that_cannot_be_used() -> None:
    @on_loop
    async def run() -> None:
        async with running_rules(
            stored("good", "SELECT 1 FROM 'in'"), stored("", "SELECT 1 FROM 'in'")
        ):
            pass

    with pytest.raises(ConfigError, match="name"):
        run()


@pytest.mark.parametrize(
    "source", ["$bridges/mqtt:plant", "$sources/mqtt:plant", "$bridges/mqtt:*"]
)
def test_what_a_connector_brings_in_is_read_by_either_name(node: Any, source: str) -> None:
    assert not node.events.wants_from("mqtt:plant")
    node.rule(f"SELECT payload.x AS x, topic, event FROM '{source}', '$sources/mqtt:plant'", HOT)
    node.rule("SELECT * FROM '$bridges/mqtt:other'", COLD, name="other")
    assert node.events.wants_from("mqtt:plant")
    node.events.came_in(
        "mqtt:plant", {"id": "1", "server": "s", "payload": b'{"x":5}', "topic": "a/b", "qos": 1}
    )
    assert rows(node) == [{"x": 5, "topic": "a/b", "event": "$bridges/mqtt:plant"}]
    assert rows(node, "cold") == []


@pytest.mark.parametrize("source", ["$bridges/plant", "$rules/", "$rules/a/b"])
def test_sources_that_name_nothing_are_refused(node: Any, source: str) -> None:
    assert problem_of(node, f"SELECT * FROM '{source}'").pointer == "/sql"
