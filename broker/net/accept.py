"""Accepts connections that need work before they are a link: a PROXY header, a TLS handshake, each by its deadline.

Plain listeners leave accepting to the loop, which is faster. Here each connection has a task of its own until it is a
link, so that one which is slow or broken keeps no one waiting.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from errno import EAFNOSUPPORT
from functools import partial
from ipaddress import ip_address
from typing import Any, Final

from msgspec.structs import replace

from broker.core import reason
from broker.net.entrance import Cells, Doorway, Entrance
from broker.net.limits import LinkOwner
from broker.net.proxy import BadProxyHeader, Origin, read_header
from broker.net.settings import ListenerSettings, TcpSettings, WebSocketSettings
from broker.net.tcp import CLOSE_DEADLINE_S, LINGER_S, close_in_time
from broker.net.tls import TlsContexts
from broker.observe.log import get_logger

_log = get_logger(__name__)

# Pause after the system refuses another socket.
_PAUSE_S: Final = 1.0

_READ_BYTES: Final = 64 * 1024
# Connections that are passed to other cells in one turn of the loop: some milliseconds.
_PER_TURN: Final = 64
LinkMaker = Callable[[Origin], asyncio.Protocol]


@dataclass(frozen=True, slots=True)
class Steering:
    """Functions by which an acceptor finds the cells of its clients. ``client_of`` gives the client identifier of a
    connection that has sent a CONNECT, empty where this cell has to answer it."""

    cells: Cells
    listener: str
    entrance: Callable[[WebSocketSettings | None], Entrance]
    client_of: Callable[[Entrance, Origin], str]
    deadline_s: Callable[[], float]


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

    def __init__(self, owner: LinkOwner, host: str | None) -> None:
        self._owner = owner
        self.host = host

    def make_room(self) -> None:
        """Cut it off: there are too many."""
        self._owner.refused(self.host, "unauthenticated")
        self.task.cancel()


class _Arriving:
    """A plain connection until its CONNECT is there, as the lobby sees it."""

    is_busy: Final = False

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        owner: LinkOwner,
        steering: Steering,
        link: socket.socket,
        address: tuple[Any, ...],
        others: set[_Arriving],
        arrived: Callable[[_Arriving], None],
    ) -> None:
        """``others`` has those that wait, this one among them."""
        self._loop = loop
        self._owner = owner
        self._steering = steering
        self.link = link
        self.address = address
        self._others = others
        self._arrived = arrived
        self.entrance = steering.entrance(None)
        self._timer: asyncio.TimerHandle | None = None

    def read(self) -> bool:
        """Take what is there; True if nothing more has to be waited for."""
        try:
            data = self.link.recv(_READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:  # it has left
            self.end()
            return True
        self.entrance.feed(data)
        if not self.entrance.is_done:
            return False
        self._stop()
        self._arrived(self)
        return True

    def wait(self) -> None:
        """Wait for the rest, within the time for a CONNECT."""
        self._others.add(self)
        self._loop.add_reader(self.link, self.read)
        self._timer = self._loop.call_later(self._steering.deadline_s(), self._too_late)
        self._owner.wait(self, self.address[0])

    def make_room(self) -> None:
        """Cut it off: there are too many."""
        self._owner.refused(self.address[0], "unauthenticated")
        self.end()

    def _too_late(self) -> None:
        self._owner.refused(self.address[0], "connect_timeout")
        self.end()

    def end(self) -> None:
        """Close it."""
        self._stop()
        self.link.close()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._loop.remove_reader(self.link)
            self._owner.stop_waiting(self)
            self._others.discard(self)


class Acceptor:
    """Takes connections from the sockets of one listener until it is closed."""

    def __init__(
        self,
        sockets: list[socket.socket],
        settings: ListenerSettings,
        owner: LinkOwner,
        tls: TlsContexts | None,
        make_link: LinkMaker,
        steering: Steering | None = None,
    ) -> None:
        """``steering`` is None in a broker of one process."""
        self._settings = settings
        self._owner = owner
        self._tls = tls
        self._make_link = make_link
        self._steering = steering
        self._passes_at_once = (
            steering is not None
            and tls is None
            and settings.web is None
            and settings.proxy_protocol == "off"
        )
        self._loop = asyncio.get_running_loop()
        self._pending: set[asyncio.Task[Any]] = set()
        self._arriving: set[_Arriving] = set()
        self._listening = sockets if self._passes_at_once else []
        for listening in self._listening:
            self._loop.add_reader(listening, self._accept_now, listening)
        rest = [] if self._passes_at_once else sockets
        self._accepting = [self._begin(listening) for listening in rest]

    def close(self) -> None:
        """Accept no more, and give up those that are not links yet."""
        for listening in self._listening:
            self._loop.remove_reader(listening)
            listening.close()
        self._listening = []
        for arriving in list(self._arriving):
            arriving.end()
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
                self._cannot_accept(error)
                await asyncio.sleep(_PAUSE_S)
                continue
            if self._owner.knock(address[0]):
                self._go_on(link, address[0], None)
            else:
                link.close()

    def _cannot_accept(self, error: OSError) -> None:
        _log.error(
            "listener.cannot_accept",
            bind=self._settings.bind,
            reason=error.strerror or str(error),
        )

    def _go_on(self, link: socket.socket, host: str, entrance: Entrance | None) -> None:
        """Give a connection a task that makes it a link, or passes it on; ``entrance`` has what it has sent."""
        waiting = _Waiting(self._owner, host)
        task = waiting.task = self._loop.create_task(
            self._prepare(link, waiting, entrance), name=f"open {host}"
        )
        self._owner.wait(waiting, host)
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    def _accept_now(self, listening: socket.socket) -> None:
        """Accept plain connections, most of which are passed on: without a task for each."""
        for _ in range(_PER_TURN):
            try:
                link, address = listening.accept()
            except BlockingIOError:
                return
            except ConnectionError:
                continue
            except OSError as error:
                self._cannot_accept(error)
                self._loop.remove_reader(listening)
                self._loop.call_later(_PAUSE_S, self._accept_again, listening)
                return
            if not self._owner.knock(address[0]):
                link.close()
                continue
            link.setblocking(False)
            assert self._steering is not None
            arriving = _Arriving(
                self._loop,
                self._owner,
                self._steering,
                link,
                address,
                self._arriving,
                self._arrived,
            )
            if not arriving.read():
                arriving.wait()

    def _accept_again(self, listening: socket.socket) -> None:
        if listening in self._listening:
            self._loop.add_reader(listening, self._accept_now, listening)

    def _arrived(self, arriving: _Arriving) -> None:
        """Pass a connection whose CONNECT is there to the cell of its client, or serve it here."""
        steering = self._steering
        assert steering is not None
        entrance = arriving.entrance
        link = arriving.link
        client_id = steering.client_of(entrance, Origin(*arriving.address[:2]))
        origin = Origin(first=bytes(entrance.data))
        if not client_id or steering.cells.has(client_id):
            connecting = self._loop.connect_accepted_socket(partial(self._make_link, origin), link)
            task = self._loop.create_task(connecting)
            self._pending.add(task)
            task.add_done_callback(self._connected)
        elif steering.cells.pass_now(client_id, steering.listener, link, origin):
            link.close()
        else:
            self._go_on(link, arriving.address[0], entrance)

    def _connected(self, task: asyncio.Task[Any]) -> None:
        self._pending.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, OSError):  # with OSError the client has left
            self._loop.call_exception_handler(
                {"message": "a connection failed", "exception": error}
            )

    async def _prepare(
        self, link: socket.socket, waiting: _Waiting, entrance: Entrance | None
    ) -> None:
        try:
            await self._open(link, waiting, entrance)
        finally:
            self._owner.stop_waiting(waiting)

    async def _open(
        self, link: socket.socket, waiting: _Waiting, entrance: Entrance | None
    ) -> None:
        peer_host = waiting.host
        assert peer_host is not None
        try:
            origin = await self._origin(link, peer_host)
            if origin is not None and self._steering is not None and self._tls is None:
                entrance = entrance or self._steering.entrance(self._settings.web)
                origin = await self._steered(self._steering, link, waiting, origin, entrance)
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
        door = self._door()
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._make_link(origin) if door is None else door, link, **self._options()
            )
        except TimeoutError as error:
            self._owner.refused(origin.host or peer_host, "tls_timeout", str(error))
        except OSError as error:
            self._owner.refused(origin.host or peer_host, "tls_handshake", _what_failed(error))
            if spare is not None:
                await self._say_last(spare, getattr(error, "alert", b""))
        else:
            if door is not None and self._steering is not None:
                await self._enter(self._steering, door, origin)
        finally:
            if spare is not None:
                spare.close()

    def _door(self) -> Doorway | None:
        """Stand-in for the link of a TLS connection until its cell is known; None in a broker of one process."""
        steering = self._steering
        if steering is None or self._tls is None:
            return None
        return Doorway(steering.entrance(self._settings.web), self._loop)

    async def _steered(
        self,
        steering: Steering,
        link: socket.socket,
        waiting: _Waiting,
        origin: Origin,
        entrance: Entrance,
    ) -> Origin | None:
        """The origin of a connection that stays here, with the bytes read; None for one that has another cell now, or
        none at all."""
        try:
            async with asyncio.timeout(steering.deadline_s()):
                while not entrance.is_done:
                    data = await self._loop.sock_recv(link, _READ_BYTES)
                    if not data:
                        return None
                    if answer := entrance.feed(data):
                        await self._loop.sock_sendall(link, answer)
        except TimeoutError:
            self._owner.refused(origin.host or waiting.host, "connect_timeout")
            return None
        except OSError:
            return None
        if entrance.is_refused:
            self._owner.refused(origin.host or waiting.host, "connect_size")
            return None
        origin = replace(
            origin,
            first=bytes(entrance.data),
            is_upgraded=entrance.is_upgraded,
            pongs=entrance.pongs,
            waiting=waiting,
        )
        client_id = steering.client_of(entrance, self._with_peer(origin, link))
        if not client_id or steering.cells.has(client_id):
            return origin
        passed = replace(origin, waiting=None)
        if await steering.cells.pass_on(client_id, steering.listener, link, passed):
            return None
        return replace(origin, refusal=reason.SERVER_UNAVAILABLE)

    def adopt(self, link: socket.socket, origin: Origin) -> None:
        """Take a local socket that carries MQTT, whatever else this listener's clients speak."""
        assert self._steering is not None
        waiting = _Waiting(self._owner, origin.host)
        task = waiting.task = self._loop.create_task(
            self._adopted(self._steering, link, waiting, origin), name="open a local connection"
        )
        self._owner.wait(waiting, origin.host)
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    async def _adopted(
        self, steering: Steering, link: socket.socket, waiting: _Waiting, origin: Origin
    ) -> None:
        link.setblocking(False)
        try:
            own = await self._steered(steering, link, waiting, origin, steering.entrance(None))
            if own is None:
                link.close()
            else:
                await self._loop.connect_accepted_socket(lambda: self._make_link(own), link)
        except BaseException:
            link.close()
            raise
        finally:
            self._owner.stop_waiting(waiting)

    def _with_peer(self, origin: Origin, link: socket.socket) -> Origin:
        if origin.host is not None or origin.is_unknown:
            return origin
        host, port = link.getpeername()[:2]
        return replace(origin, host=host, port=port)

    async def _enter(self, steering: Steering, door: Doorway, origin: Origin) -> None:
        """Make a TLS connection a link of this cell, or relay it to the cell of its client."""
        transport = door.transport
        try:
            async with asyncio.timeout(steering.deadline_s()):
                await door.decided
        except TimeoutError:
            self._owner.refused(door.origin(origin).host, "connect_timeout")
            close_in_time(self._loop, transport, is_tls=True)
            return
        except asyncio.CancelledError:
            transport.abort()
            raise
        if door.is_gone:
            return
        origin = door.origin(origin)
        if door.entrance.is_refused:
            self._owner.refused(origin.host, "connect_size")
            transport.abort()
            return
        client_id = steering.client_of(door.entrance, origin)
        if client_id and not steering.cells.has(client_id):
            told = replace(origin, waiting=None)
            try:
                if await steering.cells.relay(client_id, steering.listener, transport, told):
                    return
            except asyncio.CancelledError:
                transport.abort()
                raise
            origin = replace(origin, refusal=reason.SERVER_UNAVAILABLE)
        if door.is_gone:
            return
        link = self._make_link(origin)
        transport.set_protocol(link)
        link.connection_made(transport)
        transport.resume_reading()

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
