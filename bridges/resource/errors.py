"""What a connector says went wrong, by what is to be done about it.

::

    SluiceError
    └── BridgeError
        ├── TryAgain        the same records may go through later: busy, throttled, a leader is being elected
        ├── ReconnectFirst  nothing goes through before the connection is replaced
        ├── TargetMissing   the connection is fine, and what is written to is not there: topic, table, queue
        ├── TargetUnusable  the connection is fine, and what is written to or read may not be, or is not as it should:
        │                   rights on it, its columns; nothing goes there until a person fixes it
        ├── NeverAgain      these records will never be taken: too large, refused, of the wrong type
        └── BadSettings     nothing goes through until somebody changes the settings: credentials, certificate, address

A connector raises one for a whole batch, or returns one for each record it is about. Texts name the cause and the
address; secrets that are in the settings are taken out of them before anybody sees them.
"""

from __future__ import annotations

import os
import ssl

from broker.config.ssrf import AddressDenied
from broker.core.errors import SluiceError


class BridgeError(SluiceError):
    """Root of what connectors raise on purpose."""

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
    """What is written to is not there. The settings say whether its records wait or are given up."""

    code = "target_missing"


class TargetUnusable(BridgeError):
    """What is written to or read is closed to us, or is not as the settings say. Its records wait for people; other
    traffic of the connection continues."""

    code = "target_unusable"


class NeverAgain(BridgeError):
    """The records are given up: counted, given to the fallbacks, kept as dead letters."""

    code = "never_again"


class BadSettings(ReconnectFirst):
    """As ``ReconnectFirst``, for what only people can fix, of the connection itself: credentials, certificate."""

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
    """Why there is no connection to ``where``."""
    if isinstance(error, BridgeError):
        return error
    if isinstance(error, ssl.SSLCertVerificationError):
        return BadSettings(f"the certificate of {where} is not accepted: {error.verify_message}")
    if isinstance(error, ssl.SSLError):
        return ReconnectFirst(f"no TLS with {where}: {(error.reason or str(error)).lower().replace('_', ' ')}")
    if isinstance(error, OSError):
        number = error.errno or 0  # asyncio says "connect call failed" there
        text = os.strerror(number) if number > 0 else error.strerror or str(error) or type(error).__name__
        return ReconnectFirst(f"{where}: {text.lower()}")
    return understood(error)


def _said(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower() if error.filename is None else f"{error.filename}: {error.strerror.lower()}"
    if isinstance(error, TimeoutError):
        return str(error) or "no answer in time"
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
