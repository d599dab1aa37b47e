"""What an expression may take of time and memory, whatever it is given."""

from __future__ import annotations

import contextlib

import pytest

from tests.support.processor import takes_less_than
from tests.support.variform import evaluate
from transforms.variform.errors import EvalError


@pytest.mark.parametrize(
    "source",
    [
        "pad('a', 1048577)",
        "rand_str(1048577)",
        "concat([big, big])",
        "join_to_string(big, [big, big])",
        "replace(big, 'x', 'xx')",
        "regex_replace(big, 'x', '&&')",
        "base64_encode(big)",
        "bin2hexstr(big)",
        "topic_join([big, big])",
        "lists.append(long, long)",
        "lists.join('', long)",
        "sprintf_s('~s~s', [big, big])",
        "sprintf_s('~9999s~9999s', ['a', 'b'])",
        "any_to_str([big, big])",
        "split(commas, ',', 'notrim')",
        "tokens(commas, 'y')",
        "topic_split(slashes)",
        "upper(sharp)",
        "str_eq([big, big], 'x')",
        "maps.values(maps.put('a', [big, big], maps.new()))",
        "sprintf_s('~p', [[big, big]])",
        "rm_prefix(big2, 'a')",
    ],
)
def test_results_are_bounded(source: str) -> None:
    big = "x" * 1_000_000
    bindings = {
        "big": big,
        "big2": "x" * 2_000_000,
        "long": [1] * 1_000_000,
        "commas": ",y" * 1_100_000,
        "slashes": "/" * 1_100_000,
        "sharp": "ß" * 600_000,
    }
    with takes_less_than(2):
        try:
            got = evaluate(source, raw=True, **bindings)
        except EvalError:
            got = ""
        # no longer than what was given
        assert not isinstance(got, (str, list)) or len(got) <= 2_000_000


@pytest.mark.parametrize(
    "pattern",
    [
        "((a{1000}){1000}){1000}",
        "(a{1000}){1000}",
        "(?=a)(a{1000}){1000}",
        "(?=x)((a{0,500}){0,500}){0,500}",
        "a{0,1000}" * 60,
        "(?=a)" + "a{999999999999}",
        "(a|b)*a(a|b){900}",
        "[a-z]" * 2000,
        "(" * 20_000,
        "(?:" * 2000 + "a" + ")" * 2000,
        "(?R)",
        "(a(?R)?b)",
        "(a?){50}a{50}(?=b)",
        "(x+x+)+y",
    ],
    ids=lambda pattern: pattern[:30],
)
def test_patterns_that_come_from_outside_are_bounded(pattern: str) -> None:
    with takes_less_than(3):
        for source in ("regex_match(x, p)", "regex_extract(x, p)", "regex_replace(x, p, 'y')"):
            with contextlib.suppress(EvalError):
                evaluate(source, x="ab" * 100_000 + "!", p=pattern)


@pytest.mark.parametrize(
    ("call", "size"),
    [
        ("strlen(reverse(x))", 30_000),
        ("hash('sha512', x)", 400_000),
        ("iif(lower(x), 'a', lower(x))", 200_000),
    ],
)
def test_an_expression_of_many_calls_ends_in_time(call: str, size: int) -> None:
    source = "concat([" + ", ".join([call] * 180) + "])"
    with takes_less_than(0.1), pytest.raises(EvalError, match="longer than 50 ms"):
        evaluate(source, x="İ" * size)
    assert evaluate(source, x="İ")
