"""The connector type ``postgresql``: a pool of connections, and the rows of actions written in batches.

A batch is one transaction: all of it is there, or none. What the server refuses in a batch is found by halves, so one
bad row among a thousand costs some twenty statements and not the other rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from bridges.postgresql.settings import PostgresActionSettings, PostgresSettings
from bridges.postgresql.table import (
    COLUMNS,
    RIGHTS,
    Table,
    Values,
    creation,
    described,
    quoted_table,
)
from bridges.resource.contract import (
    ALL_DONE,
    Answers,
    Connector,
    ConnectorType,
    Context,
    ProbeStep,
    Sink,
)
from bridges.resource.errors import (
    BadSettings,
    BridgeError,
    NeverAgain,
    ReconnectFirst,
    TargetMissing,
    TargetUnusable,
    TryAgain,
    understood,
)
from bridges.resource.probe import connect_step, resolve_step
from bridges.resource.settings.tls import client_context
from bridges.resource.templates import value_template
from broker.config.ssrf import GuardedLoop
from broker.core.action import Row
from broker.core.message import Message
from broker.core.schema import FieldType
from rules.sql.values import UNDEFINED

if TYPE_CHECKING:
    import asyncpg

_CLOSE_S: Final = 3.0


class PostgresConnector(Connector):
    """A pool of connections to one database."""

    def __init__(self, settings: PostgresSettings, context: Context) -> None:
        self._settings = settings
        self._context = context
        self._pool: asyncpg.Pool[asyncpg.Record] | None = None

    async def open(self) -> None:
        """Connect; more connections are made as they are needed."""
        import asyncpg

        settings = self._settings
        host, port = settings.address
        context = await asyncio.to_thread(client_context, settings.ssl)
        password = settings.password.reveal() if settings.password is not None else None
        try:
            self._pool = await asyncpg.create_pool(
                loop=cast(
                    "asyncio.AbstractEventLoop",
                    GuardedLoop(asyncio.get_running_loop(), self._context.guard),
                ),
                host=host,
                port=port,
                user=settings.username,
                password=password,
                database=settings.database,
                ssl=context if context is not None else False,
                min_size=1,
                max_size=settings.pool_size,
                command_timeout=self._context.request_timeout_s,
                server_settings={"application_name": f"sluice {self._context.name}"},
            )
        except Exception as error:
            raise meant(error, settings) from error

    async def close(self) -> None:
        """Close every connection; those that do not end in time are cut."""
        pool = self._pool
        self._pool = None
        if pool is None:
            return
        try:
            async with asyncio.timeout(_CLOSE_S):
                await pool.close()
        except Exception:  # noqa: BLE001 - the server may be gone
            pool.terminate()

    async def check(self) -> None:
        """Ask the server for a value; raises an error if it does not answer."""
        await self.run(lambda connection: connection.fetchval("SELECT 1"))

    def probe(self) -> Sequence[ProbeStep]:
        """Resolve, connect, authenticate, metadata."""
        host, port = self._settings.address

        async def authenticate() -> str:
            await self.open()
            return f"{self._settings.username} may use the database {self._settings.database}"

        async def metadata() -> str:
            return str(
                await self.run(lambda connection: connection.fetchval("SHOW server_version"))
            )

        return [
            resolve_step(host, port, self._context.guard),
            connect_step(host, port, self._context.guard),
            ProbeStep("authenticate", authenticate),
            ProbeStep("metadata", metadata),
        ]

    def sink(self, settings: PostgresActionSettings, context: Context) -> Sink:
        """Rows of an action."""
        return PostgresSink(self, settings, context)

    async def run(self, work: Callable[[Any], Any]) -> Any:
        """Do something with a connection; errors are those of bridges, but those that are about rows."""
        if self._pool is None:
            raise ReconnectFirst("not connected")
        try:
            async with self._pool.acquire() as connection:
                return await work(connection)
        except BridgeError:
            raise
        except Exception as error:
            if refuses_rows(error):
                raise
            raise meant(error, self._settings) from error


class PostgresSink(Sink):
    """The rows of one action, in one table."""

    def __init__(
        self, connector: PostgresConnector, settings: PostgresActionSettings, context: Context
    ) -> None:
        self._connector = connector
        self._settings = settings
        self._context = context
        self._templates = {name: value_template(text) for name, text in settings.columns.items()}
        self._table: Table | None = None

    async def open(self) -> None:
        """Ask what columns the table has; create it where the settings say so."""
        table = quoted_table(self._settings.table)
        rows = await self._connector.run(lambda connection: connection.fetch(COLUMNS, table))
        if not rows and self._settings.create_table:
            statement = creation(self._settings, self._columns_of_rules())
            await self._connector.run(lambda connection: connection.execute(statement))
            rows = await self._connector.run(lambda connection: connection.fetch(COLUMNS, table))
        if not rows:
            raise TargetMissing(
                f"the table {self._settings.table} does not exist; create it, or set create_table"
            )
        self._table = described(self._settings, rows)
        await self.check()

    async def check(self) -> None:
        """Raise an error unless the table exists and may be written to."""
        table = quoted_table(self._settings.table)
        wanted = ("INSERT",) if self._settings.mode == "insert" else ("INSERT", "UPDATE", "SELECT")
        for right in wanted:
            is_granted = await self._connector.run(partial(_has_right, table=table, right=right))
            if is_granted is None:
                self._table = None
                raise TargetMissing(f"the table {self._settings.table} no longer exists")
            if not is_granted:
                raise TargetUnusable(
                    f"the user may not {right} on the table {self._settings.table}; grant it"
                )

    def record(self, row: Row, message: Message) -> Mapping[str, Any]:
        """The row's values by column."""
        if self._templates:
            return {name: value_of(row) for name, value_of in self._templates.items()}
        return {name: value for name, value in row.items() if value is not UNDEFINED}

    async def send(self, records: Sequence[Mapping[str, Any]]) -> Answers:
        """Write a batch in one transaction; rows that the server refuses are left out of it and answered."""
        if self._table is None:
            await self.open()
        table = self._table
        assert table is not None
        answers: list[BridgeError | None] = [None] * len(records)
        values: list[tuple[int, Values]] = []
        for at, record in enumerate(records):
            try:
                row = table.values(record)
                table.statement(row[0])
            except NeverAgain as error:
                answers[at] = error
            else:
                values.append((at, row))
        await self._write(table, values, answers)
        return answers if any(answers) else ALL_DONE

    async def _write(
        self, table: Table, values: list[tuple[int, Values]], answers: list[BridgeError | None]
    ) -> None:
        if not values:
            return
        try:
            await self._connector.run(lambda connection: _insert(connection, table, values))
        except (TargetMissing, TargetUnusable):
            self._table = None
            raise
        except BridgeError:
            raise
        except Exception as error:  # noqa: BLE001 - refuses_rows has said that it is about the rows
            if len(values) == 1:
                answers[values[0][0]] = NeverAgain(str(error))
                return
            half = len(values) // 2
            await self._write(table, values[:half], answers)
            await self._write(table, values[half:], answers)

    def _columns_of_rules(self) -> Mapping[str, FieldType]:
        columns: dict[str, FieldType] = {}
        for contributor in self._context.services.contributors:
            columns.update(contributor.columns_of_sink(self._context.name))
        return columns


