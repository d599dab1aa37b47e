"""Tables as objects: what is refused and why, what is shown, and a broker without Spark."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest

from bridges.spark.broker_side import jobs, states
from bridges.spark.broker_side.feature import LakeFeature
from bridges.spark.broker_side.local import LocalSpark, last_line
from bridges.spark.broker_side.settings import LakeSettings
from bridges.spark.broker_side.views import ReplayReport
from bridges.spark.columns.catalog import CatalogSettings
from bridges.spark.columns.place import Place
from bridges.spark.columns.store import place_of
from bridges.spark.driver.batch import TableSpec, TableWriter
from bridges.spark.driver.evolution import Held
from bridges.spark.driver.upserts import open_writer
from bridges.spark.job import _own
from bridges.spark.tables.contract import Binding
from bridges.spark.tasks.rule_text import RuleText
from broker.config.object_stores import StoreSettings
from broker.config.ssrf import SsrfSettings
from broker.core.contributor import Change, Contributor
from broker.core.errors import (
    AlreadyExists,
    ConfigError,
    Conflict,
    Invalid,
    NotFound,
    Unavailable,
    Unreadable,
)
from broker.core.feature import Services, StoragePort
from broker.core.objects import MemorySection, ObjectService, Reference
from broker.core.schema import FieldType
from broker.core.stream import StreamHistory, StreamRecord
from broker.core.times import rfc3339
from broker.observe.metrics import Metrics
from broker.observe.prometheus import exposition
from broker.observe.rotating_file import RotatingFile
from pyspark_sluice.client import Positions
from tests.bridges.spark.batches import records, tasks
from tests.bridges.spark.conftest import ROOT
from tests.support.bridges import HastyClock
from tests.support.features import Unused, make_services
from tests.support.waiting import until

COLUMNS = [{"name": "a", "type": "double"}]


RULES = {
    "hot": 'SELECT payload.a AS a FROM "t/#"',
    "events": 'SELECT clientid FROM "$events/client/connected"',
}


class Streams(Unused):
    """The streams there are."""

    def names(self) -> Sequence[str]:
        return ("hot", "cold", "raw")


def positions(stream: str, at_us: int | None = None) -> dict[str, Any]:
    shards = [{"shard": 0, "first_offset": "2", "next_offset": "12"}]
    kind = "topics" if stream == "raw" else "rows"
    return {"stream": stream, "kind": kind, "epoch": "e", "log": 1, "shards": shards}


class Rules(Contributor):
    def rule_for_spark(self, name: str) -> dict[str, Any] | None:
        return (
            {"name": name, "sql": RULES[name], "node": "node-1", "columns": COLUMNS}
            if name in RULES
            else None
        )

    def columns_of_stream(self, stream: str) -> dict[str, FieldType]:
        return {column["name"]: FieldType(column["type"]) for column in COLUMNS}


def make_lake_services(
    directory: Path, section: MemorySection | None = None, metrics: Metrics | None = None
) -> Services:
    kept = section or MemorySection()
    services = make_services()
    services.node.data_dir = directory
    services.storage = StoragePort(lambda name: kept, Streams(), positions)
    services.contributors.append(Rules())
    services.monitoring.metrics = metrics or services.monitoring.metrics
    return services


def make_feature(
    directory: Path, section: MemorySection | None = None, metrics: Metrics | None = None
) -> LakeFeature:
    return LakeFeature(make_lake_services(directory, section, metrics))


@pytest.fixture
def lake(tmp_path: Path) -> LakeFeature:
    return make_feature(tmp_path)


def test_a_table_lies_in_the_lake_directory_by_default(lake: LakeFeature, tmp_path: Path) -> None:
    made = lake.tables.create({"name": "readings", "stream": "hot"})
    assert (made["path"], made["format"], made["columns"]) == (
        str(tmp_path / "lake" / "readings"),
        "delta",
        COLUMNS,
    )
    assert lake.tables.get("readings") == lake.tables.list()[0] == made
    checked: ObjectService = lake.tables
    assert checked.kind == "lake table"


def test_a_table_that_was_written_is_expected_until_a_user_recreates_it(tmp_path: Path) -> None:
    services = make_lake_services(tmp_path)
    lake = LakeFeature(services)
    assert lake.tables.create({"name": "readings", "stream": "hot"})["is_expected"] is False
    lake.states.report(
        "readings", {"state": "running", "offsets": {}, "at": rfc3339(time.time_ns())}
    )
    assert lake.tables.get("readings")["is_expected"] is False
    lake.states.report(
        "readings", {"state": "running", "offsets": {"0": "5"}, "at": rfc3339(time.time_ns())}
    )
    assert lake.tables.get("readings")["is_expected"] is True

    feature = LakeFeature(services)
    feature.start()
    restarted = feature
    assert restarted.tables.get("readings")["is_expected"] is True
    assert restarted.jobs.recreate("readings") == {
        "table": "readings",
        "path": str(tmp_path / "lake" / "readings"),
    }
    restarted.states.report(
        "readings", {"state": "failed", "offsets": {"0": "5"}, "at": rfc3339(time.time_ns())}
    )
    assert restarted.tables.get("readings")["is_expected"] is False
    restarted.states.report(
        "readings", {"state": "running", "offsets": {"0": "2"}, "at": rfc3339(time.time_ns())}
    )
    assert restarted.tables.get("readings")["is_expected"] is True
    restarted.tables.replace("readings", {"stream": "hot", "path": "elsewhere"})
    assert restarted.tables.get("readings")["is_expected"] is False
    restarted.tables.replace("readings", {"stream": "hot"})
    restarted.tables.delete("readings")
    assert restarted.tables.create({"name": "readings", "stream": "hot"})["is_expected"] is False


def test_what_a_job_wrote_is_given_back_to_it_until_a_user_recreates_the_table(
    tmp_path: Path,
) -> None:
    services = make_lake_services(tmp_path)
    lake = LakeFeature(services)
    lake.tables.create({"name": "readings", "stream": "hot"})
    parts = {"": {"id": "a", "version": 7}, "__dead_letters": {"id": "b", "version": 1}}
    report = {"state": "running", "offsets": {"0": "9"}, "begins": {"0": "4"}, "parts": parts}
    lake.states.report("readings", report | {"at": rfc3339(time.time_ns())})
    later = {"": {"id": "a", "version": 8}}
    lake.states.report("readings", report | {"at": rfc3339(time.time_ns()), "parts": later})
    lake = LakeFeature(services)
    lake.start()
    shown = lake.tables.get("readings")
    assert (shown["expected"], shown["begins"], shown["lag_records"]) == (later, None, 3)
    assert lake.tables.unread_of("hot") == {0: 9}
    lost = {"state": "failed", "offsets": {}, "begins": {}, "parts": {}, "is_lost": True}
    lake.states.report("readings", lost | {"at": rfc3339(time.time_ns())})
    assert lake.tables.unread_of("hot") == {0: 4}, "a user may have all of it filled again"
    lake.jobs.recreate("readings")
    shown = lake.tables.get("readings")
    assert (shown["expected"], shown["begins"], shown["is_expected"]) == ({}, {"0": "4"}, False)
    assert lake.tables.unread_of("hot") == {0: 4}


def test_a_replay_makes_a_lost_table_again_and_says_what_is_missing(tmp_path: Path) -> None:
    async def test() -> None:
        lake = LakeFeature(make_lake_services(tmp_path))
        lake.tables.create({"name": "readings", "stream": "hot"})
        spec = TableSpec.of_api(lake.tables.get("readings"), lake.tables.positions_at("hot", None))
        writer = TableWriter(spec, "job")
        writer.write(tasks(records(0, [{"a": n} for n in range(7)])))
        report = {
            "state": "running",
            "offsets": {"0": "7"},
            "begins": {"0": "0"},
            "parts": {"": {"id": writer.table.identity(), "version": writer.table.version()}},
        }
        lake.states.report("readings", report | {"at": rfc3339(time.time_ns())})
        assert lake.jobs.plan_replay("readings", None, None, None)["recreates"] is False
        shutil.rmtree(spec.place.path)
        lost = {
            "state": "failed",
            "offsets": {},
            "parts": {},
            "is_lost": True,
            "at": rfc3339(time.time_ns()),
        }
        lake.states.report("readings", lost)
        with pytest.raises(
            Conflict, match=r"is gone from .*Such a replay takes no range, rule or shadow"
        ):
            lake.jobs.plan_replay("readings", 3, None, None)
        plan = lake.jobs.plan_replay("readings", None, None, None)
        whole = [{"shard": 0, "start": 2, "end": 12}]
        assert (plan["ranges"], plan["records"], plan["recreates"], plan["fills"]) == (
            whole,
            10,
            True,
            True,
        )
        assert plan["missing"] == [{"shard": 0, "start": 0, "end": 2}]

        order, progress = lake.jobs.replay_order("readings", plan, None), list[int]()

        def advance(done: int) -> bool:
            progress.append(done)
            state = {
                "state": "running",
                "begins": {"0": "0"},
                "parts": {"": {"id": "new", "version": len(progress)}},
            }
            end = {1: 2, 2: 9}.get(len(progress), 12)
            figures = {"rows": end - 2, "dead_letters": 0, "table_version": len(progress)}
            lake.states.report(
                "readings",
                state | figures | {"offsets": {"0": str(end)}, "at": rfc3339(time.time_ns())},
            )
            return True

        done = cast("ReplayReport", await lake.jobs.replay("job", "readings", order, advance))
        assert lake.tables.get("readings")["expected"][""]["id"] == "new"
        assert (done["records"], done["rows_after"], done["missing"]) == (10, 10, plan["missing"])
        assert progress == [0, 0, 7, 10]

    asyncio.run(test())


def test_a_table_that_cannot_be_read_is_said_in_a_sentence(tmp_path: Path) -> None:
    lake = LakeFeature(make_lake_services(tmp_path))
    lake.tables.create({"name": "readings", "stream": "hot"})
    spec = TableSpec.of_api(lake.tables.get("readings"), lake.tables.positions_at("hot", None))
    TableWriter(spec, "job").write(tasks(records(0, [{"a": 1}])))
    [file] = Path(spec.place.path).glob("*.parquet")
    file.unlink()
    with pytest.raises(Unreadable, match=r"^table 'readings' cannot be read: .*No such file"):
        lake.reads.preview("readings", 5)
    lake.states.report(
        "readings", {"state": "running", "offsets": {"0": "1"}, "at": rfc3339(time.time_ns())}
    )
    shutil.rmtree(spec.place.path)
    with pytest.raises(
        Conflict, match=r"^table 'readings' is gone from .*sluice replay readings\.$"
    ):
        lake.reads.preview("readings", 5)
    file.parent.mkdir()
    file.write_text("no directory")
    (file.parent / "_delta_log").mkdir()
    (file.parent / "_delta_log" / f"{0:020}.json").write_text("no JSON")
    for read in (lake.reads.preview, lake.reads.history):
        with pytest.raises(Conflict, match="the log of the Delta table cannot be read"):
            read("readings", 5)
    with pytest.raises(Conflict, match="the log of the Delta table cannot be read"):
        lake.jobs.plan_replay("readings", None, None, None)


def test_offsets_of_a_stream_that_was_deleted_and_created_again_mean_nothing(
    tmp_path: Path,
) -> None:
    services, epoch = make_lake_services(tmp_path), ["e"]
    services.storage.positions = lambda stream, at_us=None: {**positions(stream), "epoch": epoch[0]}
    lake = LakeFeature(services)
    lake.tables.create({"name": "readings", "stream": "hot"})
    report = {"offsets": {"0": "12"}, "parts": {"": {"id": "a", "version": 7}}}
    lake.states.report("readings", report | {"state": "running", "at": rfc3339(time.time_ns())})
    epoch[0] = "another"
    lake.states.report("readings", report | {"state": "failed", "at": rfc3339(time.time_ns())})
    shown = lake.tables.get("readings")
    assert (shown["expected"], shown["lag_records"], lake.tables.unread_of("hot")) == (
        {},
        10,
        {0: 2},
    )


def test_a_stream_keeps_what_a_new_table_with_a_start_and_a_replay_are_to_read(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        lake = LakeFeature(make_lake_services(tmp_path))
        lake.tables.create({"name": "readings", "stream": "hot", "start": 5})
        assert lake.tables.unread_of("hot") == {0: 5}
        lake.states.report(
            "readings", {"state": "running", "offsets": {"0": "12"}, "at": rfc3339(time.time_ns())}
        )
        assert lake.tables.unread_of("hot") == {0: 12}
        order = {"ranges": [{"shard": 0, "start": 6, "end": 12}], "into": None, "rate": None}
        replay = asyncio.create_task(lake.jobs.replay("job", "readings", order, lambda _: True))
        await until(lambda: lake.tables.get("readings")["replay"])
        assert lake.tables.unread_of("hot") == {0: 6}
        replay.cancel()
        with pytest.raises(asyncio.CancelledError):
            await replay
        assert lake.tables.unread_of("hot") == {0: 12}

    asyncio.run(test())


def test_a_table_has_its_own_pace_of_commits(lake: LakeFeature) -> None:
    made = lake.tables.create({"name": "readings", "stream": "hot"})
    assert (made["commit_interval"], made["commit_rows"]) == (10.0, 100_000)
    lake.tables.replace("readings", {"stream": "hot", "commit_interval": "1m30s", "commit_rows": 5})
    told = lake.tables.get("readings")
    assert (told["commit_interval"], told["commit_rows"]) == (90.0, 5)
    with pytest.raises(Invalid) as refused:
        lake.tables.replace(
            "readings", {"stream": "hot", "commit_interval": "0s", "commit_rows": 0}
        )
    assert [problem.pointer for problem in refused.value.problems] == [
        "/commit_interval",
        "/commit_rows",
    ]


def test_a_key_is_of_columns_that_the_table_can_have(lake: LakeFeature) -> None:
    made = lake.tables.create(
        {"name": "latest", "stream": "hot", "key": ["a"], "delete_when": "payload.a > 3"}
    )
    assert (made["key"], made["delete_when"]) == (["a"], "payload.a > 3")
    lake.tables.replace("latest", {"stream": "hot", "key": ["a"]})
    for spec, pointer, text in (
        ({"stream": "raw", "key": ["device"]}, "/key", "expected columns of the table (_stream, "),
        (
            {"stream": "raw", "key": ["_topic", "_topic"]},
            "/key",
            "expected each column once, got '_topic' twice",
        ),
        (
            {"stream": "hot", "delete_when": "payload.a > 3"},
            "/delete_when",
            "expected a key with it, got none",
        ),
        ({"stream": "hot", "key": ["a"], "delete_when": "payload.a >"}, "/delete_when", ""),
        (
            {"stream": "hot", "key": ["a"], "delete_when": "getenv('HOME') = 'x'"},
            "/delete_when",
            "getenv reads",
        ),
        ({"stream": "hot", "key": ["a"], "delete_when": "true) OR (true"}, "/delete_when", ""),
    ):
        with pytest.raises(Invalid) as refused:
            lake.tables.create({"name": "other", **spec})
        [problem] = refused.value.problems
        assert (problem.pointer, text in problem.message) == (pointer, True), problem
    with pytest.raises(Invalid, match=r"has key \['a'\]; give another path with it"):
        lake.tables.replace("latest", {"stream": "hot", "key": ["_client_id"]})


def test_a_table_is_in_a_catalog_of_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_SECRET_POLARIS", "opensesame")
    catalog = {
        "name": "polaris",
        "uri": "https://c/api",
        "client_id": "s",
        "client_secret": "${env:SLUICE_SECRET_POLARIS}",
    }
    settings = LakeSettings.model_validate({"catalogs": [catalog]})
    lake = LakeFeature(make_lake_services(tmp_path), settings)
    made = lake.tables.create(
        {"name": "readings", "stream": "hot", "format": "iceberg", "catalog": "polaris"}
    )
    assert (made["catalog_settings"], made["catalog_table"]) == (catalog, "")
    assert (
        lake.tables.replace("readings", {**made, "catalog_table": "plant.hall.readings"})[
            "catalog_settings"
        ]
        == catalog
    )
    place = TableSpec.of_api(
        _own(lake.tables.get("readings")),
        Positions.parse({**positions("hot"), "ranges_url": "", "ticket": ""}),
    )
    assert place.place.entry is not None
    assert place.place.entry.identifier == ("plant", "hall", "readings")
    assert "opensesame" not in f"{place} {lake.tables.list()} {lake.states.statuses()}"


def test_a_table_whose_catalog_left_the_configuration_is_not_opened_without_it(
    tmp_path: Path,
) -> None:
    section = MemorySection()
    services = make_lake_services(tmp_path, section)
    settings = LakeSettings.model_validate(
        {"catalogs": [{"name": "polaris", "uri": "https://c/api"}]}
    )
    spec = {"name": "readings", "stream": "hot", "format": "iceberg", "catalog": "polaris"}
    LakeFeature(services, settings).tables.create(spec)
    lake = LakeFeature(services)
    assert lake.tables.load(section.load()) == []
    where = Positions.parse({**positions("hot"), "ranges_url": "", "ticket": ""})
    reason = r"expected one of lake\.catalogs, got 'polaris'"
    with pytest.raises(Unavailable, match=reason):
        TableSpec.of_api(lake.tables.get("readings"), where)
    with pytest.raises(Unavailable, match=reason):
        lake.reads.preview("readings", 1)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"catalog": "nessie"}, "expected one of lake.catalogs (polaris), got 'nessie'"),
        (
            {"catalog": "polaris", "format": "delta"},
            "expected format 'iceberg' with a catalog, got 'delta'",
        ),
        ({"catalog_table": "a.b"}, "catalog_table: expected a catalog with it, got none"),
        (
            {"catalog": "polaris", "catalog_table": "b"},
            "catalog_table: expected NAMESPACE.NAME, got 'b'",
        ),
    ],
)
def test_a_table_in_no_catalog_of_the_configuration_is_refused(
    tmp_path: Path, given: dict[str, str], problem: str
) -> None:
    settings = LakeSettings.model_validate(
        {"catalogs": [{"name": "polaris", "uri": "https://c/api"}]}
    )
    lake = LakeFeature(make_lake_services(tmp_path), settings)
    with pytest.raises(Invalid) as refused:
        lake.tables.create({"name": "readings", "stream": "hot", "format": "iceberg", **given})
    [found] = refused.value.problems
    assert problem in found.message


def test_tables_survive_a_restart(tmp_path: Path) -> None:
    section = MemorySection()
    make_feature(tmp_path, section).tables.create(
        {"name": "readings", "stream": "hot", "format": "iceberg"}
    )
    again = make_feature(tmp_path, section)
    again.start()
    assert again.tables.get("readings")["format"] == "iceberg"


def test_a_table_may_have_a_rule_which_the_job_is_told(lake: LakeFeature) -> None:
    made = lake.tables.create({"name": "readings", "stream": "raw", "rule": "hot"})
    assert made["rule_text"] == {"name": "hot", "sql": RULES["hot"], "node": "node-1"}
    assert made["columns"] == COLUMNS
    lake.tables.replace("readings", made)
    assert lake.tables.get("readings") == made
    with pytest.raises(Invalid, match="cannot be saved"):
        lake.tables.replace("readings", {"stream": "raw"})


def test_a_table_whose_rule_is_gone_says_so(
    lake: LakeFeature, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lake.tables.create({"name": "readings", "stream": "raw", "rule": "hot"})
    monkeypatch.delitem(RULES, "hot")
    spec = lake.tables.get("readings")
    assert spec["rule_text"] == {"name": "hot", "problem": "there is no rule 'hot'"}
    where = Positions.parse({"ranges_url": "", "ticket": "", **positions("raw")})
    with pytest.raises(Unavailable, match="rule 'hot' cannot be run: there is no rule 'hot'"):
        TableSpec.of_api(spec, where)


def test_a_broken_configuration_is_refused_with_every_problem(tmp_path: Path) -> None:
    section = MemorySection([{"name": "a"}, {"name": "b", "stream": "hot", "format": "csv"}])
    with pytest.raises(ConfigError) as caught:
        make_feature(tmp_path, section).start()
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize(
    ("spec", "pointer", "reason"),
    [
        ({"name": "t"}, "/stream", "stream is required"),
        (
            {"name": "t", "stream": "hto"},
            "/stream",
            "there is no stream 'hto'; create it first, or use one of: hot, cold, raw",
        ),
        ({"name": "a/b", "stream": "hot"}, "/name", "a name is letters, digits"),
        ({"name": "t", "stream": "hot", "format": "csv"}, "/format", "'csv'"),
        (
            {"name": "t", "stream": "hot", "start": "soon"},
            "/start",
            "expected an offset, a time such as",
        ),
        (
            {"name": "t", "stream": "hot", "start": "1:5"},
            "/start",
            "a shard from 0 to 0 of stream 'hot', got 1",
        ),
        (
            {"name": "t", "stream": "hot", "start": 13},
            "/start",
            "expected at most offset 12 of shard 0, got 13",
        ),
        (
            {"name": "t", "stream": "hot", "paths": "x"},
            "/paths",
            "paths is not known; did you mean 'path'?",
        ),
        (
            {"name": "t", "stream": "hot", "path": "s3://bucket/t"},
            "/path",
            "expected a URL in one of the stores of lake.stores (none)",
        ),
        (
            {"name": "t", "stream": "hot", "path": "/dev/null/t"},
            "/path",
            "/dev/null/t: expected a path in ",
        ),
        ({"name": "t", "stream": "raw", "rule": "hto"}, "/rule", "there is no rule 'hto'"),
        (
            {"name": "t", "stream": "raw", "rule": "events"},
            "/rule",
            "it reads events only, and a stream keeps",
        ),
        (
            {"name": "t", "stream": "hot", "rule": "hot"},
            "/stream",
            "a rule runs on a stream of messages",
        ),
        ({"name": "t", "stream": "hot", "partition_by": ["a"]}, "/partition_by", "'a' is double"),
        ({"name": "t", "stream": "raw", "partition_by": ["b"]}, "/partition_by", "got 'b'"),
        (
            {"name": "t", "stream": "raw", "sort_by": ["_topic up"]},
            "/sort_by",
            "expected COLUMN, or COLUMN desc",
        ),
        ({"name": "t", "stream": "raw", "retention": "1m"}, "/retention", "3600"),
    ],
)
def test_a_spec_that_cannot_be_used_is_refused(
    lake: LakeFeature, spec: dict[str, Any], pointer: str, reason: str
) -> None:
    with pytest.raises(Invalid) as caught:
        lake.tables.create(spec)
    assert [problem.pointer for problem in caught.value.problems] == [pointer]
    assert reason in caught.value.problems[0].message
    assert not lake.tables.list()


def test_partitions_are_those_of_the_format_and_a_delta_table_keeps_them(lake: LakeFeature) -> None:
    by_hour = {"partition_by": ["hour(_published_at)"], "sort_by": ["qos", "_offset desc"]}
    with pytest.raises(Invalid) as refused:
        lake.tables.create({"name": "t", "stream": "raw", **by_hour})
    assert "expected one of COLUMN, day() with format 'delta'" in refused.value.problems[0].message
    made = lake.tables.create({"name": "t", "stream": "raw", "format": "iceberg", **by_hour})
    assert (made["partition_by"], made["advice"]) == (by_hour["partition_by"], [])
    lake.tables.replace("t", {**made, "partition_by": ["bucket(4, _client_id)"]})
    made = lake.tables.create(
        {"name": "d", "stream": "hot", "partition_by": ["day(_published_at)"], "retention": "90d"}
    )
    with pytest.raises(Invalid) as refused:
        lake.tables.replace("d", {**made, "partition_by": []})
    assert (
        "is partitioned by day(_published_at), which cannot change"
        in refused.value.problems[0].message
    )
    lake.tables.replace("d", {**made, "sort_by": ["a"]})


def test_two_tables_do_not_share_a_name_or_a_path(lake: LakeFeature) -> None:
    made = lake.tables.create({"name": "one", "stream": "hot"})
    with pytest.raises(AlreadyExists):
        lake.tables.create({"name": "one", "stream": "hot"})
    with pytest.raises(Invalid, match="lake table 'one' lies in"):
        lake.tables.create({"name": "two", "stream": "cold", "path": made["path"]})


def test_a_table_keeps_stream_and_format_as_long_as_it_keeps_its_path(lake: LakeFeature) -> None:
    made = lake.tables.create({"name": "one", "stream": "hot"})
    assert (
        lake.tables.replace("one", {**made, "description": "readings"})["description"] == "readings"
    )
    with pytest.raises(Invalid, match="has stream 'hot'; give another path with it"):
        lake.tables.replace("one", {**made, "stream": "cold"})


def test_the_job_is_wanted_while_there_are_tables_and_users_of_streams_are_named(
    lake: LakeFeature,
) -> None:
    wanted = lake.spark._wanted
    assert not wanted.is_set()
    lake.tables.create({"name": "one", "stream": "hot"})
    assert list(lake.tables.uses()) == [(("lake table", "one"), ("stream", "hot"))]
    assert wanted.is_set()
    lake.tables.delete("one")
    assert not wanted.is_set()
    with pytest.raises(NotFound):
        lake.tables.get("one")


def test_a_report_gives_state_and_lag(lake: LakeFeature) -> None:
    lake.tables.create({"name": "one", "stream": "hot"})
    lake.states.report(
        "one",
        {"state": "running", "rows": 5, "dead_letters": 1, "offsets": {"0": "8"}, "unknown": 1},
    )
    shown = lake.tables.get("one")
    assert (shown["state"], shown["rows"], shown["lag_records"]) == ("running", 5, 4)
    assert "unknown" not in shown["report"]
    error = {"message": "no answer", "at": "2026-01-01T00:00:00Z"}
    lake.states.report("one", {"state": "failed", "last_error": error})
    assert lake.states.statuses()[0]["reason"] == "no answer"
    with pytest.raises(NotFound):
        lake.states.report("two", {"state": "running"})


def test_a_table_with_a_change_that_waits_for_approval_is_degraded_and_says_what_to_do(
    lake: LakeFeature,
) -> None:
    lake.tables.create({"name": "one", "stream": "hot"})
    held = [
        Held("n", "long", "double").as_dict("one"),
        Held("p", "json", "array<long>").as_dict("one"),
    ]
    lake.states.report("one", {"state": "running", "held": held})
    shown = lake.tables.get("one")
    assert (shown["state"], shown["report"]["held"]) == ("degraded", held)
    assert "Try: sluice lake tables retype one n double, which" in shown["reason"]
    assert shown["reason"].endswith("(and 1 more)")
    lake.states.report("one", {"state": "running", "held": []})
    assert (lake.tables.get("one")["state"], lake.tables.get("one")["reason"]) == ("running", None)


def test_a_job_is_running_once_a_table_was_filled_by_its_process(tmp_path: Path) -> None:
    feature = make_feature(tmp_path)
    lake, job = feature, feature.spark.state
    lake.tables.create({"name": "one", "stream": "hot"})
    lake.states.report("one", {"state": "running", "at": "2026-01-01T00:00:00.000Z"})

    async def live() -> None:
        await feature.connect("http://127.0.0.1:1", "token")
        try:
            await until(lambda: job()["pid"])
            assert job()["state"] == "starting", "a process that exists has filled nothing"
            assert lake.tables.get("one")["state"] == "starting", (
                "the report is of an earlier process"
            )
            lake.states.report("one", {"state": "starting", "at": rfc3339(time.time_ns())})
            assert job()["state"] == "starting"
            lake.states.report("one", {"state": "running", "at": rfc3339(time.time_ns())})
            assert (job()["state"], lake.tables.get("one")["state"]) == ("running", "running")
        finally:
            await feature.disconnect()

    asyncio.run(live())


def test_a_failed_or_silent_table_raises_an_alarm_until_it_runs(
    lake: LakeFeature, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.tables.create({"name": "one", "stream": "hot"})
    alarms = lake.tables._services.monitoring.alarms

    def active() -> list[str]:
        lake.states.look()
        return [alarm.name for alarm in alarms.active()]

    assert active() == []
    lake.states.report(
        "one", {"state": "failed", "last_error": {"message": "no space left on device"}}
    )
    assert active() == ["table_failed:one"]
    assert alarms.active()[0].message == "table 'one' failed: no space left on device"
    lake.states.report("one", {"state": "running"})
    assert active() == []
    monkeypatch.setattr(states, "_GONE_S", 0.0)
    assert active() == ["table_failed:one"]
    assert lake.tables.get("one")["reason"].startswith("the lake job has reported nothing for 0 s")
    lake.states.report("one", {"state": "stopped"})
    assert active() == []
    lake.states.report("one", {"state": "failed"})
    assert active() == ["table_failed:one"]
    lake.tables.delete("one")
    assert active() == []


def test_more_than_a_tenth_dead_letters_in_a_minute_raise_an_alarm(
    lake: LakeFeature, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.tables.create({"name": "one", "stream": "hot"})
    alarms = lake.tables._services.monitoring.alarms

    def after(rows: int, dead_letters: int) -> list[str]:
        lake.states.report("one", {"state": "running", "rows": rows, "dead_letters": dead_letters})
        lake.states.look()
        return [alarm.message for alarm in alarms.active()]

    assert after(1000, 900) == [], "dead letters from before"
    assert after(1090, 910) == []
    assert after(1090, 911) == [
        "table 'one': 11 of 101 records of the last minute are dead letters"
    ]
    monkeypatch.setattr(states, "_MINUTE_S", 0.0)
    assert after(1091, 911) == []


def test_a_deleted_table_says_how_many_rows_stay_and_where_also_after_a_restart(
    tmp_path: Path,
) -> None:
    services = make_lake_services(tmp_path)
    lake = LakeFeature(services)
    lake.tables.create({"name": "one", "stream": "raw", "rule": "hot"})
    deletion = Change(Reference("lake table", "one"), {}, None)
    stay = f"stay in {tmp_path / 'lake' / 'one'}. New records of stream 'raw' are no longer written there."
    assert list(lake.tables.consequences(deletion)) == [f"All rows {stay}"]
    report = {
        "state": "running",
        "rows": 8761,
        "dead_letters": 1,
        "offsets": {"0": "12"},
        "at": rfc3339(time.time_ns()),
    }
    lake.states.report("one", report)
    assert list(lake.tables.consequences(deletion)) == [f"8,761 rows and 1 dead letter {stay}"]
    assert set(lake.tables.uses()) >= {(Reference("lake table", "one"), Reference("rule", "hot"))}

    feature = LakeFeature(services)
    feature.start()
    restarted = feature
    assert list(restarted.tables.consequences(deletion)) == [f"8,761 rows and 1 dead letter {stay}"]
    assert (restarted.tables.get("one")["rows"], restarted.tables.get("one")["dead_letters"]) == (
        8761,
        1,
    )
    moved = Change(Reference("lake table", "one"), {}, {"path": "elsewhere"})
    assert list(restarted.tables.consequences(moved)) == [f"8,761 rows and 1 dead letter {stay}"]
    assert (
        list(
            restarted.tables.consequences(
                Change(Reference("lake table", "one"), {}, {"description": "x"})
            )
        )
        == []
    )


def test_an_idle_table_says_that_nothing_came(lake: LakeFeature) -> None:
    lake.tables.create({"name": "one", "stream": "hot"})
    lake.states.report("one", {"state": "starting", "offsets": {}})
    assert (lake.tables.get("one")["state"], lake.tables.get("one")["reason"]) == (
        "starting",
        "no batch has succeeded yet",
    )
    lake.states.report("one", {"state": "starting", "offsets": {"0": "8"}})
    assert lake.tables.get("one")["reason"] == "no batch has succeeded since the lake job started"
    lake.states.report("one", {"state": "starting", "offsets": {"0": "12"}})
    assert lake.tables.get("one")["reason"] == "the stream has no new records"


def test_the_figures_of_a_table_are_metrics(tmp_path: Path) -> None:
    metrics = Metrics()
    lake = make_feature(tmp_path, metrics=metrics)
    lake.tables.create({"name": "one", "stream": "hot"})
    lake.states.report(
        "one", {"state": "running", "rows": 7, "dead_letters": 2, "files": 3, "commit_s": 0.25}
    )
    names = ("table_rows", "table_dead_letters", "table_files", "table_commit_seconds")
    assert [metrics.value(name, table="one") for name in names] == [7, 2, 3, 0.25]


def test_the_lag_of_a_table_is_a_metric_until_the_table_is_deleted(tmp_path: Path) -> None:
    metrics = Metrics()
    lake = make_feature(tmp_path, metrics=metrics)
    lake.tables.create({"name": "one", "stream": "hot"})
    lake.states.report("one", {"state": "running", "offsets": {"0": "8"}})
    assert metrics.value("table_lag_records", table="one") == 4
    lake.states.report("one", {"state": "starting"})
    assert metrics.value("table_lag_records", table="one") == 4, "as reported last"
    lake.tables.delete("one")
    assert "table_lag_records" not in exposition(metrics)


class History(StreamHistory):
    """A stream whose records were published a second apart, the first one at ``first_us``."""

    def __init__(self, first_us: int) -> None:
        self.first_us = first_us

    def read(
        self, stream: str, shard: int, from_offset: int, limit: int
    ) -> Sequence[tuple[int, StreamRecord]]:
        record = StreamRecord(self.first_us + from_offset * 1_000_000, "t", b"{}", 0, False, "c")
        return [(from_offset, record)] if from_offset < 12 else []


def test_a_table_that_lags_has_an_alarm_though_no_job_runs(tmp_path: Path) -> None:
    services = make_lake_services(tmp_path)
    first_us = time.time_ns() // 1000 - 100_000_000
    services.storage.history = History(first_us)
    metrics, alarms = services.monitoring.metrics, services.monitoring.alarms
    first = LakeFeature(services)
    first.tables.create({"name": "one", "stream": "hot", "max_lag": "85s", "commit_interval": "5s"})
    assert metrics.value("table_lag_records", table="one") == 10, "of a table that no job has seen"
    first.states.report(
        "one", {"state": "running", "offsets": {"0": "8"}, "at": rfc3339(time.time_ns())}
    )

    lake = LakeFeature(services)
    lake.start()
    shown = lake.tables.get("one")
    assert (shown["report"], shown["lag_records"]) == (None, 4)
    assert shown["lag_s"] == pytest.approx(92, abs=60)
    assert shown["valid_through"] == rfc3339((first_us + 8_000_000 - 1) * 1000)
    assert metrics.value("table_lag_seconds", table="one") == pytest.approx(92, abs=60)
    lake.states.look()
    [alarm] = alarms.active()
    assert (alarm.name, alarm.details["lag_records"]) == ("table_late:one", 4)
    assert alarm.message.startswith(
        "table 'one' lacks 4 records of stream 'hot'; the oldest was published 9"
    )
    lake.states.report(
        "one", {"state": "running", "offsets": {"0": "12"}, "at": rfc3339(time.time_ns())}
    )
    lake.states.look()
    assert (alarms.active(), lake.tables.get("one")["lag_s"]) == ([], 0.0)
    assert (
        time.time() - datetime.fromisoformat(lake.tables.get("one")["valid_through"]).timestamp()
        < 60
    )


def test_a_table_with_a_start_lags_from_there_though_no_job_has_begun_it(tmp_path: Path) -> None:
    services = make_lake_services(tmp_path)
    services.storage.history = History(time.time_ns() // 1000 - 1_000_000_000)
    metrics, alarms = services.monitoring.metrics, services.monitoring.alarms
    first = LakeFeature(services).tables
    assert first.create({"name": "one", "stream": "hot", "start": 5})["lag_records"] == 7
    first.replace("one", {"stream": "hot", "start": {"0": 9}})

    lake = LakeFeature(services)
    lake.start()
    assert metrics.value("table_lag_records", table="one") == 3
    assert metrics.value("table_lag_seconds", table="one") == pytest.approx(991, abs=60)
    assert lake.tables.get("one")["valid_through"] is not None
    lake.states.look()
    assert [alarm.name for alarm in alarms.active()] == ["table_late:one"]
    lake.jobs.recreate("one")
    assert lake.tables.get("one")["lag_records"] == 3
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    assert (
        lake.tables.replace("one", {"stream": "hot", "start": tomorrow.isoformat()})["lag_records"]
        is None
    )
    assert lake.tables.replace("one", {"stream": "hot"})["lag_records"] == 10


def test_a_stream_keeps_what_its_tables_have_not_read(tmp_path: Path) -> None:
    services = make_lake_services(tmp_path)
    lake = LakeFeature(services)
    assert lake.tables.unread_of("hot") == {}
    lake.tables.create({"name": "one", "stream": "hot"})
    assert lake.tables.unread_of("hot") == {0: 2}, "a new table needs all"
    lake.states.report(
        "one", {"state": "running", "offsets": {"0": "8"}, "at": rfc3339(time.time_ns())}
    )
    lake.tables.create({"name": "two", "stream": "hot"})
    lake.states.report(
        "two", {"state": "running", "offsets": {"0": "5"}, "at": rfc3339(time.time_ns())}
    )
    assert services.contributors.unread_of("hot") == {0: 5}
    lake.tables.replace("two", {"stream": "hot", "holds_stream": False})
    assert services.contributors.unread_of("hot") == {0: 8}
    assert lake.tables.unread_of("cold") == {}
    feature = LakeFeature(services)
    feature.start()
    assert feature.tables.unread_of("hot") == {0: 8}, "known before a job reports"
    lake.tables.delete("one")
    assert lake.tables.unread_of("hot") == {}


def test_a_change_that_is_held_has_an_alarm(lake: LakeFeature) -> None:
    lake.tables.create({"name": "one", "stream": "hot"})
    alarms = lake.tables._services.monitoring.alarms
    held = Held("a", "long", "double").as_dict("one")
    lake.states.report(
        "one",
        {"state": "running", "offsets": {"0": "12"}, "at": rfc3339(time.time_ns()), "held": [held]},
    )
    lake.states.look()
    [alarm] = alarms.active()
    assert alarm.name == "table_held:one"
    assert "Try: sluice lake tables retype one a double" in alarm.message
    lake.states.report(
        "one",
        {"state": "running", "offsets": {"0": "12"}, "at": rfc3339(time.time_ns()), "held": []},
    )
    lake.states.look()
    assert alarms.active() == []


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_preview_and_history_read_the_table(lake: LakeFeature, table_format: str) -> None:
    made = lake.tables.create({"name": "one", "stream": "hot", "format": table_format})
    assert lake.reads.preview("one", 10) == {"columns": [], "rows": []}
    assert lake.reads.history("one", 10)["version"] is None
    writer = TableWriter(
        TableSpec("one", table_format, Place(made["path"]), "rows", Binding("hot", "e")), "job"
    )
    writer.write(tasks(records(2, [{"a": n} for n in range(5)])))
    writer.write(tasks(records(7, [{"a": n} for n in range(5)])))
    preview = lake.reads.preview("one", 6)
    assert [row["_offset"] for row in preview["rows"]] == [11, 10, 9, 8, 7, 6]
    assert preview["rows"][0]["_published_at"] == "2026-01-01T00:00:00.011Z"
    assert preview["columns"][-1] == "a"
    assert [one["operation"] for one in lake.reads.history("one", 2)["versions"]] == [
        "batch",
        "batch",
    ]
    assert lake.reads.preview("one", 10, dead_letters=True) == {"columns": [], "rows": []}


AUDITED: dict[str, Any] = {
    "ok": True,
    "table": "one",
    "stream": "hot",
    "version": 1,
    "shards": [],
    "problems": [],
}


def test_an_audit_is_an_order_of_the_lake_job_and_its_outcome_stays_with_the_table(
    tmp_path: Path,
) -> None:
    services = make_lake_services(tmp_path)
    lake = LakeFeature(services)
    alarms = services.monitoring.alarms
    made = lake.tables.create({"name": "one", "stream": "hot"})
    with pytest.raises(Unavailable, match="expected a running lake job"):
        lake.jobs.plan_audit("one")
    writer = TableWriter(
        TableSpec("one", "delta", Place(made["path"]), "rows", Binding("hot", "e")), "job"
    )
    writer.write(tasks(records(2, [{"a": n} for n in range(5)])))
    lake.states.report("one", {"state": "running", "at": rfc3339(time.time_ns())})
    assert (lake.jobs.plan_audit("one"), lake.jobs.audit_order("one")) == (5, {"audit": "offsets"})
    lake.tables.replace("one", {"stream": "hot", "audit_depth": "values"})
    order = lake.jobs.audit_order("one")
    assert (order, lake.jobs.audit_order("one", "deep")) == ({"audit": "values"}, {"audit": "deep"})
    assert lake.tables.get("one")["last_audit"] is None

    async def audited(state: str, **known: Any) -> Any:
        audit = asyncio.create_task(lake.jobs.audit("j1", "one", order, lambda _: True))
        await until(lambda: lake.tables.get("one")["replay"])
        assert lake.tables.get("one")["replay"]["audit"] == "values"
        lake.states.report("one", progress("j1", state, **known))
        return await audit

    problems = [f"shard 0: record {n} is in neither" for n in range(30)]
    result = {**AUDITED, "ok": False, "problems": problems}
    assert asyncio.run(audited("done", result=result)) == result
    last = lake.tables.get("one")["last_audit"]
    assert (last["ok"], last["problem_count"], last["problems"]) == (False, 30, problems[:20])
    lake.states.look()
    [alarm] = [one for one in alarms.active() if one.name == "table_audit:one"]
    assert (
        alarm.message
        == "table 'one': the last audit found 30 problems: shard 0: record 0 is in neither"
    )

    restarted = LakeFeature(services)
    restarted.start()
    assert restarted.tables.get("one")["last_audit"] == last
    with pytest.raises(Unavailable, match="the audit failed: a file is gone"):
        asyncio.run(audited("failed", error="a file is gone"))
    assert lake.tables.get("one")["last_audit"]["problems"] == ["the audit failed: a file is gone"]
    asyncio.run(audited("cancelled"))
    assert lake.tables.get("one")["last_audit"]["ok"] is False  # what was cancelled has no outcome
    asyncio.run(audited("done", result=AUDITED))
    lake.states.look()
    assert [one.name for one in alarms.active() if one.name == "table_audit:one"] == []
    lake.tables.delete("one")
    lake.tables.create({"name": "one", "stream": "hot"})
    assert lake.tables.get("one")["last_audit"] is None


def test_audits_run_on_a_schedule(tmp_path: Path) -> None:
    services = make_lake_services(tmp_path)
    clock = services.node.clock = HastyClock()
    lake = LakeFeature(services)
    lake.tables.create({"name": "one", "stream": "hot", "audit_interval": "1d"})
    lake.tables.create({"name": "two", "stream": "hot"})
    started: list[str] = []

    def start(name: str, unit: str, total: int, *, order: dict[str, Any]) -> None:
        assert (unit, total, order) == ("records", 0, {"audit": "offsets"})
        started.append(name)
        if len(started) == 1:
            raise Unavailable("20 jobs run already")
        lake.states.note_audit(name, [])

    async def look(after_s: float) -> int:
        clock.ahead_s += after_s
        for name in ("one", "two"):
            lake.states.report(name, {"state": "running", "at": rfc3339(clock.now_ns())})
        lake.states.look()
        lake.jobs.audit_when_due()
        await asyncio.gather(*lake.jobs._starting)
        return len(started)

    async def live() -> None:
        assert await look(0) == 0  # the API is not there yet
        lake.jobs.starts_audits(start)
        assert await look(9) == 0  # jobs of before continue first
        assert await look(2) == 1
        assert await look(1) == 1  # it could not be started: again later
        assert await look(600) == 2
        assert await look(86_000) == 2
        assert await look(500) == 3
        lake.tables.replace("one", {"stream": "hot", "audit_interval": None})
        assert await look(90_000) == 3

    asyncio.run(live())
    assert set(started) == {"one"}
    with pytest.raises(Invalid):
        lake.tables.create({"name": "three", "stream": "hot", "audit_interval": "10s"})
    with pytest.raises(Invalid, match="cannot be saved"):
        lake.tables.create(
            {"name": "three", "stream": "hot", "key": ["a"], "audit_depth": "values"}
        )
    lake.tables.create({"name": "three", "stream": "hot", "tables": "t_${a}"})
    with pytest.raises(Invalid, match="cannot be audited"):
        lake.jobs.plan_audit("three", "deep")


@pytest.fixture
def ruled(lake: LakeFeature) -> LakeFeature:
    """A table with a rule, which has the offsets 2 to 7 of its stream."""
    made = lake.tables.create({"name": "one", "stream": "raw", "rule": "hot"})
    spec = TableSpec(
        "one",
        "delta",
        Place(made["path"]),
        "topics",
        Binding("raw", "e"),
        rule=RuleText("hot", RULES["hot"].replace("t/#", "#"), ""),
    )
    TableWriter(spec, "job").write(tasks(records(2, [{"a": n} for n in range(4)] + [b"bad"])))
    lake.states.report("one", {"state": "running"})
    return lake


def test_a_replay_is_planned_and_nothing_changes(ruled: LakeFeature) -> None:
    version = ruled.reads.preview("one", 1)["version"]
    plan = ruled.jobs.plan_replay("one", None, None, None)
    assert (plan["ranges"], plan["records"]) == ([{"shard": 0, "start": 2, "end": 7}], 5)
    assert (plan["rows_before"] + plan["dead_letters_before"], plan["rule"], plan["dry_run"]) == (
        5,
        "hot",
        True,
    )
    with pytest.raises(Invalid, match="the rule cannot run in Spark: there is no rule 'fxied'"):
        ruled.jobs.plan_replay("one", None, None, "fxied")
    with pytest.raises(Invalid, match=r"has offsets \[2, 7\) of shard 0, not all of \[2, 9\)"):
        ruled.jobs.plan_replay("one", 2, 9, None)
    ruled.tables.create({"name": "rows", "stream": "hot"})
    with pytest.raises(Invalid, match="no rule runs for table 'rows'"):
        ruled.jobs.plan_replay("rows", None, None, "hot")
    assert ruled.reads.preview("one", 1)["version"] == version


def progress(id: str, state: str, **known: Any) -> dict[str, Any]:
    """What the lake job reports about a replay."""
    return {
        "state": "running",
        "replay": {"id": id, "state": state, "done": 0, "error": None, "result": None, **known},
    }


def test_a_replay_is_passed_to_the_job_and_ends_with_its_report(ruled: LakeFeature) -> None:
    plan = ruled.jobs.plan_replay("one", 2, 7, None)
    done: list[int] = []

    def advance(count: int) -> bool:
        done.append(count)
        return True

    async def live() -> Any:
        replay = asyncio.create_task(
            ruled.jobs.replay("j1", "one", ruled.jobs.replay_order("one", plan, None), advance)
        )
        await until(lambda: ruled.tables.get("one")["replay"])
        order = ruled.tables.get("one")["replay"]
        assert (order["ranges"], order["cancel"], order["rule_text"]["sql"]) == (
            plan["ranges"],
            False,
            RULES["hot"],
        )
        with pytest.raises(
            Invalid, match=r"lake table 'one' is busy: the job j1 works on it already \(replay\)"
        ):
            await ruled.jobs.replay(
                "j1", "one", ruled.jobs.replay_order("one", plan, None), lambda _: True
            )
        ruled.states.report("one", progress("another", "failed"))
        ruled.states.report("one", progress("j1", "running", done=3))
        await until(lambda: 3 in done)
        result = {**plan, "dry_run": False, "rows_after": 5, "version": 4}
        ruled.states.report("one", progress("j1", "done", result=result))
        return await replay

    report = asyncio.run(live())
    assert (report["table"], report["rows_after"], report["version"], report["dry_run"]) == (
        "one",
        5,
        4,
        False,
    )
    assert ruled.tables.get("one")["replay"] is None


def test_a_replay_that_is_cancelled_or_fails_ends(ruled: LakeFeature) -> None:
    plan = ruled.jobs.plan_replay("one", 2, 7, None)

    async def ends(advance: bool, state: str, error: str | None = None) -> Any:
        replay = asyncio.create_task(
            ruled.jobs.replay(
                "j1", "one", ruled.jobs.replay_order("one", plan, None), lambda _: advance
            )
        )
        await until(lambda: ruled.tables.get("one")["replay"])
        assert ruled.tables.get("one")["replay"]["cancel"] is not advance
        ruled.states.report("one", progress("j1", state, error=error))
        return await replay

    assert asyncio.run(ends(False, "cancelled")) is None
    with pytest.raises(Unavailable, match="the replay failed: the disk is full"):
        asyncio.run(ends(True, "failed", "the disk is full"))


def test_a_replay_that_its_job_forgets_fails_and_says_why(
    ruled: LakeFeature, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_SILENT_S", 0.0)
    plan = ruled.jobs.plan_replay("one", 2, 7, None)
    with pytest.raises(Unavailable, match="the lake job reported nothing for 0 s; it is stopped"):
        asyncio.run(
            ruled.jobs.replay(
                "j1", "one", ruled.jobs.replay_order("one", plan, None), lambda _: True
            )
        )


ORDERS = {
    "accept_gap": (),
    "retype": ("a", "double"),
    "clean": (3600.0, False),
    "compact": (),
    "expire": (3600.0,),
    "diff": (),
    "swap": (),
    "discard": (),
}


async def ordered(lake: LakeFeature, verb: str) -> Any:
    async with asyncio.timeout(20):
        return await getattr(lake.jobs, verb)("j1", "one", *ORDERS[verb], lambda _: True)


@pytest.mark.parametrize("verb", ORDERS)
def test_an_order_without_a_lake_job_is_refused_at_once(tmp_path: Path, verb: str) -> None:
    lake = LakeFeature(make_lake_services(tmp_path), LakeSettings(run_spark=False))
    lake.tables.create({"name": "one", "stream": "hot"})
    why = "expected a running lake job; it is stopped: lake.run_spark is off. Try: sluice lake run."
    with pytest.raises(Unavailable) as refused:
        asyncio.run(ordered(lake, verb))
    assert str(refused.value) == why
    with pytest.raises(Unavailable) as refused:
        lake.jobs.replay_order("one", cast(Any, {"ranges": [{}]}), None)
    assert str(refused.value) == why


def test_an_order_is_refused_once_the_job_that_was_starting_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridges.spark.broker_side.local._PACKAGES", ("no_such_package",))
    feature = make_feature(tmp_path)
    feature.tables.create({"name": "one", "stream": "hot"})

    async def live() -> None:
        await feature.connect("http://127.0.0.1:1", "token")
        try:
            await until(lambda: feature.spark.state()["state"] != "stopped")
            await ordered(feature, "accept_gap")
        finally:
            await feature.disconnect()

    with pytest.raises(
        Unavailable, match="it is failed: lake tables need Spark, and the package 'no_such_package'"
    ):
        asyncio.run(live())


def test_a_job_that_reports_takes_orders_though_the_broker_runs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = LakeFeature(make_lake_services(tmp_path), LakeSettings(run_spark=False))
    lake.tables.create({"name": "one", "stream": "hot"})
    lake.states.report("one", {"state": "failed"})
    result = {"table": "one", "records": 0, "ranges": []}

    async def live() -> Any:
        order = asyncio.create_task(ordered(lake, "accept_gap"))
        await until(lambda: lake.tables.get("one")["replay"])
        # what was taken goes on while the job starts again
        monkeypatch.setattr(states, "_GONE_S", -1.0)
        lake.states.report("one", progress("j1", "running"))
        lake.states.report("one", progress("j1", "done", result=result))
        return await order

    assert asyncio.run(live()) == result


def test_without_spark_the_broker_works_and_the_table_says_what_to_install(tmp_path: Path) -> None:
    assert "pyarrow" not in _imports_of("bridges.spark.broker_side.feature")
    code = (
        "import asyncio, sys\n"
        "from importlib.machinery import PathFinder\n"
        "from pathlib import Path\n"
        "real = PathFinder.find_spec\n"
        "PathFinder.find_spec = lambda name, *rest: None if name == 'pyspark' else real(name, *rest)\n"
        "from bridges.spark.broker_side.local import LocalSpark\n"
        "from bridges.spark.broker_side.settings import LakeSettings\n"
        "async def live():\n"
        "    local = LocalSpark(LakeSettings(), Path(sys.argv[1]), Path(sys.argv[1]) / 'lake.log')\n"
        "    local.want(True)\n"
        "    await local.start('http://127.0.0.1:1', 'token')\n"
        "    while local.state()['state'] != 'failed': await asyncio.sleep(0.01)\n"
        "    print(local.state()['reason'])\n"
        "    await local.stop()\n"
        "asyncio.run(asyncio.wait_for(live(), 120))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert run.stdout.strip() == (
        "lake tables need Spark, and the package 'pyspark' is not installed; install it with "
        "pip install 'sluicemq[spark]'"
    ), run.stderr


def test_a_job_that_cannot_start_fails_with_its_last_words(tmp_path: Path) -> None:
    local = LocalSpark(
        LakeSettings(master="nonsense://"), tmp_path / "in-the-way", tmp_path / "lake.log"
    )
    (tmp_path / "in-the-way").write_text("")

    async def live() -> str:
        local.want(True)
        await local.start("http://127.0.0.1:1", "token")
        await until(lambda: local.state()["state"] == "failed")
        reason = local.state()["reason"]
        await local.stop()
        return str(reason)

    assert "in-the-way" in asyncio.run(live())


def test_a_package_that_is_just_being_imported_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While pyarrow takes its look at pandas, another thread asks whether pandas is installed."""
    monkeypatch.setitem(sys.modules, "pandas", ModuleType("pandas"))
    test_a_job_that_cannot_start_fails_with_its_last_words(tmp_path)


