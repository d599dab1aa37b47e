"""Types of values, and their combination: the algebra under the type checker.

A type is a promise about every value: a value has the type, or it is undefined or null and the type is ``nullable``.
``long`` promises a whole number (JSON Schema's ``integer`` takes 1.0), ``double`` any number, ``unknown`` nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Any, Final

from broker.core.errors import Rename, closest
from broker.core.schema import UNKNOWN, FieldType
from rules.sql.syntax.tree import END_INDEX, Path, step_text

BOOLEAN: Final = FieldType("boolean", nullable=False)
LONG: Final = FieldType("long", nullable=False)
DOUBLE: Final = FieldType("double", nullable=False)
STRING: Final = FieldType("string", nullable=False)
# Always undefined or null.
NULL: Final = FieldType("null")
EMPTY_MAP: Final = FieldType("struct", nullable=False, open=False)

NUMERIC: Final = ("long", "double")
_FAMILIES: Final = {
    "long": "number", "double": "number", "string": "string", "binary": "string", "boolean": "boolean",
    "array": "array", "map": "map", "struct": "map", "null": "null",
}  # fmt: skip
_WORDS: Final = {
    "number": "a number", "string": "a string", "boolean": "a boolean", "array": "an array", "map": "a map",
    "null": "undefined",
}  # fmt: skip


def family(kind: FieldType) -> str:
    """``number``, ``string``, ``boolean``, ``array``, ``map`` or ``null``; ``unknown`` where the type does not say."""
    return _FAMILIES.get(kind.name, "unknown")


def described(kind: FieldType) -> str:
    """The word for a type in messages: ``a number``."""
    return _WORDS.get(family(kind), "of unknown type")


def maybe(kind: FieldType) -> FieldType:
    """The type where the value may be absent too."""
    return kind if kind.nullable else replace(kind, nullable=True)


def certain(kind: FieldType) -> FieldType:
    """The type of the values that are there."""
    return replace(kind, nullable=False) if kind.nullable else kind


def array_of(item: FieldType, *, nullable: bool = False) -> FieldType:
    """The type of arrays of such elements."""
    return FieldType("array", nullable=nullable, item=item)


def unified(field_type: FieldType, other: FieldType) -> FieldType:
    """The type of a value that has one of two types."""
    if field_type == other:
        return field_type
    kind = _unified(field_type, other)
    return (
        replace(kind, logical=field_type.logical)
        if field_type.logical and field_type.logical == other.logical
        else kind
    )


def _unified(field_type: FieldType, other: FieldType) -> FieldType:
    if field_type.name == "null" or other.name == "null":
        return maybe(other if field_type.name == "null" else field_type)
    nullable = field_type.nullable or other.nullable
    if field_type.name in NUMERIC and other.name in NUMERIC:
        return FieldType(
            field_type.name if field_type.name == other.name else "double", nullable=nullable
        )
    if field_type.name == other.name == "array":
        return array_of(
            unified(field_type.item or UNKNOWN, other.item or UNKNOWN), nullable=nullable
        )
    if field_type.name == other.name == "struct":
        return _unified_structs(field_type, other, nullable)
    if family(field_type) == family(other) == "map":
        items = [kind.item or UNKNOWN for kind in (field_type, other) if kind.name == "map"]
        return FieldType(
            "map", nullable=nullable, item=unified(*items) if len(items) == 2 else UNKNOWN
        )
    if field_type.name == other.name:
        values = (
            tuple(dict.fromkeys((*field_type.values, *other.values)))
            if field_type.values and other.values
            else ()
        )
        return FieldType(field_type.name, nullable=nullable, values=values)
    return UNKNOWN


def _unified_structs(field_type: FieldType, other: FieldType, nullable: bool) -> FieldType:
    fields = {
        name: unified(_field(field_type, name), _field(other, name))
        for name in {**field_type.fields, **other.fields}
    }
    return FieldType("struct", nullable=nullable, fields=fields, open=field_type.open or other.open)


def _field(kind: FieldType, name: str) -> FieldType:
    return kind.fields.get(name, UNKNOWN if kind.open else NULL)


def unified_all(kinds: Iterable[FieldType]) -> FieldType:
    """The type of a value that has one of these types; that of nothing when there are none."""
    common: FieldType | None = None
    for kind in kinds:
        common = kind if common is None else unified(common, kind)
    return NULL if common is None else common


# Into values


def member(kind: FieldType, name: str) -> FieldType:
    """The type of ``value.name``. Text is read as JSON, so nothing is known of its members."""
    if kind.name == "struct":
        field_type = _field(kind, name)
    elif kind.name == "map":
        field_type = maybe(kind.item or UNKNOWN)
    else:
        field_type = UNKNOWN if family(kind) in ("string", "unknown") else NULL
    return maybe(field_type) if kind.nullable else field_type


def element(kind: FieldType) -> FieldType:
    """The type of ``value[i]``, which is undefined beyond the ends."""
    if kind.name == "array":
        return maybe(kind.item or UNKNOWN)
    return UNKNOWN if family(kind) in ("string", "unknown") else NULL


def written(kind: FieldType, steps: Sequence[Any], value: FieldType) -> FieldType:
    """The type of a target after a value was written at a path in it, as ``paths.put`` does."""
    if not steps:
        return value
    step = steps[0]
    rest = steps[1:]
    if isinstance(step, str):
        return _with_member(kind, step, rest, value)
    inner = written(NULL, rest, value)
    result = array_of(inner)
    if kind.name == "array" or family(kind) in ("string", "unknown"):
        before = kind.item or UNKNOWN
        items = (
            [before, inner]
            if step is END_INDEX or step == 0
            else [before, inner, written(before, rest, value)]
        )
        result = array_of(unified_all(items))
    return unified(kind, result) if isinstance(step, Path) else result


def _with_member(kind: FieldType, name: str, rest: Sequence[Any], value: FieldType) -> FieldType:
    if kind.name == "struct":
        fields = (
            {key: maybe(field) for key, field in kind.fields.items()}
            if kind.nullable
            else dict(kind.fields)
        )
        is_open = kind.open
    else:
        # text may be the JSON of a map
        fields, is_open = (
            {},
            kind.name == "map" or family(kind) in ("string", "unknown"),
        )
    before = fields.get(name, UNKNOWN if is_open else NULL)
    return FieldType(
        "struct",
        nullable=False,
        fields={**fields, name: written(before, rest, value)},
        open=is_open,
    )


# Names that look alike

_DIGITS: Final = re.compile(r"\d+")
# Letters that are enough to recognise the beginning of a name.
_TELLING: Final = 3
# Similarity (0 to 1) from which a name that may exist counts as a mistake.
_SURE: Final = 0.75


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The name that was probably meant: one that looks alike, or that one of the two begins."""
    listed = list(names)
    lowered = name.lower()
    begun = [
        other
        for other in listed
        if other.lower().startswith(lowered) or lowered.startswith(other.lower())
    ]
    is_telling = len(name) >= _TELLING and begun and len(min(begun, key=len)) >= _TELLING
    return closest(name, listed) or (min(begun, key=len) if is_telling else None)


