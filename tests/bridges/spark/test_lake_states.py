"""A table that cannot be filled is ``failed`` within 15 s, with the reason in a sentence, until it can be filled."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bridges.spark.driver.api import LakeApi
from bridges.spark.driver.executors import Executors
from bridges.spark.driver.query import KNOWN_AFTER_S, QuerySettings, TableQuery, monotonic
from bridges.spark.job import JobOptions, LakeJob
from tests.bridges.spark.stream_server import TOKEN, StreamServer
from tests.bridges.spark.test_lake_job import add_table, no_package, python_after
from tests.support.failing_proxy import FailingProxy
from tests.support.iceberg_catalog import RestCatalogServer
from tests.support.node import eventually
from tests.support.processor import Stopwatch, family
from tests.support.s3_server import KEYS, S3Server

pytestmark = pytest.mark.spark
DEADLINE_S = 90.0
_UNAUTHORIZED = '{"error": {"message": "bad token", "type": "NotAuthorizedException", "code": 401}}'


class Way:
    """A table that is filled, and the ways to its store and its catalog."""

    def __init__(self, server: StreamServer, store: FailingProxy, catalog: FailingProxy) -> None:
        self.server, self.store, self.catalog = server, store, catalog

    @property
    def report(self) -> dict[str, Any]:
        return self.server.reports.get("readings", {})

    def publish(self, count: int = 100) -> None:
        self.server.append("readings", [{"n": n} for n in range(count)])

    def filled(self) -> None:
        """Wait until the table has everything."""

        def is_whole() -> bool:
            end = str(self.server.streams["readings"].shards[0].next)
            return (self.report["state"], self.report["offsets"].get("0")) == ("running", end)

        eventually(is_whole, DEADLINE_S, what=f"the table: {self.report}")

    def failed(self, sentence: str) -> None:
        """Wait until the table is failed, and look at how long it took and what is said."""
        stopwatch = Stopwatch(*family())
        eventually(
            lambda: self.report["state"] == "failed", DEADLINE_S, what=f"a failure: {self.report}"
        )
        took_s, said = stopwatch.elapsed_s(), self.report["last_error"]["message"]
        print(f"{took_s:.1f} s: {said}")
        assert sentence in said
        assert "\n" not in said
        assert took_s < KNOWN_AFTER_S


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3")) as running:
        running.make_bucket("lake")
        yield running


@pytest.fixture(scope="module")
def rest(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCatalogServer]:
    with RestCatalogServer(tmp_path_factory.mktemp("rest"), s3.endpoint, KEYS) as running:
        yield running


@pytest.fixture(params=["delta"])
def way(
    request: pytest.FixtureRequest,
    server: StreamServer,
    s3: S3Server,
    rest: RestCatalogServer,
    spark: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Way]:
    for name, value in KEYS.items():
        monkeypatch.setenv(f"SLUICE_SECRET_{name.upper()}", value)
    for name in ("store", "catalog"):
        (tmp_path / name).mkdir()
    with (
        FailingProxy(s3.port, tmp_path / "store") as store,
        FailingProxy(rest.port, tmp_path / "catalog") as catalog,
    ):
        references = {name: f"${{env:SLUICE_SECRET_{name.upper()}}}" for name in KEYS}
        settings = {
            "url": "s3://lake",
            "endpoint": store.endpoint,
            "region": "us-east-1",
            **references,
        }
        spec = {"path": f"s3://lake/{tmp_path.name}", "store": settings, "format": request.param}
        if request.param == "iceberg":
            entry = {"name": "plant", "uri": catalog.endpoint}
            spec |= {
                "catalog": "plant",
                "catalog_table": f"plant.{tmp_path.name}",
                "catalog_settings": entry,
            }
        add_table(server, tmp_path, **spec)
        made, stopping = Way(server, store, catalog), threading.Event()
        job = LakeJob(spark, JobOptions(server.url, TOKEN, tmp_path))
        running = threading.Thread(target=job.run, args=(stopping,))
        running.start()
        try:
            made.publish()
            made.filled()
            yield made
        finally:
            store.heal()
            catalog.heal()
            stopping.set()
            running.join()


Harm = Callable[[Way], object]


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (
            lambda way: way.store.down(),
            "). Try: the endpoint in lake.stores.",
        ),  # by the first that asked
        (lambda way: way.store.fail(holds="before"), "does not answer"),
        (lambda way: way.store.fail(status=503), "does not answer"),
        (
            lambda way: way.store.deny_writes(),
            "denies access (ACCESS_DENIED). Try: a policy that allows it.",
        ),
    ],
    ids=["is down", "hangs", "fails", "denies writes"],
)
def test_of_a_store(way: Way, harm: Harm, sentence: str) -> None:
    harm(way)
    way.publish()
    way.failed(sentence)
    way.store.up()
    way.store.heal()
    way.filled()


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (lambda way: way.catalog.down(), "cannot be used: "),
        (lambda way: way.catalog.fail(holds="before"), "no answer within"),
        (lambda way: way.catalog.fail(status=401, body=_UNAUTHORIZED), "refuses the credentials: "),
    ],
    ids=["is down", "hangs", "refuses"],
)
@pytest.mark.parametrize("way", ["iceberg"], indirect=True)
def test_of_a_catalog(way: Way, harm: Harm, sentence: str) -> None:
    harm(way)
    way.publish()
    way.failed(sentence)
    way.catalog.up()
    way.catalog.heal()
    way.filled()


def test_of_records_that_retention_removed(way: Way) -> None:
    way.store.down()
    way.publish()
    way.failed("does not answer")
    way.publish()
    way.server.trim("readings", way.server.streams["readings"].shards[0].next)
    way.store.up()
    said, stopwatch = "retention removed the records [", Stopwatch(*family())
    eventually(lambda: said in (way.report["last_error"] or {}).get("message", ""), DEADLINE_S)
    assert stopwatch.elapsed_s() < KNOWN_AFTER_S


def test_of_executors_that_lack_a_package(
    server: StreamServer, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a job that has started; Spark itself waits 10 s for a Python that does not connect."""
    api, others = LakeApi(server.url, TOKEN), Executors(spark, server.url, TOKEN)
    query = TableQuery(
        spark, api, add_table(server, tmp_path), QuerySettings(1000, "test", others), monotonic
    )
    monkeypatch.setattr(
        spark.sparkContext, "pythonExec", python_after(tmp_path, no_package(server, tmp_path))
    )
    stopwatch = Stopwatch(*family())

    def has_failed() -> bool:
        query.step()
        return bool(query.report()["state"] == "failed")

    eventually(has_failed, DEADLINE_S, what="a failure")
    assert "package 'msgspec' is missing in" in query.report()["last_error"]["message"]
    assert stopwatch.elapsed_s() < KNOWN_AFTER_S
    query.stop()
