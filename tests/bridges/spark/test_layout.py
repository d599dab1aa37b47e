"""Partitions and sort orders of tables: what is written, and what other engines skip of it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.expressions import EqualTo, parser
from pyiceberg.table import Table
from pyiceberg.transforms import parse_transform
from pyiceberg.types import IntegerType, LongType, StringType, TimestamptzType

from bridges.spark.columns import layout
from bridges.spark.columns.column import PROVENANCE, Column
from bridges.spark.columns.layout import Layout, LayoutError, PartitionField
from bridges.spark.driver.batch import TableSpec, TableWriter
from bridges.spark.driver.replay import Replayed
from bridges.spark.driver.retype import check_retype
from bridges.spark.tables import iceberg
from bridges.spark.tables.catalogs import catalog_of
from bridges.spark.tables.contract import Range, TableRefused
from bridges.spark.tables.formats import open_table
from bridges.spark.tasks.task import RANGED, _stats
from broker.core.errors import Invalid
from tests.bridges.spark.batches import dead_letters_of, records, rows_of, table_spec, tasks
from tests.bridges.spark.stream_server import START_US

DAY_MS = 24 * 3600 * 1000
TYPES = {column.name: column.type for column in PROVENANCE} | {"a": "double", "n": "long"}
FIRST_DAY = date(2026, 1, 1)


def spec_of(
    directory: Path, table_format: str, partition_by: Sequence[str], sort_by: Sequence[str] = ()
) -> TableSpec:
    return table_spec(
        directory, table_format, partition_by=tuple(partition_by), sort_by=tuple(sort_by)
    )


def days(first: int, count: int, shard: int = 0) -> pa.RecordBatch:
    """Records of which one is published each day, from that of ``first`` on."""
    batch = records(first, [{"a": n} for n in range(first, first + count)], shard)
    times = [START_US + n * DAY_MS * 1000 for n in range(first, first + count)]
    at = batch.schema.get_field_index("ts")
    return batch.set_column(
        at, batch.schema.field(at), pa.array(times, batch.schema.field(at).type)
    )


def foreign(spec: TableSpec) -> Table:
    """The Iceberg table as another engine opens it."""
    return catalog_of(spec.place).load_table(iceberg._identifier(spec.place))


@pytest.mark.parametrize(
    ("name", "transform", "column", "kind"),
    [
        ("day", "day", "timestamp", TimestamptzType()),
        ("hour", "hour", "timestamp", TimestamptzType()),
        ("month", "month", "timestamp", TimestamptzType()),
        ("year", "year", "timestamp", TimestamptzType()),
        ("bucket", "bucket[16]", "timestamp", TimestamptzType()),
        ("bucket", "bucket[16]", "string", StringType()),
        ("bucket", "bucket[7]", "long", LongType()),
        ("bucket", "bucket[7]", "integer", IntegerType()),
        ("truncate", "truncate[3]", "string", StringType()),
        ("truncate", "truncate[10]", "long", LongType()),
    ],
)
def test_partition_values_are_those_of_iceberg(
    name: str, transform: str, column: str, kind: Any
) -> None:
    start = datetime(1969, 12, 31, 22, 30, 0, 5, tzinfo=UTC)
    values: dict[str, list[Any]] = {
        "timestamp": [start + timedelta(hours=7 * n) for n in range(2000)],
        "string": ["", "a", "meter-1", "größer", "𝒳yz", *(f"meter-{n}" for n in range(500))],
        "long": [0, -1, -11, 19, 2**40],
        "integer": [0, -1, -11, 19],
    }
    types = {
        "timestamp": pa.timestamp("us", tz="UTC"),
        "string": pa.string(),
        "long": pa.int64(),
        "integer": pa.int32(),
    }
    size = int(transform.partition("[")[2].rstrip("]") or 0) or None
    field = PartitionField(name, "x", column, size)
    found = field.values(pa.array([*values[column], None], types[column])).to_pylist()
    expected = parse_transform(transform).transform(kind)
    plain = [
        round((v - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(microseconds=1))
        for v in values["timestamp"]
    ]
    assert found == [
        *(expected(value) for value in (plain if column == "timestamp" else values[column])),
        None,
    ]


@pytest.mark.parametrize(
    ("table_format", "partition_by", "sort_by", "text"),
    [
        ("delta", ["hour(_published_at)"], [], "expected one of COLUMN, day() with format 'delta', got 'hour"),
        ("iceberg", ["week(_published_at)"], [], "expected one of COLUMN, year(), month(), day(), hour(), bucket()"),
        ("iceberg", ["day(_topic)"], [], "day(_topic): expected a column of type date, timestamp; '_topic' is string"),
        ("iceberg", ["nope"], [], "expected one of the columns _stream,"),
        ("iceberg", ["bucket(_client_id)"], [], "expected bucket(N, _client_id) with N from 2 to 10,000, got"),
        ("iceberg", ["bucket(1, _client_id)"], [], "expected bucket(N, _client_id) with N from 2 to 10,000, got"),
        ("iceberg", ["day(3, _published_at)"], [], "expected day(_published_at), got 'day(3, _published_at)'"),
        ("iceberg", ["day(_published_at"], [], "expected COLUMN or TRANSFORM(COLUMN), such as day(_published_at)"),
        ("iceberg", ["a"], [], "a: expected a column of type boolean, date, enum, integer, long, string; 'a' is dou"),
        ("iceberg", ["_topic", "_topic"], [], "expected each partition once"),
        ("iceberg", ["day(_published_at)", "hour(_published_at)"], [], "expected one of year, month, day and hour of"),
        ("iceberg", [], ["_topic up"], "expected COLUMN, or COLUMN desc, got '_topic up'"),
        ("iceberg", [], ["_topic", "_topic desc"], "expected each column once"),
    ],
)  # fmt: skip
def test_a_layout_that_cannot_be_is_refused_with_a_sentence(
    table_format: str, partition_by: list[str], sort_by: list[str], text: str
) -> None:
    with pytest.raises(LayoutError) as refused:
        Layout.parse(table_format, partition_by, sort_by, TYPES)
    assert str(refused.value).startswith(text)
    assert refused.value.member == ("sort_by" if sort_by else "partition_by")


def test_a_day_column_that_the_table_has_already_is_refused() -> None:
    with pytest.raises(
        LayoutError, match="makes a column '_published_at_day', which the table has already"
    ):
        Layout.parse("delta", ["day(_published_at)"], [], TYPES | {"_published_at_day": "string"})


def test_delta_readers_skip_the_files_of_other_days(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "delta", ["day(_published_at)"])
    writer = TableWriter(spec, "job")
    writer.write(tasks(days(0, 5)))
    table = DeltaTable(spec.place.path)
    assert table.metadata().partition_columns == ["_published_at_day"]
    assert len(table.file_uris()) == 5
    assert (
        len(table.file_uris(file_pruning_predicate=[("_published_at_day", "=", "2026-01-03")])) == 1
    )
    found = table.to_pyarrow_table(filters=[("_published_at_day", "=", date(2026, 1, 3))])
    assert found.select(["_offset", "_published_at_day"]).to_pylist() == [
        {"_offset": 2, "_published_at_day": date(2026, 1, 3)}
    ]
    pruned = table.to_pyarrow_dataset()
    with duckdb.connect() as db:
        for condition in (
            "_published_at_day = '2026-01-03'",
            "_published_at = timestamptz '2026-01-03 00:00:00+00'",
        ):
            assert db.sql(f"from pruned select _offset where {condition}").fetchall() == [(2,)]
    at = pc.field("_published_at") == pa.scalar(
        datetime(2026, 1, 3, tzinfo=UTC), pa.timestamp("us", tz="UTC")
    )
    for condition in (pc.field("_published_at_day") == date(2026, 1, 3), at):
        assert len(list(pruned.get_fragments(filter=condition))) == 1


def test_delta_files_have_statistics_that_readers_skip_them_by(tmp_path: Path) -> None:
    types = {
        "d": "double",
        "n": "long",
        "s": "string",
        "b": "boolean",
        "day": "date",
        "t": "timestamp",
        "j": "json",
    }
    columns = [Column(name, name, kind) for name, kind in types.items()]
    spec = table_spec(
        tmp_path, "delta", [*columns, *(Column(f"c{n}", f"c{n}", "long") for n in range(40))]
    )
    long, last = "x" * 40, "x" * 31 + "\U0010ffff" * 9
    values: dict[str, list[Any]] = {
        "d": [-1.5, 2e300],
        "n": [-5, 2**62],
        "s": [long, last],
        "day": ["0001-01-01", "2026-01-02"],
        "t": ["0999-01-02T03:04:05.000001Z", "2026-01-02T03:04:05.999999Z"],
    }
    for number in range(2):
        row = {name: both[number] for name, both in values.items()}
        rows = [{**row, "b": True, "j": [1], "c0": number}, {"c0": None, "c39": number}]
        TableWriter(spec, "job").write(tasks(records(2 * number, rows)))
    table = DeltaTable(spec.place.path)
    files = pa.table(table.get_add_actions(flatten=True)).sort_by("min._offset")
    assert files["min.c0"].to_pylist() == [0, 1]
    assert files["null_count.d"].to_pylist() == files["null_count.b"].to_pylist() == [1, 1]
    assert "min.c39" not in files.column_names
    assert len(files["max.s"][0].as_py()) == 33
    for name, both in values.items():
        column = table.to_pyarrow_table(columns=["_offset", name]).sort_by("_offset").column(name)
        for offset, _ in zip((0, 2), both, strict=True):
            found = table.to_pyarrow_table(
                columns=["_offset"], filters=[(name, "=", column[offset].as_py())]
            )
            assert found.column("_offset").to_pylist() == [offset], name
    infinite = pa.table(
        {**{name: [0, 1, 2] for name in RANGED}, "d": [1.0, float("nan"), float("-inf")]}
    )
    stats = _stats(infinite, Layout())
    assert (stats["minValues"]["d"], stats["maxValues"]["d"]) == (
        -sys.float_info.max,
        sys.float_info.max,
    )
    fragments = table.to_pyarrow_dataset().get_fragments(pc.field("n") > 0)
    assert len(list(fragments)) == 1, "the other file is not opened"


def test_files_that_were_joined_and_others_are_filtered_alike(tmp_path: Path) -> None:
    spec = table_spec(tmp_path, "delta", [Column("d", "d", "double"), Column("s", "s", "string")])
    writer = TableWriter(spec, "job")
    for number in range(4):
        writer.write(tasks(records(number, [{"d": number, "s": f"text {number}"}])))
    writer.table.compact()
    writer.write(tasks(records(4, [{"d": 4, "s": "text 4"}])))
    table = DeltaTable(spec.place.path)
    for condition in (("d", ">=", 0), ("s", ">=", "text")):
        assert table.to_pyarrow_table(filters=[condition]).num_rows == 5


def test_delta_rows_have_their_partition_values_after_every_change(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "delta", ["_client_id", "day(_published_at)"], ["_offset desc"])
    writer = TableWriter(spec, "job")
    assert writer.write(tasks(days(0, 5), days(5, 5))).files == 10
    expected = [(n, f"meter-{n % 5}") for n in range(10)]
    assert rows_of(spec, "_offset", "_client_id") == expected
    Replayed(spec).run((Range(0, 2, 6),), lambda ranges: tasks(days(2, 4)))
    table = open_table("delta", spec.place, spec.binding)
    assert table is not None
    # The newest by time, not the files that the replay wrote last.
    assert [row["_client_id"] for row in table.newest(4).to_pylist()] == [
        "meter-4",
        "meter-3",
        "meter-2",
        "meter-1",
    ]
    DeltaTable(spec.place.path).optimize.compact()
    table.refresh()
    held = [
        (row["_offset"], row["_client_id"])
        for batch in table.batches()
        for row in batch.to_pylist()
    ]
    assert len(held) == len(set(held)) == 10
    writer.write(tasks(days(10, 2)))
    found = DeltaTable(spec.place.path).to_pyarrow_table().sort_by("_offset").to_pylist()
    assert [(row["_offset"], row["_published_at_day"]) for row in found] == [
        (n, FIRST_DAY + timedelta(days=n)) for n in range(12)
    ]
    # The second batch's clients count from the first again.
    assert [row["_client_id"] for row in found[:2]] == ["meter-0", "meter-1"]


def test_values_that_paths_cannot_have_are_partitions(tmp_path: Path) -> None:
    for table_format in ("delta", "iceberg"):
        spec = spec_of(tmp_path / table_format, table_format, ["_topic"])
        batch = records(0, [{"a": n} for n in range(4)])
        at = batch.schema.get_field_index("topic")
        topics = ["plant/7/ä b", "a=b%2F?", None, "null"]
        batch = batch.set_column(at, batch.schema.field(at), pa.array(topics, pa.string()))
        TableWriter(spec, "job").write(tasks(batch))
        assert [topic for _, topic in rows_of(spec, "_offset", "_topic")] == topics
        if table_format == "delta":
            found = DeltaTable(spec.place.path).to_pyarrow_table().sort_by("_offset")
            assert found["_topic"].to_pylist() == topics
        else:
            assert sorted(foreign(spec).scan().to_arrow()["_topic"].to_pylist(), key=str) == sorted(
                topics, key=str
            )


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("boolean", [True, False, None]),
        ("date", ["2026-01-03", "0001-01-01", "9999-12-31", "1969-12-31", None]),
        ("enum", ["ON", "é", None]),
        ("integer", [2147483647, -2147483648, None]),
        ("long", [9223372036854775807, -9223372036854775808, None]),
        ("string", ["a", "a/../b", "e\u0301", "é", None]),
    ],
)
def test_a_table_is_partitioned_by_columns_of_every_type(
    tmp_path: Path, table_format: str, kind: str, values: list[Any]
) -> None:
    spec = replace(
        table_spec(tmp_path, table_format, [Column("p", "p", kind)]), partition_by=("p",)
    )
    batch = records(0, [{"p": value} for value in values])
    outcome = TableWriter(spec, "job").write(tasks(batch))
    assert (outcome.written, outcome.dead, outcome.files) == (len(values), 0, len(values))
    Replayed(spec).run((Range(0, 0, len(values)),), lambda ranges: tasks(batch))
    expected = [date.fromisoformat(v) if kind == "date" and v else v for v in values]
    assert [value for _, value in rows_of(spec, "_offset", "p")] == expected
    if table_format == "delta":
        found = DeltaTable(spec.place.path).to_pyarrow_table(filters=[("p", "=", expected[0])])
    else:
        equals: Any = EqualTo  # its types are those of pydantic's keywords
        scan = foreign(spec).scan(row_filter=equals("p", values[0]))
        assert len(list(scan.plan_files())) == 1
        found = scan.to_arrow()
    assert found["_offset"].to_pylist() == [0]


def test_iceberg_readers_skip_the_files_of_other_partitions(tmp_path: Path) -> None:
    spec = spec_of(
        tmp_path, "iceberg", ["day(_published_at)", "bucket(4, _client_id)"], ["_client_id"]
    )
    writer = TableWriter(spec, "job")
    writer.write(tasks(days(0, 5)))
    table = foreign(spec)
    assert [str(one.transform) for one in table.spec().fields] == ["day", "bucket[4]"]
    assert [str(one.transform) for one in table.sort_order().fields] == ["identity"]
    assert len(table.inspect.files()) == 5
    # In UTC, as pyiceberg takes times.
    for condition in (
        "_published_at >= '2026-01-03T00:00:00+00:00' and _published_at < '2026-01-04T00:00:00+00:00'",
    ):
        scan = table.scan(row_filter=parser.parse(condition))
        assert len(list(scan.plan_files())) == 1
        assert scan.to_arrow()["_offset"].to_pylist() == [2]
    found = table.scan(row_filter="_client_id = 'meter-3'")
    assert len(list(found.plan_files())) == 1
    assert found.to_arrow()["_offset"].to_pylist() == [3]
    Replayed(spec).run((Range(0, 1, 4),), lambda ranges: tasks(days(1, 3)))
    assert rows_of(spec, "_offset", "a") == [(n, float(n)) for n in range(5)]


def test_an_iceberg_table_takes_other_partitions_for_new_files(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "iceberg", [])
    TableWriter(spec, "job").write(tasks(days(0, 3)))
    late = TableWriter(spec, "late")
    spec = replace(
        spec, partition_by=("month(_published_at)", "_client_id"), sort_by=("_offset desc",)
    )
    TableWriter(spec, "job").write(tasks(days(3, 3)))
    # A batch that was planned with the partitions before is written again.
    assert late.write(tasks(days(6, 1))).written == 1
    spec = replace(spec, partition_by=("day(_published_at)",))
    TableWriter(spec, "job").write(tasks(days(7, 3)))
    assert rows_of(spec, "_offset", "a") == [(n, float(n)) for n in range(10)]
    table = foreign(spec)
    assert [one.name for one in table.spec().fields] == ["_published_at_day"]
    found = table.scan(row_filter="_published_at >= '2026-01-10T00:00:00+00:00'")
    assert found.to_arrow()["_offset"].to_pylist() == [9]
    Replayed(spec).run((Range(0, 1, 9),), lambda ranges: tasks(days(1, 8)))
    assert rows_of(spec, "_offset", "a") == [(n, float(n)) for n in range(10)]


def test_a_delta_table_keeps_its_partitions(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "delta", ["_client_id"])
    TableWriter(spec, "job").write(tasks(days(0, 3)))
    with pytest.raises(TableRefused, match="partitioned by _client_id, which cannot change"):
        TableWriter(replace(spec, partition_by=("day(_published_at)",)), "job")


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_a_column_that_partitions_keeps_its_type(tmp_path: Path, table_format: str) -> None:
    columns = (Column("a", "a", "long"), Column("b", "b", "double"))
    spec = replace(spec_of(tmp_path, table_format, ["a"]), columns=columns)
    check_retype(spec, columns, "b", "string")
    with pytest.raises(Invalid, match="the table is partitioned by 'a'"):
        check_retype(spec, columns, "a", "string")


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_rows_of_a_file_are_sorted_and_dead_letters_are_not_partitioned(
    tmp_path: Path, table_format: str
) -> None:
    spec = spec_of(tmp_path, table_format, [], ["_client_id", "_offset desc"])
    writer = TableWriter(spec, "job")
    writer.write(tasks(records(0, [*({"a": n} for n in range(10)), b"bad"])))
    [path] = Path(spec.place.path).glob("part-*.parquet")
    rows = [(row["_client_id"], row["_offset"]) for row in pq.read_table(path).to_pylist()]
    assert rows == sorted(
        ((f"meter-{n % 5}", n) for n in range(10)), key=lambda row: (row[0], -row[1])
    )
    assert len(dead_letters_of(spec, "_offset")) == 1


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_a_batch_of_too_many_partitions_is_refused(
    tmp_path: Path, table_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "MOST_PARTITIONS", 3)
    spec = spec_of(tmp_path, table_format, ["day(_published_at)"])
    writer = TableWriter(spec, "job")
    with pytest.raises(
        LayoutError, match=r"a batch has rows of 4 partitions by day\(_published_at\), more than 3"
    ):
        writer.write(tasks(days(0, 4)))
    assert writer.write(tasks(days(0, 3))).files == 3
