"""Republishing, as subscribers see it."""

from __future__ import annotations

from typing import Any

import pytest

from broker.codec.packets import Disconnect, PubAck, Publish, SubscriptionRequest
from broker.core.errors import Invalid
from tests.support.mqtt_server import on_loop
from tests.support.rules_server import running_rules

TO_OUT: dict[str, Any] = {"type": "republish", "topic": "out"}
JSON = b'{"x":1,"id":"m7"}'


async def republished(sql: str, action: dict[str, Any], sent: Publish) -> Publish:
    """What a subscriber of ``out/#`` gets when a client publishes a message on ``in``."""
    async with running_rules() as node:
        node.rule("r1", sql, {**TO_OUT, **action})
        client = await node.server.client("c1", 5)
        await client.subscribe(SubscriptionRequest("out/#", 2, retain_as_published=True))
        client.send(sent)
        while not isinstance(packet := await client.receive(), Publish):
            pass
        return packet


@on_loop
async def test_defaults_pass_payload_and_qos_on() -> None:
    got = await republished("SELECT * FROM 'in'", {}, Publish("in", b"\xff\0", 1, packet_id=1))
    assert (got.topic, got.payload, got.qos, got.retain, got.properties) == (
        "out",
        b"\xff\0",
        1,
        False,
        {},
    )


@on_loop
async def test_templates_fill_topic_and_payload() -> None:
    got = await republished(
        "SELECT payload.id AS id, payload.x AS x, payload FROM 'in'",
        {"topic": "out/${id}", "payload": '{"x":${x},"whole":${payload},"y":${payload.x}}'},
        Publish("in", JSON),
    )
    assert (got.topic, got.payload) == ("out/m7", b'{"x":1,"whole":' + JSON + b',"y":1}')


@on_loop
async def test_an_empty_payload_template_is_the_whole_row() -> None:
    got = await republished(
        "SELECT payload.x AS x, nothing FROM 'in'", {"payload": ""}, Publish("in", JSON)
    )
    assert got.payload == b'{"x":1}'


@on_loop
async def test_retain_and_qos_come_from_placeholders() -> None:
    got = await republished(
        "SELECT *, 2 AS q FROM 'in'",
        {"qos": "${q}", "retain": "${flags.retain}"},
        Publish("in", b"x", retain=True),
    )
    assert (got.qos, got.retain) == (2, True)


@on_loop
async def test_original_user_properties_keep_duplicates_and_order_without_being_selected() -> None:
    pairs = [("k", "1"), ("a", "x"), ("k", "2")]
    for spelling in ("${pub_props.'User-Property'}", "${.pub_props.'User-Property'}"):
        sent = Publish("in", b"x", properties={"User-Property": pairs})
        got = await republished(
            "SELECT topic FROM 'in'", {"payload": "-", "user_properties": spelling}, sent
        )
        assert got.properties["User-Property"] == pairs


@on_loop
async def test_user_properties_come_from_a_map_or_from_pairs() -> None:
    sent = Publish("in", b"x", properties={"User-Property": [("k", "1"), ("k", "2")]})
    got = await republished(
        "SELECT *, map_put('n', 5, map_new()) AS user_properties FROM 'in'", {}, sent
    )
    assert got.properties["User-Property"] == [("n", "5")]
    got = await republished(
        "SELECT *, pub_props.'User-Property-Pairs' AS user_properties FROM 'in'", {}, sent
    )
    assert got.properties["User-Property"] == [("k", "1"), ("k", "2")]
    got = await republished("SELECT * FROM 'in'", {"user_properties": "not a placeholder"}, sent)
    assert got.properties == {}


@on_loop
async def test_mqtt_properties_that_cannot_be_sent_are_left_out_one_by_one() -> None:
    got = await republished(
        "SELECT payload.x AS x, payload.id AS id FROM 'in'",
        {
            "payload": "-",
            "mqtt_properties": {
                "Payload-Format-Indicator": "${x}",
                "Message-Expiry-Interval": "${id}",
                "Content-Type": "type of ${id} ${missing}",
                "Response-Topic": "a/+",
                "Correlation-Data": "${id}",
            },
        },
        Publish("in", JSON),
    )
    assert got.properties == {
        "Payload-Format-Indicator": 1,
        "Content-Type": "type of m7 undefined",
        "Correlation-Data": b"m7",
    }


