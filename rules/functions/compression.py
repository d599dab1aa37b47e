"""Compression and encodings of bytes."""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from typing import Any

from broker.core import jsontext
from rules.functions.registry import Data, failure, function
from rules.sql.values import UNDEFINED, string

MAX_UNPACKED_BYTES = 16 * 1024 * 1024
"""Longest result of decompressing; more is refused, so that a small message cannot fill the memory."""

_RAW, _ZLIB, _GZIP = -zlib.MAX_WBITS, zlib.MAX_WBITS, 16 + zlib.MAX_WBITS


def _packed(data: bytes, window: int) -> bytes:
    packer = zlib.compressobj(wbits=window)
    return packer.compress(data) + packer.flush()


def _unpacked(name: str, data: bytes, window: int) -> bytes:
    unpacker = zlib.decompressobj(wbits=window)
    try:
        result = unpacker.decompress(data, MAX_UNPACKED_BYTES)
    except zlib.error:
        raise failure(name, "the data is not in the format expected") from None
    if unpacker.unconsumed_tail:
        raise failure(name, f"the data unpacks to more than {MAX_UNPACKED_BYTES} bytes")
    if not unpacker.eof:
        raise failure(name, "the data ends too early")
    return result


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


@function(returns="string")
def base64_encode(s: Data, option: Any = "", other: Any = "") -> str:
    """Base64; options ``no_padding`` and ``urlsafe`` in any order."""
    options = (option, other)
    encoded = base64.urlsafe_b64encode(s) if "urlsafe" in options else base64.b64encode(s)
    text = encoded.decode()
    return text.rstrip("=") if "no_padding" in options else text


@function(returns="binary")
def base64_decode(s: Data, option: Any = "", other: Any = "") -> bytes:
    """The reverse of base64_encode with the same options; strict but for white space."""
    options = (option, other)
    text = re.sub(rb"[ \t\r\n]", b"", s)
    if "no_padding" in options:
        text = text.rstrip(b"=")
        text += b"=" * (-len(text) % 4)
    try:
        return base64.b64decode(text, altchars=b"-_" if "urlsafe" in options else None, validate=True)
    except (binascii.Error, ValueError):
        raise failure("base64_decode", "the text is not base64") from None


_TERM_MARK = b"\x83J"


@function(returns="binary")
def term_encode(x: Any) -> bytes:
    """An opaque form of any value, for term_decode."""
    try:
        return _TERM_MARK + jsontext.encode(_tagged(x))
    except jsontext.JsonError as error:
        raise failure("term_encode", str(error)) from None


@function()
def term_decode(s: Data) -> Any:
    """The value that term_encode was given."""
    if not s.startswith(_TERM_MARK):
        raise failure("term_decode", "the data was not made by term_encode")
    try:
        return _untagged(jsontext.decode(s[len(_TERM_MARK) :]))
    except (jsontext.JsonError, LookupError, TypeError, ValueError):
        raise failure("term_decode", "the data was not made by term_encode") from None


def _tagged(value: Any) -> Any:
    """Maps, bytes and undefined as arrays that say what they are, since JSON has no place for the latter."""
    if type(value) is dict:
        return ["m", *([key, _tagged(item)] for key, item in value.items())]
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
        return {key: _untagged(item) for key, item in items}
    if kind == "l":
        return [_untagged(item) for item in items]
    return string(base64.b64decode(items[0], validate=True)) if kind == "b" else UNDEFINED
