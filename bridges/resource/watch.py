"""Alarms of actions and sources: one that has not been connected for a while, an action that loses rows."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, Final

from bridges.resource.ingress import Ingress
from bridges.resource.sending.action import Action
from bridges.resource.supervisor import State
from broker.core.action import CONNECTED, DISABLED, STOPPED
from broker.core.clock import Clock
from broker.core.kinds import counted
from broker.observe.alarms import Alarms

LOOK_S: Final = 1.0
# A shorter time without a connection raises no alarm.
_AWAY_S: Final = 5.0
# The alarm about lost rows ends so long after the last one.
_LOSS_S: Final = 60.0


@dataclass(slots=True)
class _Losses:
    lost: int = 0
    lost_at_s: float | None = None


class BridgeWatch:
    """Raises and clears the alarms of actions and sources. ``look`` is called every ``LOOK_S``."""

    def __init__(
        self,
        actions: Mapping[str, Action],
        sources: Mapping[str, Ingress],
        alarms: Alarms,
        clock: Clock,
    ) -> None:
        self._actions = actions
        self._sources = sources
        self._alarms = alarms
        self._now_s = clock.monotonic_s
        self._away_since_s: dict[str, float] = {}
        """By the alarm's name, of all that are not connected."""
        self._losses: dict[str, _Losses] = {}
        """By the alarm's name, of all actions."""

    def look(self) -> None:
        """Activate and deactivate the alarms as things are now."""
        now_s = self._now_s()
        actions = self._actions.values()
        sources = self._sources.values()
        self._forget(self._losses, {_dropping(action.name) for action in actions})
        disconnected = {_disconnected("action", action.name) for action in actions}
        self._forget(
            self._away_since_s,
            disconnected | {_disconnected("source", source.name) for source in sources},
        )
        for member in (*actions, *sources):
            _ = member.since_ns
        for action in actions:
            rows = action.backlog
            self._look_at_state(
                "action",
                action.name,
                action.status,
                now_s,
                f"; {counted(rows, 'row')} in its buffer",
                rows=rows,
            )
            self._look_at_losses(action, now_s)
        for source in sources:
            self._look_at_state("source", source.name, source.status, now_s)

    def _forget(self, seen: dict[str, Any], present: Set[str]) -> None:
        """Deactivate the alarms of deleted objects."""
        for alarm in seen.keys() - present:
            del seen[alarm]
            self._alarms.deactivate(alarm)

    def _look_at_state(
        self, kind: str, name: str, status: State, now_s: float, more: str = "", **details: Any
    ) -> None:
        (state, reason), alarm = status, _disconnected(kind, name)
        if state in (CONNECTED, STOPPED, DISABLED):
            self._away_since_s.pop(alarm, None)
            self._alarms.deactivate(alarm)
        elif now_s - self._away_since_s.setdefault(alarm, now_s) >= _AWAY_S:
            text = f"{kind} '{name}' is {state}{f': {reason}' if reason else ''}{more}"
            self._alarms.activate(
                alarm, text, **{kind: name}, state=state, reason=reason, **details
            )

    def _look_at_losses(self, action: Action, now_s: float) -> None:
        name = action.name
        alarm = _dropping(name)
        seen = self._losses.setdefault(alarm, _Losses())
        by_reason = action.figures.lost_by_reason()
        lost = sum(by_reason.values())
        if lost > seen.lost:
            seen.lost_at_s = now_s
        seen.lost = lost
        is_losing = seen.lost_at_s is not None and now_s - seen.lost_at_s < _LOSS_S
        reasons = ", ".join(f"{reason} {count}" for reason, count in by_reason.items())
        text = f"action '{name}' loses rows: {lost} since start ({reasons})"
        self._alarms.set(alarm, is_losing, text, action=name, rows=lost, **by_reason)


def _disconnected(kind: str, name: str) -> str:
    return f"{kind}_disconnected:{name}"


def _dropping(name: str) -> str:
    return f"action_dropping:{name}"
