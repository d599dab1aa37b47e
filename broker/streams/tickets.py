"""Tickets for reading one log from the range server until a time. The server checks them without the broker."""

from __future__ import annotations

import base64
import hashlib
import hmac
import struct
from typing import Final

_BODY: Final = struct.Struct(">IQ")
_SIGNATURE_SIZE: Final = 32


def issue(secret: bytes, log: int, expires_s: int) -> str:
    """A ticket for a log, good before ``expires_s`` (seconds since the epoch); safe in a URL."""
    body = _BODY.pack(log, expires_s)
    return base64.urlsafe_b64encode(body + _sign(secret, body)).decode().rstrip("=")


def is_good(secret: bytes, ticket: str, log: int, now_s: float) -> bool:
    """True if a ticket was issued with this secret for this log and has not expired."""
    try:
        raw = base64.urlsafe_b64decode(ticket + "=" * (-len(ticket) % 4))
    except ValueError:
        return False
    if len(raw) != _BODY.size + _SIGNATURE_SIZE:
        return False
    body = raw[: _BODY.size]
    signature = raw[_BODY.size :]
    if not hmac.compare_digest(signature, _sign(secret, body)):
        return False
    granted, expires_s = _BODY.unpack(body)
    return bool(granted == log and now_s < expires_s)


def secret_of(secret: bytes, cell: int) -> bytes:
    """The secret of the range server of another machine, by the number of its first cell: each machine numbers
    its logs itself, so a ticket of one is none of another."""
    return _sign(secret, b"machine %d" % cell)


def _sign(secret: bytes, body: bytes) -> bytes:
    return hmac.new(secret, body, hashlib.sha256).digest()
