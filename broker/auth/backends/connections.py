"""Connections to databases: the address, checked by the guard, TLS, and the password of the moment."""

from __future__ import annotations

import ssl
from importlib.util import find_spec
from typing import Any, Protocol

from pydantic import Field

from broker.auth.backends.backend import Unreachable
from broker.config.outgoing import ClientTls, TlsUnusable
from broker.config.secret_text import SecretText, SecretUnreadable
from broker.config.ssrf import AddressGuard
from broker.config.vault import NAMED_SECRETS
from broker.core.errors import ConfigError
from broker.core.hosts import split_address


def check_installed(module: str, extra: str) -> None:
    """Raise ``ConfigError`` unless the library of a server is installed."""
    if find_spec(module) is None:
        raise ConfigError(
            [f"{extra}: {module} is not installed. Try: pip install 'sluicemq[{extra}]'"]
        )


class OptionalTls(ClientTls):
    """TLS towards a server that also takes connections without."""

    enable: bool = Field(default=False, description="Whether connections are encrypted.")


class ServerSettings(Protocol):
    """Settings of a server with a login."""

    @property
    def server(self) -> str:
        """``host:port``."""

    @property
    def password(self) -> SecretText | None:
        """Password of the login."""

    @property
    def ssl(self) -> OptionalTls:
        """TLS of the connections."""


class Servers:
    """A server as connections are made to it."""

    def __init__(self, settings: ServerSettings, guard: AddressGuard) -> None:
        self._settings = settings
        self.guard = guard
        self.host, self.port = split_address(settings.server)
        self._secrets_version = NAMED_SECRETS.version
        try:
            self.context: ssl.SSLContext | None = (
                settings.ssl.context() if settings.ssl.enable else None
            )
        except TlsUnusable as error:
            raise ConfigError([f"{settings.server}: {error}"]) from None
        if self.context is not None:
            _verify_name(self.context, settings.ssl.server_name_indication or self.host)

    async def addresses(self) -> list[str]:
        """Addresses of the server that may be called. Raises ``AddressDenied`` and ``OSError``."""
        return await self.guard.addresses(self.host, self.port)

    def password(self) -> str:
        """The password as it is now. Raises ``Unreachable``."""
        password = self._settings.password
        if password is None:
            return ""
        try:
            return password.reveal()
        except SecretUnreadable as error:
            raise Unreachable(str(error)) from None

    @property
    def has_new_secrets(self) -> bool:
        """True once after a named secret changed: then connections are made again."""
        if self._secrets_version == NAMED_SECRETS.version:
            return False
        self._secrets_version = NAMED_SECRETS.version
        return True


def _verify_name(context: ssl.SSLContext, name: str) -> None:
    """Check certificates for a name though connections go to an address."""
    wrap = context.wrap_bio

    def wrap_bio(
        incoming: Any, outgoing: Any, *, server_side: bool = False, **_: Any
    ) -> ssl.SSLObject:
        return wrap(incoming, outgoing, server_side=server_side, server_hostname=name)

    setattr(context, "wrap_bio", wrap_bio)  # noqa: B010 - a method of the class for types
