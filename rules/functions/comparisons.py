"""Comparing as text or as numbers, whatever ``=`` and ``<`` would do; and choosing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rules.functions.registry import Bool, Number, function
from rules.sql.values import UNDEFINED, text_of

_TESTS: tuple[tuple[str, str, Callable[[int], bool]], ...] = (
    ("eq", "is equal to", lambda order: order == 0),
    ("neq", "is not equal to", lambda order: order != 0),
    ("lt", "is less than", lambda order: order < 0),
    ("lte", "is at most", lambda order: order <= 0),
    ("gt", "is greater than", lambda order: order > 0),
    ("gte", "is at least", lambda order: order >= 0),
)


def _bytes(value: Any) -> bytes:
    text = text_of(value)
    return text if isinstance(text, bytes) else text.encode()


def _order_of_texts(a: Any, b: Any) -> int:
    left, right = _bytes(a), _bytes(b)
    return (left > right) - (left < right)


def _word(order: int) -> str:
    return "eq" if order == 0 else "lt" if order < 0 else "gt"


@function(returns="string")
def str_comp(a: Any, b: Any) -> str:
    """How the text of a compares with that of b, by bytes: ``eq``, ``lt`` or ``gt``."""
    return _word(_order_of_texts(a, b))


@function(returns="string")
def num_comp(a: Number, b: Number) -> str:
    """How the number a compares with b, by value: ``eq``, ``lt`` or ``gt``."""
    return _word((a > b) - (a < b))


def _register(suffix: str, words: str, test: Callable[[int], bool]) -> None:
    def of_texts(a: Any, b: Any) -> bool:
        return test(_order_of_texts(a, b))

    def of_numbers(a: Number, b: Number) -> bool:
        return test((a > b) - (a < b))

    of_texts.__doc__ = f"Whether the text of a {words} that of b, by bytes."
    of_numbers.__doc__ = f"Whether the number a {words} b, by value."
    function(name=f"str_{suffix}", returns="boolean")(of_texts)
    function(name=f"num_{suffix}", returns="boolean")(of_numbers)


for _suffix, _words, _test in _TESTS:
    _register(_suffix, _words, _test)


@function()
def iif(condition: Bool, then: Any, otherwise: Any) -> Any:
    """The second argument where the condition is true, else the third; both are worked out."""
    return then if condition else otherwise


@function(returns="boolean")
def is_empty_val(x: Any) -> bool:
    """Whether a value is undefined, null, the empty string or an empty array."""
    return x is UNDEFINED or x is None or (type(x) in (str, bytes, list) and not x)
