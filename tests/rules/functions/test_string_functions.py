"""Strings, whose lengths and positions count what a reader takes for one character."""

from __future__ import annotations

from typing import Any

import pytest

from rules.sql.values import UNDEFINED
from tests.support.calls import check, fails, refused

FAMILY = "👨\u200d👩\u200d👧"
COLUMNS: dict[str, Any] = {
    "payload": '{"n":null,"o":{"b":1,"a":"x"},"l":[1,"a",true],"f":1.5,"t":true,"codes":[72,105],"el":[]}',
    "fam": FAMILY,
    "acc": "e\u0301a",
    "ws": " \t\r\nabc \r\n\t",
    "crlf": "a\r\nb",
    "bs": "a\\b'c",
}


@pytest.mark.parametrize(
    ("expression", "want"),
    [
        ("lower('ABCÉ')", "abcé"),
        ("upper('straße')", "STRASSE"),
        ("upper(true)", "TRUE"),
        ("trim(ws)", "abc"),
        ("ltrim(ws)", "abc \r\n\t"),
        ("rtrim(ws)", " \t\r\nabc"),
        ("rtrim('abcxyyx', 'xy')", "abc"),
        ("rtrim('abc', '')", "abc"),
        ("ltrim('xxabc', 'x')", "abc"),
        ("trim('xxabcxx', 'x')", "abc"),
        ("reverse('abc')", "cba"),
        ("reverse('é你')", "你é"),
        ("reverse(acc)", "ae\u0301"),
        ("reverse(fam)", FAMILY),
        ("reverse('')", ""),
        ("strlen('abc')", 3),
        ("strlen('')", 0),
        ("strlen('你好')", 2),
        ("strlen(fam)", 1),
        ("strlen(acc)", 2),
        ("strlen(crlf)", 3),
        ("strlen(true)", 4),
        ("substr('abcdef', 2)", "cdef"),
        ("substr('abcdef', 2, 2)", "cd"),
        ("substr('abcdef', 6)", ""),
        ("substr('abcdef', 99)", ""),
        ("substr('abcdef', 4, 99)", "ef"),
        ("substr('abc', 0, 0)", ""),
        ("substr('你好吗', 1, 1)", "好"),
        ("substr(acc, 0, 1)", "e\u0301"),
        ("concat('a', 'b')", "ab"),
        ("concat(1, 2)", "12"),
        ("concat('x', payload.q)", "xundefined"),
        ("concat('x', payload.n)", "xnull"),
        ("concat('a', 1, true, 1.5)", "a1true1.5"),
        ("concat(['a', 1])", "a1"),
        ("concat(payload.el)", ""),
        ("concat('x', payload.codes)", "x[72,105]"),
        ("sprintf('hello')", "hello"),
        ("sprintf('~s-~s', 'a', 'b')", "a-b"),
        ("sprintf('~ts', '你')", "你"),
        ("sprintf('~p', 'a')", '<<"a">>'),
        ("sprintf('~p', 5)", "5"),
        ("sprintf('~w', 'ab')", "<<97,98>>"),
        ("sprintf('~b', 255)", "255"),
        ("sprintf('~.16b', 255)", "ff"),
        ("sprintf('~.16B', 255)", "FF"),
        ("sprintf('~.2b', -5)", "-101"),
        ("sprintf('~.36b', 35)", "z"),
        ("sprintf('~.7b', 50)", "101"),
        ("sprintf('~3..0b', 5)", "005"),
        ("sprintf('~f', 1.5)", "1.500000"),
        ("sprintf('~.2f', 1.555)", "1.55"),
        ("sprintf('~.3e', 12345.0)", "1.23e+4"),
        ("sprintf('~g', 1.5)", "1.50000"),
        ("sprintf('~c', 65)", "A"),
        ("sprintf('~3c', 65)", "AAA"),
        ("sprintf('a~nb')", "a\nb"),
        ("sprintf('~~')", "~"),
        ("sprintf('~10s|', 'ab')", "        ab|"),
        ("sprintf('~-10s|', 'ab')", "ab        |"),
        ("sprintf('~2s', 'abc')", "ab"),
        ("sprintf('~*s', 4, 'ab')", "  ab"),
        ("sprintf('~i~s', 1, 'a')", "a"),
        ("sprintf('~2b', 12345)", "**"),
        ("sprintf('~p', payload.l)", '[1,<<"a">>,true]'),
        ("sprintf('~p', payload.o)", '#{<<"a">> => <<"x">>,<<"b">> => 1}'),
        ("sprintf_s('~s-~b', ['a', 1])", "a-1"),
        ("sprintf_s('a', payload.el)", "a"),
        ("pad('abc', 5)", "abc  "),
        ("pad('abc', 5, 'trailing')", "abc  "),
        ("pad('abc', 5, 'leading')", "  abc"),
        ("pad('abc', 6, 'both')", " abc  "),
        ("pad('abc', 5, 'trailing', 'ex')", "abcexex"),
        ("pad('abc', 5, 'both', '0')", "0abc0"),
        ("pad('abc', 2)", "abc"),
        ("pad('abc', -1)", "abc"),
        ("pad('你', 2, 'leading', '*')", "*你"),
        ("replace('aXbXc', 'X', '-')", "a-b-c"),
        ("replace('aXbXc', 'X', '-', 'all')", "a-b-c"),
        ("replace('aXbXc', 'X', '-', 'leading')", "a-bXc"),
        ("replace('aXbXc', 'X', '-', 'trailing')", "aXb-c"),
        ("replace('abc', '', '-')", "abc"),
        ("replace('abc', 'x', '-')", "abc"),
        ("replace('a.c', '.', '')", "ac"),
        ("split('a/b//c', '/')", ["a", "b", "c"]),
        ("split('a/b//c', '/', 'notrim')", ["a", "b", "", "c"]),
        ("split('/a/b', '/', 'leading')", ["a/b"]),
        ("split('a/b/c', '/', 'leading')", ["a", "b/c"]),
        ("split('a/b/c', '/', 'trailing')", ["a/b", "c"]),
        ("split('a/b/', '/', 'trailing')", ["a/b"]),
        ("split('/a/b', '/', 'leading_notrim')", ["", "a/b"]),
        ("split('a/b/', '/', 'trailing_notrim')", ["a/b", ""]),
        ("split('abc', '')", ["abc"]),
        ("split('', '/')", []),
        ("split('', '/', 'notrim')", [""]),
        ("split('aXXb', 'XX')", ["a", "b"]),
        ("tokens(' a b;c ', ' ;')", ["a", "b", "c"]),
        ("tokens(crlf, ' ', 'nocrlf')", ["a", "b"]),
        ("tokens(crlf, ' ')", ["a\r\nb"]),
        ("tokens('', ' ')", []),
        ("tokens('abc', '')", ["abc"]),
        ("find('eeabcabcee', 'abc')", "abcabcee"),
        ("find('eeabcabcee', 'abc', 'leading')", "abcabcee"),
        ("find('eeabcabcee', 'abc', 'trailing')", "abcee"),
        ("find('abc', 'x')", ""),
        ("find('abc', '')", "abc"),
        ("join_to_string(['a', 'b'])", "a, b"),
        ("join_to_string('-', ['a', 1, true])", "a-1-true"),
        ("join_to_string('-', payload.el)", ""),
        ("join_to_string('-', [payload.n, payload.q])", "null-undefined"),
        (
            "join_to_sql_values_string([1, 1.5, 'a', true, payload.n, payload.q])",
            "1, 1.5, 'a', 'true', NULL, NULL",
        ),
        (
            "join_to_sql_values_string(['''); DROP --', 'null', [payload.n]])",
            "'''); DROP --', 'null', '[null]'",
        ),
        (
            "join_to_sql_values_string([payload.o, payload.l])",
            """'{"b":1,"a":"x"}', '[1,"a",true]'""",
        ),
        ("join_to_sql_values_string([bs])", "'a\\b''c'"),
        ("join_to_sql_values_string(payload.el)", ""),
        ("ascii('a')", 97),
        ("ascii('abc')", 97),
        ("ascii('é')", 0xC3),
        ("rm_prefix('abc', 'ab')", "c"),
        ("rm_prefix('abc', 'x')", "abc"),
        ("rm_prefix('ababc', 'ab')", "abc"),
    ],
)
def test_value(expression: str, want: Any) -> None:
    check(expression, want, **COLUMNS)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        (r"a\nb\tc\rd", "a\nb\tc\rd"),
        (r"\b\f\v\a", "\b\f\v\a"),
        (r"\'\"\?\\", "'\"?\\"),
        (r"\x41", "A"),
        (r"\x4F60", "你"),
        (r"\x00000000000041", "A"),
        ("plain", "plain"),
    ],
)
def test_unescape(text: str, want: str) -> None:
    check("unescape(s)", want, s=text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (r"\q", r"no escape \q"),
        ("a\\", "no escape \\"),
        (r"\xD800", "is not a code point"),
        (r"\x110000", "is not a code point"),
        (r"\xFFFFFFFFFFFFFFFFFFFF", "is not a code point"),
        (r"\xg", r"no escape \x"),
    ],
)
def test_unescape_refuses(text: str, message: str) -> None:
    fails("unescape(s)", message, s=text)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("lower(1)", "must be a string, not an integer"),
        ("upper(payload.q)", "not undefined"),
        ("trim(payload.n)", "not null"),
        ("strlen(payload.l)", "not an array"),
        ("strlen(b)", "valid UTF-8 text"),
        ("reverse(5)", "not an integer"),
        ("substr('abc', -1)", "an integer of at least 0"),
        ("substr('abc', 0, -1)", "an integer of at least 0"),
        ("substr('abc', '1')", "not a string"),
        ("substr('abc', 1.0)", "not a float"),
        ("concat('a')", "takes several values or one array, not a string"),
        ("concat()", "cannot take 0 arguments"),
        ("sprintf('~s')", "asks for 1 arguments, there are 0"),
        ("sprintf('~s', 'a', 'b')", "asks for 1 arguments, there are 2"),
        ("sprintf(f, 'a')", "more arguments than the format"),
        ("sprintf('~s', 5)", "~s needs a string"),
        ("sprintf('~b', 'a')", "~b needs an integer"),
        ("sprintf('~f', 5)", "~f needs a float"),
        ("sprintf('~c', -1)", "character code"),
        ("sprintf('~c', 55296)", "character code"),
        ("sprintf('~*s', 'x', 'a')", "'*' needs an integer"),
        ("sprintf(5)", "must be a format, not an integer"),
        ("sprintf_s('~s', 'a')", "must be an array"),
        ("sprintf_s('~s', payload.el)", "fewer arguments"),
        ("pad('abc', 5, w)", "one of 'trailing', 'leading', 'both', not 'plain'"),
        ("pad('abc', '5')", "must be an integer"),
        ("replace(true, 'a', 'b')", "must be a string, not a boolean"),
        ("replace('a', 1, 'b')", "must be a string, not an integer"),
        ("replace('a', 'a', 'b', w)", "one of 'all', 'leading', 'trailing'"),
        ("split('a', '/', w)", "not 'plain'"),
        ("split(1, '/')", "must be a string"),
        ("tokens('a', ' ', w)", "one of 'nocrlf'"),
        ("find('a', 'a', w)", "one of 'leading', 'trailing'"),
        ("join_to_string('a')", "takes ([separator,] list)"),
        ("join_to_string(1, ['a'])", "takes ([separator,] list)"),
        ("join_to_sql_values_string('a')", "must be an array"),
        ("join_to_sql_values_string([b])", "not UTF-8"),
        ("ascii('')", "the string is empty"),
        ("rm_prefix('a', 1)", "must be a string"),
    ],
)
def test_failure(expression: str, message: str) -> None:
    fails(expression, message, b=b"\xff", f="plain", w="plain", **COLUMNS)


