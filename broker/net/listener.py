"""One listening address: whether it may be opened and is free, and its connections."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Collection, Iterable, Sequence
from errno import EACCES, EADDRINUSE, EADDRNOTAVAIL
from functools import partial
from typing import Final, NamedTuple

from broker.auth.attempt import Certificate
from broker.codec.decode import connect_version, connecting_client, decode_packet
from broker.codec.packets import Connect
from broker.config.problems import hint
from broker.connection.hub import Hub
from broker.core.errors import ConfigError, PeerError, Unavailable
from broker.core.hosts import AllowedHosts
from broker.net.accept import Acceptor, Steering, listening_sockets
from broker.net.entrance import Cells, Entrance
from broker.net.limits import LinkOwner, show_expiry
from broker.net.proxy import Origin
from broker.net.settings import ListenerSettings, NamedListener, WebSocketSettings
from broker.net.tcp import TcpLink
from broker.net.tls import TlsContexts
from broker.net.websocket import WebSocketLink
from broker.observe.metrics import Metrics

_FREED_S: Final = 2.0
_FREED_POLL_S: Final = 0.02
_WHY: Final = {
    EADDRINUSE: "another program listens there; stop it or choose another port",
    EACCES: "the system does not permit it; choose a port above 1023",
    EADDRNOTAVAIL: "this machine has no such address",
}


def check_exposure(
    listeners: Sequence[NamedListener], *, allow_anonymous: bool, has_authenticator: bool
) -> None:
    """Refuse to listen beyond this machine while any client may connect.

    Raises:
        ConfigError: a sentence for each listener that is too open.
    """
    if allow_anonymous or has_authenticator:
        return
    problems = [
        f"listener {str(listener)!r} at {listener.settings.bind} can be reached from other machines and nothing checks "
        f"who connects; bind it to 127.0.0.1, or set access.allow_anonymous = true"
        for listener in listeners
        if not listener.settings.is_loopback and not _is_decided(listener.settings)
    ]
    if problems:
        raise ConfigError(problems)


def _is_decided(settings: ListenerSettings) -> bool:
    """True if a listener has authenticators of its own, or says itself that its clients are not authenticated."""
    return settings.enable_authn is False or any(
        entry.enable for entry in settings.authentication or ()
    )


def check_addresses(listeners: Iterable[NamedListener]) -> None:
    """Refuse two listeners at one address.

    Raises:
        ConfigError: a sentence for each that is the second one.
    """
    first: dict[str, NamedListener] = {}
    problems = []
    for listener in listeners:
        bind = listener.settings.bind
        other = first.setdefault(bind, listener)
        if other is not listener and listener.settings.port:
            problems.append(
                f"listener {str(listener)!r} and listener {str(other)!r} are both at {bind}"
            )
    if problems:
        raise ConfigError(problems)


def check_zones(listeners: Iterable[NamedListener], zones: Collection[str]) -> None:
    """Refuse listeners of zones that there are not.

    Raises:
        ConfigError: a sentence for each.
    """
    problems = [
        f"listener {str(listener)!r} is in zone {listener.settings.zone!r}, which is not there"
        f"{hint(listener.settings.zone, zones) or f'; add zones.{listener.settings.zone} {{ ... }}'}"
        for listener in listeners
        if listener.settings.zone not in zones
    ]
    if problems:
        raise ConfigError(problems)


def unavailable(settings: ListenerSettings, error: OSError) -> Unavailable:
    """The sentence for an address that cannot be opened."""
    reason = _WHY.get(error.errno or 0, error.strerror or str(error))
    return Unavailable(f"cannot listen for MQTT at {settings.bind}: {reason}")


class _Peer(NamedTuple):
    """A client before it has a link, as its CONNECT is read with (``broker.connection.link.Link``)."""

    origin: Origin
    listener: str

    @property
    def peer_host(self) -> str | None:
        return self.origin.host

    @property
    def peer_port(self) -> int | None:
        return self.origin.port

    @property
    def server_name(self) -> str | None:
        return self.origin.server_name

    @property
    def certificate(self) -> Certificate | None:
        return self.origin.certificate


class Listener:
    """Accepts connections on one address.

    Raises:
        ConfigError: when it is made, a sentence for each file or setting of TLS that cannot be used.
    """

    def __init__(
        self,
        named: NamedListener,
        hub: Hub,
        metrics: Metrics,
        owner: LinkOwner | None = None,
        cells: Cells | None = None,
    ) -> None:
        """``owner`` has the links of the listener in whose place this one comes. ``cells`` is None in a broker of one
        process."""
        self.named = named
        self.settings = named.settings
        self._hub = hub
        self._metrics = metrics
        self._cells = cells
        self.owner = LinkOwner(named, hub, metrics) if owner is None else owner
        self._accepting: list[asyncio.Server | Acceptor] = []
        self.tls: TlsContexts | None = None
        self.address: tuple[str, int] | None = None
        """Host and port in use, once it is open."""
        if (tls := self.settings.tls) is not None:
            self.tls = TlsContexts(
                str(named), tls, "mqtt" if self.settings.web is None else "http/1.1"
            )

    async def open(self) -> tuple[str, int]:
        """Begin to accept; returns the address in use.

        Raises:
            Unavailable: the address is taken or not of this machine.
        """
        try:
            self.address = await self._open()
        except OSError as error:
            raise unavailable(self.settings, error) from error
        self.owner.use(self.settings)
        if (contexts := self.tls) is not None:
            show_expiry(self._metrics, str(self.named), lambda: contexts.expires.timestamp())
        return self.address

    async def reopen(self) -> None:
        """Open an address that was closed a moment ago: the system takes some time to release it.

        Raises:
            Unavailable: as ``open``.
        """
        ends_at = asyncio.get_running_loop().time() + _FREED_S
        while True:
            try:
                await self.open()
            except Unavailable as error:
                taken = isinstance(error.__cause__, OSError) and error.__cause__.errno == EADDRINUSE
                if not taken or asyncio.get_running_loop().time() > ends_at:
                    raise
                await asyncio.sleep(_FREED_POLL_S)
            else:
                return

    def retune(self, named: NamedListener) -> None:
        """Apply the limits of other settings from the next connection on; all else must be equal."""
        self.named = named
        self.settings = named.settings
        self.owner.use(named.settings)

    async def _open(self) -> tuple[str, int]:
        settings = self.settings
        loop = asyncio.get_running_loop()
        cells = self._cells
        if cells is None:
            sockets = await listening_sockets(loop, settings)
        else:
            sockets = await cells.sockets(self.named)
        host, port = sockets[0].getsockname()[:2]
        if cells is None and self.tls is None and settings.proxy_protocol == "off":
            for listening in sockets:
                server = await loop.create_server(
                    self._link, sock=listening, backlog=settings.backlog
                )
                self._accepting.append(server)
        else:
            steering = None if cells is None else self._steering(cells)
            self._accepting.append(
                Acceptor(sockets, settings, self.owner, self.tls, self._link, steering)
            )
        return host, port

    def _steering(self, cells: Cells) -> Steering:
        context = self._hub.context
        return Steering(
            cells, self.named.id, self._entrance, self._client_of,
            lambda: context.settings.connect_timeout,
        )  # fmt: skip

    def _entrance(self, web: WebSocketSettings | None) -> Entrance:
        return Entrance(
            web,
            None if web is None else self._hosts(),
            self._hub.context.settings.max_packet_size_before_connect,
        )

    def _client_of(self, entrance: Entrance, origin: Origin) -> str:
        """Client identifier that counts for a connection's CONNECT; empty if it cannot be read."""
        if (connect := entrance.connect) is None:
            return ""
        data, start, stop = connect
        client_id = self._client_id(data, start, stop, origin)
        place = self._hub.context.place
        if (
            place is not None
            and place.server_of(client_id)
            and connect_version(data, start, stop) == 5
        ):
            return ""  # it is referred to that server here
        return client_id

    def _client_id(self, data: bytes, start: int, stop: int, origin: Origin) -> str:
        if not self._hub.connecting.may_rename:
            return connecting_client(data, start, stop) or ""
        try:
            packet = decode_packet(data[0], data, start, stop, 0)
        except PeerError:
            return ""
        assert isinstance(packet, Connect)
        return self._hub.connecting.client_id_of(_Peer(origin, self.owner.name), packet)

    def _hosts(self) -> AllowedHosts:
        web = self.settings.web
        return AllowedHosts(
            () if web is None else web.allowed_hosts, loopback=self.settings.is_loopback
        )

    def _link(self, origin: Origin | None = None) -> TcpLink:
        hub = self._hub
        owner = self.owner
        loop = asyncio.get_running_loop()
        name = self.owner.name
        web = self.settings.web
        if web is not None and not (origin is not None and origin.is_bare):
            return WebSocketLink(web, self._hosts(), hub, owner, loop, name, origin)
        return TcpLink(hub, owner, loop, name, origin)

    @property
    def needs_certificates(self) -> bool:
        """True if clients without a certificate are refused."""
        tls = self.settings.tls
        return tls is not None and tls.verify == "peer" and tls.fail_if_no_peer_cert

    async def adopt(self, link: socket.socket, host: str | None, port: int | None) -> None:
        """Serve a local socket that carries MQTT as a connection of this listener, from a client with that address.

        Raises:
            Unavailable: the listener takes no connection now.
        """
        if not self.owner.knock(host):
            raise Unavailable(f"listener {self.named.id!r} takes no more connections now")
        loop = asyncio.get_running_loop()
        origin = Origin(host, port, is_unknown=host is None, is_bare=True)
        if self._cells is not None:
            acceptor = self._accepting[0]
            assert isinstance(acceptor, Acceptor)
            acceptor.adopt(link, origin)
            return
        await loop.connect_accepted_socket(
            lambda: TcpLink(self._hub, self.owner, loop, self.owner.name, origin), link
        )

    def link_maker(self, origin: Origin) -> Callable[[], TcpLink]:
        """Function that makes the link of a connection that another cell has accepted."""
        return partial(self._link, origin)

    def close(self) -> None:
        """Accept no more; connections stay."""
        if self._cells is not None and self._accepting:
            self._cells.release(self.named)
        for accepting in self._accepting:
            accepting.close()
        self._accepting.clear()
        self.address = None

    @property
    def is_open(self) -> bool:
        """True while it accepts connections."""
        return bool(self._accepting)

    @property
    def links(self) -> int:
        """Sockets open on this listener."""
        return len(self.owner.links)

    @property
    def connections(self) -> int:
        """Connections within its limits."""
        return self.owner.count
