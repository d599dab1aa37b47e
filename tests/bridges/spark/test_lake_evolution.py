"""Nested columns in real Delta and Iceberg tables, and what a change of the schema or the rule does to them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable

from bridges.spark.columns.column import Column
from bridges.spark.driver.audit import audit_spec
from bridges.spark.driver.batch import TableSpec, TableWriter
from bridges.spark.driver.replay import Replayed
from bridges.spark.driver.retype import check_retype, retype
from bridges.spark.tables.contract import Range
from bridges.spark.tables.formats import open_table
from bridges.spark.tasks.rule_text import RuleText
from broker.core.column_text import column_text
from broker.core.errors import Invalid
from pyspark_sluice.client import StreamClient
from schema_validation.serdes.avro import AvroSerde
from tests.bridges.spark.batches import dead_letters_of, records, rows_of, table_spec, tasks
from tests.bridges.spark.stream_server import TOKEN, StreamServer

Make = Callable[..., TableSpec]
POS = "struct<lat: double, `fix at`: timestamp, tags: array<struct<k: string, n: long>>>"
NESTED = [
    Column("pos", "pos", POS),
    Column("day", "day", "date"),
    Column("price", "price", "decimal(8, 2)"),
    Column("by_room", "by_room", "map<string, struct<t: double>>"),
]
ROW = {
    "pos": {"lat": 51.5, "fix at": "2026-01-02T03:04:05Z", "tags": [{"k": "a", "n": 1}, None]},
    "day": "2026-01-02",
    "price": "12.50",
    "by_room": {"attic": {"t": 21}},
}
READ = (
    {
        "lat": 51.5,
        "fix_at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "tags": [{"k": "a", "n": 1}, None],
    },
    date(2026, 1, 2),
    Decimal("12.50"),
    [("attic", {"t": 21.0})],
)


@pytest.fixture(params=["delta", "iceberg"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    return lambda *columns, **given: table_spec(tmp_path, request.param, columns, **given)


def with_columns(spec: TableSpec, *columns: Column) -> TableSpec:
    """The table after its schema or its rule changed."""
    return replace(spec, columns=columns)


def files_of(spec: TableSpec) -> list[str]:
    return [str(path) for path in Path(spec.place.path).rglob("*.parquet")]


def test_nested_values_times_and_decimals_are_columns_that_others_read(make: Make) -> None:
    spec = make(*NESTED)
    outcome = TableWriter(spec, "job").write(tasks(records(0, [ROW, {}, {**ROW, "day": 20455}])))
    assert (outcome.written, outcome.dead) == (3, 0)
    rows = rows_of(spec, "pos", "day", "price", "by_room")
    assert rows == [READ, (None, None, None, None), READ]
    again = TableWriter(spec, "next").table
    assert again.columns() == tuple(NESTED)
    if spec.format == "delta":
        table = DeltaTable(spec.place.path)
        assert table.to_pyarrow_table().column("pos").to_pylist()[0] == READ[0]
        assert str(table.schema().fields[-2].type) == 'PrimitiveType("decimal(8,2)")'
    else:
        iceberg = again._table
        assert str(iceberg.schema().find_type("pos.tags.element.n")) == "long"
        assert iceberg.scan(row_filter="pos.lat > 51").to_arrow().num_rows == 2
    found = duckdb.connect().sql(
        "SELECT pos.lat, pos.tags[1].n, price + 1, by_room['attic'].t, day "
        f"FROM read_parquet({files_of(spec)}) WHERE day IS NOT NULL"
    )
    assert found is not None
    assert found.fetchall() == [(51.5, 1, Decimal("13.50"), 21.0, date(2026, 1, 2))] * 2


def test_a_member_that_the_schema_does_not_name_is_added_as_a_column_would_be(make: Make) -> None:
    spec = make(
        Column("pos", "pos", "struct<lat: double>"), Column("l", "l", "array<struct<a: long>>")
    )
    writer = TableWriter(spec, "job")
    writer.write(tasks(records(0, [{"pos": {"lat": 1}, "l": [{"a": 1}]}])))
    parts = (
        records(1, [{"pos": {"lat": 2, "alt": 3}}, {"pos": {"lat": 2, "alt": None, "raw": [1]}}]),
        records(
            3,
            [
                {"pos": {"lat": 4, "fix": "gps"}, "l": [{"a": 1, "b": True}]},
                {"pos": {"alt": "high"}},
            ],
        ),
    )
    outcome = writer.write(tasks(*parts))
    assert (outcome.written, outcome.dead) == (3, 1)
    assert {column.name: column.type for column in writer.table.columns()} == {
        "pos": "struct<lat: double, alt: double, raw: json, fix: string>",
        "l": "array<struct<a: long, b: boolean>>",
    }
    assert rows_of(spec, "pos") == [
        ({"lat": 1.0, "alt": None, "raw": None, "fix": None},),
        ({"lat": 2.0, "alt": 3.0, "raw": None, "fix": None},),
        ({"lat": 2.0, "alt": None, "raw": "[1]", "fix": None},),
        ({"lat": 4.0, "alt": None, "raw": None, "fix": "gps"},),
    ]
    assert dead_letters_of(spec, "_offset", "_error") == [
        (4, "column 'pos.alt' takes a number, the row has the text \"high\"")
    ]
    assert writer.held == []


def test_members_and_columns_beyond_what_a_table_takes_are_dead_letters(make: Make) -> None:
    spec = make(Column("pos", "pos", "struct<lat: double>"))
    wide = {"pos": {f"m{n}": n for n in range(2100)}}
    outcome = TableWriter(spec, "job").write(
        tasks(records(0, [wide, {"pos": {"lat": 1}}, {"x": 1}]))
    )
    assert (outcome.written, outcome.dead) == (1, 2)
    assert [error for _, error in dead_letters_of(spec, "_offset", "_error")] == [
        (
            "column 'pos.m1999' is not in the table and cannot be added (a table has at most 2000 columns, and structs "
            "inside maps only the members of the schema), the row has the number 1999"
        ),
        (
            "column 'x' is not in the table and cannot be added (a table has at most 2000 columns, and structs inside "
            "maps only the members of the schema), the row has the number 1"
        ),
    ]


def test_what_a_schema_adds_is_added_in_place_and_a_batch_that_comes_again_adds_no_row(
    make: Make,
) -> None:
    before = make(
        Column("pos", "pos", "struct<lat: double>"), Column("price", "price", "decimal(4, 2)")
    )
    first = tasks(records(0, [{"pos": {"lat": 1}, "price": "9.50"}] * 3))
    old = TableWriter(before, "old")
    old.write(first)
    grown = with_columns(
        before,
        Column("pos", "pos", "struct<lat: double, fix: struct<at: timestamp, sats: array<long>>>"),
        Column("price", "price", "decimal(4, 2)"),
        Column("site", "site", "string"),
    )
    writer = TableWriter(grown, "new")
    assert writer.write(first).written == 0
    second = records(3, [{"pos": {"fix": {"at": 0, "sats": [1]}}, "site": "x"}])
    old.write(tasks(second))  # a job that has not heard of the change yet
    assert writer.write(tasks(second, records(4, [{"price": "1.00"}]))).written == 1
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    assert rows_of(grown, "_offset", "pos", "site", "price") == [
        *((n, {"lat": 1.0, "fix": None}, None, Decimal("9.50")) for n in range(3)),
        (3, {"lat": None, "fix": {"at": epoch, "sats": [1]}}, "x", None),
        (4, None, None, Decimal("1.00")),
    ]
    assert writer.held == []
    assert next(one.columns for one in writer.table.schemas(5)) == writer.table.columns()


def test_more_digits_and_members_in_maps_are_given_in_place_where_the_format_can(
    make: Make,
) -> None:
    before = make(
        Column("price", "price", "decimal(4, 2)"), Column("m", "m", "map<string, struct<a: long>>")
    )
    TableWriter(before, "old").write(tasks(records(0, [{"price": "99.50", "m": {"k": {"a": 1}}}])))
    wider = (
        Column("price", "price", "decimal(8, 2)"),
        Column("m", "m", "map<string, struct<a: long, b: long>>"),
    )
    spec = with_columns(before, *wider)
    writer = TableWriter(spec, "new")
    batch = tasks(records(1, [{"price": "100.50", "m": {"k": {"b": 2}}}]))
    if spec.format == "iceberg":
        assert writer.held == []
        assert writer.write(batch).written == 1
    else:
        assert [(one.column, one.wanted) for one in writer.held] == [
            ("price", wider[0].type),
            ("m", wider[1].type),
        ]
        assert (writer.write(batch).written, dead_letters_of(spec, "_offset")) == (0, [(1,)])
        retype(writer, "price", "decimal(8, 2)")
        retype(writer, "m", wider[1].type)
        assert (writer.held, dead_letters_of(spec, "_offset")) == ([], [])
    assert rows_of(spec, "_offset", "price", "m") == [
        (0, Decimal("99.50"), [("k", {"a": 1, "b": None})]),
        (1, Decimal("100.50"), [("k", {"a": None, "b": 2})]),
    ]


def test_another_type_is_held_until_it_is_approved_and_no_row_is_lost_meanwhile(
    make: Make, server: StreamServer
) -> None:
    server.make("hot")
    before = make(Column("n", "n", "long"), Column("pos", "pos", "json"))
    old: list[bytes | dict[str, Any]] = [
        {"n": 1, "pos": {"lat": 1, "x": {}}},
        {"n": 2, "pos": None},
    ]
    TableWriter(before, "old").write(tasks(records(0, old)))
    wanted = (Column("n", "n", "double"), Column("pos", "pos", "struct<lat: double, lon: double>"))
    writer = TableWriter(with_columns(before, *wanted), "new")
    assert [one.as_dict("readings")["effect"] for one in writer.held] == [
        (
            "column 'n' is long and would be double, which cannot be done in place; until then it is filled as it is. "
            "Try: sluice lake tables retype readings n double, which converts all rows and dead letters again."
        ),
        (
            "column 'pos' is json and would be struct<lat: double, lon: double>, which cannot be done in place; until "
            "then it is filled as it is. Try: sluice lake tables retype readings pos "
            "'struct<lat: double, lon: double>', which converts all rows and dead letters again."
        ),
    ]
    new: list[bytes | dict[str, Any]] = [{"n": 2.5, "pos": {"lon": 2}}, {"n": 3}]
    outcome = writer.write(tasks(records(2, new)))
    assert (outcome.written, outcome.dead) == (1, 1)
    report = retype(writer, "n", "double")
    assert (report.rows_after, report.dead_letters_after) == (4, 0)
    report = retype(writer, "pos", wanted[1].type)
    assert (report.rows_after, report.dead_letters_after, writer.held) == (4, 0, [])
    assert rows_of(before, "_offset", "n", "pos") == [
        (0, 1.0, {"lat": 1.0, "lon": None, "x": "{}"}),
        (1, 2.0, None),
        (2, 2.5, {"lat": None, "lon": 2.0, "x": None}),
        (3, 3.0, None),
    ]
    server.append("hot", [*old, *new])
    where = StreamClient(server.url, TOKEN, "hot", deadline_s=30).positions()
    api = {
        "name": "readings",
        "stream": "hot",
        "format": before.format,
        "path": before.place.path,
        "columns": [],
    }
    shard = audit_spec(api, replace(where, epoch=before.binding.epoch)).shards[0]
    assert (shard.rows, shard.dead_letters, shard.missing, shard.doubled) == (4, 0, 0, 0)


def test_decimals_of_avro_are_decimals_and_a_column_of_bytes_is_held_until_it_is_approved(
    make: Make,
) -> None:
    price = {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}
    total = {
        "type": "fixed",
        "name": "t",
        "size": 16,
        "logicalType": "decimal",
        "precision": 38,
        "scale": 9,
    }
    fields = [{"name": "price", "type": ["null", price]}, {"name": "total", "type": total}]
    avro = AvroSerde(json.dumps({"type": "record", "name": "r", "fields": fields}))
    rows = [avro.decode(avro.encode(one)) for one in (
        {"price": "12.50", "total": "-12345678901234567890.000000001"},
        {"price": -0.01, "total": 1},
        {"price": None, "total": 0},
    )]  # fmt: skip
    expected = [
        (Decimal("12.50"), Decimal("-12345678901234567890.000000001")),
        (Decimal("-0.01"), Decimal(1)),
        (None, Decimal(0)),
    ]
    before = make(Column("price", "price", "binary"), Column("total", "total", "binary"))
    assert TableWriter(before, "old").write(tasks(records(0, rows))).dead == 0
    wanted = [Column(name, name, str(kind)) for name, kind in (
        (name, column_text(field)) for name, field in avro.field_type().fields.items()
    )]  # fmt: skip
    spec = with_columns(before, *wanted)
    writer = TableWriter(spec, "new")
    held = [("price", "binary", "decimal(8, 2)"), ("total", "binary", "decimal(38, 9)")]
    assert [(one.column, one.type, one.wanted) for one in writer.held] == held
    assert writer.write(tasks(records(3, rows))).dead == 0
    for column, _, kind in held:
        report = retype(writer, column, kind)
        assert (report.rows_after, report.dead_letters_after) == (6, 0)
    assert writer.held == []
    assert writer.write(tasks(records(6, rows))).dead == 0
    assert rows_of(spec, "price", "total") == expected * 3


def test_a_death_while_members_are_added_leaves_a_table_that_the_next_job_finishes(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = make(Column("pos", "pos", "struct<lat: double>"))
    TableWriter(before, "old").write(tasks(records(0, [{"pos": {"lat": 1}}])))
    after = with_columns(before, Column("pos", "pos", "struct<lat: double, lon: double>"))

    class Died(BaseException):
        pass

    def die(*_: object, **__: object) -> None:
        raise Died

    with monkeypatch.context() as patched:
        if before.format == "delta":
            patched.setattr("deltalake.table.TableAlterer.set_column_metadata", die)
        else:
            patched.setattr("pyiceberg.table.update.schema.UpdateSchema.update_column", die)
        with pytest.raises(Died):
            TableWriter(after, "dies")
    TableWriter(before, "one that knows the old schema").write(
        tasks(records(1, [{"pos": {"lat": 2}}]))
    )
    TableWriter(after, "next").write(tasks(records(2, [{"pos": {"lat": 3, "lon": 3}}])))
    assert rows_of(after, "pos") == [
        ({"lat": float(n + 1), "lon": 3.0 if n == 2 else None},) for n in range(3)
    ]


def test_small_files_of_before_and_after_are_joined_and_a_range_is_replaced(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridges.spark.tables.contract.MANY_SMALL_FILES", 8)
    before = make(
        Column("pos", "pos", "struct<lat: double>"), Column("l", "l", "array<struct<a: long>>")
    )
    old = TableWriter(before, "old")
    for n in range(5):
        old.write(tasks(records(n, [{"pos": {"lat": n}, "l": [{"a": n}]}])))
    after = with_columns(
        before,
        Column("pos", "pos", "struct<lat: double, fix: struct<at: date>>"),
        Column("l", "l", "array<struct<a: long, b: decimal(4, 1)>>"),
    )
    writer = TableWriter(after, "new")
    for n in range(5, 10):
        writer.write(
            tasks(records(n, [{"pos": {"lat": n, "fix": {"at": n}}, "l": [{"b": "1.5"}]}]))
        )
    count = 10
    table = open_table(after.format, after.place, after.binding)
    assert table is not None
    assert (table.tidy(), table.rows(), len(table.files())) == (True, count, 1)
    again = records(3, [{"pos": {"lat": -3, "fix": {"at": 0}}}, {"pos": {"lat": "x"}}])
    report = Replayed(after).run([Range(0, 3, 5)], lambda _: tasks(again))
    assert (report.rows_after, report.dead_letters_after) == (1, 1)
    rows = rows_of(after, "_offset", "pos", "l")
    assert (len(rows), rows[3]) == (
        count - 1,
        (3, {"lat": -3.0, "fix": {"at": date(1970, 1, 1)}}, None),
    )
    assert rows[0] == (0, {"lat": 0.0, "fix": None}, [{"a": 0, "b": None}])
    assert rows[-1][2] == [{"a": None, "b": Decimal("1.5")}]
    assert open_table(after.format, after.place, after.binding).newest(2).num_rows == 2  # type: ignore[union-attr]


def test_the_rows_of_a_rule_are_converted_by_the_type_that_it_gives_now(make: Make) -> None:
    sql = 'SELECT payload.pos AS pos FROM "plant/#"'
    before = replace(
        make(Column("pos", "pos", "json")), kind="topics", rule=RuleText("r", sql, "node-1")
    )
    payloads: list[bytes | dict[str, Any]] = [
        {"pos": {"lat": 1}},
        b"?",
        {"pos": {"lat": 2, "lon": 3}},
    ]
    TableWriter(before, "old").write(tasks(records(0, payloads)))
    after = with_columns(before, Column("pos", "pos", "struct<lat: double>"))
    writer = TableWriter(after, "new")
    check_retype(after, writer.table.columns(), "pos", "struct<lat: double>")
    with pytest.raises(Invalid, match="rule 'r' gives its types"):
        check_retype(after, writer.table.columns(), "pos", "string")
    report = retype(writer, "pos", "struct<lat: double>")
    assert (report.rows_after, report.dead_letters_after) == (2, 1)
    writer.write(tasks(records(3, [{"pos": {"lat": 4}}])))
    assert [pos["lat"] for (pos,) in rows_of(after, "pos")] == [1.0, 2.0, 4.0]
    odd = with_columns(before, Column("pos", "pos", "long"))
    with pytest.raises(Invalid, match="3 rows cannot become long"):
        retype(TableWriter(odd, "odd"), "pos", "long")
    assert len(rows_of(after, "pos")) == 3
