"""TLS between machines, and with servers of NATS."""

from __future__ import annotations

import ssl


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
