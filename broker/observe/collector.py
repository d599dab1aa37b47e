"""An OpenTelemetry collector: whether it may be called, and the options of the exporters that call it."""

from __future__ import annotations

import logging
import socket
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from broker.config.ssrf import AddressDenied, AddressGuard
from broker.core.errors import ConfigError
from broker.observe.settings import TelemetrySettings

_NEEDED: Final = (
    "opentelemetry.sdk",
    "opentelemetry.exporter.otlp.proto.http",
    "opentelemetry.exporter.otlp.proto.grpc",
)
_MISSING: Final = (
    "{setting}: expected the extra 'telemetry' to be installed, got a broker without the OpenTelemetry SDK. "
    "Try: pip install 'sluicemq[telemetry]'"
)


def check_installed(setting: str = "telemetry.enable") -> None:
    """Raise ``ConfigError`` where the extra that the setting needs is not installed."""
    try:
        is_there = all(find_spec(name) is not None for name in _NEEDED)
    except ModuleNotFoundError:
        is_there = False
    if not is_there:
        raise ConfigError([_MISSING.format(setting=setting)])


class Collector:
    """The collector of some settings, at one of its endpoints.

    Raises:
        ConfigError: a file of the settings cannot be read.
    """

    def __init__(self, settings: TelemetrySettings, endpoint: str, guard: AddressGuard) -> None:
        self.endpoint = endpoint
        self._settings = settings
        self._guard = guard
        self._certificates()

    def why_denied(self) -> str:
        """Reason why its address must not be called, or cannot be found; empty if it may be called. Resolves names:
        not for the loop."""
        parts = urlsplit(self.endpoint)
        host = parts.hostname or ""
        reason = self._guard.why_not_host(host)
        if reason is None and self._guard.is_on:
            try:
                addresses = [
                    str(entry[4][0]) for entry in socket.getaddrinfo(host, parts.port or 0)
                ]
            except (OSError, UnicodeError) as error:
                return f"{host}: {error}"
            reason = next(filter(None, map(self._guard.why_not_address, addresses)), None)
        return "" if reason is None else str(AddressDenied(f"{host} must not be called: {reason}"))

    def options(self) -> dict[str, Any]:
        """Arguments of an exporter of OpenTelemetry for the protocol of the settings.

        Raises:
            broker.config.secret_text.SecretUnreadable: a header refers to a secret that cannot be read.
        """
        for name in ("opentelemetry.exporter", "opentelemetry.sdk"):
            # failures are counted, and an alarm says why
            logging.getLogger(name).setLevel(logging.CRITICAL)
        settings = self._settings
        options: dict[str, Any] = {
            "endpoint": self.endpoint,
            "headers": {name.lower(): value.reveal() for name, value in settings.headers.items()},
            "timeout": settings.timeout,
        }
        if settings.protocol == "http":
            return options | {
                "certificate_file": settings.cacertfile,
                "client_key_file": settings.keyfile,
                "client_certificate_file": settings.certfile,
            }
        import grpc

        is_plain = urlsplit(self.endpoint).scheme != "https"
        credentials = None if is_plain else grpc.ssl_channel_credentials(*self._certificates())
        return options | {"insecure": is_plain, "credentials": credentials}

    def _certificates(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """Contents of the files of TLS: authorities, private key, certificate."""
        settings = self._settings
        contents: list[bytes | None] = []
        for name, path in (
            ("cacertfile", settings.cacertfile),
            ("keyfile", settings.keyfile),
            ("certfile", settings.certfile),
        ):
            try:
                contents.append(None if path is None else Path(path).read_bytes())
            except OSError as error:
                reason = (error.strerror or str(error)).lower()
                raise ConfigError(
                    [f"telemetry.{name}: expected a file that can be read, got {path!r}: {reason}"]
                ) from None
        authorities, key, certificate = contents
        return authorities, key, certificate
