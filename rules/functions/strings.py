"""Strings. Lengths and positions count grapheme clusters: what a reader takes for one character."""

from __future__ import annotations

from typing import Annotated, Any

import regex

from rules.functions.registry import (
    Data,
    Int,
    Items,
    StrictText,
    Text,
    at_least,
    choice,
    failure,
    function,
)
from rules.functions.spark_form import NOT_ASCII, SparkForm, spark_text
from rules.sql.limits import LARGE, MAX_ITEMS
from rules.sql.values import (
    NUMBERS,
    STRINGS,
    UNDEFINED,
    check_items,
    check_size,
    joined,
    text_of,
    type_name,
)
from rules.sql.work import spend
from transforms.variform.functions_text import ESCAPES

_GRAPHEME = regex.compile(r"\X")
_SPACE = " \t\r\n\v\f\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
Where = Annotated[str, choice("all", "leading", "trailing")]
End = Annotated[str, choice("leading", "trailing")]
PadWhere = Annotated[str, choice("trailing", "leading", "both")]
SplitHow = Annotated[
    str, choice("notrim", "leading", "leading_notrim", "trailing", "trailing_notrim")
]
Place = Annotated[int, at_least(0)]
NoCrLf = Annotated[str, choice("nocrlf")]


_COUNT = "CAST(least(greatest({1}, 0), 100000) AS INT)"
_NO_COUNT = f"{NOT_ASCII} OR {{1}} < 0 OR {{1}} > 100000"
_SUBSTR = (
    SparkForm(("string", "long"), f"substring({{0}}, {_COUNT} + 1)", "string", unless=_NO_COUNT),
    SparkForm(
        ("string", "long", "long"),
        f"substring({{0}}, {_COUNT} + 1, {_COUNT.replace('1', '2', 1)})",
        "string",
        unless=f"{_NO_COUNT} OR {{2}} < 0 OR {{2}} > 100000",
    ),
)
_PAD = tuple(
    SparkForm(
        ("string", "long", *where),
        f"CASE WHEN length({{0}}) >= {{1}} THEN {{0}} ELSE {call}({{0}}, {_COUNT}, ' ') END",
        "string",
        unless=_NO_COUNT,
    )
    for where, call in (((), "rpad"), (("'trailing'",), "rpad"), (("'leading'",), "lpad"))
)
_TRIM = {
    side: (SparkForm(("string",), f"trim({side} {spark_text(_SPACE)} FROM {{0}})", "string"),)
    for side in ("BOTH", "LEADING", "TRAILING")
}
_CONCAT = (SparkForm(("printable", "printable"), "concat({0}, {1})", "string"),)
_FIND = (
    SparkForm(
        ("string", "string"),
        "CASE WHEN contains({0}, {1}) THEN substring({0}, locate({1}, {0})) ELSE '' END",
        "string",
        unless="{1} = ''",
    ),
)
_ASCII = (
    SparkForm(
        ("string",), "CAST(ascii({0}) AS BIGINT)", "long", unless=f"{{0}} = '' OR {NOT_ASCII}"
    ),
)
_RM_PREFIX = (
    SparkForm(
        ("string", "string"),
        "CASE WHEN startswith({0}, {1}) THEN substring({0}, length({1}) + 1) ELSE {0} END",
        "string",
    ),
)


def graphemes(text: str) -> str | list[str]:
    """The characters of a string; the text itself where each is one code point."""
    if text.isascii() and "\r" not in text:
        return text
    spend(len(text), 120)
    clusters: list[str] = _GRAPHEME.findall(text)
    return clusters


@function(
    returns="string", spark=(SparkForm(("string",), "lower({0})", "string", unless=NOT_ASCII),)
)
def lower(s: Text) -> str:
    """The text in lower case."""
    if len(s) > LARGE:  # 30 ns, of a call that most rules have
        spend(len(s), 10)
    return s.lower()


@function(
    returns="string", spark=(SparkForm(("string",), "upper({0})", "string", unless=NOT_ASCII),)
)
def upper(s: Text) -> str:
    """The text in upper case."""
    if len(s) > LARGE:
        spend(len(s), 10)
    return s.upper()


@function(returns="string", spark=_TRIM["BOTH"])
def trim(s: Text, chars: Text | None = None) -> str:
    """The text without white space, or without any of the given characters, around it."""
    spend(len(s), 10)
    return s.strip(_SPACE if chars is None else chars) if chars != "" else s


@function(returns="string", spark=_TRIM["LEADING"])
def ltrim(s: Text, chars: Text | None = None) -> str:
    """The text without white space, or without any of the given characters, before it."""
    spend(len(s), 10)
    return s.lstrip(_SPACE if chars is None else chars) if chars != "" else s


@function(returns="string", spark=_TRIM["TRAILING"])
def rtrim(s: Text, chars: Text | None = None) -> str:
    """The text without white space, or without any of the given characters, after it."""
    spend(len(s), 10)
    return s.rstrip(_SPACE if chars is None else chars) if chars != "" else s


@function(
    returns="string", spark=(SparkForm(("string",), "reverse({0})", "string", unless=NOT_ASCII),)
)
def reverse(s: Text) -> str:
    """The characters from last to first."""
    return "".join(reversed(graphemes(s)))


@function(
    returns="long",
    spark=(SparkForm(("string",), "CAST(length({0}) AS BIGINT)", "long", unless=NOT_ASCII),),
)
def strlen(s: Text) -> int:
    """The number of characters."""
    return len(graphemes(s))


@function(returns="string", spark=_SUBSTR)
def substr(s: Text, start: Place, size: Place | None = None) -> str:
    """Characters from ``start``, counted from 0: the rest, or ``size`` of them."""
    characters = graphemes(s)
    part = characters[start:] if size is None else characters[start : start + size]
    return part if type(part) is str else "".join(part)


