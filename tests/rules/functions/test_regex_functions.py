"""Regular expressions: what they do, what is refused, and that none takes long."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import pytest

from rules.functions.regexes import _compiled, _matches, unsupported
from rules.sql import limits
from rules.sql.values import EvaluationError
from tests.support.calls import check, fails, refused
from tests.support.processor import takes_less_than

ADVICE = "cannot be matched in bounded time and is not supported"


@pytest.mark.parametrize(
    ("expression", "want"),
    [
        ("regex_match('abc', 'b')", True),
        ("regex_match('abc', '^b')", False),
        ("regex_match('abc', '^abc$')", True),
        ("regex_match('', '')", True),
        ("regex_match('ABC', '(?i)abc')", True),
        ("regex_match(true, 'tr')", True),
        ("regex_match('你好', '^..$')", True),
        ("regex_match(lines, '(?s)a.b')", True),
        ("regex_match(lines, 'a.b')", False),
        ("regex_match(lines, '(?m)^b$')", True),
        ("regex_replace('hello', 'l', 'L')", "heLLo"),
        ("regex_replace('hello', 'l+', '[&]')", "he[ll]o"),
        ("regex_replace('hello', 'l+', amp)", "he&o"),
        ("regex_replace('ab', '(a)(b)', swap)", "ba"),
        ("regex_replace('ab', '(a)|(b)', second)", "[][b]"),
        ("regex_replace('ab', 'a', ninth)", "b"),
        ("regex_replace('abc', 'x*', '-')", "-a-b-c-"),
        ("regex_replace('你好', '', '-')", "-你-好-"),
        ("regex_replace('abc', 'z', '-')", "abc"),
        ("regex_replace('a.b', '[.]', '')", "ab"),
        ("regex_replace('é', 'é', 'e')", "e"),
        ("regex_extract('k=v', '(k)=(v)')", ["k", "v"]),
        ("regex_extract('k=v', '(k)(x)?=(v)(z)?')", ["k", "", "v"]),
        ("regex_extract('k=v', 'k')", []),
        ("regex_extract('k=v', '(z)')", []),
        ("regex_extract('a1b2', '([0-9])')", ["1"]),
        ("regex_extract('ü=ä', '(.)=(.)')", ["ü", "ä"]),
        ("regex_extract('a', '(a*)(b*)')", ["a", ""]),
    ],
)
def test_value(expression: str, want: Any) -> None:
    check(expression, want, lines="a\nb", amp=r"\&", swap=r"\2\1", second=r"[\2]", ninth=r"\9")


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("regex_match(5, 'a')", "must be a string"),
        ("regex_match('a', 5)", "a regular expression, not an integer"),
        ("regex_match('a', p)", "a regular expression; missing ): ("),
        ("regex_replace('a', p, 'x')", "missing ): ("),
        ("regex_replace('a', 'a', 5)", "must be a string"),
        ("regex_extract('a', p)", "missing ): ("),
        ("regex_match('a', long)", "at most 10000 characters"),
        ("regex_match('a', large)", "too large when compiled"),
        ("regex_match('a', ahead)", f"the look-ahead (?= at character 2 {ADVICE}"),
    ],
)
def test_failure(expression: str, message: str) -> None:
    fails(expression, message, p="(", long="a" * 10_001, large="\\pL" * 3000, ahead="a(?=b)")


@pytest.mark.parametrize(
    ("pattern", "construct"),
    [
        ("a(?=b)", "the look-ahead (?= at character 2"),
        ("a(?!b)", "the negative look-ahead (?! at character 2"),
        ("(?<=a)b", "the look-behind (?<= at character 1"),
        ("(?<!a)b", "the negative look-behind (?<! at character 1"),
        (r"(a)\1", r"the back-reference \1 at character 4"),
        (r"(?P<x>a)(?P=x)", "the back-reference (?P=x) at character 9"),
        (r"(?<x>a)\k<x>", r"the back-reference \k< at character 8"),
        ("(?>a)b", "the atomic group (?> at character 1"),
        ("a++b", "the possessive repetition ++ at character 2"),
        ("(a)(?(1)b|c)", "the condition (?( at character 4"),
        ("(a(?1)?b)", "the recursion (?1) at character 3"),
        (r"a\Kb", r"the assertion \K at character 2"),
        (r"[(?=]\1", r"the back-reference \1 at character 6"),
        (r"\Q(?=\E(?=x)", "the look-ahead (?= at character 8"),
    ],
)
def test_what_no_engine_does_in_bounded_time_is_refused_by_name(
    pattern: str, construct: str
) -> None:
    for function in (
        "regex_match(payload, '{}')",
        "regex_extract(payload, '{}')",
        "regex_replace(payload, '{}', '')",
    ):
        (problem,) = refused(function.format(pattern))
        assert problem.message.endswith(
            f"argument 2 must be a regular expression; {construct} {ADVICE}"
        )
    fails("regex_match('a', p)", f"{construct} {ADVICE}", p=pattern)


@pytest.mark.parametrize(
    "pattern", ["(?:a)", "(?i)a", "[(?=x)]", r"\(\?=", "a+?", "(?P<n>a)", r"[\1]", r"\Q(?=\E"]
)
def test_what_only_looks_alike_is_not_blamed(pattern: str) -> None:
    assert unsupported(pattern) is None


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("(a+)+$", "a" * 50_000 + "!"),
        ("(a|a)*b", "a" * 50_000),
        ("(a|aa)+$", "a" * 50_000 + "!"),
        ("(.*)*x", "a" * 50_000),
        ("(x+x+)+y", "x" * 50_000),
        ("^(([a-z])+.)+[A-Z]([a-z])+$", "a" * 50_000),
        ("(?:a?){100}a{100}", "a" * 5_000),
        (".*.*.*=.*;", "a" * 50_000),
    ],
)
def test_a_catastrophic_pattern_takes_linear_time(pattern: str, text: str) -> None:
    with takes_less_than(5 * limits.MAX_REPLACING_MS / 1000):
        for expression in ("regex_match(s, p)", "regex_extract(s, p)", "regex_replace(s, p, 'x')"):
            with suppress(EvaluationError):  # replacing may be stopped, in time
                check(f"is_null({expression})", False, s=text, p=pattern)


def test_a_large_expression_may_not_look_at_a_long_text() -> None:
    fails(
        "regex_match(s, '[ab]*a[ab]{500}c')",
        "needs too many steps for 1000000 bytes",
        s="ab" * 500_000,
    )


def test_replacing_that_looks_ahead_again_and_again_is_stopped() -> None:
    fails("regex_replace(s, 'a(?:.*b)?', '')", "replacing took longer than 50 ms", s="a" * 200_000)


def test_replacing_is_not_stopped_while_others_have_the_processor() -> None:
    matches = _matches(_compiled("a", captures=True), b"a" + b"b" * 200_000 + b"a" * 2)
    next(matches)
    # as long as a busy machine keeps a thread waiting
    threading.Event().wait(2 * limits.MAX_REPLACING_MS / 1000)
    assert len(list(matches)) == 2


def test_compiled_expressions_are_kept_up_to_a_number() -> None:
    for number in range(limits.MAX_PATTERNS + 50):
        check("regex_match('x', p)", False, p=f"a{number}")
    assert _compiled.cache_info().currsize == limits.MAX_PATTERNS


def test_a_pattern_that_takes_long_to_compile_is_refused_at_once() -> None:
    fails("regex_match(s, p)", "whose {n} sum up to at most 5000", s="a", p="a{0,1000}" * 60)
