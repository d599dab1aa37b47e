"""MQTT inside WebSocket frames: the link of ``broker.net.tcp`` with a request before the first byte and frames around
what is written."""

from __future__ import annotations

import asyncio
from typing import Final

from broker.codec.websocket import (
    NORMAL,
    BadFrame,
    Closed,
    FrameReader,
    binary_frame_head,
    close_frame,
)
from broker.connection.hub import Hub
from broker.core.hosts import AllowedHosts
from broker.net import upgrade
from broker.net.limits import LinkOwner
from broker.net.proxy import Origin
from broker.net.settings import WebSocketSettings
from broker.net.tcp import TcpLink
from broker.net.upgrade import UpgradeRefused

# Time limit for a client to answer a close frame.
_FAREWELL_S: Final = 2.0
# Size from which a second write is cheaper than a copy of the data.
_LARGE_BYTES: Final = 64 * 1024

_OPENING, _OPEN, _CLOSING, _CLOSED = range(4)


class WebSocketLink(TcpLink):
    """One WebSocket. What was asked to be written in a turn of the loop leaves as one frame."""

    __slots__ = ("_frames", "_head", "_hosts", "_pongs", "_settings", "_state")

    def __init__(
        self,
        settings: WebSocketSettings,
        hosts: AllowedHosts,
        hub: Hub,
        owner: LinkOwner,
        loop: asyncio.AbstractEventLoop,
        listener: str,
        origin: Origin | None = None,
    ) -> None:
        super().__init__(hub, owner, loop, listener, origin)
        self._settings = settings
        self._hosts = hosts
        self._frames = FrameReader(settings.max_frame_size)
        self._head = b""
        self._pongs = 0 if origin is None else origin.pongs
        self._state = _OPEN if origin is not None and origin.is_upgraded else _OPENING
        self.data_received = self._received  # type: ignore[method-assign]

    # -- from the client --

    def _received(self, data: bytes) -> None:
        if self._state == _OPENING:
            data = self._open(data)
        if not data or self._state == _CLOSED:
            return
        frames = self._frames
        try:
            inner = frames.receive(data)
        except Closed as farewell:
            self._give(farewell.data)
            self._answer_close(farewell.code)
            return
        except BadFrame as error:
            self._owner.refused(self.peer_host, "websocket_frame", str(error))
            self._bid_farewell(error.code, str(error))
            return
        if self._pongs:
            # answered before the CONNECT was there; all that was read until then comes here first
            del frames.replies[: self._pongs]
            self._pongs = 0
        if frames.replies:
            self._transport.write(b"".join(frames.replies))
            frames.replies.clear()
            self._connection.hold_back_if_unread()
        if inner:
            self._give(inner)

    def _give(self, data: bytes) -> None:
        if data and self._state == _OPEN:
            self._connection.data_received(data)

    def _open(self, data: bytes) -> bytes:
        """Take the request; what came behind it."""
        self._head += data
        try:
            parts = upgrade.split(self._head)
            if parts is None:
                return b""
            if self.refusal:
                raise upgrade.full()
            response = upgrade.accept(parts[0], self._settings, self._hosts)
        except UpgradeRefused as refused:
            if not self.refusal:
                self._owner.refused(self.peer_host, "websocket_request", str(refused))
            self._transport.write(refused.response)
            self._end()
            return b""
        self._transport.write(response)
        self._state = _OPEN
        self._head = b""
        return parts[1]

    # -- Link --

    def write(self, data: bytes) -> None:
        """Send as one binary frame; never waits."""
        if self._state != _OPEN:
            return
        self._context.figures.bytes_sent.value += len(data)
        head = binary_frame_head(len(data))
        if len(data) < _LARGE_BYTES:
            self._transport.write(head + data)
        else:
            self._transport.write(head)
            self._transport.write(data)

    def close(self, *, lingers: bool = False) -> None:
        """Send what waits and a close frame; the socket is closed when the client answers, or after a while."""
        if self._state == _OPENING:
            self._end()
        else:
            self._bid_farewell(NORMAL)

    def pause_reading(self) -> None:
        """Read no more until ``resume_reading``, unless all that is waited for is the end."""
        if self._state < _CLOSING:
            super().pause_reading()

    # -- the end --

    def _bid_farewell(self, code: int, text: str = "") -> None:
        if self._state >= _CLOSING or self._transport.is_closing():
            return
        self._transport.write(close_frame(code, text))
        self._state = _CLOSING
        self._loop.call_later(_FAREWELL_S, self._end)
        self.resume_reading()
        if not self._connection.is_closed:  # the client broke the protocol
            self._connection.connection_lost()

    def _answer_close(self, code: int) -> None:
        if self._state == _OPEN:
            self._transport.write(close_frame(code))
        self._end()

    def _end(self) -> None:
        self._state = _CLOSED
        super().close()

    def connection_lost(self, error: Exception | None) -> None:
        """The socket is gone."""
        self._state = _CLOSED
        super().connection_lost(error)
