"""Printing a tree and parsing the text gives the tree again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from sqlglot import exp

from rules.sql.syntax.layout import formatted
from rules.sql.syntax.parser import parse
from rules.sql.syntax.tree import Tree, item_of
from tests.rules.sql.generated_trees import PIPED, STATEMENTS
from tests.rules.sql.statements import text_of_statement
from tests.support.examples import examples


def without_parentheses(tree: Tree) -> Tree:
    tree = tree.copy()
    for node in list(tree.find_all(exp.Paren)):
        node.replace(node.this)
    return tree


@settings(max_examples=examples(300), deadline=None)
@given(STATEMENTS | PIPED)
def test_a_printed_tree_parses_to_itself(tree: Any) -> None:
    text = text_of_statement(tree)
    again = parse(text)
    assert without_parentheses(again) == tree, text
    assert item_of(again) == item_of(tree)
    assert text_of_statement(again) == text
    assert parse(text_of_statement(again)) == again
    laid_out = formatted(text)
    assert parse(laid_out) == again, laid_out
    assert formatted(laid_out) == laid_out


@pytest.mark.parametrize(
    ("sql", "text"),
    [
        ("select a,b from t where a>1 and b", 'SELECT a, b\nFROM "t"\nWHERE a > 1 AND b\n'),
        (
            "-- warm rooms\nselect a, -- in kelvin\n b from t /* all */ where a and\n-- never\nb -- end",
            '-- warm rooms\nSELECT\n  a, -- in kelvin\n  b\nFROM "t" /* all */\nWHERE a\n  -- never\n  AND b -- end\n',
        ),
        (
            f"select {'a' * 60}, {'b' * 60} from t",
            f'SELECT\n  {"a" * 60},\n  {"b" * 60}\nFROM "t"\n',
        ),
        ("select * jq {a: .b} # from\n from t", 'SELECT *\nJQ {a: .b} # from\nFROM "t"\n'),
        ("select * jq '.a -- b' from t -- c", 'SELECT *\nJQ .a -- b\nFROM "t" -- c\n'),
        (
            "foreach a as x do x.b incase x.c and x.d from t",
            'FOREACH a AS x\nDO x.b\nINCASE x.c AND x.d\nFROM "t"\n',
        ),
        (
            "select a from t where (b or c) and d or e",
            'SELECT a\nFROM "t"\nWHERE (b OR c) AND d OR e\n',
        ),
    ],
)
def test_layout_keeps_the_statement_and_its_comments(sql: str, text: str) -> None:
    assert formatted(sql) == text
    assert parse(text) == parse(sql)
    assert formatted(text) == text


@pytest.mark.parametrize(
    ("sql", "text"),
    [
        ("select a,b from t", 'SELECT a, b FROM "t"'),
        ("SELECT (1+2)*3 x FROM 'a/#', b", 'SELECT (1 + 2) * 3 AS x FROM "a/#", "b"'),
        ("select - -1, a- -1, -a.b from t", 'SELECT - -1, a - -1, -a.b FROM "t"'),
        ('select "a b"."c d", "from", a."1" from t', 'SELECT "a b"."c d", "from", a."1" FROM "t"'),
        (
            "select a not in (1,2) and not b = 'it''s' from t",
            "SELECT a NOT IN (1, 2) AND NOT b = 'it''s' FROM \"t\"",
        ),
        (
            "select not a is null, a is not null from t",
            'SELECT a IS NOT NULL, a IS NOT NULL FROM "t"',
        ),
        (
            "select a like '%' escape '!' as r from t",
            "SELECT a LIKE '%' ESCAPE '!' AS r FROM \"t\"",
        ),
        (
            "select {a:1,'b c':[x]}.a[1] as a.b[-0] from t",
            'SELECT {a: 1, "b c": [x]}.a[1] AS a.b[-0] FROM "t"',
        ),
        (
            "select case x when 1 then 2 else 3 end from t",
            'SELECT CASE x WHEN 1 THEN 2 ELSE 3 END FROM "t"',
        ),
        ("select a[1..2], [3..4] from t -- x", 'SELECT a[1..2], [3..4] FROM "t"'),
        (
            "foreach a as x do x.b incase x.c from t where true",
            'FOREACH a AS x DO x.b INCASE x.c FROM "t" WHERE true',
        ),
        ("foreach a from t", 'FOREACH a FROM "t"'),
        (
            "select * jq {a: .b} # from\n from t where x",
            "SELECT * JQ '{a: .b} # from' FROM \"t\" WHERE x",
        ),
        ("select JQ a DO if . then \"end\" else 'x' end END from t", None),
        ('select "NULL", "true", "JQ" from t', 'SELECT "NULL", "true", "JQ" FROM "t"'),
    ],
)
def test_text_is_normalised(sql: str, text: str | None) -> None:
    printed = text_of_statement(parse(sql))
    assert text is None or printed == text
    assert parse(printed) == parse(sql)
