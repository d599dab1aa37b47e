"""Walking a path into a type, and what looks wrong on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from broker.core.schema import UNKNOWN, FieldType
from rules.sql.tree import Path, step_text
from rules.sql.types import array_of, described, element, family, member, misspelt, nearest

_LISTED = 12
"""Most field names that a message lists."""


@dataclass(frozen=True, slots=True)
class Issue:
    """What is wrong with a step. ``is_mistake`` tells a certain mistake from what may be meant."""

    message: str
    suggestion: str | None = None
    is_mistake: bool = True


def descend(kind: FieldType, path: Path) -> tuple[FieldType, Issue | None]:
    """The type of what stands at the path in a value of a type; the first issue, after which the type is unknown."""
    text = path.root
    for step in path.steps:
        issue = _issue(kind, step, text, path)
        if issue is not None:
            return UNKNOWN, issue
        kind = member(kind, step) if isinstance(step, str) else element(kind)
        text += f".{step}" if isinstance(step, str) else f"[{step_text(step)}]"
    if path.range is None:
        return kind, None
    if family(kind) not in ("array", "string", "unknown"):
        return UNKNOWN, Issue(f"a range can be taken of an array only; {text} is {described(kind)}")
    return array_of((kind.item or UNKNOWN) if kind.name == "array" else UNKNOWN), None


def reached(kind: FieldType, steps: Sequence[Any]) -> FieldType:
    """``descend`` without looking for issues."""
    for step in steps:
        kind = member(kind, step) if isinstance(step, str) else element(kind)
    return kind


def _issue(kind: FieldType, step: Any, text: str, path: Path) -> Issue | None:
    if isinstance(step, str):
        return _key_issue(kind, step, text, path)
    if family(kind) in ("array", "string", "unknown", "null"):
        return None
    return Issue(f"{text} is {described(kind)} and has no elements, so {path.text} is always undefined")


def _key_issue(kind: FieldType, name: str, text: str, path: Path) -> Issue | None:
    if kind.name == "array":
        return Issue(
            f"{text} is an array, so {path.text} is always undefined",
            f"take an element, as {text}[1].{name}, or FOREACH",
        )
    if kind.name == "struct" and name not in kind.fields:
        return _missing(kind, name, text, path)
    if family(kind) in ("number", "boolean"):
        return Issue(f"{text} is {described(kind)} and has no members, so {path.text} is always undefined")
    return None


def _missing(kind: FieldType, name: str, text: str, path: Path) -> Issue | None:
    if not kind.open:
        close = nearest(name, kind.fields)
        hint = f"did you mean '{close}'?" if close else f"it has {_listed(kind)}"
        return Issue(f"{path.text}: {text} has no field '{name}'", hint)
    if not kind.fields:
        return None
    close = misspelt(name, kind.fields)
    message = f"{path.text}: the schema of {text} does not mention '{name}'"
    if close:
        return Issue(message, f"did you mean '{close}'?")
    return Issue(message, f"it mentions {_listed(kind)}", is_mistake=False)


def _listed(kind: FieldType) -> str:
    names = sorted(kind.fields)
    if not names:
        return "no fields"
    return ", ".join(names[:_LISTED]) + (", …" if len(names) > _LISTED else "")
