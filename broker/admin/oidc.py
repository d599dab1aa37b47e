"""Sign-in by OpenID Connect: the authorization code flow with PKCE (OpenID Connect Core 1.0, 3.1; RFC 7636).

An attempt is one use of ``state``, bound to the browser by a cookie. The ID token must be signed by a key of the
issuer, be for this client, have the attempt's nonce and not have expired. A claim says which role its owner has.
"""

from __future__ import annotations

import base64
import hmac
import secrets
import ssl
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final
from urllib.parse import quote, urlencode

import jwt

from broker.admin.api_settings import OidcSettings
from broker.admin.rights import Role
from broker.auth.login_limits import network_of
from broker.config.outgoing import CallFailed, TlsUnusable, call
from broker.config.ssrf import AddressDenied, AddressGuard
from broker.core import jsontext
from broker.core.clock import Clock
from broker.core.errors import Invalid, Unavailable
from broker.observe.log import get_logger

log = get_logger(__name__)

_ATTEMPT_LIFE_S: Final = 600.0
_MAX_ATTEMPTS: Final = 256
_METADATA_LIFE_S: Final = 600.0
_MOST_BYTES: Final = 1024 * 1024
_TIMEOUT_S: Final = 10.0
_ALGORITHMS: Final = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
)
_ENDPOINTS: Final = ("authorization_endpoint", "token_endpoint", "jwks_uri")
_LONGEST_NAME: Final = 200


@dataclass(frozen=True, slots=True)
class Attempt:
    """A sign-in that is under way."""

    until_s: float
    nonce: str
    verifier: str
    redirect_uri: str
    network: str


@dataclass(frozen=True, slots=True)
class SignedIn:
    """The owner of an ID token, and the role that its claims give."""

    name: str
    role: Role


