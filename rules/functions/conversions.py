"""Types: asking for them and converting between them."""

from __future__ import annotations

import binascii
import math
from collections.abc import Callable
from typing import Annotated, Any

from rules.functions.registry import (
    Bool,
    Data,
    Float,
    Int,
    Number,
    StrictText,
    between,
    failure,
    function,
)
from rules.functions.spark_form import EXACT, SparkForm, forms, type_tests
from rules.sql import paths
from rules.sql.values import (
    NUMBERS,
    STRINGS,
    UNDEFINED,
    Bits,
    check_size,
    number_of_text,
    text_of,
    type_name,
)
from transforms.variform.functions_compare import OPERATORS, order_word

_STR = (SparkForm(("printable",), "{0}", "string", takes_undefined=True),)
_INT = (
    *forms("long", value="{0}"),
    *forms("float", "number", value="floor({0})", gives="long", unless=f"NOT ({{0}} {EXACT})"),
    *forms("boolean", value="CAST({0} AS BIGINT)", gives="long"),
)
_FLOAT = (SparkForm(("double",), "{0}", "float"),)


@function(returns="boolean", spark=type_tests("string"))
def is_str(x: Any) -> bool:
    """True if the value is a string."""
    return type(x) in STRINGS


@function(returns="boolean", spark=type_tests("boolean"))
def is_bool(x: Any) -> bool:
    """True if the value is a boolean."""
    return type(x) is bool


@function(returns="boolean", spark=type_tests("long"))
def is_int(x: Any) -> bool:
    """True if the value is an integer."""
    return type(x) is int


@function(returns="boolean", spark=type_tests("float"))
def is_float(x: Any) -> bool:
    """True if the value is a float; 1.0 is one."""
    return type(x) is float


@function(returns="boolean", spark=type_tests("long", "float", "number"))
def is_num(x: Any) -> bool:
    """True if the value is a number."""
    return type(x) in NUMBERS


@function(returns="boolean", spark=type_tests())
def is_map(x: Any) -> bool:
    """True if the value is a map; JSON text is not."""
    return type(x) is dict


@function(returns="boolean", spark=type_tests())
def is_array(x: Any) -> bool:
    """True if the value is an array; JSON text is not."""
    return type(x) is list


@function(returns="boolean")
def is_empty(x: Any) -> bool:
    """True if a string, array, map or the JSON text of an object is empty; fails on anything else."""
    if type(x) in (list, dict) or x == "":
        return not x
    inner = paths.decoded(x)
    if type(inner) is dict:
        return not inner
    raise failure(
        "is_empty", f"takes a map, an array, '' or the JSON text of a map, not {type_name(x)}"
    )


@function(name="str", returns="string", spark=_STR)
def str_(x: Any) -> Any:
    """The text of a value."""
    return text_of(x)


@function(returns="string", spark=_STR)
def str_utf8(x: Any) -> Any:
    """The text of a value, as UTF-8."""
    return text_of(x)


@function(returns="binary")
def str_utf16_le(x: Any) -> bytes:
    """The text of a value, as bytes of UTF-16, little endian."""
    text = text_of(x)
    if isinstance(text, bytes):
        raise failure("str_utf16_le", "the string is not UTF-8 text")
    check_size(2 * len(text))
    return text.encode("utf-16-le")


@function(name="bool", returns="boolean", spark=forms("boolean", value="{0}"))
def bool_(x: Any) -> bool:
    """A boolean of true, false, 1, 0, 'true' or 'false'."""
    if type(x) is bool:
        return x
    if type(x) in NUMBERS and x in (0, 1):
        return bool(x)
    if type(x) is str and x in ("true", "false"):
        return x == "true"
    raise failure("bool", f"takes true, false, 1, 0, 'true' or 'false', not {_shown(x)}")


@function(name="int", returns="long", spark=_INT)
def int_(x: Any) -> int:
    """An integer of a number (rounded down), a boolean or a numeric string."""
    if type(x) is str:
        number = number_of_text(x)
        if number is None:
            raise failure("int", f"{_shown(x)} is not a number")
        x = number
    if type(x) in NUMBERS or type(x) is bool:
        result: int = math.floor(x)
        return result
    raise failure("int", f"cannot convert {_shown(x)}")


@function(name="float", returns="double", spark=_FLOAT)
def float_(x: Any, decimals: Annotated[int, between(1, 253)] | None = None) -> float:
    """A float of a number or a numeric string, rounded to a number of decimals (1 to 253)."""
    if type(x) is str:
        number = number_of_text(x)
        if number is None:
            raise failure("float", f"{_shown(x)} is not a number")
        x = number
    if type(x) not in NUMBERS:
        raise failure("float", f"cannot convert {_shown(x)}")
    try:
        value = float(x)
    except OverflowError:
        raise failure("float", "the number is beyond the range of floats") from None
    if decimals is None:
        return value
    return float(f"{value:.{decimals}f}")


