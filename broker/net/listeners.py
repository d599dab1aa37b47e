"""All listeners of a node: checked together, opened, changed and closed; their certificates are kept up to date."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, NamedTuple

from broker.connection.hub import Hub
from broker.core import reason
from broker.core.errors import ConfigError, NotFound, Unavailable
from broker.core.objects import saving
from broker.net.entrance import Cells
from broker.net.limits import LinkOwner
from broker.net.listener import Listener, check_addresses
from broker.net.proxy import Origin
from broker.net.settings import PROTOCOLS, ListenerSettings, NamedListener
from broker.net.tls import TlsContexts
from broker.observe.log import get_logger
from broker.observe.metrics import Metrics

_log = get_logger(__name__)

# Interval of checks for changed certificate files.
CHECK_FILES_S: Final = 5.0
# Settings of a listener that change while its socket stays open.
LIMITS: Final = frozenset(
    (
        "zone",
        "enable_authn",
        "authentication",
        "max_connections",
        "max_conn_rate",
        "max_conn_rate_per_ip",
        "max_publish_rate",
        "max_publish_bytes_rate",
    )
)

State = Literal["running", "stopped"]


@dataclass(frozen=True, slots=True)
class ListenerStatus:
    """A listener in the form that is shown to users."""

    id: str
    name: str
    protocol: str
    """The scheme of its address: ``mqtt``, ``mqtts``, ``ws``, ``wss``."""
    state: State
    address: tuple[str, int] | None
    """Address of the open socket, None while it is closed."""
    connections: int
    max_connections: int
    """0 is no limit."""
    zone: str
    certificate_expires: datetime | None
    """When the first of its certificates ends."""


@dataclass(frozen=True, slots=True)
class ListenerChanges:
    """Result of a change, by identifier."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


class _Parted(NamedTuple):
    """Listeners by identifier: those that close, those that stay unchanged, those whose limits change while their
    sockets stay open, and those that are opened again."""

    gone: dict[str, Listener]
    stays: dict[str, Listener]
    tuned: dict[str, Listener]
    replaced: dict[str, Listener]


