"""Alarms: once each, with their time, told to rules, remembered within bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.core.errors import NotFound
from broker.core.events import Columns, Events
from broker.observe.alarms import ALARM_TYPES, Alarms
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
