"""What clients leave to be published later, wills and delayed messages: the rights of that moment decide."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from broker.auth.users import Users
from broker.codec.packets import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    PubAck,
    Publish,
    SubscriptionRequest,
    Will,
)
from broker.core import reason
from broker.core.signals import Signal
from broker.routing.rewrite import RewriteSpec
from broker.storage.memory import MemoryStore
from tests.support.access import BUILTIN, access, use_rules
from tests.support.mqtt_server import MovedClock, Node, on_loop, running
from tests.support.tokens import SECRET, signed
from tests.support.wire import WireClient

ANN: dict[str, Any] = {"username": "ann", "password": b"pencil"}
ROOT: dict[str, Any] = {"username": "root", "password": b"paper"}
KEPT = {"Session-Expiry-Interval": 3600}
DENIED = {"permission": "deny", "action": "publish", "topics": ["secret"]}
ALLOWED = {"permission": "allow", "topics": ["#"]}
JWT = {"mechanism": "jwt", "secret": SECRET}


def users_of(node: Node) -> Users:
    users = node.server.hub.access.users
    assert users is not None
    return users


def rewrite(node: Node, **spec: Any) -> None:
    specs = [RewriteSpec.model_validate({"name": "r", **spec})] if spec else []
    node.server.hub.rewrites.use(specs)


async def deny(node: Node) -> None:
    use_rules(node, DENIED, ALLOWED)


async def delete(node: Node) -> None:
    users_of(node).delete("ann")


async def create_again(node: Node) -> None:
    users_of(node).delete("ann")
    node.clock.move(0.01)
    await users_of(node).create({"name": "ann", "password": "pencil"})


async def ban(node: Node) -> None:
    node.server.hub.access.bans.create({"as": "username", "who": "ann"})


CHANGES = [deny, delete, create_again, ban]
Change = Callable[[Node], Awaitable[None]]


async def watching(node: Node) -> WireClient:
    """A client that sees every message."""
    watcher = await node.client("watcher", 5, **ROOT)
    await watcher.subscribe(SubscriptionRequest("#", 0))
    return watcher


async def publish_delayed(client: WireClient, topic: str = "secret") -> None:
    client.send(Publish(f"$delayed/10/{topic}", b"late", 1, packet_id=1))
    assert (await client.expect(PubAck)).reason_code == 0


async def go_away(node: Node, client: WireClient, client_id: str) -> None:
    client.abort()
    await node.until(lambda: node.server.hub.sessions.by_client_id[client_id].is_away)


# -- wills and rewrites --


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("topic", ["a", "$delayed/1/a"])
@on_loop
async def test_a_will_is_refused_where_a_rewrite_leads_it_to_a_denied_topic(
    topic: str, retain: bool
) -> None:
    async with running(access=access(BUILTIN, rules=[DENIED, ALLOWED])) as node:
        rewrite(node, source_topic="a", dest_topic="secret")
        wire = await WireClient.open(node.port, 5)
        wire.send(Connect("c", 5, **ANN, will=Will(topic, b"x", 0, retain)))
        assert (await wire.expect(ConnAck)).reason_code == reason.NOT_AUTHORIZED


@on_loop
async def test_a_will_on_a_denied_topic_is_taken_where_a_rewrite_leads_it_to_an_allowed_one() -> (
    None
):
    async with running(access=access(BUILTIN, rules=[DENIED, ALLOWED])) as node:
        rewrite(node, source_topic="secret", dest_topic="open")
        watcher = await watching(node)
        client = await node.client("c", 5, **ANN, will=Will("secret", b"x"))
        client.abort()
        assert (await watcher.expect(Publish)).topic == "open"


@pytest.mark.parametrize("delay_s", [0, 5])
@on_loop
async def test_a_rewrite_made_later_leads_no_will_to_a_denied_topic(delay_s: int) -> None:
    async with running(access=access(BUILTIN, rules=[DENIED, ALLOWED])) as node:
        watcher = await watching(node)
        will = Will("a", b"x", 0, True, properties={"Will-Delay-Interval": delay_s})
        client = await node.client("c", 5, **ANN, will=will, properties=KEPT)
        rewrite(node, source_topic="a", dest_topic="secret")
        await go_away(node, client, "c")
        node.pass_time(delay_s)
        await node.until(lambda: node.dropped("not_authorized") == 1)
        await watcher.silence()
        assert node.server.hub.retained.count == 0


# -- what is left when a right is taken away --


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("change", CHANGES)
@on_loop
async def test_delayed_messages_of_a_client_that_lost_its_right_are_not_published(
    change: Change, restarts: bool
) -> None:
    store, clock = MemoryStore(), MovedClock()
    async with running(store, access=access(BUILTIN), clock=clock) as node:
        client = await node.client("c", 5, **ANN)
        await publish_delayed(client)
        if not restarts:
            watcher = await watching(node)
            await change(node)
            node.pass_time(11)
            await node.until(lambda: node.dropped("not_authorized") == 1)
            await watcher.silence()
            assert len(node.server.hub.delayed) == 0
            return
    async with running(store, access=access(BUILTIN), clock=clock) as node:
        watcher = await watching(node)
        await change(node)
        node.pass_time(11)
        await node.until(lambda: node.dropped("not_authorized") == 1)
        await watcher.silence()


@pytest.mark.parametrize("change", CHANGES)
@on_loop
async def test_delayed_wills_of_a_client_that_lost_its_right_are_not_published(
    change: Change,
) -> None:
    async with running(access=access(BUILTIN)) as node:
        watcher = await watching(node)
        will = Will("secret", b"x", 0, True, properties={"Will-Delay-Interval": 5})
        await go_away(node, await node.client("c", 5, **ANN, will=will, properties=KEPT), "c")
        await change(node)
        node.pass_time(6)
        await node.until(lambda: node.dropped("not_authorized") == 1)
        await watcher.silence()
        assert node.server.hub.retained.count == 0


@pytest.mark.parametrize("change", CHANGES)
@on_loop
async def test_a_will_does_not_outlive_a_kill_and_a_lost_right(change: Change) -> None:
    store, clock = MemoryStore(), MovedClock()
    will = Will("secret", b"x", 0, True, properties={"Will-Delay-Interval": 5})
    async with running(store, access=access(BUILTIN), clock=clock) as node:
        await node.client("c", 5, **ANN, will=will, properties=KEPT)
        await node.written()
    async with running(store, access=access(BUILTIN), clock=clock) as node:
        await change(node)
        node.pass_time(6)
        await node.until(lambda: node.dropped("not_authorized") == 1)
        assert node.server.hub.retained.count == 0


@pytest.mark.parametrize("change", [delete, create_again, ban])
@on_loop
async def test_a_connected_client_that_is_put_out_leaves_no_will(change: Change) -> None:
    async with running(access=access(BUILTIN)) as node:
        watcher = await watching(node)
        client = await node.client("c", 5, **ANN, will=Will("t", b"x"))
        await change(node)
        await client.expect(Disconnect)
        await node.until(lambda: node.dropped("not_authorized") == 1)
        await watcher.silence()


@on_loop
async def test_what_is_left_by_a_client_that_kept_its_rights_is_published() -> None:
    store, clock = MemoryStore(), MovedClock()
    async with running(store, access=access(BUILTIN, rules=[DENIED, ALLOWED]), clock=clock) as node:
        will = Will("t", b"will", properties={"Will-Delay-Interval": 5})
        client = await node.client("c", 5, **ANN, will=will, properties=KEPT)
        await publish_delayed(client, "t")
        root = await node.client("r", 5, **ROOT)
        await publish_delayed(root)
        await go_away(node, client, "c")
        await node.written()
    async with running(store, access=access(BUILTIN, rules=[DENIED, ALLOWED]), clock=clock) as node:
        watcher = await watching(node)
        node.pass_time(11)
        received = [await watcher.expect(Publish) for _ in range(3)]
        assert sorted((one.topic, one.payload) for one in received) == [
            ("secret", b"late"),
            ("t", b"late"),
            ("t", b"will"),
        ]


@on_loop
async def test_a_superuser_that_is_one_no_more_loses_what_rules_deny() -> None:
    async with running(access=access(BUILTIN, rules=[DENIED, ALLOWED])) as node:
        watcher = await node.client("w", 5, **ANN)
        await watcher.subscribe(SubscriptionRequest("secret", 0))
        await publish_delayed(await node.client("r", 5, **ROOT))
        await users_of(node).replace("root", {"is_superuser": False})
        node.pass_time(11)
        await node.until(lambda: node.dropped("not_authorized") == 1)
        await watcher.silence()


@on_loop
async def test_a_claimed_name_passes_for_a_proven_one_neither_now_nor_later() -> None:
    rules: list[dict[str, Any]] = [
        {"permission": "allow", "who": {"username": "root"}, "topics": ["secret"]},
        DENIED,
    ]
    async with running(access=access(trusts_anonymous=False)) as node:
        watcher = await node.client("w", 5)
        await watcher.subscribe(SubscriptionRequest("secret", 0))
        await publish_delayed(await node.client("c", 5, username="root"))
        use_rules(node, *rules)
        node.pass_time(11)
        await node.until(lambda: node.dropped("not_authorized") == 1)
        await watcher.silence()


@on_loop
async def test_the_rules_of_a_token_hold_for_what_its_client_left() -> None:
    store, clock = MemoryStore(), MovedClock()
    acl = [{"permission": "allow", "action": "publish", "topic": "mine/+"}]
    for restarts in (False, True):
        async with running(
            store, access=access([JWT, *BUILTIN], no_match="deny"), clock=clock
        ) as node:
            if not restarts:
                token = signed({"acl": acl}).encode()
                client = await node.client("c", 5, username="ann", password=token)
                await publish_delayed(client, "mine/x")
                await node.written()
                continue
            watcher = await watching(node)
            node.pass_time(11)
            assert (await watcher.expect(Publish)).topic == "mine/x"


@on_loop
async def test_the_token_of_a_client_that_authenticated_again_counts_for_what_it_leaves() -> None:
    method, data = "Authentication-Method", "Authentication-Data"
    tokens = {
        name: signed({"acl": [{"permission": name, "topic": "#"}]}).encode()
        for name in ("allow", "deny")
    }
    async with running(access=access([JWT, *BUILTIN])) as node:
        watcher = await watching(node)
        wire = await WireClient.open(node.port, 5)
        wire.send(Connect("c1", 5, properties={method: "JWT", data: tokens["deny"]}))
        assert (await wire.expect(ConnAck)).reason_code == 0
        wire.send(Auth(reason.REAUTHENTICATE, {method: "JWT", data: tokens["allow"]}))
        await wire.expect(Auth)
        await publish_delayed(wire, "t")
        node.pass_time(11)
        assert (await watcher.expect(Publish)).topic == "t"


# -- the sessions of a deleted user --


@pytest.mark.parametrize("is_connected", [False, True])
@on_loop
async def test_a_user_created_again_under_a_deleted_name_gets_nothing_of_its_sessions(
    is_connected: bool,
) -> None:
    async with running(access=access(BUILTIN)) as node:
        ann = await node.client("s", 5, **ANN, properties=KEPT)
        await ann.subscribe(SubscriptionRequest("t", 1))
        other = await node.client("o", 5, **ROOT, properties=KEPT)
        if not is_connected:
            await go_away(node, ann, "s")
        other.send(Publish("t", b"for the first ann", 1, packet_id=1))
        await other.expect(PubAck)
        await create_again(node)
        await node.until(lambda: node.server.hub.sessions.get("s") is None)
        assert node.server.hub.sessions.get("o") is not None
        again = await WireClient.open(node.port, 5)
        again.send(Connect("s", 5, clean_start=False, **ANN, properties=KEPT))
        assert not (await again.expect(ConnAck)).session_present
        await again.silence()


@on_loop
async def test_a_user_created_again_is_not_faster_than_the_end_of_the_sessions() -> None:
    async with running(access=access(BUILTIN)) as node:
        ann = await node.client("s", 5, **ANN, properties=KEPT)
        await ann.subscribe(SubscriptionRequest("t", 1))
        node.server.hub.access.users.on_change = Signal[Any]()  # type: ignore[union-attr]  # nobody ends them in time
        await create_again(node)
        again = await WireClient.open(node.port, 5)
        again.send(Connect("s", 5, clean_start=False, **ANN, properties=KEPT))
        assert not (await again.expect(ConnAck)).session_present
        assert (await ann.expect(Disconnect)).reason_code == reason.NOT_AUTHORIZED


@on_loop
async def test_the_session_of_a_deleted_user_ends_though_the_broker_was_killed_before_it_could() -> (
    None
):
    store = MemoryStore()
    async with running(store, access=access(BUILTIN)) as node:
        await create_again(node)
        ann = await node.client("s", 5, **ANN, properties=KEPT)
        await ann.subscribe(SubscriptionRequest("t", 1))
        await node.written()
    async with running(store, access=access(BUILTIN)) as node:
        # its ann was created at another time
        again = await WireClient.open(node.port, 5)
        again.send(Connect("s", 5, clean_start=False, **ANN, properties=KEPT))
        connack = await again.expect(ConnAck)
        assert (connack.reason_code, connack.session_present) == (0, False)


@on_loop
async def test_a_change_of_password_keeps_the_session_and_what_was_left() -> None:
    async with running(access=access(BUILTIN)) as node:
        watcher = await watching(node)
        ann = await node.client("s", 5, **ANN, properties=KEPT)
        await publish_delayed(ann, "t")
        await users_of(node).replace("ann", {"password": "another"})
        await ann.expect(Disconnect)
        users_of(node).adopt([users_of(node)._users["ann"]])
        node.pass_time(11)
        assert (await watcher.expect(Publish)).topic == "t"
        assert node.server.hub.sessions.get("s") is not None
