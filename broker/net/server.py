"""The MQTT server as the rest of the product sees it: one object to build, start, ask and stop."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from logging import getLogger
from typing import Final

from broker.auth.access import Access
from broker.connection.connection import SHUTDOWN, Connection
from broker.connection.context import TICK_S, Context
from broker.connection.hub import Hub, ServerSettings
from broker.connection.settings import MqttSettings
from broker.core import reason
from broker.core.cells import Place
from broker.core.clock import Clock
from broker.core.events import Events
from broker.core.origin import UNNAMED, Identity
from broker.core.stage import Gate, Plans, Tap
from broker.net.entrance import Cells
from broker.net.limits import client_limit
from broker.net.listener import check_exposure
from broker.net.listeners import ListenerChanges, Listeners
from broker.net.settings import NamedListener
from broker.observe.alarms import Alarms
from broker.observe.metrics import Metrics
from broker.pipeline.pipeline import Pipeline
from broker.storage.store import LogShard
from broker.storage.writer import Writer
from broker.streams.starts import StreamStarts

_log = getLogger(__name__)

_STOP_POLL_S: Final = 0.02
_LOADED: Final = object()
# Time in which clients are disconnected before others serve them, at most, and in which a group of them is.
_PART_S: Final = 5.0
_PART_STEP_S: Final = 0.05


class Server:
    """Listeners, connections, sessions and the pipeline of one node. Used on the event loop only.

    Gates and taps are set with ``set_stages`` once the features exist, which in turn need ``publisher`` and ``plans``.
    """

    def __init__(
        self,
        *,
        settings: ServerSettings,
        listeners: Sequence[NamedListener],
        writer: Writer,
        session_log: LogShard,
        metrics: Metrics,
        events: Events,
        clock: Clock,
        allow_anonymous: bool = False,
        access: Access | None = None,
        api_connections: int = 0,
        alarms: Alarms | None = None,
        identity: Identity = UNNAMED,
        starts: StreamStarts | None = None,
        place: Place | None = None,
        cells: Cells | None = None,
    ) -> None:
        """Nothing is open before ``start``.

        Args:
            session_log: where messages for persistent sessions wait.
            api_connections: file descriptors to leave to the API.
            starts: where subscriptions begin that ask for the past of a stream.
            place: the cell of this process, None in a broker of one process.
            cells: the way to the other cells, None there.
        """
        self._access = access
        self._allow_anonymous = allow_anonymous
        check_exposure(
            listeners, allow_anonymous=allow_anonymous, has_authenticator=self._has_authenticator
        )
        self._coming: Sequence[NamedListener] = ()
        """Listeners that are being opened."""
        self._loop = asyncio.get_running_loop()
        context = Context(
            settings.mqtt,
            writer=writer,
            metrics=metrics,
            events=events,
            clock=clock,
            defer=self._loop.call_soon,
            later=self._loop.call_later,
            alarms=alarms,
            identity=identity,
            place=place,
        )
        self.hub = Hub(context, settings, session_log, access, starts)
        context.admission.descriptors = client_limit(api_connections)
        context.admission.most = min(context.admission.most, context.admission.descriptors)
        if cells is not None:
            context.admission.relayed = relayed = cells.relayed
            metrics.gauge(
                "cell_connections_relayed",
                lambda: len(relayed),
                "connections of clients of other cells that this one accepted and relays",
            )
        self.listeners = Listeners(listeners, self.hub, metrics, cells)
        self._collector = Collector(self._loop)
        self.is_parting = False
        """True while clients are disconnected, since other machines are to serve them."""
        self.parted = 0
        """Number of clients that are disconnected for that."""
        self.is_loaded = False
        """True once the stored state has been restored; there are no listeners before."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def publisher(self) -> Pipeline:
        """The way into the pipeline for messages that no client sent."""
        return self.hub.pipeline

    @property
    def plans(self) -> Plans:
        """The cache of topic plans, to be invalidated when stages change."""
        return self.hub.plans

    def set_stages(self, gates: Sequence[Gate], taps: Sequence[Tap]) -> None:
        """Use these gates and taps, in this order, from the next message on."""
        self.hub.plans.set_stages(gates, taps)

    def use_settings(self, settings: MqttSettings) -> None:
        """Apply other settings from the next packet on; those of ``FIXED_SETTINGS`` must be unchanged."""
        self.hub.use_settings(settings)
        admission = self.hub.context.admission
        admission.most = min(self.hub.context.most_clients(settings), admission.descriptors)

    async def change_listeners(
        self, named: Sequence[NamedListener], *, drain: bool = False
    ) -> ListenerChanges:
        """Replace the listeners.

        Raises:
            ConfigError: a sentence for everything that is wrong with them; nothing was changed.
            Unavailable: an address is taken; nothing was changed.
        """
        self._check_exposure(named)
        self._coming = named
        try:
            return await self.listeners.change(named, drain=drain)
        finally:
            self._coming = ()

    def check_listeners(self, named: Sequence[NamedListener]) -> None:
        """Check that these listeners could replace the existing ones, apart from addresses in use.

        Raises:
            ConfigError: a sentence for everything that is wrong with them.
        """
        self._check_exposure(named)
        self.listeners.check(named)

    def _check_exposure(self, named: Sequence[NamedListener]) -> None:
        check_exposure(
            named, allow_anonymous=self._allow_anonymous, has_authenticator=self._has_authenticator
        )

    def check_open(self) -> None:
        """Check that the listeners may be without an authenticator.

        Raises:
            ConfigError: a sentence for each that may not.
        """
        listeners = [*self.listeners.named, *self._coming]
        check_exposure(listeners, allow_anonymous=self._allow_anonymous, has_authenticator=False)

    @property
    def _has_authenticator(self) -> bool:
        return self._access is not None and not self._access.authenticators.is_empty

    async def start(
        self, before_open: Callable[[], Awaitable[None]] | None = None
    ) -> list[tuple[str, int]]:
        """Restore what the store holds, then accept connections; returns the addresses in use. ``before_open`` is
        awaited in between.

        Raises:
            broker.core.errors.Unavailable: an address is taken; nothing is left open.
        """
        await self._load()
        if before_open is not None:
            await before_open()
        bound = await self.listeners.open()
        self._tick()
        return bound

    def held(self) -> tuple[int, int]:
        """Number of sessions, and of the messages that are stored for them."""
        return len(self.hub.sessions), self.hub.session_log.records

    async def part(self, rate: int, *, publishes_wills: bool = False) -> None:
        """Accept no more, and disconnect clients at ``rate`` per second, in 5 s at most, but for the last ones, which
        ``stop`` disconnects. Each is served until then, and gets its acknowledgements."""
        self.listeners.close()
        self.is_parting = True
        connections = list(self.hub.connections)
        self.parted = len(connections)
        rate = max(rate, int(len(connections) / _PART_S))
        each = max(1, round(rate * _PART_STEP_S))
        began_s = self._loop.time()
        for first in range(0, len(connections) - each, each):
            group = connections[first : first + each]
            await self._hold(group, began_s + (first + each) / rate)
            for connection in group:
                self._disconnect(connection, is_will_due=publishes_wills)

    async def _hold(self, connections: Sequence[Connection], until_s: float) -> None:
        """Read nothing more from connections until a time, and until they have their acknowledgements."""
        for connection in connections:
            connection.hold(self)
        await asyncio.sleep(until_s - self._loop.time())
        await self._until(
            lambda: not any(c.is_parked or c.answers.batches for c in connections),
            until_s + _PART_STEP_S,
        )

    def _disconnect(self, connection: Connection, *, is_will_due: bool) -> None:
        place = self.hub.context.place
        servers = "" if place is None else place.servers_elsewhere
        code = reason.USE_ANOTHER_SERVER if servers else reason.SERVER_SHUTTING_DOWN
        connection.disconnect(code, SHUTDOWN, is_will_due=is_will_due, server=servers)

    async def stop(self, deadline_s: float = 5.0, *, publishes_wills: bool = False) -> None:
        """Accept no more, finish what is under way, send what waits for the store, disconnect clients (0x8B, or
        0x9C with the other machines).

        What other processes do not decide in half of the time is dropped and counted; clients send it again.

        Wills are not published unless that is asked for: the clients did nothing wrong. Returns when every socket is
        closed, or after ``deadline_s``; the writer and the store stay open for their owner to close.
        """
        self.listeners.close()
        if self._timer is not None:
            self._timer.cancel()
        ends_at = self._loop.time() + deadline_s
        self.hub.context.is_stopping = True
        for connection in self.hub.connections:
            connection.hold(self)
        halfway = self._loop.time() + deadline_s / 2
        await self._until(lambda: not any(c.is_parked for c in self.hub.connections), halfway)
        await self.hub.pipeline.lanes.close(halfway - self._loop.time())
        await self._until(lambda: not any(c.answers.batches for c in self.hub.connections), ends_at)
        for connection in list(self.hub.connections):
            self._disconnect(connection, is_will_due=publishes_wills)
        await self._until(lambda: not self.listeners.links, ends_at)
        await self.hub.access.stop()

    async def _load(self) -> None:
        """Give the loop its turn between the steps: the API answers between them that the node is not ready."""
        started_s = self._loop.time()
        worst_s = 0.0
        steps = self.hub.load()
        with self._collector.restoring():
            while True:
                step_s = self._loop.time()
                if next(steps, _LOADED) is _LOADED:
                    break
                worst_s = max(worst_s, self._loop.time() - step_s)
                await asyncio.sleep(0)
        self.is_loaded = True
        if not (len(self.hub.sessions) or self.hub.retained.count):
            return
        _log.info(
            "node.loaded sessions=%d retained=%d subscriptions=%d took_s=%.2f longest_step_ms=%.1f",
            len(self.hub.sessions),
            self.hub.retained.count,
            self.hub.router.subscription_count,
            self._loop.time() - started_s,
            worst_s * 1000,
        )

    def set_aside(self) -> None:
        """Treat existing objects as permanent, so that garbage collection does not scan them on the loop."""
        self._collector.set_aside()

    def _tick(self) -> None:
        self._timer = self._loop.call_later(TICK_S, self._tick)
        self.hub.tick()
        self._collector.tick(self.hub.context.figures.connected.value)

    async def _until(self, is_done: Callable[[], bool], ends_at: float) -> None:
        while not is_done() and self._loop.time() < ends_at:  # noqa: ASYNC110  only while stopping
            await asyncio.sleep(_STOP_POLL_S)


