"""The connectors, actions and sources of a node while it runs: made from specs, joined, changed and taken away.

No configuration and no API here: see ``connectors``, ``actions`` and ``sources``. What a change leads to (closing,
connecting) is done beside whoever makes it, in order for each object.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from bridges.resource.action import Action
from bridges.resource.aftermath import Fallbacks, fallback_calls
from bridges.resource.batch import Pace
from bridges.resource.buffer import Bounds, DiskBuffer, MemoryBuffer
from bridges.resource.buffer_ids import BufferIds
from bridges.resource.chores import Chores
from bridges.resource.contract import Connector, ConnectorType, Context, Sink, Source
from bridges.resource.dead_letters import DeadLetters
from bridges.resource.errors import NeverAgain, ReconnectFirst
from bridges.resource.figures import ActionFigures
from bridges.resource.ingress import Ingress
from bridges.resource.item import Item
from bridges.resource.owner import Member, Owner
from bridges.resource.registry import Registry
from bridges.resource.secret import hider
from bridges.resource.specs import ActionSpec, ConnectorSpec, SourceSpec
from broker.config.ssrf import AddressGuard
from broker.core.action import DISABLED, STOPPED, Row
from broker.core.errors import Invalid, Problem, SluiceError
from broker.core.feature import Services
from broker.core.message import Message
from broker.observe.log import get_logger

_log = get_logger(__name__)

BUFFERS: Final = "actions/"
_BIG: Final = 1 << 62
"""Bounds of a queue whose bounds are the buffer's."""
_FLUSH_S: Final = 5.0
"""How long the end of the broker waits for rows in memory to be sent."""


@dataclass(slots=True)
class RunningAction:
    """An action with what belongs to it."""

    spec: ActionSpec
    action: Action
    letters: DeadLetters
    fallbacks: Fallbacks


@dataclass(slots=True)
class RunningSource:
    """A source with what belongs to it."""

    spec: SourceSpec
    ingress: Ingress


def _move(items: Iterable[Item], action: Action) -> None:
    """Put rows that were in memory into an action's buffer on disk. Those on the way are sent again from there."""
    for item in items:
        item.is_done = True  # the answer to it, where one comes, is a late one
        try:
            action.buffer.put(item.row, item.message, item.settle, item.is_fallback)
        except SluiceError as error:
            action.failed((item,), NeverAgain(str(error)))


