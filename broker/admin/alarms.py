"""Alarms as the API lists them: active ones, and the history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typing_extensions import TypedDict

from broker.core.clock import Clock
from broker.core.times import rfc3339
from broker.observe.alarms import Alarm as KeptAlarm
from broker.observe.alarms import Alarms


class Alarm(TypedDict):
    """Something that is or was wrong: ``message`` in a sentence, ``details`` in numbers. Times are RFC 3339 in UTC."""

    name: str
    message: str
    details: dict[str, Any]
    activated_at: str
    deactivated_at: str | None
    lasted_s: float


class AlarmService:
    """Lists the active and recent alarms. Times are RFC 3339 in UTC."""

    def __init__(self, alarms: Alarms, clock: Clock) -> None:
        self._alarms = alarms
        self._clock = clock

    def active(self) -> Sequence[Alarm]:
        """Active alarms, newest first."""
        return [self._shown(alarm) for alarm in self._alarms.active()]

    def history(self) -> Sequence[Alarm]:
        """Alarms that are over, newest first."""
        return [self._shown(alarm) for alarm in self._alarms.history()]

    def forget_history(self) -> None:
        """Forget what is over."""
        self._alarms.forget_history()

    def _shown(self, alarm: KeptAlarm) -> Alarm:
        until_ns = self._clock.now_ns() if alarm.is_active else alarm.deactivated_ns
        return {
            "name": alarm.name,
            "message": alarm.message,
            "details": dict(alarm.details),
            "activated_at": rfc3339(alarm.activated_ns),
            "deactivated_at": None if alarm.is_active else rfc3339(alarm.deactivated_ns),
            "lasted_s": round((until_ns - alarm.activated_ns) / 1e9, 3),
        }
