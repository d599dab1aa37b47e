"""What values are as text and as they are, what is not there, what other types become, what fails: a case a line."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.variform import E, check, evaluate
from transforms.variform.compiler import compile_expression
from transforms.variform.errors import CompileError, EvalError


@pytest.mark.parametrize(
    ("source", "as_text", "as_it_is"),
    [
        ("n", "5", 5),
        ("f", "2.5", 2.5),
        ("t", "true", True),
        ("nul", "", ""),
        ("empty", "", ""),
        ("el", "", []),
        ("em", E, {}),
        ("l", E, ["a", "b", "c"]),
        ("m.k", "1", 1),
        ("m._y", E, E),
        ("u.x", E, E),
        ("l.0", E, E),
        ("nowhere", E, E),
        ("deep.a.nowhere", E, E),
        ("deep.nowhere.b", E, E),
        ("nul.x", E, E),
        ("num_gt(2,1)", "true", True),
        ("true", "true", True),
        ("2.0", "2.0", 2.0),
        ("split('a,b', ',')", E, ["a", "b"]),
        ("split('', ',')", "", []),
        ("json_value('{\"a\":null}', 'a')", "", None),
        ("maps.new()", E, {}),
    ],
)
def test_text_and_raw_results(source: str, as_text: Any, as_it_is: Any) -> None:
    check(source, as_text)
    check(source, as_it_is, raw=True)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        # unbound: "" in the arguments of three functions, for the whole argument; an error everywhere else
        ("coalesce(nowhere, 'd')", "d"),
        ("coalesce(upper(nowhere), 'd')", "d"),
        ("coalesce(concat(['a', nowhere]), 'd')", "d"),
        ("coalesce([nowhere, 'd'])", "d"),
        ("coalesce(nowhere)", ""),
        ("is_empty(nowhere)", "true"),
        ("is_empty(upper(nowhere))", "true"),
        ("is_empty_val(nowhere)", E),
        ("iif(nowhere, 'a', 'b')", "b"),
        ("iif(t, nowhere, 'b')", E),
        ("iif(t, 'a', nowhere)", "a"),
        ("concat([nowhere])", E),
        ("not(nowhere)", E),
        ("coalesce(upper(5), 'd')", E),
        ("is_empty(upper(5))", E),
        ("iif(upper(5), 'a', 'b')", E),
        # what is empty
        ("is_empty('')", "true"),
        ("is_empty(nul)", "true"),
        ("is_empty(el)", "true"),
        ("is_empty(split('', ','))", "true"),
        ("is_empty(0)", "false"),
        ("is_empty(false)", "false"),
        ("is_empty(' ')", "false"),
        ("is_empty(em)", "false"),
        ("is_empty_val('')", "true"),
        ("is_empty_val(nul)", "true"),
        ("is_empty_val(el)", "true"),
        ("is_empty_val(0)", "false"),
        ("is_empty_val(em)", "false"),
        # iif
        ("iif('false', 'a', 'b')", "a"),
        ("iif(0, 'a', 'b')", "a"),
        ("iif(em, 'a', 'b')", "a"),
        ("iif('', 'a', 'b')", "b"),
        ("iif(el, 'a', 'b')", "b"),
        ("iif(false, 'a', 'b')", "b"),
        ("iif(not(true), 'a', 'b')", "b"),
        ("iif(not('true'), 'a', 'b')", "a"),
        ("iif(t, 'a', upper(5))", "a"),
        ("iif(empty, upper(5), 'b')", "b"),
        # coalesce
        ("coalesce(empty, nul, el, 'x', 'y')", "x"),
        ("coalesce(['', 'x'])", "x"),
        ("coalesce(0, 'x')", "0"),
        ("coalesce(false, 'x')", "false"),
        ("coalesce(l)", "a"),
        ("coalesce(split('x,y', ','))", "x"),
        ("coalesce('')", ""),
        ("coalesce(el)", ""),
        ("coalesce('x')", E),
        ("coalesce(5)", E),
        ("coalesce('', '')", ""),
        ("coalesce(regex_extract('ab', '(b)'), 'd')", "b"),
        ("coalesce(regex_extract('OU=ops,O=acme', 'OU=([a-z]+)'), 'none')", "ops"),
        ("coalesce(empty, l)", "a"),
        ("coalesce(regex_extract('ab', '(x)'), 'd')", "d"),
        ("coalesce(nth(1, regex_extract('ab', '(b)')), 'd')", "b"),
    ],
)
def test_what_is_not_there(source: str, expected: Any) -> None:
    check(source, expected)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("upper(5)", E),
        ("upper(2.5)", E),
        ("strlen(5)", E),
        ("lower(n)", E),
        ("trim(5)", E),
        ("reverse(5)", E),
        ("regex_match(5, '5')", E),
        ("regex_replace('5', 5, 'x')", E),
        ("regex_extract(5, '(.)')", E),
        ("substr(5, 0)", E),
        ("rm_prefix(55, '5')", E),
        ("split(5, ',')", E),
        ("tokens(5, ',')", E),
        ("pad(5, 3)", E),
        ("replace(5, '5', 'x')", E),
        ("find(5, '5')", E),
        ("ascii(5)", E),
        ("unescape(5)", E),
        ("upper(true)", "TRUE"),
        ("strlen(false)", "5"),
        ("reverse(t)", "eurt"),
        ("regex_match(t, '^true$')", "true"),
        ("upper(nul)", ""),
        ("upper(json_value('{}', 'a'))", E),
        ("strlen(json_value('{}', 'a'))", E),
        ("upper(l)", E),
        ("upper(m)", E),
        ("any_to_str(5)", "5"),
        ("any_to_str(2.50)", "2.5"),
        ("any_to_str(t)", "true"),
        ("any_to_str(l)", '["a","b","c"]'),
        ("any_to_str(deep)", '{"a":{"b":"x"}}'),
        ("any_to_str(json_value('{}', 'a'))", ""),
        ("any_to_str(el)", ""),
        ("any_to_str(split('', ','))", "[]"),
        ("any_to_str(em)", "{}"),
        ("concat([1, '-', 2.0, '-', t])", "1-2.0-true"),
        ("concat([json_value('{}', 'a'), 'x'])", "x"),
        ("num_add(1, 2)", CompileError),
        ("num_gt('2', 1)", E),
        ("num_gt(t, 1)", E),
        ("num_eq(nul, 0)", E),
    ],
)
def test_coercion(source: str, expected: Any) -> None:
    if expected is CompileError:
        with pytest.raises(CompileError):
            compile_expression(source)
        return
    check(source, expected)


@pytest.mark.parametrize(
    ("source", "reason", "details"),
    [
        ("nowhere.x", "var_unbound", {"var_name": "nowhere.x"}),
        ("l", "bad_return", {"expected": "string"}),
        ("coalesce('x')", "coalesce_badarg", {}),
        ("upper(5)", "badarg", {"function": "upper"}),
        ("maps.get('q', m)", "badkey", {"key": "q"}),
    ],
)
def test_errors_have_a_stable_reason(source: str, reason: str, details: dict[str, Any]) -> None:
    with pytest.raises(EvalError) as caught:
        evaluate(source)
    assert caught.value.reason == reason
    assert details.items() <= caught.value.details.items()
