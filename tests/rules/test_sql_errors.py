"""What is wrong with SQL is said with its place, in words, with a suggestion, and all at once."""

from __future__ import annotations

from typing import Any

import pytest

from broker.core.errors import Invalid, Problem


def problems_of(node: Any, sql: str) -> tuple[Problem, ...]:
    with pytest.raises(Invalid) as caught:
        node.service.create({"name": "r1", "sql": sql})
    return caught.value.problems


@pytest.mark.parametrize(
    ("sql", "line", "column", "message", "suggestion"),
    [
        ("", 1, 1, "the SQL is empty; a rule begins with SELECT or FOREACH", None),
        (
            "SELCT a FROM t",
            1,
            1,
            "a rule begins with SELECT or FOREACH, not 'SELCT'",
            "did you mean SELECT?",
        ),
        (
            "SELECT a,\n  FROM t",
            2,
            3,
            "expected a value, found the keyword FROM",
            "remove the comma before it",
        ),
        ("SELECT a\nFORM t", 2, 6, "expected FROM, found 't'", "did you mean FROM?"),
        (
            "SELECT 'abc FROM t",
            1,
            8,
            "the quote ' is never closed",
            "a quote inside the text is written twice",
        ),
        (
            "SELECT a FROM t WHERE a == 1",
            1,
            26,
            "expected a value, found '='",
            "write = to compare",
        ),
        (
            "SELECT a FROM t WHERE 1 < a < 2",
            1,
            29,
            "comparisons cannot be chained",
            "write a < b and b < c",
        ),
        ("SELECT a.1.100 FROM t", 1, 10, "'.1.100' is ambiguous in a path", "write .'1'.'100'"),
        ("SELECT a.from FROM t", 1, 10, "the keyword FROM cannot be a key", 'write ."from"'),
        (
            "SELECT case when a then 1 FROM t",
            1,
            27,
            "expected WHEN, ELSE or END, found 'FROM'",
            None,
        ),
        (
            "SELECT upper(a FROM t",
            1,
            16,
            "expected ',' or ')' in the arguments of upper, found 'FROM'",
            "close the bracket",
        ),
        ("SELECT a % 2 FROM t", 1, 10, "unexpected character '%'", "write mod"),
        (
            "SELECT 1.b FROM t",
            1,
            9,
            "'1.' is neither a number nor a path",
            "write digits on both sides of the point",
        ),
        ("SELECT a FROM t extra", 1, 17, "unexpected 'extra' after the end of the statement", None),
        ("SELECT uper(a) FROM t", 1, 8, "no function 'uper'", "did you mean 'upper'?"),
        (
            "SELECT upper(a, b) FROM t",
            1,
            8,
            "upper cannot take 2 arguments",
            "it is called upper(s)",
        ),
        (
            "SELECT regex_match(a, '(') FROM t",
            1,
            23,
            ("regex_match: argument 2 must be a regular expression; missing ): ("),
            "it is called regex_match(s, pattern)",
        ),
        (
            "SELECT now_timestamp('hour') FROM t",
            1,
            22,
            "now_timestamp: argument 1 must be one of 'second', 'millisecond', 'microsecond', 'nanosecond', not 'hour'",
            "it is called now_timestamp([unit])",
        ),
        ("SELECT a FROM t WHERE 'x'", 1, 23, "'x' is not a condition", "compare it with something"),
        (
            'SELECT a FROM "$events/client/conected"',
            1,
            15,
            "no event has the topic '$events/client/conected'",
            "did you mean '$events/client/connected'?",
        ),
        (
            'SELECT a FROM "t/#/x"',
            1,
            15,
            "topic filter 't/#/x': '#' must be the whole last level",
            None,
        ),
    ],
)
def test_one_problem(
    node: Any, sql: str, line: int, column: int, message: str, suggestion: str | None
) -> None:
    assert problems_of(node, sql) == (Problem(message, "/sql", line, column, suggestion),)


def test_all_problems_of_a_rule_come_at_once(node: Any) -> None:
    with pytest.raises(Invalid) as caught:
        node.service.create(
            {
                "name": "r1",
                "sql": 'SELECT uper(a) AS x, lwer(b) AS y FROM "t/#/z"',
                "actions": [{"type": "console"}, {"type": "stream", "stream": "hott"}],
            }
        )
    assert [(problem.pointer, problem.column) for problem in caught.value.problems] == [
        ("/sql", 40),
        ("/sql", 8),
        ("/sql", 22),
        ("/actions/1/stream", None),
    ]
    assert caught.value.problems[-1].suggestion == "did you mean 'hot'?"


