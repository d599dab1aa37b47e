"""Tables in emulators of Google Cloud Storage and of Azure's blobs, through the settings that users have."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.fs as fs
import pytest
from deltalake import DeltaTable

from bridges.spark.columns.place import Place
from bridges.spark.driver.audit import audit_table
from bridges.spark.driver.ledger import Ledger
from bridges.spark.driver.replay import cleaned
from bridges.spark.driver.upkeep import tidy
from bridges.spark.tables.formats import dead_letters_place
from tests.bridges.spark.batches import dead_letters_of, records, rows_of, tasks
from tests.bridges.spark.stream_server import TOKEN, StreamServer
from tests.bridges.spark.test_lake_audit import Lake, check_that_one_of_two_drivers_commits
from tests.support.azure_server import ACCOUNT, KEY, AzureServer
from tests.support.environments import environment
from tests.support.gcs_server import GcsServer

_PYICEBERG = """
import json, sys
from pyiceberg.table import StaticTable
location, column = sys.argv[1:]
print(json.dumps(StaticTable.from_metadata(location, json.load(sys.stdin)).scan().to_arrow()[column].to_pylist()))
"""


@dataclass(frozen=True)
class Store:
    """A store of ``settings``; ``files`` looks into it, and others read its tables with their own options."""

    url: str
    settings: dict[str, Any]
    files: fs.FileSystem
    delta_options: dict[str, str]
    iceberg_properties: dict[str, str]
    python: str = sys.executable


@pytest.fixture(scope="module", params=["gs", pytest.param("abfss", marks=pytest.mark.heavy)])
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Store]:
    directory = tmp_path_factory.mktemp(request.param)
    if request.param == "gs":
        with GcsServer(directory) as google:
            google.files.create_dir("lake")
            nothing = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
            key = {**nothing, "gcs_base_url": google.proxy.endpoint, "disable_oauth": True}
            yield Store(
                "gs://lake",
                {"endpoint": google.proxy.endpoint, "anonymous": True},
                google.files,
                {"google_service_account_key": json.dumps(key), "allow_http": "true"},
                {
                    "gcs.service.host": google.proxy.endpoint,
                    "gcs.oauth2.token": "none",
                    "gcs.oauth2.token-expires-at": "9999999999999",
                },
            )
    else:
        with AzureServer(directory) as azure, pytest.MonkeyPatch.context() as environ:
            azure.files.create_dir("lake")
            environ.setenv("SLUICE_SECRET_AZURE", KEY)
            address = f"127.0.0.1:{azure.port}"
            options = {
                "account_name": ACCOUNT,
                "account_key": KEY,
                "endpoint": f"http://{address}/{ACCOUNT}",
            }
            connection = {
                "DefaultEndpointsProtocol": "http",
                "AccountName": ACCOUNT,
                "AccountKey": KEY,
            }
            connection["BlobEndpoint"] = f"http://{address}/{ACCOUNT}"
            yield Store(
                f"abfss://lake@{ACCOUNT}.dfs.core.windows.net",
                {"endpoint": f"http://{address}", "account_key": "${env:SLUICE_SECRET_AZURE}"},
                azure.files,
                {
                    **{f"azure_storage_{name}": value for name, value in options.items()},
                    "allow_http": "true",
                },
                {
                    "adls.connection-string": ";".join(
                        f"{name}={value}" for name, value in connection.items()
                    )
                },
                str(environment("pyiceberg[adlfs,pyarrow]==0.12.0")),
            )


@pytest.fixture(params=["delta", "iceberg"])
def lake(
    request: pytest.FixtureRequest, store: Store, server: StreamServer, tmp_path: Path
) -> Lake:
    return Lake(
        server, f"{store.url}/{tmp_path.name}", request.param, {"url": store.url, **store.settings}
    )


def files_in(store: Store, directory: str) -> list[Path]:
    """Files in a directory and below it, relative to it. Google's directories are in names of files only."""
    found = store.files.get_file_info(fs.FileSelector(directory, recursive=True))
    return [Path(one.path).relative_to(directory) for one in found if one.is_file]


def as_others_read(store: Store, lake: Lake, place: Place, column: str) -> list[Any]:
    """A column, by delta-rs or pyiceberg with options of their own."""
    if lake.spec.format == "delta":
        table = DeltaTable(place.url, storage_options=store.delta_options).to_pyarrow_table(
            columns=[column]
        )
        return sorted(table.column(0).to_pylist())
    with store.files.open_input_file(place.path_of("metadata/version-hint.text")) as newest:
        location = f"{place.url}/metadata/v{newest.read().decode()}.metadata.json"
    command, given = (
        [store.python, "-c", _PYICEBERG, location, column],
        json.dumps(store.iceberg_properties),
    )
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return sorted(json.loads(done.stdout))


def test_rows_dead_letters_and_ledger_are_in_the_store_and_others_read_them(
    lake: Lake, store: Store
) -> None:
    lake.publish([{"a": 1}, b"bad", {"a": 2}])
    lake.fill()
    lake.publish([{"a": 3}])
    writer = lake.fill()
    assert rows_of(lake.spec, "_offset", "a") == [(0, 1.0), (2, 2.0), (3, 3.0)]
    assert [offset for (offset,) in dead_letters_of(lake.spec, "_offset")] == [1]
    ledger = Ledger(lake.spec.place, "readings")
    tidy(lake.spec, ledger, time.monotonic())
    assert [row["to_offset"] for row in ledger.rows(writer.table.identity()).to_pylist()] == [3, 4]
    assert audit_table("readings", url=lake.server.url, token=TOKEN).problems == []
    place = lake.spec.place
    folders = {file.parts[0] for file in files_in(store, place.parent.path)}
    assert folders == {"readings", "readings__dead_letters", "_ledger"}
    assert as_others_read(store, lake, place, "a") == [1.0, 2.0, 3.0]
    assert as_others_read(store, lake, dead_letters_place(place), "_offset") == [1]


def test_the_second_of_two_puts_and_of_two_drivers_is_refused(lake: Lake) -> None:
    place = lake.spec.place
    assert [place.put_new("one", content) for content in (b"1", b"2", b"1")] == [True, False, True]
    check_that_one_of_two_drivers_commits(lake)


def test_files_of_killed_writers_are_cleaned(lake: Lake, store: Store) -> None:
    lake.publish([{"a": 0}, b"bad"])
    tasks(records(2, [{"a": 1}, b"bad"]))(lake.fill().plan())  # and killed
    counted = cleaned(lake.spec, 0, dry_run=True)
    assert (counted["files"], counted["dead_letter_files"]) == (1, 1)
    assert cleaned(lake.spec, 0, dry_run=False) == {**counted, "dry_run": False}
    assert cleaned(lake.spec, 0, dry_run=False)["files"] == 0
    folders = [
        file.parts[0]
        for file in files_in(store, lake.spec.place.parent.path)
        if file.suffix == ".parquet"
    ]
    assert sorted(folders) == ["readings", "readings__dead_letters"]
    assert rows_of(lake.spec, "_offset") == [(0,)]
