"""Audits of values: real tables, read and changed by other engines."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from bridges.spark.columns.store import place_of
from bridges.spark.columns.value_sums import (
    BLOCK,
    Sums,
    add_rows,
    blocks_of,
    packed,
    row_hashes,
    together,
    unpacked,
)
from bridges.spark.driver import audit
from bridges.spark.driver.api import LakeApi
from bridges.spark.driver.audit import AuditReport, audit_spec
from bridges.spark.driver.batch import TableSpec, TableWriter
from bridges.spark.driver.ledger import Ledger
from bridges.spark.driver.replay import Replayed
from bridges.spark.driver.retype import retype
from bridges.spark.driver.upkeep import remove_rows
from bridges.spark.driver.upserts import open_writer
from bridges.spark.tables import iceberg
from bridges.spark.tables.catalogs import catalog_of
from bridges.spark.tables.contract import Range
from bridges.spark.tables.formats import open_table
from pyspark_sluice.client import Positions, StreamClient
from tests.bridges.spark.batches import records, tasks
from tests.bridges.spark.stream_server import START_US, TOKEN, StreamServer

COLUMNS = [
    {"name": "b", "type": "boolean"},
    {"name": "i", "type": "integer"},
    {"name": "n", "type": "long"},
    {"name": "x", "type": "double"},
    {"name": "s", "type": "string"},
    {"name": "j", "type": "json"},
    {"name": "day", "type": "date"},
    {"name": "moment", "type": "timestamp"},
    {"name": "price", "type": "decimal(10, 2)"},
    {"name": "ns", "type": "array<long>"},
    {"name": "m", "type": "map<string, double>"},
    {"name": "o", "type": "struct<lat: double, name: string, tags: array<string>>"},
    {"name": "os", "type": "array<struct<k: string, v: double>>"},
]
FULL = {
    "b": True, "i": -7, "n": 1 << 60, "x": 21.5, "s": "zwölf €", "j": {"a": [1, None]}, "day": "2026-02-28",
    "moment": "2026-01-31T12:00:00.123456Z", "price": "1234567.89", "ns": [3, 1, 2], "m": {"z": 1.5, "a": None},
    "o": {"lat": 52.5, "name": "x" * 40, "tags": ["p", "", None]}, "os": [{"k": "a", "v": 1.0}, {"k": "b", "v": None}],
}  # fmt: skip
EMPTY = {"s": "", "x": -0.0, "ns": [], "m": {}, "o": {}, "os": []}
ROWS: list[Any] = [
    FULL,
    {},
    EMPTY,
    {**FULL, "x": 1e300, "ns": None, "o": None},
    b"bad",
    {"i": 0, "s": None},
]


class Lake:
    """A table of a stream of rows with columns of all types."""

    def __init__(
        self, server: StreamServer, directory: Path, table_format: str, **more: Any
    ) -> None:
        self.server = server
        server.make("hot", kind=more.pop("kind", "rows"))
        self.api_spec: dict[str, Any] = {
            "name": "readings", "stream": "hot", "format": table_format, "path": f"{directory}/readings",
            "columns": COLUMNS, **more,
        }  # fmt: skip
        server.tables["readings"] = self.api_spec

    @property
    def spec(self) -> TableSpec:
        return TableSpec.of_api(self.api_spec, self.positions())

    def positions(self) -> Positions:
        return StreamClient(self.server.url, TOKEN, "hot", deadline_s=30).positions()

    def fill(self, rows: list[Any]) -> None:
        start = self.server.streams["hot"].shards[0].next
        self.server.append("hot", rows)
        TableWriter(self.spec, "job").write(tasks(records(start, rows)))

    def audit(self, depth: Any = "values") -> AuditReport:
        api = LakeApi(self.server.url, TOKEN)
        return audit_spec(self.api_spec, self.positions(), depth=depth, api=api)

    def change(self, edit: Callable[[pa.Table], pa.Table]) -> None:
        """Write all rows again, as another engine would."""
        if self.api_spec["format"] == "delta":
            rows = DeltaTable(self.api_spec["path"]).to_pyarrow_table()
            write_deltalake(self.api_spec["path"], edit(rows), mode="overwrite")
        else:
            table = catalog_of(place_of(self.api_spec)).load_table(
                iceberg._identifier(place_of(self.api_spec))
            )
            table.overwrite(edit(table.scan().to_arrow()))


@pytest.fixture(params=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, server: StreamServer, tmp_path: Path) -> Lake:
    return Lake(server, tmp_path, request.param)


def by_duckdb(query: str) -> Callable[[pa.Table], pa.Table]:
    """An edit of rows by DuckDB, whose types come back as it has them."""

    def edit(rows: pa.Table) -> pa.Table:
        with duckdb.connect() as connection:
            connection.execute("SET timezone = 'UTC'")
            connection.register("rows", rows)
            return connection.sql(query).to_arrow_table().cast(rows.schema)

    return edit


def test_values_of_all_types_are_as_they_were_written_whoever_wrote_the_files(lake: Lake) -> None:
    lake.fill(ROWS)
    lake.fill([FULL, *ROWS])
    report = lake.audit()
    assert (report.problems, report.shards[0].compared, report.shards[0].rows) == ([], 11, 11)
    lake.change(lambda rows: rows)
    lake.change(by_duckdb("SELECT * FROM rows ORDER BY _offset DESC"))
    report = lake.audit()
    assert (report.problems, report.shards[0].compared) == ([], 11)
    table = open_table(lake.spec.format, lake.spec.place, lake.spec.binding)
    assert table is not None
    table.compact()
    assert lake.audit().problems == []


def foreign(offsets: str, who: str, what: str) -> str:
    """The problem where a commit that is not of the lake job changed values."""
    return f"shard 0: rows of {offsets} have other values than were written: {who} not of the lake job, {what}"


def differs(offsets: str, what: str) -> str:
    """The problem of a deep audit."""
    return f"shard 0: {offsets} differs from the records that the stream gives now: the table has {what}"


def changed(column: str, value: str, where: str) -> str:
    """A query for rows with another value of a column in some of them."""
    return (
        f"SELECT * REPLACE (CASE WHEN {where} THEN {value} ELSE {column} END AS {column}) FROM rows"
    )


CHANGES = {
    "b": "NOT b", "i": "i + 1", "n": "n - 1", "x": "x + 1e-9", "s": "s || ' '", "j": "'{}'", "day": "day + 1",
    "moment": "moment + INTERVAL 1 MICROSECOND", "price": "price + 0.01", "ns": "[1, 3, 2]",
    "m": "map {'z': 1.5, 'a': 0.0}",
    "o": "struct_pack(lat := 52.5, name := o.name, tags := ['p', NULL, ''])", "os": "list_reverse(os)",
    "_topic": "'plant/8'", "_client_id": "NULL", "_published_at": "_published_at - INTERVAL 1 SECOND",
}  # fmt: skip


@pytest.mark.parametrize("column", CHANGES)
def test_a_changed_value_of_each_type_is_found(
    server: StreamServer, tmp_path: Path, column: str
) -> None:
    lake = Lake(server, tmp_path, "delta")
    lake.fill(ROWS)
    lake.change(by_duckdb(changed(column, CHANGES[column], "_offset = 0")))
    assert lake.audit("offsets").problems == []
    assert lake.audit().problems == [
        foreign("[0, 6)", "version 2 (write), which is", "changed the rows of record 0")
    ]


def test_a_foreign_update_is_named_with_its_version_and_rows(lake: Lake) -> None:
    for _ in range(3):
        lake.fill([{"i": n, "s": f"row {n}"} for n in range(20)])
    assert lake.audit().problems == []
    if lake.spec.format == "delta":
        DeltaTable(lake.spec.place.path).update(
            predicate="i < 3 AND _offset >= 20", updates={"s": "'mine'"}
        )
        who = "version 4 (update), which is"
    else:
        lake.change(by_duckdb(changed("s", "'mine'", "i < 3 AND _offset >= 20")))
        who = "versions 4 to 5 (delete, append), which are"
    lake.fill([{"i": 1}])
    problems = lake.audit().problems
    assert problems == [
        foreign("[20, 60)", who, "changed the rows of 6 records (20, 21, 22, 40, 41, ...)")
    ]
    again = [{"i": n % 20, "s": f"row {n % 20}"} for n in range(40)]
    Replayed(lake.spec).run([Range(0, 20, 60)], lambda _: tasks(records(20, again)))
    report = lake.audit()
    assert (report.problems, report.shards[0].compared) == ([], 61)


def test_a_change_whose_rows_of_before_are_gone_is_found_all_the_same(
    server: StreamServer, tmp_path: Path
) -> None:
    lake = Lake(server, tmp_path, "delta")
    lake.fill([{"i": n} for n in range(4)])
    table = DeltaTable(lake.spec.place.path)
    table.update(predicate="i = 2", updates={"i": "7"})
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert lake.audit().problems == [
        foreign(
            "[0, 4)",
            "version 2 (update), which is",
            "may have changed them, and the rows of before are gone",
        )
    ]


def test_columns_and_members_that_are_added_change_no_value(lake: Lake) -> None:
    lake.api_spec["columns"] = [
        {"name": "o", "type": "struct<a: double>"}, {"name": "price", "type": "decimal(6, 2)"},
        {"name": "os", "type": "array<struct<k: string>>"},
    ]  # fmt: skip
    lake.fill([{"o": {"a": 1.0}, "price": "1.25", "os": [{"k": "x"}]}])
    lake.fill(
        [{"o": {"a": 2.0, "more": "z"}, "fresh": 5, "os": [{"k": "x", "n": 1}], "price": "2.50"}]
    )
    lake.api_spec["columns"][1]["type"] = "decimal(12, 2)"
    TableWriter(lake.spec, "job")
    report = lake.audit()
    assert (report.problems, report.shards[0].compared) == ([], 2)


def test_a_retype_has_sums_of_what_it_made(lake: Lake) -> None:
    lake.api_spec["columns"] = [{"name": "i", "type": "long"}]
    lake.fill([{"i": 1}, {"i": 2.5}, {"i": 3}])
    lake.fill([{"i": 4}])
    retype(TableWriter(lake.spec, "job"), "i", "double")
    lake.api_spec["columns"] = [{"name": "i", "type": "double"}]
    lake.fill([{"i": 5.5}])
    Ledger(lake.spec.place, "readings").sync(lake.spec, 0.0)
    report = lake.audit()
    assert (report.problems, report.shards[0].compared, report.shards[0].rows) == ([], 5, 5)
    lake.change(by_duckdb(changed("i", "9.0", "_offset = 1")))
    [problem] = lake.audit().problems
    assert problem.startswith("shard 0: rows of [0, 4) have other values than were written")


def test_of_what_a_replay_left_the_blocks_beside_it_are_compared(lake: Lake) -> None:
    count = 2 * BLOCK + 100
    rows = [{"i": n} for n in range(count)]
    lake.fill(rows)
    Replayed(lake.spec).run([Range(0, 5, 7)], lambda _: tasks(records(5, rows[5:7])))
    report = lake.audit()
    assert (report.problems, report.shards[0].compared) == ([], count - BLOCK + 2)
    lake.change(by_duckdb(changed("i", "0", f"_offset IN (6, {BLOCK + 3})")))
    starts = [problem.partition(" have")[0] for problem in lake.audit().problems]
    assert starts == ["shard 0: rows of [5, 7)", f"shard 0: rows of [{BLOCK}, {2 * BLOCK})"]


def test_commits_from_before_there_were_sums_are_not_compared(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr("bridges.spark.driver.batch.packed", lambda *_: "")
        lake.fill([{"i": 1}, {"i": 2}])
    lake.fill([{"i": 3}])
    report = lake.audit()
    assert (report.problems, report.shards[0].compared, report.shards[0].rows) == ([], 1, 3)


def test_an_empty_text_that_a_delta_table_is_partitioned_by_is_null(
    server: StreamServer, tmp_path: Path
) -> None:
    lake = Lake(server, tmp_path, "delta", partition_by=["s", "day"])
    lake.fill([{"s": ""}, {"s": None}, {"s": "a", "day": "2026-01-31"}, {"s": "a/b c"}])
    report = lake.audit()
    assert (report.problems, report.shards[0].compared) == ([], 4)


def test_values_of_member_tables_are_compared(lake: Lake) -> None:
    lake.api_spec |= {"tables": "t_${i}", "max_tables": 9}
    rows: list[Any] = [{"i": n % 2, "x": n / 3} for n in range(9)]
    server = lake.server
    server.append("hot", rows)
    open_writer(lake.spec, "job").write(tasks(records(0, rows)))
    report = lake.audit()
    assert (report.problems, report.shards[0].compared) == ([], 9)
    member = Path(lake.api_spec["path"] + "__tables/t_1")
    if lake.spec.format == "delta":
        DeltaTable(member).update(predicate="_offset = 3", updates={"x": "7.0"})
        assert lake.audit().problems == [
            foreign(
                "[0, 9)", "table t_1: version 2 (update), which is", "changed the rows of record 3"
            )
        ]


RULE = 'SELECT payload.i * 2 AS i, payload.s AS s FROM "plant/#" WHERE payload.i > 1'
SEVERAL = 'FOREACH payload.items AS item DO item AS i FROM "plant/#"'


def ruled(server: StreamServer, directory: Path, table_format: str, sql: str) -> Lake:
    text = {"name": "hot", "sql": sql, "node": "node-1"}
    columns = [{"name": "i", "type": "long"}, {"name": "s", "type": "string"}]
    return Lake(
        server, directory, table_format, kind="topics", rule="hot", rule_text=text, columns=columns
    )


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_a_deep_audit_runs_the_rule_again(
    server: StreamServer, tmp_path: Path, table_format: str
) -> None:
    lake = ruled(server, tmp_path, table_format, RULE)
    lake.fill([{"i": n, "s": f"{n}"} for n in range(8)] + [b"bad"])
    report = lake.audit("deep")
    assert (report.problems, report.shards[0].compared) == ([], 6)
    lake.api_spec["rule_text"]["sql"] = RULE.replace("* 2", "* 3").replace("> 1", "> 2")
    assert lake.audit().problems == []
    assert lake.audit("deep").problems == [
        differs(
            "[0, 9)", "changed the rows of 5 records (3, 4, 5, 6, 7), added the rows of record 2"
        )
    ]
    lake.server.trim("hot", 4)
    assert lake.audit("deep").problems == [
        differs("[4, 9)", "changed the rows of 4 records (4, 5, 6, 7)")
    ]


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_rows_of_records_with_several_are_compared(
    server: StreamServer, tmp_path: Path, table_format: str
) -> None:
    lake = ruled(server, tmp_path, table_format, SEVERAL)
    lake.fill([{"items": [1, 2, 2]}, {"items": []}, {"items": [3, 4]}])
    report = lake.audit("deep")
    assert (report.problems, report.shards[0].compared) == ([], 5)
    lake.change(by_duckdb(changed("i", "1", "i = 2 AND _item = 1")))
    values, deep = lake.audit("deep").problems
    assert values.endswith("not of the lake job, changed the rows of record 0")
    assert deep == differs("[0, 3)", "changed the rows of record 0")


def test_a_deep_audit_finds_a_change_of_a_table_without_sums(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridges.spark.driver.batch.packed", lambda *_: "")
    lake.fill(ROWS)
    assert lake.audit("deep").problems == []
    lake.change(by_duckdb(changed("m", "map {'z': 1.5}", "_offset = 3")))
    assert lake.audit("values").problems == []
    assert lake.audit("deep").problems == [differs("[0, 6)", "changed the rows of record 3")]


def hashes(values: list[Any], kind: pa.DataType) -> list[int]:
    found: list[int] = row_hashes({"c": pa.array(values, kind)}, len(values)).tolist()
    return found


MAP = pa.map_(pa.string(), pa.int64())
STRUCT = pa.struct([("a", pa.int64()), ("b", pa.string())])


@pytest.mark.parametrize(
    ("one", "other", "kind"),
    [
        ([0.0, float("nan")], [-0.0, np.frombuffer(b"\x01\0\0\0\0\0\xf8\xff")[0]], pa.float64()),
        ([[("a", 1), ("b", 2)]], [[("b", 2), ("a", 1)]], MAP),
    ],
)
def test_values_that_are_the_same_have_the_same_hash(
    one: list[Any], other: list[Any], kind: pa.DataType
) -> None:
    assert hashes(one, kind) == hashes(other, kind)


def test_wider_types_have_the_same_hash() -> None:
    assert hashes([-7, 3], pa.int32()) == hashes([-7, 3], pa.int64())
    assert hashes(["a", None], pa.string()) == hashes(["a", None], pa.large_string())
    narrow = pa.array(["1.25"]).cast(pa.decimal128(6, 2))
    assert hashes(narrow.to_pylist(), narrow.type) == hashes(
        narrow.to_pylist(), pa.decimal128(38, 2)
    )
    more = pa.struct([("a", pa.int64()), ("b", pa.string()), ("c", pa.int64())])
    assert hashes([{"a": 1}, None], STRUCT) == hashes([{"a": 1}, None], more)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (
            [None, "", "a", "b", "a\0", "\0a", "abcdefgh", "abcdefghi", "abcdefgh\0", "bacdefgh"],
            pa.string(),
        ),
        (
            [None, [], [None], [1], [1, 2], [2, 1], [1, None], [None, 1], [1, 2, None]],
            pa.list_(pa.int64()),
        ),
        ([None, [], [("a", 1)], [("a", None)], [("b", 1)], [("a", 1), ("b", 1)], [("1", 1)]], MAP),
        ([None, {}, {"a": 1}, {"b": "1"}, {"a": 1, "b": ""}, {"a": 1, "b": "1"}], STRUCT),
        ([None, [], [None], [{}], [{"a": 1}], [{"a": 1}, None]], pa.list_(STRUCT)),
        ([None, 0, 1, -1, 1 << 62], pa.int64()),
        ([None, True, False], pa.bool_()),
        ([None, 0.0, 1.0, float("inf"), float("-inf"), float("nan"), 5e-324], pa.float64()),
    ],
)
def test_different_values_have_different_hashes_in_any_part_of_an_array(
    values: list[Any], kind: pa.DataType
) -> None:
    whole = hashes(values, kind)
    assert len(set(whole)) == len(values)
    array = pa.array(values, kind)
    for start in range(len(values)):
        for end in range(start, len(values) + 1):
            part = array.slice(start, end - start)
            assert row_hashes({"c": part}, len(part)).tolist() == whole[start:end]
    many = pa.array([values[at % len(values)] for at in range(1000)], kind)
    assert row_hashes({"c": many}, 1000).tolist() == [whole[at % len(values)] for at in range(1000)]


def test_a_value_in_another_column_or_row_has_another_hash() -> None:
    one, other = pa.array(["x", "y"]), pa.array(["y", "x"])
    assert (
        row_hashes({"a": one, "b": other}, 2).tolist()
        != row_hashes({"a": other, "b": one}, 2).tolist()
    )
    offsets = pa.array([0, 1])
    straight, swapped = (
        row_hashes({"_offset": offsets, "a": values}, 2).sum() for values in (one, other)
    )
    assert straight != swapped


def test_sums_are_added_up_by_blocks_of_offsets() -> None:
    offsets, values = (
        np.array([5, 5, BLOCK - 1, BLOCK, 3 * BLOCK]),
        np.array([1, 2, 3, (1 << 64) - 1, 7], np.uint64),
    )
    sums: Sums = {}
    for at in (3, 0, 4, 1, 2):
        add_rows(sums, offsets[at : at + 1], values[at : at + 1])
    assert sums == {0: 6, 1: (1 << 64) - 1, 3: 7}
    text = packed(sums, 5, 3 * BLOCK + 1)
    assert text == "6 ffffffffffffffff 0 7"
    assert unpacked(text, 5, 3 * BLOCK + 1) == {0: 6, 1: (1 << 64) - 1, 2: 0, 3: 7}
    assert unpacked("", 5, 6) is None
    assert unpacked("", 5, 5) == {}
    assert together([("1", 0, 9), ("2 3", 9, BLOCK + 1)]) == {0: 3, 1: 3}
    assert together([("1", 0, 9), ("", 9, 10)]) is None
    assert list(blocks_of(0, BLOCK)) == [0]


def test_of_a_large_range_a_part_is_compared_with_versions_before(
    server: StreamServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(server, tmp_path, "delta")
    lake.fill([{"i": n} for n in range(40)])
    DeltaTable(lake.spec.place.path).update(updates={"i": "0"})
    monkeypatch.setattr(audit, "_COMPARED", 10)
    assert lake.audit().problems == [
        foreign(
            "[0, 40)",
            "version 2 (update), which is",
            "changed the rows of 9 records (1, 2, 3, 4, 5, ...)",
        ).replace("written:", "written (the first 10 records were compared with those of before):")
    ]


def test_what_is_committed_while_an_audit_starts_is_no_problem(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.fill([{"i": 1}])
    before = lake.positions()
    lake.fill([{"i": 2}])
    api = LakeApi(lake.server.url, TOKEN)
    assert audit_spec(lake.api_spec, before, depth="deep", api=api).problems == []
    assert audit_spec(lake.api_spec, before).problems == [
        "shard 0: the table ends at 2, the stream before it, at 1"
    ]


def test_an_audit_that_a_replay_overtakes_is_made_again_and_one_beside_batches_is_not(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.fill([{"i": 1}, b"bad"])
    lake.change(by_duckdb("SELECT * FROM rows LIMIT 0"))
    runs: list[int] = []
    run = audit._Audit.run
    meanwhile: list[Callable[[], object]] = [lambda: lake.fill([{"i": 3}])]

    def overtaken(self: Any) -> AuditReport:
        runs.append(1)
        report = run(self)
        if meanwhile:
            meanwhile.pop()()
        return report

    monkeypatch.setattr(audit._Audit, "run", overtaken)
    assert lake.audit("offsets").problems == [
        "shard 0: record 0 is in neither the table nor its dead letters"
    ]
    assert len(runs) == 1
    meanwhile.append(
        lambda: Replayed(lake.spec).run([Range(0, 0, 1)], lambda _: tasks(records(0, [{"i": 1}])))
    )
    assert lake.audit("offsets").problems == []
    assert len(runs) == 3


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_messages_as_they_were_published_are_compared(
    server: StreamServer, tmp_path: Path, table_format: str
) -> None:
    lake = Lake(server, tmp_path, table_format, kind="topics")
    lake.fill([b"\x00\xff" * 9, b"", {"a": 1}])
    assert (lake.audit("deep").problems, lake.audit("deep").shards[0].compared) == ([], 3)
    lake.change(by_duckdb(changed("payload", "'\\x00'::BLOB", "_offset = 1")))
    values, deep = lake.audit("deep").problems
    assert values.endswith("changed the rows of record 1")
    assert deep == differs("[0, 3)", "changed the rows of record 1")


def test_odd_names_and_records_that_the_table_does_not_take_are_no_difference(lake: Lake) -> None:
    lake.api_spec["columns"] = [{"name": "o", "type": "struct<a: struct<b: long>, `a.b`: long>"}]
    lake.fill(
        [
            {"o": {"a": {"b": 1}, "a.b": 2}, "host.temp": 1, "x\0y": 2, "x_y": 3},
            {"s": "\ud7ff" * 20},
            {"s": "a"},
        ]
    )
    lake.fill([{"o": {"x\0y": 1, "x_y": 2}, "_file": 1, "T": 1, "t": 2}])
    report = lake.audit("deep")
    assert report.problems == []
    dead = 1 if lake.api_spec["format"] == "iceberg" else 0
    assert (report.shards[0].compared, report.shards[0].dead_letters) == (4 - dead, dead)


def test_a_column_that_another_engine_renames_has_the_same_values(
    server: StreamServer, tmp_path: Path
) -> None:
    lake = Lake(server, tmp_path, "iceberg")
    lake.fill(ROWS)
    table = catalog_of(place_of(lake.api_spec)).load_table(
        iceberg._identifier(place_of(lake.api_spec))
    )
    with table.update_schema() as update:
        update.rename_column("s", "title")
        update.rename_column("n", "number")
    assert lake.audit().problems == []
    lake.change(by_duckdb(changed("number", "number + 1", "_offset = 0")))
    [problem] = lake.audit().problems
    assert problem.endswith("changed the rows of record 0")


def test_a_member_that_is_called_like_a_column_of_provenance_is_a_value_of_its_own(
    lake: Lake,
) -> None:
    lake.fill([{"_topic": "a", "_item": 1, "_offset": 7}])
    assert (lake.audit("deep").problems, lake.audit().shards[0].compared) == ([], 1)
    [name] = [name for name in columns_of(lake) if name.startswith("_item")]
    lake.change(by_duckdb(changed(f'"{name}"', "2", "true")))
    [problem] = lake.audit().problems
    assert problem.endswith("changed the rows of record 0")


def columns_of(lake: Lake) -> list[str]:
    table = open_table(lake.spec.format, lake.spec.place, lake.spec.binding)
    assert table is not None
    return [column.name for column in table.columns()]


def test_rows_that_retention_left_are_compared_where_their_block_is_whole(lake: Lake) -> None:
    rows = [{"i": n} for n in range(BLOCK + 10)]
    lake.fill(rows)
    assert (
        remove_rows(lake.spec, "job", datetime.fromtimestamp((START_US + 1000 * 7) / 1e6, UTC)) == 7
    )
    report = lake.audit()
    assert (report.problems, report.shards[0].compared, report.shards[0].rows) == (
        [],
        10,
        BLOCK + 3,
    )
    assert (
        remove_rows(lake.spec, "job", datetime.fromtimestamp((START_US + 1000 * BLOCK) / 1e6, UTC))
        == BLOCK - 7
    )
    report = lake.audit()
    assert (report.problems, report.shards[0].compared, report.shards[0].rows) == ([], 10, 10)
    lake.change(by_duckdb(changed("i", "0", f"_offset = {BLOCK}")))
    [problem] = lake.audit().problems
    assert problem.startswith(
        f"shard 0: rows of [{BLOCK}, {BLOCK + 10}) have other values than were written"
    )
