"""Message access and null handling."""

from __future__ import annotations

from typing import Any

import pytest

from rules.sql.values import UNDEFINED
from tests.support.calls import check, evaluate, fails, refused

EVENT: dict[str, Any] = {
    "topic": "t/a/b",
    "clientid": "c1",
    "username": "u1",
    "qos": 1,
    "id": "0005",
    "peerhost": "10.0.0.1",
    "flags": {"retain": True},
    "payload": '{"a":{"b":5},"n":null,"e":"","z":0,"f":false}',
}


@pytest.mark.parametrize(
    ("expression", "want"),
    [
        ("topic()", "t/a/b"),
        ("topic(1)", "t"),
        ("topic(3)", "b"),
        ("clientid()", "c1"),
        ("username()", "u1"),
        ("qos()", 1),
        ("msgid()", "0005"),
        ("peerhost()", "10.0.0.1"),
        ("clientip()", "10.0.0.1"),
        ("flags()", {"retain": True}),
        ("flag('retain')", True),
        ("flag('dup')", UNDEFINED),
        ("payload()", EVENT["payload"]),
        ("payload('a.b')", 5),
        ("payload('a.c')", UNDEFINED),
        ("payload('n')", None),
        ("null()", UNDEFINED),
        ("coalesce(payload.q, payload.n)", None),
        ("coalesce(payload.q, payload.e)", ""),
        ("coalesce(payload.q, payload.z, 5)", 0),
        ("coalesce(payload.q, payload.f)", False),
        ("coalesce(payload.q, payload.r)", UNDEFINED),
        ("coalesce([payload.q, 5])", 5),
        ("coalesce([payload.q])", UNDEFINED),
        ("coalesce(payload.q, payload.r, 7, 8)", 7),
        ("coalesce_ne(payload.e, 'x')", "x"),
        ("coalesce_ne([payload.q, payload.e, payload.z])", 0),
        ("coalesce_ne(payload.e, payload.q)", UNDEFINED),
        ("coalesce_ne(payload.e, payload.n)", None),
        ("is_null(payload.q)", True),
        ("is_null(payload.n)", False),
        ("is_not_null(payload.q)", False),
        ("is_not_null(payload.n)", True),
        ("is_null_var(payload.q)", True),
        ("is_null_var(payload.n)", True),
        ("is_null_var(payload.e)", False),
        ("is_not_null_var(payload.n)", False),
        ("is_not_null_var(payload.z)", True),
        ('contains_topic(json_decode(\'[{"topic":"t/a/b","qos":1}]\'), \'t/a/b\')', True),
        ('contains_topic(json_decode(\'[{"topic":"t/a/b","qos":1}]\'), \'t/a/b\', 1)', True),
        ('contains_topic(json_decode(\'[{"topic":"t/a/b","qos":1}]\'), \'t/a/b\', 0)', False),
        ('contains_topic(json_decode(\'[{"topic":"t/#","qos":1}]\'), \'t/a/b\')', False),
        ('contains_topic_match(json_decode(\'[{"topic":"t/#","qos":1}]\'), \'t/a/b\')', True),
        ('contains_topic_match(json_decode(\'[{"topic":"t/#","qos":1}]\'), \'t/a/b\', 2)', False),
        ('contains_topic_match(json_decode(\'[{"topic":"x/#","qos":1}]\'), \'t/a/b\')', False),
        ("contains_topic(json_decode('[]'), 't')", False),
        ("topic_match('a/b', 'a/+')", True),
        ("topic_match('a', 'a/#')", True),
        ("topic_match('$SYS/x', '#')", False),
        ("topic_match(payload.q, '#')", False),
        ("topic_split('/a//b')", ["", "a", "", "b"]),
        ("topic_join(topic_split('/a//b'))", "/a//b"),
        ("topic_join('a/', 'b')", "a/b"),
        ("topic_join('a', 'b')", "a/b"),
        ("topic_join('a', '')", "a/"),
        ("topic_join(['a', 1, true])", "a/1/true"),
        ("topic_join([])", ""),
    ],
)
def test_value(expression: str, want: Any) -> None:
    check(expression, want, **EVENT)


@pytest.mark.parametrize("name", ["clientid", "username", "qos", "msgid", "peerhost", "clientip"])
def test_a_column_the_event_lacks_is_undefined(name: str) -> None:
    check(f"{name}()", UNDEFINED)


def test_flags_of_an_event_without_flags_are_empty() -> None:
    check("flags()", {})
    check("flag('retain')", UNDEFINED)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("topic(4)", "no level 4 in a topic of 3 levels"),
        ("topic(qos - 1)", "argument 1 must be an integer of at least 1"),
        ("topic('1')", "argument 1 must be an integer of at least 1, not a string"),
        ("coalesce(qos)", "takes several values or one array"),
        ("coalesce()", "cannot take 0 arguments"),
        ("coalesce_ne(payload.q)", "takes several values or one array, not undefined"),
        ("is_null()", "cannot take 0 arguments"),
        ("is_null(1, 2)", "cannot take 2 arguments"),
        ("null(1)", "cannot take 1 argument"),
        ("contains_topic('t', 't')", "argument 1 must be an array"),
        ("topic_join('', 'a')", "the parent is empty"),
        ("topic_join('a')", "must be an array of levels"),
        ("topic_match(1, 'a')", "both strings"),
    ],
)
def test_failure(expression: str, message: str) -> None:
    fails(expression, message, **EVENT)


@pytest.mark.parametrize(
    "condition", ["qos() = 1", "flag('retain')", "topic(1) = 't'", "is_null(payload('q'))"]
)
def test_they_work_in_conditions_too(condition: str) -> None:
    assert evaluate(f"CASE WHEN {condition} THEN 'yes' ELSE 'no' END", **EVENT) == "yes"


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    (problem,) = refused("coalesc(1, 2)")
    assert (problem.message, problem.suggestion) == (
        "no function 'coalesc'",
        "did you mean 'coalesce'?",
    )


def test_a_name_in_another_case_is_suggested() -> None:
    (problem,) = refused("UPPER('a')")
    assert problem.suggestion == "did you mean 'upper'?"
