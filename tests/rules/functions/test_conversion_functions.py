"""Asking for types and converting between them."""

from __future__ import annotations

from typing import Any

import pytest

from rules.sql.values import UNDEFINED
from tests.support.calls import check, fails, refused

PAYLOAD = (
    '{"n":null,"o":{"a":1},"eo":{},"l":[1],"el":[],"f":1.5,"i":1,"s":"x","es":"","t":true,'
    '"neg":-1.9,"big":1e300,"line":"21.5\\n"}'
)


@pytest.mark.parametrize(
    ("expression", "want"),
    [
        ("is_str('a')", True),
        ("is_str(1)", False),
        ("is_str(payload.t)", False),
        ("is_str(hexstr2bin('FF'))", True),
        ("is_bool(true)", True),
        ("is_bool('true')", False),
        ("is_bool(1)", False),
        ("is_int(1)", True),
        ("is_int(1.0)", False),
        ("is_int('1')", False),
        ("is_float(1.0)", True),
        ("is_float(1)", False),
        ("is_num(1)", True),
        ("is_num(1.5)", True),
        ("is_num('1')", False),
        ("is_num(true)", False),
        ("is_map(payload.o)", True),
        ("is_map('{}')", False),
        ("is_array(payload.l)", True),
        ("is_array('[]')", False),
        ("is_empty('')", True),
        ("is_empty(payload.el)", True),
        ("is_empty(payload.eo)", True),
        ("is_empty('{}')", True),
        ("is_empty(' { } ')", True),
        ("is_empty('{\"a\":1}')", False),
        ("is_empty(payload.l)", False),
        ("is_empty(payload.o)", False),
        ("is_empty_val(payload.q)", True),
        ("is_empty_val(payload.n)", True),
        ("is_empty_val('')", True),
        ("is_empty_val(payload.el)", True),
        ("is_empty_val(0)", False),
        ("str(1)", "1"),
        ("str(1.0)", "1.0"),
        ("str(0.1)", "0.1"),
        ("str(1.00000000001)", "1.00000000001"),
        ("str(true)", "true"),
        ("str(payload.n)", "null"),
        ("str(payload.q)", "undefined"),
        ("str(payload.o)", '{"a":1}'),
        ("str(payload.l)", "[1]"),
        ("str_utf8('é')", "é"),
        ("str_utf16_le('hé')", b"h\x00\xe9\x00"),
        ("bin2hexstr(str_utf16_le('h'))", "6800"),
        ("bool(true)", True),
        ("bool(0)", False),
        ("bool(1)", True),
        ("bool(1.0)", True),
        ("bool(0.0)", False),
        ("bool('true')", True),
        ("bool('false')", False),
        ("int(5)", 5),
        ("int(1.9)", 1),
        ("int(payload.neg)", -2),
        ("int(true)", 1),
        ("int(false)", 0),
        ("int('12')", 12),
        ("int('+12')", 12),
        ("int('-12')", -12),
        ("int('3.14e2')", 314),
        ("int('-1.9')", -2),
        ("int('1e3')", 1000),
        ("int(' 12\r\n')", 12),
        ("int(payload.line)", 21),
        ("float(payload.line)", 21.5),
        ("float(' 6.3')", 6.3),
        ("float('5e+01')", 50.0),
        ("float('7e0')", 7.0),
        ("float('6.')", 6.0),
        ("float('.5')", 0.5),
        ("float(str(1e22))", 1e22),
        ("payload.line > 21", True),
        ("payload.line BETWEEN 21 AND 22", True),
        ("'1e22' = 1e22", True),
        ("float(3)", 3.0),
        ("float('3')", 3.0),
        ("float('3.14E-4')", 3.14e-4),
        ("float(1.23456, 2)", 1.23),
        ("float(1, 1)", 1.0),
        ("float('1.005', 253)", 1.005),
        ("float2str(20.2, 16)", "20.1999999999999993"),
        ("float2str(1.0, 2)", "1.0"),
        ("float2str(1.5, 5)", "1.5"),
        ("float2str(-2.50, 3)", "-2.5"),
        ("float2str(2.6, 0)", "3"),
        ("map(payload.o)", {"a": 1}),
        ("map('{\"a\":1}')", {"a": 1}),
        ("map(payload.el)", {}),
        ("bin2hexstr('abc')", "616263"),
        ("bin2hexstr('abc', '0x')", "0x616263"),
        ("bin2hexstr('')", ""),
        ("bin2hexstr(subbits('a', 1, 6, 'bits'))", "18"),
        ("bin2hexstr(subbits('ab', 1, 9, 'bits'))", "0C2"),
        ("hexstr2bin('616263')", "abc"),
        ("hexstr2bin('6A')", "j"),
        ("hexstr2bin('6a')", "j"),
        ("hexstr2bin('a')", "\n"),
        ("hexstr2bin('0x6a', '0x')", "j"),
        ("hexstr2bin('')", ""),
        ("hexstr2bin('FF')", b"\xff"),
        ("sqlserver_bin2hexstr('ab')", "0x6162"),
        ("int2hexstr(255)", "FF"),
        ("int2hexstr(-255)", "-FF"),
    ],
)
def test_value(expression: str, want: Any) -> None:
    check(expression, want, payload=PAYLOAD)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("is_empty(payload.q)", "not undefined"),
        ("is_empty(payload.n)", "not null"),
        ("is_empty(5)", "not an integer"),
        ("is_empty('x')", "not a string"),
        ("is_empty('[]')", "not a string"),
        ("str_utf16_le(hexstr2bin('FF'))", "not UTF-8"),
        ("str(subbits('a', 1, 6, 'bits'))", "use bin2hexstr"),
        ("bool(2)", "takes true, false, 1, 0"),
        ("bool('TRUE')", "takes true, false, 1, 0"),
        ("bool('1')", "takes true, false, 1, 0"),
        ("bool(payload.n)", "takes true, false, 1, 0"),
        ("int('abc')", "'abc' is not a number"),
        ("int('1 0')", "is not a number"),
        ("int('1e')", "is not a number"),
        ("int('.')", "is not a number"),
        ("int('\u0661')", "is not a number"),
        ("int('')", "is not a number"),
        ("int(payload.n)", "cannot convert null"),
        ("int(payload.q)", "cannot convert undefined"),
        ("int(payload.l)", "cannot convert an array"),
        ("float('1_0')", "is not a number"),
        ("float('0x1')", "is not a number"),
        ("float('1e400')", "is not a number"),
        ("float('nan')", "is not a number"),
        ("float(true)", "cannot convert a boolean"),
        ("float(payload.i, payload.i - 1)", "an integer from 1 to 253"),
        ("float(payload.i, payload.i - 2)", "an integer from 1 to 253"),
        ("float2str(1, 2)", "must be a float, not an integer"),
        ("float2str(payload.f, payload.i - 2)", "an integer from 0 to 253"),
        ("map('[1]')", "cannot convert"),
        ("map(payload.l)", "cannot convert an array"),
        ("map('x')", "cannot convert 'x'"),
        ("map(5)", "cannot convert an integer"),
        ("hexstr2bin('xy')", "something else than hexadecimal digits"),
        ("hexstr2bin('é')", "something else than hexadecimal digits"),
        ("hexstr2bin('6a', '0x')", "does not begin with '0x'"),
        ("bin2hexstr(5)", "must be a string, not an integer"),
        ("int2hexstr(1.5)", "must be an integer"),
    ],
)
def test_failure(expression: str, message: str) -> None:
    fails(expression, message, payload=PAYLOAD)


@pytest.mark.parametrize(
    ("expression", "column", "message"),
    [
        ("float(payload.f, 0)", 25, "float: argument 2 must be an integer from 1 to 253"),
        ("float(payload.f, 254)", 25, "float: argument 2 must be an integer from 1 to 253"),
        ("float2str(payload.f, -1)", 29, "float2str: argument 2 must be an integer from 0 to 253"),
        (
            "hexstr2bin('0g')",
            8,
            "hexstr2bin: the text holds something else than hexadecimal digits",
        ),
        ("int('e5')", 8, "int: 'e5' is not a number"),
    ],
)
def test_a_literal_that_can_never_work_is_refused_when_saved(
    expression: str, column: int, message: str
) -> None:
    (problem,) = refused(expression)
    assert (problem.column, problem.message) == (column, message)


def test_undefined_stays_undefined_where_anything_goes() -> None:
    check("is_null(payload.q)", True, payload=PAYLOAD)
    check("payload.q", UNDEFINED, payload=PAYLOAD)
