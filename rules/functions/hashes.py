"""Hashes."""

from __future__ import annotations

import hashlib
import random
import secrets
import string as characters
import struct
import uuid
from collections.abc import Callable
from hmac import digest as signed
from typing import Annotated, Any

from broker.config.secrets import MASK
from broker.config.vault import NAMED_SECRETS
from broker.core.errors import did_you_mean
from rules.functions.registry import (
    Data,
    Function,
    Int,
    Literals,
    StrictText,
    at_least,
    between,
    choice,
    failure,
    function,
    make,
)
from rules.functions.spark_form import SparkForm
from rules.sql.limits import MAX_MD4_BYTES, MAX_RANDOM_CHARACTERS
from rules.sql.work import spend
from transforms.variform.functions_encoding import DIGESTS


def _md4(data: bytes) -> str:
    """RFC 1320; OpenSSL 3 no longer offers it."""
    if len(data) > MAX_MD4_BYTES:
        raise failure("hash", f"md4 takes strings of at most {MAX_MD4_BYTES} bytes")
    spend(len(data), 500)
    padded = (
        data
        + b"\x80"
        + b"\0" * ((55 - len(data)) % 64)
        + struct.pack("<Q", 8 * len(data) & (1 << 64) - 1)
    )
    state = [0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476]
    for offset in range(0, len(padded), 64):
        state = _md4_block(state, struct.unpack_from("<16I", padded, offset))
    return struct.pack("<4I", *state).hex()


