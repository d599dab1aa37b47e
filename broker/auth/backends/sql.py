"""Clients and access rules in PostgreSQL and MySQL: the authenticators and sources of rules of both.

Placeholders of a query are bound as parameters, never spliced into its text.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Protocol, Self, cast

from pydantic import Field, field_validator, model_validator

from broker.auth.backends.authenticator import OutsideAuthenticator
from broker.auth.backends.backend import BackendUnavailable, Outside, Unreachable
from broker.auth.backends.connections import OptionalTls, Servers, check_installed
from broker.auth.backends.rows import Row, RowAuthenticatorSettings, RowVerifier
from broker.auth.backends.source import MOST_ROWS, OutsideSourceSettings, RowSource
from broker.auth.backends.templates import OF_CLIENT, OF_LOGIN, Facts, Template, checked_template
from broker.config.model import Settings
from broker.config.secret_text import ADDRESS, SecretText
from broker.config.ssrf import AddressDenied, AddressGuard, GuardedLoop
from broker.core.hosts import checked_address
from broker.core.lazy_module import LazyModule
from broker.core.placeholders import CLIENT_PLACEHOLDER

if TYPE_CHECKING:
    import asyncmy
    import asyncpg
else:
    asyncmy = LazyModule("asyncmy", is_optional=True)
    asyncpg = LazyModule("asyncpg", is_optional=True)

_QUOTED: Final = re.compile(r"'[^']*\$\{[^']*'|\"[^\"]*\$\{[^\"]*\"")
_CLOSE_S: Final = 3.0
_LOGIN: Final = (
    "SELECT password_hash, salt, is_superuser FROM mqtt_user WHERE username = ${username} LIMIT 1"
)
_RULES: Final = (
    "SELECT permission, action, topic FROM mqtt_acl WHERE username = ${username} ORDER BY id"
)


class SqlSettings(Settings):
    """A database, and the connections to it."""

    server: Annotated[str, ADDRESS] = Field(description="`host:port` of the server.")
    database: str = Field(min_length=1, description="Name of the database.")
    username: str = Field(
        min_length=1, description="Name of the broker's user there; rights to read are enough."
    )
    password: SecretText | None = Field(
        default=None, description="Password, or `${secret:NAME}`, `${env:NAME}`, `${file:PATH}`."
    )
    ssl: OptionalTls = Field(default_factory=OptionalTls, description="TLS of the connections.")

    @field_validator("server")
    @classmethod
    def _check_server(cls, server: str) -> str:
        return checked_address(server, "127.0.0.1:5432")


def _checked_query(query: str, names: tuple[str, ...]) -> str:
    checked_template(query, names)
    if _QUOTED.search(query):
        raise ValueError(
            "expected placeholders without quotes around them, since they are parameters"
        )
    return query


class SqlAuthenticatorSettings(RowAuthenticatorSettings, SqlSettings):
    """Settings of an authenticator over a database."""

    query: str = Field(
        default=_LOGIN,
        min_length=1,
        max_length=10_000,
        description="Query for the row of a client, with the columns `password_hash`, and perhaps `salt` and "
        "`is_superuser`; `${username}`, `${clientid}`, `${peerhost}` and others are bound as parameters.",
    )

    @model_validator(mode="after")
    def _check_query(self) -> Self:
        _checked_query(self.query, OF_LOGIN)
        return self


class SqlSourceSettings(OutsideSourceSettings, SqlSettings):
    """Settings of a source of rules over a database."""

    query: str = Field(
        default=_RULES,
        min_length=1,
        max_length=10_000,
        description="Query for the rules of a client in their order, with the columns `permission`, `action`, `topic`, "
        "and perhaps `qos`, `retain`, `ipaddress`, `username`, `clientid`; placeholders are bound as parameters.",
    )

    @model_validator(mode="after")
    def _check_query(self) -> Self:
        _checked_query(self.query, OF_CLIENT)
        return self


class PostgresqlAuthenticatorSettings(SqlAuthenticatorSettings):
    """Settings of a ``postgresql`` authenticator."""

    mechanism: Literal["postgresql"]


class MysqlAuthenticatorSettings(SqlAuthenticatorSettings):
    """Settings of a ``mysql`` authenticator."""

    mechanism: Literal["mysql"]


class PostgresqlSourceSettings(SqlSourceSettings):
    """Access rules in a table of PostgreSQL."""

    type: Literal["postgresql"]


class MysqlSourceSettings(SqlSourceSettings):
    """Access rules in a table of MySQL or MariaDB."""

    type: Literal["mysql"]


class _Server(Protocol):
    """Connections to a database, and its way of writing parameters."""

    def statement(self, query: str) -> str:
        """A query with the marks of parameters in place of placeholders."""
        ...

    async def fetch(self, statement: str, values: Sequence[str | None], most: int) -> list[Row]:
        """The first rows. Raises ``BackendUnavailable``."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


