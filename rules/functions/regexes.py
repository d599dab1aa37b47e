"""Regular expressions, by RE2: time is linear in the text whatever the pattern, so no rule can stall the broker.

What RE2 leaves out for that (look-around, back-references) is refused when a rule with such a literal is saved.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Annotated, Any

import re2

from rules.functions.registry import Kind, StrictText, Text, function
from rules.sql.values import check_size, type_name

_MAX_PATTERN_CHARACTERS = 10_000


def _options() -> Any:
    options = re2.Options()
    options.log_errors = False
    return options


@lru_cache(maxsize=512)
def _compiled(pattern: str) -> Any:
    return re2.compile(pattern, options=_options())


def _pattern(value: Any) -> Any:
    if type(value) is not str:
        raise ValueError(f"a regular expression, not {type_name(value)}")
    if len(value) > _MAX_PATTERN_CHARACTERS:
        raise ValueError(f"a regular expression of at most {_MAX_PATTERN_CHARACTERS} characters")
    try:
        return _compiled(value)
    except re2.error as error:
        why = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else str(error)
        raise ValueError(f"a regular expression without look-around and back-references: {why}") from None


Pattern = Annotated[Any, Kind("regular expression", "False", _pattern)]


@function(returns="boolean")
def regex_match(s: Text, pattern: Pattern) -> bool:
    """Whether the pattern matches anywhere in the text."""
    return pattern.search(s) is not None


@function(returns="string")
def regex_replace(s: Text, pattern: Pattern, by: StrictText) -> str:
    r"""The text with all matches replaced; ``&`` stands for the match, ``\N`` for a group, ``\&`` for a plain ``&``."""
    parts, written = _parts(by), 0

    def one(match: Any) -> str:
        nonlocal written
        text = "".join([part if isinstance(part, str) else _group(match, part) for part in parts])
        written += len(text)
        check_size(written)
        return text

    return str(pattern.sub(one, s))


@function(returns="array")
def regex_extract(s: Text, pattern: Pattern) -> list[str]:
    """The groups of the first match; groups that took no part are empty, those at the end are left out."""
    match = pattern.search(s)
    if match is None:
        return []
    groups = list(match.groups())
    while groups and groups[-1] is None:
        groups.pop()
    return [group or "" for group in groups]


_REFERENCE = re.compile(r"&|\\([&\\])|\\([0-9]{1,2})")


@lru_cache(maxsize=256)
def _parts(template: str) -> tuple[str | int, ...]:
    """A replacement as literal pieces and group numbers, 0 for the whole match."""
    parts: list[str | int] = []
    at = 0
    for found in _REFERENCE.finditer(template):
        parts.append(template[at : found.start()])
        at = found.end()
        parts.append(found[1] if found[1] else int(found[2] or 0))
    parts.append(template[at:])
    return tuple(part for part in parts if part != "")


def _group(match: Any, number: int) -> str:
    return (match.group(number) or "") if number <= match.re.groups else ""
