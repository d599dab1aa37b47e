"""What one call may take: time, memory, size. Each limit is told in its sentence."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest

from rules.sql import limits
from tests.support.calls import check, evaluate, fails
from tests.support.processor import takes_less_than

BOMB = b"\0" * (limits.MAX_UNPACKED_BYTES + 1)
FULL = b"\0" * limits.MAX_UNPACKED_BYTES


def raw(data: bytes) -> bytes:
    packer = zlib.compressobj(9, wbits=-15)
    return packer.compress(data) + packer.flush()


COLUMNS: dict[str, Any] = {
    "text": "x" * 100_000,
    "large": "x" * limits.MAX_TEXT,
    "n": 1,
    "deflated": raw(BOMB),
    "zlibbed": zlib.compress(BOMB, 9),
    "gzipped": gzip.compress(BOMB),
    "members": gzip.compress(b"") * 1_001,
    "halves": gzip.compress(FULL) + gzip.compress(b"x"),
    "deep": "[" * 10_000 + "]" * 10_000,
    "tagged": b"\x83J" + b"[" * 10_000 + b"]" * 10_000,
    "separators": "a," * 1_000_001,
    "big": 2**65_000,
}

TEXT = f"longer than {limits.MAX_TEXT} characters"
ITEMS = f"more than {limits.MAX_ITEMS} elements"
BITS = f"more than {limits.MAX_INTEGER_BITS} bits"
UNPACKED = f"unpacks to more than {limits.MAX_UNPACKED_BYTES} bytes"


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("pad(text, n * 1000000000)", TEXT),
        ("pad(text, n * 1000000, 'both', text)", TEXT),
        ("replace(text, 'x', text)", TEXT),
        ("regex_replace(text, 'x', text)", TEXT),
        ("concat(large, 'x')", TEXT),
        ("join_to_string(large, ['', '', ''])", TEXT),
        ("join_to_sql_values_string([large, large])", TEXT),
        ("topic_join(large, large)", TEXT),
        ("base64_encode(large)", TEXT),
        ("bin2hexstr(large)", TEXT),
        ("sqlserver_bin2hexstr(large)", TEXT),
        ("str_utf16_le(large)", TEXT),
        ("json_encode([large, large])", TEXT),
        ("term_encode([large, large])", TEXT),
        ("sprintf('~s~s', large, large)", TEXT),
        ("large + large", TEXT),
        ("sprintf('~*s', n * 10001, 'x')", "widths are at most 10000"),
        ("sprintf('~*c', n * 10001, 65)", "widths are at most 10000"),
        ("sprintf('~.*f', n * 10001, 1.5)", "widths are at most 10000"),
        ("sprintf('~b', big)", "too many digits to be written"),
        ("sprintf('~.7b', big)", "too many digits to be written"),
        ("sprintf('~p', big)", "too many digits to be written"),
        ("str(big)", "too many digits to be written"),
        ("join_to_sql_values_string([big])", "too many digits to be written"),
        ("rand_str(n * 10001)", "an integer from 1 to 10000"),
        ("unzip(deflated)", UNPACKED),
        ("gunzip(gzipped)", UNPACKED),
        ("gunzip(halves)", UNPACKED),
        ("gunzip(members)", "more than 1000 members"),
        ("zip_uncompress(zlibbed)", UNPACKED),
        ("json_decode(deep)", "nests deeper than 128 levels"),
        ("term_decode(tagged)", "not made by term_encode"),
        ("split(separators, ',')", ITEMS),
        ("tokens(separators, ',')", ITEMS),
        ("topic_split(replace(separators, ',', '/'))", ITEMS),
        ("[1..1000001]", ITEMS),
        ("bitsl(n, 1000000000000)", BITS),
        ("bitsr(n, -1000000000000)", BITS),
        ("bitsl(big, n * 600)", BITS),
        ("big * big", BITS),
        ("subbits(large, 1, 100000)", f"an integer has at most {limits.MAX_INTEGER_BITS} bits"),
        ("power(big, big)", "has no finite value at an integer of 65001 bits"),
        ("hash('md4', text)", "md4 takes strings of at most 65536 bytes"),
    ],
)
def test_refused_at_little_cost(expression: str, message: str) -> None:
    with takes_less_than(1.0):
        fails(expression, message, **COLUMNS)


def test_a_small_bomb_takes_no_more_memory_than_its_limit() -> None:
    tracemalloc.start()
    try:
        fails("unzip(deflated)", UNPACKED, deflated=COLUMNS["deflated"])
        assert tracemalloc.get_traced_memory()[1] < 3 * limits.MAX_UNPACKED_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("function", "data"), [("unzip", raw(FULL)), ("gunzip", gzip.compress(FULL))]
)
def test_the_limit_itself_is_allowed(function: str, data: bytes) -> None:
    check(f"strlen({function}(d))", limits.MAX_UNPACKED_BYTES, d=data)


@pytest.mark.parametrize(
    ("expression", "want"),
    [
        ("strlen(pad('', 10000))", 10_000),
        ("strlen(sprintf('~10000s', ''))", 10_000),
        ("strlen(rand_str(10000))", 10_000),
        ("bitsize(subbits(large, 1, 100000, 'bits'))", 100_000),
        ("strlen(json_encode(json_decode(deep)))", 256),
        ("map_to_range(large, 0, 9)", int.from_bytes(b"x" * 100_000, "big") % 10),
    ],
)
def test_below_the_limits_it_works(expression: str, want: Any) -> None:
    check(expression, want, large="x" * 100_000, deep="[" * 128 + "]" * 128)


def test_nothing_deep_is_lost_by_terms() -> None:
    value: Any = 1
    for level in range(120):
        value = {"k": value} if level % 2 else [value]
    assert evaluate("term_decode(term_encode(v))", v=value) == value


def test_a_chain_of_products_ends_at_the_limit() -> None:
    chain = ", ".join(["n AS x", *["x * x AS x"] * 30])
    with takes_less_than(1.0):
        fails(f"1 AS y, {chain}, x", BITS, n=99_999_999_999)


def test_limits_are_told_to_people() -> None:
    """Every limit stands in the documentation of the language, with its value."""
    page = (Path(__file__).parents[3] / "docs" / "rule-language.md").read_text()
    limited = {name: value for name, value in vars(limits).items() if name.startswith("MAX_")}
    assert [name for name, value in limited.items() if f" {value:,.0f} " not in page] == []
