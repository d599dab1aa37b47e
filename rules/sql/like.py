"""LIKE: ``%`` is any run of characters, ``_`` one character, and the escape sign makes the next one ordinary.

A pattern becomes string operations: pieces without ``%`` are searched from left to right, each as early as it comes,
which finds a match whenever there is one. No pattern can make it slow, as one regular expression with many ``.*`` would
be: the time is at most that of comparing every piece at every place.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from rules.sql.limits import MAX_PATTERN_CHARACTERS
from rules.sql.values import UNDEFINED, EvaluationError, type_name
from rules.sql.work import spend

# The escape sign where none is given.
ESCAPE: Final = "\\"
_MAX_KEPT: Final = 512

Test = Callable[[str], bool]


def like(value: Any, pattern: Any, escape: str = ESCAPE) -> bool:
    """``value LIKE pattern``; false where either is undefined or null.

    Raises:
        EvaluationError: one of them is neither, and no text.
    """
    return _matches(value, pattern, escape) is True


def unlike(value: Any, pattern: Any, escape: str = ESCAPE) -> bool:
    """``value NOT LIKE pattern``; also false where either is undefined or null. Raises as ``like``."""
    return _matches(value, pattern, escape) is False


def _matches(value: Any, pattern: Any, escape: str) -> bool | None:
    if value is UNDEFINED or value is None or pattern is UNDEFINED or pattern is None:
        return None
    if type(value) is not str or type(pattern) is not str:
        raise EvaluationError(
            f"LIKE needs two strings, not {type_name(value)} and {type_name(pattern)}"
        )
    return matcher(pattern, escape)(value)


@lru_cache(maxsize=_MAX_KEPT)
def matcher(pattern: str, escape: str = ESCAPE) -> Test:
    """The test that a pattern stands for.

    Raises:
        EvaluationError: the pattern ends with the escape sign, or is too long.
    """
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        raise EvaluationError(f"a pattern of LIKE has at most {MAX_PATTERN_CHARACTERS} characters")
    first, *others = _pieces(pattern, escape)
    if not others:
        return _whole(first)
    *inner, last = others
    return _open_test(first, [piece for piece in inner if piece], last)


def _pieces(pattern: str, escape: str) -> list[list[str | None]]:
    """The pattern cut at each ``%``: characters, None for any one character."""
    pieces: list[list[str | None]] = [[]]
    signs = iter(pattern)
    for sign in signs:
        if sign == escape:
            ordinary = next(signs, None)
            if ordinary is None:
                raise EvaluationError(
                    f"the pattern of LIKE ends with {escape}, which makes the next character ordinary"
                )
            pieces[-1].append(ordinary)
        elif sign == "%":
            pieces.append([])
        else:
            pieces[-1].append(None if sign == "_" else sign)
    return pieces


def _expression(piece: list[str | None]) -> re.Pattern[str]:
    """A regular expression without repetition."""
    return re.compile(
        "".join("." if sign is None else re.escape(sign) for sign in piece), re.DOTALL
    )


def _text(piece: list[str | None]) -> str | None:
    """A piece without ``_``, as text."""
    return None if None in piece else "".join(sign for sign in piece if sign is not None)


def _whole(piece: list[str | None]) -> Test:
    text = _text(piece)
    if text is not None:
        return text.__eq__
    full = _expression(piece).fullmatch
    return lambda value: full(value) is not None


def _open_test(
    first: list[str | None], inner: list[list[str | None]], last: list[str | None]
) -> Test:
    begin = _expression(first)
    finish = _expression(last)
    shortest = len(first) + len(last)
    searches = [_expression(piece) for piece in inner]
    steps = 1 + max((len(piece) for piece in inner if None in piece), default=0)
    """At each character at most: the value is gone through once, and a piece of mere text takes no longer for its
    length."""

    def test(value: str) -> bool:
        end = len(value) - len(last)
        if len(value) < shortest or begin.match(value) is None or finish.match(value, end) is None:
            return False
        spend(len(value) * steps, 5)
        at = len(first)
        for search in searches:
            match = search.search(value, at, end)
            if match is None:
                return False
            at = match.end()
        return True

    return test
