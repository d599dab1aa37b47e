"""Compression and encodings of bytes."""

from __future__ import annotations

import base64
import binascii
import zlib
from typing import Any

from broker.core import jsontext
from rules.functions.registry import Data, failure, function
from rules.functions.spark_form import forms
from rules.sql.limits import MAX_UNPACKED_BYTES
from rules.sql.paths import from_json
from rules.sql.values import UNDEFINED, check_size, string
from rules.sql.work import spend

_RAW = -zlib.MAX_WBITS
_ZLIB = zlib.MAX_WBITS
_GZIP = 16 + zlib.MAX_WBITS
_MAX_MEMBERS = 1_000


def _packed(data: bytes, window: int) -> bytes:
    spend(len(data), 35)
    packer = zlib.compressobj(wbits=window)
    return packer.compress(data) + packer.flush()


def _unpacked(name: str, data: bytes, window: int) -> bytes:
    result, rest = _member(name, data, window, MAX_UNPACKED_BYTES)
    if window != _GZIP or not rest:
        return result
    parts = [result]
    size = len(result)
    while rest:  # a gzip file may hold several members, RFC 1952, 2.2
        part, rest = _member(name, rest, window, MAX_UNPACKED_BYTES - size)
        parts.append(part)
        size += len(part)
        if len(parts) > _MAX_MEMBERS:
            raise failure(name, f"the data has more than {_MAX_MEMBERS} members")
    return b"".join(parts)


def _member(name: str, data: bytes, window: int, most: int) -> tuple[bytes, bytes]:
    """One compressed member, unpacked, and what follows it."""
    unpacker = zlib.decompressobj(wbits=window)
    try:
        result = unpacker.decompress(data, most + 1)
    except zlib.error:
        raise failure(name, "the data is not in the format expected") from None
    if len(result) > most:
        raise failure(name, f"the data unpacks to more than {MAX_UNPACKED_BYTES} bytes")
    if not unpacker.eof:
        raise failure(name, "the data ends too early")
    spend(len(result), 2)
    return result, unpacker.unused_data


@function(name="zip", returns="binary")
def zip_(s: Data) -> bytes:
    """Raw deflate, without header."""
    return _packed(s, _RAW)


@function(returns="binary")
def unzip(s: Data) -> bytes:
    """The reverse of zip."""
    return _unpacked("unzip", s, _RAW)


@function(returns="binary")
def gzip(s: Data) -> bytes:
    """The gzip format."""
    return _packed(s, _GZIP)


@function(returns="binary")
def gunzip(s: Data) -> bytes:
    """The reverse of gzip."""
    return _unpacked("gunzip", s, _GZIP)


@function(returns="binary")
def zip_compress(s: Data) -> bytes:
    """The zlib format, with header and checksum."""
    return _packed(s, _ZLIB)


@function(returns="binary")
def zip_uncompress(s: Data) -> bytes:
    """The reverse of zip_compress."""
    return _unpacked("zip_uncompress", s, _ZLIB)


_TO_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_FROM_URL_SAFE = bytes.maketrans(b"-_", b"+/")


@function(
    returns="string",
    spark=forms("string", value="replace(base64(CAST({0} AS BINARY)), '\\r\\n', '')"),
)
def base64_encode(s: Data, option: Any = "", other: Any = "") -> str:
    """Base64; options ``no_padding`` and ``urlsafe`` in any order."""
    check_size(len(s) * 4 // 3)
    options = (option, other)
    encoded = binascii.b2a_base64(s, newline=False)
    text = (encoded.translate(_TO_URL_SAFE) if "urlsafe" in options else encoded).decode()
    return text.rstrip("=") if "no_padding" in options else text


@function(returns="binary")
def base64_decode(s: Data, option: Any = "", other: Any = "") -> bytes:
    """The reverse of base64_encode with the same options; strict but for white space."""
    spend(len(s), 8)
    options = (option, other)
    text = s.translate(None, b" \t\r\n")
    if "no_padding" in options:
        text = text.rstrip(b"=")
        text += b"=" * (-len(text) % 4)
    if "urlsafe" in options:
        if b"+" in text or b"/" in text:
            raise failure("base64_decode", "the text is not URL-safe base64: it holds + or /")
        text = text.translate(_FROM_URL_SAFE)
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except (binascii.Error, ValueError):
        raise failure("base64_decode", "the text is not base64") from None


_TERM_MARK = b"\x83J"


@function(returns="binary")
def term_encode(x: Any) -> bytes:
    """An opaque form of any value, for term_decode."""
    if type(x) in (list, dict):
        spend(len(x), 150)
    try:
        encoded = _TERM_MARK + jsontext.encode(_tagged(x))
    except (jsontext.JsonError, RecursionError):
        raise failure(
            "term_encode", "the value cannot be encoded: it nests too deep, or holds a bit string"
        ) from None
    check_size(len(encoded))
    spend(len(encoded), 60)
    return encoded


@function()
def term_decode(s: Data) -> Any:
    """The value that term_encode was given."""
    if not s.startswith(_TERM_MARK):
        raise failure("term_decode", "the data was not made by term_encode")
    spend(len(s), 100)
    try:
        return _untagged(from_json(s[len(_TERM_MARK) :]))
    except (jsontext.JsonError, LookupError, TypeError, ValueError, RecursionError):
        raise failure("term_decode", "the data was not made by term_encode") from None


def _tagged(value: Any) -> Any:
    """Maps, bytes and undefined as arrays that say what they are, since JSON has no place for the latter."""
    if type(value) is dict:
        return ["m", *(part for key, item in value.items() for part in (key, _tagged(item)))]
    if type(value) is list:
        return ["l", *map(_tagged, value)]
    if type(value) is bytes:
        return ["b", base64.b64encode(value).decode()]
    return ["u"] if value is UNDEFINED else value


def _untagged(value: Any) -> Any:
    if type(value) is not list:
        return value
    kind, *items = value
    if kind == "m":
        return {key: _untagged(item) for key, item in zip(items[::2], items[1::2], strict=True)}
    if kind == "l":
        return [_untagged(item) for item in items]
    return string(base64.b64decode(items[0], validate=True)) if kind == "b" else UNDEFINED
