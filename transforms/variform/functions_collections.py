"""Lists and maps: ``nth``, and the modules ``lists`` and ``maps``. Nothing given is changed; results are new."""

from __future__ import annotations

from typing import Any

from transforms.variform.errors import EvalError, badarg
from transforms.variform.registry import function
from transforms.variform.values import bounded, integer, mapping, number, sequence, text


@function("nth", 2)
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


@function("lists.nth", 2, keeps_empty=True)
def lists_nth(position: Any, items: Any) -> Any:
    """The item at a position, from 1; beyond the end is an error."""
    at, whole = integer("lists.nth", position), sequence("lists.nth", items)
    if not 1 <= at <= len(whole):
        raise badarg("lists.nth", "there is no such item")
    return whole[at - 1]


@function("lists.last", 1, keeps_empty=True)
def lists_last(items: Any) -> Any:
    """The last item; an empty list is an error."""
    whole = sequence("lists.last", items)
    if not whole:
        raise badarg("lists.last", "the list is empty")
    return whole[-1]


@function("lists.reverse", 1, keeps_empty=True)
def lists_reverse(items: Any) -> list[Any]:
    """The items in reverse order."""
    return sequence("lists.reverse", items)[::-1]


@function("lists.append", 1, 2, keeps_empty=True)
def lists_append(first: Any, *second: Any) -> list[Any]:
    """Two lists one after the other, or all lists of a list."""
    parts = [first, *second] if second else sequence("lists.append", first)
    bounded("lists.append", sum(len(sequence("lists.append", part)) for part in parts))
    return [item for part in parts for item in part]


@function("lists.member", 2, keeps_empty=True)
def lists_member(item: Any, items: Any) -> bool:
    """Whether an item is in the list; 1 and 1.0 and true are three things."""
    return any(_same(item, other) for other in sequence("lists.member", items))


@function("lists.sum", 1, keeps_empty=True)
def lists_sum(items: Any) -> int | float:
    """The sum of numbers; of none 0."""
    total = sum(number("lists.sum", item) for item in sequence("lists.sum", items))
    if total != total or total in (float("inf"), float("-inf")):
        raise badarg("lists.sum", "the sum is too large")
    return total


@function("lists.max", 1, keeps_empty=True)
def lists_max(items: Any) -> Any:
    """The greatest item: all numbers, or all texts."""
    return _extreme("lists.max", items, -1)


@function("lists.min", 1, keeps_empty=True)
def lists_min(items: Any) -> Any:
    """The least item: all numbers, or all texts."""
    return _extreme("lists.min", items, 0)


@function("lists.sort", 1, keeps_empty=True)
def lists_sort(items: Any) -> list[Any]:
    """The items in order: all numbers, or all texts."""
    return _sorted("lists.sort", items)


@function("lists.usort", 1, keeps_empty=True)
def lists_usort(items: Any) -> list[Any]:
    """The items in order, each once."""
    result: list[Any] = []
    for item in _sorted("lists.usort", items):
        if not result or result[-1] != item:
            result.append(item)
    return result


@function("lists.sublist", 2, 3, keeps_empty=True)
def lists_sublist(items: Any, *place: Any) -> list[Any]:
    """``(list, length)`` from the beginning, or ``(list, start from 1, length)``."""
    whole = sequence("lists.sublist", items)
    numbers = [integer("lists.sublist", value) for value in place]
    start, length = (1, numbers[0]) if len(numbers) == 1 else (numbers[0], numbers[1])
    if start < 1 or length < 0:
        raise badarg("lists.sublist", "start counts from 1, length from 0")
    return whole[start - 1 : start - 1 + length]


@function("lists.join", 2, keeps_empty=True)
def lists_join(separator: Any, items: Any) -> list[Any]:
    """The items with the separator between each two, as a list."""
    whole = sequence("lists.join", items)
    bounded("lists.join", 2 * len(whole))
    return [part for item in whole for part in (separator, item)][1:]


@function("maps.new", 0)
def maps_new() -> dict[str, Any]:
    """An empty map."""
    return {}


@function("maps.get", 2, 3, keeps_empty=True)
def maps_get(key: Any, source: Any, *default: Any) -> Any:
    """The value of a key; without it the default, or an error."""
    found = mapping("maps.get", source)
    name = text("maps.get", key)
    if name in found:
        return found[name]
    if default:
        return default[0]
    raise EvalError("badkey", f"maps.get: there is no key {name!r}", key=name)


@function("maps.put", 3, keeps_empty=True)
def maps_put(key: Any, value: Any, source: Any) -> dict[str, Any]:
    """A map with a key set."""
    return {**mapping("maps.put", source), text("maps.put", key): value}


@function("maps.remove", 2, keeps_empty=True)
def maps_remove(key: Any, source: Any) -> dict[str, Any]:
    """A map without a key."""
    name = text("maps.remove", key)
    return {k: v for k, v in mapping("maps.remove", source).items() if k != name}


@function("maps.merge", 2, keeps_empty=True)
def maps_merge(first: Any, second: Any) -> dict[str, Any]:
    """Both maps in one; where both have a key the second wins."""
    return {**mapping("maps.merge", first), **mapping("maps.merge", second)}


@function("maps.size", 1, keeps_empty=True)
def maps_size(source: Any) -> int:
    """How many keys a map has."""
    return len(mapping("maps.size", source))


@function("maps.is_key", 2, keeps_empty=True)
def maps_is_key(key: Any, source: Any) -> bool:
    """Whether a map has a key."""
    return text("maps.is_key", key) in mapping("maps.is_key", source)


@function("maps.keys", 1, keeps_empty=True)
def maps_keys(source: Any) -> list[str]:
    """The keys of a map, in order."""
    return sorted(mapping("maps.keys", source))


@function("maps.values", 1, keeps_empty=True)
def maps_values(source: Any) -> list[Any]:
    """The values of a map, in the order of its keys."""
    found = mapping("maps.values", source)
    return [found[key] for key in sorted(found)]


def _same(left: Any, right: Any) -> bool:
    return type(left) is type(right) and bool(left == right)


def _extreme(name: str, items: Any, which: int) -> Any:
    ordered = _sorted(name, items)
    if not ordered:
        raise badarg(name, "the list is empty")
    return ordered[which]


def _sorted(name: str, items: Any) -> list[Any]:
    whole = sequence(name, items)
    kinds = {"number" if type(item) in (int, float) else type(item) for item in whole}
    if len(kinds) > 1 or not kinds <= {"number", str}:
        raise badarg(name, "the items must be all numbers or all texts")
    return sorted(whole)
