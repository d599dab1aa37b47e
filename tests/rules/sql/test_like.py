"""LIKE against regular expressions, and its bounds."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.sql.like import like, matcher
from rules.sql.values import UNDEFINED, EvaluationError
from tests.support.processor import takes_less_than


def as_expression(pattern: str, escape: str) -> str:
    parts, signs = [], iter(pattern)
    for sign in signs:
        if sign == escape:
            parts.append(re.escape(next(signs)))
        else:
            parts.append({"%": ".*", "_": "."}.get(sign) or re.escape(sign))
    return "".join(parts)


@given(st.text("ab%_!\\\n", max_size=8), st.text("ab%_!\\\n", max_size=10), st.sampled_from("!\\"))
def test_it_matches_what_the_regular_expression_does(pattern: str, text: str, escape: str) -> None:
    if (
        len(re.findall(re.escape(escape), pattern))
        and re.sub(re.escape(escape) + ".", "", pattern, flags=re.S)[-1:] == escape
    ):
        with pytest.raises(EvaluationError, match="ends with"):
            matcher(pattern, escape)
        return
    wanted = re.fullmatch(as_expression(pattern, escape), text, re.DOTALL) is not None
    assert matcher(pattern, escape)(text) is wanted


def test_no_pattern_is_slow() -> None:
    text, pattern = "a" * 100_000, "%" + "a%" * 200 + "b"
    with takes_less_than(1):
        assert not matcher(pattern)(text)
        assert not matcher("%" + "_a%" * 100 + "b%")(text)


def test_what_is_not_there_is_like_nothing_and_a_number_is_an_error() -> None:
    assert not like(UNDEFINED, "%")
    assert not like("a", None)
    with pytest.raises(
        EvaluationError, match="LIKE needs two strings, not an integer and a string"
    ):
        like(5, "%")
