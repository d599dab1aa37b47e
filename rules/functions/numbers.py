"""Numbers."""

from __future__ import annotations

import math
import random as random_source
from collections.abc import Callable
from typing import Any

from rules.functions.registry import Number, failure, function
from rules.functions.spark_form import EXACT, SparkForm, forms
from rules.sql import values

# Longest integer that is shown in a message.
_SHOWN_BITS = 64


_INEXACT = f"NOT ({{0}} {EXACT})"
_ABS = (
    SparkForm(
        ("long",),
        "abs(nullif({0}, -9223372036854775808L))",
        "long",
        unless="{0} = -9223372036854775808L",
    ),
    *forms("float", "number", value="abs({0})"),
)
_FMOD = (SparkForm(("double", "double"), "({0} % nullif({1}, 0D))", "float", unless="{1} = 0D"),)
_DIVISION = "nullif({{0}}, -9223372036854775808L) {} nullif({{1}}, 0L)"
_DIV, _MOD = (
    (SparkForm(("long", "long"), f"({call})", "long", unless=f"({call}) IS NULL"),)
    for call in map(_DIVISION.format, ("DIV", "%"))
)


def _whole(call: str) -> tuple[SparkForm, ...]:
    """The forms of a function to integers; those of larger floats are beyond what a column of integers holds."""
    return (
        *forms("long", value="{0}"),
        *forms("float", "number", value=call, gives="long", unless=_INEXACT),
    )


@function(returns="unknown", spark=_ABS)
def abs_(x: Number) -> Any:
    """The absolute value."""
    return abs(x)


@function(returns="long", spark=_whole("ceil({0})"))
def ceil(x: Number) -> int:
    """The smallest integer that is not less."""
    result: int = math.ceil(x)
    return result


@function(returns="long", spark=_whole("floor({0})"))
def floor(x: Number) -> int:
    """The largest integer that is not greater."""
    result: int = math.floor(x)
    return result


@function(name="round", returns="long", spark=_whole("try_cast(round({0}) AS BIGINT)"))
def round_(x: Number) -> int:
    """The nearest integer, halves away from zero."""
    whole: int = math.trunc(x)
    return whole + (1 if x > 0 else -1) if abs(x - whole) >= 0.5 else whole


def _register(name: str, operation: Callable[..., float], text: str) -> None:
    def run(x: Number) -> float:
        return _finite(name, operation, x)

    run.__doc__ = text
    function(name=name, returns="double")(run)


def _finite(name: str, operation: Callable[..., float], *arguments: Any) -> float:
    try:
        result = operation(*arguments)
    except (ValueError, OverflowError, ZeroDivisionError):
        raise failure(name, f"has no finite value at {', '.join(map(_shown, arguments))}") from None
    if result - result != 0.0:
        raise failure(name, "the result is beyond the range of floats")
    return result


def _shown(number: int | float) -> str:
    if type(number) is int and number.bit_length() > _SHOWN_BITS:
        return f"an integer of {number.bit_length()} bits"
    return str(number)


for _name, _operation, _text in (
    ("sqrt", math.sqrt, "The square root."),
    ("exp", math.exp, "e to the power of x."),
    ("log", math.log, "The natural logarithm."),
    ("log10", math.log10, "The logarithm to base 10."),
    ("log2", math.log2, "The logarithm to base 2."),
    ("sin", math.sin, "The sine of an angle in radians."),
    ("cos", math.cos, "The cosine of an angle in radians."),
    ("tan", math.tan, "The tangent of an angle in radians."),
    ("asin", math.asin, "The angle in radians whose sine is x."),
    ("acos", math.acos, "The angle in radians whose cosine is x."),
    ("atan", math.atan, "The angle in radians whose tangent is x."),
    ("sinh", math.sinh, "The hyperbolic sine."),
    ("cosh", math.cosh, "The hyperbolic cosine."),
    ("tanh", math.tanh, "The hyperbolic tangent."),
    ("asinh", math.asinh, "The inverse hyperbolic sine."),
    ("acosh", math.acosh, "The inverse hyperbolic cosine."),
    ("atanh", math.atanh, "The inverse hyperbolic tangent."),
):
    _register(_name, _operation, _text)


@function(returns="double")
def power(x: Number, y: Number) -> float:
    """x to the power of y, always a float."""
    return _finite("power", math.pow, x, y)


@function(returns="double", spark=_FMOD)
def fmod(x: Number, y: Number) -> float:
    """The remainder of x / y, with the sign of x."""
    return _finite("fmod", math.fmod, x, y)


@function(returns="double", is_pure=False)
def random() -> float:
    """A float from 0 up to, not including, 1."""
    return random_source.random()


@function(name="div", returns="long", spark=_DIV)
def div(a: Any, b: Any) -> int:
    """Integer division, truncated toward zero."""
    return values.integer_divide(a, b)


@function(name="mod", returns="long", spark=_MOD)
def mod(a: Any, b: Any) -> int:
    """The remainder of integer division, with the sign of a."""
    return values.modulo(a, b)


@function(returns="boolean")
def eq(a: Any, b: Any) -> bool:
    """Equality by value: 1 is 1.0, but '1' is not 1."""
    return values.equal_by_value(a, b)
