"""Hashes, compression, encodings, JSON."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import zlib
from typing import Any

import pytest

from rules.sql.values import UNDEFINED
from tests.support.calls import check, evaluate, fails, refused

CLAIMS = (
    base64.urlsafe_b64encode(json.dumps({"sub": "u1", "a": {"b": 2}}).encode()).decode().rstrip("=")
)
COLUMNS: dict[str, Any] = {
    "payload": '{"n":null,"o":{"b":1,"a":[1,2.0,null]},"t":true}',
    "ff": b"\xff\xfe",
    "text_in_bytes": "é".encode(),
    "jwt": f"e30.{CLAIMS}.c2ln",
}


@pytest.mark.parametrize(
    ("expression", "want"),
    [
        ("md5('abc')", hashlib.md5(b"abc").hexdigest()),
        ("sprintf('~s-~s', ff, 'é')", b"\xff\xfe-\xc3\xa9"),
        ("sprintf_s('~5s|', [ff])", b"   \xff\xfe|"),
        ("sprintf('~s', text_in_bytes)", "é"),
        ("sha('abc')", hashlib.sha1(b"abc").hexdigest()),
        ("sha256('abc')", hashlib.sha256(b"abc").hexdigest()),
        ("md5(ff)", hashlib.md5(b"\xff\xfe").hexdigest()),
        ("hash('md4', 'abc')", "a448017aaf21d8525fc10ae87aa6729d"),
        ("hash('md4', '')", "31d6cfe0d16ae931b73c59d7e0c089c0"),
        *[
            (f"hash('{name}', 'abc')", hashlib.new(name, b"abc").hexdigest())
            for name in (
                *("md5", "sha1", "sha224", "sha256", "sha384", "sha512", "blake2b", "blake2s"),
                *("sha3_224", "sha3_256", "sha3_384", "sha3_512"),
            )
        ],
        ("hash('sha', 'abc')", hashlib.sha1(b"abc").hexdigest()),
        ("hash_to_range('a', 1, 10)", 1 + int(hashlib.sha256(b"a").hexdigest(), 16) % 10),
        ("hash_to_range('a', 5, 5)", 5),
        ("map_to_range(12, 0, 9)", 2),
        ("map_to_range(-1, 0, 9)", 9),
        ("map_to_range('ab', 0, 9)", 0x6162 % 10),
        ("unzip(zip('abc'))", "abc"),
        ("gunzip(gzip('abc'))", "abc"),
        ("zip_uncompress(zip_compress('abc'))", "abc"),
        ("gunzip(two)", "abcdef"),
        ("base64_encode('a')", "YQ=="),
        ("base64_encode('a', 'no_padding')", "YQ"),
        ("base64_encode(ff)", "//4="),
        ("base64_encode(ff, 'urlsafe')", "__4="),
        ("base64_encode(ff, 'urlsafe', 'no_padding')", "__4"),
        ("base64_encode(ff, 'no_padding', 'urlsafe')", "__4"),
        ("base64_encode('a', 'whatever')", "YQ=="),
        ("base64_decode('YQ==')", "a"),
        ("base64_decode('YQ', 'no_padding')", "a"),
        ("base64_decode('YQ==', 'no_padding')", "a"),
        ("base64_decode('__4=', 'urlsafe')", b"\xff\xfe"),
        ("base64_decode('__4', 'no_padding', 'urlsafe')", b"\xff\xfe"),
        ("base64_decode('Y Q\n==')", "a"),
        ("base64_decode('')", ""),
        ("json_encode(payload.o)", '{"b":1,"a":[1,2.0,null]}'),
        ("json_encode('a')", '"a"'),
        ("json_encode(payload.q)", "null"),
        ("json_encode(1.5)", "1.5"),
        ("json_encode(ff)", '{"$base64":"//4="}'),
        ("json_decode('{\"a\":1}')", {"a": 1}),
        ("json_decode('1')", 1),
        ("json_decode('1.0')", 1.0),
        ("json_decode('null')", None),
        ("json_decode('\"a\"')", "a"),
        ("json_decode('99999999999999999999')", 99999999999999999999),
        ("json_value('{\"a\":{\"b\":1}}', 'a.b')", 1),
        ("json_value('{\"a\":{\"b\":1}}', 'a.c')", UNDEFINED),
        ("json_value('{\"a\":[1]}', 'a.0')", UNDEFINED),
        ("json_value('nonsense', 'a')", UNDEFINED),
        ("jwt_value(jwt, 'sub')", "u1"),
        ("jwt_value(jwt, 'a.b')", 2),
        ("jwt_value(jwt, 'c')", UNDEFINED),
        ("term_decode(term_encode(payload.o))", {"b": 1, "a": [1, 2.0, None]}),
        ("term_decode(term_encode(payload.q))", UNDEFINED),
        ("term_decode(term_encode(ff))", b"\xff\xfe"),
        ("term_decode(term_encode([payload.q, ff, 'm']))", [UNDEFINED, b"\xff\xfe", "m"]),
    ],
)
def test_value(expression: str, want: Any) -> None:
    check(expression, want, two=gzip.compress(b"abc") + gzip.compress(b"def"), **COLUMNS)


def test_compressed_forms_are_those_of_the_field() -> None:
    assert zlib.decompress(_bytes("zip('abc')"), -15) == b"abc"
    assert gzip.decompress(_bytes("gzip('abc')")) == b"abc"
    assert zlib.decompress(_bytes("zip_compress('abc')")) == b"abc"
    check("unzip(data)", "abc", data=zlib.compress(b"abc")[2:-4])
    check("gunzip(data)", "abc", data=gzip.compress(b"abc"))
    check("zip_uncompress(data)", "abc", data=zlib.compress(b"abc"))


def _bytes(expression: str) -> bytes:
    value = evaluate(expression)
    return value.encode() if isinstance(value, str) else value


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("md5(5)", "must be a string, not an integer"),
        ("md5(payload.t)", "must be a string, not a boolean"),
        ("sha(payload.q)", "not undefined"),
        ("sha256(payload.n)", "not null"),
        ("hash(name, 'a')", "one of 'md4', 'md5', 'sha'"),
        ("hash('md5', 5)", "must be a string"),
        ("hash_to_range('', 1, 2)", "the string is empty"),
        ("hash_to_range('a', 2, 1)", "the least is greater than the most"),
        ("map_to_range(1.5, 1, 2)", "an integer or a string"),
        ("map_to_range('', 1, 2)", "an integer or a string"),
        ("map_to_range('a', 2, 1)", "the least is greater than the most"),
        ("zip(5)", "must be a string"),
        ("unzip('~~~')", "unzip: the data is not in the format expected"),
        ("gunzip('abc')", "gunzip: the data is not in the format expected"),
        ("zip_uncompress('abc')", "zip_uncompress: the data is not in the format expected"),
        ("gunzip(zip_compress('abc'))", "not in the format expected"),
        ("gunzip(cut)", "the data ends too early"),
        ("gunzip(trailing)", "not in the format expected"),
        ("base64_encode(5)", "must be a string"),
        ("base64_decode('YQ')", "not base64"),
        ("base64_decode('Y')", "not base64"),
        ("base64_decode('Y', 'no_padding')", "not base64"),
        ("base64_decode('YQ=')", "not base64"),
        ("base64_decode('YQ==YQ==')", "not base64"),
        ("base64_decode('__4=')", "not base64"),
        ("base64_decode('//4=', 'urlsafe')", "not URL-safe base64"),
        ("base64_decode('Y!Q==')", "not base64"),
        ("base64_decode('é')", "not base64"),
        ("json_decode('{a:1}')", "json_decode:"),
        ("json_decode('')", "empty text is not JSON"),
        ("json_decode('1 2')", "json_decode:"),
        ("json_decode('NaN')", "json_decode:"),
        ("json_decode('1e999')", "json_decode:"),
        ("json_decode(5)", "must be JSON text, not an integer"),
        ("json_decode(payload.o)", "must be JSON text, not a map"),
        ("json_decode(ff)", "must be JSON text"),
        ("json_value('{}', '')", "a path of keys that is not empty"),
        ("jwt_value('a.b', 'c')", "three parts"),
        ("jwt_value('a.b.c', 'c')", "not the base64 of JSON"),
        ("jwt_value(5, 'c')", "must be a string"),
        ("term_decode('abc')", "not made by term_encode"),
        ("term_decode(5)", "must be a string"),
    ],
)
def test_failure(expression: str, message: str) -> None:
    packed = gzip.compress(b"abc")
    fails(expression, message, name="md6", cut=packed[:-3], trailing=packed + b"rubbish", **COLUMNS)


@pytest.mark.parametrize(
    ("expression", "column", "message"),
    [
        ("hash('md6', payload)", 13, "hash: argument 1 must be one of 'md4'"),
        ("json_decode('{')", 8, "json_decode:"),
        ("base64_decode('YQ')", 8, "base64_decode: the text is not base64"),
        (
            "json_value(payload, '')",
            28,
            "json_value: argument 2 must be a path of keys that is not empty",
        ),
    ],
)
def test_a_literal_that_can_never_work_is_refused_when_saved(
    expression: str, column: int, message: str
) -> None:
    (problem,) = refused(expression)
    assert problem.column == column
    assert problem.message.startswith(message)
