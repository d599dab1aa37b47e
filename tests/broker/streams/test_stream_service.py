"""Streams as people manage them: verbs, checks, what is shown, restart, background work."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from broker.config.allowed import AllowedSettings, confine
from broker.config.object_stores import StoreSettings
from broker.core.errors import AlreadyExists, ConfigError, InUse, Invalid, NotFound, Unavailable
from broker.core.events import Events
from broker.core.objects import MemorySection, Reference, Spec
from broker.core.stream import StreamRecord
from broker.core.topic import TopicFilter
from broker.observe.alarms import Alarms
from broker.observe.metrics import Metrics
from broker.storage.memory import MemoryStore
from broker.storage.rocksdb.store import RocksStore
from broker.storage.store import LogShard, Store
from broker.storage.writer import Writer
from broker.streams.catalogue import Catalogue, LogKeys, stored_streams
from broker.streams.range_client import RangeAccess, RangeClient
from broker.streams.service import StreamService
from broker.streams.settings import StreamSettings
from broker.streams.tier.places import TierPlaces
from broker.streams.tier.report import Expired, Segment, TierState, Uploaded
from broker.streams.topic_index.pages import IndexPages
from broker.streams.topic_index.report import INDEXED, IndexReport, ShardIndex, Wanted
from tests.support.held_log import HeldLog
from tests.support.waiting import until, within


class CountingPlans:
    def __init__(self) -> None:
        self.invalidations = 0

    def invalidate(self) -> None:
        self.invalidations += 1


class FullSection(MemorySection):
    """A section whose file cannot be written."""

    def save(self, changes: Any) -> None:
        raise Unavailable("the file cannot be written")


class Clock:
    def __init__(self) -> None:
        self.now_us = 1_000_000_000  # so that records of 1970 are young

    def now_ns(self) -> int:
        return self.now_us * 1000

    def monotonic_s(self) -> float:
        return self.now_us / 1_000_000


class Bench:
    """A service over a store, started."""

    def __init__(self, store: Store, section: MemorySection | None = None, **options: Any) -> None:
        self.clock, self.plans = Clock(), CountingPlans()
        self.section = section or MemorySection()
        self.writer = Writer(store, asyncio.get_running_loop())
        settings = StreamSettings(sealing_interval=0.05, retention_interval=0.1)
        self.service = StreamService(
            self.writer,
            Catalogue(LogKeys(self.writer)),
            self.section,
            self.plans,
            settings=settings,
            clock=self.clock,
            **options,
        )
        self.service.start()

    async def append(self, stream: str, *times_us: int) -> None:
        append = self.service.appender.appender(stream)
        for ts_us in times_us:
            append(StreamRecord(ts_us, "t", b"{}", 1, False, "c"))
        await self.committed()

    async def committed(self) -> None:
        done: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        self.writer.when_committed(done.set_result)
        assert await done is None

    async def stop(self) -> None:
        await self.service.stop()
        await self.writer.close()


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(within(test(), 120))


def test_a_stream_is_made_shown_changed_and_deleted() -> None:
    async def test() -> None:
        bench = Bench(MemoryStore())
        service = bench.service
        shown = service.create({"name": "raw", "topics": ["site/#"], "retention": {"age": "2h"}})
        assert shown["kind"] == "topics"
        assert shown["retention"] == {"age": "7200s", "bytes": 10 * 1024**3}
        assert shown["positions"] == [{"shard": 0, "first_offset": "0", "next_offset": "0"}]
        assert (shown["records"], shown["bytes"], shown["oldest"], shown["newest"]) == (
            0,
            0,
            None,
            None,
        )
        with pytest.raises(AlreadyExists):
            service.create({"name": "raw"})
        shown["topics"].append("plant/#")
        changed = service.replace("raw", shown)
        assert changed["topics"] == ["site/#", "plant/#"]
        assert service.tap.plan("plant/1") is not None
        assert [spec["name"] for spec in service.list()] == ["raw"]
        assert bench.section.load()[0]["topics"] == ["site/#", "plant/#"]
        service.delete("raw")
        assert service.tap.plan("plant/1") is None
        with pytest.raises(NotFound):
            service.get("raw")
        assert bench.section.load() == []
        assert bench.plans.invalidations == 4
        await bench.stop()

    run(test)


@pytest.mark.parametrize(
    ("spec", "pointer", "says"),
    [
        ({}, "/name", "required"),
        ({"name": "-a"}, "/name", "begins with a letter or digit"),
        ({"name": "a" * 201}, "/name", "up to 200"),
        ({"name": "a", "topics": ["a/#/b"]}, "/topics/0", "'#' must be the whole last level"),
        ({"name": "a", "topics": ["$share/g/a"]}, "/topics/0", "takes no $share/ filter"),
        ({"name": "a", "retention": {"age": "soon"}}, "/retention/age", "is not a duration"),
        ({"name": "a", "retention": {"bytes": "1"}}, "/retention/bytes", "at least 1048576"),
        ({"name": "a", "retention": "7d"}, "/retention", "retention is '7d'; expected an object"),
        ({"name": "a", "shards": 0}, "/shards", "shards is 0; expected at least 1"),
        ({"name": "a", "topic": "x"}, "/topic", "topic is not known; did you mean 'topics'?"),
    ],
)
def test_a_wrong_specification_is_refused_with_its_place(
    spec: Spec, pointer: str, says: str
) -> None:
    async def test() -> None:
        bench = Bench(MemoryStore())
        with pytest.raises(Invalid) as refused:
            bench.service.create(spec)
        assert refused.value.problems[0].pointer == pointer
        assert says in refused.value.problems[0].message
        assert not bench.service.list()
        await bench.stop()

    run(test)


def test_kind_and_shards_stay_and_users_keep_a_stream() -> None:
    async def test() -> None:
        users: list[Reference] = []
        bench = Bench(MemoryStore(), users=lambda _: users)
        bench.service.create({"name": "rows", "shards": 2})
        with pytest.raises(Invalid) as refused:
            bench.service.replace("rows", {"topics": ["a"], "shards": 3, "name": "other"})
        assert [problem.pointer for problem in refused.value.problems] == [
            "/name",
            "/topics",
            "/shards",
        ]
        users.append(Reference("rule", "hot"))
        with pytest.raises(InUse, match="is used by rule 'hot'"):
            bench.service.delete("rows")
        await bench.stop()

    run(test)


def test_what_cannot_be_saved_changes_nothing() -> None:
    async def test() -> None:
        store = MemoryStore()
        bench = Bench(store, FullSection([{"name": "kept"}]))
        for change in (
            lambda: bench.service.create({"name": "new"}),
            lambda: bench.service.replace("kept", {"description": "x"}),
            lambda: bench.service.delete("kept"),
        ):
            with pytest.raises(Unavailable):
                change()
        assert [spec["name"] for spec in bench.service.list()] == ["kept"]
        assert "description" not in bench.service.get("kept")
        await bench.append("kept", 1)
        await bench.stop()

    run(test)


def test_no_change_of_a_stream_keeps_the_loop_waiting_for_a_commit(tmp_path: Path) -> None:
    async def test() -> None:
        log = HeldLog()
        store = RocksStore(tmp_path, log=log)
        bench = Bench(store)
        service = bench.service
        for name in ("kept", "gone"):
            service.create({"name": name})
        await bench.append("kept", 1)
        gone = service.log_of("gone")
        async with log.held():
            bench.writer.touch()
            await log.asked()
            service.create({"name": "new", "index": "topic"})
            service.replace("kept", {"index": "topic"})
            service.delete("gone")
            service.create({"name": "gone"})
        await bench.append("new", 2)
        opened = {name: service.log_of(name) for name in ("kept", "new", "gone")}
        assert {name: log for name, log, _ in stored_streams(store)} == opened
        assert opened["gone"] != gone
        for name in ("kept", "new"):
            assert store.get(INDEXED + b"%d" % opened[name]) is not None
        await bench.stop()
        store.close()

    run(test)


def test_positions_by_time_are_texts_and_tell_where_to_read() -> None:
    async def test() -> None:
        bench = Bench(
            MemoryStore(),
            access=lambda log, until_s, machine: {
                "ranges_url": "http://h:1",
                "ticket": f"for {log}",
            },
        )
        bench.service.create({"name": "rows"})
        await bench.append("rows", 100, 200, 300)
        positions = bench.service.positions("rows", 150)
        epoch = positions.pop("epoch")
        assert len(epoch) == 36
        assert positions == {
            "stream": "rows",
            "kind": "rows",
            "log": 16,
            "shards": [{"shard": 0, "first_offset": "0", "next_offset": "3", "at_offset": "1"}],
            "ranges_url": "http://h:1",
            "ticket": "for 16",
            "now_us": str(bench.clock.now_ns() // 1000),
        }
        assert "at_offset" not in bench.service.positions("rows")["shards"][0]
        shown = bench.service.get("rows")
        assert (shown["records"], shown["oldest"]) == (3, "1970-01-01T00:00:00.000Z")
        await bench.stop()

    run(test)


def test_streams_come_back_with_their_records_after_a_restart(tmp_path: Path) -> None:
    async def test() -> None:
        section = MemorySection()
        store = RocksStore(tmp_path)
        bench = Bench(store, section)
        bench.service.create({"name": "a", "topics": ["x"], "shards": 3})
        bench.service.create({"name": "b"})
        await bench.append("b", 1, 2)
        before = [bench.service.get(name) for name in ("a", "b")]
        await bench.stop()
        store.close()
        store = RocksStore(tmp_path)
        bench = Bench(store, section)
        after = [bench.service.get(name) for name in ("a", "b")]
        assert after == before
        await bench.stop()
        store.close()

    run(test)


def test_streams_without_a_definition_are_logged_and_keep_their_records(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        section = MemorySection()
        store = RocksStore(tmp_path)
        bench = Bench(store, section)
        for name in ("a", "b", "deleted"):
            bench.service.create({"name": name})
        await bench.append("b", 1, 2)
        bench.service.delete("deleted")
        await bench.stop()
        assert "stream.without_definition" not in caplog.text
        bench = Bench(store, MemorySection([{"name": "a"}]))
        [warning] = [
            record
            for record in caplog.records
            if record.getMessage() == "stream.without_definition"
        ]
        assert vars(warning)["fields"]["streams"] == ["b"]
        await bench.stop()
        bench = Bench(store, section)
        assert bench.service.get("b")["records"] == 2
        await bench.stop()
        store.close()

    run(test)


def test_a_wrong_specification_in_the_configuration_is_named() -> None:
    async def test() -> None:
        with pytest.raises(ConfigError) as refused:
            Bench(
                MemoryStore(),
                MemorySection([{"name": "a", "topics": ["#/a"]}, {"name": "b", "x": 1}]),
            )
        assert [problem.split(":")[1] for problem in refused.value.problems] == [
            " stream 'a' cannot be used",
            " stream 'b' cannot be used",
        ]

    run(test)


def test_a_deleted_streams_records_are_forgotten_and_a_namesake_is_empty() -> None:
    async def test() -> None:
        store = MemoryStore()
        bench = Bench(store)
        bench.service.create({"name": "a"})
        epoch = bench.service.positions("a")["epoch"]
        await bench.append("a", 1, 2)
        append = bench.service.appender.appender("a")
        append(StreamRecord(3, "t", b"", 0, False, "c"))
        bench.service.delete("a")
        await until(lambda: LogShard(16) not in store.shards())
        bench.service.create({"name": "a"})
        assert bench.service.positions("a")["epoch"] != epoch
        assert bench.service.get("a")["records"] == 0
        await bench.committed()
        assert LogShard(16) not in store.shards()
        await bench.stop()

    run(test)


def test_retention_and_sealing_go_on_in_the_background() -> None:
    async def test() -> None:
        store = MemoryStore()
        bench = Bench(store)
        bench.service.create({"name": "a", "retention": {"age": "1h"}})
        now = bench.clock.now_us
        for number in range(600):
            await bench.append("a", now + number)
        await until(lambda: len(list(store.directory(LogShard(16)))) < 200)
        assert bench.service.get("a")["records"] == 600
        bench.clock.now_us += 3601 * 1_000_000
        await until(lambda: bench.service.get("a")["records"] == 0)
        assert bench.service.positions("a")["shards"][0]["first_offset"] == "600"
        await bench.stop()

    run(test)


def test_a_stream_asks_for_a_topic_index_and_shows_its_state() -> None:
    async def test() -> None:
        report = IndexReport()
        metrics = Metrics()
        store = MemoryStore()
        pages = IndexPages(
            RangeClient(lambda log: RangeAccess("127.0.0.1", 1, "", None)), lambda: report
        )
        bench = Bench(store, index=pages, metrics=metrics)
        service = bench.service
        shown = service.create(
            {"name": "rows", "index": "topic", "retention": {"age": "infinity", "bytes": "1GB"}}
        )
        log = service.log_of("rows")
        key = INDEXED + b"%d" % log
        await bench.committed()
        assert msgspec.json.decode(store.get(key) or b"", type=Wanted) == Wanted(
            1, shown["retention"]["bytes"], None
        )
        assert shown["index"] == "topic"
        for first in range(0, 200_000, 50_000):
            await bench.append("rows", *range(first, first + 50_000))
        assert service.get("rows")["index_state"] == {
            "state": "building", "records_waiting": 200_000, "bytes": 0, "problem": None,
        }  # fmt: skip
        report = IndexReport([ShardIndex(log, 0, 150_000, 77)])
        assert service.get("rows")["index_state"] == {
            "state": "ready", "records_waiting": 50_000, "bytes": 77, "problem": None,
        }  # fmt: skip
        assert metrics.value("stream_index_records_waiting") == 50_000
        assert (metrics.value("stream_index_bytes"), metrics.value("stream_index_failing")) == (
            77,
            0,
        )
        report = IndexReport([], "the disk is full")
        assert service.get("rows")["index_state"]["state"] == "failing"
        # a range server that does not answer: the records are read here
        report = IndexReport([ShardIndex(log, 0, 200_000, 77)])
        assert next(service.reader.records("rows", 0, 5, TopicFilter.parse("t")))[0] == 5
        service.replace("rows", {**service.get("rows"), "index": "none"})
        await bench.committed()
        assert store.get(key) is None
        assert service.get("rows")["index_state"] is None
        service.replace("rows", {**service.get("rows"), "index": "topic"})
        await bench.committed()
        assert store.get(key) is not None
        service.delete("rows")
        await bench.committed()
        assert store.get(key) is None
        with pytest.raises(Invalid) as refused:
            service.create({"name": "rows", "index": "time"})
        assert refused.value.problems[0].pointer == "/index"
        await bench.stop()

    run(test)


def test_a_tier_of_a_cell_that_moves_is_where_all_machines_reach_it(tmp_path: Path) -> None:
    async def test() -> None:
        confine(AllowedSettings(directories=[tmp_path / "shared"]), tmp_path / "data")
        own = tmp_path / "data" / "tiers"
        bench = Bench(
            MemoryStore(), places=TierPlaces([StoreSettings(url="s3://archive")], own, moves=True)
        )
        for name, url in (("a", "s3://archive/x"), ("b", str(tmp_path / "shared" / "x"))):
            bench.service.create({"name": name, "tier": {"url": url}})
        with pytest.raises(Invalid) as refused:
            bench.service.create({"name": "c", "tier": {"url": str(own / "x")}})
        [problem] = refused.value.problems
        assert problem.pointer == "/tier/url"
        assert "stays behind when another machine runs the cell" in problem.message
        await bench.stop()

    run(test)


def test_a_tier_is_in_a_store_of_the_settings_or_an_allowed_directory_and_stays_there(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        store = StoreSettings(url="s3://archive/sluice")
        bench = Bench(MemoryStore(), places=TierPlaces([store], tmp_path))
        service = bench.service
        for url, wrong in (
            (
                "s3://other/x",
                r"/tier/url.*one of the stores of lake\.stores \(s3://archive/sluice\), got s3://other/x",
            ),
            ("/etc/x", r"/tier/url.*expected a path in .*allowed\.directories\), got /etc/x"),
            ("x", "expected s3://..., gs://..., abfss://... or an absolute path, got 'x'"),
            ("http://x/y", "expected s3://"),
        ):
            with pytest.raises(Invalid) as refused:
                service.create({"name": "s", "tier": {"url": url}})
            shown = "; ".join(f"{one.pointer} {one}" for one in refused.value.problems)
            assert re.search(wrong, shown), shown
        made = service.create(
            {
                "name": "s",
                "retention": {"age": "30d"},
                "tier": {"url": "s3://archive/sluice/x/", "retention": "90d"},
            }
        )
        assert made["retention"]["age"] == "2592000s"
        tier = {
            "url": "s3://archive/sluice/x",
            "after": "600s",
            "retention": f"{90 * 86400}s",
            "unread_bytes": 10 * 1024**3,
        }
        assert made["tier"] == tier
        assert made["tier_state"] == {
            "state": "starting",
            "problem": None,
            "last_success": None,
            "positions": [{"shard": 0, "first_offset": "0", "next_offset": "0"}],
            "records_waiting": 0,
            "segments": 0,
            "bytes": 0,
            "oldest": None,
        }
        assert service.replace("s", {**made, "tier": {**tier, "url": str(tmp_path / "mine")}})[
            "tier"
        ]["retention"]
        log = service.log_of("s")
        await bench.committed()
        service.tiers.note(Uploaded(log, 0, Segment(0, 10, 1, 2, 100)))
        service.tiers.note(TierState(log, "the store is away", 0))
        await until(lambda: service.get("s")["tier_state"]["segments"] == 1)
        assert service.get("s")["tier_state"]["state"] == "failing"
        with pytest.raises(
            Invalid, match=r"where segments of the stream are, got none; a tier\.retention of 1s"
        ):
            service.replace("s", {"name": "s"})
        service.tiers.note(Expired(log, 0, Segment(0, 10, 1, 2, 100)))
        service.tiers.note(Expired(log, 0, Segment(0, 10, 1, 2, 100)))  # told twice
        await until(lambda: service.get("s")["tier_state"]["segments"] == 0)
        assert service.replace("s", {"name": "s"})["tier_state"] is None
        await bench.stop()

    run(test)


def test_records_that_a_table_has_not_read_outlive_their_age() -> None:
    async def test() -> None:
        unread = {0: 2}
        bench = Bench(MemoryStore(), unread_of=lambda stream: unread if stream == "rows" else {})
        bench.service.create({"name": "rows", "retention": {"age": "1h"}})
        bench.service.create({"name": "other", "retention": {"age": "1h"}})
        for number in range(4):
            await bench.append("rows", bench.clock.now_us + number)
            await bench.append("other", bench.clock.now_us + number)
        bench.clock.now_us += 7200 * 1_000_000

        async def begins(stream: str, offset: int) -> None:
            await retained(bench, lambda: first_of(bench, stream) == offset)

        await begins("other", 4)
        await begins("rows", 2)
        unread[0] = 3
        await begins("rows", 3)
        unread.clear()
        await begins("rows", 4)
        await bench.stop()

    run(test)


def test_unread_records_do_not_exceed_the_size_of_their_stream_and_raise_an_alarm_before() -> None:
    async def test() -> None:
        clock, size = Clock(), 1024 * 1024
        alarms = Alarms(clock, Events(), Metrics())
        bench = Bench(MemoryStore(), unread_of=lambda _: {0: 0}, alarms=alarms)
        bench.service.create({"name": "rows", "retention": {"age": "1h", "bytes": size}})
        append = bench.service.appender.appender("rows")
        payload = json.dumps({"a": "x" * (size // 10)}).encode()

        async def publish(count: int) -> None:
            for _ in range(count):
                append(StreamRecord(bench.clock.now_us, "t", payload, 1, False, "c"))
                await bench.committed()

        await publish(7)
        bench.clock.now_us += 7200 * 1_000_000
        await publish(2)
        await retained(bench, lambda: bool(alarms.active()))
        [alarm] = alarms.active()
        assert alarm.name == "stream_unread:rows"
        assert "have not read take 9" in alarm.message
        assert first_of(bench, "rows") == 0
        await publish(4)
        await retained(bench, lambda: first_of(bench, "rows") > 0)
        bench.service.delete("rows")
        await retained(bench, lambda: not alarms.active())
        await bench.stop()

    run(test)


async def retained(bench: Bench, condition: Callable[[], bool]) -> None:
    """Wait for a condition while retention works, which is once in a while of the bench's clock."""

    def holds() -> bool:
        bench.clock.now_us += 1_000_000
        return condition()

    await until(holds)


def first_of(bench: Bench, stream: str) -> int:
    return int(bench.service.positions(stream)["shards"][0]["first_offset"])
