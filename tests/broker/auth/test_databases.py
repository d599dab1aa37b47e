"""Clients and access rules in PostgreSQL and MariaDB: hashes, hostile names, rules that change, a server that goes."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import bcrypt
import psutil
import pytest
from pydantic import ValidationError

from broker.auth.backends.sql import MysqlAuthenticatorSettings, PostgresqlAuthenticatorSettings
from broker.codec.packets import ConnAck, Connect, PubAck, Publish, SubscriptionRequest
from broker.core import reason
from tests.support import mariadb_server, postgres_server
from tests.support.access import BUILTIN, access
from tests.support.mariadb_server import MariaDb
from tests.support.mqtt_server import Node, on_loop, running
from tests.support.postgres_server import Postgres
from tests.support.processes import ServerProcess, pause
from tests.support.wire import WireClient

WRONG = reason.BAD_USER_NAME_OR_PASSWORD
CHEAP = bcrypt.hashpw(b"pencil", bcrypt.gensalt(4)).decode()


@dataclass(frozen=True)
class Database:
    """A server, and how it is reached."""

    name: str
    settings: dict[str, Any]
    sql: Callable[[str], str]
    process: ServerProcess

    def authenticator(self, **settings: Any) -> dict[str, Any]:
        return {"mechanism": self.name, **self.settings, **settings}

    def source(self, **settings: Any) -> dict[str, Any]:
        return {"type": self.name, **self.settings, **settings}

    def user(self, username: str, stored: str, salt: str = "", is_superuser: bool = False) -> None:
        """Add a user; the name is quoted for the server."""
        name = username.encode().hex()
        expression = (
            f"convert_from('\\x{name}', 'UTF8')"
            if self.name == "postgresql"
            else f"_utf8mb4 X'{name}'"
        )
        self.sql(
            "INSERT INTO mqtt_user (username, password_hash, salt, is_superuser) "
            f"VALUES ({expression}, '{stored}', '{salt}', {is_superuser})"
        )


def settings_of(port: int, password: str) -> dict[str, Any]:
    return {
        "server": f"127.0.0.1:{port}",
        "database": "sluice",
        "username": "sluice",
        "password": password,
    }


@pytest.fixture(scope="module")
def postgresql() -> Iterator[Database]:
    with Postgres() as server:
        yield Database(
            "postgresql",
            settings_of(server.port, postgres_server.PASSWORD),
            server.psql,
            server.process,
        )


@pytest.fixture(scope="module")
def mysql() -> Iterator[Database]:
    with MariaDb() as server:
        yield Database(
            "mysql", settings_of(server.port, mariadb_server.PASSWORD), server.sql, server.process
        )


@pytest.fixture(params=["postgresql", "mysql"])
def database(request: pytest.FixtureRequest, postgresql: Database, mysql: Database) -> Database:
    database = postgresql if request.param == "postgresql" else mysql
    for table in ("mqtt_user", "mqtt_acl"):
        database.sql(f"DROP TABLE IF EXISTS {table}")
    key = "SERIAL" if database.name == "postgresql" else "INT AUTO_INCREMENT"
    database.sql(
        f"CREATE TABLE mqtt_user (id {key} PRIMARY KEY, username VARCHAR(100), password_hash VARCHAR(300), "
        "salt VARCHAR(100), is_superuser BOOLEAN)"
    )
    database.sql(
        f"CREATE TABLE mqtt_acl (id {key} PRIMARY KEY, username VARCHAR(100), permission VARCHAR(10), "
        "action VARCHAR(10), topic VARCHAR(300))"
    )
    return database


async def code_of(node: Node, username: str, password: str, client_id: str = "c1") -> int:
    wire = await WireClient.open(node.port, 5)
    wire.send(Connect(client_id, 5, username=username, password=password.encode()))
    code = (await wire.expect(ConnAck)).reason_code
    await wire.close()
    return code


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode().rstrip("=")


PBKDF2 = hashlib.pbkdf2_hmac("sha256", b"pencil", b"salty", 1000)
SCRYPT = hashlib.scrypt(b"pencil", salt=b"salty", n=1 << 10, r=8, p=1)
HASHES: list[tuple[dict[str, Any], str]] = [
    ({"name": "bcrypt"}, CHEAP),
    ({"name": "pbkdf2", "mac_fun": "sha256", "iterations": 1000}, PBKDF2.hex()),
    ({"name": "pbkdf2"}, f"$pbkdf2-sha256$1000${_b64(b'salty')}${_b64(PBKDF2)}"),
    ({"name": "pbkdf2"}, f"pbkdf2_sha256$1000$salty${base64.b64encode(PBKDF2).decode()}"),
    ({"name": "scrypt"}, f"$scrypt$ln=10,r=8,p=1${_b64(b'salty')}${_b64(SCRYPT)}"),
    ({"name": "sha256"}, hashlib.sha256(b"saltypencil").hexdigest()),
    (
        {"name": "sha512", "salt_position": "suffix"},
        hashlib.sha512(b"pencilsalty").hexdigest().upper(),
    ),
    ({"name": "sha", "allow_weak": True}, hashlib.sha1(b"saltypencil").hexdigest()),
    (
        {"name": "md5", "salt_position": "disable", "allow_weak": True},
        hashlib.md5(b"pencil").hexdigest(),
    ),
    ({"name": "plain", "allow_weak": True}, "pencil"),
]


@on_loop
@pytest.mark.parametrize(
    ("algorithm", "stored"), HASHES, ids=[algorithm["name"] for algorithm, _ in HASHES]
)
async def test_a_password_is_checked_against_the_stored_hash(
    database: Database, algorithm: dict[str, Any], stored: str
) -> None:
    database.user("ann", stored, "salty")
    chain = [database.authenticator(password_hash_algorithm=algorithm)]
    async with running(access=access(chain)) as node:
        assert await code_of(node, "ann", "pencil") == 0
        assert await code_of(node, "ann", "pencil2") == WRONG
        assert await code_of(node, "bob", "pencil") == WRONG


@on_loop
async def test_a_superuser_is_one_and_others_are_left_to_the_next(database: Database) -> None:
    database.user("boss", CHEAP, is_superuser=True)
    async with running(
        access=access([database.authenticator(), *BUILTIN], no_match="deny")
    ) as node:
        client = await node.client("c1", 5, username="boss", password=b"pencil")
        client.send(Publish("any", b"", 1, packet_id=1))
        assert (await client.expect(PubAck)).reason_code == 0x10
        assert await code_of(node, "ann", "pencil", "c2") == 0  # of the broker's own


@on_loop
async def test_names_are_parameters_whatever_is_in_them(database: Database) -> None:
    database.user("ann", CHEAP)
    hostile = [
        "' OR '1'='1",
        "\\' OR 1=1 -- ",
        '" OR ""="',
        "ann' --",
        "%",
        "$1",
        "%s",
        "\x1a",
        "ann;DROP TABLE mqtt_user",
    ]
    for name in hostile[:3]:
        database.user(name, CHEAP)
    async with running(
        access=access([database.authenticator()], login_limits={"enable": False})
    ) as node:
        for number, name in enumerate(hostile):
            assert await code_of(node, name, "pencil") == (0 if number < 3 else WRONG), name
        assert await code_of(node, "é😀", "pencil") == WRONG
        assert await code_of(node, "ann", "pencil") == 0


@on_loop
async def test_a_query_that_fails_refuses_clients_and_the_server_is_not_away(
    database: Database,
) -> None:
    chain = [
        database.authenticator(query="SELECT nothing FROM mqtt_user WHERE username = ${username}")
    ]
    async with running(access=access(chain)) as node:
        assert await code_of(node, "ann", "pencil") == reason.SERVER_UNAVAILABLE
        assert node.alarms.active() == []


@on_loop
async def test_a_wrong_password_of_the_database_is_the_reason_of_the_alarm(
    database: Database,
) -> None:
    async with running(access=access([database.authenticator(password="wrong")])) as node:
        assert await code_of(node, "ann", "pencil") == reason.SERVER_UNAVAILABLE
        [alarm] = node.alarms.active()
        assert alarm.name == f"authenticator_unavailable:{database.name}"
        assert "sluice" in alarm.message
        assert "wrong" not in alarm.message


async def published(client: WireClient, topic: str) -> int:
    client.send(Publish(topic, b"", 1, packet_id=1))
    return (await client.expect(PubAck)).reason_code


@on_loop
async def test_a_row_grants_and_its_end_revokes_for_a_connected_client(database: Database) -> None:
    for action, topic in {"publish": "up/${username}", "subscribe": "down/#"}.items():
        database.sql(
            f"INSERT INTO mqtt_acl (username, permission, action, topic) VALUES ('ann', 'allow', '{action}', '{topic}')"
        )
    rules = access(BUILTIN, sources=[database.source()], no_match="deny")
    async with running(access=rules) as node:
        client = await node.client("c1", 5, username="ann", password=b"pencil")
        assert await published(client, "up/ann") == 0x10
        assert await published(client, "up/bob") == reason.NOT_AUTHORIZED
        assert await client.subscribe(
            SubscriptionRequest("down/x", 1), SubscriptionRequest("up/#")
        ) == [1, 0x87]
        database.sql("DELETE FROM mqtt_acl")
        node.pass_time(301)
        await node.until(lambda: not node.server.hub.sessions.by_client_id["c1"].subscriptions)
        assert await published(client, "up/ann") == reason.NOT_AUTHORIZED


@on_loop
async def test_a_row_that_is_no_rule_lets_no_one_in(database: Database) -> None:
    database.sql(
        "INSERT INTO mqtt_acl (username, permission, action, topic) VALUES ('ann', 'perhaps', 'all', '#')"
    )
    async with running(access=access(BUILTIN, sources=[database.source()])) as node:
        assert await code_of(node, "ann", "pencil") == reason.SERVER_UNAVAILABLE
        assert await code_of(node, "root", "paper") == 0  # a superuser needs no rules


@on_loop
async def test_a_server_that_is_stopped_and_started_under_connects(database: Database) -> None:
    database.user("ann", CHEAP)
    sources = [
        database.source(),
        {"type": "file", "rules": [{"permission": "allow", "topics": ["#"]}]},
    ]
    chain = [database.authenticator(timeout="2s")]
    async with running(access=access(chain, sources=sources)) as node:
        stays = await node.client("stays", 5, username="ann", password=b"pencil")

        async def connects(count: int) -> set[int]:
            codes = [code_of(node, "ann", "pencil", f"c{number}") for number in range(count)]
            return set(await asyncio.gather(*codes))

        assert await connects(50) == {0}
        database.process.kill()
        try:
            assert await connects(200) == {reason.SERVER_UNAVAILABLE}
            assert await published(stays, "a") == 0x10
        finally:
            await asyncio.to_thread(database.process.start)
        node.pass_time(2)
        await node.until(lambda: not node.alarms.active())
        assert await connects(50) == {0}
        assert await published(stays, "a") == 0x10


@on_loop
async def test_a_server_that_is_frozen_holds_no_client_longer_than_the_timeout(
    database: Database,
) -> None:
    database.user("ann", CHEAP)
    async with running(access=access([database.authenticator(timeout="2s", pool_size=2)])) as node:
        assert await code_of(node, "ann", "pencil") == 0
        processes = [
            psutil.Process(database.process.pid),
            *psutil.Process(database.process.pid).children(),
        ]
        for process in processes:
            pause(process.pid)
        try:
            codes = await asyncio.gather(
                *(code_of(node, "ann", "pencil", f"c{number}") for number in range(20))
            )
            assert set(codes) == {reason.SERVER_UNAVAILABLE}
        finally:
            for process in processes:
                process.resume()
        node.pass_time(2)
        await node.until(lambda: not node.alarms.active())
        assert await code_of(node, "ann", "pencil") == 0


@pytest.mark.parametrize("model", [PostgresqlAuthenticatorSettings, MysqlAuthenticatorSettings])
@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"query": "SELECT 1 WHERE a = '${username}'"}, "without quotes"),
        ({"query": "SELECT ${nothing}"}, "got ${nothing}"),
        ({"server": "host"}, "HOST:PORT"),
        ({"password_hash_algorithm": {"name": "plain"}}, "expected a strong hash"),
        ({"password_hash_algorithm": {"name": "md5"}}, "expected a strong hash"),
        ({"password_hash_algorithm": {"name": "sha"}}, "expected a strong hash"),
        (
            {"password_hash_algorithm": {"name": "sha256", "salt_position": "disable"}},
            "expected a strong hash",
        ),
    ],
)
def test_settings_that_cannot_be_used_are_refused(
    model: Any, settings: dict[str, Any], problem: str
) -> None:
    mechanism = "postgresql" if model is PostgresqlAuthenticatorSettings else "mysql"
    base = {"mechanism": mechanism, "server": "127.0.0.1:5432", "database": "d", "username": "u"}
    with pytest.raises(ValidationError) as raised:
        model.model_validate({**base, **settings})
    assert problem in str(raised.value)
