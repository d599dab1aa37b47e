"""The API of a machine that is drained or has no cells of its own: requests are relayed to the first cell, and probes
of load balancers get 503 unless it runs cells of others."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from broker.admin.api_settings import ApiSettings
from broker.app import features
from broker.app.api import files_of_front
from broker.app.lifecycle import RunFile
from broker.cluster.front_relay import FrontRelay
from broker.cluster.settings import ClusterSettings
from broker.core.cells import Place
from broker.core.errors import ConfigError
from broker.core.hosts import address_text
from broker.observe.log import get_logger

_log = get_logger(__name__)

_NO_CELL: Final = -1
_LOOPBACK: Final = "127.0.0.1"


class _Health:
    def __init__(self, runs_cells: Callable[[], bool]) -> None:
        self._runs_cells = runs_cells

    def not_ready(self) -> str | None:
        """Reason for which the machine should get no clients."""
        return None if self._runs_cells() else "no cell runs here"

    def remark(self) -> str:
        return "ok"


class IdleApi:
    """Implements ``broker.cluster.keeper.StandIn``."""

    def __init__(self, data_dir: Path, cluster: ClusterSettings, settings: ApiSettings) -> None:
        run = data_dir / "run"
        count = sum(machine.size for machine in cluster.layout)
        self._place = Place(_NO_CELL, count, run, cluster.layout, machine=cluster.machine)
        self._data_dir = data_dir
        self._settings = settings
        self._run_file = RunFile(data_dir)
        self._relays: list[FrontRelay] = []
        self._sockets = ExitStack()
        self._opening: asyncio.Task[None] | None = None
        self._has_files = False
        self._said = ""

    def open(self, runs_cells: Callable[[], bool]) -> None:
        """Answer from now on, as soon as the address is free, and the users of the cluster are known here."""
        if self._opening is None or (self._opening.done() and not self._relays):
            opening = self._open(_Health(runs_cells))
            self._opening = asyncio.create_task(opening, name="API of an idle machine")

    async def close(self) -> None:
        """Answer no more; the address is free then."""
        opening, self._opening = self._opening, None
        if opening is None:
            return
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        if self._relays:
            self._run_file.remove()
            _log.info("api.idle_closed")
        await self._stop_relays()

    async def _stop_relays(self) -> None:
        for relay in self._relays:
            await relay.stop()
        self._relays.clear()
        self._sockets.close()

    async def _open(self, health: _Health) -> None:
        if not self._has_files:
            await files_of_front(self._place, self._data_dir).fetch_first()
            self._has_files = True
        settings = self._settings
        certificate: Any = None
        try:
            if settings.has_tls:
                make = features.load(features.API_CERTIFICATE)
                certificate = make(settings.certfile, settings.keyfile)
            api = local = address_text(*await self._relay(settings.address, health, certificate))
            if settings.has_tls:
                local = address_text(*await self._relay((_LOOPBACK, 0), health))
        except (ConfigError, OSError) as error:  # the next call tries again
            await self._stop_relays()
            if self._said != (said := str(error)):
                self._said = said
                _log.warning("api.idle_not_opened", reason=said)
            return
        self._run_file.write("none", local)
        _log.info("api.idle", api=api)

    async def _relay(
        self, address: tuple[str, int], health: _Health, certificate: Any = None
    ) -> tuple[str, int]:
        listener: socket.socket = features.load(features.API_LISTENER)(*address)
        self._sockets.callback(listener.close)
        most = self._settings.max_connections
        relay = FrontRelay(self._place, health, most, listener, certificate)
        self._relays.append(relay)
        return await relay.start()
