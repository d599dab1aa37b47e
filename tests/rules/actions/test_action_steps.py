"""Several actions of a rule: their order, counters, fallbacks, and sinks that come and go."""

from __future__ import annotations

from typing import Any

import pytest

from broker.codec.packets import Publish, SubscriptionRequest
from broker.core.action import DISABLED, DISCONNECTED
from broker.core.errors import Unavailable
from tests.support.mqtt_server import on_loop
from tests.support.rules_server import running_rules

HOT = {"type": "stream", "stream": "hot"}
COLD = {"type": "stream", "stream": "cold"}


def republish(topic: str, **members: Any) -> dict[str, Any]:
    return {"type": "republish", "topic": topic, **members}


@on_loop
async def test_actions_run_in_order_for_each_row() -> None:
    async with running_rules() as node:
        node.rule(
            "r1",
            "FOREACH payload.l AS i DO i FROM 'in'",
            republish("a", payload="${i}"),
            republish("b", payload="${i}"),
        )
        client = await node.server.client("c1", 5)
        await client.subscribe(SubscriptionRequest("a"), SubscriptionRequest("b"))
        client.send(Publish("in", b'{"l":[1,2]}'))
        got = [await client.expect(Publish) for _ in range(4)]
        assert [(one.topic, one.payload) for one in got] == [
            ("a", b"1"),
            ("b", b"1"),
            ("a", b"2"),
            ("b", b"2"),
        ]


def test_fallbacks_run_in_order_when_the_action_fails_and_are_counted(node: Any) -> None:
    bad = republish("${topic}/#", fallback_actions=[republish("${topic}/+"), HOT, COLD])
    node.rule("SELECT topic FROM 'in'", bad, republish("ok", payload="-"))
    node.send("in", b"")
    assert len(node.streams.records["hot"]) == len(node.streams.records["cold"]) == 1
    first, second = node.service.get("r1")["action_details"]
    assert (first["type"], first["metrics"]["failed.unknown"], second["metrics"]["success"]) == (
        "republish",
        1,
        1,
    )
    fallbacks = first["fallback_actions"]
    assert [one["metrics"]["success"] for one in fallbacks] == [0, 1, 1]
    assert [one["metrics"]["failed"] for one in fallbacks] == [1, 0, 0]
    assert node.count("actions.total") == 2, "fallbacks are counted apart"


def test_fallbacks_do_not_run_when_nothing_failed(node: Any) -> None:
    node.rule("SELECT topic FROM 'in'", {**COLD, "fallback_actions": [HOT]})
    node.send("in", b"")
    assert (len(node.streams.records["cold"]), len(node.streams.records["hot"])) == (1, 0)


def test_streams_of_fallbacks_are_in_use(node: Any) -> None:
    node.rule("SELECT topic FROM 'in'", {"type": "console", "fallback_actions": [HOT]})
    assert node.services.contributors.users_of("stream", "hot") == [("rule", "r1")]


def test_bridges_are_in_use_also_as_fallbacks(node: Any) -> None:
    node.rule("SELECT topic FROM 'in'", {**COLD, "fallback_actions": ["kafka:orders"]})
    assert node.services.contributors.users_of("action", "kafka:orders") == [("rule", "r1")]
    assert node.services.contributors.users_of("action", "kafka:other") == []


def test_counters_of_actions_have_labels_of_their_own_and_go_with_them(node: Any) -> None:
    node.rule("SELECT topic FROM 'in'", {**COLD, "fallback_actions": [HOT]}, {"type": "console"})
    node.send("in", b"")
    assert node.metrics.value("rule_actions_success", rule="r1", action="0", type="stream") == 1
    assert node.metrics.value("rule_actions_success", rule="r1", action="1", type="console") == 1
    assert node.metrics.value("rule_actions_total", rule="r1", action="0.0", type="stream") == 0
    node.service.replace("r1", {"sql": "SELECT topic FROM 'in'", "actions": [COLD]})
    of_rule = {metric.labels["action"] for metric in node.metrics if "action" in metric.labels}
    assert of_rule == {"0"}


def test_what_does_not_change_what_a_rule_does_leaves_its_counters(node: Any) -> None:
    node.rule("SELECT topic FROM 'in'", COLD)
    node.send("in", b"")
    node.service.replace("r1", {**node.service.get("r1"), "description": "the same"})
    node.send("in", b"")
    assert (node.count("matched"), node.count("actions.success")) == (2, 2)
    node.service.reset_metrics("r1")
    assert (node.count("matched"), node.count("actions.success")) == (0, 0)


