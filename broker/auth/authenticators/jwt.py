"""The authenticator ``jwt``: clients show a signed token (JSON Web Token, OAuth 2.0)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from broker.auth.attempt import ConnectAttempt
from broker.auth.bearer import BearerExchange, BearerMethod
from broker.auth.decision import DENIED, IGNORED, ClientName, Decision
from broker.auth.exchange import Exchange
from broker.auth.expressions import ExpressionText
from broker.auth.jwks import AuthenticatorState, KeySet
from broker.auth.jwt_algorithms import HMAC, PUBLIC, AlgorithmName
from broker.auth.jwt_claims import Expected, ExpectedClaim, attributes_of, name_in, rules_of
from broker.auth.jwt_token import Refused, Token, check_times
from broker.config.model import Settings
from broker.config.outgoing import ClientTls
from broker.config.secret_text import ADDRESS, SecretText, SecretUnreadable, SecretUrl
from broker.config.ssrf import AddressGuard
from broker.config.units import Duration
from broker.config.vault import NAMED_SECRETS
from broker.core import reason
from broker.core.clock import Clock
from broker.core.errors import ConfigError
from broker.core.lazy_module import LazyModule
from broker.observe.log import get_logger
from broker.observe.metrics import Metrics

if TYPE_CHECKING:
    from broker.auth import jwt_keys
    from broker.auth.jwt_keys import VerifyingKey
else:
    jwt_keys = LazyModule("broker.auth.jwt_keys")

log = get_logger(__name__)

_ALL: Final[list[AlgorithmName]] = [*HMAC, *PUBLIC]
# Interval of reading keys in files again, so that they can be replaced.
_FILES_EVERY_S: Final = 30.0
# Reason code for the client, by the reason of the refusal; any other is a bad password.
_CODES: Final[Mapping[str, int]] = {
    "claim": reason.NOT_AUTHORIZED,
    "keys_unavailable": reason.SERVER_UNAVAILABLE,
}
REASONS: Final = (
    "malformed", "algorithm", "unknown_key", "signature", "expired", "not_yet_valid", "claim", "keys_unavailable",
)  # fmt: skip


class JwtSettings(Settings):
    """Settings of a ``jwt`` authenticator. One or more of ``secret``, ``public_key`` and ``jwks_url`` are needed."""

    mechanism: Literal["jwt"]
    enable: bool = Field(default=True, description="Whether it is asked.")
    precondition: ExpressionText | None = Field(
        default=None, description="It is asked only when this gives exactly 'true'."
    )
    token_in: Literal["password", "username"] = Field(
        default="password", description="Where the token is."
    )
    algorithms: list[AlgorithmName] = Field(
        default=_ALL, min_length=1, description="Algorithms that are allowed; of these each key is used for those of "
        "its own kind: a secret for HS256, HS384 and HS512, a public key for the others."
    )  # fmt: skip
    secret: SecretText | None = Field(
        default=None, description="The secret that tokens are signed with, or `${secret:NAME}`, `${env:NAME}`, "
        "`${file:PATH}`; 32 bytes or more."
    )  # fmt: skip
    secret_base64_encoded: bool = Field(
        default=False, description="Whether the secret is written in Base64."
    )
    public_key: str | None = Field(
        default=None, min_length=1, description="The public key, or certificate, of the signer: a file in PEM form, or "
        "the PEM text itself."
    )  # fmt: skip
    jwks_url: Annotated[SecretUrl | None, ADDRESS] = Field(
        default=None,
        description="Address of the signer's keys: a JWK set over https. Values of its query show as stars.",
    )
    allow_http: bool = Field(
        default=False, description="Whether `jwks_url` may begin with `http:`; anyone on the network path can then let "
        "any client in."
    )  # fmt: skip
    refresh_interval: Duration = Field(
        default=300,
        ge=10,
        le=86_400,
        description="How often the keys of `jwks_url` are read; a duration.",
    )
    request_timeout: Duration = Field(
        default=5,
        gt=0,
        le=60,
        description="A request for keys that takes longer has failed; a duration.",
    )
    ssl: ClientTls = Field(default_factory=ClientTls, description="TLS of `jwks_url`.")
    leeway: Duration = Field(
        default=10, ge=0, le=3600, description="How far clocks may be apart where a token says when it begins and "
        "ends; a duration."
    )  # fmt: skip
    required_claims: list[str] = Field(
        default=["exp"],
        description="Claims that every token must have. Without `exp` here, tokens may be valid forever.",
    )
    verify_claims: dict[str, Expected] = Field(
        default_factory=dict, description="Claims and what they must be, one value or any of a list; with "
        "`${clientid}`, `${username}`, `${client_attrs.NAME}` and similar."
    )  # fmt: skip
    username_claim: str | None = Field(
        default=None, min_length=1, description="The claim that is the client's user name, whatever it said itself. "
        "Default: `sub` where the token is the user name, else none."
    )  # fmt: skip
    acl_claim_name: str = Field(
        default="acl", min_length=1, description="The claim with access rules of this client."
    )
    scope_prefix: str | None = Field(
        default=None, description="OAuth scopes `PREFIXread:FILTER` and `PREFIXwrite:FILTER` in the claim `scope` let "
        "the client subscribe and publish; an empty text for no prefix. Default: scopes are not read."
    )  # fmt: skip
    disconnect_after_expire: bool = Field(
        default=True, description="Whether a client is disconnected when its token ends."
    )
    methods: list[BearerMethod] = Field(
        default=["JWT", "OAUTHBEARER"],
        description="Methods of enhanced authentication that are offered; with one, clients renew their token while "
        "they are connected.",
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.secret is None and self.public_key is None and self.jwks_url is None:
            raise ValueError("nothing says who signs tokens; give secret, public_key or jwks_url")
        if self.jwks_url is not None:
            self._check_url(self.jwks_url.reveal())
        expected = [ExpectedClaim(name, value) for name, value in self.verify_claims.items()]
        if self.token_in == "username" and any(
            "username" in claim.placeholders for claim in expected
        ):
            raise ValueError(
                "verify_claims cannot have ${username} where token_in = username; name the claim itself"
            )
        kinds = {"secret": HMAC, "public_key": PUBLIC, "jwks_url": PUBLIC}
        for name, kind in kinds.items():
            if getattr(self, name) is not None and not set(kind) & set(self.algorithms):
                raise ValueError(
                    f"{name} is of no use: algorithms allows none of {', '.join(kind)}"
                )
        return self

    def _check_url(self, text: str) -> None:
        parts = urlsplit(text)
        if parts.scheme == "http" and not self.allow_http:
            raise ValueError("jwks_url must begin with https://; allow_http = true takes http")
        if (
            parts.scheme not in ("http", "https")
            or not parts.hostname
            or parts.username is not None
        ):
            raise ValueError("jwks_url must begin with https:// and name a host, without a user")
        _ = parts.port  # raises if it is not a port

    @property
    def name_claim(self) -> str | None:
        """The claim that is the user name."""
        return self.username_claim or ("sub" if self.token_in == "username" else None)


class JwtAuthenticator:
    """Checks signed tokens. Raises ``ConfigError`` for keys of no use when it is made."""

    def __init__(
        self, settings: JwtSettings, guard: AddressGuard, metrics: Metrics, clock: Clock
    ) -> None:
        self.methods: Sequence[str] = settings.methods
        self._settings = settings
        self._clock = clock
        self._secrets_version = NAMED_SECRETS.version
        self._keys, self._read_s = _own_keys(settings), clock.monotonic_s()
        self._is_read_again = any(map(_is_in_file, (settings.secret, settings.public_key)))
        self._published = _published_keys(settings, guard, metrics, clock)
        self._expected = [
            ExpectedClaim(name, value) for name, value in settings.verify_claims.items()
        ]
        verified: set[ClientName] = {"username"} if settings.name_claim else set()
        self._verified = frozenset(verified.union(*(claim.proves for claim in self._expected)))
        text = "clients refused for their token, by reason"
        self._refused = {
            reason_name: metrics.counter("jwt_refused", text, reason=reason_name)
            for reason_name in REASONS
        }

    # -- life --

    def tick(self) -> None:
        """Read the keys again when it is time to, the issuer's and those in files."""
        if self._published is not None:
            self._published.tick()
        now_s = self._clock.monotonic_s()
        if self._is_read_again and now_s >= self._read_s + _FILES_EVERY_S:
            self._read_s = now_s
            self._read_keys()

    def _read_keys(self) -> None:
        try:
            self._keys = _own_keys(self._settings)
        except ConfigError as error:
            log.warning("jwt.key_not_read", reason=str(error))  # the last one is used

    def close(self) -> None:
        """Stop; it is no longer asked."""
        if self._published is not None:
            self._published.close()

    @property
    def state(self) -> AuthenticatorState | None:
        """The state of keys that are read from elsewhere."""
        return None if self._published is None else {"jwks": self._published.state}

    # -- logins --

    def decide(self, attempt: ConnectAttempt) -> Decision | Coroutine[Any, Any, Decision]:
        """Decide by the token; ``ignore`` for a client that shows none."""
        if self._settings.token_in == "username":
            return IGNORED if attempt.username is None else self._judge(attempt.username, attempt)
        if attempt.password is None:
            return IGNORED
        try:
            text = attempt.password.decode("ascii")
        except UnicodeDecodeError:
            return IGNORED
        return self._judge(text, attempt)

    def begin(self, method: str, attempt: ConnectAttempt) -> Exchange:
        """An exchange in which the client sends its token."""
        return BearerExchange(method, lambda text: self._judge(text, attempt))

    def _judge(
        self, text: str, attempt: ConnectAttempt
    ) -> Decision | Coroutine[Any, Any, Decision]:
        token = Token.parse(text)
        if token is None:
            return IGNORED
        published = self._published
        if (
            published is not None
            and self._is_for_published(token)
            and published.may_have_more(token.kid)
        ):
            return self._once_read(published, token, attempt)
        return self._decision(token, attempt)

    async def _once_read(
        self, published: KeySet, token: Token, attempt: ConnectAttempt
    ) -> Decision:
        await published.newest()
        return self._decision(token, attempt)

    def _is_for_published(self, token: Token) -> bool:
        return token.algorithm in PUBLIC and token.algorithm in self._settings.algorithms

    def _decision(self, token: Token, attempt: ConnectAttempt) -> Decision:
        try:
            return self._accepted(self._claims(token), attempt)
        except Refused as refused:
            self._refused[refused.reason].value += 1
            code = _CODES.get(refused.reason, DENIED.reason_code)
            # a token must not be shown as a name
            unsaid = "" if self._settings.token_in == "username" else None
            return Decision("deny", code, username=unsaid, mechanism="jwt", why=str(refused))

    def _claims(self, token: Token) -> Mapping[str, Any]:
        """Claims of a token with a valid signature; raises ``Refused``, for one that keys may be missing for while
        they cannot be read as ``keys_unavailable``."""
        try:
            return token.claims(self._candidates(token))
        except Refused as refused:
            published = self._published
            if (
                refused.reason in ("unknown_key", "signature")
                and published is not None
                and self._is_for_published(token)
                and published.is_missing(token.kid)
            ):
                raise Refused(
                    "keys_unavailable", "the keys that tokens are signed with could not be read"
                ) from None
            raise

    def _candidates(self, token: Token) -> list[VerifyingKey]:
        """The keys that may have signed a token."""
        if self._secrets_version != NAMED_SECRETS.version:
            self._secrets_version = NAMED_SECRETS.version
            self._read_keys()
        keys = [key for key in self._keys if token.algorithm in key.algorithms]
        published = self._published
        if published is not None and self._is_for_published(token):
            keys += [key for key in published.keys(token.kid) if token.algorithm in key.algorithms]
            if not keys:
                raise Refused(
                    "unknown_key",
                    "the token is signed with a key that is not among those published",
                )
        if not keys:
            raise Refused("algorithm", f"tokens signed by {token.algorithm[:20]!r} are not taken")
        return keys

    def _accepted(self, claims: Mapping[str, Any], attempt: ConnectAttempt) -> Decision:
        """Decision for a token with a valid signature; raises ``Refused``."""
        settings = self._settings
        for name in settings.required_claims:
            if claims.get(name) is None:
                raise Refused("claim", f"the token has no claim {name!r}")
        ends_s = check_times(claims, self._clock.now_ns() / 1e9, settings.leeway)
        for claim in self._expected:
            claim.check(claims, attempt)
        rules = rules_of(claims, settings.acl_claim_name, settings.scope_prefix)
        attributes, bad = attributes_of(claims)
        if bad:
            log.warning("jwt.attributes_not_set", client_id=attempt.client_id, attributes=bad[:10])
        return Decision(
            "allow",
            is_superuser=claims.get("is_superuser") is True,
            verified=self._verified,
            username=name_in(claims, settings.name_claim) if settings.name_claim else None,
            attributes=attributes,
            mechanism="jwt",
            expires_s=None
            if ends_s is None or not settings.disconnect_after_expire
            else ends_s + settings.leeway,
            rules=rules,
        )