_ROUNDS: tuple[
    tuple[Callable[[int, int, int], int], int, tuple[int, ...], tuple[int, ...]], ...
] = (
    (lambda x, y, z: x & y | ~x & z, 0, tuple(range(16)), (3, 7, 11, 19)),
    (
        lambda x, y, z: x & y | x & z | y & z,
        0x5A827999,
        tuple(4 * (i % 4) + i // 4 for i in range(16)),
        (3, 5, 9, 13),
    ),
    (
        lambda x, y, z: x ^ y ^ z,
        0x6ED9EBA1,
        (0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15),
        (3, 9, 11, 15),
    ),
)


def _md4_block(state: list[int], words: tuple[int, ...]) -> list[int]:
    a, b, c, d = state
    for mix, constant, order, shifts in _ROUNDS:
        for position, word in enumerate(order):
            total = (a + mix(b, c, d) + words[word] + constant) & 0xFFFFFFFF
            shift = shifts[position % 4]
            a, b, c, d = d, (total << shift | total >> (32 - shift)) & 0xFFFFFFFF, b, c
    return [(word + other) & 0xFFFFFFFF for word, other in zip(state, (a, b, c, d), strict=True)]


_ALGORITHMS: dict[str, Callable[[bytes], str]] = {"md4": _md4, **DIGESTS}

_PIECE_BYTES = 4096
# Names of algorithms where Python has others.
_HASHLIB_NAMES = {"sha": "sha1"}

Algorithm = Annotated[str, choice(*_ALGORITHMS)]


_HASHES = tuple(
    SparkForm((f"'{name}'", "string"), call.format("CAST({1} AS BINARY)"), "string")
    for name, call in {
        "md5": "md5({})", "sha": "sha1({})", "sha1": "sha1({})", "sha224": "sha2({}, 224)", "sha256": "sha2({}, 256)",
        "sha384": "sha2({}, 384)", "sha512": "sha2({}, 512)",
    }.items()
)  # fmt: skip


@function(returns="string", spark=(SparkForm(("string",), "md5(CAST({0} AS BINARY))", "string"),))
def md5(s: Data) -> str:
    """MD5, as lower-case hexadecimal digits."""
    return _ALGORITHMS["md5"](s)


@function(returns="string", spark=(SparkForm(("string",), "sha1(CAST({0} AS BINARY))", "string"),))
def sha(s: Data) -> str:
    """SHA-1, as lower-case hexadecimal digits."""
    return _ALGORITHMS["sha"](s)


@function(
    returns="string", spark=(SparkForm(("string",), "sha2(CAST({0} AS BINARY), 256)", "string"),)
)
def sha256(s: Data) -> str:
    """SHA-256, as lower-case hexadecimal digits."""
    return _ALGORITHMS["sha256"](s)


@function(name="hash", returns="string", spark=_HASHES)
def hash_(algorithm: Algorithm, s: Data) -> str:
    """A hash by the name of its algorithm, as lower-case hexadecimal digits."""
    return _ALGORITHMS[algorithm](s)


@function(returns="string")
def hmac(algorithm: Annotated[str, choice(*DIGESTS)], key: Data, s: Data) -> str:
    """A signature (HMAC, RFC 2104) of a string with a key, as lower-case hexadecimal digits. The key may be a
    get_secret."""
    return signed(key, s, _HASHLIB_NAMES.get(algorithm, algorithm)).hex()


def secret_functions(*, is_trial: bool) -> list[Function]:
    """``get_secret``, as which trials give stars."""

    def get_secret(name: StrictText) -> str:
        """A named secret of the broker, as the key of hmac and nowhere else. A trial signs with ``******`` instead."""
        if is_trial:
            return MASK
        secret = NAMED_SECRETS.find(name)
        if secret is None:
            raise failure("get_secret", _no_secret(name))
        return secret.value.reveal()

    def problem(literals: Literals) -> tuple[int, str] | None:
        [name] = literals
        if type(name) is not str:
            return 0, "expected the name of a secret in quotes"
        return None if is_trial or NAMED_SECRETS.find(name) is not None else (0, _no_secret(name))

    return [make(get_secret, returns="string", is_pure=False, check=problem)]


def _no_secret(name: str) -> str:
    hint = did_you_mean(name, NAMED_SECRETS.names)
    return (
        f"there is no secret {name!r}{f'; {hint}' if hint else ''}. Try: sluice secrets put {name}"
    )


@function(returns="long")
def hash_to_range(s: Data, least: Int, most: Int) -> int:
    """An integer from least to most that depends on the string only: its SHA-256 folded into the range."""
    if not s:
        raise failure("hash_to_range", "the string is empty")
    return _folded("hash_to_range", int.from_bytes(hashlib.sha256(s).digest(), "big"), least, most)


@function(returns="long")
def map_to_range(x: Any, least: Int, most: Int) -> int:
    """An integer folded into the range from least to most; the bytes of a string count as one integer."""
    if type(x) is int:
        return _folded("map_to_range", x, least, most)
    data = x.encode() if type(x) is str else x
    if type(data) is not bytes or not data:
        raise failure("map_to_range", "argument 1 must be an integer or a string that is not empty")
    return _folded("map_to_range", _residue(data, most - least + 1), least, most)


def _residue(data: bytes, modulus: int) -> int:
    """The bytes as one integer, big end first, modulo a positive number; by pieces, as a long integer costs more."""
    if modulus <= 0:
        return 0
    rest = 0
    for start in range(0, len(data), _PIECE_BYTES):
        piece = data[start : start + _PIECE_BYTES]
        rest = ((rest << (8 * len(piece))) + int.from_bytes(piece, "big")) % modulus
    return rest


def _folded(name: str, value: int, least: int, most: int) -> int:
    if least > most:
        raise failure(name, "the least is greater than the most")
    return least + value % (most - least + 1)


# Identifiers and random texts and numbers.


_URL_SAFE = characters.ascii_letters + characters.digits + "-_"


@function(returns="string", is_pure=False)
def uuid_v4() -> str:
    """A random UUID."""
    return str(uuid.uuid4())


@function(returns="string", is_pure=False)
def uuid_v4_no_hyphen() -> str:
    """A random UUID without hyphens."""
    return uuid.uuid4().hex


@function(returns="string", is_pure=False)
def rand_str(length: Annotated[int, between(1, MAX_RANDOM_CHARACTERS)]) -> str:
    """Random characters that a URL may contain: letters, digits, - and _. They cannot be guessed."""
    return "".join(map(_URL_SAFE.__getitem__, (byte & 63 for byte in secrets.token_bytes(length))))


@function(returns="long", is_pure=False)
def rand_int(n: Annotated[int, at_least(1)]) -> int:
    """A random integer from 1 to n."""
    return random.randint(1, n)