def misspelt(name: str, names: Iterable[str]) -> str | None:
    """The name that was meant, where ``name`` need not be among the known ones: nearly the same, and not with another
    number, as in ``temp2`` and ``temp1``."""
    close = closest(
        name, [other for other in names if _DIGITS.sub("", other) != _DIGITS.sub("", name)]
    )
    is_sure = (
        close is not None and SequenceMatcher(None, close.lower(), name.lower()).ratio() >= _SURE
    )
    return close if is_sure else None


# Walking a path into a type, with the issues on the way.


# Maximum field names that a message lists.
_LISTED = 12


@dataclass(frozen=True, slots=True)
class Issue:
    """A problem with a step. ``is_mistake`` is true where it is certain, false where it may be intended."""

    message: str
    suggestion: str | None = None
    is_mistake: bool = True


def descend(kind: FieldType, path: Path) -> tuple[FieldType, Issue | None]:
    """The type at the path in a value of a type; the first issue, after which the type is unknown."""
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
    return Issue(
        f"{text} is {described(kind)} and has no elements, so {path.text} is always undefined"
    )


def _key_issue(kind: FieldType, name: str, text: str, path: Path) -> Issue | None:
    if kind.name == "array":
        return Issue(
            f"{text} is an array, so {path.text} is always undefined",
            f"take an element, as {text}[1].{name}, or FOREACH",
        )
    if kind.name == "struct" and name not in kind.fields:
        return _missing(kind, name, text, path)
    if family(kind) in ("number", "boolean"):
        return Issue(
            f"{text} is {described(kind)} and has no members, so {path.text} is always undefined"
        )
    return None


def _missing(kind: FieldType, name: str, text: str, path: Path) -> Issue | None:
    if not kind.open:
        close = nearest(name, kind.fields)
        hint = Rename(name, close) if close else f"it has {_listed(kind)}"
        return Issue(f"{path.text}: {text} has no field '{name}'", hint)
    if not kind.fields:
        return None
    close = misspelt(name, kind.fields)
    message = f"{path.text}: the schema of {text} does not mention '{name}'"
    if close:
        return Issue(message, Rename(name, close))
    return Issue(message, f"it mentions {_listed(kind)}", is_mistake=False)


def _listed(kind: FieldType) -> str:
    names = sorted(kind.fields)
    if not names:
        return "no fields"
    return ", ".join(names[:_LISTED]) + (", …" if len(names) > _LISTED else "")
