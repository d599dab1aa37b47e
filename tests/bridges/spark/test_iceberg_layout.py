"""Iceberg tables on a disk as other engines find them: by the names of versions, and those of earlier releases too."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import StaticTable, Table

from bridges.spark.columns.place import Place
from bridges.spark.driver.audit import audit_spec
from bridges.spark.driver.batch import TableWriter
from bridges.spark.tables import iceberg
from bridges.spark.tables.contract import TableLost
from bridges.spark.tables.formats import dead_letters_place, open_table
from bridges.spark.tables.place_catalog import PlaceCatalog
from broker.core.errors import Unavailable
from tests.bridges.spark.batches import records, rows_of, tasks
from tests.bridges.spark.stream_server import StreamServer
from tests.bridges.spark.test_lake_audit import Lake


@pytest.fixture
def lake(server: StreamServer, tmp_path: Path) -> Lake:
    (tmp_path / "hall 2 (ä)").mkdir()
    return Lake(server, tmp_path / "hall 2 (ä)", "iceberg")


def fill(lake: Lake, batches: int = 1) -> None:
    for _ in range(batches):
        lake.publish([{"a": len(lake._payloads)}, b"bad"])
        lake.fill()


def earlier_catalog(place: Place) -> Catalog:
    """The catalog of a table as earlier releases had it, and their readers."""
    Path(place.path).mkdir(exist_ok=True)
    return SqlCatalog("lake", uri=f"sqlite:///{place.path}/_catalog.db", warehouse=place.uri)


@pytest.fixture
def earlier(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """A table that an earlier release has filled."""
    with monkeypatch.context() as patch:
        patch.setattr(iceberg, "catalog_of", earlier_catalog)
        fill(lake, 3)
    assert not list(Path(lake.spec.place.path, "metadata").glob("v*"))
    return lake


def holds_all(lake: Lake) -> None:
    """For its own job and for readers by either way."""
    wanted = [(2 * n, 2 * n) for n in range(len(lake._payloads) // 2)]
    assert [(offset, int(a)) for offset, a in rows_of(lake.spec, "_offset", "a")] == wanted
    assert audit_spec(lake.api_spec, lake.positions()).problems == []
    for place in (lake.spec.place, dead_letters_place(lake.spec.place)):
        readers: list[Table] = [StaticTable.from_metadata(place.path)]
        if Path(place.path, "_catalog.db").exists():
            readers.append(earlier_catalog(place).load_table(("sluice", place.name)))
        for table in readers:
            assert table.scan().to_arrow().num_rows == len(wanted)


def test_readers_find_the_newest_version_by_its_name(lake: Lake) -> None:
    for batches in range(1, 4):
        fill(lake)
        holds_all(lake)
        metadata = Path(lake.spec.place.path, "metadata")
        newest = int((metadata / "version-hint.text").read_text())
        numbers = {
            int(path.name[1:].partition(".")[0]) for path in metadata.glob("*.metadata.json")
        }
        assert (newest, numbers) == (max(numbers), set(range(1, newest + 1)))
        assert newest > batches
    assert not (metadata.parent / "_catalog.db").exists()


def test_a_table_of_an_earlier_release_is_continued_with_its_readers(earlier: Lake) -> None:
    fill(earlier)
    holds_all(earlier)
    assert len(earlier._payloads) == 8


def test_reading_alone_continues_it_too(earlier: Lake) -> None:
    assert open_table("iceberg", earlier.spec.place, earlier.spec.binding) is not None
    assert StaticTable.from_metadata(earlier.spec.place.path).scan().to_arrow().num_rows == 3


def test_drivers_that_continue_it_at_once_lose_nothing(earlier: Lake) -> None:
    earlier.publish([{"a": 6}, b"bad"])

    def write(_: int) -> int:
        return (
            TableWriter(earlier.spec, "job").write(tasks(records(6, earlier._payloads[6:]))).written
        )

    with ThreadPoolExecutor(4) as drivers:
        assert sum(drivers.map(write, range(4))) == 1
    holds_all(earlier)


def test_a_driver_that_dies_before_the_earlier_catalog_names_its_version(
    earlier: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    for _ in range(2):  # when it continues the table, and when it commits
        with monkeypatch.context() as patch:
            patch.setattr(PlaceCatalog, "_point", dies)
            with pytest.raises(KeyboardInterrupt):
                fill(earlier)
        del earlier._payloads[6:]
        open_table("iceberg", earlier.spec.place, earlier.spec.binding)
    earlier._payloads += [{"a": 6}, b"bad", {"a": 8}, b"bad"]
    earlier.fill()
    holds_all(earlier)


def test_what_an_earlier_release_commits_later_is_continued(
    earlier: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(earlier)
    with monkeypatch.context() as patch:
        patch.setattr(iceberg, "catalog_of", earlier_catalog)
        fill(earlier)
    fill(earlier)
    holds_all(earlier)
    assert len(earlier._payloads) == 12


def test_a_catalog_that_is_locked_by_a_reader_does_not_stop_the_job(
    earlier: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridges.spark.tables.place_catalog._LOCKED_S", 0.0)
    fill(earlier)
    with sqlite3.connect(Path(earlier.spec.place.path, "_catalog.db")) as reader:
        reader.execute("BEGIN IMMEDIATE")
        fill(earlier)
        assert rows_of(earlier.spec, "_offset")[-1] == (8,)
    fill(earlier)
    holds_all(earlier)


def test_a_catalog_that_cannot_be_read_is_said(earlier: Lake) -> None:
    Path(earlier.spec.place.path, "_catalog.db").write_bytes(b"garbage" * 1000)
    with pytest.raises(
        Unavailable, match="the table's catalog cannot be used: file is not a database"
    ):
        TableWriter(earlier.spec, "job")


def test_records_of_a_version_that_another_engine_replaced_are_read_again(lake: Lake) -> None:
    """Spark's catalog of type ``hadoop`` renames its versions into place without a check."""
    fill(lake)
    metadata = Path(lake.spec.place.path, "metadata")
    before = metadata / f"v{(metadata / 'version-hint.text').read_text()}.metadata.json"
    lake.publish([{"a": 2}, b"bad"])
    writer = lake.fill()
    newest = metadata / f"v{(metadata / 'version-hint.text').read_text()}.metadata.json"
    newest.write_bytes(before.read_bytes())
    lake.publish([{"a": 4}, b"bad"])
    with pytest.raises(TableLost, match="no longer has version 2, which its job has written"):
        writer.write(tasks(records(4, lake._payloads[4:])))
    lake.fill()
    holds_all(lake)


def test_a_version_is_put_once_and_whole(tmp_path: Path) -> None:
    place = Place(str(tmp_path))
    with ThreadPoolExecutor(8) as drivers:
        done = list(
            drivers.map(lambda n: place.put_new("metadata/v1.metadata.json", b"%d" % n), range(8))
        )
    assert sorted(done) == [False] * 7 + [True]
    assert Path(tmp_path, "metadata/v1.metadata.json").read_bytes() == b"%d" % done.index(True)
    assert [path.name for path in Path(tmp_path, "metadata").iterdir()] == ["v1.metadata.json"]
