"""A database or directory that is killed and started while clients connect as fast as they can: those that are
connected stay, every connect is answered, memory does not grow, and the event loop is not held."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support import mariadb_server, postgres_server, redis_server
from tests.support.ldap_server import ADMIN, BASE, PASSWORD, LdapServer
from tests.support.mariadb_server import MariaDb
from tests.support.node import Node, eventually, running
from tests.support.postgres_server import Postgres
from tests.support.processes import ServerProcess
from tests.support.raw import RawClient, connect, text
from tests.support.redis_server import RedisServer
from tests.support.waiting import until

HASH = hashlib.sha256(b"saltpencil").hexdigest()
COLUMNS = "username VARCHAR(99), password_hash VARCHAR(99), salt VARCHAR(9), is_superuser BOOLEAN"
TABLE = f"CREATE TABLE mqtt_user ({COLUMNS})"
ROW = f"INSERT INTO mqtt_user VALUES ('ann', '{HASH}', 'salt', false)"
LDIF = f"""dn: {BASE}
objectClass: domain
dc: example

dn: uid=ann,{BASE}
objectClass: inetOrgPerson
uid: ann
cn: ann
sn: ann
userPassword: pencil
"""
SERVER_UNAVAILABLE = 3
"""The code in MQTT 3.1.1."""
Service = Callable[[], AbstractContextManager[tuple[str, ServerProcess]]]
WORKERS = 100
CONNECTS = 1500
"""Connects of each phase."""
ANSWERED_S = 20.0
"""Seconds within which a connect must be answered: the timeout of the service, on a machine with much else to do."""
MOST_GROWTH_BYTES = 16 * 1024 * 1024
"""Growth of the broker from the end of the first outage to that of the second, some 5,000 connects."""


@dataclass
class Storm:
    """Clients that connect one after another, and the answers by phase."""

    port: int
    phase: str = "before"
    codes: dict[str, Counter[int]] = field(default_factory=dict)
    slowest_s: float = 0.0
    is_over: bool = False

    async def run(self) -> None:
        await asyncio.gather(*(self._connects(worker) for worker in range(WORKERS)))

    async def answered(self, phase: str) -> None:
        """Begin a phase, and wait for the answers to its connects."""
        self.phase = phase
        await until(lambda: sum(self.codes.get(phase, Counter()).values()) >= CONNECTS)

    async def _connects(self, worker: int) -> None:
        while not self.is_over:
            began = time.monotonic()
            phase = self.phase
            async with asyncio.timeout(ANSWERED_S), await RawClient.open(self.port) as client:
                client.send(login(f"c{worker}"))
                answer = await client.read()
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)
            self.codes.setdefault(phase, Counter())[answer[3]] += 1


def login(client_id: str) -> bytes:
    """The CONNECT of a client with its password."""
    return connect(4, client_id, flags=0xC0, rest=text("ann") + text("pencil"))


@contextmanager
def postgresql() -> Iterator[tuple[str, ServerProcess]]:
    with Postgres() as server:
        server.psql(TABLE)
        server.psql(ROW)
        yield _sql("postgresql", server.port, postgres_server.PASSWORD), server.process


@contextmanager
def mysql() -> Iterator[tuple[str, ServerProcess]]:
    with MariaDb() as server:
        server.sql(TABLE)
        server.sql(ROW)
        yield _sql("mysql", server.port, mariadb_server.PASSWORD), server.process


def _sql(mechanism: str, port: int, password: str) -> str:
    return (
        f'mechanism = {mechanism}, server = "127.0.0.1:{port}", database = sluice, username = sluice, '
        f'password = "{password}", password_hash_algorithm {{ name = sha256 }}'
    )


@contextmanager
def redis() -> Iterator[tuple[str, ServerProcess]]:
    with RedisServer() as server:
        server.cli("HSET", "mqtt_user:ann", "password_hash", HASH, "salt", "salt")
        settings = f'mechanism = redis, server = "127.0.0.1:{server.port}", password = "{redis_server.PASSWORD}"'
        yield f"{settings}, password_hash_algorithm {{ name = sha256 }}", server.process


@contextmanager
def ldap() -> Iterator[tuple[str, ServerProcess]]:
    with LdapServer(LDIF) as server:
        settings = f'mechanism = ldap, server = "127.0.0.1:{server.port}"'
        settings += f', username = "{ADMIN}", password = "{PASSWORD}"'
        yield f'{settings}, base_dn = "{BASE}"', server.process


@pytest.mark.heavy
@pytest.mark.timeout(300)
@pytest.mark.parametrize("service", [postgresql, mysql, redis, ldap])
def test_an_outage_under_connects(service: Service, tmp_path: Path) -> None:
    with service() as (settings, process):
        config = (
            f"authentication = [ {{ {settings}, timeout = 2s }} ]\nlogin_limits.enable = false\n"
        )
        with running(tmp_path / "node", config=config) as node:
            asyncio.run(_outage(node, process))


async def _outage(node: Node, process: ServerProcess) -> None:
    port = node.mqtt[1]
    stays = await RawClient.connected(port, login("stays"))
    broker = psutil.Process(node.pid)
    storm = Storm(port)
    storming = asyncio.create_task(storm.run())
    began = time.monotonic()
    await storm.answered("before")
    rate = CONNECTS / (time.monotonic() - began)
    grown = []
    for outage in ("first", "second"):
        storm.phase = "in between"
        await asyncio.to_thread(process.kill)
        await storm.answered(f"{outage} outage")
        storm.phase = "in between"
        await asyncio.to_thread(process.start)
        await asyncio.to_thread(_running, node)
        await storm.answered(f"after the {outage}")
        grown.append(broker.memory_info().rss)
    storm.is_over = True
    await storming
    growth = grown[1] - grown[0]
    figures = f"{rate:.0f} connects a second, slowest {storm.slowest_s:.2f} s, growth {growth / 1e6:.1f} MB"
    print(f"{figures}; answers by phase: {storm.codes}")
    await stays.silence()
    stays.close()
    assert storm.codes["before"][SERVER_UNAVAILABLE] <= WORKERS  # under way when it was killed
    for outage in ("first", "second"):
        assert storm.codes[f"{outage} outage"][SERVER_UNAVAILABLE] > CONNECTS / 2
        assert storm.codes[f"after the {outage}"][0] > CONNECTS / 2
    assert growth < MOST_GROWTH_BYTES


def _running(node: Node) -> Any:
    """State of the service once it is running again."""

    def state() -> Any:
        [authenticator] = node.call("GET", "/authentication")["items"]
        backend = authenticator["state"]["backend"]
        return backend if backend["status"] == "running" else None

    return eventually(state)
