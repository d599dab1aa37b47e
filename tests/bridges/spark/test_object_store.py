"""Tables in an S3 store: what they promise on a disk holds there too, and a store that fails says so in a sentence."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.fs as fs
import pytest
from deltalake import DeltaTable
from pydantic import ValidationError
from pyiceberg.table import StaticTable

from bridges.spark.broker_side.settings import LakeSettings
from bridges.spark.columns.place import Place
from bridges.spark.columns.store import place_of
from bridges.spark.driver import shadow
from bridges.spark.driver.audit import audit_table
from bridges.spark.driver.batch import TableSpec, TableWriter
from bridges.spark.driver.executors import PROBE
from bridges.spark.driver.ledger import Ledger
from bridges.spark.driver.member_places import members_place, open_members
from bridges.spark.driver.replay import Replayed, cleaned
from bridges.spark.driver.spark_errors import sentence_of
from bridges.spark.driver.upkeep import tidy
from bridges.spark.driver.upserts import open_writer
from bridges.spark.tables import iceberg
from bridges.spark.tables.contract import Range, TableRefused
from bridges.spark.tables.place_catalog import PlaceCatalog
from bridges.spark.tasks.task import Plan, TaskResult
from broker.config.object_stores import StoreSettings, url_problem
from broker.config.secret_text import SecretUnreadable
from tests.bridges.spark.batches import dead_letters_of, records, rows_of, tasks
from tests.bridges.spark.stream_server import TOKEN, StreamServer
from tests.bridges.spark.test_lake_audit import Lake, check_that_one_of_two_drivers_commits
from tests.support.failing_proxy import FailingProxy
from tests.support.processor import Stopwatch
from tests.support.s3_server import KEYS, S3Server

REFERENCES = {name: f"${{env:SLUICE_SECRET_{name.upper()}}}" for name in KEYS}
VERSION_FILE = {"delta": "_delta_log/0", "iceberg": "metadata/v"}
Make = Callable[..., Lake]


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture
def proxy(s3: S3Server, tmp_path: Path) -> Iterator[FailingProxy]:
    with FailingProxy(s3.port, tmp_path) as running:
        yield running


@pytest.fixture
def bucket(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in KEYS.items():
        monkeypatch.setenv(f"SLUICE_SECRET_{name.upper()}", value)
    name = tmp_path.name.replace("_", "-").lower()[:60].strip("-")
    s3.make_bucket(name)
    return f"s3://{name}"


@pytest.fixture(params=["delta", "iceberg"])
def make(
    request: pytest.FixtureRequest, server: StreamServer, bucket: str, proxy: FailingProxy
) -> Make:
    """A table in the store, which is reached through the proxy."""

    def made(**given: Any) -> Lake:
        store = {
            "url": bucket,
            "endpoint": proxy.endpoint,
            "region": "us-east-1",
            **REFERENCES,
            **given,
        }
        return Lake(server, f"{bucket}/lake", request.param, store)

    return made


def options_of(lake: Lake) -> dict[str, str]:
    return dict(lake.spec.place.options)


def test_rows_dead_letters_and_ledger_are_in_the_store_and_others_read_them(
    make: Make, s3: S3Server
) -> None:
    lake = make()
    lake.publish([{"a": 1}, b"bad", {"a": 2}])
    lake.fill()
    lake.publish([{"a": 3}])
    writer = lake.fill()
    assert rows_of(lake.spec, "_offset", "a") == [(0, 1.0), (2, 2.0), (3, 3.0)]
    assert [offset for (offset,) in dead_letters_of(lake.spec, "_offset")] == [1]
    assert writer.table.newest(1).column("a").to_pylist() == [3.0]
    ledger = Ledger(lake.spec.place, "readings")
    tidy(lake.spec, ledger, time.monotonic())
    assert [row["to_offset"] for row in ledger.rows(writer.table.identity()).to_pylist()] == [3, 4]
    assert audit_table("readings", url=lake.server.url, token=TOKEN).problems == []
    url = lake.spec.place.url
    folders = s3.files.get_file_info(fs.FileSelector(Place(url).parent.path))
    assert {Path(one.path).name for one in folders} == {
        "readings",
        "readings__dead_letters",
        "_ledger",
    }
    if lake.spec.format == "delta":
        found = DeltaTable(url, storage_options=lake.spec.place.storage_options).to_pyarrow_table()
    else:
        properties = {
            f"s3.{name.replace('_', '-')}": value for name, value in options_of(lake).items()
        }
        with s3.files.open_input_file(f"{Place(url).path}/metadata/version-hint.text") as hint:
            newest = f"{url}/metadata/v{hint.read().decode()}.metadata.json"
        found = StaticTable.from_metadata(newest, properties).scan().to_arrow()
    assert sorted(found.column("a").to_pylist()) == [1.0, 2.0, 3.0]


def test_member_tables_are_in_the_store_and_what_tasks_left_is_cleaned(
    make: Make, s3: S3Server
) -> None:
    lake = make()
    lake.api_spec |= {"tables": "m_${a}", "max_tables": 2}
    spec = TableSpec.of_api(lake.api_spec, lake.positions())
    lake.publish([{"a": 1}, {"a": 2}, b"bad", {"a": 1}, {"a": 3}, {"a": 2}])
    writer = open_writer(spec, "job")
    tasks(records(0, lake._payloads))(writer.plan())  # and dies
    writer.write(tasks(records(0, lake._payloads[:4])))
    open_writer(spec, "next").write(tasks(records(4, lake._payloads[4:])))
    members = open_members(spec.format, spec.place, spec.binding)
    assert {
        name: sorted(one.scan(["_offset"]).column(0).to_pylist()) for name, one in members.items()
    } == {
        "m_1": [0, 3],
        "m_2": [1, 5],
    }
    audit = audit_table("readings", url=lake.server.url, token=TOKEN)
    assert (audit.problems, audit.tables, audit.shards[0].dead_letters) == ([], ["m_1", "m_2"], 2)
    assert cleaned(spec, 0.0, dry_run=True)["files"] >= 2
    cleaned(spec, 0.0, dry_run=False)
    there = s3.files.get_file_info(fs.FileSelector(members_place(spec.place).path, recursive=True))
    files = {
        one.path for one in there if one.extension == "parquet" and "/_delta_log/" not in one.path
    }
    assert files == {
        one.place.path_of(path) for one in members.values() for path in one.data_files()
    }


def test_a_replay_replaces_its_range(make: Make) -> None:
    lake = make()
    lake.publish([{"a": n} for n in range(5)])
    lake.fill()
    lake.republish([{"a": 10 * n} for n in range(5)])
    Replayed(lake.spec).run([Range(0, 1, 3)], lake.read)
    assert rows_of(lake.spec, "a") == [(0.0,), (10.0,), (20.0,), (3.0,), (4.0,)]


def test_a_replay_whose_answer_is_lost_replaces_its_range_once(
    make: Make, proxy: FailingProxy
) -> None:
    lake = make()
    lake.publish([{"a": n} for n in range(5)])
    lake.fill()
    lake.republish([{"a": 10 * n} for n in range(5)])
    replayed = Replayed(lake.spec)
    proxy.fail(
        method="PUT", parts=["readings/", VERSION_FILE[lake.spec.format]], is_lost=True, times=1
    )
    replayed.run([Range(0, 1, 3)], lake.read)
    assert rows_of(lake.spec, "a") == [(0.0,), (10.0,), (20.0,), (3.0,), (4.0,)]
    assert audit_table("readings", url=lake.server.url, token=TOKEN).problems == []


def test_a_shadow_is_in_the_store_and_takes_its_place(make: Make, s3: S3Server) -> None:
    lake = make()
    lake.publish([{"a": n} for n in range(5)])
    lake.fill()
    lake.republish([{"a": 10 * n} if n else b"bad" for n in range(5)])
    shadow.fill(lake.spec, "r1", [Range(0, 0, 3)], lambda ranges: iter([lake.read(ranges)]))
    assert rows_of(shadow.shadow_of(lake.spec), "a") == [(10.0,), (20.0,)]
    shadow.swap(lake.spec, TableWriter(lake.spec, "swap"))
    assert rows_of(lake.spec, "_offset", "a") == [(1, 10.0), (2, 20.0), (3, 3.0), (4, 4.0)]
    assert [offset for (offset,) in dead_letters_of(lake.spec, "_offset")] == [0]
    folders = s3.files.get_file_info(fs.FileSelector(Place(lake.spec.place.url).parent.path))
    assert {Path(one.path).name for one in folders} == {"readings", "readings__dead_letters"}


def test_of_two_drivers_with_the_same_batch_one_commits(make: Make) -> None:
    check_that_one_of_two_drivers_commits(make())


def test_a_commit_whose_answer_is_lost_is_there_once(make: Make, proxy: FailingProxy) -> None:
    lake = make()
    lake.publish([{"a": 0}])
    lake.fill()
    proxy.fail(
        method="PUT", parts=["readings/", VERSION_FILE[lake.spec.format]], is_lost=True, times=1
    )
    lake.publish([{"a": 1}, b"bad"])
    lake.fill()
    lake.publish([{"a": 3}])
    lake.fill()
    assert proxy.met == 1
    assert rows_of(lake.spec, "_offset", "a") == [(0, 0.0), (1, 1.0), (3, 3.0)]
    assert audit_table("readings", url=lake.server.url, token=TOKEN).problems == []


def test_a_store_that_fails_now_and_then_loses_nothing(make: Make, proxy: FailingProxy) -> None:
    lake = make()
    proxy.fail(every=6, status=503, body="<Error><Code>SlowDown</Code></Error>")
    for number in range(2):
        lake.publish([{"a": number}, b"bad"])
        lake.fill()
    assert rows_of(lake.spec, "_offset") == [(n,) for n in (0, 2)]
    assert audit_table("readings", url=lake.server.url, token=TOKEN).problems == []


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        ("keys", "refuses the credentials ("),
        ("bucket", "has no such bucket (NoSuchBucket). Try: create it."),
        ("down", "does not answer"),
        ("errors", "does not answer"),
    ],
)
def test_what_the_store_refuses_is_one_sentence_within_15_s(
    make: Make, proxy: FailingProxy, bucket: str, harm: str, sentence: str
) -> None:
    lake = make(**({"endpoint": "http://127.0.0.1:1"} if harm == "down" else {}))
    place = lake.spec.place
    if harm == "keys":
        proxy.refuse_keys()
    elif harm == "bucket":
        place = Place("s3://nowhere/lake/readings", place.options)
    elif harm == "errors":
        proxy.fail(status=500)
    watch = Stopwatch(os.getpid())
    spec = type(lake.spec)("readings", lake.spec.format, place, "rows", lake.spec.binding)
    with pytest.raises(Exception) as refused:
        TableWriter(spec, "job")
    said = sentence_of(f"{refused.type.__name__}: {refused.value}", place.url)
    assert said.startswith(f"the store of {place} {sentence}")
    assert KEYS["secret_access_key"] not in said
    assert watch.elapsed_s() < 15


def test_files_of_killed_writers_and_refused_commits_are_cleaned(make: Make, s3: S3Server) -> None:
    lake = make()
    lake.publish([{"a": 0}, b"bad"])
    writer, other = lake.fill(), TableWriter(lake.spec, "other")
    run = tasks(records(2, [{"a": 1}, b"bad"]))
    run(writer.plan())  # and killed
    lake.publish([{"a": 1}, b"bad"])

    def overtaken(plan: Plan) -> list[TaskResult]:
        other.write(run)
        return run(plan)

    assert writer.write(overtaken).written == 0
    place = lake.spec.place
    place.put_new(f"{PROBE}1.parquet", b"of a driver that was killed while it asked executors")
    assert cleaned(lake.spec, 3600, dry_run=False)["files"] == 0
    counted = cleaned(lake.spec, 0, dry_run=True)
    assert (counted["files"], counted["dead_letter_files"]) == (3, 2)
    assert cleaned(lake.spec, 0, dry_run=False) == {**counted, "dry_run": False}
    assert cleaned(lake.spec, 0, dry_run=False)["files"] == 0
    found = s3.files.get_file_info(fs.FileSelector(place.path, recursive=True))
    assert len([one.path for one in found if one.path.endswith(".parquet")]) == 2
    assert rows_of(lake.spec, "_offset") == [(0,), (2,)]
    assert audit_table("readings", url=lake.server.url, token=TOKEN).problems == []


def test_a_store_without_conditional_puts_is_refused(make: Make, proxy: FailingProxy) -> None:
    lake = make()
    proxy.drop("if-none-match")
    with pytest.raises(
        TableRefused, match=r"expected a store with conditional puts \(If-None-Match\)"
    ):
        TableWriter(lake.spec, "job")


@pytest.mark.parametrize(
    "make", ["iceberg"], indirect=True
)  # Delta's versions are removed with its log, after days
def test_a_driver_that_was_held_up_for_many_versions_does_not_commit(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(iceberg._BOUNDS, "write.metadata.previous-versions-max", "2")
    lake = make()
    lake.publish([{"a": 0}])
    late = lake.fill()
    catalog = late.table._table.catalog
    assert isinstance(catalog, PlaceCatalog)
    held_up = catalog.load_table(("sluice", "readings"))
    for number in range(1, 6):
        lake.publish([{"a": number}])
        lake.fill()
    known = [held_up, held_up]  # when it looks for its end, and when it commits
    load = catalog.load_table
    monkeypatch.setattr(catalog, "load_table", lambda name: known.pop() if known else load(name))
    outcome = late.write(tasks(records(1, [{"a": n} for n in range(1, 3)])))
    assert (outcome.written, known) == (0, [])
    assert rows_of(lake.spec, "_offset") == [(n,) for n in range(6)]


def test_secrets_are_references_and_show_nowhere(
    bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(ValidationError, match=r"access_key_id: expected `\$\{secret:NAME\}`, "):
        StoreSettings.model_validate({"url": bucket, **KEYS})
    settings = StoreSettings.model_validate({"url": bucket, **REFERENCES})
    spec = {
        "path": f"{bucket}/one",
        "store": settings.model_dump(mode="json", exclude_defaults=True),
    }
    assert spec["store"] == {"url": bucket, **REFERENCES}
    place = place_of(spec)
    assert place.options["secret_access_key"] == KEYS["secret_access_key"]
    assert KEYS["secret_access_key"] not in f"{place!r} {place} {settings!r}"
    monkeypatch.delenv("SLUICE_SECRET_ACCESS_KEY_ID")
    with pytest.raises(
        SecretUnreadable,
        match="SLUICE_SECRET_ACCESS_KEY_ID, which the settings refer to, is not set",
    ):
        place_of(spec)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (
            {"url": "https://lake"},
            "url: expected s3://..., gs://..., abfss://..., got 'https://lake'",
        ),
        ({"url": "gs://lake", "region": "eu"}, "region: expected a store of s3://, got gs://"),
        (
            {"url": "s3://lake", "access_key_id": "${env:SLUICE_SECRET_A}"},
            "secret_access_key: expected together with",
        ),
        (
            {"url": "abfss://a@b", "anonymous": True},
            "anonymous: expected a store of s3:// or gs://, got abfss://",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(given: dict[str, str], problem: str) -> None:
    with pytest.raises(ValidationError) as refused:
        StoreSettings.model_validate(given)
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (
            {"stores": [{"url": "s3://lake"}, {"url": "s3://lake/"}]},
            "stores: expected each url once, got 's3://lake'",
        ),
        (
            {"catalogs": [{"name": "polaris", "uri": "https://a/b"}] * 2},
            "catalogs: expected each name once",
        ),
    ],
)
def test_two_stores_or_catalogs_of_one_name_are_refused(
    given: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        LakeSettings.model_validate(given)
    assert problem in str(refused.value)


def test_other_stores_are_reached_by_the_same_settings() -> None:
    azure = Place(
        "abfss://lake@account.dfs.core.windows.net/t/readings",
        {"account_key": "a2V5", "endpoint": "http://127.0.0.1:1"},
    )
    assert isinstance(azure.files, fs.AzureFileSystem)
    assert azure.path_of("f") == "lake/t/readings/f"
    options = azure.storage_options or {}
    assert options["azure_storage_endpoint"] == "http://127.0.0.1:1/account"
    assert (options["azure_storage_account_key"], options["allow_http"]) == ("a2V5", "true")
    google = Place("gs://lake/t/readings", {"anonymous": "true"})
    assert isinstance(google.files, fs.GcsFileSystem)
    assert google.path_of("f") == "lake/t/readings/f"


def test_tables_are_in_the_stores_that_are_configured() -> None:
    stores = [StoreSettings(url="s3://lake/sluice")]
    assert url_problem("s3://lake/sluice/readings", stores) is None
    assert url_problem("s3://lake/other", stores) == (
        "expected a URL in one of the stores of lake.stores (s3://lake/sluice), got s3://lake/other"
    )
    assert url_problem("s3://lake/sluice/../other", stores) is not None
    assert url_problem("s3://lake/sluice/a?b", stores) is not None
