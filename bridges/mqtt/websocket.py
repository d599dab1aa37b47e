"""MQTT to another broker inside WebSocket frames (RFC 6455): the client's side.

``Opening`` does no I/O; ``Tunnel`` is between a socket and ``bridges.mqtt.client``. No extensions are offered.
"""

from __future__ import annotations

import asyncio
import os
from base64 import b64encode
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final, cast

from bridges.mqtt.client import Client
from bridges.mqtt.server import Server
from bridges.resource.errors import BadSettings, BridgeError, ReconnectFirst
from broker.codec.websocket import (
    NORMAL,
    BadFrame,
    Closed,
    FrameReader,
    accept_key,
    masked_close,
    masked_data,
)

_END: Final = b"\r\n\r\n"
_ANSWER: Final = b"HTTP/1."
_MOST_HEAD_BYTES: Final = 16 * 1024
# Frames of any size: their content is passed on as it arrives.
_ANY_SIZE: Final = 1 << 63
# The second is what older brokers call MQTT 3.1; ``mqtt`` is asked for first.
_SUBPROTOCOLS: Final = ("mqtt", "mqttv3.1")
# Statuses that stay as they are until the settings or the server change.
_FOR_PEOPLE: Final = frozenset(range(300, 500)) - {408, 425, 429}


class Opening:
    """The request that opens a WebSocket (section 4.1), and the check of its answer."""

    def __init__(self, server: Server, headers: Mapping[str, str], *, is_v3: bool = False) -> None:
        self._server = server
        key = b64encode(os.urandom(16))
        self._accept = accept_key(key)
        self._head = b""
        lines = {
            "Host": server.authority,
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Key": key.decode(),
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Protocol": ", ".join(_SUBPROTOCOLS if is_v3 else _SUBPROTOCOLS[:1]),
            **headers,
        }
        text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self.request: Final = f"GET {server.path} HTTP/1.1\r\n{text}\r\n".encode()

    def receive(self, data: bytes) -> bytes | None:
        """The bytes behind the answer; None while that is not complete.

        Raises:
            BadSettings: there is no such WebSocket, or it is not for us.
            ReconnectFirst: not now.
        """
        self._head += data
        if not _ANSWER.startswith(self._head[: len(_ANSWER)]):
            raise BadSettings(
                f"{self._server.shown} does not speak HTTP; is it a port for MQTT without WebSocket?"
            )
        end = self._head.find(_END)
        if (len(self._head) if end < 0 else end) > _MOST_HEAD_BYTES:
            raise ReconnectFirst(
                f"{self._server.shown} answers with more than {_MOST_HEAD_BYTES} bytes of headers"
            )
        if end < 0:
            return None
        self._check(self._head[:end].decode("latin-1"))
        return self._head[end + len(_END) :]

    def _check(self, head: str) -> None:
        status_line, *lines = head.split("\r\n")
        status = status_line.partition(" ")[2][:3]
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        if status != "101":
            raise self._refused(int(status) if status.isdecimal() else 0, headers)
        if (
            headers.get("upgrade", "").lower() != "websocket"
            or headers.get("sec-websocket-accept") != self._accept
        ):
            raise BadSettings(
                f"{self._server.shown} does not answer as a WebSocket does; is something between?"
            )
        chosen = headers.get("sec-websocket-protocol")
        if chosen is not None and chosen not in _SUBPROTOCOLS:
            raise BadSettings(
                f"{self._server.shown} speaks {chosen!r} in its WebSocket, and not MQTT"
            )

    def _refused(self, status: int, headers: Mapping[str, str]) -> BridgeError:
        try:
            said = f"{status} {HTTPStatus(status).phrase}"
        except ValueError:
            said = f"status {status}"
        if 300 <= status < 400 and "location" in headers:
            said += f"; it names {headers['location']}"
        text = f"{self._server.shown} opens no WebSocket: {said}"
        return BadSettings(text) if status in _FOR_PEOPLE else ReconnectFirst(text)


class Tunnel(asyncio.Protocol):
    """Between a socket and a client: the transport of the one, the protocol of the other."""

    def __init__(
        self, client: Client, server: Server, headers: Mapping[str, str], *, is_v3: bool
    ) -> None:
        self._client = client
        self._server = server
        self._opening = Opening(server, headers, is_v3=is_v3)
        self._frames = FrameReader(_ANY_SIZE, is_client=True)
        self._transport: asyncio.Transport | None = None
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # The protocol of the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the WebSocket."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by name
        self._transport.write(self._opening.request)

    def data_received(self, data: bytes) -> None:
        """Give the client what the frames hold."""
        if not self.opened.done():
            try:
                rest = self._opening.receive(data)
            except BridgeError as error:
                self._fail(error)
                return
            if rest is None:
                return
            self.opened.set_result(None)
            self._client.connection_made(cast("asyncio.BaseTransport", self))
            data = rest
        if data:
            self._receive(data)

    def _receive(self, data: bytes) -> None:
        frames = self._frames
        ended = ""
        try:
            received = frames.receive(data)
        except Closed as closed:
            received = closed.data
            said = f" with status {closed.code}" if closed.code != NORMAL else ""
            ended = f"has closed the WebSocket{said}" + (f": {closed.text}" if closed.text else "")
            frames.replies.append(masked_close(closed.code))
        except BadFrame as error:
            received = b""
            ended = f"breaks the rules of WebSocket: {error}"
        if received:
            self._client.data_received(received)
        if self._transport is not None and frames.replies:
            self._transport.write(b"".join(frames.replies))
            frames.replies.clear()
        if ended:
            self._client.end(f"{self._server.shown} {ended}")

    def connection_lost(self, exc: Exception | None) -> None:
        """The other side is gone."""
        if self.opened.done():
            self._client.connection_lost(exc)
            return
        reason = f": {exc}" if exc else "; is it a port for MQTT without WebSocket?"
        self._fail(
            ReconnectFirst(
                f"{self._server.shown} has closed the connection before it opened a WebSocket{reason}"
            )
        )

    def pause_writing(self) -> None:
        """The socket is full."""
        self._client.pause_writing()

    def resume_writing(self) -> None:
        """There is room again."""
        self._client.resume_writing()

    def _fail(self, error: BridgeError) -> None:
        if not self.opened.done():
            self.opened.set_exception(error)
            self.opened.exception()  # the task that waited may have been cancelled
        self.abort()

    # The transport of the client

    def write(self, data: bytes) -> None:
        """Send as one frame."""
        if self._transport is not None:
            self._transport.write(masked_data(data))

    def close(self) -> None:
        """Send what waits and a close frame, then go."""
        if self._transport is not None:
            self._transport.write(masked_close(NORMAL))
            self._transport.close()

    def abort(self) -> None:
        """Go at once."""
        if self._transport is not None:
            self._transport.abort()

    def is_closing(self) -> bool:
        """True while it is closing."""
        return self._transport is None or self._transport.is_closing()
