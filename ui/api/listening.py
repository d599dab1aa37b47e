"""The address of the management API: bound apart from the server, which takes longer to import than a broker to start.

A port in use is one clear sentence.
"""

from __future__ import annotations

import errno
import socket
import ssl
from pathlib import Path
from typing import Final

from broker.config.stamp import stamp_of
from broker.core.errors import ConfigError
from broker.core.hosts import address_text
from broker.observe.log import get_logger

_log = get_logger(__name__)

# Connections that the system keeps until they are accepted: all may be accepted, with a descriptor each, before the
# first of those beyond the limit is closed.
BACKLOG: Final = 128


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens; who connects before the server accepts waits.

    Raises:
        broker.core.errors.ConfigError: the address cannot be bound; says why and what to do.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise _refused(
            host,
            port,
            f"the host is not known ({error.strerror})",
            "name an address of this machine",
        ) from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise _refused(host, port, *_why(error)) from None
    return listener


class Certificate:
    """TLS of the API, from files that are read again when they change. Connections keep what they began with.

    Raises:
        broker.core.errors.ConfigError: the files cannot be used.
    """

    def __init__(self, certfile: str, keyfile: str) -> None:
        self._files = (certfile, keyfile)
        self._stamps = self._stamps_now()
        self.context = self._context()

    def refresh(self) -> None:
        """Read the files again if they changed; where they cannot be used, the certificate stays."""
        stamps = self._stamps_now()
        if stamps == self._stamps:
            return
        self._stamps = stamps
        try:
            self._context()  # an incomplete pair is refused before the one in use is replaced
            self.context.load_cert_chain(*self._files)
        except (ConfigError, OSError) as error:
            _log.error("api.certificate_not_reloaded", reason=str(error))
        else:
            _log.info("api.certificate_reloaded")

    def _context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        certfile, keyfile = self._files
        try:
            context.load_cert_chain(certfile, keyfile, password=lambda: "")
        except OSError as error:  # also of OpenSSL
            reason = (
                error.strerror
                if error.errno and not isinstance(error, ssl.SSLError)
                else str(error)
            )
            raise ConfigError(
                [
                    f"api.certfile: expected a certificate in {certfile} with its key in {keyfile}, got: {reason}"
                ]
            ) from None
        return context

    def _stamps_now(self) -> tuple[object, ...]:
        return tuple(stamp_of(Path(file)) for file in self._files)


def _why(error: OSError) -> tuple[str, str]:
    if error.errno == errno.EADDRINUSE:
        return (
            "the port is in use",
            "stop the program that has it, or choose another port (0 takes any)",
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine has no such address", "use 127.0.0.1, or 0.0.0.0 for all addresses"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "ports below 1024 are not for ordinary users", "choose a port above 1023"
    return str(error.strerror or error), "choose another address"


def _refused(host: str, port: int, why: str, advice: str) -> ConfigError:
    return ConfigError(
        [f"the management API cannot listen on {address_text(host, port)}: {why}; {advice}"]
    )
