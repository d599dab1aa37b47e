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


def _with_connector(name: str, about: str) -> Kind:
    return Kind(
        name=name,
        path=f"{name}s",
        section=f"{name}s",
        models=(f"bridges.feature:{name}_models",),
        about=f"{about} The members of `parameters` depend on its type.",
        tag="Bridges",
        columns={**_STATUS, "connector": "connector", "rules": "rules"},
        read_only=f"bridges.resource.services:{name.capitalize()}ReadOnly",
        abilities=Abilities(
            can_patch=True,
            metrics=f"bridges.resource.figures:{name.capitalize()}Metrics",
            has_probe=True,
            switches=(*_RUNNING, *_PAUSING),
        ),
    )


KINDS = (
    Kind(
        name="connector",
        path="connectors",
        section="connectors",
        models=("bridges.feature:connector_models",),
        about="A connection to an outside system. The members depend on its type.",
        tag="Bridges",
        columns={**_STATUS, "actions": "actions", "sources": "sources"},
        read_only="bridges.resource.services:ConnectorReadOnly",
        abilities=Abilities(can_patch=True, has_probe=True, switches=_RUNNING),
    ),
    _with_connector("action", "Where rules send rows, as `<type>:<name>`."),
    _with_connector("source", 'What rules read with `FROM "$bridges/<type>:<name>"`.'),
)
