"""Maps."""

from __future__ import annotations

from typing import Any

from rules.functions.registry import (
    NOT_LITERAL,
    Int,
    Items,
    Literals,
    Members,
    StrictText,
    failure,
    function,
)
from rules.sql import paths
from rules.sql.values import STRINGS, UNDEFINED, identical, text_of, type_name
from rules.sql.work import spend


@function(returns="map")
def map_new() -> dict[str, Any]:
    """An empty map."""
    return {}


@function()
def map_get(path: StrictText, source: Any, default: Any = UNDEFINED) -> Any:
    """The value at a dotted path of a map or JSON text, or the default."""
    value = paths.dotted(source, path)
    return default if value is UNDEFINED else value


@function(returns="map")
def map_put(path: StrictText, value: Any, target: Any) -> Any:
    """The map, or the JSON text of one, with a value at a dotted path; parents are made."""
    return paths.put(target, paths.steps(path), value)


@function()
def mget(key: Any, source: Members, default: Any = UNDEFINED) -> Any:
    """The value of a key, dots included; a list of keys goes into nested maps."""
    value: Any = source
    for name in _keys(key, "mget"):
        value = value.get(name, UNDEFINED) if type(value) is dict else UNDEFINED
    return default if value is UNDEFINED else value


@function(returns="map")
def mput(key: Any, value: Any, target: Members) -> Any:
    """The map with a key set, dots included; a list of keys goes into nested maps."""
    return paths.put(target, _keys(key, "mput"), value)


def _keys(key: Any, name: str) -> list[str]:
    keys = key if type(key) is list else [key]
    spend(len(keys), 50)
    if not keys or not all(type(item) is str for item in keys):
        raise failure(name, f"argument 1 must be a key or a list of keys, not {type_name(key)}")
    paths.check_steps(len(keys))
    return keys


@function(returns="array")
def map_keys(source: Members) -> list[str]:
    """The keys of a map, sorted."""
    spend(len(source), 300)
    return sorted(source)


@function(returns="array")
def map_values(source: Members) -> list[Any]:
    """The values of a map, in the order of its sorted keys."""
    spend(len(source), 400)
    return [source[key] for key in sorted(source)]


@function(returns="array")
def map_to_entries(source: Members) -> list[dict[str, Any]]:
    """``{"key", "value"}`` for each member of a map, sorted by key."""
    spend(len(source), 700)
    return [{"key": key, "value": source[key]} for key in sorted(source)]


@function(returns="long")
def map_size(source: Members) -> int:
    """The number of members of a map."""
    return len(source)


@function(returns="array")
def map_to_redis_hset_args(source: Any) -> list[Any]:
    """Names and values of a map one after another, values as strings; maps, arrays and null are left out."""
    members = paths.decoded(source) if type(source) is str else source
    if type(members) is not dict:
        return []
    spend(len(members), 700)
    return [text for key in sorted(members) for text in _entry(key, members[key])]


def _entry(key: str, value: Any) -> list[Any]:
    return [key, text_of(value)] if type(value) in STRINGS or isinstance(value, int | float) else []


# Arrays.


def _from_one(values: Literals) -> tuple[int, str] | None:
    if values[0] is NOT_LITERAL or values[0] >= 1:
        return None
    return (0, "elements count from 1; a[-1] is the last one of an array a")


@function(check=_from_one)
def nth(n: Int, items: Items) -> Any:
    """The n-th element, counted from 1; fails beyond the end."""
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
    """A number of elements, from the first or from ``start``, counted from 1; fewer where the array ends."""
    *numbers, items = arguments
    start, size = numbers if len(numbers) == 2 else (1, numbers[0])
    if type(start) is not int or type(size) is not int or type(items) is not list:
        raise failure("sublist", "takes ([start,] len, list) with two integers and an array")
    if start < 1 or size < 0:
        raise failure("sublist", "start must be at least 1, len at least 0")
    return items[start - 1 : start - 1 + size]


@function(returns="boolean")
def contains(x: Any, items: Items) -> bool:
    """True if an array holds the value, exactly: 1 is not 1.0."""
    spend(len(items), 120)
    return any(identical(x, item) for item in items)
