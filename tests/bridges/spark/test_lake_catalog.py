"""Iceberg tables in catalogs that others share: a real REST catalog, and an SQL one."""

from __future__ import annotations

import pickle
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog

from bridges.spark.columns.catalog import CatalogSettings
from bridges.spark.columns.place import Place
from bridges.spark.driver.audit import audit_spec, audit_table
from bridges.spark.driver.batch import Outcome, TableSpec, TableWriter
from bridges.spark.driver.ledger import Ledger
from bridges.spark.driver.query import TableQuery
from bridges.spark.driver.retype import retype
from bridges.spark.driver.upkeep import tidy
from bridges.spark.driver.upserts import open_writer
from bridges.spark.tables import iceberg
from bridges.spark.tables.contract import Part, TableLost, TableRefused
from bridges.spark.tables.formats import open_or_create
from bridges.spark.tasks.task import Plan, TaskResult
from broker.core.errors import Unavailable, Unreadable
from tests.bridges.spark.batches import dead_letters_of, records, rows_of, tasks
from tests.bridges.spark.stream_server import TOKEN, StreamServer
from tests.bridges.spark.test_lake_audit import Lake
from tests.bridges.spark.test_lake_job import add_table, reaches, run_query, step_until
from tests.support.iceberg_catalog import CatalogProxy, RestCatalogServer, java_catalog
from tests.support.processes import free_port
from tests.support.s3_server import KEYS, S3Server

__all__ = ["run_query"]


class CatalogLake(Lake):
    """A stream with a table of it in a catalog, in a namespace that no other test uses."""

    def __init__(
        self,
        server: StreamServer,
        directory: Path | str,
        store: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(server, directory, "iceberg", store)
        self.namespace = f"factory{uuid.uuid4().hex[:8]}"
        self.api_spec |= {"catalog": "shared", "catalog_table": f"{self.namespace}.hall_2.meters"}
        self.reach(**settings)

    @property
    def identifier(self) -> tuple[str, ...]:
        return self.namespace, "hall_2", "meters"

    def reach(self, **settings: Any) -> None:
        """Have these settings of the catalog from now on."""
        self.api_spec["catalog_settings"] = {"name": "shared", **settings}
        self.spec = TableSpec.of_api(self.api_spec, self.positions())

    def write(self, payloads: list[Any]) -> Outcome:
        """Publish, and fill the table with what it lacks."""
        self.publish(payloads)
        writer = TableWriter(self.spec, "job")
        start = writer.table.next(0) or 0
        return writer.write(tasks(records(start, self._payloads[start:])))

    def is_exact(self, rows: int) -> None:
        assert rows_of(self.spec, "_offset", "a") == [(n, float(n)) for n in range(rows)]
        assert audit_spec(self.api_spec, self.positions()).problems == []


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCatalogServer]:
    with RestCatalogServer(tmp_path_factory.mktemp("rest")) as running:
        yield running


@pytest.fixture
def proxy(rest: RestCatalogServer) -> Iterator[CatalogProxy]:
    with CatalogProxy(rest.url) as running:
        yield running


@pytest.fixture
def lake(server: StreamServer, tmp_path: Path, proxy: CatalogProxy) -> CatalogLake:
    return CatalogLake(server, tmp_path, uri=proxy.url)


@pytest.fixture(params=[pytest.param("rest", marks=pytest.mark.servers), "sql"])
def shared(
    request: pytest.FixtureRequest, server: StreamServer, tmp_path: Path
) -> tuple[CatalogLake, Callable[[], Catalog]]:
    """A table in a catalog of each type, and the catalog as others open it."""
    if request.param == "sql":
        uri = f"sqlite:///{tmp_path}/catalog.db"
        return CatalogLake(server, tmp_path, type="sql", uri=uri), lambda: SqlCatalog(
            "shared", uri=uri
        )
    uri = request.getfixturevalue("proxy").url
    return CatalogLake(server, tmp_path, uri=uri), lambda: other(uri)


def other(uri: str) -> Catalog:
    """A REST catalog as others open it."""
    return RestCatalog("other", uri=uri, token="any")


