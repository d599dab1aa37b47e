"""The lines of ``DIR/api.hocon``: HOCON in which each line assigns JSON to keys, so that a change is a line more.

``streams.meters = {"name": "meters"}`` adds an object or replaces the value of the key, ``= null`` removes
it. What is saved together is on one line. HOCON would merge an object into an earlier one, therefore the line of a
change has both: ``x = null, x = {...}``. A last line without its end was cut off by a crash, and does not count.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from math import inf
from typing import Any, Final

KeyPath = tuple[str, ...]

HEADER: Final = "# Written by the management API: a line for each change.\n"
_PART: Final = r'(?:[\w-]+|"(?:[^"\\]|\\.)*")'
_KEY: Final = re.compile(rf"({_PART}(?:\.{_PART})*) = ", re.ASCII)
_PARTS: Final = re.compile(_PART, re.ASCII)
_BARE: Final = re.compile(r"[\w-]+", re.ASCII)
_decode: Final = json.JSONDecoder().raw_decode


def read_lines(text: str, file: str) -> tuple[dict[str, Any], dict[KeyPath, str]] | None:
    """The values and the place of each, by the path of its key; None where these are not such lines."""
    if HEADER not in text:
        return None
    values: dict[str, Any] = {}
    places: dict[KeyPath, str] = {}
    try:
        for number, line in enumerate(text.split("\n")[:-1], 1):
            changes = [] if line.startswith("#") else list(_assignments(line))
            for (path, value), (following, _) in pairwise([*changes, ((), None)]):
                if path != following:  # else it keeps its place
                    assign(values, path, value)
                    places[path] = f"{file} line {number}"
    except (ValueError, AttributeError):
        return None
    return values, places


def _assignments(line: str) -> Iterator[tuple[KeyPath, Any]]:
    at = 0
    while at < len(line):
        key = _KEY.match(line, at)
        if key is None:
            raise ValueError(line)
        value, at = _decode(line, key.end())
        yield (
            tuple(json.loads(part) if part[0] == '"' else part for part in _PARTS.findall(key[1])),
            value,
        )
        if at < len(line) and line[at : at + 2] != ", ":
            raise ValueError(line)
        at += 2


def assign(values: dict[str, Any], path: KeyPath, value: Any) -> None:
    """Put a value under a key, in its place where there is one; None removes it."""
    for key in path[:-1]:
        values = values.setdefault(key, {})
    if value is None:
        values.pop(path[-1], None)
    else:
        values[path[-1]] = value


def line_of(changes: Mapping[KeyPath, Any], present: Iterable[KeyPath] = ()) -> str:
    """The line of changes; ``present`` are the keys among them that have a value."""
    written = []
    for path, value in changes.items():
        key = ".".join(
            part if _BARE.fullmatch(part) else json.dumps(part, ensure_ascii=False) for part in path
        )
        nulled = f"{key} = null, " if value is not None and path in present else ""
        text = json.dumps(_written(value), ensure_ascii=False, allow_nan=False)
        written.append(f"{nulled}{key} = {text}")
    return ", ".join(written) + "\n"


def _written(value: Any) -> Any:
    """The value with infinite durations as settings write them."""
    if isinstance(value, dict):
        return {name: _written(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_written(item) for item in value]
    return "infinity" if isinstance(value, float) and value == inf else value
