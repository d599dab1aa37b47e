"""Passwords at rest: how they are hashed, checked and generated.

A PBKDF2 hash is kept as the two keys of SCRAM (RFC 5802, section 3) that follow from it: one of them is enough to check
a password, both to log in by SCRAM, and neither of them logs a client in when it is stolen, as the hash itself would.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import stringprep
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

Algorithm = Literal[
    "pbkdf2_sha256", "pbkdf2_sha384", "pbkdf2_sha512", "sha256", "sha512", "sha1", "md5"
]
# Algorithms of users that were imported while ``password_hashing.allow_weak_imports`` was set.
WEAK: Final[tuple[Algorithm, ...]] = ("sha1", "md5")

DEFAULT_ITERATIONS: Final[Mapping[str, int]] = {
    "pbkdf2_sha256": 600_000,
    "pbkdf2_sha384": 600_000,
    "pbkdf2_sha512": 220_000,
}
# RFC 7677, section 4; a generated password has 256 bits of chance, which no number of rounds adds to.
GENERATED_ITERATIONS: Final = 4096
# The methods of enhanced authentication, and the algorithm of the credential that each needs.
SCRAM_METHODS: Final[Mapping[str, Algorithm]] = {
    "SCRAM-SHA-256": "pbkdf2_sha256",
    "SCRAM-SHA-512": "pbkdf2_sha512",
}
SALT_BYTES: Final = 16
# Maximum length of user names; a longer one belongs to no user, and is never hashed.
MAX_NAME_BYTES: Final = 1024
# Maximum length of passwords; a longer one is refused before it is hashed.
MAX_PASSWORD_BYTES: Final = 1024
_GENERATED_BYTES: Final = 32
_BASE62: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class Credential:
    """Stored form of a password. ``iterations`` is 0 for plain hashes, whose hash is ``stored_key``; nothing of it
    is printed."""

    algorithm: Algorithm
    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes = b""
    is_salt_last: bool = False

    def __repr__(self) -> str:
        return f"Credential({self.algorithm!r}, iterations={self.iterations})"

    @property
    def digest(self) -> str:
        """The name of its hash function, as ``hashlib`` knows it."""
        return self.algorithm.removeprefix("pbkdf2_")

    @property
    def is_slow(self) -> bool:
        """True if its check takes so long that the loop must not do it."""
        return self.iterations > 0

    def matches(self, password: bytes) -> bool:
        """True if it is the password. Takes up to a second for PBKDF2."""
        password = prepared(password)
        if self.iterations:
            salted = hashlib.pbkdf2_hmac(self.digest, password, self.salt, self.iterations)
            return hmac.compare_digest(keys_of(self.digest, salted)[0], self.stored_key)
        text = password + self.salt if self.is_salt_last else self.salt + password
        return hmac.compare_digest(hashlib.new(self.digest, text).digest(), self.stored_key)

    def as_spec(self) -> dict[str, Any]:
        """Credential in the form of the configuration."""
        stored_key = _encoded(self.stored_key)
        spec: dict[str, Any] = {
            "algorithm": self.algorithm,
            "salt": _encoded(self.salt),
            "stored_key": stored_key,
        }
        if self.iterations:
            return {**spec, "iterations": self.iterations, "server_key": _encoded(self.server_key)}
        if self.algorithm in WEAK:
            spec["is_weak"] = True
        return {**spec, "salt_position": "suffix"} if self.is_salt_last else spec

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Credential:
        """The reverse of ``as_spec``.

        Raises:
            ValueError: it is none; the text does not repeat what is in it.
        """
        try:
            algorithm = spec["algorithm"]
            iterations = spec.get("iterations", 0)
            salt, stored, server = (
                _decoded(spec.get(name, "")) for name in ("salt", "stored_key", "server_key")
            )
        except (KeyError, TypeError, AttributeError, ValueError):
            raise ValueError("needs algorithm, salt and stored_key") from None
        is_known = algorithm in DEFAULT_ITERATIONS or algorithm in ("sha256", "sha512")
        is_known = is_known or (algorithm in WEAK and spec.get("is_weak") is True)
        if not is_known or not isinstance(iterations, int) or not stored:
            raise ValueError("has no algorithm that is known")
        if (algorithm in DEFAULT_ITERATIONS) != (iterations > 0):
            raise ValueError("needs iterations, a number above 0")
        return cls(
            algorithm, salt, iterations, stored, server, spec.get("salt_position") == "suffix"
        )


def hashed(
    password: bytes, algorithm: Algorithm, iterations: int, salt: bytes | None = None
) -> Credential:
    """The credential of a password. Takes up to a second for PBKDF2."""
    salt = secrets.token_bytes(SALT_BYTES) if salt is None else salt
    password = prepared(password)
    if algorithm not in DEFAULT_ITERATIONS:
        return Credential(algorithm, salt, 0, hashlib.new(algorithm, salt + password).digest())
    digest = algorithm.removeprefix("pbkdf2_")
    return from_salted(
        algorithm, salt, iterations, hashlib.pbkdf2_hmac(digest, password, salt, iterations)
    )


def from_salted(algorithm: Algorithm, salt: bytes, iterations: int, salted: bytes) -> Credential:
    """The credential of a PBKDF2 hash from elsewhere."""
    return Credential(
        algorithm, salt, iterations, *keys_of(algorithm.removeprefix("pbkdf2_"), salted)
    )


def keys_of(digest: str, salted: bytes) -> tuple[bytes, bytes]:
    """StoredKey and ServerKey of RFC 5802, section 3."""
    client_key = hmac.digest(salted, b"Client Key", digest)
    return hashlib.new(digest, client_key).digest(), hmac.digest(salted, b"Server Key", digest)


def generated_password() -> str:
    """32 random bytes in Base62, always 43 signs."""
    number = int.from_bytes(secrets.token_bytes(_GENERATED_BYTES))
    signs = []
    for _ in range(43):
        number, digit = divmod(number, 62)
        signs.append(_BASE62[digit])
    return "".join(signs)


def prepared(password: bytes) -> bytes:
    """A password as SCRAM hashes it (SASLprep, RFC 4013); other strings are used as they are."""
    try:
        return saslprep(password.decode()).encode()
    except ValueError:
        return password


def saslprep(text: str) -> str:
    """RFC 4013; signs that are younger than its Unicode 3.2, as emoji, are let through (section 2.5, queries).

    Takes up to a millisecond for a string of 1,024 bytes; the time grows with the square of the length.

    Raises:
        ValueError: it has signs that are forbidden there.
    """
    if text.isascii() and text.isprintable():
        return text
    mapped = "".join(
        " " if stringprep.in_table_c12(sign) else sign
        for sign in text
        if not stringprep.in_table_b1(sign)
    )
    normal = unicodedata.normalize("NFKC", mapped)
    signs = set(normal)
    if any(is_in(sign) for sign in signs for is_in in _FORBIDDEN):
        raise ValueError("it has signs that SASLprep forbids")
    if any(map(stringprep.in_table_d1, signs)) and (
        any(map(stringprep.in_table_d2, signs))
        or not (stringprep.in_table_d1(normal[0]) and stringprep.in_table_d1(normal[-1]))
    ):
        raise ValueError("it mixes directions of writing as SASLprep forbids")
    return normal


_FORBIDDEN: Final = (
    stringprep.in_table_c12, stringprep.in_table_c21_c22, stringprep.in_table_c3,
    stringprep.in_table_c4, stringprep.in_table_c5, stringprep.in_table_c6, stringprep.in_table_c7,
    stringprep.in_table_c8, stringprep.in_table_c9,
)  # fmt: skip


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decoded(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
