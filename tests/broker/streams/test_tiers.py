"""Tiers of streams over a directory: what is uploaded, what may be trimmed, what is read, what a crash leaves."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from broker.core.clock import SystemClock
from broker.core.errors import Unavailable
from broker.core.events import Events
from broker.core.stream import StreamRecord
from broker.core.topic import TopicFilter
from broker.observe.alarms import Alarms
from broker.observe.metrics import Metrics
from broker.storage import records
from broker.storage.frames import CorruptFrame
from broker.storage.rocksdb.follower import Follower, RangeMissing
from broker.storage.rocksdb.store import RocksStore
from broker.storage.store import Batch
from broker.storage.writer import Writer
from broker.streams.catalogue import Catalogue, LogKeys
from broker.streams.maintenance import Maintenance, Sealer
from broker.streams.settings import Retention, StreamSettings, StreamSpec, TierSettings
from broker.streams.tier import report, segment
from broker.streams.tier.ledger import TierLedger, TierView
from broker.streams.tier.objects import ObjectMissing, TierStores
from broker.streams.tier.reading import TieredReader
from broker.streams.tier.report import Held, TierReport
from broker.streams.tier.segment import DamagedSegment
from broker.streams.tier.upload import Uploads

HOUR_US = 3600 * 1_000_000
START_US = 1_700_000_000_000_000


class Clock(SystemClock):
    """The wall clock of the broker, moved by hand."""

    def __init__(self) -> None:
        self.us = START_US

    def now_ns(self) -> int:
        return self.us * 1000


class World:
    """A stream with a tier, the broker's part and the range server's, each step by hand."""

    def __init__(self, path: Path, retention: Retention, tier: TierSettings) -> None:
        self.unread: dict[int, int] = {}
        self.folder, self.clock, self.seconds = Path(tier.url), Clock(), 0.0
        self.store = RocksStore(path / "data", "os")
        self.loop = asyncio.new_event_loop()
        self.writer = Writer(self.store, self.loop)
        self.catalogue, self.metrics = Catalogue(LogKeys(self.writer)), Metrics()
        self.stream = self.catalogue.open(
            StreamSpec(name="s", topics=["#"], retention=retention, tier=tier)
        )
        self.loop.run_until_complete(self.writer.committed())
        (self.shard,) = self.stream.shards
        self.alarms = Alarms(self.clock, Events(), self.metrics)
        self.ledger = TierLedger(self.catalogue, self.writer, self.clock, self.metrics, self.alarms)
        self.maintenance = Maintenance(
            self.catalogue,
            self.writer,
            StreamSettings(),
            self.clock,
            self.metrics,
            self.ledger,
            lambda _: self.unread,
            self.alarms,
        )
        self.follower = Follower(path / "data", path / "scratch")
        self.stores = TierStores([])
        self.reader = TieredReader(self.follower, self.stores)
        self.told: list[TierReport] = []
        self.restart()

    def restart(self) -> None:
        """The range server is another process now, and what it told was not heard."""
        self.told.clear()
        self.uploads = Uploads(
            self.follower,
            self.stores,
            self.told.append,
            lambda: self.seconds,
            lambda: self.clock.us / 1_000_000,
        )

    def publish(self, count: int, size: int = 10) -> None:
        """Records, one a second of the stream's time."""
        start = self.store.range_of(self.shard).next_offset
        made = [
            StreamRecord(START_US + n * 1_000_000, f"t/{n % 3}", b"%0*d" % (size, n), 1, False, "c")
            for n in range(start, start + count)
        ]
        self.store.commit(Batch({self.shard: made}))

    def upload(self, seconds: float = 20.0) -> None:
        """So much time passes at the range server, and it does what it finds."""
        for _ in range(4):
            self.seconds += seconds / 4
            while self.uploads.step():
                pass

    def record(self) -> None:
        """The broker hears of it."""
        for told in self.told:
            self.ledger.note(told)
        self.told.clear()
        self.loop.run_until_complete(self._on_thread())
        self.follower.refresh()

    async def _on_thread(self) -> None:
        done = asyncio.get_running_loop().create_future()
        self.writer.call(lambda: None, done.set_result)
        assert await done is None

    def tier(self) -> None:
        """Upload and record."""
        self.upload()
        self.record()

    def retain(self) -> None:
        self.loop.run_until_complete(self.maintenance.retain_all())
        self.follower.refresh()

    def close(self) -> None:
        self.loop.run_until_complete(self.writer.close())
        self.loop.close()
        self.store.close()

    @property
    def objects(self) -> list[Path]:
        return sorted(self.folder.rglob("*.segment"))

    @property
    def state(self) -> str:
        return self.view["state"]

    @property
    def view(self) -> TierView:
        found = self.ledger.view(self.stream)
        assert found is not None
        return found

    def readable(self) -> tuple[int, int]:
        held = self.reader.range_of(self.shard)
        assert held == self.ledger.readable(self.shard)
        return held.first_offset, held.next_offset

    def read(
        self, start: int, end: int, topics: str | None = None
    ) -> list[tuple[int, StreamRecord]]:
        wanted = None if topics is None else TopicFilter.parse(topics)
        messages = self.reader.messages(self.shard, start, end, wanted)
        batches = [pa.ipc.read_record_batch(pa.py_buffer(one), records.SCHEMA) for one in messages]
        return [one for batch in batches for one in records.decode(batch)]


