"""Base64, hexadecimal, hashes, ranges, JSON and JWT."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from transforms.variform.errors import badarg
from transforms.variform.registry import function
from transforms.variform.values import binary, bounded, json_text, json_value, text_or_bytes

_ALGORITHMS = (
    "md5", "sha", "sha224", "sha256", "sha384", "sha512", "sha3_224", "sha3_256", "sha3_384", "sha3_512", "blake2b",
    "blake2s", "sha1",
)  # fmt: skip


def _digest_by(algorithm: str) -> Callable[[bytes], str]:
    constructor = getattr(hashlib, "sha1" if algorithm == "sha" else algorithm)
    return lambda data: constructor(data, usedforsecurity=False).hexdigest()


# Hexadecimal digests by the name of their algorithm; ``sha`` is SHA-1.
DIGESTS: Mapping[str, Callable[[bytes], str]] = {name: _digest_by(name) for name in _ALGORITHMS}


@function("base64_encode")
def base64_encode(value: bytes, option: Any = "", other: Any = "") -> str:
    """Base64 of the text; options ``urlsafe`` and ``no_padding``."""
    bounded("base64_encode", len(value) * 4 // 3)
    done = (
        base64.urlsafe_b64encode(value) if "urlsafe" in (option, other) else base64.b64encode(value)
    )
    return done.decode().rstrip("=") if "no_padding" in (option, other) else done.decode()


@function("base64_decode")
def base64_decode(value: str, option: Any = "", other: Any = "") -> str | bytes:
    """The decoded base64: text where it is UTF-8, else bytes; options as for ``base64_encode``."""
    options = (option, other)
    return text_or_bytes(
        _unbase64("base64_decode", value, "urlsafe" in options, "no_padding" in options)
    )


def _unbase64(function_name: str, value: str, is_urlsafe: bool, without_padding: bool) -> bytes:
    if without_padding:
        value = value.rstrip("=")
        value += "=" * (-len(value) % 4)
    if is_urlsafe:
        if "+" in value or "/" in value:
            raise badarg(function_name, "not URL-safe base64")
        value = value.translate({ord("-"): "+", ord("_"): "/"})
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise badarg(function_name, "not base64") from None


@function("bin2hexstr")
def bin2hexstr(value: bytes) -> str:
    """The bytes as hexadecimal digits, upper case."""
    bounded("bin2hexstr", len(value) * 2)
    return value.hex().upper()


@function("hexstr2bin")
def hexstr2bin(digits: str) -> str | bytes:
    """The bytes that hexadecimal digits stand for; an odd number of digits gets a leading 0."""
    try:
        return text_or_bytes(binascii.unhexlify(digits if len(digits) % 2 == 0 else "0" + digits))
    except (binascii.Error, ValueError):
        raise badarg("hexstr2bin", "not hexadecimal digits") from None


@function("int2hexstr")
def int2hexstr(value: int) -> str:
    """The integer in hexadecimal digits, upper case, without prefix."""
    return f"{value:X}"


@function("hash")
def hash_of(algorithm: str, value: bytes) -> str:
    """Lower-case hexadecimal digest: md5, sha (sha1), sha224 to sha512, sha3_224 to sha3_512, blake2b, blake2s."""
    if algorithm not in DIGESTS:
        raise badarg("hash", f"unknown algorithm {algorithm!r}")
    return DIGESTS[algorithm](value)


@function("hash_to_range")
def hash_to_range(value: Any, least: int, most: int) -> int:
    """An integer from ``least`` to ``most`` that depends on the text only."""
    data = value if value.__class__ is bytes else value.encode() if value.__class__ is str else b""
    if not data:
        raise badarg("hash_to_range", "expected a non-empty string")
    return _ranged(
        "hash_to_range", int.from_bytes(hashlib.sha256(data).digest(), "big"), least, most
    )


@function("map_to_range")
def map_to_range(value: Any, least: int, most: int) -> int:
    """``value`` folded into the range; the bytes of a string count as one big-endian number."""
    if value.__class__ is int:
        return _ranged("map_to_range", value, least, most)
    if value.__class__ not in (str, bytes) or not value:
        raise badarg("map_to_range", "expected an integer or a non-empty string")
    return _ranged(
        "map_to_range", int.from_bytes(binary("map_to_range", value), "big"), least, most
    )


def _ranged(name: str, value: int, least: int, most: int) -> int:
    if least > most:
        raise badarg(name, f"expected a range, got {least} to {most}")
    return least + value % (most - least + 1)


@function("json_value")
def json_value_at(value: Any, path: str) -> Any:
    """The value at a path (``a.b``) of JSON text, null when absent or not JSON; "" of anything else."""
    keys = _keys("json_value", path)
    if value.__class__ is not str and value.__class__ is not bytes:
        return ""
    try:
        document = json_value(value)
    except ValueError:
        return None
    return _walk(document, keys)


@function("jwt_value")
def jwt_value(token: str, path: str) -> Any:
    """A claim of a JSON web token, whose signature is **not** checked; null when absent, "" without JSON claims."""
    keys = _keys("jwt_value", path)
    parts = token.split(".")
    if len(parts) != 3:
        raise badarg("jwt_value", "a token has three parts")
    payload = _unbase64("jwt_value", parts[1], True, True)
    try:
        claims = json_value(payload)
    except ValueError:
        return ""
    return _walk(claims, keys)


def _keys(name: str, path: str) -> list[str]:
    if not path:
        raise badarg(name, "the path is empty")
    return path.split(".")


def _walk(value: Any, keys: list[str]) -> Any:
    for key in keys:
        if value.__class__ is not dict or key not in value:
            return None
        value = value[key]
    return value


@function("json_encode", keeps_empty=True, only_in_transformations=True)
def json_encode(value: Any) -> str:
    """The value as compact JSON."""
    return json_text(value)


@function("json_decode", only_in_transformations=True)
def json_decode(value: str) -> Any:
    """The value of JSON text; ``json_decode('null')`` is null."""
    try:
        return json_value(value)
    except ValueError as error:
        raise badarg("json_decode", f"not JSON: {error}") from None
