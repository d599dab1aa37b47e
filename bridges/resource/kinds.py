"""Connectors, actions and sources."""

from __future__ import annotations

from broker.core.kinds import ENABLE, Abilities, Kind, Switch

_STATUS = {"name": "name", "type": "type", "status": "status", "reason": "status_reason"}


def _switch(verb: str, done: str, text: str) -> Switch:
    return Switch(verb, done, text, lambda service, name: getattr(service, verb)(name))


_RUNNING = (
    *ENABLE,
    _switch("start", "started", "Start {} that was stopped."),
    _switch("stop", "stopped", "Stop {} until it is started again or the broker restarts."),
    _switch("restart", "restarted", "Stop and start {}."),
)
_PAUSING = (
    _switch("pause", "paused", "Pause {}: rows of an action wait in its buffer, a source reads nothing."),
    _switch("resume", "resumed", "Resume {} that was paused."),
)
_MOVING = Abilities(can_patch=True, has_metrics=True, has_probe=True, switches=(*_RUNNING, *_PAUSING))

KINDS = (
    Kind(
        name="connector",
        path="connectors",
        section="connectors",
        models=("bridges.feature:connector_models",),
        about="A connection to an outside system. The members depend on its type.",
        tag="Bridges",
        columns={**_STATUS, "actions": "actions", "sources": "sources"},
        abilities=Abilities(can_patch=True, has_probe=True, switches=_RUNNING),
    ),
    Kind(
        name="action",
        path="actions",
        section="actions",
        models=("bridges.feature:action_models",),
        about="Where rules send rows, as `<type>:<name>`. The members of `parameters` depend on its type.",
        tag="Bridges",
        columns={**_STATUS, "connector": "connector", "rules": "rules"},
        abilities=_MOVING,
    ),
    Kind(
        name="source",
        path="sources",
        section="sources",
        models=("bridges.feature:source_models",),
        about='What rules read with `FROM "$bridges/<type>:<name>"`. The members of `parameters` depend on its type.',
        tag="Bridges",
        columns={**_STATUS, "connector": "connector", "rules": "rules"},
        abilities=_MOVING,
    ),
)
