"""Templates over the rows of rules, and their text for absent values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from broker.core import jsontext
from broker.core.template import Template, WhenUndefined, as_undefined
from rules.actions.action import ActionFailed, Discarded
from rules.sql.values import (
    UNDEFINED,
    Bits,
    EvaluationError,
    defined,
    json_bytes,
    json_text,
    text_of,
)

# Effect of a placeholder for a missing value: writes ``undefined``, nothing, or ``null``; leaves out the row, which
# counts as discarded; or fails the action. The first three write ``null`` where JSON has a value.
UndefinedVars = Literal["text", "empty", "null", "drop", "fail"]


def template(text: str, undefined_vars: UndefinedVars = "text") -> Template:
    """A template over rows; JSON where the text is JSON around its placeholders."""
    return Template(
        text,
        rendered,
        undefined=UNDEFINED,
        when_undefined=_WHEN_UNDEFINED[undefined_vars],
        json_of=json_value,
    )


def topic_template(text: str, undefined_vars: UndefinedVars = "text") -> Template:
    """A template of topics and other names, which are never JSON."""
    return Template(
        text, rendered, undefined=UNDEFINED, when_undefined=_WHEN_UNDEFINED[undefined_vars]
    )


def json_value(value: Any) -> bytes:
    """A value as JSON. A string that is JSON goes in as it is."""
    if type(value) is str and jsontext.is_json(value):
        return value.encode()
    try:
        return json_bytes(value)
    except EvaluationError:
        return json_bytes(_plain(value))


_NESTING: Final = frozenset({list, dict})


def rendered(value: Any) -> str | bytes:
    """The text of a value. Unlike ``text_of`` it has one for every value: rendering never fails."""
    try:
        return json_text(value) if type(value) in _NESTING else text_of(value)
    except EvaluationError:
        return json_text(_plain(value))


def _plain(value: Any) -> Any:
    """The value with parts that have no JSON form as text: bit strings and very long integers."""
    value = defined(value)
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, Bits):
        return f"{value.value:0{value.size}b}"
    is_long = type(value) is int and value.bit_length() > _LONGEST_INTEGER_BITS
    return hex(value) if is_long else value


# Integers of more digits the interpreter does not write in decimal (4,300 of them).
_LONGEST_INTEGER_BITS: Final = 14_000


def _drop(path: str) -> str:
    raise Discarded(f"the row has no '{path}'")


def _fail(path: str) -> str:
    raise ActionFailed(f"the row has no '{path}', which the template names")


_WHEN_UNDEFINED: Final[Mapping[str, WhenUndefined]] = {
    "text": as_undefined,
    "empty": lambda _path: "",
    "null": lambda _path: "null",
    "drop": _drop,
    "fail": _fail,
}