def published(offsets: Sequence[int], size: int = 10) -> list[tuple[int, StreamRecord]]:
    return [
        (
            n,
            StreamRecord(
                START_US + n * 1_000_000, f"t/{n % 3}", b"%0*d" % (size, n), 1, False, "c"
            ),
        )
        for n in offsets
    ]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    tier = TierSettings(url=str(tmp_path / "tier"), after=10.0, retention=24 * 3600.0)
    made = World(tmp_path, Retention(age=3600.0), tier)
    yield made
    made.close()


def test_what_is_uploaded_and_trimmed_reads_as_it_was_published(world: World) -> None:
    for _ in range(3):
        for count in (100, 1, 50, 5000):  # frames of all sizes
            world.publish(count)
        world.tier()
    end = 3 * 5151
    assert [int(one.name[:18]) for one in world.objects] == [0, 5151, 10302]
    assert world.state == "running"
    world.publish(7)
    world.clock.us += 3 * HOUR_US + end * 1_000_000
    world.retain()
    # the last seven wait for their upload
    assert world.store.range_of(world.shard).first_offset == end
    assert world.readable() == (0, end + 7)
    assert world.read(0, end + 7) == published(range(end + 7))
    assert world.read(4000, 4003) == published(range(4000, 4003))
    assert world.read(end - 2, end + 2) == published(range(end - 2, end + 2))
    assert world.read(0, end + 7, "t/1") == published(range(1, end + 7, 3))
    for offset in (0, 1, 5150, 5151, 9999):
        assert world.reader.offset_at(world.shard, START_US + offset * 1_000_000 - 1) == offset
    assert world.reader.offset_at(world.shard, START_US + end * 1_000_000) is None
    assert world.state == "failing"  # nothing was heard for hours
    assert world.view["positions"] == [{"shard": 0, "first_offset": "0", "next_offset": str(end)}]
    assert (world.view["segments"], world.view["records_waiting"]) == (3, 7)
    assert world.view["bytes"] == sum(one.stat().st_size for one in world.objects)
    assert world.view["oldest"] == "2023-11-14T22:13:20.000Z"


def test_much_is_uploaded_at_once_in_segments_of_bounded_size_and_little_after_a_while(
    world: World,
) -> None:
    for _ in range(20):
        world.publish(100, size=20_000)
    world.upload(6.0)
    bounds = [(int(one.name[:18]), int(one.name[19:37]) + 1) for one in world.objects]
    assert len(bounds) == 2
    assert all((end - start) * 20_000 <= segment.SEGMENT_BYTES + 3_000_000 for start, end in bounds)
    assert bounds[1][0] == bounds[0][1]
    world.record()
    world.tier()
    assert world.read(0, 2000) == published(range(2000), size=20_000)
    assert world.view["records_waiting"] == 0


def test_small_frames_are_joined_and_those_that_the_broker_joins_meanwhile_are_cut(
    world: World,
) -> None:
    for _ in range(300):
        world.publish(1)
    world.upload(20.0)
    content = world.objects[0].read_bytes()
    assert [place[:2] for place in segment.unpack_index(content, "")] == [(0, 300)]
    for _ in range(300):
        world.publish(1)
    while Sealer(world.store).seal(world.shard):
        pass  # one frame has the last of the first segment and the first of the next
    world.store.merge(world.shard, 0, 600) if len(
        list(world.store.directory(world.shard))
    ) > 1 else None
    world.tier()
    world.tier()
    assert [int(one.name[:18]) for one in world.objects] == [0, 300]
    assert world.read(0, 600) == published(range(600))