@on_loop
async def test_a_bridge_may_come_after_the_rule_that_names_it() -> None:
    async with running_rules() as node:
        shown = node.rule("r1", "SELECT payload FROM 'in'", "kafka:orders")
        assert shown["action_details"][0] | {"metrics": None} == {
            "type": "bridge", "name": "kafka:orders", "status": "missing", "metrics": None, "last_error": None,
        }  # fmt: skip
        client = await node.server.client("c1", 5)
        client.send(Publish("in", b"1"))
        await client.silence()
        assert (node.count("r1", "actions.discarded"), node.count("r1", "actions.failed")) == (1, 0)
        sink = node.sink("kafka:orders")
        client.send(Publish("in", b"2"))
        await client.silence()
        assert sink.rows == [{"payload": "2"}]
        assert sink.messages[0].client.client_id == "c1"
        assert (node.details("r1")["status"], node.count("r1", "actions.success")) == (
            "connected",
            1,
        )
        node.services.endpoints.sinks.remove("kafka:orders")
        client.send(Publish("in", b"3"))
        await client.silence()
        assert node.count("r1", "actions.discarded") == 2


@pytest.mark.parametrize(
    ("state", "counted", "has_fallback"),
    [(DISABLED, "actions.discarded", False), (DISCONNECTED, "actions.failed.out_of_service", True)],
)
def test_a_sink_that_takes_nothing(state: str, counted: str, has_fallback: bool) -> None:
    @on_loop
    async def run() -> None:
        async with running_rules() as node:
            node.sink("http:hook", state=state)
            node.rule(
                "r1",
                "SELECT * FROM 'in'",
                {"type": "bridge", "bridge": "http:hook", "fallback_actions": [HOT]},
            )
            client = await node.server.client("c1", 5)
            client.send(Publish("in", b"x"))
            await client.silence()
            assert node.count("r1", counted) == 1
            assert len(node.streams.records["hot"]) == has_fallback
            assert node.details("r1")["status"] == state

    run()


@on_loop
async def test_what_a_sink_tells_later_is_counted_then() -> None:
    async with running_rules() as node:
        sink = node.sink("kafka:orders", settles=False)
        action = {"type": "bridge", "bridge": "kafka:orders", "fallback_actions": [HOT]}
        node.rule("r1", "SELECT payload FROM 'in'", action)
        client = await node.server.client("c1", 5)
        for payload in (b"1", b"2", b"3"):
            client.send(Publish("in", payload))
        await client.silence()
        assert (node.count("r1", "actions.total"), node.count("r1", "actions.success")) == (3, 0)
        first, second, third = sink.open
        second(Unavailable("the broker is gone"))
        third(ValueError("too large"))
        first(None)
        metrics = node.shown("r1")["metrics"]
        names = ("success", "failed", "failed.out_of_service", "failed.unknown")
        assert [metrics[f"actions.{name}"] for name in names] == [1, 2, 1, 1]
        assert [record.payload for record in node.streams.records["hot"]] == [
            b'{"payload":"2"}',
            b'{"payload":"3"}',
        ]
        assert node.details("r1")["last_error"]["text"] == "too large"


def test_a_rule_that_fails_on_every_message_is_logged_once_a_minute(node: Any, caplog: Any) -> None:
    node.rule("SELECT payload.x + 1 AS y FROM 'in'", HOT)
    for _ in range(1000):
        node.send("in", b"{}")
    lines = [record for record in caplog.records if record.message == "rule.failed"]
    assert len(lines) == 1
    assert lines[0].fields["rule"] == "r1"
    assert node.count("failed.exception") == 1000
    assert "undefined" in node.service.get("r1")["last_error"]["text"]


def test_the_console_says_where_a_row_comes_from(node: Any, caplog: Any) -> None:
    caplog.set_level("INFO")
    node.rule("SELECT payload.x AS x FROM 'in'", {"type": "console"})
    node.send("in", b'{"x":1}')
    (line,) = [record for record in caplog.records if record.message == "rule.row"]
    assert line.fields == {
        "rule": "r1",
        "topic": "in",
        "client_id": "c1",
        "qos": 0,
        "row": '{"x":1}',
    }
