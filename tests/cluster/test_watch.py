"""Alarms about cells that are away or keep ending, and links to a cell that hangs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from broker.cluster import connection
from broker.cluster.frames import Frame, FrameType
from broker.cluster.watch import CellWatch
from broker.core.cells import Place
from broker.core.events import Events
from broker.observe.alarms import Alarms
from broker.observe.metrics import Metrics
from tests.support.linked_cells import cells, linked
from tests.support.mqtt_server import MovedClock, on_loop


@dataclass
class Seen:
    """What the watch looks at of a link."""

    number: int
    is_up: bool = True
    heard: str = "1"
    refused: str = ""


def watched(number: int, count: int) -> tuple[Alarms, Any, dict[int, Seen]]:
    """Alarms of a cell, a function that lets it look at a time, and its links."""
    alarms = Alarms(MovedClock(), Events(), Metrics())
    place = Place(number, count, Path())
    watch, links = CellWatch(place, alarms, 0), {other: Seen(other) for other in place.others}
    return alarms, lambda now_s: watch.look(links.values(), now_s), links  # type: ignore[arg-type]


def names(alarms: Alarms) -> list[str]:
    return sorted(alarm.name for alarm in alarms.active())


def test_a_cell_that_is_away_for_some_seconds_is_an_alarm_until_it_is_back() -> None:
    alarms, look, links = watched(0, 3)
    look(1)
    links[2].is_up = False
    for now_s in (2, 4, 6):
        look(now_s)
        assert names(alarms) == []
    look(6.5)
    assert names(alarms) == ["cell_away:2"]
    links[2].is_up = True
    look(7)
    assert names(alarms) == []


def test_a_cell_that_is_never_there_is_an_alarm_too() -> None:
    alarms, look, links = watched(0, 2)
    links[1].is_up = False
    look(5)
    assert names(alarms) == []
    look(5.5)
    assert names(alarms) == ["cell_away:1"]


def test_the_lowest_cell_that_runs_speaks() -> None:
    alarms, look, links = watched(1, 3)
    links[2].is_up = False
    look(10)
    assert names(alarms) == []
    links[0].is_up = False
    look(16)
    assert names(alarms) == ["cell_away:0", "cell_away:2"]
    links[0].is_up = True
    look(17)
    assert names(alarms) == []


def test_a_cell_that_ends_again_and_again_is_an_alarm_for_some_minutes() -> None:
    alarms, look, links = watched(0, 2)
    for start in range(4):
        assert names(alarms) == []
        links[1].heard = str(start)
        look(10 * start)
    assert names(alarms) == ["cell_restarting:1"]
    look(309)
    assert names(alarms) == ["cell_restarting:1"]
    look(311)
    assert names(alarms) == []


@on_loop
async def test_an_idle_link_stays_and_one_to_a_cell_that_hangs_is_cut(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(connection, "PING_S", 0.02)
        async with cells(2, tmp_path) as joined:
            one, two = joined
            [link] = list(one.links)
            lives = link._peer.lives
            pings: list[Frame] = []
            link.takers[FrameType.PING] = pings.append
            await one.node.until(lambda: len(pings) > 3 * connection.MOST_SILENT)
            assert link._peer.lives == lives
            for channel in _channels(two):  # it hangs: nothing leaves it
                channel._ping = channel._write = lambda *_: None
            await one.node.until(lambda: link._peer.lives != lives)
            await linked(joined)


def _channels(cell: Any) -> list[Any]:
    return [abort.__self__ for abort in cell.links._common.channels]