def test_what_a_killed_process_has_uploaded_is_taken_as_it_is(world: World) -> None:
    world.publish(100)
    world.upload()
    before = [(one, one.stat().st_ino) for one in world.objects]
    world.restart()
    world.publish(50)
    world.tier()
    world.tier()
    assert [(one, one.stat().st_ino) for one in world.objects[:1]] == before
    assert world.readable() == (0, 150)
    assert world.ledger.held(world.shard).next_offset == 150
    assert world.ledger.held(world.shard).segments == 2
    assert world.read(0, 150) == published(range(150))


def test_a_report_that_is_not_recorded_is_made_again(world: World) -> None:
    world.publish(100)
    world.upload()
    world.told.clear()
    world.tier()
    assert world.ledger.held(world.shard).segments == 1
    assert len(world.objects) == 1


def test_other_records_under_the_same_offsets_are_reported_and_nothing_is_trimmed(
    world: World,
) -> None:
    world.publish(100)
    world.upload()
    world.restart()
    other = world.objects[0]
    name = other.name.replace("000000000000000099", "000000000000000098")
    other.rename(other.with_name(name))
    world.tier()
    assert world.state == "failing"
    assert "has other records than the stream" in str(world.view["problem"])
    assert [one.name for one in world.alarms.active()] == ["tier_failing:s"]
    world.clock.us += 3 * HOUR_US
    world.retain()
    assert world.store.range_of(world.shard).first_offset == 0
    (world.folder / "s" / world.stream.epoch / "0000" / name).unlink()
    world.tier()
    assert (world.state, world.alarms.active()) == ("running", [])


def test_a_tier_that_is_ahead_of_an_older_data_directory_is_reported(world: World) -> None:
    world.publish(100)
    world.upload()
    world.restart()
    folder = world.objects[0].parent
    world.objects[0].rename(folder / f"{0:018d}-{149:018d}-{START_US:018d}-{START_US:018d}.segment")
    world.tier()
    assert "and the stream ends at offset 100" in str(world.view["problem"])


def test_records_that_wait_go_for_the_bytes_only_and_that_is_counted(tmp_path: Path) -> None:
    tier = TierSettings(url=str(tmp_path / "tier"), after=10.0)
    world = World(tmp_path, Retention(age=3600.0, bytes=1024 * 1024), tier)
    world.publish(10)
    world.tier()
    for _ in range(30):
        world.publish(10, size=10_000)
    world.clock.us += 3 * HOUR_US
    world.retain()
    first = world.store.range_of(world.shard).first_offset
    assert first > 10
    lost = world.metrics.counter("stream_records_not_tiered", "", reason="retention_bytes").value
    assert lost == first - 10
    assert "tier_losing:s" in [one.name for one in world.alarms.active()]
    assert world.readable() == (first, 310)  # what is below the gap cannot be reached in order
    world.tier()
    world.retain()
    assert world.alarms.active() == []
    assert world.ledger.held(world.shard).first_offset == first
    assert world.ledger.held(world.shard).segments == 2
    world.clock.us += HOUR_US
    world.retain()
    assert world.readable() == (first, 310)
    assert world.read(first, 310) == published(range(first, 310), size=10_000)
    world.close()


def test_expired_segments_are_deleted_and_what_is_left_begins_after_them(world: World) -> None:
    for _ in range(3):
        world.publish(100)
        world.tier()
    world.clock.us = START_US + 24 * HOUR_US + 150 * 1_000_000
    world.retain()
    assert world.readable() == (0, 300)
    world.upload()
    with pytest.raises(ObjectMissing):  # deleted, and the broker has not recorded it yet
        world.read(0, 10)
    world.record()
    assert world.readable() == (100, 300)
    assert len(world.objects) == 2
    with pytest.raises(RangeMissing):
        world.read(0, 10)
    world.clock.us += 24 * HOUR_US
    world.tier()
    assert world.objects == []
    assert world.readable() == (300, 300)
    assert world.ledger.held(world.shard) == Held(300, 300, 0, START_US + 299 * 1_000_000, 0, 0)
    world.publish(10)
    world.clock.us = START_US
    world.tier()
    assert world.readable() == (300, 310)


