"""Logins that fail too often: refused before anything is hashed, by user and by address, and nobody else suffers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.auth.hashing import HashPool, PasswordHashingSettings
from broker.auth.login_limits import LoginLimits, LoginLimitSettings, network_of
from broker.codec.packets import Auth, ConnAck, Connect
from broker.core import reason
from broker.core.clock import SystemClock
from broker.core.errors import Unavailable
from broker.observe.metrics import Metrics
from tests.support.access import BUILTIN, access
from tests.support.connections import dial
from tests.support.mqtt_server import Node, on_loop, running
from tests.support.scram import ScramClient
from tests.support.wire import WireClient

HERE, THERE = "127.0.0.1", "127.0.0.2"
BAD, LIMITED = reason.BAD_USER_NAME_OR_PASSWORD, reason.CONNECTION_RATE_EXCEEDED
USERS: list[dict[str, Any]] = [{"name": name, "password": "pencil"} for name in ("ann", "bob")]
FEW = {"max_failures_per_user": 3, "max_failures_per_address": 6}


def limited(**settings: Any) -> Any:
    return access(BUILTIN, users=USERS, login_limits=FEW | settings)


async def login(
    node: Node,
    user: str,
    password: str = "wrong",
    *,
    source: str = HERE,
    client: str = "c",
    version: int = 5,
) -> int:
    """The code of the CONNACK."""
    reader, writer = await dial(node.port, local_addr=(source, 0))
    wire = WireClient(reader, writer, version)
    wire.send(Connect(client, version, username=user, password=password.encode()))
    code = (await wire.expect(ConnAck)).reason_code
    writer.close()
    return code


async def scram(node: Node, password: str) -> int:
    """The code that a login of ann by SCRAM ends with."""
    client, wire = ScramClient("ann", password), await WireClient.open(node.port, 5)
    said = {"Authentication-Method": client.method}
    wire.send(Connect("s", 5, properties={**said, "Authentication-Data": client.first()}))
    first = await wire.receive()
    if isinstance(first, ConnAck):
        return first.reason_code
    assert isinstance(first, Auth)
    answer = client.answer(first.properties["Authentication-Data"])
    wire.send(Auth(reason.CONTINUE_AUTHENTICATION, {**said, "Authentication-Data": answer}))
    return (await wire.expect(ConnAck)).reason_code


@on_loop
async def test_a_user_with_too_many_wrong_logins_is_closed_to_their_address_and_open_to_others() -> (
    None
):
    async with running(access=limited()) as node:
        assert [await login(node, "ann") for _ in range(5)] == [BAD, BAD, BAD, LIMITED, LIMITED]
        assert await login(node, "ann", version=4) == 3
        assert await login(node, "ann", "pencil") == LIMITED
        assert await login(node, "ann", "pencil", source=THERE) == 0
        assert await login(node, "bob", "pencil") == 0
        assert await login(node, "ann", source="127.0.0.3") == BAD  # an address has one guess
        assert await login(node, "ann", "pencil", source="127.0.0.3") == LIMITED
        assert node.metrics.value("logins_limited", by="user") == 5
        node.pass_time(61)
        assert await login(node, "ann", "pencil") == 0


@on_loop
async def test_a_user_that_does_not_exist_is_limited_as_one_that_does() -> None:
    async with running(access=limited()) as node:
        assert [await login(node, "nobody") for _ in range(4)] == [BAD, BAD, BAD, LIMITED]


@on_loop
async def test_users_that_are_found_by_client_identifier_are_limited_by_it() -> None:
    chain = [{"mechanism": "builtin", "user_id_type": "clientid"}]
    async with running(access=access(chain, users=USERS, login_limits=FEW)) as node:
        tried = [await login(node, f"u{number}", client="ann") for number in range(4)]
        assert tried == [BAD, BAD, BAD, LIMITED]


@on_loop
async def test_an_address_with_too_many_wrong_logins_is_open_only_to_clients_known_there() -> None:
    async with running(access=limited()) as node:
        assert await login(node, "ann", "pencil", client="known") == 0
        assert [await login(node, f"u{number}") for number in range(7)] == [BAD] * 6 + [LIMITED]
        assert await login(node, "bob", "pencil") == LIMITED
        assert await login(node, "ann", "pencil", client="known") == 0
        assert await login(node, "bob", "pencil", source=THERE) == 0
        assert node.metrics.value("logins_limited", by="address") == 2
        [row] = await node.server.hub.access.authenticators.limits.failures()
        assert (row["address"], row["counted"], row["is_limited"]) == (HERE, 6, True)
        wrong = [await login(node, "ann", client="known") for _ in range(4)]
        # one that is known has a measure of its own, and no more
        assert wrong == [
            BAD,
            BAD,
            BAD,
            LIMITED,
        ]
        [row] = await node.server.hub.access.authenticators.limits.failures()
        assert row["counted"] == 9, "the list has those of known clients too"


@on_loop
async def test_failures_of_a_known_client_are_listed_and_limit_no_other() -> None:
    async with running(access=limited()) as node:
        assert await login(node, "ann", "pencil", client="known") == 0
        assert await login(node, "ann", client="known") == BAD
        [row] = await node.server.hub.access.authenticators.limits.failures()
        assert (row["address"], row["counted"], row["is_limited"]) == (HERE, 1, False)


@on_loop
async def test_scram_is_limited_as_passwords_are() -> None:
    async with running(access=limited()) as node:
        assert [await scram(node, "wrong") for _ in range(4)] == [BAD, BAD, BAD, LIMITED]
        assert await scram(node, "pencil") == LIMITED
        assert await login(node, "ann", "pencil") == LIMITED


@on_loop
async def test_logins_that_arrive_at_once_are_limited_before_they_are_hashed() -> None:
    slow = {"threads": 1, "iterations": 4096}
    async with running(access=access(BUILTIN, users=USERS, login_limits=FEW, hashing=slow)) as node:
        desk: Any = node.server.hub.access.authenticators._links[0].authenticator
        await desk._users.create({"name": "slow", "password": "pencil"})
        codes = await asyncio.gather(
            *(login(node, "slow", client=f"c{number}") for number in range(30))
        )
        assert codes.count(BAD) == 3
        assert codes.count(LIMITED) == 27


@on_loop
async def test_there_is_no_limit_where_it_is_switched_off() -> None:
    async with running(access=limited(enable=False)) as node:
        assert {await login(node, "ann") for _ in range(20)} == {BAD}
        assert await login(node, "ann", "pencil") == 0


@on_loop
async def test_an_alarm_is_active_while_logins_are_refused() -> None:
    async with running(access=limited()) as node:
        alarms = node.alarms
        for _ in range(5):
            await login(node, "ann")
        node.pass_time(1)
        [alarm] = alarms.active()
        assert (alarm.name, alarm.details) == ("logins_limited", {"refused": 2})
        node.pass_time(61)
        assert alarms.active() == []


# -- turns --


@on_loop
async def test_many_logins_from_one_address_do_not_delay_one_from_another() -> None:
    pool = HashPool(PasswordHashingSettings(threads=1), Metrics())
    order: list[str] = []

    async def one(place: str) -> None:
        async with pool.turn(place):
            order.append(place)
            await pool.work(lambda: None)

    tasks = [asyncio.create_task(one("flood")) for _ in range(50)]
    await asyncio.sleep(0)
    tasks.append(asyncio.create_task(one("other")))
    await asyncio.gather(*tasks)
    assert order.index("other") <= 2
    pool.close()


@on_loop
async def test_a_full_queue_turns_away_the_newest_of_the_address_with_the_most() -> None:
    metrics = Metrics()
    pool = HashPool(PasswordHashingSettings(threads=1, max_waiting=4), metrics)
    go_on = asyncio.Event()

    async def one(place: str) -> str:
        try:
            async with pool.turn(place):
                await go_on.wait()
        except Unavailable:
            return "busy"
        return "done"

    flood = [asyncio.create_task(one("flood")) for _ in range(6)]
    await asyncio.sleep(0)
    other = asyncio.create_task(one("other"))
    await asyncio.sleep(0)
    flood[1].cancel()
    await asyncio.sleep(0)
    go_on.set()
    answers = await asyncio.gather(other, *flood, return_exceptions=True)
    assert [answer for answer in answers if isinstance(answer, str)] == [
        "done",
        "done",
        "done",
        "done",
        "busy",
        "busy",
    ]
    assert metrics.value("password_hashing_busy") == 2
    assert metrics.value("password_hashing") == 0
    pool.close()


# -- what is kept --


@pytest.mark.parametrize(
    ("host", "network"),
    [
        (None, ""),
        ("10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
    ],
)
def test_an_ipv6_network_is_one_address(host: str | None, network: str) -> None:
    assert network_of(host) == network


def test_what_is_kept_of_failures_is_bounded() -> None:
    limits: Any = LoginLimits(LoginLimitSettings(), SystemClock(), Metrics())
    for number in range(50_000):
        limits.failed(f"10.0.{number >> 8}.{number & 255}", f"u{number}" * 50)
        limits.succeeded("10.0.0.1", f"v{number}")
    assert len(limits._levels) <= 100_000
    assert len(limits._known) <= 100_000
    assert all(len(key) <= 16 for key in limits._levels)
