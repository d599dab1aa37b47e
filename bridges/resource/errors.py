"""Errors of connectors, by the reaction to them.

::

    SluiceError
    └── BridgeError
        ├── TryAgain        the same records may go through later: busy, throttled, a leader is being elected
        ├── ReconnectFirst  nothing goes through before the connection is replaced
        ├── TargetMissing   the connection is fine, and the target does not exist: topic, table, queue
        ├── TargetUnusable  the connection is fine, and the target or origin may not be used, or is not as it should be:
        │                   rights on it, its columns; nothing goes there until a person fixes it
        ├── NeverAgain      these records will never be taken: too large, refused, of the wrong type
        └── BadSettings     nothing goes through until the settings change: credentials, certificate, address

A connector raises one for a whole batch, or returns one for each record it is about. Texts name the cause and the
address; secrets that are in the settings are taken out of them before they are shown.
"""

from __future__ import annotations

import os
import ssl

from broker.config.ssrf import AddressDenied
from broker.core.errors import SluiceError


class BridgeError(SluiceError):
    """Root of the errors that connectors raise on purpose."""

    code = "bridge"


class TryAgain(BridgeError):
    """The same records may go through later; ``after_s`` is when, where the target says so."""

    code = "try_again"

    def __init__(self, message: str, after_s: float | None = None) -> None:
        self.after_s = after_s
        super().__init__(message)


class ReconnectFirst(BridgeError):
    """Nothing goes through before the connection is replaced; the records are kept and sent then."""

    code = "reconnect_first"


class TargetMissing(BridgeError):
    """The target does not exist. The settings say whether its records wait or are rejected."""

    code = "target_missing"


class TargetUnusable(BridgeError):
    """The target or origin is closed to us, or is not as the settings say. Its records wait for a user; other
    traffic of the connection continues."""

    code = "target_unusable"


class NeverAgain(BridgeError):
    """The records are rejected: counted, given to the fallbacks, kept as dead letters."""

    code = "never_again"


class BadSettings(ReconnectFirst):
    """A ``ReconnectFirst`` that only a user can fix, of the connection itself: credentials, certificate."""

    code = "bad_settings"


def understood(error: BaseException) -> BridgeError:
    """Any error as one of these: what looks like a broken connection leads to a new one, all else is final.

    An author need not translate errors of sockets and time-outs.
    """
    if isinstance(error, BridgeError):
        return error
    if isinstance(error, AddressDenied):
        return BadSettings(str(error))
    if isinstance(error, (OSError, EOFError, TimeoutError)):
        return ReconnectFirst(_said(error))
    return NeverAgain(_said(error))


def connection_error(error: BaseException, where: str) -> BridgeError:
    """The error for a failed connection to ``where``."""
    if isinstance(error, BridgeError):
        return error
    if isinstance(error, ssl.SSLCertVerificationError):
        return BadSettings(f"the certificate of {where} is not accepted: {error.verify_message}")
    if isinstance(error, ssl.SSLError):
        return ReconnectFirst(
            f"no TLS with {where}: {(error.reason or str(error)).lower().replace('_', ' ')}"
        )
    if isinstance(error, OSError):
        number = error.errno or 0  # asyncio says "connect call failed" there
        text = (
            os.strerror(number)
            if number > 0
            else error.strerror or str(error) or type(error).__name__
        )
        return ReconnectFirst(f"{where}: {text.lower()}")
    return understood(error)


def _said(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return (
            error.strerror.lower()
            if error.filename is None
            else f"{error.filename}: {error.strerror.lower()}"
        )
    if isinstance(error, TimeoutError):
        return str(error) or "no answer in time"
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
