"""Alarms: active ones with their start times, and the history.

Anyone who notices that something is wrong activates an alarm by name, and deactivates it when it is well again; doing
either twice changes nothing. Each change is one log line, one event for rules and one count. Used on the event loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from broker.core.clock import Clock
from broker.core.events import Events
from broker.observe.log import get_logger
from broker.observe.metrics import Metrics
from broker.observe.settings import AlarmSettings

_log = get_logger(__name__)

_NS_PER_MS: Final = 1_000_000
_NS_PER_S: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Alarm:
    """One thing that is wrong. Times are nanoseconds since 1970; ``deactivated_ns`` is 0 while it is active."""

    name: str
    message: str
    activated_ns: int
    details: Mapping[str, Any] = field(default_factory=dict)
    deactivated_ns: int = 0

    @property
    def is_active(self) -> bool:
        """True if the condition still holds."""
        return self.deactivated_ns == 0


class Alarms:
    """All alarms of a node: active ones by name, and a bounded history of those that are over."""

    def __init__(
        self, clock: Clock, events: Events, metrics: Metrics, settings: AlarmSettings | None = None
    ) -> None:
        self._clock = clock
        self._events = events
        self._settings = settings or AlarmSettings()
        self._active: dict[str, Alarm] = {}
        self._over: deque[Alarm] = deque(maxlen=self._settings.history)
        metrics.gauge("alarms_active", lambda: len(self._active), "alarms that are active now")
        self._activated = metrics.counter("alarms_activated", "times that an alarm became active")
        self._deactivated = metrics.counter("alarms_deactivated", "times that an alarm was over")

    def activate(self, name: str, message: str, **details: Any) -> None:
        """Say that something is wrong: ``message`` in one sentence, ``details`` in numbers.

        Where the alarm is active already, it keeps its time, and shows the new sentence and details.
        """
        active = self._active.get(name)
        if active is not None:
            self._active[name] = replace(active, message=message, details=details)
            return
        alarm = self._active[name] = Alarm(name, message, self._clock.now_ns(), details)
        self._activated.value += 1
        _log.error("alarm.activated", alarm=name, text=message, **details)
        self._tell("alarm.activated", alarm)

    def deactivate(self, name: str) -> None:
        """Say that it is well again."""
        alarm = self._active.pop(name, None)
        if alarm is None:
            return
        alarm = replace(alarm, deactivated_ns=max(self._clock.now_ns(), alarm.activated_ns + 1))
        self._over.appendleft(alarm)
        self._deactivated.value += 1
        _log.info(
            "alarm.deactivated",
            alarm=name,
            lasted_s=(alarm.deactivated_ns - alarm.activated_ns) // _NS_PER_S,
        )
        self._tell("alarm.deactivated", alarm)

    def set(self, name: str, is_wrong: bool, message: str, **details: Any) -> None:
        """``activate`` or ``deactivate``, as ``is_wrong`` says."""
        if is_wrong:
            self.activate(name, message, **details)
        else:
            self.deactivate(name)

    def active(self) -> list[Alarm]:
        """Active alarms, newest first."""
        return sorted(self._active.values(), key=lambda alarm: alarm.activated_ns, reverse=True)

    def history(self) -> list[Alarm]:
        """Past alarms, newest first."""
        oldest_ns = self._clock.now_ns() - int(self._settings.history_age * _NS_PER_S)
        while self._over and self._over[-1].deactivated_ns < oldest_ns:
            self._over.pop()
        return list(self._over)

    def forget_history(self) -> int:
        """Forget what is over; returns how many alarms that were."""
        count = len(self._over)
        self._over.clear()
        return count

    def _tell(self, event: str, alarm: Alarm) -> None:
        if event not in self._events.wanted:
            return
        columns = {
            "name": alarm.name,
            "message": alarm.message,
            "details": dict(alarm.details),
            "activated_at": alarm.activated_ns // _NS_PER_MS,
        }
        if not alarm.is_active:
            columns["deactivated_at"] = alarm.deactivated_ns // _NS_PER_MS
        self._events.emit(event, columns)