def test_a_job_that_fails_in_an_unforeseen_way_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[str] = []

    def environment(self: LocalSpark, token: str) -> dict[str, str]:
        tries.append(token)
        raise ValueError("pandas.__spec__ is None")

    monkeypatch.setattr(LocalSpark, "_environment", environment)
    local = LocalSpark(LakeSettings(), tmp_path, tmp_path / "lake.log")

    async def live() -> str:
        local.want(True)
        await local.start("http://127.0.0.1:1", "token")
        await until(lambda: len(tries) == 2)
        reason = local.state()["reason"]
        await local.stop()
        return str(reason)

    assert asyncio.run(live()) == "the lake job did not start: ValueError: pandas.__spec__ is None"


def test_the_log_is_bounded(tmp_path: Path) -> None:
    log = RotatingFile(tmp_path / "lake.log", max_bytes=1000, max_files=1, rotation="none")
    for number in range(100):
        log.append(f"line {number} of many\n".encode(), 1_700_000_000.0 + number, sync=False)
    log.close()
    assert last_line(tmp_path / "lake.log") == "line 99 of many"
    assert sum(os.path.getsize(path) for path in tmp_path.iterdir()) <= 2000


def _imports_of(module: str) -> str:
    code = f"import sys, {module}; print(*sys.modules)"
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def refusal(lake: LakeFeature, **spec: Any) -> tuple[str | None, str]:
    """Member and sentence of the first problem of a table that cannot be saved."""
    with pytest.raises(Invalid) as refused:
        lake.tables.create({"name": "sites", "stream": "hot", **spec})
    [problem] = refused.value.problems
    return problem.pointer, problem.message


