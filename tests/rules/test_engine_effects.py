"""Rules that drop messages and disconnect publishers, as clients see it; and the order in which rules run."""

from __future__ import annotations

from typing import Any

import pytest

from broker.codec.packets import (
    Disconnect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubscriptionRequest,
)
from broker.core.errors import Invalid
from broker.observe.ledger import ledger
from tests.support.mqtt_server import on_loop
from tests.support.rules_server import running_rules

DROP = {"type": "drop"}
HOT = {"type": "stream", "stream": "hot"}
REASON = "dropped_by_rule:guard"


@on_loop
async def test_a_dropped_message_reaches_nobody_and_is_told_and_counted() -> None:
    async with running_rules() as node:
        node.rule("guard", "SELECT * FROM 't/#' WHERE payload.x > 9", DROP)
        node.rule("watch", "SELECT reason, topic FROM '$events/message/dropped'", HOT)
        client = await node.server.client("c", 5)
        await client.subscribe(SubscriptionRequest("#", 2))
        told = {"Reason-String": "rule 'guard' dropped the message"}
        client.send(Publish("t/1", b'{"x":10}'), Publish("t/1", b'{"x":10}', 1, packet_id=1))
        assert await client.expect(PubAck) == PubAck(1, 0x83, told)
        client.send(Publish("t/1", b'{"x":10}', 2, packet_id=2))
        assert await client.expect(PubRec) == PubRec(2, 0x83, told)
        client.send(PubRel(2))
        assert await client.expect(PubComp) == PubComp(2, 0x92)
        client.send(Publish("t/1", b'{"x":1}'))
        assert (await client.expect(Publish)).payload == b'{"x":1}'
        found = ledger(node.server.metrics)
        assert (found.received, found.accepted, found.residual) == (4, 1, 0)
        assert found.dropped_by_reason == {REASON: 3}
        assert [record.payload for record in node.streams.records["hot"]] == [
            b'{"reason":"dropped_by_rule:guard","topic":"t/1"}'
        ] * 3
        assert (node.count("guard", "matched"), node.count("guard", "actions.success")) == (4, 3)


@on_loop
async def test_a_dropped_message_is_not_retained() -> None:
    async with running_rules() as node:
        node.rule("guard", "SELECT * FROM 't'", DROP)
        client = await node.server.client("c", 4)
        client.send(Publish("t", b"x", 1, retain=True, packet_id=1))
        assert await client.expect(PubAck) == PubAck(1)
        await client.subscribe(SubscriptionRequest("t"))
        await client.silence()


@on_loop
@pytest.mark.parametrize("version", [4, 5])
async def test_disconnect_closes_the_publisher_s_connection(version: int) -> None:
    async with running_rules() as node:
        node.rule("guard", "SELECT * FROM 't'", {"type": "disconnect"})
        node.rule("watch", "SELECT reason, clientid FROM '$events/client/disconnected'", HOT)
        client = await node.server.client("bad", version)
        other = await node.server.client("good", 4)
        client.send(Publish("t", b"x"), Publish("t", b"y"))
        said = await client.closed()
        text = {"Reason-String": "rule 'guard' dropped the message"}
        assert said == ([Disconnect(0x83, text)] if version == 5 else [])
        await other.silence()
        assert node.server.dropped(REASON) == 1, "what came behind is not read"
        assert [record.payload for record in node.streams.records["hot"]] == [
            b'{"reason":"dropped_by_rule:guard","clientid":"bad"}'
        ]


@on_loop
async def test_rules_run_in_their_order_up_to_the_one_that_drops() -> None:
    async with running_rules() as node:
        node.rule("first", "SELECT 1 AS n FROM 't'", HOT)
        node.rule("guard", "SELECT 2 AS n FROM 't'", HOT, DROP, HOT)
        node.rule("last", "SELECT 3 AS n FROM 't'", HOT)
        client = await node.server.client("c", 4)
        client.send(Publish("t", b"x"))
        await client.silence()
        assert [record.rule for record in node.streams.records["hot"]] == [
            "first",
            "guard",
            "guard",
        ]
        assert node.count("last", "matched") == 0
        node.feature.service.reorder(["last", "guard", "first"])
        client.send(Publish("t", b"x"))
        await client.silence()
        assert [record.rule for record in node.streams.records["hot"]][3:] == [
            "last",
            "guard",
            "guard",
        ]


@on_loop
async def test_a_row_of_several_is_enough_to_drop_a_message() -> None:
    async with running_rules() as node:
        node.rule("guard", "FOREACH payload AS x INCASE x > 9 FROM 't'", DROP)
        client = await node.server.client("c", 4)
        await client.subscribe(SubscriptionRequest("t"))
        client.send(Publish("t", b"[1,10,11]"), Publish("t", b"[1,2]"))
        assert (await client.expect(Publish)).payload == b"[1,2]"
        assert node.count("guard", "actions.total") == 2
        assert node.server.dropped(REASON) == 1


@on_loop
async def test_a_rule_that_fails_drops_nothing() -> None:
    async with running_rules() as node:
        node.rule("guard", "SELECT payload.x FROM 't'", DROP)
        client = await node.server.client("c", 4)
        await client.subscribe(SubscriptionRequest("t"))
        client.send(Publish("t", b"no json"))
        assert (await client.expect(Publish)).payload == b"no json"


def test_there_is_nothing_to_drop_on_events(node: Any) -> None:
    with pytest.raises(Invalid, match="drop stops published messages") as refused:
        node.rule("SELECT * FROM 't', '$events/client/connected'", HOT, DROP)
    assert [problem.pointer for problem in refused.value.problems] == ["/actions/1"]


def test_jq_does_not_decide_since_its_rows_may_come_late(node: Any) -> None:
    with pytest.raises(Invalid, match="jq may run in a worker"):
        node.rule("SELECT jq('.x', payload) AS x FROM 't'", DROP)
    node.rule("SELECT jq('.x', payload) AS x FROM 't'", name="late")
    with pytest.raises(Invalid, match="rows of 'late' may come late"):
        node.rule("SELECT * FROM '$rules/late'", DROP)


def test_the_order_names_every_rule_once(node: Any) -> None:
    for name in ("a", "b", "c"):
        node.rule("SELECT * FROM '#'", name=name)
    with pytest.raises(Invalid) as refused:
        node.service.reorder(["b", "b", "d"])
    assert [problem.message for problem in refused.value.problems] == [
        "there is no rule 'd'", "'a' is missing", "'c' is missing", "'b' is given more than once",
    ]  # fmt: skip
    assert [rule["name"] for rule in node.service.list()] == ["a", "b", "c"]
    node.service.reorder(["c", "a", "b"])
    assert [rule["name"] for rule in node.service.list()] == ["c", "a", "b"]
    assert [spec["name"] for spec in node.section.load()] == ["c", "a", "b"]
