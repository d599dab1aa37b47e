"""TLS towards outside systems: settings of connectors, and the context built from them. Names are EMQX's."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from bridges.resource.errors import BadSettings
from bridges.resource.settings.secret import SecretText
from broker.config.model import Settings

_VERSIONS: Final = {"tlsv1.2": ssl.TLSVersion.TLSv1_2, "tlsv1.3": ssl.TLSVersion.TLSv1_3}


def _prefixed(value: object) -> object:
    return f"verify_{value}" if value in ("peer", "none") else value


class TlsFiles(Settings):
    """The options that ``ssl`` of a connector and of a listener share."""

    cacertfile: Path | None = Field(
        default=None,
        description="Certificate authorities that the peer's certificate is checked against, PEM.",
    )
    certfile: Path | None = Field(
        default=None, description="Certificate shown to the peer, with its chain, PEM."
    )
    keyfile: Path | None = Field(default=None, description="Private key of the certificate, PEM.")
    password: SecretText | None = Field(default=None, description="Password of the private key.")
    versions: list[Literal["tlsv1.2", "tlsv1.3"]] = Field(
        default=["tlsv1.3", "tlsv1.2"], min_length=1, description="Allowed versions of TLS."
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (self.certfile is None) is not (self.keyfile is None):
            raise ValueError("certfile and keyfile belong together; give both or none")
        return self

    def limit_versions(self, context: ssl.SSLContext) -> None:
        """Limit a context to ``versions``."""
        spoken = [_VERSIONS[name] for name in self.versions]
        context.minimum_version, context.maximum_version = min(spoken), max(spoken)

    def load_certificate(self, context: ssl.SSLContext) -> None:
        """Load ``certfile`` into a context, if it is set. Raises ``BadSettings``."""
        certificate = self.certfile
        key = self.keyfile
        if certificate is not None:
            # never asks on a terminal
            password = self.password.reveal() if self.password is not None else ""
            settings_names = "ssl.certfile and ssl.keyfile"
            _load_pem(
                lambda: context.load_cert_chain(certificate, key, lambda: password),
                settings_names,
                certificate,
            )

    def load_authorities(self, context: ssl.SSLContext) -> None:
        """Load ``cacertfile`` as trusted into a context, if it is set. Raises ``BadSettings``."""
        if authorities := self.cacertfile:
            _load_pem(
                lambda: context.load_verify_locations(authorities), "ssl.cacertfile", authorities
            )


class TlsOptions(TlsFiles):
    """``ssl`` of a connector; without ``cacertfile`` the system's authorities are trusted."""

    enable: bool = Field(default=False, description="Whether the connection is encrypted.")
    verify: Annotated[Literal["verify_peer", "verify_none"], BeforeValidator(_prefixed)] = Field(
        default="verify_peer",
        description="Whether the server's certificate and its name are checked.",
    )
    server_name_indication: str | None = Field(
        default=None,
        min_length=1,
        description="Name that the server's certificate must have. Default: the host.",
    )


def client_context(options: TlsOptions) -> ssl.SSLContext | None:
    """The context of a connection; None where it is not encrypted. Reads files: call it on a thread, or rarely.

    Raises:
        BadSettings: a file cannot be used; says which and why.
    """
    if not options.enable:
        return None
    context = _context(options.server_name_indication)
    options.limit_versions(context)
    if options.verify == "verify_none":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif options.cacertfile is None:
        context.load_default_certs()
    else:
        options.load_authorities(context)
    options.load_certificate(context)
    return context


def _load_pem(load: Callable[[], object], setting: str, file: Path) -> None:
    """Load a file of a setting.

    Raises:
        BadSettings: it cannot be used, or not be read.
    """
    try:
        load()
    except ssl.SSLError as error:
        raise BadSettings(
            f"{setting} cannot be used: {file}: {error.reason or 'it holds nothing in PEM form'}"
        ) from None
    except OSError as error:
        raise BadSettings(
            f"{setting} cannot be read: {file}: {(error.strerror or str(error)).lower()}"
        ) from None


class _NamedContext(ssl.SSLContext):
    """Asks for, and checks, one name whatever host is connected to."""

    server_name: str

    def wrap_bio(self, *arguments: object, **named: object) -> ssl.SSLObject:
        """Wrap as the base class does; the server's name is replaced."""
        return super().wrap_bio(*arguments, **{**named, "server_hostname": self.server_name})  # type: ignore[arg-type]


def _context(server_name: str | None) -> ssl.SSLContext:
    if server_name is None:
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context = _NamedContext(ssl.PROTOCOL_TLS_CLIENT)
    context.server_name = server_name
    return context
