"""Errors of pydantic about settings as sentences: place, key, value, and the expected form."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from broker.config.secrets import MASK, NO_TEXT, Secret, without_user
from broker.core.errors import did_you_mean

_EXPECTED = {
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "string_type": 'a string; put it in quotes, as "text"',
    NO_TEXT: 'a string; put it in quotes, as "text"',
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
    "string_too_short": "a string of at least {min_length} characters",
    "string_too_long": "a string of at most {max_length} characters",
    "string_pattern_mismatch": "a string that matches {pattern}",
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
        return f"{key} is not a setting{hint(location[-1], settings_at(model, location[:-1]))}"
    if kind == "missing":
        return f"{key} is required and not set"
    if kind in ("value_error", "assertion_error"):
        cause = error.get("ctx", {}).get("error", error["msg"])
        return f"{key}: {cause}"
    is_secret = kind == NO_TEXT or is_secret_at(model, location)
    return f"{key} is {shown(error['input'], is_secret=is_secret)}; {expectation(error)}"


def expectation(error: ErrorDetails) -> str:
    """``expected a whole number``."""
    expected = _EXPECTED.get(error["type"])
    return (
        error["msg"].lower()
        if expected is None
        else f"expected {expected.format(**error.get('ctx', {}))}"
    )


def hint(word: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` to add to a sentence, empty if no known word is similar."""
    rename = did_you_mean(word, known)
    return f"; {rename}" if rename else ""


def shown(value: Any, *, is_secret: bool) -> str:
    """A value as it is quoted in a message."""
    if is_secret:
        return MASK
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    text = repr(without_user(value) if isinstance(value, str) and "://" in value else value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"


def settings_at(model: type[BaseModel], location: tuple[str, ...]) -> list[str]:
    """The names of the settings of the models found at a path below ``model``."""
    return [name for model_below in models_at(model, location) for name in model_below.model_fields]


def is_secret_at(model: type[BaseModel], location: tuple[str, ...]) -> bool:
    """True if the setting at a path is a secret, or contains one."""
    for length in range(len(location), 0, -1):
        name = location[length - 1]
        owners = models_at(model, location[: length - 1])
        if fields := [owner.model_fields[name] for owner in owners if name in owner.model_fields]:
            kinds = [kind for field in fields for kind in types_in(field.annotation)]
            return any(isinstance(kind, type) and issubclass(kind, Secret) for kind in kinds)
    return False


def models_at(model: type[BaseModel], location: tuple[str, ...]) -> list[type[BaseModel]]:
    """Follows field names, to every kind that a member may be of; numbers of list items and keys of free maps are
    stepped over."""
    models = [model]
    for part in location:
        fields = [
            model_at.model_fields[part] for model_at in models if part in model_at.model_fields
        ]
        if not fields:
            models = [getattr(model_at, "member", None) or model_at for model_at in models]
            continue
        kinds = [kind for field in fields for kind in types_in(field.annotation)]
        models = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
    return models


def types_in(annotation: Any) -> list[Any]:
    """The types in an annotation, as ``X`` and ``None`` of ``X | None``."""
    arguments = get_args(annotation)
    return (
        [annotation]
        if not arguments
        else [inner for argument in arguments for inner in types_in(argument)]
    )
