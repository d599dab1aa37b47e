"""The topic index as it runs: kept by the range server, read by Spark's way and by pages, killed in the middle."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest

from broker.core.stream import StreamRecord
from broker.core.topic import TopicFilter
from broker.storage.rocksdb.store import RocksStore
from broker.storage.store import Batch, LogShard
from broker.streams.range_client import RangeClient
from broker.streams.settings import RangeServerSettings
from broker.streams.topic_index.pages import IndexPages
from broker.streams.topic_index.report import INDEXED, Wanted
from tests.broker.streams.test_ranges import Running, is_alive, running
from tests.support.certificates import Authority
from tests.support.node import eventually

LOG = LogShard(16)
SETTINGS = RangeServerSettings(index_delay=0.1)
RECORDS = 30_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RocksStore]:
    opened = RocksStore(tmp_path, "os")
    opened.commit(Batch(puts={INDEXED + b"16": msgspec.json.encode(Wanted(1, 1024**3, None))}))
    fill(opened, 0, RECORDS)
    yield opened
    opened.close()


def fill(store: RocksStore, start: int, end: int) -> None:
    store.commit(
        Batch(
            {
                LOG: [
                    StreamRecord(n, f"t/{n % 300}", b"%d" % n, 1, False, "c")
                    for n in range(start, end)
                ]
            }
        )
    )


def indexed_to(server: Running) -> int:
    return max((one.next_offset for one in server.ranges.index.shards), default=0)


def builders(pid: int) -> list[int]:
    """The processes that the range server started."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found


def _is_replaced(server: Running, pid: int) -> bool:
    return server.ranges.pid not in (None, pid)


def _are_gone(pids: list[int]) -> bool:
    return not any(map(is_alive, pids))


def offsets(server: Running, topic: str, end: int) -> list[int]:
    found: list[int] = server.get(0, end, topics=topic).column("offset").to_pylist()
    return found


def test_a_filter_is_served_by_the_index_and_from_what_is_not_indexed_yet(
    store: RocksStore, tmp_path: Path
) -> None:
    with running(tmp_path, SETTINGS) as server:
        eventually(lambda: indexed_to(server) == RECORDS)
        fill(store, RECORDS, RECORDS + 700)
        assert offsets(server, "t/7", RECORDS + 700) == list(range(7, RECORDS + 700, 300))
        pages = IndexPages(RangeClient(server.ranges.own_access), lambda: server.ranges.index)
        page = pages.read(LOG, 300, RECORDS + 700, TopicFilter.parse("t/7"), 1000)
        assert page is not None
        assert [(offset, record.payload) for offset, record in page.found] == [
            (n, b"%d" % n) for n in range(307, RECORDS + 700, 300)
        ]
        assert page.next_offset == RECORDS + 700
        assert pages.read(LOG, RECORDS + 700, RECORDS + 700, TopicFilter.parse("t/7"), 10) is None
        assert pages.read(LogShard(17), 0, 10, TopicFilter.parse("t/7"), 10) is None
    assert pages.read(LOG, 0, RECORDS, TopicFilter.parse("t/7"), 10) is None  # it does not answer


def test_killed_in_the_middle_of_building_the_index_is_made_again(
    store: RocksStore, tmp_path: Path
) -> None:
    with running(tmp_path, SETTINGS) as server:
        for _ in range(2):
            pid = server.ranges.pid
            assert pid is not None
            started = eventually(partial(builders, pid))
            os.kill(pid, signal.SIGKILL)
            eventually(partial(_is_replaced, server, pid))
            eventually(partial(_are_gone, started))
        eventually(lambda: indexed_to(server) == RECORDS)
        assert offsets(server, "t/7", RECORDS) == list(range(7, RECORDS, 300))
        assert not list((tmp_path / "topic-index" / "building").iterdir())


def test_a_builder_that_is_killed_is_reported_and_started_again(
    store: RocksStore, tmp_path: Path
) -> None:
    with running(tmp_path, SETTINGS) as server:
        pid = server.ranges.pid
        assert pid is not None
        eventually(lambda: builders(pid))
        for child in builders(pid):
            os.kill(child, signal.SIGKILL)
        eventually(lambda: server.ranges.index.problem is not None)
        eventually(lambda: indexed_to(server) == RECORDS and server.ranges.index.problem is None)


def test_pages_are_read_over_tls(store: RocksStore, tmp_path: Path) -> None:
    files = Authority(tmp_path, "first").sign("server", {"CN": "ranges"}, ["ranges.example"])
    settings = RangeServerSettings(
        index_delay=0.1, certfile=str(files.cert), keyfile=str(files.key)
    )
    with running(tmp_path, settings) as server:
        eventually(lambda: indexed_to(server) == RECORDS)
        pages = IndexPages(RangeClient(server.ranges.own_access), lambda: server.ranges.index)
        page = pages.read(LOG, 0, RECORDS, TopicFilter.parse("t/7"), 1)
        assert page is not None
        assert page.found[0][0] == 7