class SqlQuery:
    """One query about clients."""

    def __init__(self, server: _Server, query: str) -> None:
        self._server = server
        template = Template(query)
        self.templates: tuple[Template, ...] = (template,)
        self._names = template.names
        self._statement = server.statement(query)

    async def check(self) -> None:
        """Raise ``BackendUnavailable`` unless the server answers."""
        await self._server.fetch("SELECT 1", (), 1)

    async def close(self) -> None:
        """Close all connections."""
        await self._server.close()

    async def row(self, facts: Facts) -> Row | None:
        """The row of a client. Raises ``BackendUnavailable``."""
        rows = await self._fetched(facts, 1)
        return rows[0] if rows else None

    async def rows(self, facts: Mapping[str, str | None]) -> Sequence[Row]:
        """The rules of a client, one more than it may have where there are more. Raises ``BackendUnavailable``."""
        return await self._fetched(facts, MOST_ROWS + 1)

    async def _fetched(self, facts: Facts, most: int) -> list[Row]:
        values = [facts.get(name) for name in self._names]
        if any(value is not None and "\0" in value for value in values):
            return []  # no database holds such a name
        return await self._server.fetch(self._statement, values, most)


class _Connections:
    """Settings of connections to either server."""

    def __init__(self, settings: SqlSettings, timeout_s: float, guard: AddressGuard) -> None:
        self.settings = settings
        self.timeout_s = timeout_s
        self.servers = Servers(settings, guard)
        self._idle: list[Any] = []
        """Connections that are not in use; the requests are limited."""


# Classes of SQLSTATE that say nothing about the query: connection, login, database, resources, shutdown.
_AWAY_STATES: Final = ("08", "28", "3D", "53", "57P")


class Postgresql(_Connections):
    """Connections to PostgreSQL."""

    def statement(self, query: str) -> str:
        """Parameters as ``$1``, each a string: ``${clientid}::int`` reads one as a number."""
        numbers = iter(range(1, len(query)))
        return CLIENT_PLACEHOLDER.sub(lambda _: f"${next(numbers)}::text", query)

    async def fetch(self, statement: str, values: Sequence[str | None], most: int) -> list[Row]:
        """See ``_Server``."""
        if self.servers.has_new_secrets:
            await self.close()
        try:
            connection = self._taken() or await self._connected()
            is_done = False
            try:
                rows = await self._rows(connection, statement, values, most)
                is_done = True
            except asyncpg.PostgresError:  # the connection is as good as before, or closed
                is_done = True
                raise
            finally:
                if is_done:
                    self._idle.append(connection)
                else:
                    connection.terminate()  # else it is waited for
        except BackendUnavailable:
            raise
        except AddressDenied as error:
            raise Unreachable(str(error)) from None
        except Exception as error:  # noqa: BLE001 - whatever it is, there is no answer
            raise self._failure(error) from None
        return rows

    async def _rows(
        self,
        connection: asyncpg.Connection[asyncpg.Record],
        statement: str,
        values: Sequence[str | None],
        most: int,
    ) -> list[Row]:
        if most == 1:
            row = await connection.fetchrow(statement, *values)
            return [] if row is None else [dict(row)]
        async with connection.transaction(readonly=True):
            cursor = await connection.cursor(statement, *values)
            return [dict(row) for row in await cursor.fetch(most)]

    def _taken(self) -> asyncpg.Connection[asyncpg.Record] | None:
        """An open connection that is not in use."""
        while self._idle:
            connection: asyncpg.Connection[asyncpg.Record] = self._idle.pop()
            if not connection.is_closed():
                return connection
        return None

    async def _connected(self) -> asyncpg.Connection[asyncpg.Record]:
        """A connection of its own rather than of the library's pool, which asks the server to reset each one after use:
        queries about clients leave nothing behind."""
        settings = self.settings
        loop = GuardedLoop(asyncio.get_running_loop(), self.servers.guard)
        return await asyncpg.connect(
            loop=cast("asyncio.AbstractEventLoop", loop),
            host=self.servers.host,
            port=self.servers.port,
            user=settings.username,
            password=self.servers.password(),
            database=settings.database,
            ssl=self.servers.context if self.servers.context is not None else False,
            timeout=self.timeout_s,
            server_settings={"application_name": "sluice"},
        )

    async def close(self) -> None:
        """Close all connections that are not in use."""
        idle = self._idle
        self._idle = []
        for connection in idle:
            try:
                await connection.close(timeout=_CLOSE_S)
            except Exception:  # noqa: BLE001 - the server may be away
                connection.terminate()

    def _failure(self, error: Exception) -> BackendUnavailable:
        text = str(error).strip() or type(error).__name__
        state = getattr(error, "sqlstate", None) or ""
        broken = (
            OSError,
            asyncpg.InterfaceError,
            asyncpg.InternalClientError,
            asyncpg.PostgresConnectionError,
        )
        if state.startswith(_AWAY_STATES) or (not state and isinstance(error, broken)):
            return Unreachable(f"{self.settings.server}: {text}")
        return BackendUnavailable(f"{self.settings.server} says: {text}")