def test_member_tables_are_in_the_namespace_of_the_table(
    shared: tuple[CatalogLake, Callable[[], Catalog]],
) -> None:
    lake, catalog = shared
    lake.api_spec |= {"tables": "meters_${a}", "max_tables": 2}
    spec = TableSpec.of_api(lake.api_spec, lake.positions())
    # Another table has a name that a row would have: its rows are dead letters, and no other.
    open_or_create("iceberg", beside_entry(spec.place, "meters_7"), spec.binding, ())
    for payloads in ([{"a": 7}, {"a": 1}, {"a": 2}], [{"a": 2}, {"a": 3}]):
        lake.publish(payloads)
        writer = open_writer(spec, "job")
        start = writer.table.next(0) or 0
        writer.write(tasks(records(start, lake._payloads[start:])))
    names = {
        f"meters_{a}": catalog().load_table((*lake.identifier[:-1], f"meters_{a}")) for a in (1, 2)
    }
    assert {name: table.scan().to_arrow().num_rows for name, table in names.items()} == {
        "meters_1": 1,
        "meters_2": 2,
    }
    assert [error[:30] for (error,) in dead_letters_of(spec, "_error")] == [
        "table 'meters_7' cannot be cre", "table 'meters_3' would be one ",
    ]  # fmt: skip
    audit = audit_spec(lake.api_spec, lake.positions())
    assert (audit.problems, audit.tables) == ([], ["meters_1", "meters_2"])


def beside_entry(place: Place, name: str) -> Place:
    """The place of another table of the same namespace."""
    assert place.entry is not None
    return replace(
        place,
        url=f"{place.url}-{name}",
        entry=replace(place.entry, identifier=(*place.entry.identifier[:-1], name)),
    )


def test_others_find_table_and_dead_letters_by_the_names_that_were_chosen(
    shared: tuple[CatalogLake, Callable[[], Catalog]],
) -> None:
    lake, catalog = shared
    lake.write([{"a": 0}, {"a": 1}])
    lake.write([{"a": 2}, b"bad"])
    assert sorted(name[-1] for name in catalog().list_tables(lake.identifier[:-1])) == [
        "meters",
        "meters__dead_letters",
    ]
    rows = catalog().load_table(lake.identifier).scan().to_arrow().sort_by("_offset")
    assert rows.column("a").to_pylist() == [0, 1, 2]
    assert dead_letters_of(lake.spec, "_offset") == [(3,)]
    ledger = Ledger(lake.spec.place, lake.spec.name)
    tidy(lake.spec, ledger, 0.0)
    report = audit_spec(lake.api_spec, lake.positions())
    assert (report.problems, report.shards[0].rows, report.shards[0].dead_letters) == ([], 3, 1)
    assert not (Path(lake.spec.place.path) / "_catalog.db").exists()


def test_a_batch_goes_on_top_of_what_another_engine_committed_first(
    shared: tuple[CatalogLake, Callable[[], Catalog]],
) -> None:
    lake, catalog = shared
    lake.write([{"a": 0}])
    lake.publish([{"a": 1}])
    versions: list[int] = []

    def run(plan: Plan) -> list[TaskResult]:
        table = catalog().load_table(lake.identifier)
        table.append(table.scan().to_arrow().slice(0, 0))
        versions.append(table.snapshots()[-1].sequence_number or 0)
        return tasks(records(1, [{"a": 1}]))(plan)

    outcome = TableWriter(lake.spec, "job").write(run)
    assert (outcome.written, [outcome.version]) == (1, [one + 1 for one in versions])
    lake.is_exact(2)


@pytest.mark.heavy
def test_icebergs_own_library_reads_and_maintains_the_table(
    lake: CatalogLake, rest: RestCatalogServer
) -> None:
    for at in range(4):
        lake.write([{"a": at}])
    with java_catalog(rest.url) as (catalog, jvm):
        table = catalog.loadTable(
            jvm.org.apache.iceberg.catalog.TableIdentifier.parse(".".join(lake.identifier))
        )
        table.expireSnapshots().expireOlderThan(
            jvm.java.lang.System.currentTimeMillis()
        ).retainLast(1).commit()
        lake.write([{"a": 4}])
        table.refresh()
        rows = jvm.org.apache.iceberg.data.IcebergGenerics.read(table).build().iterator()
        found = []
        while rows.hasNext():
            found.append(rows.next().getField("a"))
    assert sorted(found) == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert len(other(rest.url).load_table(lake.identifier).snapshots()) == 2
    lake.is_exact(5)


