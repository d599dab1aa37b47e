"""Properties of arithmetic, comparison, text and paths that hold for all values."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from broker.core import jsontext
from rules.sql import paths, values
from rules.sql.values import UNDEFINED, EvaluationError

INTEGERS = st.integers(-(10**30), 10**30)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
NUMBERS = INTEGERS | FLOATS
SCALARS = NUMBERS | st.booleans() | st.none() | st.text() | st.just(UNDEFINED)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
)


@given(NUMBERS, NUMBERS)
def test_arithmetic_gives_finite_numbers_or_fails(left: Any, right: Any) -> None:
    for operation in (values.add, values.subtract, values.multiply, values.divide):
        try:
            result = operation(left, right)
        except EvaluationError:
            continue
        assert type(result) is (
            int if type(left) is type(right) is int and operation != values.divide else float
        )
        assert math.isfinite(result) if type(result) is float else True


@given(INTEGERS, INTEGERS.filter(bool))
def test_div_and_mod_make_up_the_number(left: int, right: int) -> None:
    remainder = values.modulo(left, right)
    assert values.integer_divide(left, right) * right + remainder == left
    assert abs(remainder) < abs(right)
    assert remainder == 0 or (remainder < 0) == (left < 0)


@given(JSON, JSON)
def test_comparisons_agree_with_each_other(left: Any, right: Any) -> None:
    try:
        is_equal, is_less = values.equal(left, right), values.less(left, right)
        is_greater = values.greater(left, right)
    except EvaluationError:
        return
    if (left is UNDEFINED) != (right is UNDEFINED):
        assert [is_equal, is_less, is_greater, values.not_equal(left, right)] == [False] * 4
        return
    assert is_equal + is_less + is_greater <= 1
    assert values.not_equal(left, right) is not is_equal
    assert values.greater(right, left) is is_less


@given(JSON)
def test_every_value_equals_itself(value: Any) -> None:
    assert values.identical(value, value)
    assert values.equal_by_value(value, value)
    assert values.equal(value, value)


@given(FLOATS)
def test_the_text_of_a_float_is_exact_and_as_in_json(value: float) -> None:
    text = values.text_of(value)
    assert text == jsontext.encode(value).decode()
    assert repr(float(text)) == repr(value)


@given(st.lists(st.integers(), max_size=6), st.integers(-8, 8))
def test_indexes_count_from_one_and_from_the_end(items: list[int], position: int) -> None:
    found = paths.index(items, position)
    if position == 0 or abs(position) > len(items):
        assert found is UNDEFINED
    else:
        assert found == items[position - 1 if position > 0 else position]


@given(st.lists(st.integers(), max_size=6), st.integers(-8, 8), st.integers())
def test_what_is_put_can_be_read_and_the_target_stays(
    items: list[int], position: int, value: int
) -> None:
    before = list(items)
    after = paths.put(items, (position,), value)
    assert items == before
    if position != 0 and abs(position) <= len(items):
        assert paths.index(after, position) == value
    elif position == 0:
        assert after == [value, *items]
    else:
        assert after == items


@given(st.binary())
def test_strings_are_text_where_they_can_be(data: bytes) -> None:
    value = values.string(data)
    assert (value.encode() if isinstance(value, str) else value) == data


@given(st.text(), st.binary())
def test_joining_joins_bytes(text: str, data: bytes) -> None:
    result = values.joined(text, values.string(data))
    assert (result.encode() if isinstance(result, str) else result) == text.encode() + data