@on_loop
async def test_emqx_s_form_is_taken_and_shown_in_ours() -> None:
    async with running_rules() as node:
        emqx = {
            "function": "republish",
            "args": {
                "topic": "out/${clientid}",
                "payload": "${payload}",
                "qos": 1,
                "retain": False,
                "mqtt_properties": {"Message-Expiry-Interval": 60},
                "user_properties": "${pub_props.'User-Property'}",
                "direct_dispatch": False,
            },
        }
        shown = node.rule("r1", "SELECT * FROM 'in'", emqx, {"function": "console"}, "kafka:orders")
        assert shown["actions"] == [
            {
                "type": "republish",
                "topic": "out/${clientid}",
                "payload": "${payload}",
                "qos": 1,
                "retain": False,
                "user_properties": "${pub_props.'User-Property'}",
                "mqtt_properties": {"Message-Expiry-Interval": "60"},
                "direct_dispatch": False,
                "undefined_vars": "text",
            },
            {"type": "console"},
            {"type": "bridge", "bridge": "kafka:orders"},
        ]
        client = await node.server.client("c1", 5)
        await client.subscribe(SubscriptionRequest("out/#", 1))
        client.send(Publish("in", b"x"))
        got = await client.expect(Publish)
        assert (got.topic, got.qos, got.properties) == (
            "out/c1",
            1,
            {"Message-Expiry-Interval": 60},
        )
        assert node.feature.service.replace("r1", node.shown("r1"))["actions"] == shown["actions"]


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (
            {"function": "mymod:run", "args": {}},
            "there is no function 'mymod:run'; console and republish are functions",
        ),
        ("orders", "must be the type and the name of a bridge, as kafka:orders"),
        ({**TO_OUT, "qos": 3}, "must be 0, 1, 2 or one placeholder"),
        ({**TO_OUT, "topic": "a/+"}, "must not contain '+' or '#'"),
        ({**TO_OUT, "mqtt_properties": {"Topic-Alias": "1"}}, "Topic-Alias cannot be set"),
        ({**TO_OUT, "undefined_vars": "shout"}, "undefined_vars"),
        ({**TO_OUT, "fallback_actions": [{"type": "drop"}]}, "is 'drop'; expected"),
    ],
)
def test_what_cannot_be_done_is_refused_when_saved(node: Any, action: Any, words: str) -> None:
    with pytest.raises(Invalid, match=words.replace("+", r"\+")) as refused:
        node.rule("SELECT * FROM 'in'", action)
    assert all(problem.pointer.startswith("/actions") for problem in refused.value.problems)


@pytest.mark.parametrize(
    "topic", ["$SYS/x", "$share/g/x", "$events/x", "$file/x", "$delayed/5/$SYS/x"]
)
@on_loop
async def test_a_reserved_topic_is_refused_when_saved_and_when_it_comes_of_a_row(
    topic: str,
) -> None:
    async with running_rules() as node:
        with pytest.raises(Invalid, match="only the broker publishes to") as refused:
            node.rule("r0", "SELECT * FROM 'in'", {**TO_OUT, "topic": topic})
        assert refused.value.problems[0].pointer == "/actions/0/topic"
        node.rule("r1", "SELECT * FROM 'in'", {**TO_OUT, "topic": "${payload.to}"})
        node.rule(
            "r2",
            "SELECT * FROM 'in'",
            {**TO_OUT, "topic": "${payload.to}", "direct_dispatch": True},
        )
        client = await node.server.client("c1", 5)
        await client.subscribe(SubscriptionRequest("$SYS/x"))
        client.send(Publish("in", b'{"to":"%s"}' % topic.encode(), 1, packet_id=1))
        await client.expect(PubAck)
        await client.silence()
        assert node.server.dropped("reserved_topic") == 2
        for name in ("r1", "r2"):
            assert node.shown(name)["action_details"][0]["metrics"]["failed.unknown"] == 1


@on_loop
async def test_direct_dispatch_passes_rules_and_the_retained_store_by() -> None:
    async with running_rules() as node:
        node.rule("r1", "SELECT * FROM 'in'", {**TO_OUT, "retain": True, "direct_dispatch": True})
        node.rule("r2", "SELECT * FROM 'out'", {"type": "stream", "stream": "hot"})
        client = await node.server.client("c1", 5)
        await client.subscribe(SubscriptionRequest("out"))
        client.send(Publish("in", b"x"))
        assert (await client.expect(Publish)).payload == b"x"
        assert node.count("r2", "matched") == 0
        late = await node.server.client("late", 5)
        await late.subscribe(SubscriptionRequest("out"))
        await late.silence()
        assert node.server.metrics.value("messages_internal") == 1


@on_loop
async def test_direct_dispatch_may_be_a_placeholder_and_anything_but_a_boolean_is_false() -> None:
    async with running_rules() as node:
        node.rule("r1", "SELECT *, payload.d AS d FROM 'in'", {**TO_OUT, "direct_dispatch": "${d}"})
        node.rule("r2", "SELECT * FROM 'out'")
        client = await node.server.client("c1", 5)
        client.send(Publish("in", b'{"d":true}'), Publish("in", b'{"d":1}'), Publish("in", b"{}"))
        await client.silence()
        assert node.count("r2", "matched") == 2


@pytest.mark.parametrize(
    ("policy", "payload", "counted"),
    [
        ("text", b"undefined/null", "actions.success"),
        ("empty", b"/null", "actions.success"),
        ("null", b"null/null", "actions.success"),
        ("drop", None, "actions.discarded"),
        ("fail", None, "actions.failed.unknown"),
    ],
)
def test_what_is_not_there_is_written_as_the_action_says(
    node: Any, policy: str, payload: bytes | None, counted: str
) -> None:
    node.rule(
        "SELECT payload.n AS n FROM 'in'",
        {**TO_OUT, "payload": "${x.y}/${n}", "undefined_vars": policy},
    )
    node.send("in", b'{"n":null}')
    assert [message.payload for message in node.published[1:]] == (
        [] if payload is None else [payload]
    )
    assert (node.count(counted), node.count("actions.total")) == (1, 1)