class OidcSignIn:
    """Attempts to sign in at one issuer."""

    def __init__(self, settings: OidcSettings, guard: AddressGuard, clock: Clock) -> None:
        self._settings = settings
        self._guard = guard
        self._clock = clock
        self._attempts: dict[str, Attempt] = {}
        self._metadata: Mapping[str, Any] = {}
        self._metadata_until_s = 0.0

    @property
    def label(self) -> str:
        """Text of the button."""
        return self._settings.label

    async def begin(self, redirect_uri: str, host: str | None = None) -> tuple[str, str]:
        """The address at the issuer that the browser at ``host`` goes to, and the ``state`` that comes back.

        Raises:
            Unavailable: the issuer does not answer as it should.
        """
        metadata = await self._issuer()
        now_s = self._clock.monotonic_s()
        self._attempts = {
            state: attempt for state, attempt in self._attempts.items() if attempt.until_s > now_s
        }
        while len(self._attempts) >= _MAX_ATTEMPTS:
            # the oldest of the network with most of them: one address takes no place of others
            [(crowded, _)] = Counter(
                attempt.network for attempt in self._attempts.values()
            ).most_common(1)
            del self._attempts[
                next(
                    state for state, attempt in self._attempts.items() if attempt.network == crowded
                )
            ]
        state = secrets.token_urlsafe(24)
        attempt = Attempt(
            now_s + _ATTEMPT_LIFE_S,
            secrets.token_urlsafe(24),
            secrets.token_urlsafe(48),
            redirect_uri,
            network_of(host),
        )
        self._attempts[state] = attempt
        challenge = (
            base64.urlsafe_b64encode(sha256(attempt.verifier.encode()).digest())
            .rstrip(b"=")
            .decode()
        )
        query = {
            "response_type": "code",
            "client_id": self._settings.client_id,
            "redirect_uri": redirect_uri,
            "scope": " ".join(self._settings.scopes),
            "state": state,
            "nonce": attempt.nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        address: str = metadata["authorization_endpoint"]
        return f"{address}{'&' if '?' in address else '?'}{urlencode(query)}", state

    async def finish(self, query: Mapping[str, str], state_of_browser: str) -> SignedIn:
        """The owner of the ID token for the code that the issuer sent.

        Raises:
            Invalid: the answer, the token or the role cannot be accepted.
            Unavailable: the issuer does not answer as it should.
        """
        state = query.get("state", "")
        is_own = hmac.compare_digest(
            state.encode(errors="replace"), state_of_browser.encode(errors="replace")
        )
        attempt = self._attempts.pop(state, None) if is_own else None
        if attempt is None or attempt.until_s <= self._clock.monotonic_s():
            raise Invalid(
                "this sign-in was not begun in this browser, or more than ten minutes ago; sign in again"
            )
        if "error" in query:
            reason = query.get("error_description") or query["error"]
            raise Invalid(f"the issuer refused the sign-in: {reason[:300]}")
        metadata = await self._issuer()
        token = await self._id_token(metadata, query.get("code", ""), attempt)
        return self._owner(await self._claims(metadata, token, attempt))

    async def _id_token(self, metadata: Mapping[str, Any], code: str, attempt: Attempt) -> str:
        settings = self._settings
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": attempt.redirect_uri,
            "code_verifier": attempt.verifier,
            "client_id": settings.client_id,
        }
        headers = [
            ("Accept", "application/json"),
            ("Content-Type", "application/x-www-form-urlencoded"),
        ]
        if settings.client_secret is not None:
            pair = f"{quote(settings.client_id, safe='')}:{quote(settings.client_secret.reveal(), safe='')}"
            headers.append(("Authorization", f"Basic {base64.b64encode(pair.encode()).decode()}"))
        status, answer = await self._call(
            "POST", metadata["token_endpoint"], headers, urlencode(form).encode()
        )
        token = answer.get("id_token")
        if status != 200 or not isinstance(token, str):
            reason = (
                answer.get("error_description")
                or answer.get("error")
                or f"status {status}, without an ID token"
            )
            raise Invalid(f"the issuer did not accept the code: {str(reason)[:300]}")
        return token

    async def _claims(
        self, metadata: Mapping[str, Any], token: str, attempt: Attempt
    ) -> Mapping[str, Any]:
        settings = self._settings
        _, keys = await self._call("GET", metadata["jwks_uri"])
        try:
            header = jwt.get_unverified_header(token)
            key = _key(jwt.PyJWKSet.from_dict(dict(keys)), header.get("kid"))
            claims: Mapping[str, Any] = jwt.decode(
                token,
                key,
                algorithms=_ALGORITHMS,
                audience=settings.client_id,
                issuer=settings.issuer,
                leeway=settings.leeway,
                options={"require": ["exp", "iat", "iss", "aud", "sub"]},
            )
        except jwt.PyJWTError as error:
            raise Invalid(f"the ID token of the issuer cannot be accepted: {error}") from None
        if not hmac.compare_digest(str(claims.get("nonce", "")).encode(), attempt.nonce.encode()):
            raise Invalid(
                "the ID token of the issuer cannot be accepted: it is not for this sign-in (nonce)"
            )
        if "azp" in claims and claims["azp"] != settings.client_id:
            raise Invalid(
                "the ID token of the issuer cannot be accepted: it is for another client (azp)"
            )
        return claims

    def _owner(self, claims: Mapping[str, Any]) -> SignedIn:
        settings = self._settings
        name = claims.get(settings.name_claim, claims["sub"])
        if (
            not isinstance(name, str)
            or not 0 < len(name) <= _LONGEST_NAME
            or not name.isprintable()
        ):
            raise Invalid(
                f"the claim {settings.name_claim!r}: expected a name of at most {_LONGEST_NAME} characters"
            )
        role = _role(claims.get(settings.role_claim), settings.roles) or settings.default_role
        if role is None:
            raise Invalid(
                f"{name!r} has no role here: no value of the claim {settings.role_claim!r} is in api.oidc.roles"
            )
        return SignedIn(name, role)

    async def _issuer(self) -> Mapping[str, Any]:
        """The metadata of the issuer, at most ten minutes old."""
        if self._clock.monotonic_s() >= self._metadata_until_s:
            issuer = self._settings.issuer
            status, metadata = await self._call(
                "GET", f"{issuer.rstrip('/')}/.well-known/openid-configuration"
            )
            if status != 200 or metadata.get("issuer") != issuer:
                raise self._away(
                    f"its configuration has status {status} and the issuer {metadata.get('issuer')!r}"
                )
            for name in _ENDPOINTS:
                if not str(metadata.get(name, "")).startswith(
                    "https://" if issuer.startswith("https:") else "http"
                ):
                    raise self._away(f"its configuration has no usable {name}")
            self._metadata = metadata
            self._metadata_until_s = self._clock.monotonic_s() + _METADATA_LIFE_S
        return self._metadata

    async def _call(
        self,
        method: str,
        url: str,
        headers: Sequence[tuple[str, str]] = (("Accept", "application/json"),),
        content: bytes | None = None,
    ) -> tuple[int, Mapping[str, Any]]:
        try:
            context: ssl.SSLContext | None = (
                self._settings.ssl.context() if url.startswith("https:") else None
            )
            status, body = await call(
                method,
                url,
                self._guard,
                context,
                timeout_s=_TIMEOUT_S,
                most_bytes=_MOST_BYTES,
                headers=headers,
                content=content,
            )
            document = jsontext.decode(body)
        except (CallFailed, AddressDenied, TlsUnusable) as error:
            raise self._away(str(error)) from None
        except ValueError:
            raise self._away("its answer is not JSON") from None
        if not isinstance(document, dict):
            raise self._away("its answer is not a JSON object")
        return status, document

    def _away(self, reason: str) -> Unavailable:
        log.warning("oidc.issuer_unavailable", issuer=self._settings.issuer, reason=reason)
        text = f"the issuer {self._settings.issuer} cannot be used now: {reason}. Try: an account, or again later"
        return Unavailable(text, retry_after_s=10)


def _key(keys: jwt.PyJWKSet, kid: str | None) -> Any:
    matching = [key for key in keys.keys if kid is None or key.key_id == kid]
    if not matching:
        raise jwt.InvalidKeyError(f"the issuer has no key {kid!r}")
    return matching[0]


def _role(claim: Any, roles: Mapping[str, Role]) -> Role | None:
    """The role of the first value that has one, in the order of the settings."""
    values = claim if isinstance(claim, list) else [claim]
    return next((role for value, role in roles.items() if value in values), None)
