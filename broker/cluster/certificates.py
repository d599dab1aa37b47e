"""TLS between machines, and with servers of NATS. Certificates are renewed while processes run."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

from broker.config.stamp import stamp_of
from broker.observe.log import get_logger

_log = get_logger(__name__)


class Certificates:
    """TLS with the certificates of files, as ``context_of``. Files that have changed are loaded before the next
    connection; where they cannot be used, the previous ones stay active."""

    def __init__(
        self, certfile: str, keyfile: str, cacertfile: str, *, is_server: bool = False
    ) -> None:
        self._files = (certfile, keyfile, cacertfile)
        self._is_server = is_server
        self._context: ssl.SSLContext | None = None
        self._stamps: list[object] = []
        self._refused: list[object] = []
        """Stamps of the files whose problem was logged."""

    def context(self) -> ssl.SSLContext:
        """The context for the next connection. Any thread may call it.

        Raises:
            OSError: the first files cannot be used; ``ssl.SSLError`` is one.
        """
        stamps = [stamp_of(Path(file)) for file in self._files if file]
        if self._context is not None and stamps == self._stamps:
            return self._context
        try:
            context = context_of(*self._files, is_server=self._is_server)
        except OSError as error:
            if self._context is None:
                raise
            if stamps != self._refused:
                self._refused = stamps
                _log.error("machine.certificate_not_reloaded", reason=str(error))
            return self._context
        if self._context is not None:
            _log.info("machine.certificate_reloaded")
        self._context = context
        self._stamps = stamps
        return context

    def of_listener(self) -> ssl.SSLContext:
        """A context for a listener, each of whose connections gets that of ``context``. Raises as that."""

        def follow(link: Any, _name: str | None, _context: ssl.SSLContext) -> None:
            link.context = self.context()

        context = context_of(*self._files, is_server=self._is_server)
        # called for each handshake, also for one without a server name
        context.sni_callback = follow
        return context


def context_of(certfile: str, keyfile: str, cacertfile: str, *, is_server: bool) -> ssl.SSLContext:
    """TLS between machines: both show a certificate of the cluster's authority. A client of NATS without a ``certfile``
    checks the server only.

    Raises:
        OSError: a file cannot be read, or has none.
    """
    purpose = ssl.Purpose.CLIENT_AUTH if is_server else ssl.Purpose.SERVER_AUTH
    context = ssl.create_default_context(purpose, cafile=cacertfile)
    # Python 3.13 sets it, and authorities of earlier releases have no key identifiers
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if certfile:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(certfile, keyfile)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
