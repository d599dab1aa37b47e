"""Rights that are taken away: they end for clients that are connected, and for those that are about to be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import Event
from typing import Any

import pytest

from broker.auth.passwords import hashed
from broker.auth.users import Users
from broker.codec.packets import ConnAck, Connect, Disconnect, PubAck, Publish, SubscriptionRequest
from broker.core import reason
from tests.support.access import BUILTIN, USERS, access
from tests.support.mqtt_server import Node, on_loop, running
from tests.support.wire import WireClient

ANN: dict[str, Any] = {"username": "ann", "password": b"pencil"}
ROOT: dict[str, Any] = {"username": "root", "password": b"paper"}
RULES = [{"permission": "allow", "topics": ["open/#"]}]
RESTRICTED = access(BUILTIN, rules=RULES)


def users_of(node: Node) -> Users:
    users = node.server.hub.access.users
    assert users is not None
    return users


async def delete(users: Users) -> None:
    users.delete("ann")


async def rotate(users: Users) -> None:
    await users.rotate("ann")


async def set_password(users: Users) -> None:
    await users.replace("ann", {"password": "another"})


async def pin(users: Users) -> None:
    await users.replace("ann", {"clientid": "elsewhere"})


async def take_over(users: Users) -> None:
    users.adopt([users.find("root")])  # type: ignore[list-item]  # it is there
    await users.rotate("ann")


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("change", [delete, rotate, set_password, pin, take_over])
@on_loop
async def test_a_user_that_was_deleted_or_changed_loses_its_connections(
    change: Callable[[Users], Any], version: int
) -> None:
    async with running(access=RESTRICTED) as node:
        ann, root = await node.client("a", version, **ANN), await node.client("r", 5, **ROOT)
        await change(users_of(node))
        if version == 5:
            assert (await ann.expect(Disconnect)).reason_code == reason.NOT_AUTHORIZED
        with pytest.raises(ConnectionError):
            await ann.receive()
        await root.silence()
        assert node.metrics.value("disconnections", reason="user_changed") == 1
        wire = await WireClient.open(node.port, 5)
        wire.send(Connect("a", 5, **ANN))
        assert (await wire.expect(ConnAck)).reason_code in (
            reason.BAD_USER_NAME_OR_PASSWORD,
            reason.NOT_AUTHORIZED,
        )


@on_loop
async def test_what_is_said_about_a_user_changes_nothing_for_its_connections() -> None:
    async with running(access=RESTRICTED) as node:
        ann = await node.client("a", 5, **ANN)
        await users_of(node).replace("ann", {"description": "operator"})
        await ann.silence()


@on_loop
async def test_a_superuser_that_is_one_no_more_is_held_to_the_rules_at_once_and_the_other_way_round() -> (
    None
):
    async with running(access=RESTRICTED) as node:
        root = await node.client("r", 5, **ROOT)
        await root.subscribe(SubscriptionRequest("secret/#", 1), SubscriptionRequest("open/#", 1))
        await users_of(node).replace("root", {"is_superuser": False})
        root.send(
            Publish("secret/x", b"x", 1, packet_id=1), Publish("open/x", b"y", 1, packet_id=2)
        )
        assert (await root.expect(PubAck)).reason_code == reason.NOT_AUTHORIZED
        assert (await root.expect(Publish)).payload == b"y"
        assert (await root.expect(PubAck)).reason_code == 0
        assert await root.subscribe(SubscriptionRequest("secret/#", 1)) == [0x87]
        await users_of(node).replace("root", {"is_superuser": True})
        assert await root.subscribe(SubscriptionRequest("secret/#", 1)) == [1]


@on_loop
async def test_users_found_by_the_client_identifier_are_cut_off_too() -> None:
    chain = [{"mechanism": "builtin", "user_id_type": "clientid"}]
    async with running(access=access(chain)) as node:
        client, other = (
            await node.client("ann", 5, password=b"pencil"),
            await node.client("root", 5, password=b"paper"),
        )
        users_of(node).delete("ann")
        assert (await client.expect(Disconnect)).reason_code == reason.NOT_AUTHORIZED
        await other.silence()


@on_loop
async def test_a_login_that_is_under_way_does_not_outrun_the_change_of_its_user() -> None:
    slow = {"name": "slow", "credentials": [hashed(b"secret", "pbkdf2_sha256", 4096).as_spec()]}
    async with running(access=access(BUILTIN, users=[slow, *USERS])) as node:
        wire = await WireClient.open(node.port, 5)
        link: Any = node.server.hub.access.authenticators._links[0]
        blocked = Event()
        link.authenticator._pool._threads.submit(blocked.wait, 60)
        wire.send(Connect("s", 5, username="slow", password=b"secret"))
        await node.until(lambda: node.metrics.value("logins_waiting") == 1)
        users_of(node).delete("slow")
        blocked.set()
        assert (await wire.expect(ConnAck)).reason_code == reason.BAD_USER_NAME_OR_PASSWORD


@on_loop
async def test_one_that_waits_for_its_identifier_is_looked_at_again_when_its_turn_comes() -> None:
    async with running(access=RESTRICTED) as node:
        first, second = await node.client("x", 5, **ANN), await node.client("x", 5, **ANN)
        assert (await first.expect(Disconnect)).reason_code == reason.SESSION_TAKEN_OVER
        third = await WireClient.open(node.port, 5)
        third.send(Connect("x", 5, **ANN))
        await node.until(lambda: any(c.is_parked for c in node.server.hub.connections))
        users_of(node).delete("ann")
        assert (await second.expect(Disconnect)).reason_code == reason.NOT_AUTHORIZED
        node.pass_time(1.1)
        assert (await third.expect(ConnAck)).reason_code == reason.BAD_USER_NAME_OR_PASSWORD


@on_loop
async def test_a_ban_ends_a_connection_before_anything_else_is_taken_from_it() -> None:
    async with running() as node:
        client, reader = await node.client("a", 5), await node.client("b", 5)
        await reader.subscribe(SubscriptionRequest("t"))
        node.server.hub.access.bans.create({"as": "clientid_re", "who": "[ab]"})
        client.send(Publish("t", b"x"))
        await asyncio.gather(*(one.closed() for one in (client, reader)))
        assert node.metrics.value("messages_received", qos="0") == 0
