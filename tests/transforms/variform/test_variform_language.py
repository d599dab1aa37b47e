"""The expression language: what is refused and where, how values become text, what stays bounded."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.core import jsontext
from tests.support.examples import examples
from tests.support.processor import takes_less_than
from transforms.variform.compiler import compile_expression
from transforms.variform.errors import CompileError, EvalError, VariformError
from transforms.variform.lexer import tokenize
from transforms.variform.parser import MAX_NESTING

WORDS = st.sampled_from(
    [
        "concat",
        "coalesce",
        "iif",
        "upper",
        "nth",
        "a",
        "b.c",
        "(",
        ")",
        "[",
        "]",
        ",",
        "'x'",
        '"y"',
        "1",
        "-2.5",
        " ",
    ]
)


def evaluate(source: str, raw: bool = False, /, **bindings: Any) -> Any:
    return compile_expression(source, raw=raw).evaluate(bindings)


@given(st.text())
def test_lexer_raises_its_own_error_only(source: str) -> None:
    with contextlib.suppress(CompileError):
        assert tokenize(source)[-1].kind == "end"


@given(
    st.lists(WORDS, max_size=30).map("".join),
    st.dictionaries(st.sampled_from("ab"), st.integers() | st.text()),
)
def test_any_text_compiles_and_evaluates_or_raises_its_own_error(
    source: str, bindings: dict[str, Any]
) -> None:
    with contextlib.suppress(VariformError):
        assert isinstance(compile_expression(source).evaluate(bindings), str)


@pytest.mark.parametrize(
    ("source", "line", "column", "suggestion"),
    [
        ("uper('a')", 1, 1, "did you mean 'upper'?"),
        ("concat([topic,\n  lowr(x)])", 2, 3, "did you mean 'lower'?"),
        ("upper('a','b')", 1, 1, None),
        ("json_encode(x)", 1, 1, None),
        ("'a", 1, 1, None),
        ("1 + 2", 1, 3, "use functions, as num_gt(a, b)"),
        ("os.system('x')", 1, 1, None),
        ("a..b", 1, 1, None),
        ("1.5e400", 1, 1, None),
    ],
)
def test_what_cannot_be_compiled_names_its_place(
    source: str, line: int, column: int, suggestion: str | None
) -> None:
    with pytest.raises(CompileError) as caught:
        compile_expression(source)
    assert (caught.value.line, caught.value.column) == (line, column)
    if suggestion:
        assert caught.value.suggestion == suggestion


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (2.0, "2.0"),
        (1e15, "1000000000000000.0"),
        (1e20, "1e20"),
        (4e-11, "4e-11"),
        (3.14159265358979, "3.14159265358979"),
        (-0.0, "-0.0"),
    ],
)
def test_float_text(number: float, text: str) -> None:
    assert jsontext.float_text(number) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_text_of_a_float_is_exact_and_as_in_json(number: float) -> None:
    text = evaluate("x", x=number)
    assert text == jsontext.encode(number).decode()
    assert repr(float(text)) == repr(number)


@given(st.integers(min_value=-(10**4000), max_value=10**4000))
def test_text_of_an_integer_is_the_integer_in_full(number: int) -> None:
    assert evaluate("x", x=number) == str(number)


@pytest.mark.parametrize(
    ("source", "bindings", "expected"),
    [
        ("x", {"x": None}, ""),
        ("any_to_str(x)", {"x": []}, ""),
        ("coalesce(upper(missing), 'd')", {}, "d"),
        ("iif(missing, 'a', 'b')", {}, "b"),
        ("iif(false, 'a', 'b')", {}, "b"),
        ("is_empty(a.b.c)", {"a": [1]}, "true"),
        ("strlen(x)", {"x": "e\u0301"}, "1"),
        ("upper('ß')", {}, "SS"),
        ("trim(x)", {"x": " \u00a0a \x85"}, "\u00a0a"),
        ("reverse('你好')", {}, "好你"),
        ("regex_replace('abc', '(b)', '<&\\1>')", {}, "a<bb>c"),
        ("regex_replace('price', 'p', '$1')", {}, "$1rice"),
        ("regex_match('xay', '(?=a)a')", {}, "true"),
        ("num_eq(1, 1.0)", {}, "true"),
        ("str_eq(1, 1.0)", {}, "false"),
        ("pad('ab', 5, 'both', '*')", {}, "*ab**"),
        ("substr('abc', 1, 1)", {}, "b"),
        ("sprintf_s('~s=~.2f~~', ['a', 1.255])", {}, "a=1.25~"),
        ("unescape('a\\x41')", {}, "aA"),
        ("maps.get('a b', m)", {"m": {"a b": 1}}, "1"),
        ("lists.sum(l)", {"l": []}, "0"),
        ("hash_to_range('a', 5, 5)", {}, "5"),
    ],
)
def test_evaluation(source: str, bindings: dict[str, Any], expected: str) -> None:
    assert evaluate(source, **bindings) == expected


@pytest.mark.parametrize(
    ("source", "bindings"),
    [
        ("a", {}),
        ("a.b", {"a": "text"}),
        ("concat([missing, 'x'])", {}),
        ("coalesce(upper(5))", {}),
        ("upper(5)", {}),
        ("x", {"x": {"a": 1}}),
        ("regex_match('a', '(')", {}),
        ("nth(0, ['a'])", {}),
        ("num_gt('1', 2)", {}),
        ("pad('a', 2000000)", {}),
        ("rand_str(2000000)", {}),
        ("x", {"x": 10**5000}),
        ("jwt_value('a.b', 'c')", {}),
    ],
)
def test_evaluation_fails(source: str, bindings: dict[str, Any]) -> None:
    with pytest.raises(EvalError):
        evaluate(source, **bindings)


def test_a_raw_empty_list_stays_one_and_null_becomes_empty_text() -> None:
    assert evaluate("x", True, x=[]) == []
    assert evaluate("x", True, x=None) == ""


def test_only_the_chosen_branch_is_evaluated() -> None:
    assert evaluate("iif(true, 'a', upper(5))") == "a"


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*$", "(?=(a+)+$)a", "(.*)*x"])
def test_catastrophic_patterns_end(pattern: str) -> None:
    with takes_less_than(2):
        compile_expression(f"regex_match(x, '{pattern}')").evaluate({"x": "a" * 5000 + "!"})


def test_results_do_not_grow_without_bound() -> None:
    big = "x" * 1_000_000
    for source in (
        "concat([b,b])",
        "replace(b,'x','yy')",
        "regex_replace(b,'x','&&')",
        "join_to_string(b,[b,b])",
    ):
        with pytest.raises(EvalError):
            evaluate(source, b=big)


def test_deepest_nesting_compiles_and_one_more_is_refused() -> None:
    depth = MAX_NESTING - 1
    source = "coalesce(" * depth + "missing" + ",'x')" * depth
    assert evaluate(source) == "x"
    with pytest.raises(CompileError, match="nests at most"):
        compile_expression("upper(" * 65 + "'x'" + ")" * 65)


def test_environment_is_read_by_prefix_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICEVAR_SITE_OF_TEST", "berlin")
    assert evaluate("getenv('SITE_OF_TEST')") == "berlin"
    assert evaluate("getenv('PATH')") == ""


@settings(max_examples=examples(50))
@given(st.binary())
def test_base64_and_hex_come_back(data: bytes) -> None:
    for source in ("base64_decode(base64_encode(x))", "hexstr2bin(bin2hexstr(x))"):
        got = evaluate(source, True, x=data)
        assert (got.encode() if isinstance(got, str) else got) == data
