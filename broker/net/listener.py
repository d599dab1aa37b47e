"""One listening address: may it be opened, and is it free."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from errno import EACCES, EADDRINUSE, EADDRNOTAVAIL

from broker.connection.hub import Hub
from broker.core.errors import ConfigError, Unavailable
from broker.net.settings import ListenerSettings
from broker.net.tcp import LinkOwner, TcpLink

_WHY = {
    EADDRINUSE: "another program listens there; stop it or choose another port",
    EACCES: "the system does not permit it; choose a port above 1023",
    EADDRNOTAVAIL: "this machine has no such address",
}


def check_exposure(listeners: Sequence[ListenerSettings], *, allow_anonymous: bool, has_authenticator: bool) -> None:
    """Refuse to listen beyond this machine while everybody may connect.

    Raises:
        ConfigError: a sentence for each listener that is too open.
    """
    if allow_anonymous or has_authenticator:
        return
    problems = [
        f"listener {listener.name!r} at {listener.bind} can be reached from other machines and nothing checks who "
        f"connects; bind it to 127.0.0.1, or set access.allow_anonymous = true"
        for listener in listeners
        if not listener.is_loopback
    ]
    if problems:
        raise ConfigError(problems)


class Listener:
    """Accepts connections on one address."""

    def __init__(self, settings: ListenerSettings, hub: Hub) -> None:
        self.settings = settings
        self._hub = hub
        self._owner = LinkOwner(settings.max_connections)
        self._server: asyncio.Server | None = None

    async def open(self) -> tuple[str, int]:
        """Begin to accept; returns the address in use.

        Raises:
            Unavailable: the address is taken or not of this machine.
        """
        settings, loop = self.settings, asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: TcpLink(self._hub, self._owner, loop, settings.name),
                settings.host,
                settings.port,
                backlog=settings.backlog,
                reuse_address=True,
            )
        except OSError as error:
            why = _WHY.get(error.errno or 0, error.strerror or str(error))
            raise Unavailable(f"cannot listen for MQTT at {settings.bind}: {why}") from error
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    def close(self) -> None:
        """Accept no more; connections stay."""
        if self._server is not None:
            self._server.close()

    @property
    def links(self) -> int:
        """Sockets open on this listener."""
        return len(self._owner.links)
