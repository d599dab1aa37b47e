"""Clients and access rules in a real Redis: hashes, hostile names, rules that change, a server that goes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import bcrypt
import pytest
from pydantic import ValidationError

from broker.auth.backends.connections import check_installed
from broker.auth.backends.redis import RedisAuthenticatorSettings, RedisSourceSettings
from broker.codec.packets import ConnAck, Connect, PubAck, Publish, SubscriptionRequest
from broker.core import lazy_module, reason
from broker.core.errors import ConfigError
from tests.support.access import BUILTIN, access
from tests.support.mqtt_server import Node, on_loop, running
from tests.support.redis_server import PASSWORD, RedisServer
from tests.support.wire import WireClient

WRONG = reason.BAD_USER_NAME_OR_PASSWORD
CHEAP = bcrypt.hashpw(b"pencil", bcrypt.gensalt(4)).decode()


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def redis(server: RedisServer) -> RedisServer:
    server.cli("FLUSHALL")
    server.cli("HSET", "mqtt_user:ann", "password_hash", CHEAP)
    return server


def settings_of(redis: RedisServer, **settings: Any) -> dict[str, Any]:
    return {"server": f"127.0.0.1:{redis.port}", "password": PASSWORD, **settings}


def chain(redis: RedisServer, **settings: Any) -> list[dict[str, Any]]:
    return [{"mechanism": "redis", **settings_of(redis, **settings)}]


async def code_of(node: Node, username: str, password: str, client_id: str = "c1") -> int:
    wire = await WireClient.open(node.port, 5)
    wire.send(Connect(client_id, 5, username=username, password=password.encode()))
    code = (await wire.expect(ConnAck)).reason_code
    await wire.close()
    return code


async def published(client: WireClient, topic: str) -> int:
    client.send(Publish(topic, b"", 1, packet_id=1))
    return (await client.expect(PubAck)).reason_code


@on_loop
@pytest.mark.parametrize("cmd", [None, "HGETALL mqtt_user:${username}"])
async def test_a_password_is_checked_against_the_stored_hash(
    redis: RedisServer, cmd: str | None
) -> None:
    redis.cli("HSET", "mqtt_user:boss", "password_hash", CHEAP, "is_superuser", "1")
    settings = {} if cmd is None else {"cmd": cmd}
    async with running(access=access(chain(redis, **settings), no_match="deny")) as node:
        assert await code_of(node, "ann", "pencil") == 0
        assert await code_of(node, "ann", "wrong") == WRONG
        assert await code_of(node, "bob", "pencil") == WRONG
        client = await node.client("c2", 5, username="boss", password=b"pencil")
        assert await published(client, "any") == 0x10


@on_loop
async def test_a_name_is_one_argument_whatever_is_in_it(redis: RedisServer) -> None:
    redis.cli("HSET", "mqtt_user:a b\r\nc", "password_hash", CHEAP)
    async with running(access=access(chain(redis), login_limits={"enable": False})) as node:
        assert await code_of(node, "a b\r\nc", "pencil") == 0
        for name in ("ann password_hash", "ann\r\nFLUSHALL", "*", ""):
            assert await code_of(node, name, "pencil") == WRONG
        assert await code_of(node, "ann", "pencil") == 0


@on_loop
async def test_fields_grant_and_their_end_revokes_for_a_connected_client(
    redis: RedisServer,
) -> None:
    redis.cli("HSET", "mqtt_acl:ann", "up/${username}", "publish", "down/#", "subscribe")
    redis.cli(
        "HSET", "mqtt_acl:ann", "no", '{"permission": "deny", "action": "publish", "qos": [1]}'
    )
    rules = access(BUILTIN, sources=[{"type": "redis", **settings_of(redis)}], no_match="deny")
    async with running(access=rules) as node:
        client = await node.client("c1", 5, username="ann", password=b"pencil")
        assert await published(client, "up/ann") == 0x10
        assert await published(client, "no") == reason.NOT_AUTHORIZED
        assert await client.subscribe(
            SubscriptionRequest("down/x", 1), SubscriptionRequest("up/#")
        ) == [1, 0x87]
        redis.cli("DEL", "mqtt_acl:ann")
        node.pass_time(301)
        await node.until(lambda: not node.server.hub.sessions.by_client_id["c1"].subscriptions)
        assert await published(client, "up/ann") == reason.NOT_AUTHORIZED


@on_loop
@pytest.mark.parametrize("value", ["perhaps", "{", '{"action": 7}', ""])
async def test_a_value_that_is_no_rule_lets_no_one_in(redis: RedisServer, value: str) -> None:
    redis.cli("HSET", "mqtt_acl:ann", "up", value)
    async with running(
        access=access(BUILTIN, sources=[{"type": "redis", **settings_of(redis)}])
    ) as node:
        assert await code_of(node, "ann", "pencil") == reason.SERVER_UNAVAILABLE


@on_loop
async def test_a_wrong_password_of_the_server_is_the_reason_of_the_alarm(
    redis: RedisServer,
) -> None:
    async with running(access=access(chain(redis, password="planted"))) as node:
        assert await code_of(node, "ann", "pencil") == reason.SERVER_UNAVAILABLE
        [alarm] = node.alarms.active()
        assert "WRONGPASS" in alarm.message or "invalid username-password" in alarm.message
        assert "planted" not in alarm.message


@on_loop
async def test_a_key_of_another_type_is_no_absence(redis: RedisServer) -> None:
    redis.cli("SET", "mqtt_user:eve", "text")
    async with running(access=access(chain(redis))) as node:
        assert await code_of(node, "eve", "pencil") == reason.SERVER_UNAVAILABLE
        assert await code_of(node, "ann", "pencil") == 0
        assert node.alarms.active() == []


@on_loop
async def test_a_server_that_is_stopped_and_started_under_connects(redis: RedisServer) -> None:
    async with running(access=access(chain(redis, timeout="2s"))) as node:
        stays = await node.client("stays", 5, username="ann", password=b"pencil")

        async def connects(count: int) -> set[int]:
            return set(
                await asyncio.gather(
                    *(code_of(node, "ann", "pencil", f"c{n}") for n in range(count))
                )
            )

        assert await connects(50) == {0}
        redis.process.kill()
        try:
            assert await connects(200) == {reason.SERVER_UNAVAILABLE}
            await stays.silence()
        finally:
            await asyncio.to_thread(redis.process.start)
        node.pass_time(2)
        await node.until(lambda: not node.alarms.active())
        assert await connects(50) == {0}
        redis.process.freeze()
        try:
            assert await connects(20) == {reason.SERVER_UNAVAILABLE}
        finally:
            redis.process.thaw()
        node.pass_time(2)
        await node.until(lambda: not node.alarms.active())
        assert await connects(5) == {0}


@pytest.mark.parametrize(
    ("cmd", "problem"),
    [
        ("FLUSHALL", "expected HMGET or HGETALL"),
        ("HMGET key", "expected HMGET or HGETALL"),
        ("HGETALL a b", "expected HMGET or HGETALL"),
        ("", "expected HMGET or HGETALL"),
        ("HMGET mqtt:${nothing} a", "got ${nothing}"),
    ],
)
def test_commands_that_cannot_be_used_are_refused(cmd: str, problem: str) -> None:
    with pytest.raises(ValidationError) as raised:
        RedisAuthenticatorSettings.model_validate(
            {"mechanism": "redis", "server": "127.0.0.1:6379", "cmd": cmd}
        )
    assert problem in str(raised.value)
    with pytest.raises(ValidationError):
        RedisSourceSettings.model_validate(
            {"type": "redis", "server": "127.0.0.1:6379", "cmd": cmd}
        )


def test_a_library_that_is_not_installed_is_named_with_its_extra() -> None:
    with pytest.raises(ConfigError) as raised:
        check_installed("no_such_library", "redis")
    assert "pip install 'sluicemq[redis]'" in raised.value.problems[0]


def test_optional_libraries_are_not_imported_before_they_are_used() -> None:
    assert not {"redis.asyncio", "asyncpg", "asyncmy", "bcrypt"} & lazy_module._names
