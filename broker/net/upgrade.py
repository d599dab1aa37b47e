"""The HTTP request that opens a WebSocket (RFC 6455, section 4.2), without I/O."""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as NotBase64
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from broker.codec.websocket import accept_key
from broker.core.hosts import AllowedHosts
from broker.net.settings import SUBPROTOCOLS, WebSocketSettings

# Longest request; cookies of a large site fit.
MAX_HEAD_BYTES: Final = 16 * 1024
END: Final = b"\r\n\r\n"
_VERSION: Final = "13"
_NONCE_BYTES: Final = 16
_ANY: Final = "*"

_Headers = dict[str, str]


class UpgradeRefused(Exception):
    """The request opens no WebSocket. ``response`` is what to answer, the text is the reason."""

    def __init__(self, status: HTTPStatus, text: str, *headers: str) -> None:
        super().__init__(text)
        body = f"{text}\n".encode()
        lines = [
            f"HTTP/1.1 {status.value} {status.phrase}",
            "Content-Type: text/plain; charset=utf-8",
            f"Content-Length: {len(body)}",
            "Connection: close",
            *headers,
        ]
        self.response = "\r\n".join(lines).encode() + END + body


@dataclass(frozen=True, slots=True)
class Request:
    """A request line and the headers, their names in lower case; those sent several times are joined by commas."""

    method: str
    path: str
    headers: _Headers


def full() -> UpgradeRefused:
    """Answer of a listener that is full."""
    return UpgradeRefused(
        HTTPStatus.SERVICE_UNAVAILABLE, "This listener takes no more connections now."
    )


def split(data: bytes) -> tuple[bytes, bytes] | None:
    """A request up to its empty line and what came behind it, None while it is not complete.

    Raises:
        UpgradeRefused: it will not become one.
    """
    if not data[:1].isupper():
        raise _no_request()
    end = data.find(END)
    if (len(data) if end < 0 else end) > MAX_HEAD_BYTES:
        text = f"A request has at most {MAX_HEAD_BYTES} bytes."
        raise UpgradeRefused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, text)
    return None if end < 0 else (data[: end + len(END)], data[end + len(END) :])


def _no_request() -> UpgradeRefused:
    return UpgradeRefused(
        HTTPStatus.BAD_REQUEST,
        "This is not an HTTP request; MQTT clients connect with WebSocket here.",
    )


def accept(head: bytes, settings: WebSocketSettings, hosts: AllowedHosts) -> bytes:
    """The response that opens the WebSocket for a request, given up to the empty line.

    Raises:
        UpgradeRefused: it is not to be opened.
    """
    request = parse(head)
    if not hosts.has(request.headers.get("host")):
        raise UpgradeRefused(
            HTTPStatus.FORBIDDEN,
            f"Host: expected localhost or a loopback address, got {request.headers['host']!r}. Try: add the name to "
            "websocket.allowed_hosts of this listener.",
        )
    if settings.path is not None and request.path != settings.path:
        raise UpgradeRefused(
            HTTPStatus.NOT_FOUND,
            f"There is nothing here. MQTT over WebSocket is at {settings.path}.",
        )
    if request.method != "GET":
        raise UpgradeRefused(
            HTTPStatus.METHOD_NOT_ALLOWED, "A WebSocket is opened with GET.", "Allow: GET"
        )
    headers = request.headers
    if "websocket" not in _words(headers, "upgrade") or "upgrade" not in _words(
        headers, "connection"
    ):
        raise UpgradeRefused(
            HTTPStatus.UPGRADE_REQUIRED,
            "This is a WebSocket for MQTT clients, not a page. Connect an MQTT client that speaks WebSocket to it.",
            "Upgrade: websocket",
        )
    if headers.get("sec-websocket-version") != _VERSION:
        raise UpgradeRefused(
            HTTPStatus.UPGRADE_REQUIRED,
            f"Version {_VERSION} of WebSocket is spoken here.",
            "Upgrade: websocket",
            f"Sec-WebSocket-Version: {_VERSION}",
        )
    _check_origin(headers, settings)
    return _response(_answer_to(headers), _subprotocol(headers))


def parse(head: bytes) -> Request:
    """A request, given up to the empty line.

    Raises:
        UpgradeRefused: it is none.
    """
    request_line, *lines = head.removesuffix(END).decode("latin-1").split("\r\n")
    words = request_line.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise _no_request()
    if words[2] == "HTTP/1.0":
        raise UpgradeRefused(
            HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "A WebSocket is opened with HTTP/1.1."
        )
    headers: _Headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise UpgradeRefused(HTTPStatus.BAD_REQUEST, "A header of the request is broken.")
        name = name.lower()
        value = value.strip(" \t")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return Request(words[0], words[1].partition("?")[0], headers)


def _check_origin(headers: _Headers, settings: WebSocketSettings) -> None:
    """Pages elsewhere must not use the browser of a user who can reach the broker (section 10.2)."""
    origin = headers.get("origin", "").lower()
    allowed = settings.allowed_origins
    if not origin or _ANY in allowed or origin in allowed:
        return
    if (
        not allowed
        and _host(origin) is not None
        and _host(origin) == _host(f"//{headers.get('host', '').lower()}")
    ):
        return
    raise UpgradeRefused(
        HTTPStatus.FORBIDDEN,
        f"Pages from {origin} may not connect. The setting websocket.allowed_origins of this listener names those that "
        "may.",
    )


def _host(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None


def _answer_to(headers: _Headers) -> str:
    key = headers.get("sec-websocket-key", "")
    try:
        is_nonce = len(b64decode(key, validate=True)) == _NONCE_BYTES
    except (NotBase64, ValueError):
        is_nonce = False
    if not is_nonce:
        raise UpgradeRefused(
            HTTPStatus.BAD_REQUEST, "Sec-WebSocket-Key must be 16 bytes in base64."
        )
    return accept_key(key.encode())


def _subprotocol(headers: _Headers) -> str:
    """The first of our names for MQTT that the client offers [MQTT-6.0.0-3] [MQTT-6.0.0-4]."""
    offered = [word.strip() for word in headers.get("sec-websocket-protocol", "").split(",")]
    for ours in SUBPROTOCOLS:
        if ours in offered:
            return ours
    raise UpgradeRefused(
        HTTPStatus.BAD_REQUEST,
        "The client must offer the subprotocol mqtt (Sec-WebSocket-Protocol).",
    )


def _response(answer: str, subprotocol: str) -> bytes:
    lines = (
        "HTTP/1.1 101 Switching Protocols",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Accept: {answer}",
        f"Sec-WebSocket-Protocol: {subprotocol}",
    )
    return "\r\n".join(lines).encode() + END


def _words(headers: _Headers, name: str) -> list[str]:
    return [word.strip().lower() for word in headers.get(name, "").split(",")]
