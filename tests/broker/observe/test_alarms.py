"""Alarms: once each, with their time, told to rules, remembered within bounds."""

from __future__ import annotations

from typing import Any

from broker.core.events import Columns, Events
from broker.observe.alarms import Alarms
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
