"""Whatever is sent, the answer is a sentence or a row, soon."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.core.errors import Invalid
from rules.rule import compile_statement
from rules.sql.compiler.columns import Event
from rules.sql.limits import MAX_WORK_NS
from rules.sql.syntax.lexer import MAX_SQL_CHARACTERS, MAX_TOKENS
from rules.sql.syntax.parser import MAX_CHAIN, MAX_CONDITIONS, MAX_DEPTH, parse
from rules.sql.type_checker.inference import infer
from rules.sql.work import WORK, Calls
from tests.rules.sql.evaluation import CONTEXT, FAILED, FUNCTIONS, holds, result, row, value
from tests.rules.sql.statements import text_of_statement
from tests.support.processor import is_within

DEADLINE_S = 5.0
"""Far more than anything here takes; a bound that grows with the square of the input is found by it."""


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    start = time.process_time()
    yield
    assert is_within(time.process_time() - start, DEADLINE_S)


DEEP = 10_000


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT {'(' * DEEP}1{')' * DEEP} FROM t",
        f"SELECT {'[' * DEEP}{']' * DEEP} FROM t",
        f"SELECT {'{a:' * DEEP}1{'}' * DEEP} FROM t",
        f"SELECT {'not ' * DEEP}a FROM t",
        f"SELECT {'- ' * DEEP}1 FROM t",
        f"SELECT {'f(' * DEEP}1{')' * DEEP} FROM t",
        f"SELECT {'case when a then ' * 3000}1{' end' * 3000} FROM t",
        f"SELECT a{'[a' * DEEP}{']' * DEEP} FROM t",
        f"SELECT a{'.b' * DEEP} FROM t",
        f"SELECT f(a){'[1]' * DEEP} FROM t",
        f"SELECT 1{' + 1' * DEEP} FROM t",
        f"SELECT a FROM t WHERE a{' or a' * DEEP}",
        f"SELECT a FROM t WHERE a{' and a' * DEEP}",
        f"SELECT * JQ {'(' * DEEP} FROM t",
        f"SELECT * JQ {'if ' * DEEP} FROM t",
        f"SELECT * JQ {chr(34)}{'a' * 50_000} FROM t",
        f"SELECT {'9' * 5000} FROM t",
        f"SELECT 1e{'9' * 5000} FROM t",
        "SELECT 1e999 FROM t",
        f"SELECT a FROM t WHERE a = {'x' * (MAX_SQL_CHARACTERS + 1)}",
        "SELECT '\ud800' FROM t",
        f"SELECT {chr(34) * 49_999} FROM t",
        f"SELECT {'/*' * 40_000} FROM t",
        f"SELECT {'a,' * 40_000} FROM t",
        "\0",
    ],
    ids=lambda sql: f"{sql[:24]!r}",
)
def test_hostile_sql_is_refused_with_a_place(sql: str) -> None:
    with pytest.raises(Invalid) as caught:
        compile_statement(sql, FUNCTIONS, CONTEXT)
    assert all(
        problem.line and problem.column and len(problem.message) < 500
        for problem in caught.value.problems
    )


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT {', '.join(f'payload.a{number} AS b{number}' for number in range(2_000))} FROM t",
        f"SELECT a FROM t WHERE a IN ({', '.join(map(str, range(9_000)))})",
        f"SELECT a FROM {', '.join(f'{chr(34)}t{number}{chr(34)}' for number in range(5_000))}",
        f"SELECT a FROM t WHERE {' or '.join(f'payload.a{number} = 1' for number in range(MAX_CONDITIONS))}",
        f"SELECT a FROM t WHERE {' and '.join(f'payload.a{number} = 1' for number in range(MAX_CONDITIONS))}",
        f"SELECT {' + '.join(['payload.a'] * MAX_CHAIN)} FROM t",
        f"SELECT payload{'.a' * (MAX_CHAIN - 1)} FROM t",
        f"SELECT case {'when payload.a = 1 then 2 ' * 1_500} end FROM t",
        f"SELECT a FROM t WHERE a = '{'x' * 90_000}'",
    ],
    ids=lambda sql: f"{sql[:24]!r}",
)
def test_long_but_flat_sql_compiles_and_prints(sql: str) -> None:
    statement = compile_statement(sql, FUNCTIONS, CONTEXT)
    text_of_statement(statement.tree)


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        ("(", ")"), ("[", "]"), ("{a:", "}"), ("abs(", ")"), ("not ", ""), ("- ", ""), ("case when a then ", " end"),
        ("1 + (", ")"), ("a and (", ")"), ("a in (", ")"), ("JQ ", " DO . END"), ("(1 between ", " and 2)"),
    ],
)  # fmt: skip
def test_the_deepest_that_parses_is_served_on_a_deep_stack(begin: str, end: str) -> None:
    frames = 250  # of a server and its framework

    def on_stack(depth: int, sql: str) -> None:
        if depth:
            on_stack(depth - 1, sql)
        else:
            statement = compile_statement(sql, FUNCTIONS, CONTEXT)
            assert infer(statement.tree, FUNCTIONS).columns
            assert parse(text_of_statement(statement.tree)) == statement.tree

    served, refusal = 0, ""
    for depth in range(1, MAX_DEPTH + 2):
        try:
            on_stack(frames, f"SELECT {begin * depth}a{end * depth} AS r FROM t")
            served = depth
        except Invalid as error:
            refusal = error.problems[0].message
            break
    assert served >= 10
    assert "nest" in refusal


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ('payload.b + "1e5message" AS y', {"y": "x2"}),
        ('1.5 + "5" AS y', {"y": "1.5x5"}),
        ('payload."6" + 1 AS "7", "5" || "5" AS z', {"7": 7, "z": "x5x5"}),
        ("clientid IN ('\0', 'c1') AS y, '\0' AS z", {"y": True, "z": "\0"}),
        ("[1, '\0\r\x0c'] AS y", {"y": [1, "\0\r\x0c"]}),
    ],
)
def test_names_that_are_numbers_and_strings_with_nul_are_as_any_other(
    fields: str, expected: dict[str, object]
) -> None:
    """Python has no names that begin with a digit, and no source with NUL."""
    event = Event(
        {
            "payload": '{"b": "x", "6": 6}',
            "clientid": "c1",
            "topic": "t",
            "1e5message": 2,
            "5": "x5",
        }
    )
    statement = compile_statement(f'SELECT {fields} FROM "t"', FUNCTIONS, CONTEXT)
    assert statement.on_event.run(event) == expected


def test_items_may_have_names_that_are_numbers() -> None:
    rows = result('FOREACH payload.l AS "1" DO "1".b + "1".b AS c FROM "#"', '{"l": [{"b": 2}]}')
    assert rows == [{"c": 4}]


def test_the_limits_are_told() -> None:
    page = (Path(__file__).parents[3] / "docs" / "rule-language.md").read_text()
    for limit in (MAX_SQL_CHARACTERS, MAX_TOKENS, MAX_DEPTH, MAX_CHAIN, MAX_CONDITIONS):
        assert f" {limit:,} " in page.replace("\n", " ")


NESTED = "[" * DEEP + "]" * DEEP


@pytest.mark.parametrize(
    "payload",
    [
        NESTED,
        '{"x":' * DEEP + "1" + "}" * DEEP,
        '{"x":' + NESTED + "}",
        '{"x":NaN}', '{"x":Infinity}', '{"x":1e999}', '{"x":01}', '{"x":"\ud800"}'.encode("utf-8", "surrogatepass"),
        b'{"x":"\xff\xfe"}', b"\xef\xbb\xbf{}", '{"x":1}' * 2, '{"x":"\\ud800"}', b"\x00" * 1000,
    ],
    ids=lambda payload: f"{payload[:16]!r}",
)  # fmt: skip
def test_a_payload_that_is_no_json_fails_this_message_only(payload: str | bytes) -> None:
    assert row("payload.x as x", payload) == FAILED
    assert row("clientid as c", payload) == {"c": "c1"}


def test_duplicate_keys_and_big_numbers_are_exact() -> None:
    assert row("payload.x as x", '{"x":1,"x":2,"x":3}') == {"x": 3}
    digits = "9" * 4_000
    assert row("payload.x + 1 as x", f'{{"x":{digits}}}') == {"x": int(digits) + 1}
    assert holds("payload.x > 1e300", f'{{"x":{digits}}}') is True
    assert row("payload.x * 1.0 as x", f'{{"x":{digits}}}') == FAILED
    assert row("payload.x / 3 as x", f'{{"x":{digits}}}') == FAILED


def test_a_megabyte_is_a_payload_as_any_other() -> None:
    text = "x" * 1_000_000
    assert row("payload.s as s, strlen(payload.s) as n", json.dumps({"s": text})) == {
        "s": text,
        "n": len(text),
    }
    items = json.dumps({"l": list(range(150_000))})
    rows = result('FOREACH payload.l AS x DO x INCASE x > 149990 FROM "#"', items)
    assert [one["x"] for one in rows] == list(range(149_991, 150_000))
    assert value("payload.l[-1]", items) == 149_999
    assert holds("payload.s like '%y%'", json.dumps({"s": text})) is False


def test_json_text_in_json_text_is_bounded_too() -> None:
    inner = json.dumps({"x": NESTED})
    assert row("payload.x[1] as a, payload.x.y as b", inner) == {}


def test_equal_but_deep_values_compare() -> None:
    deep = '{"a":' * 100 + "1" + "}" * 100
    payload = f'{{"a":{deep},"b":{deep}}}'
    assert value("payload.a = payload.b", payload) is True
    assert value("payload.a in (payload.b)", payload) is True
    assert value("payload.a < payload.b", payload) == FAILED


@pytest.mark.parametrize(("character", "size"), [("a", 1), ("é", 1), ("€", 2), ("\U0001f600", 4)])
def test_arguments_of_many_calls_are_counted_in_the_bytes_that_they_take(
    character: str, size: int
) -> None:
    WORK.left = before = MAX_WORK_NS
    Calls().argument(character * 100_000)
    assert before - WORK.left == pytest.approx(2 * size * 100_000, rel=0.01)
