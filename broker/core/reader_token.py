"""Token that reads the records of one stream only, for executors: derived by anyone who has the API's token.

Nothing of it is kept, so it holds across restarts of broker and job, and ends when the API's token is another one.
"""

from __future__ import annotations

import base64
import hmac
from typing import Final

_PREFIX: Final = "sluice_read_"


def reader_token(api_token: str, stream: str) -> str:
    """The token that reads a stream."""
    name = stream.encode()
    return f"{_PREFIX}{_text(name)}.{_text(hmac.digest(api_token.encode(), b'read ' + name, 'sha256'))}"


def stream_of(shown: str, api_token: str) -> str | None:
    """The stream that a token reads, compared in constant time; None where it was not derived from this one."""
    name, dot, _ = shown.removeprefix(_PREFIX).partition(".")
    if not (dot and shown.startswith(_PREFIX) and shown.isascii()):
        return None
    try:
        stream = base64.urlsafe_b64decode(name + "=" * (-len(name) % 4)).decode()
    except ValueError:
        return None
    return stream if hmac.compare_digest(shown, reader_token(api_token, stream)) else None


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
