"""Laws of the functions, held on random values against Python's own libraries."""

from __future__ import annotations

import base64
import binascii
import calendar
import gzip
import hashlib
import math
import re
import struct
import zlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import regex
from hypothesis import assume, given
from hypothesis import strategies as st

from broker.core import jsontext
from rules.functions.library import standard
from rules.functions.registry import Function
from rules.sql.values import UNDEFINED, Bits, EvaluationError, string
from tests.support.calls import same

FUNCTIONS = standard()

binaries = st.binary(max_size=200)
strings = binaries.map(string) | st.text(max_size=60)
texts = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=60)
small_texts = st.text(alphabet="ab,/ é你\u0301\r\n", max_size=20)
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | numbers | texts
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
all_values = st.recursive(
    scalars | st.just(UNDEFINED) | binaries.map(string),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
integers = st.integers(-(2**200), 2**200)
UNITS = {"second": 1, "millisecond": 10**3, "microsecond": 10**6, "nanosecond": 10**9}


def call(name: str, *arguments: Any) -> Any:
    found = FUNCTIONS.get(name)
    assert found is not None, name
    return found.call(*arguments)


def refusal(name: str, *arguments: Any) -> str | None:
    """What a call is refused with, None when it gives a result."""
    try:
        call(name, *arguments)
    except EvaluationError as error:
        return str(error)
    return None


def data_of(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


# Inverses


@given(strings)
@pytest.mark.parametrize(
    ("encode", "decode"),
    [("zip", "unzip"), ("gzip", "gunzip"), ("zip_compress", "zip_uncompress"), ("bin2hexstr", "hexstr2bin"),
     ("base64_encode", "base64_decode"), ("term_encode", "term_decode")],
)  # fmt: skip
def test_decoding_undoes_encoding(encode: str, decode: str, value: str | bytes) -> None:
    assert data_of(call(decode, call(encode, value))) == data_of(value)


@given(strings, st.permutations(["no_padding", "urlsafe", ""]))
def test_base64_options_in_any_order(value: str | bytes, options: list[str]) -> None:
    encoded = call("base64_encode", value, *options[:2])
    assert data_of(call("base64_decode", encoded, *options[:2])) == data_of(value)
    reference = base64.urlsafe_b64encode if "urlsafe" in options[:2] else base64.b64encode
    expected = reference(data_of(value)).decode()
    assert encoded == (expected.rstrip("=") if "no_padding" in options[:2] else expected)


@given(binaries)
def test_compressed_data_is_what_the_field_writes_and_reads(data: bytes) -> None:
    assert zlib.decompress(data_of(call("zip_compress", data))) == data
    assert gzip.decompress(data_of(call("gzip", data))) == data
    assert zlib.decompress(data_of(call("zip", data)), -15) == data
    assert data_of(call("zip_uncompress", zlib.compress(data))) == data
    assert data_of(call("gunzip", gzip.compress(data) + gzip.compress(data))) == data + data


@given(json_values)
def test_json_text_and_value(value: Any) -> None:
    text = call("json_encode", value)
    assert same(call("json_decode", text), value)
    assert same(jsontext.decode(text), value)


@given(all_values)
def test_terms_keep_every_value(value: Any) -> None:
    assert same(call("term_decode", call("term_encode", value)), value)


@given(binaries)
def test_no_data_breaks_a_decoder(data: bytes) -> None:
    for name in (
        "unzip",
        "gunzip",
        "zip_uncompress",
        "base64_decode",
        "term_decode",
        "hexstr2bin",
        "json_decode",
    ):
        for value in (string(data), string(b"\x83J" + data)):
            said = refusal(name, value)
            assert said is None or said.startswith(name)


@given(
    st.lists(st.text(alphabet="ab é", min_size=1, max_size=5), max_size=6),
    st.sampled_from([",", "--", "你"]),
)
def test_splitting_undoes_joining(pieces: list[str], separator: str) -> None:
    joined = call("join_to_string", separator, pieces)
    assert call("split", joined, separator) == pieces
    assert call("split", joined, separator, "notrim") == (pieces or [""])


# Strings


@given(
    small_texts,
    st.sampled_from([",", "/", "a", "ab", "\r\n"]),
    st.sampled_from(["leading", "trailing"]),
)
def test_one_cut(text: str, separator: str, where: str) -> None:
    kept = call("split", text, separator, f"{where}_notrim")
    assert separator.join(kept) == text
    assert len(kept) == (2 if separator in text else 1)
    assert call("split", text, separator, where) == [piece for piece in kept if piece]


@given(small_texts, st.text(alphabet=",/ a", max_size=3), st.booleans())
def test_tokens_are_the_pieces_between_any_separator(
    text: str, separators: str, nocrlf: bool
) -> None:
    marks = separators + ("\r\n" if nocrlf else "")
    expected = re.split("[" + re.escape(marks) + "]", text) if marks else [text]
    assert call("tokens", text, separators, *["nocrlf"] * nocrlf) == [
        piece for piece in expected if piece
    ]


@given(texts, st.integers(0, 70), st.integers(0, 70))
def test_substr_counts_grapheme_clusters(text: str, start: int, size: int) -> None:
    clusters = regex.findall(r"\X", text)
    assert call("strlen", text) == len(clusters)
    assert call("substr", text, start) == "".join(clusters[start:])
    assert call("substr", text, start, size) == "".join(clusters[start : start + size])
    assert call("substr", text, 0, start) + call("substr", text, start) == text


@given(texts)
def test_reversing_twice_gives_the_same_clusters(text: str) -> None:
    assert call("reverse", text) == "".join(reversed(regex.findall(r"\X", text)))


@given(
    st.text(alphabet="ab", max_size=9),
    st.integers(-3, 20),
    st.sampled_from(["leading", "trailing", "both"]),
)
def test_pad_fills_up_and_never_cuts(text: str, size: int, where: str) -> None:
    padded = call("pad", text, size, where, "*")
    missing = max(0, size - len(text))
    left = {"leading": missing, "trailing": 0, "both": missing // 2}[where]
    assert padded == "*" * left + text + "*" * (missing - left)


@given(small_texts, st.sampled_from(["a", ",", "ab"]), st.sampled_from(["", "x", "a,"]))
def test_replace_as_python_does(text: str, old: str, new: str) -> None:
    assert call("replace", text, old, new) == text.replace(old, new)
    assert call("replace", text, old, new, "leading") == text.replace(old, new, 1)
    assert call("replace", text, old, new, "trailing") == new.join(text.rsplit(old, 1))
    found = call("find", text, old)
    assert found == (text[text.index(old) :] if old in text else "")


@given(
    st.text(alphabet="ab1é ", max_size=12),
    st.sampled_from(["a", "[ab]+", "(a)(b)?", "^a|b$", "é", "a*", "[0-9] "]),
)
def test_simple_patterns_match_as_python_does(text: str, pattern: str) -> None:
    found = re.search(pattern, text)
    assert call("regex_match", text, pattern) == (found is not None)
    groups = list(found.groups()) if found else []
    while groups and groups[-1] is None:
        groups.pop()
    assert call("regex_extract", text, pattern) == [group or "" for group in groups]
    assert call("regex_replace", text, pattern, "<&>") == re.sub(pattern, r"<\g<0>>", text)


@given(st.text(alphabet="a(?=b)[]\\1*+{2}|^$.k<>:!P", max_size=14))
def test_any_pattern_matches_or_is_refused(pattern: str) -> None:
    for name in ("regex_match", "regex_extract"):
        said = refusal(name, "abab", pattern)
        assert said is None or said.startswith(f"{name}: argument 2 must be a regular expression")


@given(st.text(alphabet="~sbpwfegcin.*-0123456789 a", max_size=12), st.lists(scalars, max_size=4))
def test_any_format_gives_text_or_a_sentence(template: str, values: list[Any]) -> None:
    said = refusal("sprintf", template, *values)
    assert said is None or said.startswith("sprintf")


@given(integers, st.sampled_from([2, 8, 10, 16, 36, 7]))
def test_sprintf_writes_any_base(value: int, base: int) -> None:
    assert int(call("sprintf", f"~.{base}b", value), base) == value


# Arrays


@given(st.lists(st.integers(), max_size=8), st.integers(-10, 10), st.integers(0, 10))
def test_positions_in_arrays(items: list[int], position: int, size: int) -> None:
    if 1 <= position <= len(items):
        assert call("nth", position, items) == items[position - 1]
    else:
        with pytest.raises(EvaluationError):
            call("nth", position, items)
    assert call("sublist", size, items) == items[:size]
    if position > 0:
        assert call("sublist", position, size, items) == items[position - 1 : position - 1 + size]
    assert call("length", items) == len(items)


@given(st.dictionaries(texts, st.integers(), max_size=6))
def test_parts_of_maps_fit_together(members: dict[str, int]) -> None:
    keys, values = call("map_keys", members), call("map_values", members)
    assert dict(zip(keys, values, strict=True)) == members
    assert keys == sorted(members)
    assert {entry["key"]: entry["value"] for entry in call("map_to_entries", members)} == members
    assert call("map_size", members) == len(members)


@given(
    st.dictionaries(st.text("ab", max_size=2), st.integers(), max_size=3),
    st.text("ab.", max_size=5),
    st.integers(),
)
def test_what_is_put_is_got(members: dict[str, Any], path: str, value: int) -> None:
    before = dict(members)
    assert call("map_get", path, call("map_put", path, value, members)) == value
    assert call("mget", path, call("mput", path, value, members)) == value
    assert members == before


# Numbers and bits


@given(st.floats(allow_nan=False, allow_infinity=False, width=32) | st.integers(-(10**30), 10**30))
def test_rounding_brackets_the_number(x: float) -> None:
    low, high, near = call("floor", x), call("ceil", x), call("round", x)
    assert low <= x <= high
    assert high - low in (0, 1)
    assert near in (low, high)
    if high - x == x - low:
        assert near == (high if x > 0 else low)


@given(numbers, numbers)
@pytest.mark.parametrize(
    "name", ["power", "fmod", "sqrt", "exp", "log", "asin", "cosh", "atanh", "tan"]
)
def test_mathematics_is_a_finite_float_or_fails(name: str, x: float, y: float) -> None:
    arguments = (x, y) if name in ("power", "fmod") else (x,)
    try:
        result = call(name, *arguments)
    except EvaluationError:
        return
    assert type(result) is float
    assert math.isfinite(result)


@given(integers, st.integers(-300, 300))
def test_shifts_are_powers_of_two(x: int, n: int) -> None:
    assert call("bitsl", x, n) == (x * 2**n if n >= 0 else x // 2**-n)
    assert call("bitsr", x, n) == call("bitsl", x, -n)


@given(integers, integers)
def test_bitwise_laws(x: int, y: int) -> None:
    assert call("bitand", x, y) + call("bitor", x, y) == x + y
    assert call("bitxor", x, y) == call("bitor", x, y) - call("bitand", x, y)
    assert call("bitnot", x) == -x - 1


@given(st.integers(-(10**12), 10**12), st.integers(-(10**6), 10**6).filter(bool))
def test_div_and_mod_fit_together(a: int, b: int) -> None:
    quotient, remainder = call("div", a, b), call("mod", a, b)
    assert quotient * b + remainder == a
    assert abs(remainder) < abs(b)
    assert remainder == 0 or (remainder < 0) == (a < 0)
    assert quotient == math.trunc(a / b)


@given(
    st.binary(min_size=1, max_size=12),
    st.integers(1, 110),
    st.integers(0, 110),
    st.booleans(),
    st.booleans(),
)
def test_subbits_as_a_text_of_bits(
    data: bytes, start: int, size: int, signed: bool, little: bool
) -> None:
    bits = "".join(f"{byte:08b}" for byte in data)
    options = ("integer", "signed" if signed else "unsigned", "little" if little else "big")
    found = call("subbits", data, start, size, *options)
    if start > len(bits):
        assert found is UNDEFINED
        return
    part = bits[start - 1 : start - 1 + size]
    if little:
        part = "".join(reversed([part[at : at + 8] for at in range(0, len(part), 8)]))
    expected = int(part or "0", 2)
    if signed and part.startswith("1"):
        expected -= 1 << len(part)
    assert found == expected
    as_bits = call("subbits", data, start, size, "bits")
    assert call("bitsize", as_bits) == len(part)
    assert isinstance(as_bits, Bits) == (len(part) % 8 != 0)


@given(
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["big", "little"]),
    st.integers(0, 7),
)
def test_subbits_reads_floats(x: float, endian: str, shift: int) -> None:
    packed = int.from_bytes(struct.pack(">d" if endian == "big" else "<d", x), "big")
    data = (packed << (8 - shift)).to_bytes(9, "big")
    assert call("subbits", data, shift + 1, 64, "float", "unsigned", endian) == x


@given(
    binaries, st.sampled_from(["md5", "sha1", "sha256", "sha512", "sha3_256", "blake2b", "blake2s"])
)
def test_hashes(data: bytes, name: str) -> None:
    assert call("hash", name, data) == hashlib.new(name, data).hexdigest()


@given(binaries.filter(bool), st.integers(-100, 100), st.integers(0, 200))
def test_folding_into_a_range(data: bytes, least: int, width: int) -> None:
    most = least + width
    found = call("map_to_range", data, least, most)
    assert found == least + int.from_bytes(data, "big") % (width + 1)
    assert least <= call("hash_to_range", data, least, most) <= most


@given(st.integers(0, 20_000))
def test_folding_long_strings_by_pieces(size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    assert call("map_to_range", data, 0, 9_999_990) == int.from_bytes(data, "big") % 9_999_991


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(0, 253))
def test_floats_to_text_and_back(x: float, decimals: int) -> None:
    text = call("float2str", x, decimals)
    assert re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", text)
    assert abs(float(text) - x) <= 0.5 * 10.0**-decimals * (1 + 1e-9) or float(text) == x
    assert not text.endswith("0") or text.endswith(".0") or decimals == 0


@given(numbers | st.booleans())
def test_int_rounds_down(x: float) -> None:
    assert call("int", x) == math.floor(x)


@given(st.integers(-(10**40), 10**40))
def test_int_reads_what_str_writes(x: int) -> None:
    assert call("int", call("str", x)) == x


# Times


instants = st.integers(-62_135_596_800 * 10**9, 253_402_300_799 * 10**9)
offsets = st.integers(-86_399, 86_399)


def offset_text(seconds: int) -> str:
    sign, rest = ("-", -seconds) if seconds < 0 else ("+", seconds)
    return f"{sign}{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"


def civil(seconds: int, offset: int) -> datetime | None:
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds + offset)
    except OverflowError:
        return None


@given(instants, offsets, st.sampled_from(sorted(UNITS)))
def test_dates_are_formatted_as_python_does_and_read_back(
    instant_ns: int, offset: int, unit: str
) -> None:
    value = instant_ns // (10**9 // UNITS[unit])
    seconds, fraction = divmod(value, UNITS[unit])
    moment = civil(seconds, offset)
    assume(moment is not None)
    assert moment is not None
    nanoseconds = fraction * (10**9 // UNITS[unit])
    text = call("format_date", unit, offset, "%Y-%m-%d %H:%M:%S.%N", value)
    assert text == f"{moment:%m-%d %H:%M:%S}".join([f"{moment.year:04}-", f".{nanoseconds:09}"])
    assert call("date_to_unix_ts", unit, offset, "%Y-%m-%d %H:%M:%S.%N", text) == value
    zoned = call("format_date", unit, offset_text(offset), "%Y%m%d%H%M%S%N%::z", value)
    assert call("date_to_unix_ts", unit, "%Y%m%d%H%M%S%N%::z", zoned) == value


@given(instants, st.integers(-1439, 1439), st.sampled_from(sorted(UNITS)), st.integers(0, 9))
def test_rfc3339_as_python_reads_it(instant_ns: int, minutes: int, unit: str, digits: int) -> None:
    seconds, fraction = divmod(instant_ns, 10**9)
    moment = civil(seconds, minutes * 60)
    assume(moment is not None)
    assert moment is not None
    shown = f"{fraction:09}"[:digits]
    zone = offset_text(minutes * 60)[:6]
    text = f"{moment.replace(tzinfo=None, microsecond=0).isoformat()}{'.' + shown if shown else ''}{zone}"
    cut = int(shown.ljust(9, "0"))
    found = call("rfc3339_to_unix_ts", text, unit)
    assert found == (seconds * 10**9 + cut) // (10**9 // UNITS[unit])
    parsed = datetime.fromisoformat(f"{text[:19]}{zone}")
    assert call("rfc3339_to_unix_ts", text) == (
        parsed - datetime(1970, 1, 1, tzinfo=UTC)
    ) // timedelta(seconds=1)


@given(st.integers(1, 9999), st.integers(1, 12), st.integers(1, 31))
def test_dates_that_are_not_are_refused(year: int, month: int, day: int) -> None:
    text = f"{year:04}-{month:02}-{day:02}T00:00:00Z"
    if day <= calendar.monthrange(year, month)[1]:
        expected = datetime(year, month, day, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)
        assert call("rfc3339_to_unix_ts", text) == expected.days * 86_400
    else:
        with pytest.raises(EvaluationError, match="there is no date"):
            call("rfc3339_to_unix_ts", text)


@given(st.text(alphabet="%YmdHMSN36:z -{}x", max_size=20), st.integers(-(10**12), 10**12))
def test_any_format_of_a_date_gives_text_or_a_sentence(template: str, value: int) -> None:
    said = refusal("format_date", "second", 0, template, value)
    assert said is None or "out of range" in said or "expected %Y" in said
    if said is None and "%" not in template:
        assert call("format_date", "second", 0, template, value) == template


# All of them


@st.composite
def calls(draw: st.DrawFn) -> tuple[Function, list[Any]]:
    """Any function with as many arguments as it takes."""
    function = draw(st.sampled_from(list(FUNCTIONS)))
    most = function.least + 4 if function.most is None else function.most
    return function, draw(st.lists(all_values, min_size=function.least, max_size=most))


@given(calls())
def test_no_arguments_make_a_function_raise_anything_else(
    called: tuple[Function, list[Any]],
) -> None:
    function, arguments = called
    column = [UNDEFINED] if function.column is not None else []
    assert refusal(function.name, *column, *arguments) != ""


def test_base64_is_as_strict_as_the_library() -> None:
    for text in ("YQ=", "Y", "YQ==YQ==", "YQ==x", "=YQ=", "Y=Q="):
        with pytest.raises(binascii.Error):
            binascii.a2b_base64(text, strict_mode=True)
        with pytest.raises(EvaluationError):
            call("base64_decode", text)
