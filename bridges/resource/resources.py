"""The connectors, actions and sources of a node while it runs: made from specs, joined, changed and deleted.

No configuration and no API here: see ``bridges.resource.services``. What a change leads to (closing, connecting) is
done in tasks of their own, in order for each object.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from bridges.resource.contract import Connector, ConnectorType, Context
from bridges.resource.errors import NeverAgain, ReconnectFirst
from bridges.resource.ingress import Ingress
from bridges.resource.registry import Registry
from bridges.resource.sending.action import Action
from bridges.resource.sending.batch import Pace
from bridges.resource.sending.buffer import Bounds, Buffer, BufferIds, DiskBuffer, MemoryBuffer
from bridges.resource.sending.fallbacks import fallback_calls
from bridges.resource.sending.item import Item
from bridges.resource.settings.secret import hider
from bridges.resource.specs import ActionSpec, ConnectorSpec, SourceSpec
from bridges.resource.supervisor import Member, Supervisor
from bridges.resource.tasks import SerialTasks, own_store
from broker.config.secret_text import secrets_in
from broker.config.secrets import Secret
from broker.config.ssrf import AddressGuard
from broker.config.vault import NAMED_SECRETS
from broker.core.action import DISABLED, STOPPED, Row
from broker.core.cells import cell_of_name
from broker.core.errors import Invalid, Problem, SluiceError
from broker.core.feature import Services
from broker.core.kinds import are
from broker.core.message import Message
from broker.core.placeholders import NAMED_SECRET
from broker.observe.log import get_logger

_log = get_logger(__name__)

BUFFERS: Final = "actions/"
# Bounds of a queue whose bounds are the buffer's.
_BIG: Final = 1 << 62
# Seconds for which the end of the broker waits until rows in memory are sent.
_FLUSH_S: Final = 5.0
_AT_FRONT: Final = "cell 0 takes its requests"
_NOT_STARTED: Final = "not started: start_after_created is off"


class Resources:
    """The running connectors, actions and sources of a node, each by name. Used on the event loop."""

    def __init__(self, services: Services, registry: Registry, guard: AddressGuard) -> None:
        self.services = services
        self.registry = registry
        self.guard = guard
        self.changes = SerialTasks()
        self.buffer_ids = BufferIds(services.storage.values)
        self.supervisors: dict[str, Supervisor] = {}
        self.connector_specs: dict[str, ConnectorSpec] = {}
        self._secrets: dict[str, Sequence[Secret | None]] = {}
        self.actions: dict[str, Action] = {}
        self.sources: dict[str, Ingress] = {}
        self.is_running = False

    def home_of(self, connector: str) -> int:
        """Number of the cell that runs the sources of a connector, so that each record comes once."""
        spec = self.connector_specs.get(connector)
        if spec is None or self.registry.known(spec.type).is_at_front:
            return 0
        return cell_of_name(connector, self.services.node.cells)

    @property
    def _members(self) -> list[Member]:
        return [*self.actions.values(), *self.sources.values()]

    # Connectors

    def put_connector(self, spec: ConnectorSpec) -> None:
        """Make a connector, or change one, which then connects again."""
        supervisor = self.supervisors.get(spec.name)
        if supervisor is None:
            supervisor = self.supervisors[spec.name] = Supervisor(
                spec.id, spec.resource_opts, self.services.node.clock
            )
        self.connector_specs[spec.name] = spec
        self._secrets[spec.name] = _named_secrets_of(spec)
        make = partial(self._make_in_turn, spec, supervisor)
        supervisor.equip(spec.resource_opts, make, hider(spec.parameters))
        if self.is_running:
            self.changes.add(spec.id, partial(self._restart_connector, spec))

    def secrets_changed(self) -> None:
        """Let connectors connect again whose named secrets have other values than when they last did."""
        for name, spec in self.connector_specs.items():
            before = self._secrets[name]
            now = self._secrets[name] = _named_secrets_of(spec)
            if before != now and not self.registry.known(spec.type).reads_secrets_again:
                self.supervisors[name].lost("a secret that it logs in with changed")

    async def _restart_connector(self, spec: ConnectorSpec) -> None:
        supervisor = self.supervisors.get(spec.name)
        if supervisor is None:
            return
        await supervisor.end()
        if not spec.enable:
            await supervisor.disable()
        elif self.registry.known(spec.type).is_at_front and self.services.node.cell:
            await supervisor.stop(_AT_FRONT)
        elif spec.resource_opts.start_after_created:
            supervisor.start()
        else:
            await supervisor.stop(_NOT_STARTED)

    async def switch_connector(self, name: str, reason: str) -> None:
        """Stop it for a reason, or start it without one; after earlier changes of it."""
        supervisor = self.supervisors[name]
        spec = self.connector_specs[name]

        async def switch() -> None:
            if reason:
                await supervisor.stop(reason)
            elif self.services.node.cell and self.registry.known(spec.type).is_at_front:
                await supervisor.stop(_AT_FRONT)
            else:
                supervisor.start()

        await self.changes.add(supervisor.name, switch)

    def remove_connector(self, name: str) -> None:
        """Disconnect and forget it. Nothing uses it now."""
        supervisor = self.supervisors.pop(name)
        spec = self.connector_specs.pop(name)
        del self._secrets[name]
        if self.is_running:
            self.changes.add(spec.id, supervisor.end)

    async def _make_in_turn(self, spec: ConnectorSpec, supervisor: Supervisor) -> Connector:
        """A connector to be opened. Where machines take cells over, none of a process that lost its cell: it would take
        the client identifier, the partitions or the transactions of the one that has the cell now."""
        if self.services.node.moves:
            await own_store(self.services.storage.values)
        return await self.make_connector(spec, supervisor.lost, supervisor.memory)

    async def make_connector(
        self,
        spec: ConnectorSpec,
        lost: Callable[[str], None] = lambda _reason: None,
        memory: dict[str, Any] | None = None,
    ) -> Connector:
        """A connector of a spec, not opened."""
        kind = await self.registry.loaded(spec.type)
        context = self.context(spec.id, spec.resource_opts.health_check_timeout, lost)
        return kind.make(
            spec.parameters, context if memory is None else replace(context, memory=memory)
        )

    def context(
        self, name: str, timeout_s: float, lost: Callable[[str], None] = lambda _reason: None
    ) -> Context:
        """The context of a connector, sink or source."""
        return Context(name, self.services, self.guard, timeout_s, lost)

    # Actions and sources

    def put_action(self, spec: ActionSpec) -> None:
        """Make an action, or change one: what waits in its buffer stays.

        Raises:
            Invalid: the buffer cannot be kept as the spec wants it; a fallback cannot be used.
        """
        calls = fallback_calls(spec, self.services)
        kind = self.registry.get(spec.type)
        action = self.actions.get(spec.name) or Action(spec, self.services)
        self._fit_buffer(action, spec)

        def make_sink() -> Any:
            connector, context = self._use_of_connector(spec, spec.resource_opts.request_timeout)
            place = action.buffer.place if isinstance(action.buffer, DiskBuffer) else None
            return connector.sink(spec.parameters, replace(context, place=place))

        action.equip(spec, calls, _pace(spec, kind), make_sink, partial(self._hidden, spec))
        self.actions[spec.name] = action
        self.services.endpoints.sinks.add(action)
        self._restart_soon(action)

    def put_source(self, spec: SourceSpec) -> None:
        """Make a source, or change one: it continues at its position."""
        source = self.sources.get(spec.name)
        if source is None:
            source = self.sources[spec.name] = Ingress(spec, self.services)

        def make_source() -> Any:
            connector, context = self._use_of_connector(
                spec, spec.resource_opts.health_check_timeout
            )
            return connector.source(spec.parameters, context)

        home = self.home_of(spec.connector)
        source.equip(spec, make_source, partial(self._hidden, spec))
        source.cell = home
        source.is_elsewhere = home != self.services.node.cell
        self._restart_soon(source)

    def _use_of_connector(
        self, spec: ActionSpec | SourceSpec, timeout_s: float
    ) -> tuple[Connector, Context]:
        supervisor = self.supervisors.get(spec.connector)
        if supervisor is None or supervisor.connector is None:
            raise ReconnectFirst("its connector is not connected")
        return supervisor.connector, self.context(spec.id, timeout_s, supervisor.lost)

    def _restart_soon(self, member: Member) -> None:
        if self.is_running:
            self.changes.add(member.key, partial(self._restart, member))

    async def _restart(self, member: Member) -> None:
        """Restart a member so that it uses the connection with its current settings."""
        spec = member.spec
        if member not in self._members:
            return
        await self._detach(member)
        await member.end()
        member.supervisor = self.supervisors.get(spec.connector)
        if spec.enable and spec.resource_opts.start_after_created:
            self.start(member)
        elif spec.enable:
            await member.stop(_NOT_STARTED)

    def start(self, member: Member) -> None:
        """Let an action send, or a source read, unless another cell does."""
        if member.is_elsewhere:
            return
        member.supervisor = self.supervisors.get(member.spec.connector)
        member.start()
        if member.supervisor is not None:
            member.supervisor.attach(member)

    async def stop(self, member: Member, reason: str) -> None:
        """Neither send nor read; rows that wait stay."""
        await self._detach(member)
        await member.stop(reason)

    async def switch(self, member: Member, reason: str) -> None:
        """Stop it for a reason, or start it without one; after earlier changes of it."""

        async def switch() -> None:
            if reason:
                await self.stop(member, reason)
            else:
                self.start(member)

        await self.changes.add(member.key, switch)

    def remove_action(self, name: str) -> None:
        """Forget it with its buffer. All that goes by its name is gone at once: another may be made right after."""
        action = self.actions.pop(name)
        self.services.endpoints.sinks.remove(action.name)
        if left := action.backlog:
            _log.warning("bridge.dropped", action=action.name, rows=left, reason="deleted")
        action.letters.options = action.letters.options.model_copy(update={"causes": []})
        action.letters.remove()
        self._forget_buffer(action.name)
        self.services.monitoring.metrics.remove(action=action.name)

        async def forget() -> None:
            await self.stop(action, "deleted")
            if isinstance(action.buffer, MemoryBuffer):
                items = action.buffer.all_items()
                action.dropped(items, len(items), "other")

        if self.is_running:
            self.changes.add(action.key, forget)

    def remove_source(self, name: str) -> None:
        """Forget it, and its positions."""
        source = self.sources.pop(name)

        async def forget() -> None:
            await self.stop(source, "deleted")
            source.forget()
            self.services.monitoring.metrics.remove(source=source.name)

        if self.is_running:
            self.changes.add(source.key, forget)

    async def _detach(self, member: Member) -> None:
        """From whichever connector it uses."""
        for supervisor in list(self.supervisors.values()):
            # which may change while one is waited for
            if supervisor.members.get(member.key) is member:
                await supervisor.detach(member.key)

    # Buffers

    def _fit_buffer(self, action: Action, spec: ActionSpec) -> None:
        options = spec.resource_opts
        bounds = Bounds(
            options.max_buffer_records, options.max_buffer_bytes, options.overflow == "drop_oldest"
        )
        before: Buffer | None = getattr(action, "buffer", None)
        clock = self.services.node.clock
        if options.is_on_disk and not isinstance(before, DiskBuffer):
            queue = self.services.storage.queues.open(
                BUFFERS + spec.id, max_records=_BIG, max_bytes=_BIG
            )
            action.buffer = DiskBuffer(
                bounds, clock, action.dropped, queue, self.buffer_ids.of(spec.id)
            )
            if isinstance(before, MemoryBuffer):
                # none of those that wait is lost by the move
                action.buffer.bounds = Bounds(_BIG, _BIG, True)
                _move(before.all_items(), action)
            else:
                action.figures.matched.value += queue.records
        elif not options.is_on_disk and not isinstance(before, MemoryBuffer):
            if isinstance(before, DiskBuffer) and before.queue.records:
                text = f"{are(before.queue.records, 'row')} on disk; drain the action before its buffer moves to memory"
                raise Invalid(
                    "the action cannot be saved", [Problem(text, "/resource_opts/buffer_mode")]
                )
            action.buffer = MemoryBuffer(bounds, clock, action.dropped)
            self._forget_buffer(spec.id)
        action.buffer.bounds = bounds

    def _forget_buffer(self, action: str) -> None:
        self.services.storage.queues.remove(BUFFERS + action)
        self.buffer_ids.forget(action)

    # The node's life

    def begin(self) -> None:
        """Connect everything. The broker takes clients by now, and their sessions are there."""
        self.is_running = True
        for spec in self.connector_specs.values():
            self.changes.add(spec.id, partial(self._restart_connector, spec))
        for member in self._members:
            self._restart_soon(member)

    async def end_sources(self) -> None:
        """Stop the sources; before the broker stops taking clients."""
        for source in self.sources.values():
            await self.stop(source, "the broker ends")

    async def end(self) -> None:
        """Send what waits in memory while a few seconds last, then disconnect. What waits on disk stays."""
        if not self.is_running:
            return
        await self.changes.all_done()
        self.is_running = False
        await asyncio.gather(
            *(action.emptied(_FLUSH_S) for action in self.actions.values() if _may_flush(action))
        )
        for action in self.actions.values():
            await self.stop(action, "the broker ends")
            if isinstance(action.buffer, MemoryBuffer) and action.backlog:
                _log.warning("bridge.lost_at_end", action=action.name, rows=action.backlog)
        await asyncio.gather(*(supervisor.end() for supervisor in self.supervisors.values()))

    # Views

    def users_of(self, connector: str) -> dict[str, list[str]]:
        """The actions and sources that use a connector, by kind."""

        def users(members: Mapping[str, Member]) -> list[str]:
            return [name for name, member in members.items() if member.spec.connector == connector]

        return {"actions": users(self.actions), "sources": users(self.sources)}

    def lost_rows(self) -> dict[str, int]:
        """Rows that actions lost, by reason."""
        lost: Counter[str] = Counter()
        for action in self.actions.values():
            lost.update(action.figures.lost_by_reason())
        return dict(lost)

    def _hidden(self, spec: ActionSpec | SourceSpec, text: str) -> str:
        """A string without the secrets of an action or source and its connector."""
        connector = self.connector_specs.get(spec.connector)
        return hider(spec.parameters, None if connector is None else connector.parameters)(text)


def _move(items: Iterable[Item], action: Action) -> None:
    """Put rows that were in memory into an action's buffer on disk. Those on the way are sent again from there."""
    for item in items:
        item.is_done = True  # the answer to it, where one comes, is a late one
        try:
            action.buffer.put(item.row, item.message, item.settle, item.is_fallback)
        except SluiceError as error:
            action.failed((item,), NeverAgain(str(error)))