class Listeners:
    """The listeners of a node.

    Raises:
        ConfigError: when it is made, a sentence for everything that keeps one of them from being opened.
    """

    def __init__(
        self,
        named: Sequence[NamedListener],
        hub: Hub,
        metrics: Metrics,
        cells: Cells | None = None,
    ) -> None:
        """``cells`` is the way to the other cells, None in a broker of one process."""
        check_addresses(named)
        self._cells = cells
        self._hub = hub
        self._metrics = metrics
        self._all = {
            listener.named.id: listener
            for listener in self._built((listener_name, None) for listener_name in named)
        }
        self._left: set[LinkOwner] = set()
        """Owners of removed listeners, while they have connections."""
        self._is_reload_asked = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()

    @property
    def named(self) -> Sequence[NamedListener]:
        """Their settings, of those that were stopped too."""
        return [listener.named for listener in self._all.values()]

    async def open(self) -> list[tuple[str, int]]:
        """Accept connections; returns the addresses in use, in the order given.

        Raises:
            broker.core.errors.Unavailable: an address is taken; nothing is left open.
        """
        try:
            bound = [await listener.open() for listener in self._all.values()]
        except BaseException:
            self.close()
            raise
        self._watch_files()
        return bound

    def close(self) -> None:
        """Accept no more; connections stay."""
        for listener in self._all.values():
            listener.close()
        if self._watching is not None:
            self._watching.cancel()

    async def change(
        self, named: Sequence[NamedListener], *, drain: bool = False
    ) -> ListenerChanges:
        """Replace the listeners; on an error the old ones stay.

        Connections of listeners that stay live on, also where the address or the certificate is another now; those of
        listeners that go are disconnected (0x98), unless they are to ``drain``. A listener that was stopped
        stays so.

        Raises:
            ConfigError: a sentence for everything that is wrong with them.
            Unavailable: an address is taken.
        """
        async with self._changing:
            try:
                return await self._change(named, drain=drain)
            except BaseException:
                self._forget_figures(str(listener) for listener in named)
                raise

    def check(self, named: Sequence[NamedListener]) -> None:
        """Find what keeps these from being opened, the files of TLS that are new among it.

        Raises:
            ConfigError: a sentence for everything that is wrong with them.
        """
        check_addresses(named)
        self._check_authentication(named)
        problems: list[str] = []
        for listener in named:
            existing = self._all.get(listener.id)
            if listener.settings.tls is None or (
                existing is not None and existing.settings.tls == listener.settings.tls
            ):
                continue
            try:
                TlsContexts(str(listener), listener.settings.tls, "mqtt")
            except ConfigError as error:
                problems += error.problems
        if problems:
            raise ConfigError(problems)

    def changes(self, named: Sequence[NamedListener]) -> ListenerChanges:
        """Return what ``change`` would do. Raises as ``check``."""
        self.check(named)
        parted = self._parted(named)
        kept = {*parted.stays, *parted.tuned, *parted.replaced}
        added = tuple(listener.id for listener in named if listener.id not in kept)
        return ListenerChanges(added, tuple(parted.gone), (*parted.tuned, *parted.replaced))

    def _check_authentication(self, named: Sequence[NamedListener]) -> None:
        """Find authenticators of listeners that cannot be used. Raises ``ConfigError``."""
        for listener in named:
            self._hub.access.check_listener(listener.settings.authentication)

    async def start(self, id: str) -> None:
        """Open a listener that was stopped.

        Raises:
            NotFound: there is no such listener, or it is not enabled.
            Unavailable: its address is taken.
        """
        async with self._changing:
            listener = self._find(id)
            saving(not listener.is_open)
            if not listener.is_open:
                await listener.reopen()
                _log.info("listener.started", listener=id, bind=listener.settings.bind)

    async def stop(self, id: str, *, drain: bool = False) -> None:
        """Close a listener until it is started again; its connections are disconnected (0x98), or stay with ``drain``.

        Raises:
            NotFound: there is no such listener.
        """
        async with self._changing:
            listener = self._find(id)
            saving()
            listener.close()
            if not drain:
                listener.owner.dismiss(reason.ADMINISTRATIVE_ACTION, "listener_stopped")
            _log.info("listener.stopped", listener=id, drain=drain)

    async def adopt(
        self, id: str | None, link: socket.socket, host: str | None, port: int | None
    ) -> None:
        """Serve a local socket as a connection of a listener, without ``id`` of the first that is open and takes
        clients without a certificate.

        Raises:
            NotFound: there is no such listener.
            Unavailable: it takes no connection now, or only with a certificate.
        """
        if id is not None:
            candidates = [self._find(id)]
        else:
            candidates = list(self._all.values())
        for listener in candidates:
            if listener.is_open and not listener.needs_certificates:
                await listener.adopt(link, host, port)
                return
        if id is None:
            raise Unavailable("no listener is open that takes clients without a certificate")
        raise Unavailable(f"listener {id!r} is stopped, or takes clients with a certificate only")

    def link_maker(self, id: str, origin: Origin) -> Callable[[], asyncio.Protocol] | None:
        """Function that makes the link of a connection that another cell has accepted; None where this cell has no such
        listener now."""
        listener = self._all.get(id)
        return None if listener is None or not listener.is_open else listener.link_maker(origin)

    @property
    def links(self) -> int:
        """Sockets open on all listeners, those among them that are gone."""
        return sum(listener.links for listener in self._all.values()) + sum(
            len(owner.links) for owner in self._left
        )

    def statuses(self) -> list[ListenerStatus]:
        """All listeners that are enabled, in the order given."""
        return [_status(listener) for listener in self._all.values()]

    def reload_certificates(self) -> None:
        """Read the files of certificates again, soon; connections that are there keep theirs."""
        self._is_reload_asked.set()

    # -- changing --

    async def _change(self, named: Sequence[NamedListener], *, drain: bool) -> ListenerChanges:
        check_addresses(named)
        self._check_authentication(named)
        wanted = {listener.id: listener for listener in named}
        gone, stays, tuned, replaced = self._parted(named)
        fresh = self._built(
            (listener, replaced[listener.id].owner if listener.id in replaced else None)
            for listener in named
            if listener.id not in stays and listener.id not in tuned
        )
        await self._swap([*gone.values(), *replaced.values()], fresh)
        for id, listener in tuned.items():
            listener.retune(wanted[id])
        listeners = {**stays, **tuned, **{listener.named.id: listener for listener in fresh}}
        self._all = {id: listeners[id] for id in wanted}
        self._part_with([old.owner for old in gone.values()], drain=drain)
        self._watch_files()
        new = tuple(listener.named.id for listener in fresh if listener.named.id not in replaced)
        return ListenerChanges(new, tuple(gone), (*tuned, *replaced))

    def _parted(self, named: Sequence[NamedListener]) -> _Parted:
        """Sort the existing listeners by the effect that a change to these has on each."""
        wanted = {listener.id: listener for listener in named}
        parted = _Parted({}, {}, {}, {})
        for id, old in self._all.items():
            if id not in wanted or wanted[id].name != old.named.name:
                part = parted.gone
            elif old.settings == wanted[id].settings:
                part = parted.stays
            elif _differ_in_limits(old.settings, wanted[id].settings):
                part = parted.tuned
            else:
                part = parted.replaced
            part[id] = old
        return parted

    async def _swap(self, old: Sequence[Listener], fresh: Sequence[Listener]) -> None:
        """Close these and open those, but for those that come in place of a stopped one; all or nothing."""
        were_open = [listener for listener in old if listener.is_open]
        stopped = {listener.named.id for listener in old if not listener.is_open}
        for listener in were_open:
            listener.close()
        try:
            for listener in fresh:
                if listener.named.id not in stopped:
                    await listener.reopen()
        except BaseException:
            for listener in fresh:
                listener.close()
            for listener in were_open:
                await listener.reopen()
            raise

    def _part_with(self, owners: Sequence[LinkOwner], *, drain: bool) -> None:
        self._left = {owner for owner in self._left if owner.links}
        for owner in owners:
            self._hub.access.displace(owner.name)
            if not drain:
                owner.dismiss(reason.ADMINISTRATIVE_ACTION, "listener_removed")
            if owner.links:
                self._left.add(owner)
        self._forget_figures(owner.name for owner in owners)

    def _forget_figures(self, names: Iterable[str]) -> None:
        """Show no metrics of listeners that there are not."""
        for name in set(names).difference(str(listener.named) for listener in self._all.values()):
            self._metrics.remove(listener=name)

    def _built(self, named: Iterable[tuple[NamedListener, LinkOwner | None]]) -> list[Listener]:
        built: list[Listener] = []
        problems: list[str] = []
        for listener, owner in named:
            try:
                built.append(Listener(listener, self._hub, self._metrics, owner, self._cells))
            except ConfigError as error:
                problems += error.problems
        if problems:
            raise ConfigError(problems)
        return built

    def _find(self, id: str) -> Listener:
        listener = self._all.get(id)
        if listener is None:
            raise NotFound("listener", id, "'sluice listeners list' shows all")
        return listener

    def _watch_files(self) -> None:
        if self._watching is None and any(
            listener.tls is not None for listener in self._all.values()
        ):
            self._watching = asyncio.create_task(self._watch(), name="watch certificates")

    async def _watch(self) -> None:
        """Files are read on a thread: they may be large, or on another machine."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_FILES_S):
                    await self._is_reload_asked.wait()
            is_asked = self._is_reload_asked.is_set()
            self._is_reload_asked.clear()
            for listener in list(self._all.values()):
                if listener.tls is not None:
                    await asyncio.to_thread(listener.tls.refresh, is_asked=is_asked)


def _differ_in_limits(old: ListenerSettings, new: ListenerSettings) -> bool:
    """True if nothing but limits differs."""
    return old.model_dump(exclude=set(LIMITS)) == new.model_dump(exclude=set(LIMITS))


def _status(listener: Listener) -> ListenerStatus:
    settings = listener.settings
    tls = listener.tls
    return ListenerStatus(
        listener.named.id, listener.named.name, PROTOCOLS[settings.kind],
        "running" if listener.is_open else "stopped", listener.address, listener.connections,
        settings.max_connections, settings.zone, None if tls is None else tls.expires,
    )  # fmt: skip
