"""Effects of changes on clients, in sentences, and that nothing has happened by saying them."""

from __future__ import annotations

from typing import Any, cast

from broker.admin.access import AccessService
from broker.admin.impact import ClientImpact
from broker.codec.packets import Publish, SubscriptionRequest, Will
from broker.core.contributor import Change
from broker.core.objects import Reference, Spec
from tests.support.access import BUILTIN, access
from tests.support.mqtt_server import Node, on_loop, running

LASTING: dict[str, Any] = {"Session-Expiry-Interval": 3600}


def told(
    node: Node,
    kind: str,
    name: str,
    before: Spec | None,
    after: Spec | None,
    verb: str = "",
    **options: Any,
) -> list[str]:
    """What the change of an object would do."""
    impact = ClientImpact(node.server.hub, cast(AccessService, None))
    change = Change(Reference(kind, name), before, after, verb, options)
    return [sentence for sentence in impact.consequences(change) if sentence is not None]


async def two_clients(node: Node) -> None:
    """``brief`` ends with its connection; ``lasting`` has a will."""
    await node.client("brief", 5, properties={})
    lasting = await node.client("lasting", 5, properties=LASTING, will=Will("gone", b"x", 1))
    await lasting.subscribe(SubscriptionRequest("own/lasting", 1))


@on_loop
async def test_a_ban_says_whom_it_disconnects_and_its_end_who_may_come_back() -> None:
    async with running() as node:
        await two_clients(node)
        spec = {"as": "clientid_re", "who": ".*"}
        assert told(node, "ban", "clientid_re/.*", None, spec) == ["2 clients are disconnected."]
        assert told(node, "ban", "clientid/brief", None, {"as": "clientid", "who": "brief"}) == [
            "1 client is disconnected."
        ]
        assert told(node, "ban", "clientid_re/.*", spec, None) == [
            "Clients of 2 sessions may connect again."
        ]
        assert len(node.server.hub.connections) == 2


@on_loop
async def test_a_kick_says_which_sessions_and_wills_go() -> None:
    async with running() as node:
        await two_clients(node)
        assert told(node, "client", "brief", {}, {}, "kick", client_ids=["brief", "nobody"]) == [
            "1 client is disconnected.",
            "1 session of them ends.",
        ]
        both = told(node, "client", "*", {}, {}, "kick", client_ids=["brief", "lasting"])
        assert both[0] == "2 clients are disconnected."


@on_loop
async def test_the_end_of_sessions_says_how_many_messages_wait() -> None:
    async with running() as node:
        lasting = await node.client("lasting", 5, properties=LASTING)
        await lasting.subscribe(SubscriptionRequest("own/#", 1))
        await lasting.close()
        await node.until(lambda: not node.server.hub.connections)
        publisher = await node.client("publisher", 5)
        for number in range(3):
            publisher.send(Publish("own/x", b"x", 1, packet_id=number + 1))
        await node.until(
            lambda: node.server.hub.sessions.by_client_id["lasting"].waiting_messages == 3
        )
        told_of = told(node, "session", "lasting", {}, None, client_id="lasting")
        assert told_of == ["1 session ends, with 3 messages waiting."]


@on_loop
async def test_a_listener_that_closes_or_drains_says_whose_connections_it_has() -> None:
    async with running() as node:
        await two_clients(node)
        [name] = {session.client.listener for session in node.server.hub.sessions}
        assert told(node, "listener", name, {"enable": True}, None) == [
            "2 clients are disconnected."
        ]
        assert told(
            node, "listener", name, {"enable": True}, {"enable": True}, "stop", drain=True
        ) == ["2 clients may stay connected until they disconnect."]
        before = {"enable": True, "bind": "127.0.0.1:1883", "max_connections": 0}
        for changed, sentences in (
            ({"max_connections": 2}, []),
            ({"name": name.partition(":")[2]}, []),
            ({"bind": "127.0.0.1:1884"}, ["Its address is opened again; connected clients stay."]),
            ({"name": "hall"}, ["2 clients are disconnected."]),
            ({"enable": False}, ["2 clients are disconnected."]),
        ):
            assert told(node, "listener", name, before, {**before, **changed}) == sentences


@on_loop
async def test_what_is_retained_and_delayed_is_counted() -> None:
    async with running() as node:
        publisher = await node.client("publisher", 5)
        publisher.send(Publish("kept/a", b"12345", 1, retain=True, packet_id=1))
        publisher.send(Publish("kept/b", b"12345", 1, retain=True, packet_id=2))
        publisher.send(Publish("$delayed/60/later", b"x", 1, packet_id=3))
        await node.until(
            lambda: node.server.hub.retained.count == 2 and len(node.server.hub.delayed) == 1
        )
        await node.writer.committed()
        assert told(node, "retained message", "kept/#", {}, None, filter="kept/#") == [
            "2 retained messages are deleted (10 bytes of payloads)."
        ]
        assert (
            told(node, "retained message", "kept/#", {}, None, filter="kept/#", only_expired=True)
            == []
        )
        [delayed] = node.server.hub.delayed.page(None, 1)
        assert told(node, "delayed message", delayed.id, {}, None) == [
            "The message on 'later' of client 'publisher' is not published."
        ]
        assert (node.server.hub.retained.count, len(node.server.hub.delayed)) == (2, 1)


@on_loop
async def test_rewrites_and_subscriptions_of_the_broker_say_that_subscriptions_stay() -> None:
    async with running() as node:
        await two_clients(node)
        [rewrite] = told(node, "rewrite", "r", None, {"name": "r"})
        assert rewrite.startswith("2 clients are connected. Their subscriptions stay")
        assert told(node, "auto-subscription", "own", {"topic": "own/${clientid}"}, None) == [
            "1 session keeps the subscription to 'own/${clientid}'."
        ]
        assert told(node, "auto-subscription", "own", None, {"topic": "own/${clientid}"}) == []


@on_loop
async def test_a_user_that_goes_takes_its_sessions_and_what_they_left() -> None:
    async with running(access=access(BUILTIN)) as node:
        ann = await node.client("a", 5, username="ann", password=b"pencil", properties=LASTING)
        ann.send(Publish("$delayed/60/later", b"x", 1, packet_id=1))
        await node.until(lambda: len(node.server.hub.delayed) == 1)
        before = {"name": "ann", "is_superuser": False, "clientid": None}
        assert told(node, "user", "ann", before, None) == [
            "1 client is disconnected.",
            "1 session ends, with 0 messages waiting.",
            "Not published: 1 delayed message.",
        ]
        assert told(node, "user", "ann", before, before | {"password": "other"}) == [
            "1 client is disconnected."
        ]
        assert told(node, "user", "ann", before, before | {"is_superuser": True}) == [
            "Access rules no longer apply to 1 connected client."
        ]
        assert told(node, "user", "new", None, before) == []
