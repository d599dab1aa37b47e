"""Tokens as an issuer makes them, with keys of every kind."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.support.http_service import Reply, Service

SECRET = "a secret of more than thirty-two bytes"
NOW_S = 1_700_000_000
"""What a ``MovedClock`` begins with."""
_CURVES: Mapping[str, ec.EllipticCurve] = {
    "ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()
}  # fmt: skip


def private_key(algorithm: str, name: str = "") -> Any:
    """A private key for an algorithm; another one for each name."""
    return _private_key("RSA" if algorithm[:2] in ("RS", "PS") else algorithm, name)


@cache
def _private_key(kind: str, name: str) -> Any:
    if kind in _CURVES:
        return ec.generate_private_key(_CURVES[kind])
    if kind == "EdDSA":
        return (
            ed448.Ed448PrivateKey.generate()
            if name == "448"
            else ed25519.Ed25519PrivateKey.generate()
        )
    return rsa.generate_private_key(65537, 2048)


def pem(algorithm: str, name: str = "") -> str:
    """Its public key."""
    public = private_key(algorithm, name).public_key()
    text: bytes = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return text.decode()


def jwk(kid: str | None, algorithm: str = "ES256", **more: Any) -> dict[str, Any]:
    """Its public key as a member of a JWK set; each ``kid`` has a key of its own."""
    made = jwt.get_algorithm_by_name(algorithm).to_jwk(
        private_key(algorithm, kid or "").public_key(), as_dict=True
    )
    return {**made, **({} if kid is None else {"kid": kid}), **more}


def signed(
    claims: Mapping[str, Any] | None = None,
    algorithm: str = "HS256",
    key: Any = SECRET,
    **header: Any,
) -> str:
    """A token that ends in a minute, signed by a secret or by the private key that ``key`` names."""
    if not algorithm.startswith("HS"):
        key = private_key(algorithm, "" if key is SECRET else key)
    payload = json.dumps({"exp": NOW_S + 60, **(claims or {})}).encode()
    return jwt.PyJWS().encode(payload, key, algorithm=algorithm, headers=header or None)


def of_issuer(kid: str, claims: Mapping[str, Any] | None = None, algorithm: str = "ES256") -> str:
    """A token that names the key it is signed with, and ends in an hour."""
    return signed({"exp": NOW_S + 3600, **(claims or {})}, algorithm, kid, kid=kid)


def by_hand(header: Any, payload: Any, signature: bytes = b"") -> str:
    """A token of any parts; bytes are taken as they are, everything else as JSON."""
    return ".".join(_part(part) for part in (header, payload, signature))


def _part(value: Any) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


class Issuer:
    """Publishes a JWK set; ``keys`` may be changed at any time."""

    def __init__(self, *keys: Mapping[str, Any], context: Any = None) -> None:
        self.keys: Any = list(keys)
        self.reply: Reply | None = None
        self.service = Service(self._answer, context)

    @property
    def url(self) -> str:
        return f"{self.service.url}/keys"

    @property
    def body(self) -> bytes:
        """The set as it is published now."""
        return json.dumps({"keys": self.keys}).encode()

    def _answer(self, _request: object) -> Reply:
        return self.reply or Reply(body=self.body)
