"""Maps and arrays."""

from __future__ import annotations

from typing import Any

import pytest

from rules.sql.values import UNDEFINED
from tests.support.calls import check, evaluate, fails, refused

COLUMNS: dict[str, Any] = {
    "payload": (
        '{"m":{"b":{"c":1},"a":null,"x.y":2},"l":[1,2,3],"el":[],"s":"x","n":null,'
        '"r":{"i":1,"f":1.5,"s":"t","t":true,"n":null,"l":[1],"m":{}}}'
    ),
    "js": '{"a":{"b":1},"x.y":2}',
}


@pytest.mark.parametrize(
    ("expression", "want"),
    [
        ("map_new()", {}),
        ("map_get('b.c', payload.m)", 1),
        ("map_get('b.d', payload.m)", UNDEFINED),
        ("map_get('b.d', payload.m, 5)", 5),
        ("map_get('a', payload.m, 5)", None),
        ("map_get('a.b', js)", 1),
        ("map_get('a', payload.s)", UNDEFINED),
        ("map_get('a', payload.s, 5)", 5),
        ("map_get('a', payload.q, 5)", 5),
        ("map_get('x.y', payload.m, 5)", 5),
        ("map_put('a.b', 1, map_new())", {"a": {"b": 1}}),
        ("map_put('b.d', 2, payload.m)", {"b": {"c": 1, "d": 2}, "a": None, "x.y": 2}),
        ("map_put('a', 1, payload.q)", {"a": 1}),
        ("map_put('a', 1, payload.l)", {"a": 1}),
        ("map_put('z', 1, js)", {"a": {"b": 1}, "x.y": 2, "z": 1}),
        ("map_put('a.c', 1, js)", {"a": {"b": 1, "c": 1}, "x.y": 2}),
        ("map_put('z.c', 1, mput('z', js, map_new()))", {"z": {"a": {"b": 1}, "x.y": 2, "c": 1}}),
        ("map_put('m', 1, payload.s)", {"m": 1}),
        ("mget('x.y', payload.m)", 2),
        ("mget('x.y', js)", 2),
        ("mget('q', payload.m)", UNDEFINED),
        ("mget('q', payload.m, 5)", 5),
        ("mget('a', payload.m, 5)", None),
        ("mget(['b', 'c'], payload.m)", 1),
        ("mget(['b', 'q'], payload.m, 5)", 5),
        ("mget(['a', 'b'], js)", 1),
        ("mput('x.z', 1, map_new())", {"x.z": 1}),
        ("mput('z', 1, js)", {"a": {"b": 1}, "x.y": 2, "z": 1}),
        ("mput(['a', 'b'], 5, js)", {"a": {"b": 5}, "x.y": 2}),
        ("map_keys(payload.m)", ["a", "b", "x.y"]),
        ("map_keys(js)", ["a", "x.y"]),
        ("map_values(payload.m)", [None, {"c": 1}, 2]),
        ("map_to_entries(js)", [{"key": "a", "value": {"b": 1}}, {"key": "x.y", "value": 2}]),
        ("map_size(payload.m)", 3),
        ("map_size('{}')", 0),
        ("map_to_redis_hset_args(payload.r)", ["f", "1.5", "i", "1", "s", "t", "t", "true"]),
        ("map_to_redis_hset_args('{\"a\":1.23456789}')", ["a", "1.23456789"]),
        ("map_to_redis_hset_args(5)", []),
        ("map_to_redis_hset_args('x')", []),
        ("nth(1, payload.l)", 1),
        ("nth(3, payload.l)", 3),
        ("length(payload.l)", 3),
        ("length(payload.el)", 0),
        ("first(payload.l)", 1),
        ("last(payload.l)", 3),
        ("sublist(2, payload.l)", [1, 2]),
        ("sublist(0, payload.l)", []),
        ("sublist(9, payload.l)", [1, 2, 3]),
        ("sublist(2, 1, payload.l)", [2]),
        ("sublist(2, 9, payload.l)", [2, 3]),
        ("sublist(9, 1, payload.l)", []),
        ("contains(2, payload.l)", True),
        ("contains(2.0, payload.l)", False),
        ("contains('2', payload.l)", False),
        ("contains(payload.q, [payload.q])", True),
        ("contains(payload.n, [payload.q])", False),
        ("contains(payload.m, [payload.m])", True),
        ("contains(1, payload.el)", False),
    ],
)
def test_value(expression: str, want: Any) -> None:
    check(expression, want, **COLUMNS)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("map_get(1, payload.m)", "must be a string"),
        ("map_put(1, 1, payload.m)", "must be a string"),
        ("mget('a', payload.s)", "a map or the JSON text of one, not a string"),
        ("mget('a', payload.q)", "not undefined"),
        ("mget('a', payload.l)", "not an array"),
        ("mget(1, payload.m)", "a key or a list of keys, not an integer"),
        ("mget(payload.el, payload.m)", "a key or a list of keys"),
        ("mget([1], payload.m)", "a key or a list of keys"),
        ("mput('a', 1, payload.s)", "a map or the JSON text of one"),
        ("map_keys('[1]')", "a map or the JSON text of one"),
        ("map_values(payload.l)", "a map or the JSON text of one"),
        ("map_to_entries(5)", "a map or the JSON text of one"),
        ("map_size(payload.q)", "a map or the JSON text of one"),
        ("nth(4, payload.l)", "no element 4 in an array of 3"),
        ("nth(qos - 1, payload.l)", "no element -1 in an array of 3"),
        ("nth(qos, payload.l)", "no element 0 in an array of 3"),
        ("nth('1', payload.l)", "must be an integer"),
        ("nth(1.0, payload.l)", "must be an integer, not a float"),
        ("nth(1, payload.s)", "must be an array"),
        ("length('abc')", "must be an array"),
        ("length(payload.m)", "must be an array"),
        ("first(payload.el)", "the array is empty"),
        ("last(payload.el)", "the array is empty"),
        ("sublist(qos, 1, payload.l)", "start must be at least 1"),
        ("sublist(1, qos - 1, payload.l)", "len at least 0"),
        ("sublist('1', payload.l)", "must be an integer of at least 0"),
        ("sublist(payload.s, payload.l)", "takes ([start,] len, list)"),
        ("sublist(1, payload.s)", "takes ([start,] len, list)"),
        ("contains(1, payload.s)", "must be an array"),
    ],
)
def test_failure(expression: str, message: str) -> None:
    fails(expression, message, qos=0, **COLUMNS)


@pytest.mark.parametrize(
    ("expression", "column", "message"),
    [
        (
            "nth(0, payload.l)",
            12,
            "nth: elements count from 1; a[-1] is the last one of an array a",
        ),
        (
            "nth(-1, payload.l)",
            12,
            "nth: elements count from 1; a[-1] is the last one of an array a",
        ),
        ("sublist(-1, payload.l)", 16, "sublist: argument 1 must be an integer of at least 0"),
        ("sublist(0, 1, payload.l)", 16, "sublist: argument 1 must be an integer of at least 1"),
        ("sublist(1, -1, payload.l)", 19, "sublist: argument 2 must be an integer of at least 0"),
    ],
)
def test_a_literal_that_can_never_work_is_refused_when_saved(
    expression: str, column: int, message: str
) -> None:
    (problem,) = refused(expression)
    assert (problem.column, problem.message) == (column, message)


def test_a_map_that_is_written_to_stays_as_it_was_for_others() -> None:
    payload = {"m": {"a": 1}}
    assert evaluate("map_put('m.a', 2, payload)", payload=payload) == {"m": {"a": 2}}
    assert payload == {"m": {"a": 1}}
