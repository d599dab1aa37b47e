"""LDAP (RFC 4511) as far as clients are looked up: bind, search, and the filters of searches (RFC 4515)."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from broker.core.errors import SluiceError

# Bytes of one message of a server, and of all entries of one search.
_MOST_BYTES: Final = 1024 * 1024
_MAX_FILTER_DEPTH: Final = 20

_INTEGER: Final = 0x02
_STRING: Final = 0x04
_ENUMERATED: Final = 0x0A
_SEQUENCE: Final = 0x30
_BIND: Final = 0x60
_SEARCH: Final = 0x63
_UNBIND: Final = 0x42
_BIND_RESPONSE: Final = 0x61
_ENTRY: Final = 0x64
_DONE: Final = 0x65

SUCCESS: Final = 0
SIZE_LIMIT: Final = 4
NO_SUCH_OBJECT: Final = 32
INVALID_CREDENTIALS: Final = 49
SCOPES: Final = {"base": 0, "one": 1, "sub": 2}


class LdapError(SluiceError):
    """A server's answer breaks the protocol, or is too long."""

    code = "ldap_error"


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a directory; attributes by their names in lower case."""

    dn: str
    attributes: dict[str, list[bytes]]


@dataclass(frozen=True, slots=True)
class Result:
    """Result code of a request, and the diagnostic message of the server."""

    code: int
    text: str


class LdapConnection:
    """One connection, with one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._number = 0

    @classmethod
    async def open(cls, address: str, port: int, context: ssl.SSLContext | None) -> LdapConnection:
        """Connect; with TLS from the first byte (ldaps) where there is a context."""
        name = None if context is None else address
        reader, writer = await asyncio.open_connection(
            address, port, ssl=context, server_hostname=name
        )
        return cls(reader, writer)

    def close(self) -> None:
        """Close it at once."""
        self._writer.transport.abort()

    async def end(self) -> None:
        """Unbind and close."""
        self._send(_tlv(_UNBIND, b""))
        self._writer.close()

    async def bind(self, dn: str, password: bytes) -> Result:
        """Log in by a simple bind."""
        self._send(_tlv(_BIND, _integer(3) + _string(dn.encode()) + _tlv(0x80, password)))
        tag, body = await self._received()
        if tag != _BIND_RESPONSE:
            raise LdapError("expected the answer to a bind, got another message")
        return _result(body)

    async def search(
        self, base: str, scope: str, encoded_filter: bytes, attributes: Sequence[str], most: int
    ) -> tuple[Result, list[Entry]]:
        """Entries below a base that match a filter, at most a number of them."""
        names = b"".join(_string(name.encode()) for name in attributes)
        body = (
            _string(base.encode())
            + _tlv(_ENUMERATED, bytes((SCOPES[scope],)))
            + _tlv(_ENUMERATED, b"\x00")
            + _integer(most)
            + _integer(0)
            + _tlv(0x01, b"\x00")
            + encoded_filter
            + _tlv(_SEQUENCE, names)
        )
        self._send(_tlv(_SEARCH, body))
        entries: list[Entry] = []
        size = 0
        while True:
            tag, body = await self._received()
            size += len(body)
            if size > _MOST_BYTES:
                raise LdapError(f"the entries have more than {_MOST_BYTES:,} bytes")
            if tag == _ENTRY:
                entries.append(_entry(body))
            elif tag == _DONE:
                return _result(body), entries

    def _send(self, operation: bytes) -> None:
        self._number += 1
        self._writer.write(_tlv(_SEQUENCE, _integer(self._number) + operation))

    async def _received(self) -> tuple[int, bytes]:
        """Tag and body of the next message that answers the request under way."""
        while True:
            head = await self._reader.readexactly(2)
            length = head[1]
            if length & 0x80:
                length = int.from_bytes(await self._reader.readexactly(length & 0x7F))
            if head[0] != _SEQUENCE or length > _MOST_BYTES:
                raise LdapError("expected an LDAP message of at most 1 MiB, got something else")
            parts = _parts(await self._reader.readexactly(length))
            (_, number), (tag, body) = next(parts, (0, b"")), next(parts, (0, b""))
            if int.from_bytes(number) == self._number:
                return tag, body
            if number == b"\x00":
                raise LdapError("the server closes the connection")


def _tlv(tag: int, body: bytes) -> bytes:
    length = len(body)
    if length < 0x80:
        return bytes((tag, length)) + body
    size = (length.bit_length() + 7) // 8
    return bytes((tag, 0x80 | size)) + length.to_bytes(size) + body


