"""Alarms of sources that are not connected."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from broker.observe.alarms import Alarm
from tests.support.bridges import FAST_CONNECTOR, Bridges, Outside, scripted
from tests.support.mqtt_server import on_loop

ALARM = "source_disconnected:scripted:in"


@on_loop
async def test_a_source_that_is_away_is_an_alarm_until_it_is_connected() -> None:
    outside = Outside()
    async with source(outside) as bridges:
        await bridges.until(lambda: bridges.sources.get("in")["status"] == "connected")
        outside.is_there = False
        await bridges.until(lambda: bridges.sources.get("in")["status"] != "connected")
        assert not active(bridges), "a shorter time without a connection raises no alarm"
        [alarm] = await bridges.until(lambda: active_later(bridges))
        assert alarm.name == ALARM
        assert "source 'scripted:in' is disconnected: " in alarm.message
        assert "connection refused" in alarm.details["reason"]
        outside.is_there = True
        await bridges.until(lambda: not active(bridges))


@on_loop
async def test_the_alarm_of_a_source_ends_when_it_is_stopped_or_deleted() -> None:
    outside = Outside()
    outside.is_there = False
    async with source(outside) as bridges:
        await bridges.until(lambda: active_later(bridges))
        await bridges.sources.stop("in")
        await bridges.until(lambda: not active(bridges))
        await bridges.sources.start("in")
        await bridges.until(lambda: active_later(bridges))
        bridges.sources.delete("in")
        await bridges.until(lambda: not active(bridges))


@asynccontextmanager
async def source(outside: Outside) -> AsyncIterator[Bridges]:
    """A connector with a source, of an outside system."""
    bridges = Bridges(scripted(outside))
    bridges.begin()
    try:
        bridges.connectors.create(
            {"name": "plant", "type": "scripted", "resource_opts": FAST_CONNECTOR}
        )
        bridges.sources.create(
            {"name": "in", "type": "scripted", "connector": "plant", "parameters": {}}
        )
        yield bridges
    finally:
        await bridges.end()


def active(bridges: Bridges) -> list[Alarm]:
    """The alarms that are active."""
    found: list[Alarm] = bridges.services.monitoring.alarms.active()
    return found


def active_later(bridges: Bridges) -> list[Alarm]:
    """The same, after another second by the clock of the bridges."""
    bridges.clock.ahead_s += 1.0
    return active(bridges)
