"""What jq's built-in functions cost, for those that end in time that the size of their input bounds.

A function that is not listed here is taken for one that may not end. Left out on purpose: ``range`` (handled by the
analysis where its ends are literals), ``while``, ``until``, ``repeat``, ``recurse(f)``, ``walk``, ``combinations``,
``limit`` of those, everything with a regular expression (``test``, ``match``, ``sub``, ``split/2``...; the library's
engine backtracks), ``setpath`` and what else can make an array of any length (an index is a number from the input),
and ``strftime`` and its kin, which had errors that end the process.

Costs in microseconds were measured with jq 1.8 on arrays of 8,000 and 32,000 items and rounded up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Simple:
    """A function of its input alone: one result, at most ``growth`` times as large, ``item_us`` per item of it."""

    growth: float = 1.0
    item_us: float = 0.5
    is_number: bool = False
    """Whether the result is a number, or the function fails."""
    is_small: bool = False
    """Whether the result's size does not depend on the input's."""


_NUMBER: Final = Simple(is_number=True, is_small=True)
_WORD: Final = Simple(is_small=True)

_ARITHMETIC: Final = (
    "floor", "ceil", "round", "trunc", "rint", "nearbyint", "sqrt", "cbrt", "exp", "exp2", "exp10", "expm1", "log",
    "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh",
    "atanh", "significand", "logb", "gamma", "lgamma", "tgamma", "fabs", "length", "utf8bytelength", "tonumber", "now",
    "infinite", "nan", "mktime", "fromdate", "fromdateiso8601",
)  # fmt: skip
_CHOICES: Final = (
    "objects", "arrays", "strings", "numbers", "booleans", "nulls", "iterables", "scalars", "values", "finites",
    "normals",
)  # fmt: skip
_QUESTIONS: Final = (
    "not", "type", "isnan", "isinfinite", "isnormal", "isfinite", "have_decnum", "have_literal_numbers", "toboolean",
    "gmtime", "todate", "todateiso8601", "input_filename",
)  # fmt: skip

SIMPLE: Final[dict[str, Simple]] = {
    **dict.fromkeys(_ARITHMETIC, _NUMBER),
    **dict.fromkeys(_CHOICES, Simple()),
    **dict.fromkeys(_QUESTIONS, _WORD),
    "abs": Simple(),
    "debug": Simple(),
    "stderr": Simple(),
    "error": Simple(),
    "ascii_downcase": Simple(item_us=0.02),
    "ascii_upcase": Simple(item_us=0.02),
    "trim": Simple(item_us=0.02),
    "ltrim": Simple(item_us=0.02),
    "rtrim": Simple(item_us=0.02),
    "tostring": Simple(2, 0.6),
    "tojson": Simple(2, 0.6),
    "fromjson": Simple(1, 2),
    "explode": Simple(8, 0.2),
    "implode": Simple(1, 0.5),
    "keys": Simple(6, 2),
    "keys_unsorted": Simple(6, 2),
    "to_entries": Simple(14, 6),
    "from_entries": Simple(2, 8),
    "add": Simple(1, 3),
    "any": Simple(item_us=2, is_small=True),
    "all": Simple(item_us=2, is_small=True),
    "min": Simple(1, 1),
    "max": Simple(1, 1),
    "sort": Simple(1, 3),
    "unique": Simple(1, 3),
    "reverse": Simple(1, 3),
    "first": Simple(1, 0.5),
    "last": Simple(1, 0.5),
    "toarray": Simple(1, 0.5),
    "env": Simple(1, 0.5),
    "@text": Simple(2, 0.6),
    "@json": Simple(2, 0.6),
    "@html": Simple(6, 0.6),
    "@uri": Simple(3, 0.6),
    "@csv": Simple(2, 1),
    "@tsv": Simple(2, 1),
    "@sh": Simple(4, 1),
    "@base64": Simple(2, 0.6),
    "@base64d": Simple(1, 0.6),
    "@base32": Simple(2, 0.6),
}
"""Functions without arguments, and formats."""

PER_ITEM_US: Final[dict[str, float]] = {
    "map": 2, "sort_by": 6, "group_by": 8, "unique_by": 8, "min_by": 4, "max_by": 4, "map_values": 10,
    "with_entries": 35, "add": 3,
}  # fmt: skip
"""Functions whose argument is evaluated once per item of the input, and what an item costs besides."""

TEXT: Final = frozenset({"startswith", "endswith", "ltrimstr", "rtrimstr", "trimstr", "split", "has", "in"})
"""Functions of one argument that look at input and argument once."""
PAIRWISE: Final = frozenset({"contains", "inside", "index", "rindex", "indices", "IN"})
"""Functions of one argument that may hold everything in the input against everything in the argument."""
CALLS: Final = frozenset(
    {"select", "first", "last", "isempty", "path", "limit", "skip", "nth", "any", "all", "join", "range", "del",
     "getpath", "error", "debug", "pow", "fmin", "fmax", "fmod", "empty", "flatten", "transpose", "recurse", "paths"}
)  # fmt: skip
"""Functions that the analysis treats one by one."""
