"""Regular expressions on characters, bounded: a linear engine, and for look-around one with a deadline.

Python's ``re`` backtracks without end on patterns such as ``(a+)+$``. RE2 takes time in proportion to the text; it has
no look-around and no back references, for those the ``regex`` package runs with a time-out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from math import prod
from typing import Any, Protocol

import re2
import regex

from transforms.variform.errors import EvalError, badarg
from transforms.variform.registry import function
from transforms.variform.values import bounded

# Time a pattern with look-around may run on one text; then it does not match.
BACKTRACKING_TIMEOUT_S = 0.05

# Longest pattern: it may come from a message, and compiling takes time in proportion to it.
MAX_PATTERN_BYTES = 8 * 1024

# Maximum sum of all ``{n}`` of a pattern: the linear engine compiles in the square of it, 80 ms here.
MAX_COUNTED = 5_000

# Maximum product of nested ``{n}`` of a pattern with look-around: the backtracking engine takes
# memory for each.
MAX_REPEATS = 100_000

# Maximum characters of a string times instructions of a pattern: at worst, where its automaton does not fit into
# memory, the linear engine takes some 20 ns for each.
MAX_STEPS = 20_000_000

# Maximum matches that are replaced in one text: each costs the linear engine some 7 µs.
MAX_REPLACEMENTS = 10_000

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.never_nl = False
_OPTIONS.max_mem = 4 * 1024 * 1024
_COUNTED = re.compile(r"\{([0-9]*)(?:,([0-9]*))?\}")
_REPLACEMENT = re.compile(r"\\(.)|&", re.DOTALL)


class _Match(Protocol):
    def groups(self, default: str | None = ...) -> tuple[str | None, ...]: ...
    def span(self) -> tuple[int, int]: ...
    def group(self, number: int) -> str | None: ...


Find = Callable[[str], Iterator[_Match]]


@lru_cache(maxsize=512)
def _compiled(pattern: str) -> Find:
    """Something that finds the matches of a pattern in a string, in order."""
    if len(pattern.encode("utf-8", "surrogatepass")) > MAX_PATTERN_BYTES:
        raise EvalError("badarg", f"a regular expression has at most {MAX_PATTERN_BYTES} bytes")
    counts = [_count(*bounds) for bounds in _COUNTED.findall(pattern)]
    if sum(counts) > MAX_COUNTED:
        raise _repeats_too_much(pattern)
    try:
        linear = re2.compile(pattern, _OPTIONS)
    except re2.error as error:
        if "too large" in str(error) or prod(counts) > MAX_REPEATS:
            raise _repeats_too_much(pattern) from None
        return _backtracking(pattern, error)
    return _bounded(linear)


def _count(least: str, most: str) -> int:
    """The most that ``{least,most}`` asks for."""
    return max(int((digits or "1")[:6]) for digits in (least, most))


def _repeats_too_much(pattern: str) -> EvalError:
    return EvalError("badarg", "bad regular expression: it repeats too much", pattern=pattern[:100])


def _bounded(linear: Any) -> Find:
    longest = MAX_STEPS // max(1, linear.programsize)

    def find(subject: str) -> Iterator[_Match]:
        if len(subject) > longest:
            raise EvalError(
                "badarg",
                f"the text has more than {longest} characters, too many for this expression",
            )
        matches: Iterator[_Match] = linear.finditer(subject)
        return matches

    return find


def _backtracking(pattern: str, why: Exception) -> Find:
    try:
        bounded_pattern = regex.compile(pattern, regex.ASCII)
    except (regex.error, RecursionError, OverflowError, ValueError):
        reason = why.args[0] if why.args else why
        shown = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise EvalError("badarg", f"bad regular expression: {shown}", pattern=pattern) from None

    def find(subject: str) -> Iterator[_Match]:
        try:
            yield from bounded_pattern.finditer(subject, timeout=BACKTRACKING_TIMEOUT_S)
        except TimeoutError:
            return

    return find


@function("regex_match")
def regex_match(value: str, pattern: str) -> bool:
    """True if the regular expression matches anywhere in the text."""
    return next(iter(_compiled(pattern)(value)), None) is not None


@function("regex_replace")
def regex_replace(value: str, pattern: str, replacement: str) -> str:
    r"""The text with all matches replaced; ``&`` stands for the match, ``\1`` to ``\9`` for its groups."""
    pieces: list[str] = []
    at = size = 0
    for count, match in enumerate(_compiled(pattern)(value)):
        if count >= MAX_REPLACEMENTS:
            raise badarg("regex_replace", f"there are more than {MAX_REPLACEMENTS} matches")
        start, end = match.span()
        put = _filled(replacement, match)
        size += start - at + len(put)
        bounded("regex_replace", size)
        pieces += (value[at:start], put)
        at = end
    pieces.append(value[at:])
    return "".join(pieces)


def _filled(template: str, match: _Match) -> str:
    def put(place: re.Match[str]) -> str:
        escaped = place[1]
        if escaped is None:
            return match.group(0) or ""
        if escaped in "123456789":
            number = int(escaped)
            return (match.group(number) or "") if number <= len(match.groups()) else ""
        return escaped

    return _REPLACEMENT.sub(put, template)


@function("regex_extract")
def regex_extract(value: str, pattern: str) -> list[str]:
    """The groups of the first match as a list, unmatched inner ones as ""; [] without match or groups."""
    match = next(iter(_compiled(pattern)(value)), None)
    if match is None:
        return []
    groups = list(match.groups())
    while groups and groups[-1] is None:
        groups.pop()
    return [group or "" for group in groups]
