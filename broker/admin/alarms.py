"""Alarms as the API lists them: active ones, and the history."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from fnmatch import translate
from re import compile as compiled
from typing import Any, Final, NotRequired

from typing_extensions import TypedDict

from broker.core import jsontext
from broker.core.clock import Clock
from broker.core.objects import ACTOR, Spec
from broker.core.times import rfc3339
from broker.observe.alarms import Alarm as KeptAlarm
from broker.observe.alarms import Alarms, Severity

_NS_PER_US: Final = 1000
# Alarms that are tested in one turn of the loop.
_AT_ONCE: Final = 2000
_Test = Callable[[KeptAlarm], bool]


class Alarm(TypedDict):
    """Something that is or was wrong: `message` has the cause in a sentence, `details` in numbers, `advice` says what
    to do. `page` is the page of the dashboard about it, or null. An alarm is acknowledged by someone
    until it ends. Times are RFC 3339 in UTC."""

    name: str
    severity: Severity
    message: str
    advice: str
    page: str | None
    details: dict[str, Any]
    activated_at: str
    deactivated_at: str | None
    lasted_s: float
    acknowledged_by: str | None
    acknowledged_at: str | None
    note: str
    cell: NotRequired[int]


class AlarmService:
    """Lists active and recent alarms, and acknowledges them."""

    def __init__(self, alarms: Alarms, clock: Clock) -> None:
        self._alarms = alarms
        self._clock = clock

    def active(self) -> Sequence[Alarm]:
        """All active alarms, newest first."""
        return [shown_alarm(alarm, self._clock.now_ns()) for alarm in self._alarms.active()]

    async def page(
        self,
        limit: int,
        cursor: tuple[int, str] | None,
        name: str | None = None,
        severity: Severity | None = None,
        acknowledged: bool | None = None,
        search: str | None = None,
    ) -> Spec:
        """A page of the active alarms, newest first."""
        tests = [*_tests(name, severity, search)]
        if acknowledged is not None:
            tests.append(lambda alarm: (alarm.acknowledgement is not None) is acknowledged)
        return await self._page(self._alarms.active(), tests, limit, cursor)

    async def history(
        self,
        limit: int,
        cursor: tuple[int, str] | None,
        name: str | None = None,
        severity: Severity | None = None,
        since_us: int | None = None,
        until_us: int | None = None,
        search: str | None = None,
    ) -> Spec:
        """A page of alarms that are over, newest first: those that were active at some time from ``since_us`` to
        ``until_us``."""
        tests = [*_tests(name, severity, search)]
        if since_us is not None:
            tests.append(lambda alarm: alarm.deactivated_ns >= since_us * _NS_PER_US)
        if until_us is not None:
            tests.append(lambda alarm: alarm.activated_ns < until_us * _NS_PER_US)
        return await self._page(self._alarms.history(), tests, limit, cursor)

    def get(self, name: str) -> Alarm:
        """An active alarm; raises ``NotFound``."""
        return shown_alarm(self._alarms.get(name), self._clock.now_ns())

    def acknowledge(self, name: str, note: str = "") -> Alarm:
        """Acknowledge an active alarm in the name of the user who asks; raises ``NotFound``."""
        return shown_alarm(self._alarms.acknowledge(name, ACTOR.get(), note), self._clock.now_ns())

    def unacknowledge(self, name: str) -> Alarm:
        """Take the acknowledgement back; raises ``NotFound``."""
        return shown_alarm(self._alarms.unacknowledge(name), self._clock.now_ns())

    def forget_history(self) -> None:
        """Forget what is over."""
        self._alarms.forget_history()

    async def _page(
        self,
        alarms: Sequence[KeptAlarm],
        tests: Sequence[_Test],
        limit: int,
        cursor: tuple[int, str] | None,
    ) -> Spec:
        """Alarms that pass the tests, behind the one that the cursor names."""
        matching: list[KeptAlarm] = []
        for number, alarm in enumerate(alarms, 1):
            if all(test(alarm) for test in tests):
                matching.append(alarm)
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
        places = [_place(alarm) for alarm in matching]
        start = 0
        if cursor is not None:
            # behind that alarm, or where it was when it is no longer listed
            start = next((at + 1 for at, place in enumerate(places) if place == cursor), -1)
            if start < 0:
                start = next((at for at, place in enumerate(places) if place < cursor), len(places))
        rows = matching[start : start + limit]
        return {
            "items": [shown_alarm(alarm, self._clock.now_ns()) for alarm in rows],
            "next": _place(rows[-1]) if rows and start + limit < len(matching) else None,
            "total": len(matching),
            "places": [_place(alarm) for alarm in rows],
            "falls": (True, True),
        }


def shown_alarm(alarm: KeptAlarm, now_ns: int) -> Alarm:
    """An alarm as the API shows it."""
    until_ns = now_ns if alarm.is_active else alarm.deactivated_ns
    acknowledgement = alarm.acknowledgement
    return {
        "name": alarm.name,
        "severity": alarm.type.severity,
        "message": alarm.message,
        "advice": alarm.type.advice,
        "page": alarm.page or None,
        "details": dict(alarm.details),
        "activated_at": rfc3339(alarm.activated_ns),
        "deactivated_at": None if alarm.is_active else rfc3339(alarm.deactivated_ns),
        "lasted_s": round((until_ns - alarm.activated_ns) / 1e9, 3),
        "acknowledged_by": acknowledgement.by if acknowledgement else None,
        "acknowledged_at": rfc3339(acknowledgement.at_ns) if acknowledgement else None,
        "note": acknowledgement.note if acknowledgement else "",
    }


def _place(alarm: KeptAlarm) -> tuple[int, str]:
    """The place of an alarm in its list: the time by which lists are sorted, in microseconds, and the name."""
    return max(alarm.activated_ns, alarm.deactivated_ns) // _NS_PER_US, alarm.name


def _tests(name: str | None, severity: Severity | None, search: str | None) -> Iterator[_Test]:
    if name is not None:
        matches = compiled(translate(name)).match
        yield lambda alarm: matches(alarm.name) is not None
    if severity is not None:
        yield lambda alarm: alarm.type.severity == severity
    if words := (search or "").lower().split():

        def has_words(alarm: KeptAlarm) -> bool:
            acknowledgement = alarm.acknowledgement
            who = f"{acknowledgement.by} {acknowledgement.note}" if acknowledgement else ""
            details = jsontext.encode(dict(alarm.details)).decode()
            text = f"{alarm.name} {alarm.message} {who} {details}".lower()
            return all(word in text for word in words)

        yield has_words
