"""From the body of a request to payloads: unpacked within bounds, and taken apart."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence
from typing import Final, NamedTuple

from broker.core import jsontext
from broker.core.receivers import PostRefused

_GZIP: Final = 16 + zlib.MAX_WBITS
# What is packed in less is unpacked on the event loop: at most a few milliseconds.
_SMALL_BYTES: Final = 32 * 1024
_MOST_MEMBERS: Final = 64
_LINES: Final = ("application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines")


class Part(NamedTuple):
    """One message of a body, or why it is none."""

    payload: bytes
    problem: str = ""


async def unpacked(body: bytes, encoding: str, most_bytes: int) -> bytes:
    """The body without its Content-Encoding; never more than ``most_bytes``, whatever is packed into it.

    Raises:
        PostRefused: 415 for an encoding that is not known, 413 for what is too large, 400 for what is damaged.
    """
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "x-gzip"):
        raise PostRefused(415, "unknown_encoding", f"Content-Encoding {encoding!r} is not known; send gzip or none")
    if len(body) <= _SMALL_BYTES and most_bytes <= 64 * _SMALL_BYTES:
        return _gunzipped(body, most_bytes)
    return await asyncio.to_thread(_gunzipped, body, most_bytes)


def _gunzipped(body: bytes, most_bytes: int) -> bytes:
    found = b""
    left = body
    try:
        for _ in range(_MOST_MEMBERS):  # a gzip file may have several members, RFC 1952, section 2.2
            member = zlib.decompressobj(_GZIP)
            found += member.decompress(left, most_bytes + 1 - len(found))
            if len(found) > most_bytes:
                raise PostRefused(413, "too_large", f"the body is larger than {most_bytes} bytes when it is unpacked")
            if not member.eof:
                raise PostRefused(400, "malformed_body", "the body is not whole: its gzip does not end")
            left = member.unused_data
            if not left:
                return found
    except zlib.error as error:
        raise PostRefused(400, "malformed_body", f"the body is not gzip: {error}") from None
    raise PostRefused(413, "too_large", f"the body is gzip of more than {_MOST_MEMBERS} members")


def parts_of(body: bytes, form: str, content_type: str, most: int) -> Sequence[Part]:
    """The messages of a body. ``form`` is ``auto``, ``message``, ``json_array`` or ``ndjson``.

    Raises:
        PostRefused: 400 for what is not of that form, 413 for more than ``most``.
    """
    if form == "ndjson" or (form == "auto" and content_type in _LINES):
        lines = [line.strip() for line in body.split(b"\n")]
        found = [line for line in lines if line]
        _check_count(len(found), most)
        return [_line(line) for line in found]
    if form != "json_array":
        return [Part(body)]
    try:
        elements = jsontext.decode(body)
    except jsontext.JsonError as error:
        raise PostRefused(400, "malformed_json", f"the body is not JSON: {error}") from None
    if not isinstance(elements, list):
        raise PostRefused(400, "malformed_body", "the body is JSON, but no array of messages")
    _check_count(len(elements), most)
    return [Part(jsontext.encode(element)) for element in elements]


def _line(line: bytes) -> Part:
    try:
        jsontext.decode(line)
    except jsontext.JsonError as error:
        return Part(line, f"the line is not JSON: {error}")
    return Part(line)


def _check_count(count: int, most: int) -> None:
    if count > most:
        raise PostRefused(413, "too_many", f"the body has {count} messages, and may have {most}; send fewer at once")
