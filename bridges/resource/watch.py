"""Alarms of actions: one that has not been connected for a while, one that loses rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bridges.resource.hub import RunningAction
from broker.core.action import CONNECTED, DISABLED, STOPPED
from broker.core.clock import Clock
from broker.observe.alarms import Alarms

LOOK_S: Final = 1.0
_AWAY_S: Final = 5.0
"""A shorter time without a connection raises no alarm."""
_LOSS_S: Final = 60.0
"""The alarm about lost rows ends so long after the last one."""


@dataclass(slots=True)
class _Seen:
    away_since_s: float | None = None
    lost: int = 0
    lost_at_s: float | None = None


class ActionWatch:
    """Raises and clears the alarms of actions. ``look`` is called every ``LOOK_S``."""

    def __init__(self, actions: Mapping[str, RunningAction], alarms: Alarms, clock: Clock) -> None:
        self._actions, self._alarms, self._now_s = actions, alarms, clock.monotonic_s
        self._seen: dict[str, _Seen] = {}

    def look(self) -> None:
        """Activate and deactivate the alarms as things are now."""
        now_s = self._now_s()
        running = {one.action.name: one for one in self._actions.values()}
        for name in self._seen.keys() - running.keys():
            del self._seen[name]
            self._alarms.deactivate(_disconnected(name))
            self._alarms.deactivate(_dropping(name))
        for name, one in running.items():
            seen = self._seen.setdefault(name, _Seen())
            self._look_at_state(name, one, seen, now_s)
            self._look_at_losses(name, one, seen, now_s)

    def _look_at_state(self, name: str, one: RunningAction, seen: _Seen, now_s: float) -> None:
        state = one.action.state
        if state in (CONNECTED, STOPPED, DISABLED):
            seen.away_since_s = None
        elif seen.away_since_s is None:
            seen.away_since_s = now_s
        is_away = seen.away_since_s is not None and now_s - seen.away_since_s >= _AWAY_S
        reason, waiting = one.action.status[1], one.action.backlog
        text = f"action '{name}' is {state}{f': {reason}' if reason else ''}; {waiting} rows wait"
        self._alarms.set(_disconnected(name), is_away, text, action=name, state=state, reason=reason, rows=waiting)

    def _look_at_losses(self, name: str, one: RunningAction, seen: _Seen, now_s: float) -> None:
        by_reason = one.action.figures.lost_by_reason()
        lost = sum(by_reason.values())
        if lost > seen.lost:
            seen.lost_at_s = now_s
        seen.lost = lost
        is_losing = seen.lost_at_s is not None and now_s - seen.lost_at_s < _LOSS_S
        reasons = ", ".join(f"{reason} {count}" for reason, count in by_reason.items())
        text = f"action '{name}' loses rows: {lost} since start ({reasons})"
        self._alarms.set(_dropping(name), is_losing, text, action=name, rows=lost, **by_reason)


def _disconnected(name: str) -> str:
    return f"action_disconnected:{name}"


def _dropping(name: str) -> str:
    return f"action_dropping:{name}"
