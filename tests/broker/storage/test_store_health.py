"""The store's alarms, with a store that fails and a real disk."""

from __future__ import annotations

from math import isnan
from pathlib import Path

from broker.core.events import Events
from broker.observe.alarms import Alarms
from broker.observe.settings import AlarmSettings
from broker.storage.health import StoreHealth
from tests.support.mqtt_server import GatedStore, on_loop, running


@on_loop
async def test_a_store_that_cannot_be_written_is_an_alarm_until_it_can() -> None:
    store = GatedStore()
    async with running(store) as node:
        alarms = Alarms(node.clock, Events(), node.metrics)
        health = StoreHealth(
            node.writer, Path("/tmp"), alarms, AlarmSettings(disk_free_min=0), node.metrics
        )
        health.look()
        assert alarms.active() == []
        store.fails = True
        node.writer.put(b"k", b"v")
        await node.until(lambda: node.writer.failure)
        health.look()
        [alarm] = alarms.active()
        assert alarm.name == "store_not_writable"
        assert "disk full" in alarm.message
        store.fails = False
        node.writer.put(b"k", b"v")
        await node.until(lambda: node.writer.failure is None)
        health.look()
        assert [one.name for one in alarms.history()] == ["store_not_writable"]


@on_loop
async def test_a_disk_with_less_room_than_it_should_have_is_an_alarm(tmp_path: Path) -> None:
    async with running() as node:
        alarms = Alarms(node.clock, Events(), node.metrics)
        StoreHealth(
            node.writer, tmp_path, alarms, AlarmSettings(disk_free_min=1 << 60), node.metrics
        ).look()
        [alarm] = alarms.active()
        assert alarm.name == "disk_nearly_full"
        assert 0 < alarm.details["free_bytes"] < 1 << 60
        assert node.metrics.value("disk_free_bytes") > 0


@on_loop
async def test_the_size_of_the_data_directory_is_measured_with_all_that_is_below_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "below" / "it").mkdir(parents=True)
    (tmp_path / "below" / "it" / "file").write_bytes(bytes(1_000_000))
    async with running() as node:
        alarms = Alarms(node.clock, Events(), node.metrics)
        health = StoreHealth(node.writer, tmp_path, alarms, AlarmSettings(), node.metrics)
        assert isnan(node.metrics.value("data_directory_bytes"))
        health.start()
        await node.until(lambda: node.metrics.value("data_directory_bytes") >= 1_000_000)
        assert node.metrics.value("data_directory_bytes") < 1_100_000
        health.stop()
