"""Catalogue, capture, retention, sealing: the parts of streams on a real store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.core.client import Client
from broker.core.errors import AlreadyExists, NotFound, Unavailable
from broker.core.message import Message
from broker.core.stored import record_of
from broker.core.stream import StreamRecord
from broker.core.tracing import Spans, TraceContext
from broker.storage.memory import MemoryStore
from broker.storage.rocksdb.store import RocksStore
from broker.storage.store import Batch, LogShard, Store
from broker.storage.writer import Writer
from broker.streams.capture import CaptureTap, RowAppender, StreamTraces
from broker.streams.catalogue import Catalogue, LogKeys
from broker.streams.frame_sizes import SMALL_RECORDS
from broker.streams.maintenance import Sealer, enforce
from broker.streams.reader import StreamReader
from broker.streams.settings import Retention, StreamSpec
from tests.support.catalogues import catalogue_of

LOG = LogShard(16)
DAY_US = 86_400_000_000


def record(number: int, ts_us: int = 1, size: int = 10) -> StreamRecord:
    return StreamRecord(ts_us, "t", b"%0*d" % (size, number), 1, False, "c")


def spec(name: str, *topics: str, shards: int = 1) -> StreamSpec:
    return StreamSpec(name=name, topics=list(topics), shards=shards)


@pytest.fixture(params=["memory", "rocksdb"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened: Store = MemoryStore() if request.param == "memory" else RocksStore(tmp_path, "os")
    yield opened
    opened.close()


def test_log_numbers_begin_at_16_and_are_never_reused(store: Store) -> None:
    catalogue = catalogue_of(store, spec("a"))
    first = catalogue.get("a")

    def change(catalogue: Catalogue) -> None:
        catalogue.remove("a")
        with pytest.raises(NotFound):
            catalogue.get("a")
        catalogue.open(spec("a"))

    second = catalogue_of(store, spec("a"), change=change).get("a")
    assert (first.log, second.log) == (16, 17)
    assert first.epoch != second.epoch
    with pytest.raises(AlreadyExists):
        catalogue.open(spec("a"))
    assert catalogue_of(store).dropping() == [16]


def test_a_stream_opened_again_is_the_same(store: Store) -> None:
    made = catalogue_of(store, spec("a", "x/#", shards=2)).get("a")
    again = catalogue_of(store, spec("a", "y/#", shards=5)).get("a")
    assert (again.log, again.epoch, again.shards) == (made.log, made.epoch, made.shards)
    assert again.spec.topics == ["y/#"]


def test_a_removal_cut_off_before_its_specification_went_is_taken_back(store: Store) -> None:
    log = catalogue_of(store, spec("a")).get("a").log
    store.commit(Batch(puts={b"streams/dropping/%d" % log: b"a"}))
    after = catalogue_of(store, spec("a"), change=Catalogue.finish_removals)
    assert after.get("a").log == log
    assert after.dropping() == []


def test_a_removal_cut_off_after_its_specification_went_is_finished(store: Store) -> None:
    log = catalogue_of(store, spec("a")).get("a").log
    store.commit(Batch(puts={b"streams/dropping/%d" % log: b"a"}))
    after = catalogue_of(store, change=Catalogue.finish_removals)
    assert after.dropping() == [log]
    after.drop(log)
    assert after.dropping() == []
    assert catalogue_of(store, spec("a")).get("a").log != log


def message(topic: str, client_id: str = "meter", **changes: object) -> Message:
    made = Message(topic, b"\x00", 1, False, Client(client_id, "user"), 1_700_000_000_123_456_789)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def test_a_message_becomes_a_record_with_its_properties_as_json() -> None:
    properties = {
        "Content-Type": "text",
        "Correlation-Data": b"\xff",
        "User-Property": [("a", "1"), ("a", "2")],
    }
    made = record_of(message("t", properties=properties, retain=True))
    assert made[:7] == (1_700_000_000_123_456, "t", b"\x00", 1, True, "meter", "user")
    assert json.loads(made.properties or "") == {
        "Content-Type": "text",
        "Correlation-Data": {"$base64": "/w=="},
        "User-Property": [["a", "1"], ["a", "2"]],
    }
    assert record_of(message("t")).properties is None


def untraced(writer: Writer) -> StreamTraces:
    return StreamTraces(Spans(), writer, lambda _: ())


def test_a_traced_message_is_reported_with_ranges_that_have_it() -> None:
    async def test() -> None:
        store = MemoryStore()
        writer = Writer(store, asyncio.get_running_loop())
        catalogue = Catalogue(LogKeys(writer))
        spans, reader = Spans(), StreamReader(store, catalogue)
        traces = StreamTraces(spans, writer, reader.ranges)
        for name, shards in (("one", 1), ("three", 3)):
            catalogue.open(spec(name, "a/#", "b" if name == "one" else "c", shards=shards))
        seen: dict[str, list[int]] = {}
        spans.on_stored.connect(
            lambda stream, context, ranges: seen.setdefault(stream, []).append(
                context.trace_id + sum(part.next_offset for part in ranges)
            )
        )
        tap = CaptureTap(catalogue, writer, traces)
        context = TraceContext(1000, 7)
        for topic, via in (
            ("b", ()),
            ("b", ("rule",)),
            ("b", (context.mark,)),
            ("a/1", (context.mark,)),
        ):
            call = tap.plan(topic)
            assert call is not None
            traced = message(topic, "a")
            traced.via = via
            call(traced)
            await writer.committed()
        assert seen == {"one": [1003, 1004], "three": [1001]}
        await writer.close()

    asyncio.run(test())


def test_messages_are_captured_by_every_stream_whose_filter_matches(store: Store) -> None:
    async def test() -> None:
        writer = Writer(store, asyncio.get_running_loop())
        catalogue = Catalogue(LogKeys(writer))
        every = catalogue.open(spec("every", "site/#", "site/1"))
        one = catalogue.open(spec("one", "site/1", shards=4))
        catalogue.open(spec("rows"))
        tap = CaptureTap(catalogue, writer, untraced(writer))
        assert tap.plan("other") is None
        for topic in ("site/1", "site/2"):
            call = tap.plan(topic)
            assert call is not None
            for client in ("a", "b", "c", "a"):
                call(message(topic, client))
        await writer.close()
        assert [r.topic for _, r in store.read(every.shards[0], 0, 100)] == ["site/1"] * 4 + [
            "site/2"
        ] * 4
        by_shard = [[r.client_id for _, r in store.read(shard, 0, 100)] for shard in one.shards]
        assert sorted(client for clients in by_shard for client in clients) == ["a", "a", "b", "c"]
        assert sum("a" in clients for clients in by_shard) == 1

    asyncio.run(test())


def test_rows_go_to_streams_of_rows_until_they_are_deleted() -> None:
    async def test() -> None:
        store = MemoryStore()
        writer = Writer(store, asyncio.get_running_loop())
        catalogue = Catalogue(LogKeys(writer))
        stream = catalogue.open(spec("rows"))
        catalogue.open(spec("raw", "#"))
        appender = RowAppender(catalogue, writer, untraced(writer))
        append = appender.appender("rows")
        append(record(1))
        assert appender.names() == ["rows", "raw"]
        with pytest.raises(NotFound, match="captures topics"):
            appender.appender("raw")
        with pytest.raises(NotFound):
            appender.appender("none")
        catalogue.remove("rows")
        with pytest.raises(Unavailable, match="'rows' was deleted"):
            append(record(2))
        await writer.close()
        assert len(store.read(stream.shards[0], 0, 10)) == 1

    asyncio.run(test())


@pytest.mark.parametrize(("age_days", "kept"), [(10.0, 0), (3.5, 2), (0.5, 5), (float("inf"), 0)])
def test_retention_by_age_forgets_what_is_older(store: Store, age_days: float, kept: int) -> None:
    for day in range(5):
        store.commit(Batch({LOG: [record(day, day * DAY_US)]}))
    gone = enforce(store, LOG, Retention(age=age_days * 86400), 5 * DAY_US)
    assert gone == kept
    assert store.range_of(LOG).first_offset == kept
    assert store.range_of(LOG).next_offset == 5


def test_retention_by_bytes_forgets_the_oldest_until_it_fits(store: Store) -> None:
    for number in range(40):
        store.commit(Batch({LOG: [record(number, size=100_000)]}))
    enforce(store, LOG, Retention(age=float("inf"), bytes=1024 * 1024), 1)
    assert store.size_of(LOG) <= 1024 * 1024
    assert store.range_of(LOG).next_offset - store.range_of(LOG).first_offset == 10


def test_small_frames_are_joined_without_any_change_for_readers(store: Store) -> None:
    joiner = Sealer(store)
    for number in range(700):
        store.commit(Batch({LOG: [record(number * 10 + i, number) for i in range(10)]}))
    before = list(store.read(LOG, 0, 10_000))
    while joiner.seal(LOG):
        pass
    frames = list(store.directory(LOG))
    assert frames[0].records >= 4096
    assert len(frames) < 512
    assert list(store.read(LOG, 0, 10_000)) == before
    assert [store.offset_at(LOG, ts) for ts in (0, 1, 500, 699, 700)] == [0, 10, 5000, 6990, 7000]


def test_sealing_goes_on_as_a_stream_grows_and_is_trimmed(store: Store) -> None:
    joiner, size = Sealer(store), SMALL_RECORDS // 20
    for number in range(120):
        store.commit(Batch({LOG: [record(number)] * size}))
        if number % 7 == 0:
            while joiner.seal(LOG):
                pass
        if number == 60:
            store.trim(LOG, 40 * size)
    held = store.range_of(LOG)
    records = [(offset, one.ts_us) for offset, one in store.read(LOG, 0, held.next_offset)]
    assert held.first_offset > 0
    assert records == [
        (offset, record(offset // size).ts_us) for offset in range(held.first_offset, 120 * size)
    ]
    assert len(list(store.directory(LOG))) < 30


def test_large_frames_are_left_alone(store: Store) -> None:
    joiner, large = Sealer(store), SMALL_RECORDS + 1
    for size in (large, 1, 1, large, 1, large):
        store.commit(Batch({LOG: [record(0)] * size}))
    while joiner.seal(LOG):
        pass
    assert [entry.records for entry in store.directory(LOG)] == [large, 2, large, 1, large]