class Hub:
    """The running connectors, actions and sources of a node. Used on the event loop."""

    def __init__(self, services: Services, registry: Registry, guard: AddressGuard) -> None:
        self.services, self.registry, self.guard = services, registry, guard
        self.chores = Chores()
        self.buffer_ids = BufferIds(services)
        self.owners: dict[str, Owner] = {}
        """Connectors by name."""
        self.actions: dict[str, RunningAction] = {}
        """Actions by name."""
        self.sources: dict[str, RunningSource] = {}
        """Sources by name."""
        self.connector_specs: dict[str, ConnectorSpec] = {}
        self.is_running = False

    # Connectors

    def put_connector(self, spec: ConnectorSpec) -> None:
        """Make a connector, or change one: its connection is made anew."""
        owner = self.owners.get(spec.name)
        if owner is None:
            owner = self.owners[spec.name] = Owner(spec.id, spec.resource_opts, self.services.node.clock)
        self.connector_specs[spec.name] = spec
        hide = hider(spec.parameters)
        owner.equip(spec.resource_opts, partial(self.make_connector, spec, owner.lost, owner.memory), hide)
        if self.is_running:
            self.chores.add(spec.id, partial(self._restart_connector, spec))

    async def _restart_connector(self, spec: ConnectorSpec) -> None:
        owner = self.owners.get(spec.name)
        if owner is None:
            return
        await owner.end()
        if not spec.enable:
            await owner.disable()
        elif spec.resource_opts.start_after_created:
            owner.start()
        else:
            await owner.stop("not started: start_after_created is off")

    async def switch_connector(self, name: str, *, on: bool) -> None:
        """Start or stop it; after what else is to be done with it."""
        owner = self.owners[name]

        async def switch() -> None:
            if on:
                owner.start()
            else:
                await owner.stop()

        await self.chores.add(owner.name, switch)

    def remove_connector(self, name: str) -> None:
        """Disconnect and forget it. Nothing uses it any more."""
        owner = self.owners.pop(name)
        spec = self.connector_specs.pop(name)
        if self.is_running:
            self.chores.add(spec.id, owner.end)

    def make_connector(
        self,
        spec: ConnectorSpec,
        lost: Callable[[str], None] = lambda _reason: None,
        memory: dict[str, Any] | None = None,
    ) -> Connector:
        """A connector of a spec, not opened."""
        kind = self.registry.get(spec.type)
        context = self.context(spec.id, spec.resource_opts.health_check_timeout, lost)
        return kind.make(spec.parameters, context if memory is None else replace(context, memory=memory))

    def context(self, name: str, timeout_s: float, lost: Callable[[str], None] = lambda _reason: None) -> Context:
        """What connectors, sinks and sources are given."""
        return Context(name, self.services, self.guard, timeout_s, lost)

    # Actions

    def put_action(self, spec: ActionSpec) -> None:
        """Make an action, or change one: what waits in its buffer stays.

        Raises:
            Invalid: the buffer cannot be kept as the spec wants it; a fallback cannot be used.
        """
        calls = fallback_calls(spec, self.services)
        kind = self.registry.get(spec.type)
        running = self.actions.get(spec.name)
        if running is None:
            running = self._new_action(spec)
        action, options = running.action, spec.resource_opts
        self._fit_buffer(running, spec)
        running.spec, running.letters.options = spec, spec.dead_letters
        running.fallbacks.calls = calls
        action.is_enabled = spec.enable
        make_sink = partial(self._make_sink, spec)
        action.equip(options, _pace(spec, kind), make_sink, partial(self._hidden, spec))
        self.actions[spec.name] = running
        self.services.endpoints.sinks.add(action)
        if self.is_running:
            self.chores.add(action.key, partial(self._restart_action, running))

    def _new_action(self, spec: ActionSpec) -> RunningAction:
        services = self.services
        letters = DeadLetters(spec.id, spec.dead_letters, services.storage.queues, services.node.clock)
        fallbacks = Fallbacks(spec.id, letters)
        figures = partial(ActionFigures, services.monitoring.metrics, spec.id)
        action = Action(spec.id, spec.resource_opts, figures, services.node.clock, fallbacks)
        fallbacks.figures = action.figures
        letters.when_lost = action.figures.dead_letters_lost
        return RunningAction(spec, action, letters, fallbacks)

    def _fit_buffer(self, running: RunningAction, spec: ActionSpec) -> None:
        action, options = running.action, spec.resource_opts
        bounds = Bounds(options.max_buffer_records, options.max_buffer_bytes, options.overflow == "drop_oldest")
        before = getattr(action, "buffer", None)
        clock, dropped = self.services.node.clock, partial(_dropped, action)
        if options.is_on_disk and not isinstance(before, DiskBuffer):
            queue = self.services.storage.queues.open(BUFFERS + spec.id, max_records=_BIG, max_bytes=_BIG)
            action.buffer = DiskBuffer(bounds, clock, dropped, queue, self.buffer_ids.of(spec.id))
            if isinstance(before, MemoryBuffer):
                action.buffer.bounds = Bounds(_BIG, _BIG, True)  # none of those that wait is lost by the move
                _move(before.all_items(), action)
            else:
                action.figures.matched.value += queue.records
        elif not options.is_on_disk and not isinstance(before, MemoryBuffer):
            if isinstance(before, DiskBuffer) and before.queue.records:
                text = f"{before.queue.records} rows wait on disk; drain the action before its buffer moves to memory"
                raise Invalid("the action cannot be saved", [Problem(text, "/resource_opts/buffer_mode")])
            action.buffer = MemoryBuffer(bounds, clock, dropped)
            self._forget_buffer(spec.id)
        action.buffer.bounds = bounds

    def _forget_buffer(self, action: str) -> None:
        self.services.storage.queues.remove(BUFFERS + action)
        self.buffer_ids.forget(action)

    def _make_sink(self, spec: ActionSpec) -> Sink:
        owner = self.owners.get(spec.connector)
        if owner is None or owner.connector is None:
            raise ReconnectFirst("its connector is not connected")
        context = self.context(spec.id, spec.resource_opts.request_timeout, owner.lost)
        buffer = self.actions[spec.name].action.buffer
        if isinstance(buffer, DiskBuffer):
            context = replace(context, place=buffer.place)
        return owner.connector.sink(spec.parameters, context)

    async def _restart_action(self, running: RunningAction) -> None:
        """Have it use the connection with its settings as they are now."""
        action, spec = running.action, running.spec
        if self.actions.get(spec.name) is not running:
            return
        await self._detach(action)
        await action.end()
        action.line = self.owners.get(spec.connector)
        if not spec.enable:
            return
        if not spec.resource_opts.start_after_created:
            await action.stop("not started: start_after_created is off")
            return
        self.begin_action(running)

    def begin_action(self, running: RunningAction) -> None:
        """Take rows and send them."""
        action = running.action
        owner = self.owners.get(running.spec.connector)
        action.line = owner
        action.start()
        if owner is not None:
            owner.attach(action)

    async def switch_action(self, running: RunningAction, reason: str) -> None:
        """Stop it for a reason, or start it where there is none; after what else is to be done with it."""

        async def switch() -> None:
            if reason:
                await self.end_action(running, reason)
            else:
                self.begin_action(running)

        await self.chores.add(running.action.key, switch)

    async def end_action(self, running: RunningAction, reason: str) -> None:
        """Take no rows and send none; those that wait stay."""
        await self._detach(running.action)
        await running.action.stop(reason)

    def remove_action(self, name: str) -> None:
        """Forget it, with what waits. All that goes by its name is gone at once: another may be made right after."""
        running = self.actions.pop(name)
        action = running.action
        self.services.endpoints.sinks.remove(action.name)
        if left := action.backlog:
            _log.warning("bridge.dropped", action=action.name, rows=left, reason="deleted")
        running.letters.options = running.letters.options.model_copy(update={"causes": []})
        running.letters.remove()
        self._forget_buffer(action.name)
        self.services.monitoring.metrics.remove(action=action.name)
        if self.is_running:
            self.chores.add(action.key, partial(self._forget_action, running))

    async def _forget_action(self, running: RunningAction) -> None:
        action = running.action
        await self.end_action(running, "deleted")
        if isinstance(action.buffer, MemoryBuffer):
            items = action.buffer.all_items()
            action.dropped(items, len(items), "other")

    # Sources

    def put_source(self, spec: SourceSpec) -> None:
        """Make a source, or change one: it goes on where it stood."""
        running = self.sources.get(spec.name)
        if running is None:
            running = self.sources[spec.name] = RunningSource(spec, Ingress(spec.id, self.services))
        running.spec, ingress = spec, running.ingress
        ingress.is_enabled = spec.enable
        ingress.equip(spec.resource_opts, partial(self._make_source, spec), partial(self._hidden, spec))
        if self.is_running:
            self.chores.add(ingress.key, partial(self._restart_source, running))

    def _make_source(self, spec: SourceSpec) -> Source:
        owner = self.owners.get(spec.connector)
        if owner is None or owner.connector is None:
            raise ReconnectFirst("its connector is not connected")
        context = self.context(spec.id, spec.resource_opts.health_check_timeout, owner.lost)
        return owner.connector.source(spec.parameters, context)

    async def _restart_source(self, running: RunningSource) -> None:
        spec, ingress = running.spec, running.ingress
        if self.sources.get(spec.name) is not running:
            return
        await self._detach(ingress)
        ingress.line = self.owners.get(spec.connector)
        if not spec.enable:
            return
        if not spec.resource_opts.start_after_created:
            ingress.halt("not started: start_after_created is off")
            return
        self.begin_source(running)

    def begin_source(self, running: RunningSource) -> None:
        """Read."""
        owner, ingress = self.owners.get(running.spec.connector), running.ingress
        ingress.line = owner
        ingress.begin()
        if owner is not None:
            owner.attach(ingress)

    async def switch_source(self, running: RunningSource, reason: str) -> None:
        """Stop it for a reason, or start it where there is none; after what else is to be done with it."""

        async def switch() -> None:
            if reason:
                await self.end_source(running, reason)
            else:
                self.begin_source(running)

        await self.chores.add(running.ingress.key, switch)

    async def end_source(self, running: RunningSource, reason: str) -> None:
        """Read no more."""
        running.ingress.halt(reason)
        await self._detach(running.ingress)

    def remove_source(self, name: str) -> None:
        """Forget it, and where it stood."""
        running = self.sources.pop(name)
        if self.is_running:
            self.chores.add(running.ingress.key, partial(self._forget_source, running))

    async def _forget_source(self, running: RunningSource) -> None:
        await self.end_source(running, "deleted")
        running.ingress.forget()
        self.services.monitoring.metrics.remove(source=running.ingress.name)

    async def _detach(self, member: Member) -> None:
        """From whichever connector it stands on."""
        for owner in list(self.owners.values()):  # which may change while one is waited for
            if owner.members.get(member.key) is member:
                await owner.detach(member.key)

    # The node's life

    def begin(self) -> None:
        """Connect everything. The broker takes clients by now, and their sessions are there."""
        self.is_running = True
        for spec in self.connector_specs.values():
            self.chores.add(spec.id, partial(self._restart_connector, spec))
        for running in self.actions.values():
            self.chores.add(running.action.key, partial(self._restart_action, running))
        for source in self.sources.values():
            self.chores.add(source.ingress.key, partial(self._restart_source, source))

    async def end_sources(self) -> None:
        """Bring nothing in any more; before the broker stops taking clients."""
        for running in self.sources.values():
            await self.end_source(running, "the broker ends")

    async def end(self) -> None:
        """Send what waits in memory while a few seconds last, then disconnect. What waits on disk stays."""
        if not self.is_running:
            return
        await self.chores.all_done()
        self.is_running = False
        await asyncio.gather(
            *(running.action.emptied(_FLUSH_S) for running in self.actions.values() if _may_flush(running))
        )
        for running in self.actions.values():
            action = running.action
            await self.end_action(running, "the broker ends")
            if isinstance(action.buffer, MemoryBuffer) and action.backlog:
                _log.warning("bridge.lost_at_end", action=action.name, rows=action.backlog)
        await asyncio.gather(*(owner.end() for owner in self.owners.values()))

    # What people see

    def users_of(self, connector: str) -> dict[str, list[str]]:
        """The actions and sources that stand on a connector, by kind."""
        return {
            "actions": [name for name, one in self.actions.items() if one.spec.connector == connector],
            "sources": [name for name, one in self.sources.items() if one.spec.connector == connector],
        }

    def lost_rows(self) -> dict[str, int]:
        """Rows that actions lost, by reason."""
        found: dict[str, int] = {}
        for running in self.actions.values():
            for reason, count in running.action.figures.lost_by_reason().items():
                found[reason] = found.get(reason, 0) + count
        return found

    def _hidden(self, spec: ActionSpec | SourceSpec, text: str) -> str:
        """A text without the secrets of an action or source and its connector."""
        connector = self.connector_specs.get(spec.connector)
        return hider(spec.parameters, None if connector is None else connector.parameters)(text)