async def _has_right(connection: Any, *, table: str, right: str) -> bool | None:
    """None when the table is not there."""
    return cast("bool | None", await connection.fetchval(RIGHTS, table, right))


async def _insert(connection: Any, table: Table, values: Sequence[tuple[int, Values]]) -> None:
    """Rows with the same columns that follow each other go together."""
    async with connection.transaction():
        begin = 0
        for end in range(1, len(values) + 1):
            names = values[begin][1][0]
            if end == len(values) or values[end][1][0] != names:
                rows = [row for _, (_, row) in values[begin:end]]
                await connection.executemany(table.statement(names), rows)
                begin = end


# Classes of SQLSTATE: data exceptions, and integrity that would be violated.
_ABOUT_ROWS: Final = ("22", "23")
# Logins, databases that are not there.
_BAD_SETTINGS: Final = ("28", "3D")
# Rights, keys that are not unique, columns that are not there.
_UNUSABLE: Final = ("42501", "42P10", "42703")
_MISSING: Final = ("42P01", "3F000")
# Conflicts, resources such as a full disk, locks, a statement that took too long, a server that only reads.
_TRY_AGAIN: Final = ("40", "53", "55", "57014", "25006")
_RECONNECT: Final = ("08", "57")


def refuses_rows(error: BaseException) -> bool:
    """True if an error is about values in rows, so that other rows may go through."""
    import asyncpg

    if isinstance(error, asyncpg.exceptions.DataError) and not isinstance(
        error, asyncpg.PostgresError
    ):
        return True  # values that the client cannot encode
    state = getattr(error, "sqlstate", None) or ""
    return state.startswith(_ABOUT_ROWS)


def meant(error: BaseException, settings: PostgresSettings) -> BridgeError:
    """Any other error as those of bridges."""
    import asyncpg

    if isinstance(error, BridgeError):
        return error
    text = str(error).strip() or type(error).__name__
    state = getattr(error, "sqlstate", None) or ""
    for begins, kind in (
        (_MISSING, TargetMissing),
        (_BAD_SETTINGS, BadSettings),
        (_UNUSABLE, TargetUnusable),
        (_TRY_AGAIN, TryAgain),
        (_RECONNECT, ReconnectFirst),
    ):
        if state.startswith(begins):
            return kind(f"{settings.server} says: {text}")
    # An InternalClientError is how asyncpg puts it when a connection breaks at the start of a transaction.
    if isinstance(
        error,
        (asyncpg.InterfaceError, asyncpg.PostgresConnectionError, asyncpg.InternalClientError),
    ):
        return ReconnectFirst(f"{settings.server}: {text}")
    if isinstance(error, OSError):
        return ReconnectFirst(f"{settings.server}: {(error.strerror or text).lower()}")
    return understood(error)


def _key_of(settings: PostgresActionSettings) -> Callable[[Row, Message], Hashable]:
    """Rows of one key are written in order; without a key those of one client."""
    if not settings.key:
        return lambda row, message: message.client.client_id
    parts = [value_template(settings.columns.get(name, f"${{{name}}}")) for name in settings.key]
    return lambda row, message: tuple(str(part(row)) for part in parts)


POSTGRESQL = ConnectorType(
    name="postgresql",
    title="PostgreSQL",
    summary="Writes rows to tables of PostgreSQL and what speaks like it, added or replaced by key, in batches.",
    connector=PostgresSettings,
    make=PostgresConnector,
    action=PostgresActionSettings,
    batch_size=1000,
    batch_time_s=0.02,
    lanes=4,
    key_of=_key_of,
    requires=("asyncpg",),
    extra="postgresql",
)
