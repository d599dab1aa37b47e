"""Lists and maps: ``nth``, and the modules ``lists`` and ``maps``. Nothing given is changed; results are new."""

from __future__ import annotations

from typing import Any

from transforms.variform.errors import EvalError, badarg
from transforms.variform.registry import function
from transforms.variform.values import MISSING, bounded, integer, number, sequence


@function("nth")
def nth(position: Any, items: Any) -> Any:
    """The item at a position, from 1; beyond the end "". The position may be numeric text."""
    if position.__class__ is str:
        try:
            position = int(position) if position.isascii() and "_" not in position else None
        except ValueError:
            position = None
    at = integer("nth", position)
    if items == "":
        return ""
    whole = sequence("nth", items)
    if at < 1:
        raise badarg("nth", "positions count from 1")
    return whole[at - 1] if at <= len(whole) else ""


@function("lists.nth", keeps_empty=True)
def lists_nth(position: int, items: list[Any]) -> Any:
    """The item at a position, from 1; beyond the end is an error."""
    if not 1 <= position <= len(items):
        raise badarg("lists.nth", "there is no such item")
    return items[position - 1]


@function("lists.last", keeps_empty=True)
def lists_last(items: list[Any]) -> Any:
    """The last item; an empty list is an error."""
    return _filled("lists.last", items)[-1]


@function("lists.reverse", keeps_empty=True)
def lists_reverse(items: list[Any]) -> list[Any]:
    """The items in reverse order."""
    return items[::-1]


@function("lists.append", keeps_empty=True)
def lists_append(first: list[Any], second: Any = MISSING) -> list[Any]:
    """Two lists one after the other, or all lists of a list."""
    parts = first if second is MISSING else [first, second]
    bounded("lists.append", sum(len(sequence("lists.append", part)) for part in parts))
    return [item for part in parts for item in part]


@function("lists.member", keeps_empty=True)
def lists_member(item: Any, items: list[Any]) -> bool:
    """True if an item is in the list; 1 and 1.0 and true are three things."""
    return any(type(item) is type(other) and bool(item == other) for other in items)


@function("lists.sum", keeps_empty=True)
def lists_sum(items: list[Any]) -> int | float:
    """The sum of numbers; of none 0."""
    total = sum(number("lists.sum", item) for item in items)
    if total != total or total in (float("inf"), float("-inf")):
        raise badarg("lists.sum", "the sum is too large")
    return total


@function("lists.max", keeps_empty=True)
def lists_max(items: list[Any]) -> Any:
    """The greatest item: all numbers, or all texts."""
    return _filled("lists.max", _sorted("lists.max", items))[-1]


@function("lists.min", keeps_empty=True)
def lists_min(items: list[Any]) -> Any:
    """The least item: all numbers, or all texts."""
    return _filled("lists.min", _sorted("lists.min", items))[0]


@function("lists.sort", keeps_empty=True)
def lists_sort(items: list[Any]) -> list[Any]:
    """The items in order: all numbers, or all texts."""
    return _sorted("lists.sort", items)


@function("lists.usort", keeps_empty=True)
def lists_usort(items: list[Any]) -> list[Any]:
    """The items in order, each once."""
    result: list[Any] = []
    for item in _sorted("lists.usort", items):
        if not result or result[-1] != item:
            result.append(item)
    return result


@function("lists.sublist", keeps_empty=True)
def lists_sublist(items: list[Any], start: int, length: Any = MISSING) -> list[Any]:
    """``(list, length)`` from the beginning, or ``(list, start from 1, length)``."""
    first, count = (1, start) if length is MISSING else (start, integer("lists.sublist", length))
    if first < 1 or count < 0:
        raise badarg("lists.sublist", "start counts from 1, length from 0")
    return items[first - 1 : first - 1 + count]


@function("lists.join", keeps_empty=True)
def lists_join(separator: Any, items: list[Any]) -> list[Any]:
    """The items with the separator between each two, as a list."""
    bounded("lists.join", 2 * len(items))
    return [part for item in items for part in (separator, item)][1:]


@function("maps.new")
def maps_new() -> dict[str, Any]:
    """An empty map."""
    return {}


@function("maps.get", keeps_empty=True)
def maps_get(key: str, source: dict[str, Any], default: Any = MISSING) -> Any:
    """The value of a key; without it the default, or an error."""
    if key not in source and default is MISSING:
        raise EvalError("badkey", f"maps.get: there is no key {key!r}", key=key)
    return source.get(key, default)


@function("maps.put", keeps_empty=True)
def maps_put(key: str, value: Any, source: dict[str, Any]) -> dict[str, Any]:
    """A map with a key set."""
    return {**source, key: value}


@function("maps.remove", keeps_empty=True)
def maps_remove(key: str, source: dict[str, Any]) -> dict[str, Any]:
    """A map without a key."""
    return {name: value for name, value in source.items() if name != key}


@function("maps.merge", keeps_empty=True)
def maps_merge(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Both maps in one; where both have a key the second wins."""
    return {**first, **second}


@function("maps.size", keeps_empty=True)
def maps_size(source: dict[str, Any]) -> int:
    """The number of keys of a map."""
    return len(source)


@function("maps.is_key", keeps_empty=True)
def maps_is_key(key: str, source: dict[str, Any]) -> bool:
    """True if a map has a key."""
    return key in source


@function("maps.keys", keeps_empty=True)
def maps_keys(source: dict[str, Any]) -> list[str]:
    """The keys of a map, in order."""
    return sorted(source)


@function("maps.values", keeps_empty=True)
def maps_values(source: dict[str, Any]) -> list[Any]:
    """The values of a map, in the order of its keys."""
    return [source[key] for key in sorted(source)]


def _filled(name: str, items: list[Any]) -> list[Any]:
    if not items:
        raise badarg(name, "the list is empty")
    return items


def _sorted(name: str, items: list[Any]) -> list[Any]:
    kinds = {"number" if type(item) in (int, float) else type(item) for item in items}
    if len(kinds) > 1 or not kinds <= {"number", str}:
        raise badarg(name, "the items must be all numbers or all texts")
    return sorted(items)
