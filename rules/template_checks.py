"""Templates of actions held against the rows that the SQL gives: a placeholder for what is never there is a warning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from broker.core.errors import Problem
from broker.core.schema import FieldType
from broker.core.template import Template
from rules.sql.inference import Inferred
from rules.sql.steps import descend
from rules.sql.tree import Path
from rules.sql.types import nearest
from rules.sql.values import text_of

_ALWAYS_LOOKED_AT = "payload"
"""The member of an action whose default is a placeholder that has to be there, ``${payload}``."""


def unset_placeholders(actions: Sequence[Any], inferred: Inferred, payload: FieldType) -> Iterator[Problem]:
    """What templates of actions (models with ``model_dump``) name and no row has.

    ``payload`` is what the column of that name holds where it is selected as it came.
    """
    if inferred.has_star:
        return
    row = FieldType("struct", nullable=False, fields=dict(inferred.columns), open=False)
    for position, action in enumerate(actions):
        members = action.model_dump(mode="json", exclude_unset=True)
        members = {**members, **_default_payload(action)} if _ALWAYS_LOOKED_AT not in members else members
        for pointer, text in _texts(members, f"/actions/{position}"):
            for path in Template(text, text_of).paths:
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


def _problem(path: Sequence[str], pointer: str, row: FieldType, payload: FieldType) -> Iterator[Problem]:
    shown = f"${{{'.'.join(path)}}}"
    name, *steps = path
    if name not in row.fields:
        close = nearest(name, row.fields)
        hint = f"did you mean '{close}'?" if close else f"select {name}"
        yield Problem(f"the SQL gives no column '{name}', so {shown} renders as undefined", pointer, suggestion=hint)
        return
    kind = row.fields[name]
    if name == "payload" and kind.name == "string":
        kind = payload
    _, issue = descend(kind, Path(name, tuple(steps)))
    if issue is not None and issue.is_mistake:
        yield Problem(f"{shown} renders as undefined: {issue.message}", pointer, suggestion=issue.suggestion)
