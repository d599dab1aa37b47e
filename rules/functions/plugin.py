"""Interface for authors of plugins: functions for rules, installed with pip, found by their entry point.

A plugin is a package with an entry point in the group ``sluice.functions``, whose name is the plugin's and whose value
is a module with decorated functions (``docs/how-to/add-functions.md``)::

    @function(returns="double")
    def fahrenheit(celsius: Number) -> float:
        \"\"\"Degrees Celsius as degrees Fahrenheit.\"\"\"
        return celsius * 1.8 + 32

Rules call it as ``fahrenheit(payload.t)`` or, with the plugin's name, ``meters.fahrenheit(payload.t)``. What this
module exports stays as it is between minor versions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Final, TypedDict, Unpack

from broker.core.schema import FieldType
from rules.functions.registry import (
    Bool,
    Data,
    Float,
    Int,
    Items,
    Members,
    Number,
    StrictText,
    Text,
    at_least,
    between,
    choice,
    make,
)
from rules.functions.spark_form import SparkForm
from rules.sql.values import UNDEFINED, EvaluationError, string

# Attribute of a decorated Python function that holds the function of rules.
ATTRIBUTE: Final = "__sluice_function__"
_PLAIN: Final = frozenset({str, int, float, bool, type(None)})


class Options(TypedDict, total=False):
    """Options of a plugin's function."""

    returns: str | FieldType
    name: str
    arity: tuple[int, int | None]
    usage: str
    is_pure: bool
    spark: tuple[SparkForm, ...]


class Refusal(EvaluationError):
    """Raised by a plugin's function that cannot give a result; the text says why."""


def function(**options: Unpack[Options]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a Python function one that rules can call.

    Annotate its parameters with the types of this module: they are checked before it is called. It must not block, and
    must not change what it is given.

    Args:
        options: ``returns`` (``boolean``, ``long``, ``double``, ``string``, ``binary``, ``array``, ``map`` or
            ``unknown``); ``name``, the name in rules, where Python's differs; ``arity``, least and most arguments, for
            functions that take ``*args``; ``usage``, the signature after the name, where it differs from
            the parameters; ``is_pure``: same result for the same arguments, and no effect (a call of literals is tried
            when a rule is saved); ``spark``, the function in Spark SQL, for rules that are transpiled.
    """

    def mark(implementation: Callable[..., Any]) -> Callable[..., Any]:
        options.setdefault("name", implementation.__name__)
        setattr(
            implementation, ATTRIBUTE, make(_guarded(options["name"], implementation), **options)
        )
        return implementation

    return mark


def _guarded(name: str, implementation: Callable[..., Any]) -> Callable[..., Any]:
    """The implementation with its failures reported as the plugin's, and its results held to be values of rules."""

    @wraps(implementation)
    def run(*arguments: Any) -> Any:
        try:
            result = implementation(*arguments)
        except EvaluationError as error:
            raise EvaluationError(f"{name}: {error}") from None
        except Exception as error:  # a plugin may raise anything; it costs this message only
            raise EvaluationError(
                f"{name}: the plugin failed with {type(error).__name__}: {error}"
            ) from error
        return result if type(result) in _PLAIN and result == result else _value(name, result)

    return run


def _value(name: str, result: Any) -> Any:
    kind = type(result)
    if kind is bytes:
        return string(result)
    if kind is list:
        return [_value(name, item) for item in result]
    if kind is dict and all(type(key) is str for key in result):
        return {key: _value(name, item) for key, item in result.items()}
    if result is UNDEFINED or (kind in _PLAIN and (kind is not float or result - result == 0.0)):
        return result
    expected = "a number that is not finite" if kind is float else f"a {kind.__name__}"
    raise EvaluationError(
        f"{name}: the plugin gave {expected}, which is not a value that rules have"
    )


__all__ = [
    "UNDEFINED", "Bool", "Data", "Float", "Int", "Items", "Members", "Number", "Refusal", "SparkForm", "StrictText",
    "Text", "at_least", "between", "choice", "function",
]  # fmt: skip
