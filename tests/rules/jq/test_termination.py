"""Which programs may run on the publish path: those that provably end soon, and never any other."""

from __future__ import annotations

import json
from contextlib import suppress

import jq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rules.jq.blocking import check
from rules.jq.bounds import Unbounded, inline_bytes
from rules.jq.program import Program, ProgramError
from tests.support.examples import examples
from tests.support.processor import takes_less_than

INLINE = [
    ".", ".a", ".a.b[1].c", '{a: .a, b: (.b + 1)}', ".temp * 1.8 + 32", ".pressure * 1000", ".[] | .x", "map(. + 1)",
    "[.items[] | select(.v > 3) | {v}]", "reduce .[] as $x (0; . + $x)", "foreach .[] as $x (0; . + $x; [$x, .])",
    '"\\(.a) and \\(.b)"', "@base64", "if .a > 1 then \"x\" elif .b then 2 else empty end", 'try error("x") catch .',
    '.a // "none"', "to_entries", "try (.v | tonumber) catch null", "[range(1; 5)]", "first(.[])", "limit(3; .[])",
    "$ENV.payload", ".a = 1", ".a |= . + 1", "del(.a)", ".a as [$x, {b: $y}] | $x + $y", "any(.[]; . > 3)",
    '[.[] | tostring] | join(",")', "{a, b, \"c\": 1, $__loc__}", "..", "paths", ".. |= .",
    "group_by(.a) | map(length)", 'select(.temp > 30 and .state == "on") | {id, temp}',
    ".alarms[]? | {id: .id, text: (.text // \"?\")}",
    ".clientid as $c | .payload.readings[] | {client: $c, t}", "[.readings[] | select(.t > 20) | .t]",
    ".readings | map(.t) | add / length", '(.topic | split("/")) as $p | {site: $p[0]} + .payload',
]  # fmt: skip
WORKER = [
    "range(.n)", "range(infinite)", "last(range(infinite))", "def f: f; f", "def f(g): def h: g | h; h; f(.)",
    "recurse(.a)", "repeat(1)", "[limit(3; repeat(1))]", "until(. > 100; . * 2)", "while(true; .)", "walk(.)",
    'test("a")', 'gsub("a"; "b")', 'split(", *"; null)', ".s * .n", '"x" * 1e9', ".[.i] = 1", ".[1e9] = 1",
    "setpath([.i]; 1)", 'reduce .[] as $x (""; . + .)', "def length: .[], .[]; length", "input", "combinations",
    "[.,.] | " * 24 + ".", "[.[] as $a | .[] as $b | .[] as $c | .[] as $d | 1]", ".a as [$x] ?// $x | $x",
    "def a: .,.; def b: a|a; def c: b|b; def d: c|c; def e: d|d; e", "getpath([range(1e9)])", "tojson | ltrimstr(.[])",
    "def f(x): x | x; f(.a)", "reduce .[] as $x ({}; .acc += [$x])", "reduce .[] as $x (0; $x)",
    "label $f | 1, break $f",
]  # fmt: skip


@pytest.mark.parametrize("program", INLINE)
def test_programs_that_end_run_inline(program: str) -> None:
    assert Program(program).inline_bytes >= 64


@pytest.mark.parametrize("program", WORKER)
def test_programs_that_may_not_end_do_not(program: str) -> None:
    made = Program(program)
    assert made.inline_bytes == 0
    assert made.why_not_inline


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("repeat(1)", "repeat may not end, or may take any time"),
        ("def f: f; f", "def is not analysed"),
        ("reduce .[] as $x ({}; .acc += [$x])", "the state of reduce may grow"),
        (".s * .n", "a string may be multiplied by a number from the input"),
        ("range(.n)", "a range without literal ends"),
        (".[.i] = 1", "what is assigned to is not a plain path"),
    ],
)
def test_the_reason_is_told(program: str, why: str) -> None:
    assert Program(program).why_not_inline == why


def test_a_nested_iteration_has_a_smaller_limit_than_a_plain_one() -> None:
    assert (
        Program(". - .").inline_bytes
        < Program("map(. + 1)").inline_bytes
        < Program(".a").inline_bytes
    )


@pytest.mark.parametrize("program", ["map(. + 1)", ". - .", "with_entries(.value += 1)", "[..]", "map_values(. + 1)",
                                     "reduce .[] as $x (0; . + $x)", "group_by(. % 7)"])  # fmt: skip
def test_the_worst_input_of_the_size_ends_within_ten_times_the_budget(program: str) -> None:
    """Ten times: the machine that tests may be busy, and the bound is meant for orders of magnitude."""
    made = Program(program)
    text = json.dumps([1] * (made.inline_bytes // 3))
    if "entries" in program:
        text = json.dumps({str(number): 1 for number in range(made.inline_bytes // 10)})
    with takes_less_than(0.1):
        made.run(text)


@pytest.mark.parametrize(
    "text",
    [
        ".a # comment \\\n still comment", '"\\("x" + "\\(1)")"', "1 as $x | 2 as $y | [$x,$y]", '.["a","b"]?',
        ".a[1:2]", '."a b".c', "reduce .[] as [$a,$b] (0; . + 1)", "try (1/0) catch \"no\"", "-(.a)",
        "{(.k): .v, @text \"x\": 1}",
        "if . then 1 end", ". as {a: $x, $b, \"c\": [$d]} | $x", "1 + (2 as $x | $x * 3) - 4 // 5 and true",
    ],
)  # fmt: skip
def test_what_jq_takes_is_read(text: str) -> None:
    jq.compile(text)
    assert inline_bytes(text) > 0


@given(st.text(alphabet=".[]{}()|,:;?/+-*$@\"'\\# \nabdefxn019=<>", max_size=40))
@settings(max_examples=examples(300), deadline=None)
def test_no_text_breaks_the_analysis(text: str) -> None:
    with suppress(Unbounded):
        assert inline_bytes(text) > 0


def test_deep_nesting_is_refused_by_the_analysis_only() -> None:
    with pytest.raises(Unbounded):
        inline_bytes("[" * 500 + "]" * 500)
    with pytest.raises(Unbounded):
        inline_bytes("-" * 3_000 + "1")


@pytest.mark.parametrize(
    ("program", "here"),
    [
        ('"a" * 2000000000 | length', False),
        ('"a" * 2000000000 as $x | .', False),
        ('def f: "a" * 2000000000; .', False),
        ('("a" | .) * 1000 * 1000', False),
        ('foo("*"; 5 * ', False),
        (".a" + " | .a" * 2_000, False),
        ('{unit: "C", t: (.t * 1.8 + 32)}', True),
        ("(.temp * 100000) / 7", True),
        ('"-" * 80', True),
    ],
)
def test_what_is_computed_while_a_program_is_compiled_is_not_computed_here(
    program: str, here: bool
) -> None:
    if here:
        assert Program(program).is_checked
    else:
        with suppress(ProgramError):
            assert not Program(program).is_checked


def test_a_program_that_takes_all_memory_to_compile_is_refused_by_a_worker() -> None:
    with takes_less_than(0.5):
        with pytest.raises(
            ProgramError, match="it cannot be compiled: the program needed more memory"
        ):
            check('"a" * 2000000000 | length')
        check('"a" * 70000 | length')
