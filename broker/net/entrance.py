"""Finds out whose client a new connection is, and which cell has it.

With several cells any of them may accept a connection. It reads up to the end of the CONNECT, and no further than one
read, and then either serves the client itself, or passes the socket and these bytes to the cell that has the client.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Collection
from typing import Final, Protocol, cast

from msgspec.structs import replace

from broker.codec import properties as p
from broker.codec.framing import frame_at
from broker.codec.websocket import BadFrame, Closed, FrameReader
from broker.core.errors import PeerError
from broker.core.hosts import AllowedHosts
from broker.net import upgrade
from broker.net.certificate import certificate_of
from broker.net.proxy import Origin
from broker.net.settings import NamedListener, WebSocketSettings
from broker.net.upgrade import UpgradeRefused

# Bytes of frames and pings of a WebSocket around a CONNECT.
_MOST_AROUND: Final = 256 * 1024


class Cells(Protocol):
    """The cells of this machine, as a listener of one of them needs them (``broker.cluster.steering``)."""

    @property
    def relayed(self) -> Collection[object]:
        """Connections that this process relays to others."""

    async def sockets(self, named: NamedListener) -> list[socket.socket]:
        """The listening sockets of a listener, which all cells share.

        Raises:
            OSError: an address is taken, or is none of this machine.
        """

    def release(self, named: NamedListener) -> None:
        """This cell accepts no more from them."""

    def has(self, client_id: str) -> bool:
        """True if the client is one of this cell."""

    def pass_now(self, client_id: str, listener: str, link: socket.socket, origin: Origin) -> bool:
        """Pass a connection to the cell of a client, if that takes it at once. The caller closes its own end."""

    async def pass_on(
        self, client_id: str, listener: str, link: socket.socket, origin: Origin
    ) -> bool:
        """Pass a connection as soon as the cell takes it; False if it does not in time."""

    async def relay(
        self, client_id: str, listener: str, transport: asyncio.Transport, origin: Origin
    ) -> bool:
        """Relay a connection whose TLS ends here, and that does not read; False if the cell does not take it in
        time."""


class Entrance:
    """Bytes of a connection until the CONNECT is there. Does no I/O."""

    __slots__ = (
        "_frames",
        "_hosts",
        "_inner",
        "_most",
        "_web",
        "data",
        "is_done",
        "is_refused",
        "is_upgraded",
        "pongs",
    )

    def __init__(
        self, web: WebSocketSettings | None, hosts: AllowedHosts | None, most: int
    ) -> None:
        """``hosts`` are those of a WebSocket; ``most`` is the maximum size of a CONNECT in bytes."""
        self._web = web
        self._hosts = hosts
        self._most = most
        self._frames = FrameReader(web.max_frame_size) if web is not None else None
        self.data = bytearray()
        """Bytes that the link has to get."""
        self._inner = bytearray()
        self.is_upgraded = False
        self.pongs = 0
        """Number of pings in ``data`` that were answered."""
        self.is_done = False
        """True if nothing more has to be read: the CONNECT is there, or will never be."""
        self.is_refused = False
        """True if there was more around the CONNECT than is taken."""

    def feed(self, data: bytes) -> bytes:
        """Take what was read; returns what has to be answered at once."""
        answer = self._feed(data)
        if not self.is_done and len(self.data) > self._most + _MOST_AROUND:
            self.is_done = self.is_refused = True
        return answer

    def _feed(self, data: bytes) -> bytes:
        answer = b""
        self.data += data
        web = self._web
        if web is not None and self._hosts is not None and not self.is_upgraded:
            try:
                parts = upgrade.split(bytes(self.data))
                if parts is None:
                    return b""
                answer = upgrade.accept(parts[0], web, self._hosts)
            except UpgradeRefused:  # the link says it to the client
                self.is_done = True
                return b""
            self.is_upgraded = True
            data = parts[1]
            self.data[:] = data
        if self._frames is None:
            self._look(self.data)
        elif data:
            try:
                self._inner += self._frames.receive(data)
            except (BadFrame, Closed):  # so does it here
                self.is_done = True
            else:
                self._look(self._inner)
                replies = self._frames.replies
                self.pongs += len(replies)
                answer += b"".join(replies)
                replies.clear()
        return answer

    def _look(self, data: bytearray) -> None:
        if not data:
            return
        try:
            frame = frame_at(data, 0, self._most)
        except PeerError:
            self.is_done = True
            return
        self.is_done = data[0] >> 4 != p.CONNECT or (frame is not None and frame[1] <= len(data))

    @property
    def connect(self) -> tuple[bytes, int, int] | None:
        """The bytes of the CONNECT with start and end of its body; None without one."""
        data = bytes(self.data if self._frames is None else self._inner)
        if not data or data[0] >> 4 != p.CONNECT:
            return None
        try:
            frame = frame_at(data, 0, self._most)
        except PeerError:
            return None
        return None if frame is None or frame[1] > len(data) else (data, *frame)


class Doorway(asyncio.Protocol):
    """A TLS connection until the CONNECT is there."""

    transport: asyncio.Transport

    def __init__(self, entrance: Entrance, loop: asyncio.AbstractEventLoop) -> None:
        self.entrance = entrance
        self.is_gone = False
        self.decided: asyncio.Future[None] = loop.create_future()
        """Done when nothing more has to be read, or the client has left."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """TLS is there."""
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Read until the CONNECT is there."""
        if answer := self.entrance.feed(data):
            self.transport.write(answer)
        if self.entrance.is_done:
            self.transport.pause_reading()
            self._decide()

    def connection_lost(self, error: Exception | None) -> None:
        """The client has left."""
        self.is_gone = True
        self._decide()

    def _decide(self) -> None:
        if not self.decided.done():
            self.decided.set_result(None)

    def origin(self, origin: Origin) -> Origin:
        """The origin with the client's identity in TLS, and the bytes that were read."""
        info = self.transport.get_extra_info
        tls = info("ssl_object")
        peer = info("peername")
        ours = info("sockname")
        shown = tls.getpeercert()
        is_direct = origin.host is None and not origin.is_unknown
        return replace(
            origin,
            host=peer[0] if is_direct else origin.host,
            port=peer[1] if is_direct else origin.port,
            server_name=tls.asked_name or origin.server_name,
            tls_version=tls.version(),
            certificate=certificate_of(shown) if shown else origin.certificate,
            local_address=f"{ours[0]}:{ours[1]}",
            first=bytes(self.entrance.data),
            is_upgraded=self.entrance.is_upgraded,
            pongs=self.entrance.pongs,
        )
