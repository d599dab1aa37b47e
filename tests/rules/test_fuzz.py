"""Whatever is written or passed, only the language's own errors come out."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.core.errors import Invalid
from rules.functions.library import standard
from rules.functions.registry import Function
from rules.rule import compile_statement
from rules.sql.compiler.columns import Event
from rules.sql.compiler.program import RuleContext
from rules.sql.type_checker.inference import infer
from rules.sql.values import UNDEFINED, Bits, EvaluationError
from tests.support.examples import examples

FUNCTIONS = standard()
CONTEXT = RuleContext("n", {}, lambda: 0)
TEXT = (
    "SELECT FOREACH DO INCASE FROM WHERE AND OR NOT IN CASE WHEN THEN ELSE END AS * + - / = != < ( ) [ ] , . .. "
    "div mod is null between like =~ || 1 2.5 'a' \"t/#\" '$events/#' payload payload.x a b clientid topic upper( "
    "nth( concat( ; -- /*"
)
WORDS = TEXT.split()

SCALARS = (
    st.integers(-3, 300)
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.booleans()
    | st.none()
    | st.text(max_size=12)
    | st.binary(max_size=6)
    | st.sampled_from(
        (
            UNDEFINED,
            Bits(5, 3),
            "second",
            "%Y-%m-%d",
            "a/b",
            "+08:00",
            "{}",
            "[1]",
            "(a)(b)?",
            ".a",
            "signed",
            "~s~p~b",
        )
    )
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)


@pytest.mark.parametrize("function", list(FUNCTIONS), ids=lambda function: function.name)
@settings(max_examples=examples(20), deadline=None)
@given(data=st.data())
def test_functions_fail_with_a_sentence_or_give_a_value(function: Function, data: Any) -> None:
    most = function.least + 2 if function.most is None else function.most
    count = data.draw(st.integers(function.least, most))
    arguments = [data.draw(VALUES) for _ in range(count)]
    if function.column is not None:
        arguments.insert(0, data.draw(VALUES))
    with contextlib.suppress(EvaluationError):
        function.call(*arguments)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=14).map(" ".join))
def test_sql_compiles_and_runs_or_is_refused(words: str) -> None:
    for sql in (words, f'SELECT {words} FROM "t/#"', f"SELECT a FROM t WHERE {words}"):
        with contextlib.suppress(Invalid, EvaluationError):
            statement = compile_statement(sql, FUNCTIONS, CONTEXT)
            infer(statement.tree, FUNCTIONS)
            statement.on_event.run(Event({"topic": "t", "payload": '{"x":1}', "a": [1], "b": "2"}))
