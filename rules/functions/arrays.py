"""Arrays."""

from __future__ import annotations

from typing import Any

from rules.functions.registry import NOT_LITERAL, Int, Items, Literals, failure, function
from rules.sql.values import identical
from rules.sql.work import spend


def _from_one(values: Literals) -> tuple[int, str] | None:
    if values[0] is NOT_LITERAL or values[0] >= 1:
        return None
    return (0, "elements count from 1; a[-1] is the last one of an array a")


@function(check=_from_one)
def nth(n: Int, items: Items) -> Any:
    """The n-th element, counted from 1; fails where there is none."""
    if not 1 <= n <= len(items):
        raise failure("nth", f"there is no element {n} in an array of {len(items)}")
    return items[n - 1]


@function(returns="long")
def length(items: Items) -> int:
    """The number of elements."""
    return len(items)


@function()
def first(items: Items) -> Any:
    """The first element; fails when there is none."""
    if not items:
        raise failure("first", "the array is empty")
    return items[0]


@function()
def last(items: Items) -> Any:
    """The last element; fails when there is none."""
    if not items:
        raise failure("last", "the array is empty")
    return items[-1]


def _sublist_literals(values: Literals) -> tuple[int, str] | None:
    *numbers, _ = values
    for position, least in enumerate((1, 0)[-len(numbers) :]):
        number = numbers[position]
        if number is not NOT_LITERAL and not (type(number) is int and number >= least):
            return position, f"argument {position + 1} must be an integer of at least {least}"
    return None


@function(returns="array", arity=(2, 3), usage="([start,] len, list)", check=_sublist_literals)
def sublist(*arguments: Any) -> list[Any]:
    """So many elements, from the first or from ``start``, counted from 1; fewer where the array ends."""
    *numbers, items = arguments
    start, size = numbers if len(numbers) == 2 else (1, numbers[0])
    if type(start) is not int or type(size) is not int or type(items) is not list:
        raise failure("sublist", "takes ([start,] len, list) with two integers and an array")
    if start < 1 or size < 0:
        raise failure("sublist", "start must be at least 1, len at least 0")
    return items[start - 1 : start - 1 + size]


@function(returns="boolean")
def contains(x: Any, items: Items) -> bool:
    """Whether an array holds the value, exactly: 1 is not 1.0."""
    spend(len(items), 120)
    return any(identical(x, item) for item in items)
