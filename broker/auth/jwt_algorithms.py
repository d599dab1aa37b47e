"""Names of algorithms that tokens are signed with; ``broker.auth.jwt_keys``, which has their code, imports slowly."""

from __future__ import annotations

from typing import Final, Literal

AlgorithmName = Literal[
    "HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512",
    "ES256", "ES384", "ES512", "EdDSA",
]  # fmt: skip
HMAC: Final = ("HS256", "HS384", "HS512")
RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
PUBLIC: Final = (*RSA, "ES256", "ES384", "ES512", "EdDSA")
