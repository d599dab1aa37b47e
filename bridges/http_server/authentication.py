"""Authentication of senders. Values are compared in constant time, and with every accepted one."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from bridges.http_server.settings import (
    Authentication,
    BasicAuthentication,
    HmacAuthentication,
    TokenAuthentication,
)
from bridges.resource.errors import BadSettings
from bridges.resource.settings.secret import SecretText
from broker.config.secret_text import MadeOfSecrets
from broker.core.receivers import PostRefused

Headers = Mapping[str, str]
_LONGEST_HEADER: Final = 8192


class Guard:
    """Checks requests: what the headers suffice for is checked before the body is read."""

    needs_body: bool = True
    """True if the sender has authenticated only once the body was checked, or does not authenticate."""

    def check_headers(self, headers: Headers) -> None:
        """Raise ``PostRefused`` (401) for a request that must not be read."""

    def check_body(self, headers: Headers, body: bytes, now_s: float) -> None:
        """Raise ``PostRefused`` (401) for a body that is not what was signed; ``now_s`` is the wall clock."""


class _Tokens(Guard):
    needs_body = False

    def __init__(self, settings: TokenAuthentication) -> None:
        self._header = settings.header
        self._tokens = [_revealed(token, "tokens") for token in settings.tokens]

    def check_headers(self, headers: Headers) -> None:
        """See ``Guard``."""
        token = headers.get(self._header, "")
        if self._header == "authorization":
            scheme, _, token = token.partition(" ")
            token = token.strip() if scheme.lower() == "bearer" else ""
        if not _is_one_of(token, self._tokens):
            hint = (
                "send 'Authorization: Bearer TOKEN'"
                if self._header == "authorization"
                else f"send {self._header}"
            )
            raise _refused("Bearer", f"the token is missing or wrong; {hint}")


class _Passwords(Guard):
    needs_body = False

    def __init__(self, settings: BasicAuthentication) -> None:
        self._logins = [
            f"{name}:{_revealed(password, 'users')}" for name, password in settings.users.items()
        ]

    def check_headers(self, headers: Headers) -> None:
        """See ``Guard``."""
        scheme, _, coded = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "basic" or not _is_one_of(_decoded(coded), self._logins):
            raise _refused("Basic", "the user name or the password is missing or wrong")


class _Signatures(Guard):
    def __init__(self, settings: HmacAuthentication) -> None:
        self._settings = settings
        self._secrets = [_revealed(secret, "secrets").encode() for secret in settings.secrets]

    def check_headers(self, headers: Headers) -> None:
        """See ``Guard``."""
        for name in (self._settings.header, self._settings.timestamp_header):
            if name is not None and name not in headers:
                raise _refused("HMAC", f"the request is not signed; the header {name} is missing")

    def check_body(self, headers: Headers, body: bytes, now_s: float) -> None:
        """See ``Guard``."""
        settings = self._settings
        signed = body
        if settings.timestamp_header is not None:
            time = headers[settings.timestamp_header]
            if not time.isdecimal() or abs(now_s - int(time[:_DIGITS])) > settings.tolerance:
                raise _refused(
                    "HMAC",
                    f"{settings.timestamp_header} is not within {settings.tolerance:g} s of the broker's clock",
                )
            signed = time.encode() + b"." + body
        encode = _ENCODINGS[settings.encoding]
        good = [
            settings.prefix + encode(hmac.new(secret, signed, hashlib.sha256).digest())
            for secret in self._secrets
        ]
        if not _is_one_of(headers[settings.header], good):
            raise _refused("HMAC", f"the signature in {settings.header} does not fit the body")


_DIGITS: Final = 20
_ENCODINGS: Final[Mapping[str, Callable[[bytes], str]]] = {
    "hex": bytes.hex,
    "base64": lambda digest: b64encode(digest).decode(),
}


class _Current(Guard):
    """The guard of settings, made again after a named secret changed."""

    def __init__(self, settings: Authentication) -> None:
        self._guard = MadeOfSecrets(lambda: _guard_now(settings))
        self.needs_body = self._guard().needs_body

    def check_headers(self, headers: Headers) -> None:
        """See ``Guard``."""
        self._guard().check_headers(headers)

    def check_body(self, headers: Headers, body: bytes, now_s: float) -> None:
        """See ``Guard``."""
        self._guard().check_body(headers, body, now_s)


def guard_of(settings: Authentication) -> Guard:
    """The guard of settings; secrets are read now, and named secrets again when they change.

    Raises:
        bridges.resource.errors.BadSettings: a secret cannot be read, or is empty.
    """
    return _Current(settings)


def _guard_now(settings: Authentication) -> Guard:
    if isinstance(settings, TokenAuthentication):
        return _Tokens(settings)
    if isinstance(settings, BasicAuthentication):
        return _Passwords(settings)
    if isinstance(settings, HmacAuthentication):
        return _Signatures(settings)
    return Guard()


def _revealed(secret: SecretText, member: str) -> str:
    text = secret.reveal()
    if not text:  # any client could sign by it, or log in with it
        raise BadSettings(
            f"authentication.{member}: expected a secret, got an empty one. Try: openssl rand -hex 32"
        )
    return text


def _is_one_of(credential: str, good: Sequence[str]) -> bool:
    """Return whether a string is one of some, in constant time; false for an empty one."""
    value = credential[:_LONGEST_HEADER].encode("utf-8", "surrogateescape")
    fits = [hmac.compare_digest(value, text.encode()) for text in good]
    return any(fits) and bool(value)


def _decoded(coded: str) -> str:
    try:
        return b64decode(coded.strip(), validate=True).decode()
    except ValueError:
        return ""


def _refused(scheme: str, detail: str) -> PostRefused:
    headers = {"WWW-Authenticate": f'{scheme} realm="sluice ingest"'}
    return PostRefused(401, "unauthorized", detail, headers=headers)
