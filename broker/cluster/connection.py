"""The connection of a link: bytes to frames, HELLO, and its end."""

from __future__ import annotations

import asyncio
from logging import getLogger
from typing import Final, cast

from broker.cluster.frames import (
    PING,
    Frame,
    FrameDecoder,
    FrameError,
    FrameType,
    Hello,
    decoded,
    encoded,
)
from broker.cluster.link import Common, Link

_log = getLogger(__name__)

# Bytes that the kernel has not taken: with more, packets wait for the next frame.
_BUSY_BYTES: Final = 64 * 1024
# Seconds within which the other cell says HELLO.
_HELLO_S: Final = 5.0
# Seconds between two PING, and how many times nothing may have come until the connection is cut: the other cell hangs,
# and publishers wait for it.
PING_S: Final = 1.0
MOST_SILENT: Final = 5


class Channel(asyncio.Protocol):
    """One connection of a link. It belongs to none until the other cell has said HELLO."""

    def __init__(self, common: Common, link: Link | None) -> None:
        self._common = common
        self._link = link
        self._decoder = FrameDecoder()
        self._transport: asyncio.Transport | None = None
        self._is_begun = False
        self._is_heard = False
        self._silent = 0
        """Times that nothing had come since the PING before."""
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(_BUSY_BYTES)
        self._common.channels.add(self.abort)
        self._common.hub.context.later(_HELLO_S, self._expect_begun)
        if self._link is not None:
            self._link.expect(self.abort)
            self._write(encoded(self._link.hello()))

    def _expect_begun(self) -> None:
        if not self._is_begun:
            self.abort()

    def _ping(self) -> None:
        if self._transport is None or not self._is_begun:
            return
        self._silent = 0 if self._is_heard else self._silent + 1
        self._is_heard = False
        if self._silent >= MOST_SILENT:
            number = -1 if self._link is None else self._link.number
            _log.error("link.silent cell=%d seconds=%d", number, self._silent * PING_S)
            self.abort()
            return
        self._write(PING)
        self._common.hub.context.later(PING_S, self._ping)

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        self._is_heard = True
        try:
            for frame in self._decoder.feed(data):
                self._take(frame)
                if self._transport is None or self._transport.is_closing():
                    return
        except FrameError as error:
            self._common.refuse(self._link, str(error))
            self.abort()

    def _take(self, frame: Frame) -> None:
        if self._is_begun:
            assert self._link is not None
            self._link.take(frame)
            return
        if frame.type is not FrameType.HELLO:
            raise FrameError(f"expected HELLO, got {frame.type.name}")
        hello = decoded(Hello, frame)
        link = self._common.link_of(hello)
        try:
            link.check_protocol(hello)
        except FrameError:
            if self._link is None:
                self._link = link
                self._write(encoded(link.hello()))  # the other cell reports the reason too
            raise
        if self._link is None:
            link.hang_up()
            self._link = link
            self._write(encoded(link.hello()))
        elif self._link is not link:
            raise FrameError(f"expected cell {self._link.number}, got {link.number}")
        link.begin(self._write, self.abort, hello)
        self._is_begun = True
        self._common.hub.context.later(PING_S, self._ping)

    def pause_writing(self) -> None:
        if self._link is not None:
            self._link.pause()

    def resume_writing(self) -> None:
        if self._link is not None:
            self._link.go_on()

    def abort(self) -> None:
        """Cut the connection off."""
        if self._transport is not None:
            self._transport.abort()
        self._over()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._over()
        self._common.channels.discard(self.abort)
        self._transport = None
        self.ended.set()

    def _over(self) -> None:
        if self._is_begun and self._link is not None:
            self._is_begun = False
            self._link.end()