def _may_flush(running: RunningAction) -> bool:
    """Whether rows in memory are about to be sent."""
    action = running.action
    may = not action.is_paused and action.state not in (STOPPED, DISABLED) and action.is_open
    return may and isinstance(action.buffer, MemoryBuffer) and action.backlog > 0


def _dropped(action: Action, items: Any, count: int, reason: str) -> None:
    action.dropped(items, count, reason)


def _pace(spec: ActionSpec, kind: ConnectorType) -> Pace:
    options = spec.resource_opts
    positions = None if kind.positions is None else kind.positions(spec.parameters)
    in_order = positions is not None and positions.in_order
    return Pace(
        batch_size=options.batch_size_of(kind),
        batch_time_s=options.batch_time_of(kind),
        batch_bytes=options.batch_bytes,
        lanes=1 if in_order else options.lanes_of(kind),
        window=1 if in_order else options.window,
        by_key=_lane_key(spec, kind),
        ttl_s=options.request_ttl,
        request_timeout_s=options.request_timeout,
        retry_s=options.retry_interval,
        longest_pause_s=options.longest_pause_s,
        max_retries=options.max_retries,
        waits_for_target=options.waits_for_target,
        is_pipelined=kind.is_pipelined,
        with_positions=positions is not None,
    )


def _lane_key(spec: ActionSpec, kind: ConnectorType) -> Callable[[Row, Message], Hashable] | None:
    """What picks the lane of a row."""
    strategy = spec.resource_opts.dispatch_strategy
    if strategy == "random":
        return None
    if strategy == "per_clientid" or kind.key_of is None:
        return lambda row, message: message.client.client_id
    return kind.key_of(spec.parameters)