def _may_flush(action: Action) -> bool:
    """True if rows in memory are about to be sent."""
    may = not action.is_paused and action.state not in (STOPPED, DISABLED) and action.is_open
    return may and isinstance(action.buffer, MemoryBuffer) and action.backlog > 0


def _pace(spec: ActionSpec, kind: ConnectorType) -> Pace:
    """The pace of sending: the spec's values, else the type's defaults."""
    options = spec.resource_opts
    positions = None if kind.positions is None else kind.positions(spec.parameters)
    in_order = positions is not None and positions.in_order
    window = 1 if in_order or options.query_mode == "sync" else options.inflight_window
    longest_pause_s = max(
        options.retry_interval, min(options.health_check_interval, options.request_ttl / 3)
    )
    waits = (
        options.is_on_disk if options.missing_target is None else options.missing_target == "wait"
    )
    return Pace(
        batch_size=options.batch_size or kind.batch_size,
        batch_time_s=kind.batch_time_s if options.batch_time is None else options.batch_time,
        batch_bytes=options.batch_bytes,
        lanes=min(options.worker_pool_size or kind.lanes, window),
        window=window,
        by_key=_lane_key(spec, kind),
        ttl_s=options.request_ttl,
        request_timeout_s=options.request_timeout,
        retry_s=options.retry_interval,
        longest_pause_s=options.resume_interval or longest_pause_s,
        max_retries=options.max_retries,
        waits_for_target=waits,
        is_pipelined=kind.is_pipelined,
        with_positions=positions is not None,
    )


def _lane_key(spec: ActionSpec, kind: ConnectorType) -> Callable[[Row, Message], Hashable] | None:
    """The function that picks the lane of a row."""
    strategy = spec.resource_opts.dispatch_strategy
    if strategy == "random":
        return None
    if strategy == "per_clientid" or kind.key_of is None:
        return lambda row, message: message.client.client_id
    return kind.key_of(spec.parameters)


def _named_secrets_of(spec: ConnectorSpec) -> Sequence[Secret | None]:
    """The values of the named secrets that a connector refers to; None for one that does not exist."""
    names = [
        name
        for secret in secrets_in(spec.parameters)
        for name in NAMED_SECRET.findall(secret.written)
    ]
    return [
        None if (secret := NAMED_SECRETS.find(name)) is None else secret.value for name in names
    ]