def _is_in_file(written: SecretText | str | None) -> bool:
    if isinstance(written, SecretText):
        return written.written.startswith("${file:")
    return written is not None and not _is_pem(written)


def _is_pem(written: str) -> bool:
    return "-----BEGIN" in written


def _own_keys(settings: JwtSettings) -> list[VerifyingKey]:
    keys = []
    if settings.secret is not None:
        keys.append(_secret(settings, settings.secret))
    if settings.public_key is not None:
        keys.append(_public(settings, settings.public_key))
    return keys


def _secret(settings: JwtSettings, written: SecretText) -> VerifyingKey:
    try:
        text = written.reveal()
        secret = _of_base64(text) if settings.secret_base64_encoded else text.encode()
        key = jwt_keys.secret_key(secret, settings.algorithms)
    except (SecretUnreadable, jwt_keys.KeyOfNoUse) as error:
        raise ConfigError([f"authentication: the secret of jwt cannot be used: {error}"]) from None
    return key


def _of_base64(text: str) -> bytes:
    try:
        plain = text.strip().rstrip("=").replace("-", "+").replace("_", "/")
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise jwt_keys.KeyOfNoUse("it is not written in Base64") from None


def _public(settings: JwtSettings, written: str) -> VerifyingKey:
    is_text = _is_pem(written)
    where = "the public_key of jwt" if is_text else f"the public_key of jwt, {written},"
    try:
        return jwt_keys.pem_key(
            written.encode() if is_text else Path(written).read_bytes(), settings.algorithms
        )
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
    except jwt_keys.KeyOfNoUse as error:
        reason = str(error)
    raise ConfigError([f"authentication: {where} cannot be used: {reason}"])


def _published_keys(
    settings: JwtSettings, guard: AddressGuard, metrics: Metrics, clock: Clock
) -> KeySet | None:
    if settings.jwks_url is None:
        return None
    return KeySet(
        settings.jwks_url,
        settings.ssl,
        allowed=[name for name in settings.algorithms if name in PUBLIC],
        refresh_interval_s=settings.refresh_interval,
        timeout_s=settings.request_timeout,
        guard=guard,
        metrics=metrics,
        clock=clock,
    )
