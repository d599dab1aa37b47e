"""All listeners of a node: checked together, opened and closed together, and their certificates kept up to date."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from broker.connection.hub import Hub
from broker.core.errors import ConfigError
from broker.net.listener import Listener, check_addresses
from broker.net.settings import PROTOCOLS, NamedListener
from broker.observe.metrics import Metrics

CHECK_FILES_S: Final = 5.0
"""How often files of certificates are looked at."""


@dataclass(frozen=True, slots=True)
class ListenerStatus:
    """An open listener, for people."""

    name: str
    protocol: str
    """What stands before ``://`` in its address: ``mqtt``, ``mqtts``, ``ws``, ``wss``."""
    address: tuple[str, int]
    connections: int
    max_connections: int
    """0 is no limit."""
    certificate_expires: datetime | None
    """When the first of its certificates ends."""


class Listeners:
    """See the module.

    Raises:
        ConfigError: when it is made, a sentence for everything that keeps one of them from being opened.
    """

    def __init__(self, named: Sequence[NamedListener], hub: Hub, metrics: Metrics) -> None:
        check_addresses(named)
        self._all: list[Listener] = []
        problems: list[str] = []
        for one in named:
            try:
                self._all.append(Listener(one, hub, metrics))
            except ConfigError as error:
                problems += error.problems
        if problems:
            raise ConfigError(problems)
        self._is_reload_asked = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    async def open(self) -> list[tuple[str, int]]:
        """Accept connections; returns the addresses in use, in the order given.

        Raises:
            broker.core.errors.Unavailable: an address is taken; nothing is left open.
        """
        try:
            bound = [await listener.open() for listener in self._all]
        except BaseException:
            self.close()
            raise
        if any(listener.tls is not None for listener in self._all):
            self._watching = asyncio.create_task(self._watch(), name="watch certificates")
        return bound

    def close(self) -> None:
        """Accept no more; connections stay."""
        for listener in self._all:
            listener.close()
        if self._watching is not None:
            self._watching.cancel()

    @property
    def links(self) -> int:
        """Sockets open on all listeners."""
        return sum(listener.links for listener in self._all)

    def statuses(self) -> list[ListenerStatus]:
        """The open listeners, in the order given."""
        return [_status(listener) for listener in self._all if listener.address is not None]

    def reload_certificates(self) -> None:
        """Read the files of certificates again, soon; connections that are there keep theirs."""
        self._is_reload_asked.set()

    async def _watch(self) -> None:
        """Files are read on a thread: they may be large, or on another machine."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_FILES_S):
                    await self._is_reload_asked.wait()
            is_asked = self._is_reload_asked.is_set()
            self._is_reload_asked.clear()
            for listener in self._all:
                if listener.tls is not None:
                    await asyncio.to_thread(listener.tls.refresh, is_asked=is_asked)


def _status(listener: Listener) -> ListenerStatus:
    settings, tls = listener.settings, listener.tls
    assert listener.address is not None
    return ListenerStatus(
        listener.named.name,
        PROTOCOLS[settings.kind],
        listener.address,
        listener.connections,
        settings.max_connections,
        None if tls is None else tls.expires,
    )
