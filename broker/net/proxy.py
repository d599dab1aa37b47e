"""The PROXY protocol, versions 1 and 2: which client a load balancer speaks for.

https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt. The header is read from the socket before anything else
is, and not a byte more: what follows it is TLS's or MQTT's.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from ipaddress import ip_address
from struct import Struct
from typing import Final

import msgspec

from broker.auth.attempt import Certificate
from broker.core.room import Guest
from broker.net.certificate import subject_text
from broker.net.settings import ProxyMode

_SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
_LONGEST_LINE: Final = 107
_START: Final = len(_SIGNATURE)
_PREFIX: Final = b"PROXY "
_FORM_4: Final = Struct(">4s4sHH")
_FORM_6: Final = Struct(">16s16sHH")
_TLV: Final = Struct(">BH")
_SSL: Final = Struct(">BI")
_FORM_UNIX: Final = Struct(">108s108s")
_FAMILIES: Final = {1: _FORM_4, 2: _FORM_6, 3: _FORM_UNIX}
_UNSPECIFIED: Final = 0
_TRANSPORTS: Final = (0, 1, 2)
_AUTHORITY = 0x02
_TLS = 0x20
_COMMON_NAME = 0x22
# On this connection, or in the session that it resumes.
_CERTIFICATE_SHOWN: Final = 0x02 | 0x04


class BadProxyHeader(Exception):
    """The peer sent something else than the PROXY header that was expected. The text says what."""


class Origin(msgspec.Struct, frozen=True, array_like=True):
    """Client's address, as the proxy or the cell that accepted its connection reports it. Without a host it is the peer
    itself, or, where ``is_unknown``, a client whose address the proxy does not report."""

    host: str | None = None
    port: int | None = None
    server_name: str | None = None
    certificate: Certificate | None = None
    is_unknown: bool = False
    tls_version: str | None = None
    local_address: str | None = None
    """``address:port`` of our end, where another cell has it."""
    first: bytes = b""
    """Bytes that were read from the connection before it is a link."""
    is_bare: bool = False
    """True if the connection carries MQTT without a WebSocket, whatever its listener speaks."""
    is_upgraded: bool = False
    """True if a WebSocket's request was answered."""
    pongs: int = 0
    """Pings of a WebSocket among ``first`` that were answered."""
    refusal: int = 0
    """Reason code that its CONNECT is refused with, 0 for none."""
    waiting: Guest | None = None
    """Entry in the lobby for the connection until it is a link."""


async def read_header(
    loop: asyncio.AbstractEventLoop, link: socket.socket, mode: ProxyMode
) -> Origin:
    """Read the header from a socket that nothing was read from.

    Raises:
        BadProxyHeader: it is none, of the wrong version, or broken.
    """
    start = await _exactly(loop, link, _START)
    if start == _SIGNATURE and mode != "v1":
        rest = await _exactly(loop, link, 4)
        return parse_v2(rest, await _exactly(loop, link, int.from_bytes(rest[2:])))
    if start.startswith(_PREFIX) and mode != "v2":
        return parse_v1(await _line(loop, link, start))
    if start == _SIGNATURE or start.startswith(_PREFIX):
        raise BadProxyHeader(f"a header of another version than proxy_protocol = {mode}")
    raise BadProxyHeader("no PROXY header")


async def _exactly(loop: asyncio.AbstractEventLoop, link: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = await loop.sock_recv(link, count - len(data))
        if not piece:
            raise BadProxyHeader("the connection ended within the PROXY header")
        data += piece
    return data


async def _line(loop: asyncio.AbstractEventLoop, link: socket.socket, line: bytes) -> bytes:
    while not line.endswith(b"\r\n"):
        room = _LONGEST_LINE - len(line)
        if room <= 0:
            raise BadProxyHeader(f"a header line of more than {_LONGEST_LINE} bytes")
        line += await _exactly(loop, link, max(1, _line_bytes(link, room)))
    return line


def _line_bytes(link: socket.socket, most: int) -> int:
    """Number of bytes of the line that can be read."""
    try:
        waiting = link.recv(most, socket.MSG_PEEK)
    except BlockingIOError:
        return 0
    return waiting.find(b"\n") + 1 or len(waiting)


def parse_v1(line: bytes) -> Origin:
    """The origin in a header line, its end included.

    Raises:
        BadProxyHeader: it is broken.
    """
    try:
        words = line.removesuffix(b"\r\n").decode("ascii").split(" ")
        if words[1] == "UNKNOWN":
            return Origin(is_unknown=True)
        _, family, source, destination, *ports = words
        source_port, _ = numbers = [int(port) for port in ports]
        versions = {ip_address(source).version, ip_address(destination).version}
    except (ValueError, IndexError):
        raise BadProxyHeader("a broken header line") from None
    # int() takes signs, zeros in front and underscores too
    is_port = all(0 <= port <= 65_535 for port in numbers) and [*map(str, numbers)] == ports
    if (
        not is_port
        or "%" in source + destination
        or versions != {{"TCP4": 4, "TCP6": 6}.get(family)}
    ):
        raise BadProxyHeader("a broken header line")
    return Origin(source, source_port)


def parse_v2(head: bytes, body: bytes) -> Origin:
    """The origin in a binary header: the four bytes behind the signature, and what they say follows.

    Raises:
        BadProxyHeader: it is broken.
    """
    version = head[0] >> 4
    command = head[0] & 15
    if version != 2 or command > 1:
        raise BadProxyHeader(f"a header with version {version} and command {command}")
    if command == 0:
        # LOCAL: the load balancer speaks for itself, as when it asks whether we are there
        return Origin()
    family = head[1] >> 4
    transport = head[1] & 15
    form = _FAMILIES.get(family)
    if transport not in _TRANSPORTS or (form is None and family != _UNSPECIFIED):
        raise BadProxyHeader(
            f"a header with address family {family} and transport protocol {transport}"
        )
    if form is None:
        return Origin(is_unknown=True)
    if len(body) < form.size:
        raise BadProxyHeader("a header too short for its addresses")
    server_name, certificate = _of_tlvs(body[form.size :])
    if form is _FORM_UNIX:  # whose addresses mean nothing here
        return Origin(server_name=server_name, certificate=certificate, is_unknown=True)
    source, _, port, _ = form.unpack_from(body)
    return Origin(str(ip_address(source)), port, server_name, certificate)


def _of_tlvs(data: bytes) -> tuple[str | None, Certificate | None]:
    server_name = None
    certificate = None
    for kind, value in _tlvs(data):
        if kind == _AUTHORITY:
            server_name = value.decode(errors="replace")
        elif kind == _TLS:
            certificate = _certificate(value)
    return server_name, certificate


def _certificate(value: bytes) -> Certificate | None:
    """The client's certificate, when it showed one and the load balancer accepted it: its common name is known."""
    if len(value) < _SSL.size:
        raise BadProxyHeader("a broken TLS field")
    client, problem = _SSL.unpack_from(value)
    if problem or not client & _CERTIFICATE_SHOWN:
        return None
    for kind, inner in _tlvs(value[_SSL.size :]):
        if kind == _COMMON_NAME:
            name = inner.decode(errors="replace")
            return Certificate(subject_text([[("commonName", name)]]), name)
    return None


def _tlvs(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        if len(data) - at < _TLV.size:
            raise BadProxyHeader("a broken field")
        kind, length = _TLV.unpack_from(data, at)
        at += _TLV.size
        if len(data) - at < length:
            raise BadProxyHeader("a field longer than the header")
        yield kind, data[at : at + length]
        at += length