@function(returns="string")
def float2str(x: Float, decimals: Annotated[int, between(0, 253)]) -> str:
    """The exact decimal expansion of a float, cut to a number of decimals (0 to 253), without trailing zeros."""
    text = f"{x:.{decimals}f}"
    whole, point, fraction = text.partition(".")
    return f"{whole}.{fraction.rstrip('0') or '0'}" if point else text


@function(name="map", returns="map")
def map_(x: Any) -> Any:
    """A map as it is, or of the JSON text of one; an empty array gives an empty map."""
    if type(x) is dict:
        return x
    if type(x) is list and not x:
        return {}
    inner = paths.decoded(x)
    if type(inner) is dict:
        return inner
    raise failure("map", f"cannot convert {_shown(x)}")


@function(returns="string", spark=(SparkForm(("string",), "hex(CAST({0} AS BINARY))", "string"),))
def bin2hexstr(data: Any, prefix: StrictText = "") -> str:
    """Bytes as upper-case hexadecimal digits."""
    if type(data) is Bits:
        digits = -(-data.size // 4)
        return prefix + (f"{data.value:0{digits}X}" if digits else "")
    if type(data) is str:
        data = data.encode()
    if type(data) is not bytes:
        raise failure("bin2hexstr", f"argument 1 must be a string, not {type_name(data)}")
    check_size(2 * len(data))
    return prefix + data.hex().upper()


@function(returns="string")
def int2hexstr(x: Int) -> str:
    """An integer as upper-case hexadecimal digits, without a prefix."""
    return f"{x:X}"


@function(
    returns="string",
    spark=(SparkForm(("string",), "concat('0x', hex(CAST({0} AS BINARY)))", "string"),),
)
def sqlserver_bin2hexstr(data: Data) -> str:
    """Bytes as hexadecimal digits after 0x."""
    check_size(2 * len(data))
    return "0x" + data.hex().upper()


@function(returns="binary")
def hexstr2bin(digits: StrictText, prefix: StrictText = "") -> bytes:
    """Hexadecimal digits as bytes; a leading 0 is added to an odd number of them."""
    if not digits.startswith(prefix):
        raise failure("hexstr2bin", f"the text does not begin with {prefix!r}")
    digits = digits[len(prefix) :]
    try:
        return binascii.unhexlify("0" * (len(digits) % 2) + digits)
    except ValueError:
        raise failure(
            "hexstr2bin", "the text holds something else than hexadecimal digits"
        ) from None


def _shown(value: Any) -> str:
    return repr(value[:40]) if type(value) is str else type_name(value)


# Comparing as text or as numbers, whatever ``=`` and ``<`` would do; and choosing.


def _bytes(value: Any) -> bytes:
    text = text_of(value)
    return text if isinstance(text, bytes) else text.encode()


@function(returns="string")
def str_comp(a: Any, b: Any) -> str:
    """The order of the text of a and that of b, by bytes: ``eq``, ``lt`` or ``gt``."""
    return order_word(_bytes(a), _bytes(b))


@function(returns="string")
def num_comp(a: Number, b: Number) -> str:
    """The order of the numbers a and b, by value: ``eq``, ``lt`` or ``gt``."""
    return order_word(a, b)


def _register(suffix: str, operator: Callable[[Any, Any], bool], says: str) -> None:
    def of_texts(a: Any, b: Any) -> bool:
        return operator(_bytes(a), _bytes(b))

    def of_numbers(a: Number, b: Number) -> bool:
        return operator(a, b)

    of_texts.__doc__ = f"True if the text of a {says} that of b, by bytes."
    of_numbers.__doc__ = f"True if the number a {says} b, by value."
    function(name=f"str_{suffix}", returns="boolean")(of_texts)
    function(name=f"num_{suffix}", returns="boolean")(of_numbers)


for _suffix, (_operator, _says) in OPERATORS.items():
    _register(_suffix, _operator, _says)


@function()
def iif(condition: Bool, then: Any, otherwise: Any) -> Any:
    """The second argument where the condition is true, else the third; both are worked out."""
    return then if condition else otherwise


@function(returns="boolean")
def is_empty_val(x: Any) -> bool:
    """True if a value is undefined, null, the empty string or an empty array."""
    return x is UNDEFINED or x is None or (type(x) in (str, bytes, list) and not x)
