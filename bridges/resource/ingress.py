"""One source: what a connector brings in, as messages on topics and as what rules read with ``$bridges/<type>:<name>``.

Records are taken in order, and acknowledged towards the outside system once everything they led to is committed. Those
with a position are taken once: the last position of each shard is kept in the commit group of the record's results.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from bridges.resource.contract import Feed, Incoming, Lag, Source
from bridges.resource.errors import BridgeError, ReconnectFirst, understood
from bridges.resource.figures import SourceFigures
from bridges.resource.specs import SourceSpec
from bridges.resource.supervisor import Member
from bridges.resource.tasks import Backoff, ended, future_of_done, own_store
from broker.core.action import CONNECTED
from broker.core.client import Client
from broker.core.feature import Services
from broker.core.message import Message
from broker.core.receipt import Receipt
from broker.core.stage import Outcome, Refusal, Room
from broker.core.values import Done

POSITIONS: Final = "bridges/positions/"
# Pause of a source while the store has more to write than it may.
_CONGESTED_S: Final = 0.02
_FIRST_PAUSE_S: Final = 0.2


def position_key(source: str, shard: str) -> str:
    """Key of the position of a source in a shard."""
    return f"{POSITIONS}{source}/{shard}"


class Ingress(Member, Feed):
    """One source: publishes what its connector brings in."""

    kind = "source"
    pause_means = "paused: nothing is read"
    spec: SourceSpec
    figures: SourceFigures

    def __init__(self, spec: SourceSpec, services: Services) -> None:
        super().__init__(spec.id, services.node.clock)
        self.spec = spec
        self.figures = SourceFigures(services.monitoring.metrics, spec.id, self._lag)
        self._services, self._client = services, Client(spec.id)
        self._source: Source | None = None
        """The one that reads."""
        self._make_source: Callable[[], Source]
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._deciding: set[asyncio.Task[None]] = set()
        self._handed: dict[str, int] = {}
        """The position of the last record of each shard that was taken in this process."""
        self._given: dict[str, int] = {}
        """That of the last one that could not be committed: subscribers without a session on disk have it."""

    def equip(
        self, spec: SourceSpec, make_source: Callable[[], Source], hide: Callable[[str], str]
    ) -> None:
        """Settings from now on."""
        self.spec = spec
        self._make_source = make_source
        self._hide = hide

    def pause(self) -> None:
        """Read nothing, and stay connected."""
        super().pause()
        self._resumed.clear()

    def resume(self) -> None:
        """Read again."""
        super().resume()
        self._resumed.set()

    async def serve(self) -> None:
        """Read until cancelled, and begin again when the source ends."""
        assert self.supervisor is not None
        epoch = self.supervisor.epoch
        options = self.spec.resource_opts
        backoff = Backoff(_FIRST_PAUSE_S, options.health_check_interval)
        watching = asyncio.create_task(self._watch(epoch), name=f"watch over {self.name}")
        try:
            while True:
                self._handed.clear()
                before = self.figures.success.value
                try:
                    if self._services.node.moves:
                        await own_store(self._services.storage.values)
                    source = self._make_source()
                    await source.check()
                    self._source = source
                    self._state = (CONNECTED, "")
                    await source.run(self)
                    self._unwell(ReconnectFirst("the source ended without an error"), epoch)
                except Exception as error:  # noqa: BLE001 - whatever a connector raises is its state
                    self._unwell(understood(error), epoch)
                finally:
                    self._source = None
                if self.figures.success.value > before:
                    backoff.reset()
                await asyncio.sleep(backoff.pause_s())
        finally:
            await ended(watching)

    async def _watch(self, epoch: int) -> None:
        """Take incoming records as proof that the connection works."""
        seen = self.figures.received.value
        while True:
            await asyncio.sleep(self.spec.resource_opts.health_check_interval / 2)
            if self.supervisor is not None and self.figures.received.value != seen:
                seen = self.figures.received.value
                self.supervisor.proved()

    def _unwell(self, error: BridgeError, epoch: int) -> None:
        self._note(error)
        super()._unwell(error, epoch)

    # Records that the source hands over (``contract.Feed``)

    @property
    def is_read(self) -> bool:
        """See ``Feed``."""
        return self._services.messaging.events.wants_from(self.name)

    def hand_over(self, records: Sequence[Incoming], done: Done) -> None:
        """See ``Feed``."""
        self.figures.received.value += len(records)
        fresh = [record for record in records if self._is_fresh(record)]
        self.figures.duplicates.value += len(records) - len(fresh)
        waiting, rooms = self._take(fresh)
        for record in fresh:
            if record.position is not None:
                self._services.storage.values.put(self._key(record.shard), b"%d" % record.position)

        def committed(error: BaseException | None) -> None:
            if error is None:
                self.figures.success.value += len(fresh)
            else:
                self.figures.failed.value += len(fresh)
                self._handed.clear()
                self._note_given(fresh)
            done(error)

        if waiting or rooms:
            task = asyncio.create_task(
                self._when_decided(waiting, rooms, committed), name=f"records of {self.name}"
            )
            self._deciding.add(task)
            task.add_done_callback(self._deciding.discard)
        else:
            self._services.storage.values.when_committed(committed)

    async def deliver(self, records: Sequence[Incoming]) -> None:
        """See ``Feed``."""
        committed, done = future_of_done()
        self.hand_over(records, done)
        await committed

    async def ready(self) -> None:
        """See ``Feed``."""
        await self._resumed.wait()
        while self._services.storage.values.is_congested:  # noqa: ASYNC110 - the store notifies clients only
            await asyncio.sleep(_CONGESTED_S)

    def position_of(self, shard: str) -> int | None:
        """See ``Feed``."""
        position = self._services.storage.values.get(self._key(shard))
        return None if position is None else int(position)

    def begin_anew(self, shard: str) -> None:
        """See ``Feed``."""
        self._handed.pop(shard, None)
        self._given.pop(shard, None)
        self._services.storage.values.put(self._key(shard), None)

    def forget(self) -> None:
        """The source is deleted: its positions are no more."""
        self._given.clear()
        for key in self._services.storage.values.names(f"{POSITIONS}{self.name}/"):
            self._services.storage.values.put(key, None)

    def _lag(self) -> Lag | None:
        return None if self._source is None else self._source.lag

    def _key(self, shard: str) -> str:
        return position_key(self.name, shard)

    def _is_fresh(self, record: Incoming) -> bool:
        """Return whether a record was not taken yet; it is noted as taken."""
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

    def _note_given(self, records: Sequence[Incoming]) -> None:
        for record in records:
            if record.position is not None:
                last = self._given.get(record.shard, -1)
                self._given[record.shard] = max(last, record.position)

    def _was_given(self, record: Incoming) -> bool:
        return record.position is not None and record.position <= self._given.get(record.shard, -1)

    def _take(
        self, records: Sequence[Incoming]
    ) -> tuple[list[tuple[Incoming, Awaitable[Outcome]]], list[tuple[Incoming, Room]]]:
        """Raise the events and publish; the records about which a gate asks another process, and what to wait for until
        slow subscribers have room."""
        services = self._services
        name = self.name
        waiting: list[tuple[Incoming, Awaitable[Outcome]]] = []
        rooms: list[tuple[Incoming, Room]] = []
        came_in = services.messaging.events.came_in if self.is_read else None
        for record in records:
            if came_in is not None:
                came_in(name, record.columns)
            if not record.topic:
                continue
            message = Message(
                record.topic,
                record.payload,
                record.qos,
                record.retain,
                self._client,
                services.node.clock.now_ns(),
                record.properties,
                receipt=Receipt(is_again=self._was_given(record)),
            )
            outcome, room = services.messaging.with_room(
                services.messaging.publisher.publish, message
            )
            if room is not None:
                rooms.append((record, room))
            if outcome.refusal is not None:
                self._refused(record, outcome.refusal)
            elif outcome.is_waiting:
                record.is_waiting = True
                waiting.append((record, services.messaging.publisher.decided(record.topic)))
        return waiting, rooms

    async def _when_decided(
        self,
        waiting: Sequence[tuple[Incoming, Awaitable[Outcome]]],
        rooms: Sequence[tuple[Incoming, Room]],
        done: Done,
    ) -> None:
        for record, decided in waiting:
            outcome = await decided
            if outcome.refusal is not None:
                self._refused(record, outcome.refusal)
        for record, room in rooms:
            refusal = await room
            if refusal is not None:
                self._refused(record, refusal)
        self._services.storage.values.when_committed(done)

    def _refused(self, record: Incoming, refusal: Refusal) -> None:
        self.figures.refused.value += 1
        record.refused = f"{refusal.stage} '{refusal.name}': {refusal.text}"