def test_tables_of_a_template_are_checked_when_it_is_saved(lake: LakeFeature) -> None:
    made = lake.tables.create({"name": "all", "stream": "hot", "tables": "t_${a}"})
    assert (made["tables"], made["max_tables"]) == ("t_${a}", 100)
    assert _own(made)["tables"] == "t_${a}", "the job is told"
    assert refusal(lake, tables="${a}")[1].startswith(
        "expected letters, digits, '_' and '-' around the columns"
    )
    assert refusal(lake, tables="t_${a.b}")[1].startswith("expected columns as ${NAME}")
    assert refusal(lake, tables="t_${a}", key=["a"])[1].startswith("expected no key with 'tables'")
    assert refusal(lake, tables="t_${_published_at}") == (
        "/tables",
        "_published_at: expected a column of type string, enum, integer, long, double, boolean, date, got timestamp",
    )
    pointer, said = refusal(lake, tables="t_${site}", stream="raw")
    assert (pointer, said.endswith("got 'site'")) == ("/tables", True)
    assert refusal(lake, tables="t_${a}", max_tables=1001)[0] == "/max_tables"
    with pytest.raises(Invalid, match="cannot be saved"):
        lake.tables.replace("all", {"stream": "hot", "tables": "u_${a}"})
    lake.tables.replace("all", {"stream": "hot", "tables": "t_${a}", "max_tables": 5})
    with pytest.raises(Invalid, match="'tables', which are not replayed"):
        lake.jobs.plan_replay("all", None, None, None)