@pytest.mark.parametrize(
    ("expression", "column", "message"),
    [
        (
            "pad(topic, 5, 'middle')",
            22,
            "pad: argument 3 must be one of 'trailing', 'leading', 'both', not 'middle'",
        ),
        (
            "split(topic, '/', 'both')",
            26,
            "split: argument 3 must be one of 'notrim', 'leading', 'leading_notrim',",
        ),
        ("substr(topic, -1)", 22, "substr: argument 2 must be an integer of at least 0"),
        (
            "sprintf('~q', topic)",
            16,
            "sprintf: argument 1 must be a format; there is no control sequence ~q",
        ),
        (
            "sprintf('100~', topic)",
            16,
            "sprintf: argument 1 must be a format; there is no control sequence ~",
        ),
        (
            "sprintf('~.99b', qos)",
            16,
            "sprintf: argument 1 must be a format; the base of ~.99b is not from 2 to 36",
        ),
        (
            "sprintf('~99999s', topic)",
            16,
            "sprintf: argument 1 must be a format with widths of at most 10000",
        ),
        ("sprintf('~s ~s', topic)", 16, "sprintf: the format asks for 2 arguments, there are 1"),
        (
            "sprintf_s('~q', payload)",
            18,
            "sprintf_s: argument 1 must be a format; there is no control sequence ~q",
        ),
    ],
)
def test_a_literal_that_can_never_work_is_refused_when_saved(
    expression: str, column: int, message: str
) -> None:
    (problem,) = refused(expression)
    assert problem.column == column
    assert problem.message.startswith(message)
    assert problem.suggestion is not None
    assert problem.suggestion.startswith("it is called ")


def test_lists_of_small_integers_stay_lists() -> None:
    """Upstream takes [72,105] for the text Hi and [] for the empty one."""
    check("str(payload.codes)", "[72,105]", **COLUMNS)
    check("str(payload.el)", "[]", **COLUMNS)
    check("payload.q", UNDEFINED, **COLUMNS)
