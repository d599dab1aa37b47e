"""What is an expression and what is none, a case a line."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.variform import evaluate
from transforms.variform.compiler import compile_expression
from transforms.variform.errors import CompileError


@pytest.mark.parametrize(
    "source",
    [
        "",
        " ",
        "\n",
        "['a']",
        "concat([])",
        "concat(['a',])",
        "upper('a',)",
        "upper(,'a')",
        "1e3",
        ".5",
        "5.",
        "_a",
        "1 + 2",
        "5-3",
        "(u)",
        "u[0]",
        "${u}",
        "// a",
        "# a",
        "u u",
        "'a' 'b'",
        "upper('a'",
        "upper 'a')",
        "'a",
        '"a',
        "u\r",
        "upper(\r'a')",
        "concat([['a'],['b'])",
        "concat([,'a'])",
        "a..b",
        "a.",
        "upper()",
        "upper('a','b')",
        "nope(1)",
        "io.format('x')",
        "a.b.c(1)",
        "maps.fold(u)",
        "lists.map(u)",
        "iif(t,'a')",
        "iif(t,'a','b','c')",
        "is_empty()",
        "and(true)",
        "or()",
        "coalesce()",
        "any_to_string(u)",
        "map_to_rage(u,1,2)",
        "is_empty_var(u)",
        "strlen(u,0,5)",
        "json_encode(u)",
        "json_decode(u)",
        "concat(['a'],['b'],['c'])",
        "true(1)",
        "Ü",
        "u;",
        "$u",
        "u=1",
        "not u",
        "1.5e",
        "--1",
        "1..2",
        "0x10",
        "'a''b'",
        "u.é",
    ],
)
def test_what_is_no_expression_is_refused_when_it_is_compiled(source: str) -> None:
    with pytest.raises(CompileError) as caught:
        compile_expression(source)
    assert caught.value.line >= 1
    assert caught.value.column >= 1


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("u", "alice"),
        (" \t\n u \n", "alice"),
        ("upper ( u )", "ALICE"),
        ("'say \"hi\"'", 'say "hi"'),
        ('"it\'s"', "it's"),
        ("'a\nb\tc'", "a\nb\tc"),
        ("'日本'", "日本"),
        ("'a\\n'", "a\\n"),
        ("strlen('a\\n')", "3"),
        ("unescape('a\\n')", "a\n"),
        ("''", ""),
        ("5", "5"),
        ("+5", "5"),
        ("-5", "-5"),
        ("007", "7"),
        ("1.50", "1.5"),
        ("1.0e3", "1000.0"),
        ("-1.5e-1", "-0.15"),
        ("+2.0", "2.0"),
        ("123456789012345678901234567890", "123456789012345678901234567890"),
        ("true", "true"),
        ("false", "false"),
        ("truex", "T"),
        ("a-b", "dashed"),
        ("a_b", "scored"),
        ("m.1", "one"),
        ("deep.a.b", "x"),
        ("m.nul", ""),
        ("concat(['a', ['b']])", 'a["b"]'),
        ("maps.get('a b', m)", "2"),
        ("maps.get('_x', m)", "3"),
        ("m.k", "1"),
    ],
)
def test_what_is_an_expression(source: str, expected: str) -> None:
    names: dict[str, Any] = {"truex": "T", "a-b": "dashed", "a_b": "scored"}
    assert evaluate(source, **names) == expected


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("'" + "x" * 8 * 1024 + "'", "at most 8192 bytes"),
        ("upper(" * 65 + "'x'" + ")" * 65, "at most 64 levels"),
        ("concat(" + "[" * 65 + "'x'" + "]" * 65 + ")", "at most 64 levels"),
        ("9" * 4001, "4000 digits"),
    ],
)
def test_limits_of_the_text(source: str, said: str) -> None:
    with pytest.raises(CompileError, match=re.escape(said)):
        compile_expression(source)


def test_the_longest_expression_compiles() -> None:
    assert len(evaluate("'" + "x" * (8 * 1024 - 2) + "'")) == 8 * 1024 - 2