@pytest.mark.parametrize(
    ("spec", "pointer"),
    [
        ({"name": "", "sql": "SELECT a FROM t"}, "/name"),
        ({"name": "a b", "sql": "SELECT a FROM t"}, "/name"),
        ({"name": "a"}, "/sql"),
        ({"name": "a", "sql": 5}, "/sql"),
        ({"name": "a", "sql": "SELECT a FROM t", "colour": 1}, "/colour"),
        ({"name": "a", "sql": "SELECT a FROM t", "actions": [{"type": "email"}]}, "/actions/0"),
        (
            {"name": "a", "sql": "SELECT a FROM t", "actions": [{"type": "republish"}]},
            "/actions/0/topic",
        ),
        (
            {
                "name": "a",
                "sql": "SELECT a FROM t",
                "actions": [{"type": "republish", "topic": "x", "qos": 3}],
            },
            "/actions/0/qos",
        ),
    ],
)
def test_a_field_that_cannot_be_is_named_by_its_pointer(
    node: Any, spec: dict[str, Any], pointer: str
) -> None:
    with pytest.raises(Invalid) as caught:
        node.service.create(spec)
    assert pointer in {problem.pointer for problem in caught.value.problems}, caught.value.problems


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT " + "(" * 5000 + "1" + ")" * 5000 + " FROM t",
        "SELECT " + "not " * 5000 + "a FROM t",
        "SELECT " + "1 + " * 5000 + "1 FROM t",
        "SELECT " + "-" * 1 + "- 1 FROM t",
        "SELECT a FROM t WHERE " + "upper(" * 200 + "a" + ")" * 200,
        "SELECT " + "[" * 3000 + " FROM t",
        "SELECT a" + "[a" * 3000 + " FROM t",
        "SELECT " + "case when a then " * 99 + "1" + " end" * 99 + " FROM t",
        "SELECT " + "9" * 5000 + " FROM t",
        "SELECT 1e999 FROM t",
        "x" * 200_000,
    ],
)
def test_hostile_sql_is_refused(node: Any, sql: str) -> None:
    assert problems_of(node, sql)


@pytest.mark.parametrize(
    "fields",
    [
        "pad(payload.s, 1000000000) AS a",
        "pad('a', 1000000, 'leading', payload.s) AS a",
        "replace(payload.s, 'a', payload.s) AS a",
        "regex_replace(payload.s, 'a', payload.s) AS a",
        ", ".join(["'aaaaaaaaaaaaaaaa' AS x", *["x + x AS x"] * 40]),
        ", ".join(["99999999999 AS x", *["x * x AS x"] * 40]),
        "bitsl(payload.n, 1000000000000) AS a",
        "[1..1000000000] AS a",
        "sprintf('~*s', payload.n * 99999999, 'a') AS a",
    ],
)
def test_no_expression_fills_the_memory(node: Any, fields: str) -> None:
    payload = '{"s":"' + "a" * 10_000 + '"}'
    try:
        answer = node.service.test(
            {"sql": f"SELECT {fields} FROM t", "event": {"topic": "t", "payload": payload}}
        )
    except Invalid:  # literals are looked at when the rule is saved
        return
    assert answer["outcome"] == "error"


def test_long_but_flat_conditions_compile(node: Any) -> None:
    chain = " or ".join(
        f"payload.a{number} = {number} and payload.b{number} = 1" for number in range(300)
    )
    node.rule(f"SELECT clientid FROM t WHERE {chain}", {"type": "stream", "stream": "hot"})
    node.send("t", b'{"a299":299,"b299":1}')
    assert node.count("passed") == 1


def test_a_failure_at_run_time_says_where(node: Any) -> None:
    answer = node.service.test(
        {
            "sql": "SELECT 1 AS a,\n  payload.x - 'y' AS b FROM t",
            "event": {"topic": "t", "payload": '{"x":1}'},
        }
    )
    assert answer == {
        "outcome": "error",
        "error": {
            "pointer": "/sql",
            "line": 2,
            "column": 3,
            "message": "'-' cannot take an integer and a string",
        },
    }