@pytest.mark.parametrize(
    ("policy", "payload"),
    [
        ("text", b'{"x":null,"t":"<undefined>"}'),
        ("empty", b'{"x":null,"t":"<>"}'),
        ("null", b'{"x":null,"t":"<null>"}'),
        ("drop", None),
    ],
)
def test_json_stays_json_without_a_value(node: Any, policy: str, payload: bytes | None) -> None:
    body = '{"x":${x.y},"t":"<${x.y}>"}'
    node.rule(
        "SELECT payload.n AS n FROM 'in'", {**TO_OUT, "payload": body, "undefined_vars": policy}
    )
    node.send("in", b"{}")
    assert [message.payload for message in node.published[1:]] == (
        [] if payload is None else [payload]
    )


def test_a_republished_template_that_gives_no_json_is_a_failed_action(node: Any) -> None:
    node.rule("SELECT clientid FROM 'in'", {**TO_OUT, "payload": '{"by":${raw:clientid}}'})
    node.send("in", b"{}")
    assert len(node.published) == 1
    assert node.count("actions.failed") == 1


def test_a_refused_republish_is_a_failed_action(node: Any) -> None:
    node.rule("SELECT payload.t AS t FROM 'in'", {**TO_OUT, "topic": "${t}", "payload": "-"})
    node.send("in", b'{"t":"a/#"}')
    node.send("in", b'{"t":""}')
    assert (node.count("actions.failed.unknown"), node.count("actions.success")) == (2, 0)
    assert "must not be empty" in node.service.get("r1")["action_details"][0]["last_error"]["text"]


@on_loop
async def test_a_republish_that_another_rule_drops_is_a_failed_action() -> None:
    async with running_rules() as node:
        node.rule("r1", "SELECT * FROM 'in'", TO_OUT)
        node.rule("r2", "SELECT * FROM 'out'", {"type": "drop"})
        client = await node.server.client("c1", 5)
        client.send(Publish("in", b"x"))
        await client.silence()
        assert node.count("r1", "actions.failed.unknown") == 1
        assert (
            node.shown("r1")["last_error"]["text"]
            == "the message on 'out' was refused: rule 'r2' dropped the message"
        )


@on_loop
async def test_rules_that_publish_to_each_other_stop() -> None:
    async with running_rules() as node:
        node.rule("a", "SELECT * FROM 'a'", {"type": "republish", "topic": "b"})
        node.rule("b", "SELECT * FROM 'b'", {"type": "republish", "topic": "c"})
        node.rule("c", "SELECT * FROM 'c'", {"type": "republish", "topic": "a"})
        client = await node.server.client("c1", 5)
        await client.subscribe(SubscriptionRequest("#"))
        client.send(Publish("a", b"x"))
        assert [(await client.expect(Publish)).topic for _ in range(4)] == ["a", "c", "b", "a"]
        await client.silence()
        assert [node.count(name, "matched") for name in "abc"] == [1, 1, 1]


@on_loop
async def test_a_message_out_of_the_log_still_tells_which_rules_it_came_through() -> None:
    async with running_rules() as node:
        node.rule(
            "r1",
            "SELECT * FROM '$events/message/delivered'",
            {"type": "republish", "topic": "seen", "qos": 1},
        )
        expiry = {"Session-Expiry-Interval": 600}
        away = await node.server.client("away", 5, properties=expiry)
        await away.subscribe(SubscriptionRequest("seen", 1))
        away.send(Disconnect())
        await away.closed()
        client = await node.server.client("c1", 5)
        await client.subscribe(SubscriptionRequest("t"))
        client.send(Publish("t", b"x"))
        await client.expect(Publish)
        back = await node.server.client("away", 5, clean_start=False, properties=expiry)
        got = await back.expect(Publish)
        back.send(PubAck(got.packet_id))
        await back.silence()
        assert (got.topic, got.properties, node.count("r1", "matched")) == ("seen", {}, 1)


@on_loop
async def test_a_rule_on_events_does_not_run_on_the_events_of_what_it_published() -> None:
    """It would publish to nobody, which drops the message, which is such an event, and so on."""
    async with running_rules() as node:
        node.rule(
            "r1",
            "SELECT * FROM '$events/message/dropped'",
            {"type": "republish", "topic": "dropped/${topic}"},
        )
        node.rule(
            "r2",
            "SELECT * FROM '$events/message/delivered'",
            {"type": "republish", "topic": "seen"},
        )
        client = await node.server.client("c1", 5)
        await client.subscribe(SubscriptionRequest("seen"), SubscriptionRequest("t"))
        client.send(Publish("nobody", b"x"), Publish("t", b"y"))
        assert sorted([(await client.expect(Publish)).topic for _ in range(2)]) == ["seen", "t"]
        await client.silence()
        assert (node.count("r1", "matched"), node.count("r2", "matched")) == (1, 1)
