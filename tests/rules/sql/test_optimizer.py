"""What is worked out when a rule is compiled, and what is left alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from rules.functions.library import standard
from rules.sql.compiler.compile import compile_for_messages
from rules.sql.compiler.optimizer import optimized
from rules.sql.compiler.program import RuleContext
from rules.sql.syntax.parser import parse
from tests.rules.sql.generated_trees import STATEMENTS
from tests.rules.sql.statements import text_of_statement
from tests.support.examples import examples

FUNCTIONS = standard()


@pytest.mark.parametrize(
    ("expression", "folded"),
    [
        ("60 * 60 * 24", "86400"),
        ("1 / 4", "0.25"),
        ("'a' || 1 + '-'", "'a1-'"),
        ("(1 + 2) * x", "3 * x"),
        ("- -5", "5"),
        ("3 - 5", "-2"),
        ("5 in (1, 5)", "true"),
        ("not 5 between 1 and 2", "true"),
        ("'abc' like 'a%' and x", "true AND x"),
        ("'a!' like 'a!!' escape '!'", "true"),
        ("NULL is null", "true"),
        ("upper('a' || 'b')", "'AB'"),
        ("x + 1 + 2", "x + 1 + 2"),  # which is no x + 3 where x is a string
        ("1 / 0", "1 / 0"),
        ("'a' - 1", "'a' - 1"),
        ("1 = 'x'", "1 = 'x'"),
        ("1e308 * 10", "1e308 * 10"),
        ("null()", "null()"),
        ("nth(1, [])", "nth(1, [])"),
        ("random()", "random()"),
        ("now_timestamp()", "now_timestamp()"),
        ("topic(1)", "topic(1)"),
        ("false and upper(x)", "false AND upper(x)"),
        ("x[-0]", "x[-0]"),
        ("not a = 1", "NOT a = 1"),  # which is no a <> 1 where a is missing
        ("not a < 1", "NOT a < 1"),
    ],
)
def test_folding(expression: str, folded: str) -> None:
    tree = optimized(parse(f"SELECT {expression} AS r FROM t"), FUNCTIONS)
    assert text_of_statement(tree) == f'SELECT {folded} AS r FROM "t"'


def test_the_statement_given_is_not_changed_and_names_stay() -> None:
    tree = parse("SELECT 1 + 1, 'a' FROM t WHERE 1 + 1 = x")
    before = tree.copy()
    folded = optimized(tree, FUNCTIONS)
    assert tree == before
    assert text_of_statement(folded) == 'SELECT 2 AS "1 + 1", \'a\' FROM "t" WHERE 2 = x'
    assert folded.args["where"].this.this.meta["column"] == 32


def test_constants_stand_above_the_function_they_are_used_in() -> None:
    sql = "SELECT split('a,b', ',') AS s, [1..3] AS r FROM t WHERE clientid IN ('a', 'b') AND topic LIKE 't/%'"
    source = compile_for_messages(parse(sql), FUNCTIONS, RuleContext("n", {}, lambda: 0)).source
    assert source.splitlines()[:5] == [
        "# split: split('a,b', ',')",
        "# items: [1..3]",
        "# choices: ['a', 'b']",
        "# like: 't/%'",
        "def rule(message):",
    ]


@settings(max_examples=examples(100), deadline=None)
@given(STATEMENTS)
def test_optimizing_twice_is_optimizing_once(tree: Any) -> None:
    once = optimized(tree, FUNCTIONS)
    assert optimized(once, FUNCTIONS) == once
