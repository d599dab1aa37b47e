"""Alarms: once each, with their time, told to rules, remembered within bounds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from broker.core.errors import NotFound
from broker.core.events import Columns, Events
from broker.core.values import Values
from broker.observe.alarms import ALARM_TYPES, MOST_HISTORY_BYTES, RESUME_S, Alarms
from broker.observe.metrics import Metrics
from broker.observe.settings import AlarmSettings
from tests.support.mqtt_server import MovedClock


def made(**settings: Any) -> tuple[Alarms, MovedClock, Metrics, list[tuple[str, Columns]]]:
    clock, events, metrics = MovedClock(), Events(), Metrics()
    seen: list[tuple[str, Columns]] = []
    events.listen(lambda name, columns, _about: seen.append((name, columns)))
    events.want(frozenset(("alarm.activated", "alarm.deactivated")))
    return Alarms(clock, events, metrics, AlarmSettings(**settings)), clock, metrics, seen


def test_an_alarm_is_told_once_when_it_begins_and_once_when_it_is_over() -> None:
    alarms, clock, metrics, seen = made()
    alarms.activate("disk", "it is full", free=1)
    clock.move(2)
    alarms.activate("disk", "it is fuller", free=0)
    [alarm] = alarms.active()
    assert (alarm.message, alarm.details, alarm.activated_ns) == (
        "it is fuller",
        {"free": 0},
        clock.now_ns() - 2 * 10**9,
    )
    assert metrics.value("alarms_active") == 1
    alarms.deactivate("disk")
    alarms.deactivate("disk")
    assert alarms.active() == []
    assert [name for name, _ in seen] == ["alarm.activated", "alarm.deactivated"]
    began_ms = alarm.activated_ns // 1_000_000
    assert seen[0][1] == {
        "name": "disk",
        "message": "it is full",
        "details": {"free": 1},
        "activated_at": began_ms,
    }
    assert seen[1][1]["deactivated_at"] == began_ms + 2000
    assert (metrics.value("alarms_activated"), metrics.value("alarms_deactivated")) == (1, 1)


def test_what_is_over_is_remembered_newest_first_within_number_and_age() -> None:
    alarms, clock, _, _ = made(history=3, history_age=10)
    for number in range(5):
        alarms.activate(f"a{number}", "it happened")
        clock.move(1)
        alarms.deactivate(f"a{number}")
    assert [alarm.name for alarm in alarms.history()] == ["a4", "a3", "a2"]
    clock.move(8.5)
    assert [alarm.name for alarm in alarms.history()] == ["a4", "a3"]
    assert alarms.forget_history() == 2
    assert alarms.history() == []


def test_an_acknowledgement_lasts_until_the_alarm_ends_and_stays_in_the_history() -> None:
    alarms, clock, _, _ = made()
    changes: list[tuple[bool, str]] = []
    alarms.on_change.connect(
        lambda alarm: changes.append(
            (alarm.is_active, alarm.acknowledgement.by if alarm.acknowledgement else "")
        )
    )
    alarms.activate("disk", "it is full")
    clock.move(1)
    alarms.acknowledge("disk", "ann", "a larger disk is on its way")
    alarms.activate("disk", "it is fuller")
    [alarm] = alarms.active()
    assert alarm.acknowledgement is not None
    assert (alarm.acknowledgement.by, alarm.acknowledgement.note, alarm.acknowledgement.at_ns) == (
        "ann",
        "a larger disk is on its way",
        clock.now_ns(),
    )
    alarms.deactivate("disk")
    alarms.activate("disk", "it is full again")
    [again], [past] = alarms.active(), alarms.history()
    assert again.acknowledgement is None
    assert past.acknowledgement == alarm.acknowledgement
    assert changes == [(True, ""), (True, "ann"), (False, "ann"), (True, "")]
    alarms.acknowledge("disk", "ann")
    assert alarms.unacknowledge("disk").acknowledgement is None
    with pytest.raises(NotFound, match="did you mean 'disk'"):
        alarms.acknowledge("disc", "ann")


class Disk(Values):
    """Values that outlive alarms; counts what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0
        self.timers: list[Callable[[], None]] = []

    def put(self, key: str, value: bytes | None) -> None:
        self.writes += 1
        super().put(key, value)

    def later(self, _: float, call: Callable[[], None]) -> Any:
        self.timers.append(call)
        return Mock()

    def pass_a_second(self) -> None:
        for call in self.timers[-1:]:
            call()

    def alarms(self, clock: MovedClock, **settings: Any) -> Alarms:
        """Alarms of a run of the broker that begins now; the last one is killed."""
        self.timers.clear()
        alarms = Alarms(clock, Events(), Metrics(), AlarmSettings(**settings))
        alarms.load(self, self.later)
        return alarms


def test_the_history_survives_a_kill_within_its_bounds() -> None:
    disk, clock = Disk(), MovedClock()
    alarms = disk.alarms(clock)
    for number in range(5):
        alarms.activate(f"a{number}", "it happened", at=number)
        clock.move(1)
        alarms.deactivate(f"a{number}")
        disk.pass_a_second()
    before = alarms.history()
    assert disk.alarms(clock).history() == before
    assert [alarm.name for alarm in disk.alarms(clock, history=2).history()] == ["a4", "a3"]
    again = disk.alarms(clock)
    assert [alarm.name for alarm in again.history()] == ["a4", "a3"]  # the rest is deleted
    disk.pass_a_second()
    clock.move(24 * 3600 + 1)
    assert again.history() == []
    disk.pass_a_second()
    assert disk.names("") == []
    again.activate("b", "it happened")
    again.deactivate("b")
    disk.pass_a_second()
    assert again.forget_history() == 1
    disk.pass_a_second()
    assert disk.alarms(clock).history() == []