# Errors of MySQL's server about logins, databases and connections; others are about the query.
_MYSQL_AWAY: Final = (1040, 1042, 1043, 1044, 1045, 1049, 1053, 1129, 1130, 1203)
_MYSQL_CLIENT_ERRORS: Final = 2000
# A name has characters that the character set of the column does not have: no row has the name.
_UNCOMPARABLE: Final = 1267


class Mysql(_Connections):
    """Connections to MySQL or MariaDB."""

    def statement(self, query: str) -> str:
        """Parameters as NUL, which no query has."""
        return CLIENT_PLACEHOLDER.sub("\0", query)

    async def fetch(self, statement: str, values: Sequence[str | None], most: int) -> list[Row]:
        """See ``_Server``."""
        if self.servers.has_new_secrets:
            await self.close()
        try:
            is_used = bool(self._idle)
            connection = self._idle.pop() if is_used else await self._connected()
            try:
                rows = await self._rows(connection, statement, values, most)
            except (
                asyncmy.errors.OperationalError,
                asyncmy.errors.InterfaceError,
                OSError,
            ) as error:
                connection.close()
                if not is_used or not _is_broken(error):
                    raise
                await self.close()  # the server closed idle connections
                connection = await self._connected()
                rows = await self._rows(connection, statement, values, most)
        except BackendUnavailable:
            raise
        except AddressDenied as error:
            raise Unreachable(str(error)) from None
        except Exception as error:  # noqa: BLE001 - whatever it is, there is no answer
            if most == 1 and error.args and error.args[0] == _UNCOMPARABLE:
                return []
            raise self._failure(error) from None
        self._idle.append(connection)
        return rows

    async def _rows(
        self, connection: Any, statement: str, values: Sequence[str | None], most: int
    ) -> list[Row]:
        is_done = False
        try:
            async with connection.cursor(cursor=asyncmy.cursors.DictCursor) as cursor:
                await cursor.execute(_with_values(statement, values))
                rows = await cursor.fetchmany(most)
            is_done = True
            return list(rows)
        finally:
            if not is_done:
                connection.close()

    async def _connected(self) -> Any:
        settings = self.settings
        failure: Exception | None = None
        for address in await self.servers.addresses():
            try:
                return await asyncmy.connect(
                    host=address,
                    port=self.servers.port,
                    user=settings.username,
                    password=self.servers.password(),
                    database=settings.database,
                    ssl=self.servers.context,
                    autocommit=True,
                    charset="utf8mb4",
                    connect_timeout=max(1, round(self.timeout_s)),
                )
            except (asyncmy.errors.OperationalError, OSError) as error:
                failure = error
        assert failure is not None  # there is an address
        raise failure

    async def close(self) -> None:
        """Close all connections that are not in use."""
        idle = self._idle
        self._idle = []
        for connection in idle:
            with suppress(Exception):
                async with asyncio.timeout(_CLOSE_S):
                    await connection.ensure_closed()
            connection.close()

    def _failure(self, error: Exception) -> BackendUnavailable:
        text = str(error).strip() or type(error).__name__
        if _is_broken(error):
            return Unreachable(f"{self.settings.server}: {text}")
        return BackendUnavailable(f"{self.settings.server} says: {text}")


def _with_values(statement: str, values: Sequence[str | None]) -> str:
    """A statement with values as hexadecimal literals. The driver has no prepared statements; a literal of digits ends
    where it ends whatever the value, the character set and ``sql_mode`` are."""
    parts = statement.split("\0")
    literals = [
        "NULL" if value is None else f"_utf8mb4 X'{value.encode().hex()}'" for value in values
    ]
    return "".join(text for pair in zip(parts, [*literals, ""], strict=True) for text in pair)


def _is_broken(error: Exception) -> bool:
    number = error.args[0] if error.args else None
    if isinstance(error, (OSError, EOFError, TimeoutError)):
        return True
    return isinstance(number, int) and (number in _MYSQL_AWAY or number >= _MYSQL_CLIENT_ERRORS)


_SERVERS: Final = {"postgresql": Postgresql, "mysql": Mysql}


def _query(name: str, settings: Any, outside: Outside) -> SqlQuery:
    check_installed({"postgresql": "asyncpg", "mysql": "asyncmy"}[name], name)
    server = _SERVERS[name](settings, settings.timeout, outside.guard)
    return SqlQuery(cast("_Server", server), settings.query)


def sql_authenticator(settings: Any, outside: Outside) -> OutsideAuthenticator[Any]:
    """The authenticator ``postgresql`` or ``mysql``."""
    verifier = RowVerifier(settings, _query(settings.mechanism, settings, outside), outside)
    return OutsideAuthenticator(settings.mechanism, settings, verifier, outside)


def sql_source(settings: Any, outside: Outside, _max_answers: int) -> RowSource:
    """The source of rules ``postgresql`` or ``mysql``."""
    return RowSource(settings.type, settings, _query(settings.type, settings, outside), outside)
