"""Numbers, comparisons and bits."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest

from rules.sql.values import UNDEFINED
from tests.support.calls import check, evaluate, fails, refused


@pytest.mark.parametrize(
    ("expression", "want"),
    [
        ("abs(-3)", 3),
        ("abs(-3.5)", 3.5),
        ("abs(0)", 0),
        ("ceil(1.2)", 2),
        ("ceil(-1.2)", -1),
        ("ceil(3)", 3),
        ("floor(1.8)", 1),
        ("floor(-1.2)", -2),
        ("round(2.5)", 3),
        ("round(-2.5)", -3),
        ("round(2.4)", 2),
        ("round(0.49999999999999994)", 0),
        ("round(7)", 7),
        ("sqrt(9)", 3.0),
        ("exp(0)", 1.0),
        ("power(2, 3)", 8.0),
        ("power(2, -1)", 0.5),
        ("log(1)", 0.0),
        ("log10(1000)", 3.0),
        ("log2(8)", 3.0),
        ("fmod(7, 3)", 1.0),
        ("fmod(-7, 3)", -1.0),
        ("fmod(7, -3)", 1.0),
        ("sin(0)", 0.0),
        ("cos(0)", 1.0),
        ("tan(0)", 0.0),
        ("asin(1)", math.pi / 2),
        ("acos(1)", 0.0),
        ("atan(1)", math.pi / 4),
        ("sinh(0)", 0.0),
        ("cosh(0)", 1.0),
        ("tanh(0)", 0.0),
        ("asinh(0)", 0.0),
        ("acosh(1)", 0.0),
        ("atanh(0)", 0.0),
        ("div(-5, 2)", -2),
        ("div(7, -2)", -3),
        ("mod(-5, 3)", -2),
        ("mod(5, -3)", 2),
        ("eq(1, 1.0)", True),
        ("eq('1', 1)", False),
        ("eq(payload.q, payload.r)", True),
        ("eq(payload.q, 1)", False),
        ("eq('a', 'a')", True),
        ("bitnot(5)", -6),
        ("bitand(12, 10)", 8),
        ("bitor(12, 10)", 14),
        ("bitxor(12, 10)", 6),
        ("bitand(-1, 255)", 255),
        ("bitsl(1, 3)", 8),
        ("bitsl(8, -3)", 1),
        ("bitsl(1, 100)", 2**100),
        ("bitsl(0, 999999999999)", 0),
        ("bitsr(8, 3)", 1),
        ("bitsr(-8, 1)", -4),
        ("bitsr(-1, 999999999999)", -1),
        ("bitsr(1, -3)", 8),
        ("bitsize('ab')", 16),
        ("bitsize('é')", 16),
        ("bitsize('')", 0),
        ("bytesize('é')", 2),
        ("bitsize(subbits('a', 1, 6, 'bits'))", 6),
        ("bytesize(subbits('a', 1, 6, 'bits'))", 1),
        ("subbits('a', 8)", 0x61),
        ("subbits('a', 1)", 0),
        ("subbits('a', 0)", 0),
        ("subbits('ab', 9, 8)", 0x62),
        ("subbits('ab', 9, 99)", 0x62),
        ("subbits('ab', 17, 8)", UNDEFINED),
        ("subbits('ab', 0, 8)", UNDEFINED),
        ("subbits('ab', -1, 8)", UNDEFINED),
        ("subbits('', 1)", UNDEFINED),
        ("subbits(hexstr2bin('FF'), 1, 8, 'integer', 'signed')", -1),
        ("subbits(hexstr2bin('FF'), 1, 8, 'integer', 'unsigned')", 255),
        ("subbits(hexstr2bin('0102'), 1, 16, 'integer', 'unsigned', 'little')", 0x0201),
        ("subbits(hexstr2bin('FEFF'), 1, 16, 'integer', 'signed', 'little')", -2),
        ("subbits(hexstr2bin('9F4E58'), 5, 12)", 0xF4E),
        ("subbits(hexstr2bin('3C00'), 1, 16, 'float')", 1.0),
        ("subbits(hexstr2bin('3FC00000'), 1, 32, 'float')", 1.5),
        ("subbits(hexstr2bin('0000C03F'), 1, 32, 'float', 'unsigned', 'little')", 1.5),
        ("subbits(hexstr2bin('4015333333333333'), 1, 64, 'float')", 5.3),
        ("subbits('ab', 1, 8, 'bits')", "a"),
        ("subbits(subbits('a', 1, 6, 'bits'), 6)", 0x61 >> 2),
        ("str_comp('a', 'b')", "lt"),
        ("str_comp(10, 9)", "lt"),
        ("str_comp('a', 'a')", "eq"),
        ("str_comp('b', 'a')", "gt"),
        ("str_eq(1, 1.0)", False),
        ("str_eq(1, '1')", True),
        ("str_neq(1, 2)", True),
        ("str_lt('a', 'b')", True),
        ("str_lte('a', 'a')", True),
        ("str_gt(9, 10)", True),
        ("str_gte('a', 'b')", False),
        ("num_comp(1, 1.0)", "eq"),
        ("num_comp(1, 2)", "lt"),
        ("num_comp(2, 1.5)", "gt"),
        ("num_eq(1, 1.0)", True),
        ("num_neq(1, 1.0)", False),
        ("num_lt(1, 2)", True),
        ("num_lte(2, 2.0)", True),
        ("num_gt(9007199254740993, 9007199254740992.0)", True),
        ("num_gte(1, 2)", False),
        ("iif(true, 1, 2)", 1),
        ("iif(false, 1, 2)", 2),
    ],
)
def test_value(expression: str, want: Any) -> None:
    check(expression, want, payload="{}")


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("abs('1')", "must be a number, not a string"),
        ("abs(true)", "must be a number, not a boolean"),
        ("ceil('1')", "must be a number"),
        ("round(payload.q)", "must be a number, not undefined"),
        ("sqrt(-1)", "has no finite value at -1"),
        ("sqrt('9')", "must be a number"),
        ("exp(1000)", "has no finite value"),
        ("power(10, 400)", "has no finite value"),
        ("power(-1, 0.5)", "has no finite value"),
        ("power(0, -1)", "has no finite value"),
        ("power(payload.huge, 4)", "has no finite value at an integer of 333 bits, 4"),
        ("log(0)", "has no finite value"),
        ("log(-1)", "has no finite value"),
        ("fmod(1, 0)", "has no finite value"),
        ("asin(2)", "has no finite value"),
        ("acosh(0)", "has no finite value"),
        ("atanh(1)", "has no finite value"),
        ("div(1, 0)", "by zero"),
        ("div(1.0, 1)", "needs two integers"),
        ("mod(1, 0)", "by zero"),
        ("mod(1, '1')", "needs two integers"),
        ("bitand(1.0, 1)", "must be an integer, not a float"),
        ("bitnot('1')", "must be an integer"),
        ("bitsl(1, '2')", "must be an integer"),
        ("bitsize(5)", "must be a string, not an integer"),
        ("bytesize(payload.q)", "must be a string, not undefined"),
        ("subbits(123, 8)", "must be a string"),
        ("subbits('abc', '8')", "must be an integer"),
        ("subbits('abc', -1)", "must be an integer of at least 0"),
        ("subbits('abc', 1, -1)", "must be an integer of at least 0"),
        ("subbits('abc', 1, 8, 'float')", "16, 32 or 64 bits"),
        ("subbits(hexstr2bin('7F800000'), 1, 32, 'float')", "not a finite float"),
        ("subbits(hexstr2bin('7FC00000'), 1, 32, 'float')", "not a finite float"),
        ("num_eq('1', 1)", "must be a number"),
        ("iif(1, 2, 3)", "must be a boolean"),
        ("random(1)", "cannot take 1 argument"),
    ],
)
def test_failure(expression: str, message: str) -> None:
    fails(expression, message, payload='{"huge":' + "9" * 100 + "}")


@pytest.mark.parametrize(
    ("expression", "column", "message"),
    [
        ("subbits(payload, 1, 8, 'text')", 31, "one of 'integer', 'float', 'bits', not 'text'"),
        ("subbits(payload, 1, 8, 'bits', 'both')", 39, "one of 'unsigned', 'signed', not 'both'"),
        (
            "subbits(payload, 1, 8, 'bits', 'signed', 'middle')",
            49,
            "one of 'big', 'little', not 'middle'",
        ),
        ("subbits(payload, -8)", 25, "an integer of at least 0"),
        ("sqrt(-1)", 8, "sqrt: has no finite value at -1"),
    ],
)
def test_a_literal_that_can_never_work_is_refused_when_saved(
    expression: str, column: int, message: str
) -> None:
    (problem,) = refused(expression)
    assert problem.column == column
    assert problem.message.endswith(message)


def test_random_is_a_float_below_1_and_not_always_the_same() -> None:
    found = {evaluate("random()") for _ in range(50)}
    assert len(found) > 1
    assert all(type(value) is float and 0 <= value < 1 for value in found)


def test_subbits_reads_a_modbus_register_pair() -> None:
    data = struct.pack(">HfI", 7, 21.5, 4_000_000_000).hex()
    check(f"subbits(hexstr2bin('{data}'), 1, 16)", 7)
    check(f"subbits(hexstr2bin('{data}'), 17, 32, 'float')", 21.5)
    check(f"subbits(hexstr2bin('{data}'), 49, 32)", 4_000_000_000)