def test_an_alarm_that_was_active_at_a_kill_continues_with_its_acknowledgement() -> None:
    disk, clock = Disk(), MovedClock()
    alarms = disk.alarms(clock)
    alarms.activate("disk", "it is full")
    disk.pass_a_second()
    acknowledged = alarms.acknowledge("disk", "ann", "a larger one is on its way")
    disk.pass_a_second()
    clock.move(60)
    again = disk.alarms(clock)
    assert again.active() == []
    [past] = again.history()
    assert (past.deactivated_ns, past.acknowledgement) == (
        clock.now_ns(),
        acknowledged.acknowledgement,
    )
    again.activate("disk", "it is fuller")
    [active] = again.active()
    assert (active.activated_ns, active.message) == (acknowledged.activated_ns, "it is fuller")
    assert active.acknowledgement == acknowledged.acknowledgement
    assert again.history() == []
    disk.pass_a_second()
    # later than ten minutes after a start it is another one
    third = disk.alarms(clock)
    clock.move(RESUME_S + 1)
    third.activate("disk", "it is full")
    assert third.active()[0].acknowledgement is None
    assert len(third.history()) == 1


def test_what_ends_since_the_broker_stops_is_not_over() -> None:
    disk, clock = Disk(), MovedClock()
    alarms = disk.alarms(clock)
    alarms.activate("away", "it is away")
    alarms.acknowledge("away", "ann")
    alarms.stop()
    alarms.deactivate("away")
    again = disk.alarms(clock)
    again.activate("away", "it is away")
    assert again.active()[0].acknowledgement is not None


def test_a_flapping_alarm_writes_a_few_values_a_second() -> None:
    disk, clock = Disk(), MovedClock()
    alarms = disk.alarms(clock, history=100)
    for _ in range(5):
        written = disk.writes
        for _ in range(1000):
            alarms.activate("flaps", "it is away", names=["x" * 100])
            clock.move(0.001)
            alarms.deactivate("flaps")
        disk.pass_a_second()
        assert disk.writes - written < 10
    assert len(alarms.history()) == 100
    kept = disk.alarms(clock).history()
    assert len(kept) <= 6
    assert kept[0].deactivated_ns == clock.now_ns()


def test_large_alarms_are_cut_and_their_bytes_bounded() -> None:
    disk, clock = Disk(), MovedClock()
    alarms = disk.alarms(clock, history=100_000)
    alarms.activate("large", "m" * 100_000, names=["n" * 100_000])
    alarms.deactivate("large")
    disk.pass_a_second()
    assert sum(len(disk.get(name) or b"") for name in disk.names("")) < 10_000
    [cut] = disk.alarms(clock).history()
    assert (cut.name, len(cut.message), cut.details) == ("large", 1000, {})
    alarms = disk.alarms(clock, history=100_000)
    for number in range(2 * MOST_HISTORY_BYTES // 8000):
        alarms.activate(f"a{number}", "m", names=["n" * 8000])
        alarms.deactivate(f"a{number}")
        disk.pass_a_second()
    stored = sum(len(disk.get(name) or b"") for name in disk.names(""))
    assert MOST_HISTORY_BYTES / 2 < stored <= MOST_HISTORY_BYTES + 10_000
    assert alarms.history()[0].name == f"a{number}"


def test_an_alarm_of_another_form_is_passed_over() -> None:
    disk, clock = Disk(), MovedClock()
    disk.put("alarms/past/0000000000000001", b'{"name": "odd"}')
    disk.put("alarms/active/odd", b"not JSON")
    assert disk.alarms(clock).history() == []
    assert disk.names("") == []


def test_an_alarm_has_the_page_of_the_object_that_it_is_about() -> None:
    alarms, _, _, _ = made()
    alarms.activate("action_disconnected:http:a b", "it is away", action="http:a b")
    alarms.activate("table_failed:rooms", "no details name the table")
    alarms.activate("disk_nearly_full", "it is full")
    alarms.activate("made_up", "no type is known")
    pages = {alarm.name: (alarm.page, alarm.type.severity) for alarm in alarms.active()}
    assert pages == {
        "action_disconnected:http:a b": ("/actions/a%20b", "critical"),
        "table_failed:rooms": ("", "critical"),
        "disk_nearly_full": ("/streams", "critical"),
        "made_up": ("", "warning"),
    }


def test_the_documentation_lists_every_type_of_alarm_with_its_severity() -> None:
    page = Path("docs/how-to/limits-and-overload.md").read_text()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page.splitlines()
        if line.startswith("| `")
    ]
    listed = {
        name.strip(" `").partition(":")[0]: row[1]
        for row in rows
        for name in row[0].split(",")
        if row[1] in ("warning", "critical")
    }
    assert listed == {name: about.severity for name, about in ALARM_TYPES.items()}
