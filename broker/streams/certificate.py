"""The certificate that the range server shows to readers."""

from __future__ import annotations

import ssl
import sys
from pathlib import Path

from broker.config.stamp import stamp_of


class Certificate:
    """A certificate and its key, which are read again when their files change."""

    def __init__(self, certfile: str, keyfile: str) -> None:
        self._files = Path(certfile), Path(keyfile)
        self._stamps: tuple[object, ...] = ()
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """The context for the next connection. If the files cannot be used, the previous one stays active.

        Raises:
            OSError: the first files cannot be used; ``ssl.SSLError`` is one.
        """
        stamps = tuple(map(stamp_of, self._files))
        if self._context is not None and stamps == self._stamps:
            return self._context
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(*self._files)
        except OSError as error:
            if self._context is None:
                raise
            print(f"range server: the changed certificate cannot be used: {error}", file=sys.stderr)
        else:
            self._context = context
        self._stamps = stamps
        return self._context
