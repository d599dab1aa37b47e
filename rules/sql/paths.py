"""Reading and writing inside values: keys, indexes that count from 1, ranges.

Values come from payloads that other rules see too, so writing copies what it changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from broker.core import jsontext
from rules.sql.limits import MAX_ITEMS, MAX_STEPS
from rules.sql.values import UNDEFINED, EvaluationError, type_name
from rules.sql.work import spend, spend_any


class End:
    """The index ``-0`` of a target: append."""


END: Final = End()

# A key (``str``), an index (``int``), ``END``; any other value, from an index that is a path, changes nothing.
Step = Any


class Index:
    """An index step whose value is known only when the row is."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def from_json(text: str | bytes) -> Any:
    """The value of a JSON text. Work on a short one is counted, too: what it holds can take ten times as long as its
    characters, and much memory.

    Raises:
        JsonError: it is none.
    """
    spend_any(len(text), jsontext.decode_ns(text))
    return jsontext.decode(text)


def decoded(value: Any) -> Any:
    """JSON text as its value; anything else, and text that is not JSON, as undefined."""
    if type(value) is not str:
        return UNDEFINED
    try:
        return from_json(value)
    except jsontext.JsonError:
        return UNDEFINED


def writable(value: Any) -> Any:
    """Target of a write: a string under the name payload is its JSON.

    Raises:
        JsonError: it is none.
    """
    if type(value) is not str and type(value) is not bytes:
        return value
    return from_json(value)


def key(value: Any, name: str) -> Any:
    """``value.name``; undefined where the step does not apply. Text is decoded as JSON first."""
    if type(value) is str:
        value = decoded(value)
    return value.get(name, UNDEFINED) if type(value) is dict else UNDEFINED


def index(value: Any, position: Any) -> Any:
    """``value[position]``: from 1, negative from the end; undefined for 0, beyond the ends and for other types."""
    if type(value) is str:
        value = decoded(value)
    if type(value) is not list or type(position) is not int or position == 0:
        return UNDEFINED
    at = position - 1 if position > 0 else position
    return value[at] if -len(value) <= at < len(value) else UNDEFINED


def dotted(value: Any, path: str) -> Any:
    """``value.a.b`` for the text ``a.b``."""
    for name in steps(path):
        value = key(value, name)
    return value


def steps(path: str) -> list[str]:
    """The keys of a path that is a value."""
    keys = path.split(".")
    check_steps(len(keys))
    return keys


def check_steps(count: int) -> None:
    """Refuse a path that leads deeper than JSON goes."""
    if count > MAX_STEPS:
        raise EvaluationError(f"the path has {count} keys; at most {MAX_STEPS} are possible")


def part(value: Any, first: int, last: int) -> list[Any]:
    """``value[first..last]``, both ends inclusive, cut at the end of the array."""
    if type(value) is str:
        value = decoded(value)
    if type(value) is not list:
        raise EvaluationError(f"a range can be taken of an array only, not of {type_name(value)}")
    start = _end(first, value)
    end = _end(last, value)
    if end < start - 1:
        raise EvaluationError(f"the range [{first}..{last}] ends before it begins")
    return value[start - 1 : end]


def _end(position: int, items: list[Any]) -> int:
    at = position if position > 0 else len(items) + 1 + position
    if position == 0 or at < 1:
        raise EvaluationError(
            f"the end {position} of a range lies before the first element; elements count from 1"
        )
    return at


def walked(value: Any) -> Any:
    """The array that FOREACH walks: text that is the JSON of an array as that array; anything else as it is."""
    items = decoded(value)
    return items if type(items) is list else value


def integers(first: int, last: int) -> list[int]:
    """The literal ``[first..last]``."""
    if last < first - 1:
        raise EvaluationError(f"the range [{first}..{last}] ends before it begins")
    if last - first >= MAX_ITEMS:
        raise EvaluationError(f"the range [{first}..{last}] has more than {MAX_ITEMS} elements")
    spend(last - first, 40)
    return list(range(first, last + 1))


def put(target: Any, steps: Sequence[Step], value: Any) -> Any:
    """The target with ``value`` at the path; missing parents are made, the target itself is not changed.

    Text on the way is decoded as JSON, as it is where a path is read, so its other members stay.
    """
    if not steps:
        return value
    step = steps[0]
    rest = steps[1:]
    if type(step) is str:
        if type(target) is str:
            target = decoded(target)
        members = dict(target) if type(target) is dict else {}
        spend(len(members), 50)
        members[step] = put(members.get(step, UNDEFINED), rest, value)
        return members
    return _put_item(target, step, rest, value)


def _put_item(target: Any, step: Step, rest: Sequence[Step], value: Any) -> Any:
    position = step.value if isinstance(step, Index) else step
    if position is not END and type(position) is not int:
        return target
    return _put_at(target, position, rest, value)


def _put_at(target: Any, position: Any, rest: Sequence[Step], value: Any) -> Any:
    if type(target) is str:
        target = decoded(target)
    if type(target) is not list:
        return [put(UNDEFINED, rest, value)]
    spend(len(target), 10)
    if position is END:
        return [*target, put(UNDEFINED, rest, value)]
    if position == 0:
        return [put(UNDEFINED, rest, value), *target]
    at = position - 1 if position > 0 else len(target) + position
    if not 0 <= at < len(target):
        return target
    items = list(target)
    items[at] = put(items[at], rest, value)
    return items
