"""Checks of action templates against the rows that the SQL gives.

A placeholder for a value that is never there is a warning, and so is text that only looks like one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from broker.core.action import Sinks
from broker.core.errors import Problem, Rename, did_you_mean
from broker.core.placeholders import NOT_PLACEHOLDER
from broker.core.schema import FieldType
from broker.core.template import Template
from rules.actions.spec import BridgeAction
from rules.sql.syntax.tree import Path
from rules.sql.type_checker.inference import Inferred
from rules.sql.type_checker.types import descend, nearest
from rules.sql.values import text_of

# Quoted part of a placeholder of ``user_properties``.
_PASSED_ON = "User-Property"
# The member of an action whose default is a placeholder that must be defined, ``${payload}``.
_ALWAYS_LOOKED_AT = "payload"


def unset_placeholders(
    actions: Sequence[Any], inferred: Inferred, payload: FieldType
) -> Iterator[Problem]:
    """Placeholders in templates of actions (models with ``model_dump``) that no row has, or that name nothing.

    ``payload`` is what the column of that name holds where it is selected as it came.
    """
    row = FieldType("struct", nullable=False, fields=dict(inferred.columns), open=False)
    for position, action in enumerate(actions):
        members = action.model_dump(mode="json", exclude_defaults=True)
        members = (
            {**members, **_default_payload(action)} if _ALWAYS_LOOKED_AT not in members else members
        )
        for pointer, text in _texts(members, f"/actions/{position}"):
            yield from _written_as_text(text, pointer)
            for path in () if inferred.has_star else Template(text, text_of).paths:
                yield from _problem(path, pointer, row, payload)


def _default_payload(action: Any) -> Mapping[str, Any]:
    default = getattr(action, _ALWAYS_LOOKED_AT, None)
    return {_ALWAYS_LOOKED_AT: default} if isinstance(default, str) else {}


def _texts(value: Any, pointer: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        if "${" in value:
            yield pointer, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(item, f"{pointer}/{key}")
    elif isinstance(value, list):
        for position, item in enumerate(value):
            yield from _texts(item, f"{pointer}/{position}")


def _written_as_text(text: str, pointer: str) -> Iterator[Problem]:
    for match in NOT_PLACEHOLDER.finditer(text):
        if _PASSED_ON not in match[0]:
            hint = "a placeholder has letters, digits, '.' and '_' only; select the value AS a name"
            yield Problem(
                f"{match[0]} is not a placeholder and is written as is", pointer, suggestion=hint
            )


def _problem(
    path: Sequence[str], pointer: str, row: FieldType, payload: FieldType
) -> Iterator[Problem]:
    shown = f"${{{'.'.join(path)}}}"
    name, *steps = path
    if name not in row.fields:
        close = nearest(name, row.fields)
        hint = Rename(name, close) if close else f"select {name}"
        yield Problem(
            f"the SQL gives no column '{name}', so {shown} never has a value",
            pointer,
            suggestion=hint,
        )
        return
    kind = row.fields[name]
    if name == "payload" and kind.name == "string":
        kind = payload
    _, issue = descend(kind, Path(name, tuple(steps)))
    if issue is not None and issue.is_mistake:
        yield Problem(
            f"{shown} never has a value: {issue.message}", pointer, suggestion=issue.suggestion
        )


# Checks of a rule's actions against existing bridges: a missing one is a warning.


def missing_bridges(actions: Sequence[Any], sinks: Sinks) -> Iterator[Problem]:
    """The bridges that actions and their fallbacks name, and that do not exist."""
    for position, action in enumerate(actions):
        pointer = f"/actions/{position}"
        yield from _missing(action, pointer, sinks)
        for number, fallback in enumerate(getattr(action, "fallback_actions", ())):
            yield from _missing(fallback, f"{pointer}/fallback_actions/{number}", sinks)


def _missing(action: Any, pointer: str, sinks: Sinks) -> Iterator[Problem]:
    if not isinstance(action, BridgeAction) or sinks.find(action.bridge) is not None:
        return
    hint = (
        did_you_mean(action.bridge, [sink.name for sink in sinks])
        or "rows are discarded until it is made"
    )
    yield Problem(f"there is no action '{action.bridge}' yet", f"{pointer}/bridge", suggestion=hint)