def test_no_table_is_where_the_members_of_another_are(lake: LakeFeature, tmp_path: Path) -> None:
    made = lake.tables.create({"name": "all", "stream": "hot", "tables": "t_${a}"})
    pointer, said = refusal(lake, path=f"{made['path']}__tables/t_1")
    assert (pointer, said) == (
        "/path",
        f"lake table 'all' lies in {made['path']} already; choose another path",
    )


def test_a_table_that_reached_max_tables_is_degraded_and_says_what_to_do(lake: LakeFeature) -> None:
    lake.tables.create({"name": "all", "stream": "hot", "tables": "t_${a}", "max_tables": 2})
    now = rfc3339(time.time_ns())
    lake.states.report(
        "all", {"state": "running", "at": now, "offsets": {"0": "12"}, "over_max_tables": 7}
    )
    told = lake.tables.get("all")
    assert told["state"] == "degraded"
    assert told["reason"] == (
        "7 rows became dead letters: table 'all' has its max_tables of 2 tables. Try: a larger max_tables."
    )


def test_members_are_previewed_together_and_one_by_one(lake: LakeFeature) -> None:
    made = lake.tables.create({"name": "all", "stream": "hot", "tables": "t_${a}"})
    spec = TableSpec.of_api(
        made, Positions.parse({"ranges_url": "", "ticket": "", **positions("hot")})
    )
    writer = open_writer(spec, "job")
    writer.write(tasks(records(2, [{"a": 1}, {"a": 2, "more": "x"}, {"a": 1}])))
    assert lake.reads.preview("all", 10)["rows"] == []
    lake.states.report(
        "all",
        {"state": "running", "at": rfc3339(time.time_ns()), "tables": writer.member_figures()},
    )
    shown = lake.tables.get("all")["report"]["tables"]
    assert [(one["name"], one["rows"], one["files"]) for one in shown] == [
        ("t_1", 2, 1),
        ("t_2", 1, 1),
    ]
    assert [row["_offset"] for row in lake.reads.preview("all", 10)["rows"]] == [4, 3, 2]
    assert [row["_offset"] for row in lake.reads.preview("all", 10, member="t_2")["rows"]] == [3]
    assert lake.reads.history("all", 10, "t_1")["rows"] == 2
    assert lake.reads.history("all", 10)["versions"][0]["rows"] == 3
    assert lake.jobs.plan_compact("all")["files"] == 0
    for name in ("../all", "t_1/..", "T_1"):
        with pytest.raises(NotFound, match="member table"):
            lake.reads.preview("all", 10, member=name)