@pytest.mark.heavy
@pytest.mark.parametrize("type", ["rest", "sql"])
def test_a_table_in_a_store_and_a_catalog(
    server: StreamServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, type: str
) -> None:
    with ExitStack() as running:
        s3 = running.enter_context(S3Server(tmp_path))
        s3.make_bucket("plant")
        store = {"url": "s3://plant", "endpoint": s3.endpoint, "region": "us-east-1"}
        for name, value in KEYS.items():
            monkeypatch.setenv(f"SLUICE_SECRET_{name.upper()}", value)
            store[name] = f"${{env:SLUICE_SECRET_{name.upper()}}}"
        uri = f"sqlite:///{tmp_path}/catalog.db"
        if type == "rest":
            (tmp_path / "rest").mkdir()
            uri = running.enter_context(RestCatalogServer(tmp_path / "rest", s3.endpoint, KEYS)).url
        lake = CatalogLake(server, "s3://plant/lake", store, type=type, uri=uri)
        for at in range(3):
            lake.write([{"a": at}])
        lake.is_exact(3)
        lake.write([b"bad"])
        tidy(lake.spec, Ledger(lake.spec.place, lake.spec.name), 0.0)
        report = audit_spec(lake.api_spec, lake.positions())
        assert (report.problems, report.shards[0].rows, report.shards[0].dead_letters) == ([], 3, 1)
        reached = {
            f"s3.{name.replace('_', '-')}": value for name, value in lake.spec.place.options.items()
        }
        found = load_catalog("shared", type=type, uri=uri, token="any", **reached).load_table(
            lake.identifier
        )
        assert sorted(found.scan().to_arrow().column("a").to_pylist()) == [0, 1, 2]


@pytest.mark.parametrize("fault", ["lose request", "lose answer", "send twice"])
def test_a_commit_whose_answer_says_nothing_is_done_once(
    lake: CatalogLake, proxy: CatalogProxy, fault: str
) -> None:
    lake.write([{"a": 0}])
    proxy.faults.append(fault)
    outcome = lake.write([{"a": 1}, {"a": 2}])
    assert not proxy.faults
    table = other(proxy.url).load_table(lake.identifier)
    assert (outcome.written, outcome.version) == (2, table.snapshots()[-1].sequence_number)
    lake.is_exact(3)
    assert len(table.metadata.snapshots) == 2