@function(
    returns="string",
    arity=(1, None),
    usage="(a, b, ...)",
    spark=_CONCAT,
)
def concat(*values: Any) -> Any:
    """The texts of values one after another; takes several values or one array of them."""
    if len(values) == 1:
        if type(values[0]) is not list:
            raise failure(
                "concat", f"takes several values or one array, not {type_name(values[0])}"
            )
        values = tuple(values[0])
        spend(len(values), 400)
    return joined(*map(text_of, values))


@function(returns="string", spark=_PAD)
def pad(s: Text, size: Int, where: PadWhere = "trailing", char: Text = " ") -> str:
    """The text filled up to a length with a character at its end, start or both."""
    missing = size - len(graphemes(s))
    if missing <= 0:
        return s
    check_size(len(s) + missing * len(char))
    if where == "leading":
        return char * missing + s
    if where == "both":
        return char * (missing // 2) + s + char * (missing - missing // 2)
    return s + char * missing


@function(
    returns="string",
    spark=(SparkForm(("string", "string", "string"), "replace({0}, {1}, {2})", "string"),),
)
def replace(s: StrictText, pattern: StrictText, by: StrictText, where: Where = "all") -> str:
    """The text with a piece replaced: everywhere, the first time or the last time."""
    if not pattern:
        return s
    if len(by) > len(pattern):
        check_size(len(s) + s.count(pattern) * (len(by) - len(pattern)))
    if where == "leading":
        return s.replace(pattern, by, 1)
    if where == "trailing":
        return by.join(s.rsplit(pattern, 1))
    return s.replace(pattern, by)


@function(returns="array")
def split(s: Text, separator: Text, how: SplitHow = "") -> list[str]:
    """The pieces between separators; empty ones are dropped unless ``notrim`` is asked for."""
    if not separator:
        return [s]
    if len(s) > MAX_ITEMS:
        check_items(s.count(separator))
    spend(len(s), 25)
    if how.startswith("leading"):
        pieces = s.split(separator, 1)
    elif how.startswith("trailing"):
        pieces = s.rsplit(separator, 1)
    else:
        pieces = s.split(separator)
    return pieces if how.endswith("notrim") else [piece for piece in pieces if piece]


@function(returns="array")
def tokens(s: Text, separators: Text, crlf: NoCrLf = "") -> list[str]:
    """The pieces between any of the characters; ``nocrlf`` adds carriage return and line feed to them."""
    marks = separators + ("\r\n" if crlf else "")
    if not marks:
        return [s] if s else []
    first = marks[0]
    if len(s) > MAX_ITEMS:
        check_items(s.count(first))
    spend(len(s) + len(marks), 70)
    if len(marks) > 1:
        s = s.translate(dict.fromkeys(map(ord, marks), first))
    return [piece for piece in s.split(first) if piece]


@function(returns="string", spark=_FIND)
def find(s: Text, pattern: Text, where: End = "leading") -> str:
    """The text from the first or last place of the pattern on; empty where it is absent."""
    if not pattern:
        return s
    at = s.find(pattern) if where == "leading" else s.rfind(pattern)
    return s[at:] if at >= 0 else ""


@function(returns="string", arity=(1, 2), usage="([separator,] list)")
def join_to_string(*arguments: Any) -> Any:
    """The texts of elements with a separator between, ``', '`` where none is given."""
    separator, items = arguments if len(arguments) == 2 else (", ", arguments[0])
    if type(separator) not in STRINGS or type(items) is not list:
        raise failure("join_to_string", "takes ([separator,] list) with a string and an array")
    spend(len(items), 500)
    parts: list[str | bytes] = []
    for position, item in enumerate(items):
        parts += [separator, text_of(item)] if position else [text_of(item)]
    return joined(*parts)


@function(returns="string")
def join_to_sql_values_string(items: Items) -> str:
    """Elements as literals of standard SQL with commas between: quotes are doubled, null and undefined are NULL."""
    spend(len(items), 600)
    literals = list(map(_sql_literal, items))
    check_size(sum(map(len, literals)) + 2 * len(literals))
    return ", ".join(literals)


def _sql_literal(value: Any) -> str:
    if value is UNDEFINED or value is None:
        return "NULL"
    text = text_of(value)
    if isinstance(text, bytes):
        raise failure(
            "join_to_sql_values_string", "an element is a binary string that is not UTF-8"
        )
    if type(value) in NUMBERS:
        return text
    return "'" + text.replace("'", "''") + "'"


@function(returns="long", spark=_ASCII)
def ascii_(s: Data) -> int:
    """The code of the first byte."""
    if not s:
        raise failure("ascii", "the string is empty")
    return s[0]


@function(returns="string", spark=_RM_PREFIX)
def rm_prefix(s: Text, prefix: Text) -> str:
    """The text without a prefix, where it has it."""
    return s.removeprefix(prefix)


_ESCAPE = regex.compile(r"\\(?:x([0-9A-Fa-f]+)|(.?))", regex.DOTALL)


@function(returns="string")
def unescape(s: Text) -> str:
    r"""The text with ``\n``, ``\t``, ``\xHH`` and similar escapes replaced by their characters."""

    def one(match: Any) -> str:
        if match[1] is not None:
            return _code_point(match[1])
        if match[2] not in ESCAPES:
            raise failure("unescape", f"there is no escape \\{match[2]}")
        return ESCAPES[match[2]]

    spend(s.count("\\"), 500)
    return str(_ESCAPE.sub(one, s))


def _code_point(digits: str) -> str:
    code = int(digits[-8:], 16) if not digits[:-8].strip("0") else 0x110000
    if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        raise failure("unescape", f"\\x{digits[:12]} is not a code point")
    return chr(code)
