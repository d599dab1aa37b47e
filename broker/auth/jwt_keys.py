"""Keys that signatures of tokens are checked with, and the algorithms that each is good for.

A key is for the algorithms of its own kind and no other: a public key never serves as a secret (RFC 8725, sections 2.1
and 3.1), and ``none`` is not an algorithm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import jwt
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    SECP384R1,
    SECP521R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
)
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from jwt.algorithms import Algorithm, get_default_algorithms

from broker.auth.jwt_algorithms import HMAC, PUBLIC, RSA

_CURVES: Final[Mapping[type, str]] = {SECP256R1: "ES256", SECP384R1: "ES384", SECP521R1: "ES512"}
_LEAST_RSA_BITS: Final = 2048
LEAST_SECRET_BYTES: Final = 32
# A longer one takes a millisecond of the loop for each login.
_MOST_RSA_BITS: Final = 8192
_ALGORITHMS: Final[Mapping[str, Algorithm]] = {
    name: algorithm
    for name, algorithm in get_default_algorithms().items()
    if name in (*HMAC, *PUBLIC)
}


class KeyOfNoUse(ValueError):
    """A key that nothing can be checked with; says why."""


@dataclass(frozen=True, slots=True)
class VerifyingKey:
    """A key and what it is good for. ``kid`` is its identifier, None for one that has none."""

    key: Any = field(repr=False)
    algorithms: frozenset[str]
    kid: str | None = None

    def has_signed(self, algorithm: str, said: bytes, signature: bytes) -> bool:
        """True if the signature over ``said`` is of this key, by one of its algorithms; never raises."""
        if algorithm not in self.algorithms:
            return False
        try:
            return bool(_ALGORITHMS[algorithm].verify(said, self.key, signature))
        except (ValueError, TypeError, jwt.PyJWTError):
            return False


def secret_key(secret: bytes, allowed: Iterable[str]) -> VerifyingKey:
    """The key of a shared secret.

    Raises:
        KeyOfNoUse: it is so short that it can be found by trying (RFC 7518, section 3.2), or a public key, which
            everyone knows.
    """
    if len(secret) < LEAST_SECRET_BYTES:
        raise KeyOfNoUse(
            f"expected {LEAST_SECRET_BYTES} bytes or more, got {len(secret)}. Try: openssl rand -base64 48"
        )
    try:
        prepared = _ALGORITHMS["HS256"].prepare_key(secret)
    except jwt.InvalidKeyError as error:
        raise KeyOfNoUse(str(error).rstrip(".")) from None
    return VerifyingKey(prepared, frozenset(HMAC) & frozenset(allowed))


def pem_key(pem: bytes, allowed: Iterable[str]) -> VerifyingKey:
    """The public key in a PEM text, or of the certificate in it.

    Raises:
        KeyOfNoUse: it has none that is known.
    """
    try:
        if b"-----BEGIN CERTIFICATE-----" in pem:
            return _public_key(x509.load_pem_x509_certificate(pem).public_key(), allowed, None)
        return _public_key(load_pem_public_key(pem), allowed, None)
    except KeyOfNoUse:
        raise
    except (ValueError, UnsupportedAlgorithm):
        raise KeyOfNoUse("it holds no public key or certificate in PEM form") from None


def keys_of_set(
    members: Sequence[Any], allowed: Iterable[str]
) -> tuple[list[VerifyingKey], list[str]]:
    """The keys of a JWK set (RFC 7517, section 5), and a sentence for each member that is of no use."""
    allowed = frozenset(allowed)
    keys: list[VerifyingKey] = []
    problems: list[str] = []
    for number, member in enumerate(members, 1):
        try:
            keys.append(_jwk(member, allowed))
        except KeyOfNoUse as error:
            problems.append(f"key {number}: {error}")
    return keys, problems


def _jwk(member: Any, allowed: frozenset[str]) -> VerifyingKey:
    if not isinstance(member, dict):
        raise KeyOfNoUse("it is not an object")
    if member.get("kty") == "oct":
        raise KeyOfNoUse("a secret that is published is none")
    if member.get("use", "sig") != "sig":
        raise KeyOfNoUse("it is not for signatures")
    kid = member.get("kid")
    algorithm = member.get("alg")
    if algorithm is not None and algorithm not in PUBLIC:
        raise KeyOfNoUse(f"its algorithm {str(algorithm)[:20]!r} is not known")
    try:
        key = jwt.PyJWK(member).key
    except (jwt.PyJWTError, ValueError, TypeError, KeyError, UnsupportedAlgorithm) as error:
        raise KeyOfNoUse(f"it cannot be read: {type(error).__name__}") from None
    narrowed = allowed if algorithm is None else allowed & {algorithm}
    return _public_key(key, narrowed, kid if isinstance(kid, str) else None)


def _public_key(key: Any, allowed: Iterable[str], kid: str | None) -> VerifyingKey:
    if isinstance(key, RSAPrivateKey | EllipticCurvePrivateKey):
        key = key.public_key()
    fit = frozenset(_algorithms_of(key)) & frozenset(allowed)
    if not fit:
        raise KeyOfNoUse("none of its algorithms is allowed")
    return VerifyingKey(key, fit, kid)


def _algorithms_of(key: Any) -> Sequence[str]:
    if isinstance(key, RSAPublicKey):
        if not _LEAST_RSA_BITS <= key.key_size <= _MOST_RSA_BITS:
            raise KeyOfNoUse(
                f"an RSA key has {_LEAST_RSA_BITS} to {_MOST_RSA_BITS} bits, this one {key.key_size}"
            )
        return RSA
    if isinstance(key, EllipticCurvePublicKey) and type(key.curve) in _CURVES:
        return (_CURVES[type(key.curve)],)
    if isinstance(key, Ed25519PublicKey | Ed448PublicKey):
        return ("EdDSA",)
    raise KeyOfNoUse("its kind is not known: RSA, EC (P-256, P-384, P-521), Ed25519 and Ed448 are")