def test_every_commit_of_many_batches_loses_its_answer(
    lake: CatalogLake,
    proxy: CatalogProxy,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setitem(iceberg._BOUNDS, "write.metadata.previous-versions-max", "2")
    written = 0
    for at in range(6):
        proxy.faults.extend(["lose answer", "lose request", "send twice"])
        written += lake.write([{"a": 2 * at}, b"bad" if at % 2 else {"a": 2 * at + 1}]).written
    report = audit_spec(lake.api_spec, lake.positions())
    assert (report.problems, report.shards[0].rows, report.shards[0].dead_letters) == ([], 9, 3)
    assert written == 9
    proxy.faults.clear()
    lake.write([{"a": 12}])
    assert "delete" not in caplog.text, "old metadata is the server's to remove"
    writer = TableWriter(lake.spec, "job")
    assert writer.dead_letters is not None
    for table in (writer.table, writer.dead_letters):
        assert table.clean(0.0, dry_run=False), "files of commits that were not done"
        assert not table.clean(0.0, dry_run=True)
    assert audit_spec(lake.api_spec, lake.positions()).ok


@pytest.mark.parametrize("fault", ["", "lose request", "lose answer"])
def test_a_retype_whose_answer_is_lost_is_done_once(
    lake: CatalogLake, proxy: CatalogProxy, fault: str
) -> None:
    lake.write([{"a": 0}, {"a": 1}])
    proxy.faults.append(fault)
    done = retype(TableWriter(lake.spec, "job"), "a", "json")
    assert (done.rows_before, done.rows_after) == (2, 2)
    assert rows_of(lake.spec, "a") == [("0.0",), ("1.0",)]
    assert audit_spec(lake.api_spec, lake.positions()).ok


def test_a_catalog_that_is_away_is_a_sentence(lake: CatalogLake) -> None:
    lake.write([{"a": 0}])
    port = free_port()
    lake.reach(uri=f"http://127.0.0.1:{port}")
    reason = f"catalog 'shared' at http://127.0.0.1:{port} cannot be used: Connection refused"
    with pytest.raises(Unavailable, match=f"^{re.escape(reason)}$"):
        TableWriter(lake.spec, "job")
    with pytest.raises(Unavailable, match=f"^{re.escape(reason)}$"):
        audit_spec(lake.api_spec, lake.positions())


def test_a_catalog_that_goes_away_is_a_sentence_and_the_batch_comes_again(
    rest: RestCatalogServer, server: StreamServer, tmp_path: Path
) -> None:
    with CatalogProxy(rest.url) as proxy:
        lake = CatalogLake(server, tmp_path, uri=proxy.url)
        lake.write([{"a": 0}])
        lake.publish([{"a": 1}])
        writer = TableWriter(lake.spec, "job")
    with pytest.raises(
        Unavailable, match=r"catalog 'shared' at .* cannot be used: Connection refused"
    ):
        writer.write(tasks(records(1, [{"a": 1}])))
    lake.reach(uri=rest.url)
    lake.write([])
    lake.is_exact(2)


@pytest.mark.spark
@pytest.mark.heavy
def test_a_query_fails_while_the_catalog_is_away_and_then_goes_on(
    run_query: Callable[[dict[str, Any]], TableQuery],
    rest: RestCatalogServer,
    server: StreamServer,
    tmp_path: Path,
) -> None:
    port = free_port()
    reached = {"name": "shared", "uri": f"http://127.0.0.1:{port}"}
    spec = add_table(
        server,
        tmp_path,
        format="iceberg",
        catalog="shared",
        catalog_table="plant.readings",
        catalog_settings=reached,
    )
    query = run_query(spec)
    with CatalogProxy(rest.url, port=port) as proxy:
        server.append("readings", [{"n": n} for n in range(500)])
        proxy.faults.extend(["lose answer", "lose request"])
        step_until(query, reaches(500))
    server.append("readings", [{"n": n} for n in range(500)])
    report = step_until(query, lambda report: report["state"] == "failed")
    assert (
        report["last_error"]["message"]
        == f"catalog 'shared' at {reached['uri']} cannot be used: Connection refused"
    )
    with CatalogProxy(rest.url, port=port):
        report = step_until(
            query, lambda report: reaches(1000)(report) and report["state"] == "running"
        )
        assert report["rows"] == 1000
        assert audit_table("readings", url=server.url, token=TOKEN).problems == []


def test_oauth_takes_the_secret_from_the_environment_and_no_other(
    rest: RestCatalogServer, server: StreamServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_SECRET_CATALOG", "opensesame")
    with CatalogProxy(rest.url, clients={"sluice": "opensesame"}) as proxy:
        lake = CatalogLake(
            server,
            tmp_path,
            uri=proxy.url,
            client_id="sluice",
            client_secret="${env:SLUICE_SECRET_CATALOG}",
        )
        lake.write([{"a": 0}])
        lake.is_exact(1)
        assert "opensesame" not in repr(lake.spec)
        assert b"opensesame" not in pickle.dumps(TableWriter(lake.spec, "job").plan()), (
            "tasks need no catalog"
        )
        monkeypatch.setenv("SLUICE_SECRET_CATALOG", "wrongsesame")
        lake.reach(**lake.api_spec["catalog_settings"])
        with pytest.raises(Unavailable) as refused:
            TableWriter(lake.spec, "job")
    assert str(refused.value).startswith(
        f"catalog 'shared' at {proxy.url} refuses the credentials: invalid_client"
    )
    assert "wrongsesame" not in str(refused.value)


def test_a_token_that_is_refused_is_a_sentence(
    rest: RestCatalogServer, server: StreamServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_SECRET_TOKEN", "token")
    with CatalogProxy(rest.url, clients={"sluice": "opensesame"}) as proxy:
        lake = CatalogLake(server, tmp_path, uri=proxy.url, token="${env:SLUICE_SECRET_TOKEN}")
        lake.write([{"a": 0}])
        monkeypatch.setenv("SLUICE_SECRET_TOKEN", "stale")
        lake.reach(**lake.api_spec["catalog_settings"])
        with pytest.raises(
            Unavailable, match="refuses the credentials: NotAuthorizedException: bad token"
        ):
            TableWriter(lake.spec, "job")


def test_another_table_of_the_same_name_is_not_taken_for_the_one_that_was_written(
    shared: tuple[CatalogLake, Callable[[], Catalog]],
) -> None:
    lake, catalog = shared
    lake.write([{"a": 0}])
    writer = TableWriter(lake.spec, "job")
    schema, location = writer.table._table.schema(), writer.table._table.location()
    catalog().drop_table(lake.identifier)
    catalog().create_table(lake.identifier, schema, location)
    with pytest.raises(
        TableLost, match=r"table 'readings' is another one: the table at .* has identifier"
    ):
        writer.write(tasks(records(1, [{"a": 1}])))
    with pytest.raises(
        TableLost, match=r"cannot be opened: .* is an Iceberg table that Sluice did not make"
    ):
        TableWriter(replace(lake.spec, expected=writer.parts()), "job")


@pytest.mark.parametrize("harm", ["dropped", "renamed"])
def test_a_table_that_was_dropped_or_renamed_is_not_made_again(
    shared: tuple[CatalogLake, Callable[[], Catalog]], harm: str
) -> None:
    lake, catalog = shared
    lake.write([{"a": 0}])
    lake.publish([{"a": 1}])
    writer = TableWriter(lake.spec, "job")
    if harm == "dropped":
        catalog().drop_table(lake.identifier)
    else:
        catalog().rename_table(lake.identifier, (*lake.identifier[:-1], "elsewhere"))
    said = r"is gone from .*\.hall_2\.meters of catalog 'shared'"
    with pytest.raises(TableLost, match=said):
        writer.write(tasks(records(1, [{"a": 1}])))
    with pytest.raises(TableLost, match=said):
        TableWriter(replace(lake.spec, expected={"": Part(None, 1)}), "job")
    with pytest.raises(TableRefused, match=r"has the files of a table that was dropped or renamed"):
        TableWriter(lake.spec, "job")
    with pytest.raises(Unreadable):
        audit_spec({**lake.api_spec, "report": {"offsets": {"0": "1"}}}, lake.positions())
    if harm == "renamed":
        catalog().rename_table((*lake.identifier[:-1], "elsewhere"), lake.identifier)
        lake.write([])
        lake.is_exact(2)


def test_a_table_of_somebody_else_is_refused(
    lake: CatalogLake, proxy: CatalogProxy, tmp_path: Path
) -> None:
    catalog = other(proxy.url)
    for depth in (1, 2):
        catalog.create_namespace(lake.identifier[:depth])
    catalog.create_table(
        lake.identifier, pa.schema([("a", pa.int64())]), location=(tmp_path / "theirs").as_uri()
    )
    with pytest.raises(TableRefused, match="is an Iceberg table that Sluice did not make"):
        TableWriter(lake.spec, "job")


def test_a_table_at_another_path_is_refused(lake: CatalogLake, tmp_path: Path) -> None:
    lake.write([{"a": 0}])
    lake.api_spec["path"] = str(tmp_path / "elsewhere")
    lake.reach(**lake.api_spec["catalog_settings"])
    with pytest.raises(
        TableRefused, match=f"expected it at {tmp_path}/elsewhere, got file:.*/readings"
    ):
        TableWriter(lake.spec, "job")


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"uri": "catalog.example"}, "uri: expected https://HOST/PATH, got 'catalog.example'"),
        (
            {"uri": "https://c", "token": "abc"},
            "token: expected `${secret:NAME}`, `${env:NAME}` or `${file:PATH}`, got a string",
        ),
        (
            {"uri": "https://c", "client_id": "a"},
            "client_secret: expected it together with client_id",
        ),
        (
            {"uri": "https://c", "password": "${env:A}"},
            "password: expected a member of type 'rest', got one of",
        ),
        ({"type": "sql", "uri": "postgresql://u:p@h/d"}, "uri: expected no password, got one."),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(problem)):
        CatalogSettings(name="shared", **settings)
