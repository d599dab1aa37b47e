"""Comparisons: of texts byte by byte, of numbers by value; and what counts as empty."""

from __future__ import annotations

from collections.abc import Callable
from operator import eq, ge, gt, le, lt, ne
from typing import Any

from transforms.variform.errors import badarg
from transforms.variform.registry import function
from transforms.variform.values import is_empty, name_of, to_text

# Comparisons by the end of their function's name, as in ``str_eq`` and ``num_eq``, with a verb for the help.
OPERATORS: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    "eq": (eq, "equals"),
    "neq": (ne, "differs from"),
    "lt": (lt, "is less than"),
    "lte": (le, "is at most"),
    "gt": (gt, "is greater than"),
    "gte": (ge, "is at least"),
}


def _bytes(value: Any) -> bytes:
    return value if value.__class__ is bytes else to_text(value).encode("utf-8", "surrogatepass")


def _by_text(name: str, operator: Callable[[Any, Any], bool], says: str) -> None:
    def compare(left: Any, right: Any) -> bool:
        return operator(_bytes(left), _bytes(right))

    compare.__doc__ = f"True if the first {says} the second, both as text, byte by byte."
    function(f"str_{name}")(compare)


def _by_value(name: str, operator: Callable[[Any, Any], bool], says: str) -> None:
    def compare(left: int | float, right: int | float) -> bool:
        return operator(left, right)

    compare.__doc__ = f"True if the first number {says} the second; 1 and 1.0 are equal."
    function(f"num_{name}")(compare)


for _name, (_operator, _says) in OPERATORS.items():
    _by_text(_name, _operator, _says)
    _by_value(_name, _operator, _says)


@function("str_comp")
def str_comp(left: Any, right: Any) -> str:
    """``eq``, ``lt`` or ``gt``, comparing the bytes of both texts."""
    return order_word(_bytes(left), _bytes(right))


@function("num_comp")
def num_comp(left: int | float, right: int | float) -> str:
    """``eq``, ``lt`` or ``gt``, comparing numbers by value."""
    return order_word(left, right)


def order_word(left: Any, right: Any) -> str:
    """``eq``, ``lt`` or ``gt``."""
    return "eq" if left == right else "lt" if left < right else "gt"


@function("is_empty_val")
def is_empty_val(value: Any) -> bool:
    """True if the value is "", null or []; a variable without value is an error."""
    return is_empty(value)


@function("not")
def negate(value: Any) -> bool | str:
    """The other boolean; of the texts ``true`` and ``false`` the other text."""
    if value.__class__ is bool:
        return not value
    if value == "true":
        return "false"
    if value == "false":
        return "true"
    raise badarg("not", f"expected a boolean, got {name_of(value)}")