def _integer(number: int) -> bytes:
    return _tlv(_INTEGER, number.to_bytes(number.bit_length() // 8 + 1))


def _string(value: bytes) -> bytes:
    return _tlv(_STRING, value)


def _parts(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Tags and bodies of the values in a sequence."""
    at = 0
    while at < len(data):
        if at + 2 > len(data):
            raise LdapError("a message is cut short")
        tag, length = data[at], data[at + 1]
        at += 2
        if length & 0x80:
            size = length & 0x7F
            length = int.from_bytes(data[at : at + size])
            at += size
        if at + length > len(data):
            raise LdapError("a message is cut short")
        yield tag, data[at : at + length]
        at += length


def _result(body: bytes) -> Result:
    values = [value for _, value in _parts(body)]
    if len(values) < 3:
        raise LdapError("a result is cut short")
    return Result(int.from_bytes(values[0]), values[2].decode(errors="replace")[:200])


def _entry(body: bytes) -> Entry:
    values = [value for _, value in _parts(body)]
    if len(values) != 2:
        raise LdapError("an entry is cut short")
    attributes: dict[str, list[bytes]] = {}
    for _, attribute in _parts(values[1]):
        name, members = [value for _, value in _parts(attribute)]
        attributes[name.decode(errors="replace").lower()] = [value for _, value in _parts(members)]
    return Entry(values[0].decode(errors="replace"), attributes)


# -- filters and names --

_SPECIAL_IN_FILTER: Final = re.compile(r"[\\*()\x00]")
_SPECIAL_IN_DN: Final = re.compile(r"[\\,+\"<>;=#\x00 ]")
_ATTRIBUTE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.;-]*")
_ESCAPED: Final = re.compile(r"\\([0-9a-fA-F]{2})|([^\\])")
_COMPARISONS: Final = {">": 0xA5, "<": 0xA6, "~": 0xA8}


def escaped_in_filter(value: str) -> str:
    """A value for a place in a filter."""
    return _SPECIAL_IN_FILTER.sub(_hexadecimal, value)


def escaped_in_dn(value: str) -> str:
    """A value for a place in a distinguished name."""
    return _SPECIAL_IN_DN.sub(_hexadecimal, value)


def _hexadecimal(match: re.Match[str]) -> str:
    return f"\\{ord(match[0]):02x}"


def encoded_filter(text: str) -> bytes:
    """A filter in the form of a search.

    Raises:
        ValueError: it is not a filter.
    """
    encoded, end = _filter(text.strip(), 0, 0)
    if end != len(text.strip()):
        raise ValueError(f"expected one filter in parentheses, got more at character {end + 1}")
    return encoded


def _filter(text: str, at: int, depth: int) -> tuple[bytes, int]:
    if depth > _MAX_FILTER_DEPTH:
        raise ValueError(f"expected at most {_MAX_FILTER_DEPTH} levels of parentheses in a filter")
    if text[at : at + 1] != "(":
        raise ValueError(f"expected '(' in a filter at character {at + 1}")
    sign = text[at + 1 : at + 2]
    if sign in ("&", "|", "!") and sign:
        at += 2
        inner = b""
        count = 0
        while text[at : at + 1] == "(":
            encoded, at = _filter(text, at, depth + 1)
            inner += encoded
            count += 1
        if text[at : at + 1] != ")" or not count or (sign == "!" and count != 1):
            raise ValueError(f"expected ')' in a filter at character {at + 1}")
        return _tlv({"&": 0xA0, "|": 0xA1, "!": 0xA2}[sign], inner), at + 1
    end = text.find(")", at)
    if end < 0:
        raise ValueError("expected ')' at the end of a filter")
    return _comparison(text[at + 1 : end]), end + 1


def _comparison(text: str) -> bytes:
    name, equals, value = text.partition("=")
    tag = 0xA3
    if name[-1:] in _COMPARISONS:
        tag = _COMPARISONS[name[-1]]
        name = name[:-1]
    if not equals or not _ATTRIBUTE.fullmatch(name) or "(" in value:
        raise ValueError(f"expected (attribute=value) in a filter, got ({text[:60]})")
    attribute = _string(name.encode())
    if tag != 0xA3 or "*" not in value:
        return _tlv(tag, attribute + _string(_value(value)))
    if value == "*":
        return _tlv(0x87, name.encode())
    first, *middle, last = value.split("*")
    pieces = [(0x80, first), *((0x81, part) for part in middle), (0x82, last)]
    encoded = b"".join(_tlv(piece, _value(part)) for piece, part in pieces if part)
    return _tlv(0xA4, attribute + _tlv(_SEQUENCE, encoded))


def _value(text: str) -> bytes:
    if "".join(match[0] for match in _ESCAPED.finditer(text)) != text:
        raise ValueError(
            f"expected a backslash before two hexadecimal digits in a filter, got {text[:60]!r}"
        )
    return b"".join(
        bytes((int(match[1], 16),)) if match[1] else match[2].encode()
        for match in _ESCAPED.finditer(text)
    )
