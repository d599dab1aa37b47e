"""Tokens: how one is recognised, read and checked (RFC 7519 and RFC 7515, with the advice of RFC 8725)."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from broker.auth.jwt_keys import VerifyingKey

_SHAPE: Final = re.compile(r"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]*)\.([A-Za-z0-9_-]*)")
# Keys that are tried for a token that does not name its own.
_MOST_TRIED: Final = 16


class Refused(Exception):
    """A token that is not taken. ``reason`` is the word under which it is counted; the text says why."""

    def __init__(self, reason: str, why: str) -> None:
        self.reason = reason
        super().__init__(why)


@dataclass(frozen=True, slots=True)
class Token:
    """A token whose header was read, and nothing of which is certain yet. ``kid`` names the key."""

    algorithm: str
    kid: str | None
    has_critical: bool
    _said: bytes
    _payload: str
    _signature: str

    @classmethod
    def parse(cls, text: str) -> Token | None:
        """Parse a signed token. Return None for any other text: other authenticators decide."""
        match = _SHAPE.fullmatch(text)
        if match is None:
            return None
        header = _object(match[1])
        if header is None or not isinstance(algorithm := header.get("alg"), str):
            return None
        kid = header.get("kid")
        said = text[: match.end(2)].encode()
        is_critical = "crit" in header or header.get("b64") is False
        return cls(
            algorithm, kid if isinstance(kid, str) else None, is_critical, said, match[2], match[3]
        )

    def claims(self, keys: Iterable[VerifyingKey]) -> Mapping[str, Any]:
        """Claims of the token, once one of the keys is found to have signed it.

        Raises:
            Refused: none has, or it says nothing that can be read.
        """
        if self.has_critical:
            raise Refused(
                "malformed", "the token has extensions that must be understood, and are not"
            )
        signature = _decoded(self._signature)
        tried = list(keys)[:_MOST_TRIED]
        if signature is None or not any(
            key.has_signed(self.algorithm, self._said, signature) for key in tried
        ):
            raise Refused("signature", "the token's signature is not by a key that is known")
        claims = _object(self._payload)
        if claims is None:
            raise Refused("malformed", "the token's claims are not a JSON object")
        return claims


def check_times(claims: Mapping[str, Any], now_s: float, leeway_s: float) -> float | None:
    """Hold ``exp``, ``nbf`` and ``iat`` to the clock; returns when the token ends, None for never.

    Raises:
        Refused: it has ended, has not begun, or one of them is not a time.
    """
    begins = (_time(claims, "nbf"), _time(claims, "iat"))
    ends_s = _time(claims, "exp")
    if ends_s is not None and now_s >= ends_s + leeway_s:
        raise Refused("expired", f"the token ended {now_s - ends_s:.0f} s ago")
    for begins_s in begins:
        if begins_s is not None and now_s < begins_s - leeway_s:
            raise Refused("not_yet_valid", f"the token begins in {begins_s - now_s:.0f} s")
    return ends_s


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Refused("claim", f"the claim {name!r} is not a number of seconds")
    try:
        seconds = float(value)
    except OverflowError:
        seconds = float("inf")
    if not isfinite(seconds):
        raise Refused("claim", f"the claim {name!r} is not a number of seconds")
    return seconds


def _object(text: str) -> dict[str, Any] | None:
    raw = _decoded(text)
    if raw is None:
        return None
    try:
        document = json.loads(raw.decode(), parse_constant=_no_number)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is not a number in JSON")


def _decoded(text: str) -> bytes | None:
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        return None