def test_expired_segments_are_kept_until_tables_have_read_them(world: World) -> None:
    for _ in range(3):
        world.publish(100)
        world.tier()
    world.clock.us = START_US + 48 * HOUR_US
    world.tier()
    assert len(world.objects) == 3, "it is not known yet what tables have read"
    for unread, first in ((0, 0), (99, 0), (100, 100), (250, 200), (300, 300)):
        world.unread = {0: unread}
        world.retain()
        world.tier()
        assert world.readable() == (first, 300)
    assert world.alarms.active() == []


def test_unread_segments_do_not_exceed_their_size_and_raise_an_alarm_before(tmp_path: Path) -> None:
    tier = TierSettings(
        url=str(tmp_path / "tier"), after=10.0, retention=24 * 3600.0, unread_bytes=1024**2
    )
    world = World(tmp_path, Retention(age=3600.0), tier)
    world.unread = {0: 0}
    rng = random.Random(1)

    def publish() -> None:
        """A segment of some 300 kB."""
        start = world.store.range_of(world.shard).next_offset
        made = [
            StreamRecord(START_US + n, "t", rng.randbytes(3000), 1, False, "c")
            for n in range(start, start + 100)
        ]
        world.store.commit(Batch({world.shard: made}))
        world.tier()

    def alarms() -> list[str]:
        return [alarm.message for alarm in world.alarms.active() if alarm.name == "tier_unread:s"]

    for _ in range(2):
        publish()
    world.clock.us = START_US + 48 * HOUR_US
    world.retain()
    assert alarms() == []
    publish()
    world.retain()
    [message] = alarms()
    assert "have not read take 8" in message
    world.tier()
    assert world.readable()[0] == 0
    publish()
    world.tier()
    assert world.readable() == (100, 400)
    world.unread = {0: 400}
    world.retain()
    assert alarms() == []
    world.close()


def test_records_that_neither_the_tier_nor_a_table_has_raise_an_alarm_before_they_go(
    tmp_path: Path,
) -> None:
    tier = TierSettings(url=str(tmp_path / "tier"), after=10.0)
    world = World(tmp_path, Retention(age=3600.0, bytes=1024**2), tier)
    world.unread = {0: 0}
    world.publish(60, size=15_000)
    world.retain()
    assert [alarm.name for alarm in world.alarms.active()] == ["stream_unread:s"]
    world.tier()
    world.retain()
    assert world.alarms.active() == []
    world.close()


def test_the_objects_of_a_removed_stream_are_deleted(world: World) -> None:
    world.publish(100)
    world.tier()
    world.publish(100)
    world.upload()  # not recorded
    assert len(world.objects) == 2
    world.catalogue.remove("s")
    world.loop.run_until_complete(world.writer.committed())
    world.tier()
    world.tier()
    assert world.objects == []
    for prefix in (report.WANTED, b"streams/tiered/", b"streams/segments/"):
        assert list(world.store.scan(prefix)) == []


@pytest.mark.parametrize("damage", ["frame", "index", "end"])
def test_a_damaged_object_is_an_error_that_names_it(world: World, damage: str) -> None:
    world.publish(5000)
    world.tier()
    world.clock.us += 9 * HOUR_US
    world.retain()
    (path,) = world.objects
    content = bytearray(path.read_bytes())
    at = {"frame": 1000, "index": len(content) - 30, "end": len(content) - 3}[damage]
    content[at] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises((DamagedSegment, CorruptFrame), match=path.name):
        world.read(0, 5000)


def test_a_directory_that_cannot_be_written_fails_and_recovers(world: World) -> None:
    world.publish(10)
    world.folder.write_bytes(b"a file")
    world.tier()
    assert world.state == "failing"
    world.folder.unlink()
    world.tier()
    assert world.state == "running"
    assert world.readable() == (0, 10)
    world.ledger.note(None)
    assert world.state == "starting"


def test_a_store_that_is_in_no_setting_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        Unavailable, match=r"expected a URL in one of the stores of lake\.stores, got s3://none/x"
    ):
        TierStores([]).at("s3://none/x")
