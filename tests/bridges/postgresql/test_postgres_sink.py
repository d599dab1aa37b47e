"""Rows in a real PostgreSQL: batches, keys, types, tables that are made, and what is wrong said in a sentence."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from bridges.postgresql.connector import POSTGRESQL, PostgresConnector
from bridges.postgresql.settings import PostgresActionSettings, PostgresSettings
from bridges.resource.contract import Context, Sink
from bridges.resource.errors import (
    BadSettings,
    NeverAgain,
    ReconnectFirst,
    TargetMissing,
    TargetUnusable,
    TryAgain,
)
from broker.config.ssrf import AddressGuard, SsrfSettings
from broker.core.client import Client
from broker.core.message import Message
from broker.core.schema import FieldType
from tests.support.mqtt_server import on_loop
from tests.support.postgres_server import PASSWORD, Postgres

MESSAGE = Message("t", b"", 0, False, Client("c"), 0)
GIVEN = {
    "id": FieldType("long"),
    "temp": FieldType("double"),
    "tags": FieldType("array", item=FieldType("string")),
    "more": FieldType("struct"),
    "at": FieldType("timestamp"),
}


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with Postgres() as started:
        yield started


@pytest.fixture
def postgres(server: Postgres) -> Postgres:
    server.psql(
        "DROP SCHEMA IF EXISTS plant CASCADE; DROP SCHEMA public CASCADE; CREATE SCHEMA public"
    )
    return server


def context(columns: Mapping[str, FieldType] | None = None) -> Context:
    rules: Any = SimpleNamespace(columns_of_sink=lambda name: columns or {})
    services: Any = SimpleNamespace(contributors=[rules])
    return Context("postgresql:readings", services, AddressGuard(SsrfSettings()), 30.0)


def settings(postgres: Postgres, **changed: Any) -> PostgresSettings:
    return PostgresSettings.model_validate(
        {
            "server": f"127.0.0.1:{postgres.port}",
            "database": "sluice",
            "username": "sluice",
            "password": PASSWORD,
            **changed,
        }
    )


@asynccontextmanager
async def connected(postgres: Postgres, **changed: Any) -> AsyncIterator[PostgresConnector]:
    connector = POSTGRESQL.make(settings(postgres, **changed), context())
    assert isinstance(connector, PostgresConnector)
    try:
        await connector.open()
        yield connector
    finally:
        await connector.close()


async def opened(
    connector: PostgresConnector, given: Mapping[str, FieldType] | None = None, **action: Any
) -> Sink:
    sink = connector.sink(
        PostgresActionSettings.model_validate({"table": "readings", **action}), context(given)
    )
    await sink.open()
    return sink


async def send(sink: Sink, *rows: dict[str, Any]) -> list[str]:
    """The texts of what was refused, by row; empty for those that were written."""
    answers = await sink.send([sink.record(row, MESSAGE) for row in rows])
    if answers is None:
        return [""] * len(rows)
    assert all(answer is None or isinstance(answer, NeverAgain) for answer in answers)
    return ["" if answer is None else str(answer) for answer in answers]


@on_loop
async def test_rows_are_inserted_by_the_names_of_their_members(postgres: Postgres) -> None:
    postgres.psql("CREATE TABLE readings (id int, temp float8, note text DEFAULT 'none')")
    async with connected(postgres) as connector:
        sink = await opened(connector)
        assert await send(sink, {"id": 1, "temp": 20.5}, {"id": 2, "temp": None, "note": "x"}) == [
            "",
            "",
        ]
    assert postgres.psql("SELECT * FROM readings ORDER BY id") == "1|20.5|none\n2||x"


@on_loop
async def test_templates_say_what_goes_where(postgres: Postgres) -> None:
    postgres.psql(
        'CREATE SCHEMA plant; CREATE TABLE plant.readings ("where" text, temp float8, whole jsonb)'
    )
    columns = {"where": "${site}/${line}", "temp": "${values.temp}", "whole": "${.}"}
    async with connected(postgres) as connector:
        sink = await opened(connector, table="plant.readings", columns=columns)
        sent = await send(
            sink, {"site": "a", "line": 7, "values": {"temp": 3}}, {"site": "a", "line": 8}
        )
        assert sent == ["", ""]
    assert (
        postgres.psql("SELECT \"where\", temp, whole->>'line' FROM plant.readings")
        == "a/7|3|7\na/8||8"
    )


@on_loop
async def test_a_row_takes_the_place_of_the_one_with_its_key(postgres: Postgres) -> None:
    postgres.psql(
        "CREATE TABLE readings (id int PRIMARY KEY, temp float8, first_seen timestamptz DEFAULT now())"
    )
    async with connected(postgres) as connector:
        sink = await opened(connector, mode="upsert")
        await send(sink, *({"id": number % 3, "temp": number} for number in range(9)))
        await send(sink, {"id": 1, "temp": -1})
    assert postgres.psql("SELECT id, temp FROM readings ORDER BY id") == "0|6\n1|-1\n2|8"


@on_loop
async def test_bad_rows_of_a_batch_are_found_and_the_others_written_in_order(
    postgres: Postgres,
) -> None:
    postgres.psql(
        "CREATE TABLE readings (n serial, id int PRIMARY KEY, temp float8 CHECK (temp < 100), note varchar(3))"
    )
    rows: list[dict[str, Any]] = [
        {"id": number, "temp": 1.0, "note": "abc"} for number in range(40)
    ]
    rows[3]["temp"] = "warm"
    rows[11]["temp"] = 100
    rows[12]["note"] = "abcd"
    rows[20]["id"] = 2**40
    rows[30]["unheard_of"] = 1
    rows[35]["id"] = 34
    rows[36]["note"] = "a\0b"
    async with connected(postgres) as connector:
        refused = await send(await opened(connector), *rows)
    assert {number for number, text in enumerate(refused) if text} == {3, 11, 12, 20, 30, 35, 36}
    assert "column 'temp' is double precision" in refused[3]
    assert "check constraint" in refused[11]
    assert "no column 'unheard_of'" in refused[30]
    assert "duplicate key" in refused[35]
    written = [str(number) for number, text in enumerate(refused) if not text]
    assert postgres.psql("SELECT id FROM readings ORDER BY n").split("\n") == written


@on_loop
async def test_members_without_a_column_may_be_left_out(postgres: Postgres) -> None:
    postgres.psql("CREATE TABLE readings (id int)")
    async with connected(postgres) as connector:
        sink = await opened(connector, unknown_columns="ignore")
        assert await send(sink, {"id": 1, "more": {}}, {"more": 1}) == [
            "",
            "the row has nothing for the table readings",
        ]
    assert postgres.psql("SELECT * FROM readings") == "1"


@on_loop
async def test_a_table_is_made_with_what_rules_give(postgres: Postgres) -> None:
    async with connected(postgres) as connector:
        sink = await opened(connector, GIVEN, create_table=True, mode="upsert", key=["id"])
        row = {"id": 1, "temp": 2, "tags": ["a"], "more": {"x": 1}, "at": 1_700_000_000_000}
        assert await send(sink, row) == [""]
    kinds = "SELECT string_agg(data_type, ' ' ORDER BY ordinal_position) FROM information_schema.columns"
    shown = "bigint double precision ARRAY jsonb timestamp with time zone"
    assert postgres.psql(f"{kinds} WHERE table_name = 'readings'") == shown


@on_loop
async def test_types_of_the_database_are_cast_by_it(postgres: Postgres) -> None:
    postgres.psql(
        "CREATE TYPE mood AS ENUM ('calm', 'hot'); CREATE TABLE readings (m mood, a inet, i interval)"
    )
    async with connected(postgres) as connector:
        sink = await opened(connector)
        refused = await send(sink, {"m": "hot", "a": "10.0.0.1", "i": "90 s"}, {"m": "cold"})
    assert refused[0] == ""
    assert "invalid input value for enum mood" in refused[1]
    assert postgres.psql("SELECT * FROM readings") == "hot|10.0.0.1|00:01:30"


@pytest.mark.parametrize(
    ("prepare", "action", "error", "says"),
    [
        ("SELECT 1", {}, TargetMissing, "the table readings does not exist"),
        (
            "SELECT 1",
            {"create_table": True},
            TargetUnusable,
            "no rule sends rows to this action yet",
        ),
        (
            "CREATE TABLE readings (id int)",
            {"mode": "upsert"},
            TargetUnusable,
            "has no primary key",
        ),
        (
            "CREATE TABLE readings (id int)",
            {"columns": {"nix": "x"}},
            TargetUnusable,
            "has no column 'nix'",
        ),
    ],
    ids=["no table", "nothing to make it of", "no key", "no column"],
)
@on_loop
async def test_what_is_wrong_with_a_table_is_said(
    postgres: Postgres, prepare: str, action: dict[str, Any], error: type[Exception], says: str
) -> None:
    postgres.psql(prepare)
    async with connected(postgres) as connector:
        with pytest.raises(error, match=says):
            await opened(connector, **action)


@on_loop
async def test_rights_that_are_missing_are_named(postgres: Postgres) -> None:
    postgres.psql("CREATE TABLE readings (id int PRIMARY KEY); DROP ROLE IF EXISTS guest")
    postgres.psql("CREATE ROLE guest LOGIN PASSWORD 'guest'")
    postgres.psql("GRANT USAGE ON SCHEMA public TO guest; GRANT INSERT ON readings TO guest")
    async with connected(postgres, username="guest", password="guest") as connector:
        await opened(connector)
        with pytest.raises(TargetUnusable, match="may not UPDATE on the table readings"):
            await opened(connector, mode="upsert")
    postgres.psql("DROP OWNED BY guest; DROP ROLE guest")


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"password": "wrong"}, "password authentication failed"),
        ({"username": "nobody"}, "password authentication failed"),
        ({"database": "nowhere"}, 'database "nowhere" does not exist'),
    ],
    ids=["password", "user", "database"],
)
@on_loop
async def test_a_login_that_is_refused_is_for_people_to_mend(
    postgres: Postgres, changed: dict[str, Any], says: str
) -> None:
    with pytest.raises(BadSettings, match=says):
        async with connected(postgres, **changed):
            pass


@on_loop
async def test_a_server_that_dies_is_worth_connecting_anew(postgres: Postgres) -> None:
    postgres.psql("CREATE TABLE readings (id int)")
    async with connected(postgres) as connector:
        sink = await opened(connector)
        await send(sink, {"id": 1})
        postgres.process.kill()
        with pytest.raises(ReconnectFirst):
            await send(sink, {"id": 2})
        with pytest.raises(ReconnectFirst):
            await connector.open()
        postgres.process.start()
        await connector.close()
        await connector.open()
        assert await send(sink, {"id": 2}) == [""]
    assert postgres.psql("SELECT id FROM readings ORDER BY id") == "1\n2"


@on_loop
async def test_a_table_that_goes_away_and_comes_back_changed(postgres: Postgres) -> None:
    postgres.psql("CREATE TABLE readings (id int)")
    async with connected(postgres) as connector:
        sink = await opened(connector)
        await send(sink, {"id": 1})
        postgres.psql("DROP TABLE readings")
        with pytest.raises(TargetMissing):
            await send(sink, {"id": 2})
        postgres.psql("CREATE TABLE readings (id int, temp float8)")
        assert await send(sink, {"id": 2, "temp": 1}) == [""]


@on_loop
async def test_a_database_that_only_reads_is_tried_again(postgres: Postgres) -> None:
    postgres.psql("CREATE TABLE readings (id int)")
    async with connected(postgres) as connector:
        sink = await opened(connector)
        postgres.psql("ALTER DATABASE sluice SET default_transaction_read_only = on")
        await connector.close()
        await connector.open()
        try:
            with pytest.raises(TryAgain, match="read-only"):
                await send(sink, {"id": 1})
        finally:
            postgres.psql("BEGIN READ WRITE; ALTER DATABASE sluice RESET ALL; COMMIT")
        await connector.close()
        await connector.open()
        assert await send(sink, {"id": 1}) == [""]


@on_loop
async def test_the_steps_of_a_test_say_what_they_found(postgres: Postgres) -> None:
    connector = POSTGRESQL.make(settings(postgres), context())
    found = {step.name: await step.run() for step in connector.probe()}
    await connector.close()
    assert list(found) == ["resolve", "connect", "authenticate", "metadata"]
    assert found["metadata"].startswith("1")


@pytest.mark.parametrize(
    ("action", "says"),
    [
        ({"key": ["id"]}, "no effect with mode insert"),
        ({"mode": "upsert", "key": ["id"], "columns": {"a": "x"}}, "has no template in columns"),
        ({"mode": "upsert", "create_table": True}, "needs key"),
        ({"table": "a.b.c"}, "table"),
    ],
    ids=["key without upsert", "key without template", "made without key", "three names"],
)
def test_settings_that_make_no_sense_are_refused(action: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        PostgresActionSettings.model_validate({"table": "readings", **action})
