"""What pydantic finds wrong with settings, as sentences for people: where, which key, what it is, what was expected."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from broker.config.secrets import MASK, Secret

_EXPECTED = {
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "string_type": 'a text; put it in quotes, as "text"',
    "list_type": 'a list, as ["a", "b"]',
    "tuple_type": 'a list, as ["a", "b"]',
    "dict_type": "an object {{ ... }}",
    "model_type": "an object {{ ... }}",
    "model_attributes_type": "an object {{ ... }}",
    "literal_error": "{expected}",
    "enum": "{expected}",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "string_too_short": "a text of at least {min_length} characters",
    "string_too_long": "a text of at most {max_length} characters",
    "string_pattern_mismatch": "a text that matches {pattern}",
    "too_short": "at least {min_length} items",
    "too_long": "at most {max_length} items",
    "ip_any_address": "an IP address",
    "path_type": "the name of a file or directory",
}
_LONGEST_VALUE = 60


def sentence(section: str, model: type[BaseModel], error: ErrorDetails) -> str:
    """The problem without its place: ``mqtt.max_inflight is 'many'; expected a whole number``."""
    location = tuple(str(part) for part in error["loc"])
    key = ".".join((section, *location))
    kind = error["type"]
    if kind == "extra_forbidden":
        return f"{key} is not a setting{did_you_mean(location[-1], settings_at(model, location[:-1]))}"
    if kind == "missing":
        return f"{key} is required and not set"
    if kind in ("value_error", "assertion_error"):
        cause = error.get("ctx", {}).get("error", error["msg"])
        return f"{key}: {cause}"
    return f"{key} is {shown(error['input'], is_secret=is_secret_at(model, location))}; {expectation(error)}"


def expectation(error: ErrorDetails) -> str:
    """``expected a whole number``."""
    expected = _EXPECTED.get(error["type"])
    return error["msg"].lower() if expected is None else f"expected {expected.format(**error.get('ctx', {}))}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` when something known is close, else nothing."""
    close = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def shown(value: Any, *, is_secret: bool) -> str:
    """A value as it is quoted in a message."""
    if is_secret:
        return MASK
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"


def settings_at(model: type[BaseModel], location: tuple[str, ...]) -> list[str]:
    """The names of the settings of the model found at a path below ``model``."""
    return list(found.model_fields) if (found := _model_at(model, location)) else []


def is_secret_at(model: type[BaseModel], location: tuple[str, ...]) -> bool:
    """Whether the setting at a path holds a secret."""
    for length in range(len(location), 0, -1):
        owner = _model_at(model, location[: length - 1])
        if owner is not None and (found := owner.model_fields.get(location[length - 1])) is not None:
            return Secret in _types_in(found.annotation)
    return False


def _model_at(model: type[BaseModel], location: tuple[str, ...]) -> type[BaseModel] | None:
    """Follows field names; numbers of list items and keys of free maps are stepped over."""
    for part in location:
        found = model.model_fields.get(part)
        if found is None:
            model = getattr(model, "member", None) or model
            continue
        inner = [kind for kind in _types_in(found.annotation) if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if not inner:
            return None
        model = inner[0]
    return model


def _types_in(annotation: Any) -> list[Any]:
    """The types an annotation is made of, as ``X`` and ``None`` of ``X | None``."""
    arguments = get_args(annotation)
    return [annotation] if not arguments else [inner for argument in arguments for inner in _types_in(argument)]