def test_stores_and_catalogs_that_must_not_be_called_are_refused_and_given_to_no_job(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        stores = [
            StoreSettings(url="s3://inner", endpoint="http://127.0.0.2:9000"),
            StoreSettings(url="s3://aws"),
        ]
        catalogs = [
            CatalogSettings(name="meta", uri="http://localhost:1/catalog"),
            CatalogSettings(
                name="tokens", uri="http://[::ffff:192.0.2.1]/", oauth_uri="http://169.254.169.254/"
            ),
        ]
        settings = LakeSettings(stores=stores, catalogs=catalogs, run_spark=False)
        ssrf = SsrfSettings(enable=True, allow_cidrs=["192.0.2.0/24"])
        feature = LakeFeature(make_lake_services(tmp_path), settings, ssrf)
        tables = feature.tables
        tables.create({"name": "inner", "stream": "hot", "path": "s3://inner/t"})
        tables.create(
            {
                "name": "meta",
                "stream": "hot",
                "format": "iceberg",
                "path": "s3://aws/m",
                "catalog": "meta",
            }
        )
        tables.create({"name": "aws", "stream": "hot", "path": "s3://aws/t"})
        assert tables.get("inner")["store"]["endpoint"] == "http://127.0.0.2:9000"
        await feature.connect("", "")
        for name, member, host in (
            ("inner", "store", "127.0.0.2"),
            ("meta", "catalog_settings", "localhost"),
        ):
            shown = tables.get(name)
            assert (shown["state"], shown[member]) == ("failed", None)
            assert shown["reason"].startswith(
                f"{host} must not be called: rule_engine.ssrf.deny_cidrs has"
            )
        assert tables.get("aws")["state"] != "failed"
        for spec, pointer in (
            ({"path": "s3://inner/u"}, "/path"),
            ({"path": "s3://aws/u", "format": "iceberg", "catalog": "meta"}, "/catalog"),
            ({"path": "s3://aws/u", "format": "iceberg", "catalog": "tokens"}, "/catalog"),
        ):
            with pytest.raises(Invalid) as refused:
                tables.create({"name": "u", "stream": "hot", **spec})
            assert [problem.pointer for problem in refused.value.problems] == [pointer]
            assert "must not be called" in refused.value.problems[0].message
        await feature.disconnect()

    asyncio.run(test())


def test_a_table_whose_store_is_not_given_is_read_from_no_other() -> None:
    with pytest.raises(
        Unavailable, match=r"expected a URL in one of the stores of lake\.stores that may be called"
    ):
        place_of({"path": "s3://inner/t", "store": None})
