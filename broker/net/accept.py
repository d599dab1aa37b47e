"""Accepts connections that need work before they are a link: a PROXY header, a TLS handshake, each by its deadline.

Plain listeners leave accepting to the loop, which is faster. Here each connection has a task of its own until it is a
link, so that one which is slow or broken keeps no one waiting.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import replace
from errno import EAFNOSUPPORT
from ipaddress import ip_address
from typing import Any, Final

from broker.net.limits import LinkOwner
from broker.net.proxy import BadProxyHeader, Origin, read_header
from broker.net.settings import ListenerSettings, TcpSettings
from broker.net.tcp import CLOSE_DEADLINE_S, LINGER_S
from broker.net.tls import TlsContexts
from broker.observe.log import get_logger

_log = get_logger(__name__)

# Pause after the system refuses another socket.
_PAUSE_S: Final = 1.0

_READ_BYTES: Final = 64 * 1024
LinkMaker = Callable[[Origin], asyncio.Protocol]


def set_options(link: socket.socket, options: TcpSettings) -> None:
    """Set options on a socket before it listens; accepted sockets inherit them."""
    if options.keepalive_idle:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        link.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, round(options.keepalive_idle))
        )
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, round(options.keepalive_interval))
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, options.keepalive_probes)
    if options.send_timeout:
        link.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, round(options.send_timeout * 1000))
        )
    if options.send_buffer:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, options.send_buffer)
    if options.receive_buffer:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, options.receive_buffer)


async def listening_sockets(
    loop: asyncio.AbstractEventLoop, settings: ListenerSettings
) -> list[socket.socket]:
    """A socket for each address of the listener's host.

    Raises:
        OSError: an address is taken, or is none of this machine.
    """
    flags = socket.AI_PASSIVE
    address_infos = await loop.getaddrinfo(
        settings.host, settings.port, type=socket.SOCK_STREAM, flags=flags
    )
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(address_infos):
            try:
                link = socket.socket(family, kind, protocol)
            except OSError as error:
                # as where the machine has no IPv6, and the host's name has such an address
                if error.errno == EAFNOSUPPORT and len(address_infos) > 1:
                    continue
                raise
            sockets.append(link)
            link.setsockopt(
                socket.SOL_SOCKET, socket.SO_REUSEADDR, settings.tcp_options.reuse_address
            )
            if settings.tcp_options.reuse_port:
                link.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                link.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            set_options(link, settings.tcp_options)
            link.setblocking(False)
            link.bind(address)
            link.listen(settings.backlog)
    except OSError:
        for link in sockets:
            link.close()
        raise
    return sockets


class _Waiting:
    """A connection that is not a link yet, as the lobby sees it."""

    is_busy: Final = False
    task: asyncio.Task[None]

    def __init__(self, owner: LinkOwner, host: str) -> None:
        self._owner = owner
        self.host = host

    def make_room(self) -> None:
        """Cut it off: there are too many."""
        self._owner.refused(self.host, "unauthenticated")
        self.task.cancel()


class Acceptor:
    """Takes connections from the sockets of one listener until it is closed."""

    def __init__(
        self,
        sockets: list[socket.socket],
        settings: ListenerSettings,
        owner: LinkOwner,
        tls: TlsContexts | None,
        make_link: LinkMaker,
    ) -> None:
        self._settings = settings
        self._owner = owner
        self._tls = tls
        self._make_link = make_link
        self._loop = asyncio.get_running_loop()
        self._pending: set[asyncio.Task[None]] = set()
        self._accepting = [self._begin(link) for link in sockets]

    def close(self) -> None:
        """Accept no more, and give up those that are not links yet."""
        for task in (*self._accepting, *self._pending):
            task.cancel()

    def _begin(self, listening: socket.socket) -> asyncio.Task[None]:
        task = self._loop.create_task(
            self._accept(listening), name=f"accept at {self._settings.bind}"
        )
        task.add_done_callback(lambda _: listening.close())
        return task

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                link, address = await self._loop.sock_accept(listening)
            except ConnectionError:  # it left before it was taken
                continue
            except OSError as error:  # no more file descriptors, no memory
                _log.error(
                    "listener.cannot_accept",
                    bind=self._settings.bind,
                    reason=error.strerror or str(error),
                )
                await asyncio.sleep(_PAUSE_S)
                continue
            if not self._owner.knock(address[0]):
                link.close()
                continue
            waiting = _Waiting(self._owner, address[0])
            task = waiting.task = self._loop.create_task(
                self._prepare(link, waiting), name=f"open {address[0]}"
            )
            self._owner.wait(waiting, address[0])
            self._pending.add(task)
            task.add_done_callback(self._pending.discard)

    async def _prepare(self, link: socket.socket, waiting: _Waiting) -> None:
        try:
            await self._open(link, waiting)
        finally:
            self._owner.stop_waiting(waiting)

    async def _open(self, link: socket.socket, waiting: _Waiting) -> None:
        peer_host = waiting.host
        try:
            origin = await self._origin(link, peer_host)
        except (BadProxyHeader, OSError) as error:
            reason = "proxy_timeout" if isinstance(error, TimeoutError) else "proxy_header"
            self._owner.refused(peer_host, reason, str(error))
            origin = None
        except asyncio.CancelledError:
            link.close()
            raise
        if origin is None:
            link.close()
            return
        origin = replace(origin, waiting=waiting)
        spare = _second(link) if self._tls is not None else None
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._make_link(origin), link, **self._options()
            )
        except TimeoutError as error:
            self._owner.refused(origin.host or peer_host, "tls_timeout", str(error))
        except OSError as error:
            self._owner.refused(origin.host or peer_host, "tls_handshake", _what_failed(error))
            if spare is not None:
                await self._say_last(spare, getattr(error, "alert", b""))
        finally:
            if spare is not None:
                spare.close()

    async def _say_last(self, link: socket.socket, alert: bytes) -> None:
        """Send the alert of a handshake that failed, and read what the client still sends: closing a socket with unread
        bytes resets the connection, and the client might not see the alert."""
        try:
            async with asyncio.timeout(LINGER_S):
                await self._loop.sock_sendall(link, alert)
                link.shutdown(socket.SHUT_WR)
                while await self._loop.sock_recv(link, _READ_BYTES):
                    pass
        except OSError:  # it is gone, or was given its time
            pass

    async def _origin(self, link: socket.socket, peer_host: str) -> Origin | None:
        """Origin of the connection; None if the peer must not speak for others."""
        settings = self._settings
        if settings.proxy_protocol == "off":
            return Origin()
        peer = ip_address(peer_host)
        if not any(peer in network for network in settings.proxy_networks):
            self._owner.refused(peer_host, "untrusted_proxy")
            return None
        async with asyncio.timeout(settings.proxy_protocol_timeout):
            return await read_header(self._loop, link, settings.proxy_protocol)

    def _options(self) -> dict[str, Any]:
        if self._tls is None:
            return {}
        return {
            "ssl": self._tls.context,
            "ssl_handshake_timeout": self._tls.settings.handshake_timeout,
            "ssl_shutdown_timeout": CLOSE_DEADLINE_S,
        }


def _second(link: socket.socket) -> socket.socket | None:
    """Another descriptor of the socket, to answer with when the loop has closed its own; None when none is left."""
    try:
        return link.dup()
    except OSError:
        return None


def _what_failed(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"client certificate: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).lower().replace("_", " ")
    return error.strerror or str(error) or type(error).__name__