# New objects from which the collector looks through them: 1 to 2 ms. Publishes that wait for a commit are a dozen each
# and next to never garbage; with Python's 700 it scanned most of them, and every connection again and again.
_YOUNG: Final = 20_000
# Connections after which those that came are set aside; looking through what they are made of takes some 5 ms.
_AT_ONCE: Final = 1000


class Collector:
    """The garbage collector of the process, as one server uses it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        # asyncio's own transports refer to themselves: set aside, they would never go
        self._may_set_aside = type(loop).__module__.startswith("uvloop")
        self._seen = 0

    @contextmanager
    def restoring(self) -> Iterator[None]:
        """Leave it off while sessions are restored, since of them nothing is garbage; then set aside all there is."""
        gc.collect()
        gc.disable()
        try:
            yield
        finally:
            gc.enable()
            gc.set_threshold(_YOUNG, 10, 10)
        gc.freeze()

    def tick(self, connected: int) -> None:
        """Set aside what has come, once it is enough. ``connected`` is the number of clients that ever came."""
        if self._may_set_aside and connected - self._seen >= _AT_ONCE:
            self._seen = connected
            gc.collect()
            gc.freeze()

    def set_aside(self) -> None:
        """Existing objects stay, such as the libraries of the management API: next to nothing of them is garbage."""
        if self._may_set_aside:
            gc.freeze()
