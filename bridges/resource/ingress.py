"""One source: what a connector brings in, as messages on topics and as what rules read with ``$bridges/<type>:<name>``.

Records are taken in order, and acknowledged towards the outside system once everything they led to is committed. Those
with a position are taken once: the last position of each shard is kept in the commit group of what its record led to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from bridges.resource.action import Line, State
from bridges.resource.backoff import Backoff
from bridges.resource.contract import Feed, Incoming, Source
from bridges.resource.errors import BridgeError, ReconnectFirst, TargetMissing, TargetUnusable, TryAgain, understood
from bridges.resource.figures import SOURCE_LABEL, rates
from bridges.resource.options import SourceOptions
from bridges.resource.waiting import ended
from broker.core.action import CONNECTED, CONNECTING, DISABLED, DISCONNECTED, STOPPED
from broker.core.client import Client
from broker.core.feature import Services
from broker.core.message import Message
from broker.core.stage import Outcome, Refusal
from broker.observe.counter_rates import CounterRate
from broker.observe.log import get_logger
from broker.observe.metrics import Counter

_log = get_logger(__name__)

POSITIONS: Final = "bridges/positions/"
_CONGESTED_S: Final = 0.02
"""Pause of a source while the store has more to write than it may."""
_FIRST_PAUSE_S: Final = 0.2
_COUNTERS: Final = {
    "received": "records that a source brought in",
    "success": "of those, the ones that are taken and committed",
    "duplicates": "records that came again and were left out",
    "refused": "messages of a source that a stage of the pipeline refused",
    "failed": "records that could not be taken and are handed over again",
}


class SourceFigures:
    """What one source did."""

    def __init__(self, services: Services, name: str) -> None:
        self._counters: dict[str, Counter] = {}
        for what, help in _COUNTERS.items():
            made = services.monitoring.metrics.counter(f"source_{what}", help, **{SOURCE_LABEL: name})
            made.value = 0
            self._counters[what] = made
        self.received, self.success = self._counters["received"], self._counters["success"]
        self.duplicates, self.refused = self._counters["duplicates"], self._counters["refused"]
        self.failed = self._counters["failed"]
        self.rate = CounterRate()

    def sample(self, now_s: float) -> None:
        """Take a sample for the rates."""
        self.rate.note(self.received.value, now_s)

    def reset(self) -> None:
        """Begin anew."""
        for counter in self._counters.values():
            counter.value = 0
        self.rate.reset()

    def as_dict(self) -> dict[str, Any]:
        """Counters and rates."""
        return {**{name: counter.value for name, counter in self._counters.items()}, **rates(self.rate)}


class Ingress(Feed):
    """One source: publishes what its connector brings in.

    ``name`` is ``<type>:<name>``. A member of its connector's owner.
    """

    def __init__(self, name: str, services: Services) -> None:
        self.name = name
        self.figures = SourceFigures(services, name)
        self.line: Line | None = None
        self.is_enabled = True
        self.last_error: dict[str, Any] | None = None
        self.options = SourceOptions()
        self._services, self._client = services, Client(name)
        self._make_source: Callable[[], Source]
        self._hide: Callable[[str], str] = str
        self._stopped = ""
        self._state: State = (CONNECTING, "")
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._deciding: set[asyncio.Task[None]] = set()
        self._handed: dict[str, int] = {}
        """The position of the last record of each shard that was taken in this process."""

    @property
    def key(self) -> str:
        """Tells it from an action of the same name."""
        return f"source {self.name}"

    def equip(self, options: SourceOptions, make_source: Callable[[], Source], hide: Callable[[str], str]) -> None:
        """Settings as they are from now on."""
        self.options, self._make_source, self._hide = options, make_source, hide

    # States

    @property
    def state(self) -> str:
        """The state, without its reason."""
        return self.status[0]

    @property
    def status(self) -> State:
        """State and reason; never better than the connector's."""
        if not self.is_enabled:
            return DISABLED, ""
        if self._stopped:
            return STOPPED, self._stopped
        if self.line is None:
            return DISCONNECTED, "its connector is not there"
        connector = self.line.state
        if connector[0] != CONNECTED:
            return connector[0], f"connector: {connector[1]}" if connector[1] else ""
        if self.is_paused:
            return self._state[0], self._state[1] or "paused: nothing is read"
        return self._state

    @property
    def is_paused(self) -> bool:
        """Whether it reads nothing for now."""
        return not self._resumed.is_set()

    def begin(self) -> None:
        """Whoever stopped it starts it."""
        self._stopped = ""

    def halt(self, reason: str) -> None:
        """It is stopped; the owner ends ``serve``."""
        self._stopped = reason

    def pause(self) -> None:
        """Read nothing, and stay connected."""
        self._resumed.clear()

    def resume(self) -> None:
        """Read again."""
        self._resumed.set()

    async def serve(self) -> None:
        """Read until cancelled, and begin again when the source ends."""
        assert self.line is not None
        epoch, options = self.line.epoch, self.options
        backoff = Backoff(_FIRST_PAUSE_S, options.health_check_interval)
        watching = asyncio.create_task(self._watch(epoch), name=f"watch over {self.name}")
        try:
            while True:
                self._handed.clear()
                before = self.figures.success.value
                try:
                    source = self._make_source()
                    await source.check()
                    self._state = CONNECTED, ""
                    await source.run(self)
                    self._unwell(ReconnectFirst("the source ended by itself"), epoch)
                except Exception as error:  # noqa: BLE001 - whatever a connector raises is its state
                    self._unwell(understood(error), epoch)
                if self.figures.success.value > before:
                    backoff.reset()
                await asyncio.sleep(backoff.pause_s())
        finally:
            await ended(watching)

    async def _watch(self, epoch: int) -> None:
        """What came in says that the connection works."""
        seen = self.figures.received.value
        while True:
            await asyncio.sleep(self.options.health_check_interval / 2)
            if self.line is not None and self.figures.received.value != seen:
                seen = self.figures.received.value
                self.line.proved()

    def _unwell(self, error: BridgeError, epoch: int) -> None:
        reason = self._hide(str(error))
        self.last_error = {"text": reason, "time_ms": self._services.node.clock.now_ns() // 1_000_000}
        if isinstance(error, (TargetMissing, TargetUnusable)):
            self._state = DISCONNECTED, f"unhealthy target: {reason}"
        else:
            self._state = CONNECTING if isinstance(error, TryAgain) else DISCONNECTED, reason
        if isinstance(error, ReconnectFirst) and self.line is not None:
            self.line.broken(reason, epoch)

    # What the source hands over (``contract.Feed``)

    @property
    def is_read(self) -> bool:
        """See ``Feed``."""
        return self._services.messaging.events.wants_from(self.name)

    def hand_over(self, records: Sequence[Incoming], done: Callable[[BaseException | None], None]) -> None:
        """See ``Feed``."""
        self.figures.received.value += len(records)
        fresh = [record for record in records if self._is_fresh(record)]
        self.figures.duplicates.value += len(records) - len(fresh)
        waiting = self._take(fresh)
        for record in fresh:
            if record.position is not None:
                self._services.storage.values.put(self._key(record.shard), b"%d" % record.position)

        def told(error: BaseException | None) -> None:
            if error is None:
                self.figures.success.value += len(fresh)
            else:
                self.figures.failed.value += len(fresh)
                self._handed.clear()
            done(error)

        if waiting:
            task = asyncio.create_task(self._when_decided(waiting, told), name=f"records of {self.name}")
            self._deciding.add(task)
            task.add_done_callback(self._deciding.discard)
        else:
            self._services.storage.values.when_committed(told)

    async def deliver(self, records: Sequence[Incoming]) -> None:
        """See ``Feed``."""
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: BaseException | None) -> None:
            if over.done():
                return
            if error is None:
                over.set_result(None)
            else:
                over.set_exception(error)

        self.hand_over(records, done)
        await over

    async def ready(self) -> None:
        """See ``Feed``."""
        await self._resumed.wait()
        while self._services.storage.values.is_congested:  # noqa: ASYNC110 - only clients are told when that is over
            await asyncio.sleep(_CONGESTED_S)

    def position_of(self, shard: str) -> int | None:
        """See ``Feed``."""
        found = self._services.storage.values.get(self._key(shard))
        return None if found is None else int(found)

    def begin_anew(self, shard: str) -> None:
        """See ``Feed``."""
        self._handed.pop(shard, None)
        self._services.storage.values.put(self._key(shard), None)

    def forget(self) -> None:
        """The source is deleted: its positions are no more."""
        for key in self._services.storage.values.names(f"{POSITIONS}{self.name}/"):
            self._services.storage.values.put(key, None)

    def _key(self, shard: str) -> str:
        return f"{POSITIONS}{self.name}/{shard}"

    def _is_fresh(self, record: Incoming) -> bool:
        """Whether a record was not taken yet; it is noted as taken."""
        if record.position is None:
            return True
        last = self._handed.get(record.shard)
        if last is None:
            kept = self.position_of(record.shard)
            last = -1 if kept is None else kept
        if record.position <= last:
            return False
        self._handed[record.shard] = record.position
        return True

    def _take(self, records: Sequence[Incoming]) -> list[tuple[Incoming, Awaitable[Outcome]]]:
        """Raise the events and publish; the records about which a gate asks another process."""
        services, name = self._services, self.name
        waiting: list[tuple[Incoming, Awaitable[Outcome]]] = []
        came_in = services.messaging.events.came_in if self.is_read else None
        for record in records:
            if came_in is not None:
                came_in(name, record.columns)
            if not record.topic:
                continue
            outcome = services.messaging.publisher.publish(
                Message(
                    record.topic,
                    record.payload,
                    record.qos,
                    record.retain,
                    self._client,
                    services.node.clock.now_ns(),
                    record.properties,
                )
            )
            if outcome.refusal is not None:
                self._note(record, outcome.refusal)
            elif outcome.is_waiting:
                record.is_waiting = True
                waiting.append((record, services.messaging.publisher.decided(record.topic)))
        return waiting

    async def _when_decided(
        self, waiting: Sequence[tuple[Incoming, Awaitable[Outcome]]], told: Callable[[BaseException | None], None]
    ) -> None:
        for record, decided in waiting:
            outcome = await decided
            if outcome.refusal is not None:
                self._note(record, outcome.refusal)
        self._services.storage.values.when_committed(told)

    def _note(self, record: Incoming, refusal: Refusal) -> None:
        self.figures.refused.value += 1
        record.refused = f"{refusal.stage} '{refusal.name}': {refusal.text}"
