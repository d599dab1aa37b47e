"""The asyncio protocol around a connection: bytes from the socket in, bytes to the socket out. TLS makes no difference:
then the transport is TLS's, and says who the client is."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Final, cast

from broker.auth.attempt import Certificate
from broker.connection.hub import Hub
from broker.net.certificate import certificate_of
from broker.net.limits import ANSWER_TIMEOUT_S, LinkOwner
from broker.net.proxy import Origin
from broker.net.tls import AskedSslObject

# A connection counts as slow at this part of the bytes at which it begins to lose QoS 0 messages.
_EARLY: Final = 4
# Time limit for a closed connection to read the remaining data before it is cut off.
CLOSE_DEADLINE_S: Final = 5.0
# Time limit for a client to read the reason of its disconnection, and to close.
LINGER_S: Final = 1.0
# Time limit for a closed connection with nothing left to read to confirm the end of TLS.
_TLS_GOODBYE_S: Final = 1.0


class TcpLink(asyncio.Protocol):
    """One accepted socket; ``broker.connection.link.Link`` for its connection."""

    __slots__ = (
        "_connection", "_context", "_is_tls", "_local_address", "_loop", "_origin", "_owner", "_transport",
        "certificate", "data_received", "has_place", "listener", "peer_host", "peer_port", "refusal", "server_name",
        "tls_version",
    )  # fmt: skip

    _transport: asyncio.Transport

    def __init__(
        self,
        hub: Hub,
        owner: LinkOwner,
        loop: asyncio.AbstractEventLoop,
        listener: str,
        origin: Origin | None = None,
    ) -> None:
        self._context = hub.context
        self._owner = owner
        self._loop = loop
        self.listener = listener
        self._origin = origin
        self.peer_host: str | None = None
        self.peer_port: int | None = None
        self.server_name: str | None = None
        self.tls_version: str | None = None
        self.certificate: Certificate | None = None
        self.refusal = 0
        self.has_place = False
        self._is_tls = False
        self._local_address: str | None = None
        self._connection = hub.connect(self)
        # uvloop binds the method before connection_made; so each read goes to the connection without a call between
        self.data_received = self._connection.data_received  # type: ignore[method-assign]

    # -- asyncio.Protocol --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the socket."""
        # uvloop's class is not a subclass of it; no Nagle in either
        self._transport = cast(asyncio.Transport, transport)
        if self._owner.delays_small_packets and transport.get_extra_info("peername"):
            with socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno())) as own:
                own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
        self._learn_peer()
        origin = self._origin
        if origin is not None and origin.waiting is not None:
            self._owner.stop_waiting(origin.waiting)
        self._owner.open(self, has_knocked=origin is not None)
        if origin is not None and origin.refusal:
            self.refusal = origin.refusal
        self._origin = None
        self._transport.set_write_buffer_limits(
            high=self._context.settings.max_unsent_bytes // _EARLY
        )
        self._connection.opened()
        if self.refusal:
            self._connection.deadline_s = self._context.now_s + ANSWER_TIMEOUT_S
        if origin is not None and origin.first:
            self.data_received(origin.first)

    @property
    def sock_name(self) -> str | None:
        """``address:port`` of our end, built on request."""
        if self._local_address is not None:
            return self._local_address
        ours = self._transport.get_extra_info("sockname")
        return f"{ours[0]}:{ours[1]}" if isinstance(ours, tuple) else None

    def _learn_peer(self) -> None:
        """Learn the client's identity from its socket, a load balancer and its certificate."""
        peer = self._transport.get_extra_info("peername")
        if peer:
            self.peer_host = peer[0]
            self.peer_port = peer[1]
        origin = self._origin
        if origin is not None:
            self.server_name = origin.server_name
            self.tls_version = origin.tls_version
            self.certificate = origin.certificate
            self._local_address = origin.local_address
            if origin.host is not None or origin.is_unknown:
                self.peer_host = origin.host
                self.peer_port = origin.port
        tls: AskedSslObject | None = self._transport.get_extra_info("ssl_object")
        if tls is not None:
            self._is_tls = True  # asyncio's transport of TLS no longer says so while it closes
            self.server_name, self.tls_version = tls.asked_name or self.server_name, tls.version()
            if shown := tls.getpeercert():
                self.certificate = certificate_of(shown)

    def connection_lost(self, error: Exception | None) -> None:
        """The socket is gone. The link drops its references, so that it is freed without the garbage collector."""
        self._owner.leave(self)
        self._connection.connection_lost()
        self.data_received = _ignore  # type: ignore[method-assign, assignment]
        del self._connection

    def dismiss(self, code: int, why: str) -> None:
        """Disconnect the client, with a reason code in MQTT 5."""
        self._connection.disconnect(code, why)

    @property
    def is_busy(self) -> bool:
        """True if the client has sent its CONNECT, and waits to be authenticated."""
        return self._connection.version != 0

    def make_room(self) -> None:
        """Cut off a connection that has not authenticated: there are too many."""
        self._owner.refused(self.peer_host, "unauthenticated")
        self._transport.abort()

    def pause_writing(self) -> None:
        """The client reads too slowly."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._connection.resume_writing()

    # -- Link --

    def admit(self) -> int:
        """Take a place of the listener; returns the reason code of the refusal, 0 when there was one."""
        return self._owner.admit(self)

    def write(self, data: bytes) -> None:
        """Send; never waits."""
        self._context.figures.bytes_sent.value += len(data)
        self._transport.write(data)

    def close(self, *, lingers: bool = False) -> None:
        """Send what waits, then close; cut off after ``CLOSE_DEADLINE_S``. TLS takes its time to say goodbye anyway."""
        transport = self._transport
        if lingers and not transport.is_closing() and transport.can_write_eof():
            transport.write_eof()
            transport.resume_reading()
            self._loop.call_later(LINGER_S, self.close)
            return
        close_in_time(self._loop, transport, is_tls=self._is_tls)

    def pause_reading(self) -> None:
        """Read no more until ``resume_reading``."""
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def unsent_bytes(self) -> int:
        """Bytes that the system has not taken yet."""
        return self._transport.get_write_buffer_size()


def close_in_time(
    loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, *, is_tls: bool
) -> None:
    """Send what waits and close; cut off a client that does not take it, or does not confirm the end of TLS."""
    unsent = transport.get_write_buffer_size() if not transport.is_closing() else 0
    transport.close()
    if unsent:
        loop.call_later(CLOSE_DEADLINE_S, transport.abort)
    elif is_tls:
        loop.call_later(_TLS_GOODBYE_S, transport.abort)


def _ignore(_data: bytes) -> None:
    """Ignore data: the connection is gone."""
