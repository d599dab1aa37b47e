"""Tables whose rows a rule computes from a stream of messages: what is written, filtered and dead, exactly once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from bridges.spark.columns.column import Column
from bridges.spark.columns.store import place_of
from bridges.spark.driver.audit import audit_spec
from bridges.spark.driver.batch import TableSpec, TableWriter
from bridges.spark.driver.replay import Replayed
from bridges.spark.driver.retype import retype
from bridges.spark.tables import iceberg
from bridges.spark.tables.catalogs import catalog_of
from bridges.spark.tables.contract import LakeTable, Range
from bridges.spark.tables.formats import open_table
from bridges.spark.tasks.rule_text import RuleText
from pyspark_sluice.client import Positions, StreamClient
from rules.sql.values import json_bytes
from tests.bridges.spark.batches import dead_letters_of, records, rows_of, table_spec, tasks
from tests.bridges.spark.stream_server import TOKEN, StreamServer

HOT = 'SELECT payload.temp AS t, payload.temp * 1.8 + 32 AS f, clientid FROM "plant/#" WHERE payload.temp > 20'
COLUMNS = [
    Column("t", "t", "double"),
    Column("f", "f", "double"),
    Column("clientid", "clientid", "string"),
]
OUTPUT = [
    {"name": "t", "type": "double"},
    {"name": "f", "type": "double"},
    {"name": "clientid", "type": "string"},
]
PAYLOADS: list[bytes | dict[str, Any]] = [{"temp": 25.0}, {"temp": 5}, b"?", {"temp": 40.0}]
EACH = 'FOREACH payload.items AS i DO i.n AS n INCASE i.n > 1 FROM "plant/#"'

Make = Callable[..., TableSpec]


@pytest.fixture(params=["delta", "iceberg"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    def made(sql: str, columns: list[Column], **given: object) -> TableSpec:
        spec = table_spec(tmp_path, request.param, columns, **given)
        return replace(spec, kind="topics", rule=RuleText("hot rows", sql, "node-1"))

    return made


def test_messages_become_rows_filtered_records_and_dead_letters(make: Make) -> None:
    spec = make(HOT, COLUMNS)
    batch = records(
        0, [{"temp": 21.5}, {"temp": 3}, b"no JSON", {"temp": "warm"}, {"temp": 30}, {}]
    )
    outcome = TableWriter(spec, "job").write(tasks(batch))
    (done,) = outcome.ranges
    assert (done.read, done.written, done.filtered, done.dead, done.row_count) == (6, 2, 1, 3, 2)
    assert rows_of(spec, "_offset", "_rule", "t", "f", "clientid") == [
        (0, "hot rows", 21.5, 70.7, "meter-0"),
        (4, "hot rows", 30.0, 86.0, "meter-4"),
    ]
    letters = dead_letters_of(spec, "_offset", "_error_stage", "_error", "payload")
    assert [(offset, stage, payload) for offset, stage, _, payload in letters] == [
        (2, "lake.rule", b"no JSON"), (3, "lake.rule", b'{"temp": "warm"}'), (5, "lake.rule", b"{}"),
    ]  # fmt: skip
    assert letters[0][2].startswith("rule 'hot rows', line 1, column 8: the payload is not JSON")
    assert (
        letters[1][2] == "rule 'hot rows', line 1, column 27: '*' cannot take a string and a float"
    )


def test_a_record_may_give_several_rows_and_a_batch_that_comes_again_adds_none(make: Make) -> None:
    spec = make(EACH, [Column("n", "n", "long")])
    batch = tasks(
        records(
            0, [{"items": [{"n": 1}, {"n": 2}, {"n": 3}]}, {"items": []}, {"items": [{"n": 9}]}]
        )
    )
    first = TableWriter(spec, "job").write(batch)
    again = TableWriter(spec, "job after a crash").write(batch)
    assert (first.written, first.ranges[0].written, first.ranges[0].filtered, again.written) == (
        3,
        2,
        1,
        0,
    )
    assert rows_of(spec, "_offset", "_item", "n") == [(0, 0, 2), (0, 1, 3), (2, 0, 9)]


def test_a_record_of_which_one_row_does_not_fit_gives_none(make: Make) -> None:
    spec = make(EACH, [Column("n", "n", "long")])
    outcome = TableWriter(spec, "job").write(
        tasks(records(0, [{"items": [{"n": 2}, {"n": 2.5}]}, {"items": [{"n": 4}]}]))
    )
    assert (outcome.written, outcome.dead) == (1, 1)
    assert rows_of(spec, "_offset", "n") == [(1, 4)]
    assert dead_letters_of(spec, "_offset", "_error_stage", "_error") == [
        (0, "lake.columns", "column 'n' takes a whole number, the row has the number 2.5")
    ]


def test_columns_of_unknown_type_get_the_type_of_their_first_value(make: Make) -> None:
    spec = make(
        'SELECT payload.v AS v, payload.o AS o FROM "plant/#" WHERE payload.ok',
        [],
        pending=("v", "o"),
    )
    TableWriter(spec, "job").write(
        tasks(
            records(
                0, [{"v": 0}, {"v": "text", "o": {"a": [1]}, "ok": True}, {"v": "more", "ok": True}]
            )
        )
    )
    assert rows_of(spec, "_offset", "v", "o") == [(1, "text", '{"a":[1]}'), (2, "more", None)]


def test_payloads_that_are_no_text_are_binary_or_marked(make: Make) -> None:
    sql = 'SELECT base64_decode(payload.b) AS b, payload.b AS text FROM "plant/#"'
    spec = make(sql, [Column("b", "b", "binary"), Column("text", "text", "string")])
    TableWriter(spec, "job").write(tasks(records(0, [{"b": "mf8="}, {"b": "YWI="}])))
    assert rows_of(spec, "b", "text") == [(b"\x99\xff", "mf8="), (b"ab", "YWI=")]


def test_a_payload_that_is_no_text_is_marked_in_a_column_of_text(make: Make) -> None:
    spec = make(
        "SELECT payload AS p, base64_decode('mQ==') AS b FROM \"plant/#\"",
        [Column("p", "p", "string")],
    )
    TableWriter(replace(spec, pending=("b",)), "job").write(tasks(records(0, [b"\x99", b"mQ=="])))
    assert rows_of(spec, "p", "b") == [('{"$base64":"mQ=="}', b"\x99"), ("mQ==", b"\x99")]


def test_rows_of_a_stream_with_marks_are_bytes_and_doubles(tmp_path: Path) -> None:
    columns = [
        Column("b", "b", "binary"),
        Column("d", "d", "struct<x: double, all: array<double>>"),
    ]
    number = float("nan")
    texts = [
        json_bytes({"b": data, "d": {"x": number, "all": [number, -1.5]}})
        for data in (b"\x99", b"ab", b"")
    ]
    for table_format in ("delta", "iceberg"):
        spec = table_spec(tmp_path / table_format, table_format, columns)
        outcome = TableWriter(spec, "job").write(tasks(records(0, texts)))
        assert (outcome.written, outcome.dead) == (3, 0)
        rows = rows_of(spec, "b", "d")
        assert [data for data, _ in rows] == [b"\x99", b"ab", b""]
        assert [repr(value) for _, value in rows] == [
            repr({"x": number, "all": [number, -1.5]})
        ] * 3


def test_topics_that_the_rule_does_not_read_are_filtered(make: Make) -> None:
    spec = make('SELECT topic FROM "plant/7/meter/2"', [Column("topic", "topic", "string")])
    outcome = TableWriter(spec, "job").write(tasks(records(0, [{}] * 5)))
    assert (outcome.written, outcome.ranges[0].filtered) == (1, 4)
    assert rows_of(spec, "_offset", "topic") == [(2, "plant/7/meter/2")]


def test_jq_programs_run_those_that_may_not_end_too(make: Make) -> None:
    sql = """SELECT jq('.n + 1', payload) AS a, jq('def f: if . > 9 then . else . + 1 | f end; .n | f', payload) AS b
        FROM "plant/#" """
    spec = make(sql, [], pending=("a", "b"))
    TableWriter(spec, "job").write(tasks(records(0, [{"n": 1}, {"n": "x"}, {"n": 30}])))
    assert rows_of(spec, "_offset", "a", "b") == [(0, "[2]", "[10]"), (2, "[31]", "[30]")]
    assert [offset for (offset,) in dead_letters_of(spec, "_offset")] == [1]


def test_a_corrected_rule_rebuilds_the_rows_of_a_range(make: Make) -> None:
    wrong = make(HOT.replace("1.8", "1.9"), COLUMNS)
    payloads: list[bytes | dict[str, Any]] = [
        {"temp": 25.0},
        {"temp": 5},
        {"temp": 30.0},
        b"?",
        {"temp": 40.0},
    ]
    TableWriter(wrong, "job").write(tasks(records(0, payloads)))
    right = replace(wrong, rule=RuleText("hot rows", HOT.replace("> 20", "> 26")))
    for _ in range(2):  # twice leaves the same table
        report = Replayed(right).run([Range(0, 0, 4)], lambda _: tasks(records(0, payloads[:4])))
        assert (report.records, report.rows_after, report.dead_letters_after) == (4, 1, 1)
        assert rows_of(right, "_offset", "f") == [(2, 86.0), (4, 40.0 * 1.9 + 32)]
        assert [offset for (offset,) in dead_letters_of(right, "_offset")] == [3]


@pytest.fixture
def kept(server: StreamServer, tmp_path: Path) -> dict[str, Any]:
    """A table of a stream of messages, as the API tells it, with four messages in both."""
    server.make("raw", kind="topics")
    server.append("raw", PAYLOADS)
    api_spec = {
        "name": "readings",
        "stream": "raw",
        "format": "delta",
        "path": str(tmp_path / "readings"),
        "rule": "hot",
        "columns": OUTPUT,
        "rule_text": {"name": "hot", "sql": HOT, "node": "node-1"},
    }
    server.tables["readings"] = api_spec
    spec = TableSpec.of_api(
        api_spec, StreamClient(server.url, TOKEN, "raw", deadline_s=30).positions()
    )
    TableWriter(spec, "job").write(tasks(records(0, PAYLOADS)))
    return api_spec


def positions(server: StreamServer) -> Positions:
    return StreamClient(server.url, TOKEN, "raw", deadline_s=30).positions()


def test_an_audit_counts_what_the_rule_filtered(kept: dict[str, Any], server: StreamServer) -> None:
    report = audit_spec(kept, positions(server))
    assert report.problems == []
    (shard,) = report.shards
    assert (shard.rows, shard.dead_letters, shard.filtered, shard.missing) == (2, 1, 1, 0)


def test_an_audit_finds_a_row_that_is_gone_and_one_that_should_not_be(
    kept: dict[str, Any], server: StreamServer
) -> None:
    DeltaTable(kept["path"]).delete("_offset = 3")
    report = audit_spec(kept, positions(server))
    assert report.problems == [
        "shard 0: [0, 4) has 1 row, and its commit wrote 2",
        "shard 0: 2 records are in neither (1, 3)",
    ]
    DeltaTable(kept["path"]).update(updates={"_offset": "1"}, predicate="_offset = 0")
    extra = DeltaTable(kept["path"]).to_pyarrow_table()
    for offset in (0, 3):
        at = extra.schema.get_field_index("_offset")
        write_deltalake(
            kept["path"],
            extra.set_column(at, "_offset", pa.array([offset], pa.int64())),
            mode="append",
        )
    report = audit_spec(kept, positions(server))
    assert report.problems == [
        "shard 0: [0, 4) has 3 rows, and its commit wrote 2",
        "shard 0: [0, 4): the rule had filtered 1 record with rows",
    ]


def test_an_audit_after_a_replay_of_a_part_holds(
    kept: dict[str, Any], server: StreamServer
) -> None:
    stricter = {**kept, "rule_text": {**kept["rule_text"], "sql": HOT.replace("> 20", "> 26")}}
    for start, end in ((0, 2), (1, 4), (0, 2)):
        spec = TableSpec.of_api(stricter, positions(server))
        Replayed(spec).run([Range(0, start, end)], lambda ranges: tasks(*map(read_again, ranges)))
    report = audit_spec(kept, positions(server))
    assert report.problems == []
    assert (report.shards[0].rows, report.shards[0].filtered) == (1, 2)


def read_again(one: Range) -> pa.RecordBatch:
    return records(one.start, PAYLOADS[one.start : one.end])


SEVERAL: list[bytes | dict[str, Any]] = [
    {"items": [{"n": 1}, {"n": 2}, {"n": 3}]},
    {"items": []},
    {"items": [{"n": 4}, {"n": 5}]},
    b"?",
]
ALL = 'FOREACH payload.items AS i DO i.n AS n FROM "plant/#"'


@pytest.fixture(params=["delta", "iceberg"])
def several(request: pytest.FixtureRequest, server: StreamServer, tmp_path: Path) -> dict[str, Any]:
    """A table whose rule gives several rows a record."""
    server.make("raw", kind="topics")
    server.append("raw", SEVERAL)
    api_spec = {
        "name": "readings",
        "stream": "raw",
        "format": request.param,
        "path": str(tmp_path / "readings"),
        "rule": "all",
        "columns": [{"name": "n", "type": "long"}],
        "rule_text": {"name": "all", "sql": ALL, "node": "node-1"},
    }
    TableWriter(TableSpec.of_api(api_spec, positions(server)), "job").write(
        tasks(records(0, SEVERAL))
    )
    return api_spec


def opened(spec: TableSpec) -> LakeTable:
    table = open_table(spec.format, spec.place, spec.binding)
    assert table is not None
    return table


def change(api_spec: dict[str, Any], edit: Callable[[pa.Table], pa.Table]) -> None:
    """Change the rows of a table as another engine would: all of them written again."""
    if api_spec["format"] == "delta":
        rows = DeltaTable(api_spec["path"]).to_pyarrow_table()
        write_deltalake(api_spec["path"], edit(rows), mode="overwrite")
    else:
        place = place_of(api_spec)
        table = catalog_of(place).load_table(iceberg._identifier(place))
        table.overwrite(edit(table.scan().to_arrow()))


def without_second(rows: pa.Table) -> pa.Table:
    return rows.filter(pc.not_equal(rows["n"], 2))


def twice(rows: pa.Table) -> pa.Table:
    return pa.concat_tables([rows, rows])


def no_items(rows: pa.Table) -> pa.Table:
    at = rows.schema.get_field_index("_item")
    return rows.set_column(
        at, rows.schema.field(at), pa.nulls(rows.num_rows, rows.schema.field(at).type)
    )


@pytest.mark.parametrize(
    ("edit", "problems"),
    [
        (
            twice,
            [
                "[0, 4) has 10 rows, and its commit wrote 5",
                "2 records are there more than once (0, 2)",
            ],
        ),
        (
            lambda rows: rows.filter(pc.not_equal(rows["n"], 3)),
            ["[0, 4) has 4 rows, and its commit wrote 5"],
        ),
        (
            without_second,
            ["[0, 4) has 4 rows, and its commit wrote 5", "record 0 has some of its rows only"],
        ),
        (
            lambda rows: pa.concat_tables([rows, rows.filter(pc.equal(rows["n"], 3))]),
            ["[0, 4) has 6 rows, and its commit wrote 5", "record 0 is there more than once"],
        ),
        (
            lambda rows: pa.concat_tables(
                [without_second(rows), rows.filter(pc.equal(rows["n"], 3))]
            ),
            ["record 0 is there more than once", "record 0 has some of its rows only"],
        ),
        (lambda rows: no_items(twice(rows)), ["[0, 4) has 10 rows, and its commit wrote 5"]),
        (
            lambda rows: no_items(without_second(rows)),
            ["[0, 4) has 4 rows, and its commit wrote 5"],
        ),
    ],
)
def test_an_audit_names_rows_that_are_doubled_or_gone_of_records_with_several(
    several: dict[str, Any],
    server: StreamServer,
    edit: Callable[[pa.Table], pa.Table],
    problems: list[str],
) -> None:
    assert audit_spec(several, positions(server)).problems == []
    change(several, edit)
    assert audit_spec(several, positions(server)).problems == [
        f"shard 0: {one}" for one in problems
    ]


def test_a_table_from_before_item_numbers_gets_them_for_new_rows(
    several: dict[str, Any], server: StreamServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    several["path"] += "_older"
    with monkeypatch.context() as before:
        before.setattr(TableSpec, "__post_init__", lambda _: None)
        spec = TableSpec.of_api(several, positions(server))
        TableWriter(spec, "job").write(tasks(records(0, SEVERAL)))
        assert [column.name for column in opened(spec).columns()] == ["n"]
    assert audit_spec(several, positions(server)).problems == []
    spec = TableSpec.of_api(several, positions(server))
    server.append("raw", SEVERAL[:1])
    TableWriter(spec, "job").write(tasks(records(4, SEVERAL[:1])))
    rows = [(0, None)] * 3 + [(2, None)] * 2 + [(4, 0), (4, 1), (4, 2)]
    assert rows_of(spec, "_offset", "_item") == rows
    assert audit_spec(several, positions(server)).problems == []
    Replayed(spec).run([Range(0, 0, 2)], lambda _: tasks(records(0, SEVERAL[:2])))
    assert rows_of(spec, "_offset", "_item")[:3] == [(0, 0), (0, 1), (0, 2)]
    assert audit_spec(several, positions(server)).problems == []
    change(several, lambda rows: pa.concat_tables([twice(rows), rows]))
    assert sorted(audit_spec(several, positions(server)).problems) == [
        "shard 0: 2 records are there more than once (0, 4)",
        "shard 0: [0, 2) has 9 rows, and its commit wrote 3",
        "shard 0: [2, 4) has 6 rows, and its commit wrote at most 5",
        "shard 0: [4, 5) has 9 rows, and its commit wrote 3",
    ]


@pytest.mark.parametrize("is_older", [True, False])
def test_a_column_of_the_rule_that_is_called_like_the_item_number_stays(
    make: Make, is_older: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sql = ALL.replace("AS n", "AS _item")
    if is_older:
        with monkeypatch.context() as before:
            before.setattr(TableSpec, "__post_init__", lambda _: None)
            TableWriter(make(sql, [Column("_item", "_item", "long")]), "job")
    spec = make(sql, [], pending=("_item",))
    assert TableWriter(spec, "job").write(tasks(records(0, SEVERAL))).written == 5
    names = [column.name for column in opened(spec).columns()]
    assert (names[0], len(names)) == ("_item", 1 if is_older else 2)
    assert sorted(value for (value,) in rows_of(spec, names[-1])) == [1, 2, 3, 4, 5]


def test_a_retype_keeps_the_item_numbers(make: Make) -> None:
    spec = make(ALL, [Column("n", "n", "long")])
    TableWriter(spec, "job").write(tasks(records(0, SEVERAL)))
    retype(TableWriter(spec, "job"), "n", "double")
    assert rows_of(spec, "_offset", "_item", "n") == [
        (0, 0, 1.0),
        (0, 1, 2.0),
        (0, 2, 3.0),
        (2, 0, 4.0),
        (2, 1, 5.0),
    ]
