"""Real services that know the users of ``connect_storm``, each with the settings of an authenticator that asks it.

As a program it is the HTTP service among them, on a port of 127.0.0.1.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import cast

import uvloop

from tests.support import mariadb_server, postgres_server, redis_server
from tests.support.connect_storm import PASSWORD, USERS, user
from tests.support.ldap_server import ADMIN, BASE, LdapServer
from tests.support.ldap_server import PASSWORD as ADMIN_PASSWORD
from tests.support.mariadb_server import MariaDb
from tests.support.postgres_server import Postgres
from tests.support.processes import ServerProcess, free_port, is_open
from tests.support.redis_server import RedisServer

_HASH = hashlib.sha256(f"salt{PASSWORD}".encode()).hexdigest()
_COLUMNS = "username VARCHAR(99) PRIMARY KEY, password_hash VARCHAR(99), salt VARCHAR(9), is_superuser BOOLEAN"
_TABLE = f"CREATE TABLE mqtt_user ({_COLUMNS})"
_ROWS = "INSERT INTO mqtt_user VALUES " + ", ".join(
    f"('{user(number)}', '{_HASH}', 'salt', false)" for number in range(USERS)
)
_FILL = """
for number = 0, ARGV[1] do
  redis.call("HSET", ARGV[2] .. number, "password_hash", ARGV[3], "salt", "salt")
end
"""
_ROOT = f"dn: {BASE}\nobjectClass: domain\ndc: example\n"
_PERSON = f"""
dn: uid={{name}},{BASE}
objectClass: inetOrgPerson
uid: {{name}}
cn: {{name}}
sn: {{name}}
userPassword: {PASSWORD}
"""
Service = Callable[[], AbstractContextManager[tuple[str, ServerProcess]]]


@contextmanager
def postgresql() -> Iterator[tuple[str, ServerProcess]]:
    """PostgreSQL."""
    with Postgres() as server:
        server.psql(_TABLE)
        server.psql(_ROWS)
        yield _sql("postgresql", server.port, postgres_server.PASSWORD), server.process


@contextmanager
def mysql() -> Iterator[tuple[str, ServerProcess]]:
    """MariaDB."""
    with MariaDb() as server:
        server.sql(_TABLE)
        server.sql(_ROWS)
        yield _sql("mysql", server.port, mariadb_server.PASSWORD), server.process


def _sql(mechanism: str, port: int, password: str) -> str:
    return (
        f'mechanism = {mechanism}, server = "127.0.0.1:{port}", database = sluice, username = sluice, '
        f'password = "{password}", password_hash_algorithm {{ name = sha256 }}'
    )


@contextmanager
def redis() -> Iterator[tuple[str, ServerProcess]]:
    """Redis."""
    with RedisServer() as server:
        server.cli("EVAL", _FILL, "0", str(USERS - 1), f"mqtt_user:{user('')}", _HASH)
        settings = f'mechanism = redis, server = "127.0.0.1:{server.port}", password = "{redis_server.PASSWORD}"'
        yield f"{settings}, password_hash_algorithm {{ name = sha256 }}", server.process


@contextmanager
def ldap() -> Iterator[tuple[str, ServerProcess]]:
    """OpenLDAP."""
    people = (_PERSON.format(name=user(number)) for number in range(USERS))
    with LdapServer(_ROOT + "".join(people)) as server:
        settings = f'mechanism = ldap, server = "127.0.0.1:{server.port}"'
        settings += f', username = "{ADMIN}", password = "{ADMIN_PASSWORD}"'
        yield f'{settings}, base_dn = "{BASE}"', server.process


@contextmanager
def http() -> Iterator[tuple[str, ServerProcess]]:
    """An HTTP service."""
    port = free_port()
    command = [sys.executable, "-m", "tests.support.login_services", str(port)]
    with tempfile.TemporaryDirectory() as folder:
        environ = {"PYTHONPATH": str(Path(__file__).parents[2])}
        with ServerProcess(
            command, Path(folder), lambda: is_open(port), environ=environ
        ) as process:
            yield f'mechanism = http, url = "http://127.0.0.1:{port}/login"', process


SERVICES: dict[str, Service] = {
    "postgresql": postgresql,
    "mysql": mysql,
    "redis": redis,
    "ldap": ldap,
    "http": http,
}


class _Logins(asyncio.Protocol):
    """Allows those that know the password."""

    _LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)

    def __init__(self) -> None:
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            length = self._LENGTH.search(self._data, 0, end)
            stop = end + 4 + (int(length[1]) if length else 0)
            if len(self._data) < stop:
                return
            members = json.loads(self._data[end + 4 : stop])
            self._data = self._data[stop:]
            result = "allow" if members["password"] == PASSWORD else "deny"
            body = json.dumps({"result": result}).encode()
            head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            self._transport.write(head.encode() + body)


async def _serve(port: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(_Logins, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
