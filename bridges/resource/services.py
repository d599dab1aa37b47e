"""Services for connectors, actions and sources: list, create, change, switch and test them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, TypeVar

from pydantic import BaseModel
from typing_extensions import TypedDict

from bridges.resource.contract import ProbeStep
from bridges.resource.figures import ActionMetrics, SourceMetrics
from bridges.resource.ingress import Ingress
from bridges.resource.probe import ProbeResult, run_probe
from bridges.resource.registry import ConnectorTypeView
from bridges.resource.resources import Resources
from bridges.resource.sending.action import Action
from bridges.resource.sending.dead_letters import DeadLetterView
from bridges.resource.settings.secret import hider
from bridges.resource.specs import (
    READ_ONLY,
    ActionSpec,
    ConnectorSpec,
    MemberSpec,
    SourceSpec,
    checked_connector,
    checked_member,
    shown,
)
from broker.config.secret_text import (
    check_moved,
    has_stars,
    moved_problem,
    secrets_in,
    with_stars,
    with_stored,
)
from broker.core.contributor import Change, Contributor, Uses
from broker.core.errors import InUse, Invalid, Problem, SluiceError, Unavailable
from broker.core.json_values import LastErrorView
from broker.core.kinds import are, counted
from broker.core.objects import Listed, ObjectSection, Reference, Spec, merged, saving
from broker.core.ordered import OrderedObjects
from broker.core.times import rfc3339

S = TypeVar("S", ConnectorSpec, ActionSpec, SourceSpec)
N = TypeVar("N", ActionSpec, SourceSpec)
M = TypeVar("M", Action, Ingress)
_STOPPED_BY_PERSON: Final = "stopped by a person"
# Changes that end the work of one for a time.
_ENDING: Final = ("disable", "stop", "restart")
# Dead letters that are sent again in one commit.
_REDRIVE_PIECE: Final = 200


class ConnectorReadOnly(TypedDict):
    """State of a connector: its state, why, since when, the attempts to connect that failed since, when the next one
    begins (null while none is waited for), and the actions and sources that use it."""

    id: str
    status: str
    status_reason: str
    since: str
    attempts: int
    next_attempt_at: str | None
    actions: list[str]
    sources: list[str]


class MemberReadOnly(TypedDict):
    """State of an action or source: its state, why and since when, whether it is paused, its last failure, and the
    rules that use it."""

    id: str
    status: str
    status_reason: str
    since: str
    paused: bool
    last_error: LastErrorView | None
    rules: list[str]


class ActionReadOnly(MemberReadOnly):
    """State and metrics of an action, and the number of its dead letters."""

    metrics: ActionMetrics
    dead_letters_waiting: int


class SourceReadOnly(MemberReadOnly):
    """State and metrics of a source, and the cell that runs it."""

    metrics: SourceMetrics
    cell: int


class DrainedAction(TypedDict):
    """An action that was drained: how many rows are ``left``, and its state."""

    name: str
    left: int
    drained: bool
    status: str


class DeadLetterList(TypedDict):
    """Number of an action's dead letters, and the oldest."""

    action: str
    waiting: int
    items: list[DeadLetterView]


class RedrivenLetters(TypedDict):
    """Number of dead letters sent again, the number of those left, and why sending ended early, null if it did not."""

    action: str
    sent: int
    waiting: int
    problem: str | None


class PurgedLetters(TypedDict):
    """Number of dead letters that were deleted."""

    action: str
    purged: int


@dataclass(frozen=True, slots=True)
class Stored(Generic[S]):
    """An object as it was sent, which is saved, and as it was understood, which is used.

    ``raw`` holds secrets as they were sent, and only the members that were given.
    """

    raw: Spec
    spec: S


class ResourceService(ABC, Generic[S]):
    """A ``broker.core.objects.ObjectService``; each kind says how its objects are checked, set to work and shown."""

    kind: ClassVar[str]

    def __init__(self, section: ObjectSection, resources: Resources) -> None:
        self._resources = resources
        self._objects: OrderedObjects[Stored[S]] = OrderedObjects(
            self.kind, section, lambda stored: stored.raw
        )

    def load(self, specs: Sequence[Spec]) -> list[str]:
        """Take the objects of the configuration; gives a sentence for each that cannot be used."""
        problems: list[str] = []
        for spec in specs:
            try:
                checked = self._checked(spec)
                self._use(checked)
                self._objects.adopt(checked.name, Stored(spec, checked))
            except SluiceError as error:
                problems.append(self._objects.refusal(spec, error))
        return problems

    def list(self) -> Listed:
        return Listed(self._objects.names(), self.get)

    def get(self, name: str) -> Spec:
        return self._shown(self._objects.get(name).spec.name)

    def create(self, spec: Spec) -> Spec:
        checked = self._checked(spec)
        self._objects.check_free(checked.name)
        return self._put(spec, checked)

    def replace(self, name: str, spec: Spec) -> Spec:
        """Change one. Its buffer or positions stay, and so do secrets that are sent as stars."""
        self._objects.check_changeable(name)
        before = self._objects.get(name)
        sent = with_stored({**spec, "name": spec.get("name", name)}, before.raw)
        checked = self._checked(sent)
        if (checked.name, checked.type) != (name, before.spec.type):
            text = f"expected name {name!r} and type {before.spec.type!r}"
            raise Invalid(f"{self.kind} {name!r} keeps its name and type", [Problem(text, "/type")])
        self._check_moved(spec, checked, before.spec)
        return self._put(sent, checked)

    def _check_moved(self, sent: Spec, now: S, before: S) -> None:
        """Raise ``Invalid`` where stars stand for secrets that would go to another address, or connector."""
        object_name = f"{self.kind} {now.name!r}"
        check_moved(object_name, sent, now.parameters, before.parameters)
        if (
            has_stars(sent)
            and isinstance(now, MemberSpec)
            and now.connector != getattr(before, "connector", None)
        ):
            raise Invalid(f"{object_name} cannot be saved", [moved_problem("/connector")])

    def patched(self, name: str, patch: Spec) -> Spec:
        """One with a JSON Merge Patch (RFC 7396) applied, to be saved by ``replace``."""
        before = self._objects.get(name)
        spec: Spec = merged(with_stars(before.raw, list(secrets_in(before.spec.parameters))), patch)
        return spec

    def delete(self, name: str) -> None:
        """Raises ``InUse`` while others need it. What waits in its buffer, or where it stood, is forgotten."""
        self._objects.check_changeable(name)
        if users := self._users_of(name):
            raise InUse(self.kind, name, users)
        self._objects.remove(name)
        self._give_up(name)

    # Switching

    def enable(self, name: str, enabled: bool) -> Spec:
        """Switch it on or off, also for the next start of the broker. What waits stays."""
        return self.replace(name, {**self._objects.get(name).raw, "enable": enabled})

    async def start(self, name: str) -> Spec:
        """Set it to work. Raises ``Invalid`` when it is disabled."""
        if not self._objects.get(name).spec.enable:
            raise Invalid(f"{self.kind} {name!r} is disabled; enable it")
        saving()
        await self._switch(name, "")
        return self.get(name)

    async def stop(self, name: str) -> Spec:
        """Stop it until it is started or the broker restarts. Buffered rows stay; new rows are dropped."""
        self._objects.get(name)
        saving()
        await self._switch(name, _STOPPED_BY_PERSON)
        return self.get(name)

    async def restart(self, name: str) -> Spec:
        """Stop and start."""
        saving()
        if self._objects.get(name).spec.enable:
            await self._switch(name, "restarting")
        return await self.start(name)

    # Testing

    async def probe(self, spec: Spec) -> ProbeResult:
        """The step-by-step test of a spec that need not be saved; stars stand for the secrets of the one of that name.
        Nothing is written or read."""
        stored = self._objects.find(str(spec.get("name")))
        sent = with_stored({"name": "probe", **spec}, stored.raw if stored else {})
        checked = self._checked(sent)
        if stored is not None:
            self._check_moved(spec, checked, stored.spec)
        return await self._probe(checked)

    async def test(self, name: str) -> ProbeResult:
        """The same of a saved one, with a connection of its own."""
        return await self._probe(self._objects.get(name).spec)

    # Hooks of each kind

    @abstractmethod
    def _checked(self, spec: Spec) -> S:
        """The spec understood. Raises ``Invalid`` with every problem."""

    @abstractmethod
    def _use(self, checked: S) -> None:
        """Set it to work, in place of the one of that name."""

    @abstractmethod
    def _give_up(self, name: str) -> None:
        """It is deleted."""

    @abstractmethod
    async def _switch(self, name: str, reason: str) -> None:
        """Stop it for that reason; start it when there is none."""

    @abstractmethod
    async def _probe(self, spec: S) -> ProbeResult:
        """The step-by-step test."""

    @abstractmethod
    def _shown(self, name: str) -> Spec:
        """The view of a saved object."""

    def _users_of(self, name: str) -> Sequence[Reference]:
        """The objects that use one."""
        return self._resources.services.contributors.users_of(self.kind, name)

    def _put(self, raw: Spec, checked: S) -> Spec:
        kept = {name: value for name, value in raw.items() if name not in READ_ONLY}
        before = self._objects.find(checked.name)
        saving(before is None or before.spec != checked)
        self._use(checked)
        self._objects.put(checked.name, Stored(kept, checked))
        return self._shown(checked.name)


class ConnectorService(ResourceService[ConnectorSpec]):
    """Connectors: connections to outside systems, which actions and sources use."""

    kind = "connector"

    def types(self) -> Sequence[ConnectorTypeView]:
        """All types of connectors."""
        return self._resources.registry.described()

    async def _probe(self, spec: ConnectorSpec) -> ProbeResult:
        return await run_probe(
            await self._resources.make_connector(spec), (), hider(spec.parameters)
        )

    def _checked(self, spec: Spec) -> ConnectorSpec:
        return checked_connector(spec, self._resources.registry)

    def _use(self, checked: ConnectorSpec) -> None:
        self._resources.put_connector(checked)

    def _give_up(self, name: str) -> None:
        self._resources.remove_connector(name)

    async def _switch(self, name: str, reason: str) -> None:
        await self._resources.switch_connector(name, reason)

    def _shown(self, name: str) -> Spec:
        supervisor = self._resources.supervisors[name]
        spec = self._resources.connector_specs[name]
        status, reason = supervisor.state
        return {
            **shown(spec),
            "id": spec.id,
            "status": status if spec.enable else "disabled",
            "status_reason": reason if spec.enable else "",
            "since": rfc3339(supervisor.since_ns),
            "attempts": supervisor.attempts,
            "next_attempt_at": None
            if supervisor.next_attempt_ns is None
            else rfc3339(supervisor.next_attempt_ns),
            **self._resources.users_of(spec.name),
        }


class _MemberService(Contributor, ResourceService[N], Generic[N, M]):
    """The part that actions and sources share."""

    _members: Mapping[str, M]
    _model: type[N]
    """Model of the specs."""

    def _checked(self, spec: Spec) -> N:
        return checked_member(
            self._model, spec, self._resources.registry, self._resources.connector_specs
        )

    def uses(self) -> Uses:
        """The connector of each, and the schema that codes its values."""
        for member in self._members.values():
            user = Reference(self.kind, member.spec.id)
            yield user, Reference("connector", member.spec.connector)
            yield from (
                (user, Reference("schema", name)) for name in _schemas_in(member.spec.parameters)
            )

    def consequences(self, change: Change) -> Iterator[str]:
        """The loss that comes with a deleted member, and the rows that wait while a member or its connector is stopped
        or paused."""
        (of, name), verb = change.target, _verb_of(change)
        members = [
            member for member in self._members.values() if (self.kind, member.spec.id) == (of, name)
        ]
        if of == "connector" and verb in _ENDING:
            using = [member for member in self._members.values() if member.spec.connector == name]
            yield from (
                f"{self.kind} {member.spec.name!r}: {self._waits(member, 'pause')}"
                for member in using
            )
        for member in members:
            if verb == "delete":
                yield self._forgotten(member)
            elif verb in (*_ENDING, "pause", "drain"):
                yield self._waits(member, verb)

    @abstractmethod
    def _forgotten(self, member: M) -> str:
        """The loss when a member is deleted, in a sentence."""

    @abstractmethod
    def _waits(self, member: M, verb: str) -> str:
        """The effect on a member until it continues, in a sentence."""

    def pause(self, name: str) -> Spec:
        """Stay connected, and neither send nor read; rows wait in the buffer."""
        member = self._member(name)
        saving(not member.is_paused)
        member.pause()
        return self.get(name)

    def resume(self, name: str) -> Spec:
        """Send or read again."""
        member = self._member(name)
        saving(member.is_paused)
        member.resume()
        return self.get(name)

    def metrics(self, name: str) -> dict[str, Any]:
        """Counters, gauges and rates."""
        return self._member(name).figures.as_dict()

    def reset_metrics(self, name: str) -> None:
        """Counters back to zero; rows that wait count as matched."""
        self._member(name).figures.reset()

    def tick(self, now_s: float) -> None:
        """Sample the rates."""
        for member in self._members.values():
            member.figures.sample(now_s)

    async def _switch(self, name: str, reason: str) -> None:
        await self._resources.switch(self._member(name), reason)

    def _member(self, name: str) -> M:
        self._objects.get(name)
        return self._members[name]

    def _shown(self, name: str) -> Spec:
        member = self._members[name]
        status, reason = member.status
        return {
            **shown(member.spec),
            "id": member.spec.id,
            "status": status,
            "status_reason": reason,
            "since": rfc3339(member.since_ns),
            "paused": member.is_paused,
            "last_error": member.last_error,
            "metrics": member.figures.as_dict(),
            "rules": [user.name for user in self._users_of(name) if user.kind == "rule"],
        }

    def _users_of(self, name: str) -> Sequence[Reference]:
        return super()._users_of(self._members[name].spec.id)


class ActionService(_MemberService[ActionSpec, Action]):
    """Actions: where rules hand rows to."""

    kind = "action"
    _model = ActionSpec

    def __init__(self, section: ObjectSection, resources: Resources) -> None:
        super().__init__(section, resources)
        self._members = resources.actions

    async def drain(self, name: str, timeout_s: float = 30.0) -> DrainedAction:
        """Take no more rows, send those that wait, then stop. Gives how many are ``left`` when time is over."""
        action = self._enabled(name)
        if action.is_paused:
            raise Invalid(f"action {name!r} is paused and sends nothing; resume it")
        saving()
        left = await action.drain(timeout_s)
        await self._resources.switch(
            action, "drained" if not left else f"drained, and {are(left, 'row')} left"
        )
        return {"name": name, "left": left, "drained": left == 0, "status": action.state}

    # Dead letters

    async def dead_letters(
        self, name: str, limit: int, offsets: Sequence[int] | None = None
    ) -> DeadLetterList:
        """The oldest dead letters, or those with these offsets, and how many there are."""
        letters = self._member(name).letters
        return {
            "action": name,
            "waiting": letters.waiting,
            "items": [*await letters.show(limit, offsets)],
        }

    async def to_redrive(self, name: str, limit: int, offsets: Sequence[int] | None) -> int:
        """Count the dead letters that ``redrive`` would send."""
        letters = await self.dead_letters(name, 1000 if offsets else 1, offsets)
        return min(limit, letters["waiting"] if offsets is None else len(letters["items"]))

    async def redrive(
        self,
        name: str,
        limit: int,
        advance: Callable[[int], bool] = lambda done: True,
        offsets: Sequence[int] | None = None,
    ) -> RedrivenLetters:
        """Hand dead letters to the action once more, oldest first, or those with these offsets; one that fails again
        becomes a new one. ``advance`` is called with how many were sent, and says whether to continue."""
        action = self._enabled(name)
        letters = action.letters
        taken = 0
        problem = None
        while taken < limit and problem is None and advance(taken):
            done: list[int] = []
            for item in await letters.take(min(_REDRIVE_PIECE, limit - taken), offsets):
                try:
                    action.write(item.row, item.message, None)
                except Unavailable as error:
                    problem = str(error)
                    break
                done.append(item.offset)
            if not done:
                break
            letters.forget(done)
            await letters.committed()
            taken += len(done)
        advance(taken)
        return {"action": name, "sent": taken, "waiting": letters.waiting, "problem": problem}

    def purge(self, name: str, offsets: Sequence[int] | None = None) -> PurgedLetters:
        """Forget all dead letters, or those with these offsets."""
        letters = self._member(name).letters
        return {
            "action": name,
            "purged": letters.remove() if offsets is None else letters.forget(offsets),
        }

    # Inside

    async def _probe(self, spec: ActionSpec) -> ProbeResult:
        of_connector = self._resources.connector_specs[spec.connector]
        connector = await self._resources.make_connector(of_connector)
        context = self._resources.context(spec.id, spec.resource_opts.request_timeout)
        sink = connector.sink(spec.parameters, context)

        async def target() -> str:
            await connector.close()
            await connector.open()
            await sink.open()
            await sink.check()
            return "ready for rows"

        steps = [ProbeStep("target", target), ProbeStep("permission", sink.permission)]
        return await run_probe(
            connector, steps, hider(of_connector.parameters, spec.parameters), close=sink.close
        )

    def _use(self, checked: ActionSpec) -> None:
        self._resources.put_action(checked)

    def _give_up(self, name: str) -> None:
        self._resources.remove_action(name)

    def uses(self) -> Uses:
        """The connector and schema of each, and its fallback actions."""
        yield from super().uses()
        for action in self._members.values():
            for to in action.spec.fallback_actions:
                if to.kind == "reference":
                    yield (
                        Reference(self.kind, action.spec.id),
                        Reference(self.kind, f"{to.type}:{to.name}"),
                    )

    def _forgotten(self, member: Action) -> str:
        rows = counted(member.backlog, "row")
        letters = counted(member.letters.waiting, "dead letter")
        return f"{rows} that wait in its buffer and {letters} are deleted."

    def _waits(self, member: Action, verb: str) -> str:
        if verb == "drain":
            return f"It sends the {counted(member.backlog, 'row')} in its buffer, then stops. New rows are dropped."
        new = "New rows wait with them" if verb == "pause" else "New rows are dropped"
        return f"It sends nothing. {counted(member.backlog, 'row')} in its buffer: kept. {new}."

    def consequences(self, change: Change) -> Iterator[str]:
        """The consequences for every member, and the dead letters that are deleted."""
        yield from super().consequences(change)
        action = self._members.get(change.target.name.partition(":")[2])
        if change.verb == "purge" and change.target.kind == self.kind and action is not None:
            offsets = change.options["offsets"]
            number = (
                action.letters.waiting if offsets is None else action.letters.number_of(offsets)
            )
            if number:
                yield f"{are(number, 'dead letter')} deleted permanently."

    def _enabled(self, name: str) -> Action:
        action = self._member(name)
        if not action.spec.enable:
            raise Invalid(f"action {name!r} is disabled; enable it")
        return action

    def _shown(self, name: str) -> Spec:
        return {**super()._shown(name), "dead_letters_waiting": self._members[name].letters.waiting}


class SourceService(_MemberService[SourceSpec, Ingress]):
    """Sources: what rules read as ``$bridges/<type>:<name>``."""

    kind = "source"
    _model = SourceSpec

    def __init__(self, section: ObjectSection, resources: Resources) -> None:
        super().__init__(section, resources)
        self._members = resources.sources

    def _shown(self, name: str) -> Spec:
        return {**super()._shown(name), "cell": self._members[name].cell}

    async def _probe(self, spec: SourceSpec) -> ProbeResult:
        of_connector = self._resources.connector_specs[spec.connector]
        connector = await self._resources.make_connector(of_connector)
        context = self._resources.context(spec.id, spec.resource_opts.health_check_timeout)
        source = connector.source(spec.parameters, context)

        async def target() -> str:
            await connector.close()
            await connector.open()
            await source.check()
            return "ready to be read"

        steps = [ProbeStep("target", target)]
        return await run_probe(connector, steps, hider(of_connector.parameters, spec.parameters))

    def _use(self, checked: SourceSpec) -> None:
        self._resources.put_source(checked)

    def _give_up(self, name: str) -> None:
        self._resources.remove_source(name)

    def _forgotten(self, member: Ingress) -> str:
        return "Its position is forgotten. One that is created again begins as a new source does."

    def _waits(self, member: Ingress, verb: str) -> str:
        return "It reads nothing, and continues later at its position."


def _verb_of(change: Change) -> str:
    """The effect of a change on an object: its verb, ``delete``, ``disable``, or nothing that matters here."""
    if change.verb or change.before is None:
        return change.verb
    if change.after is None:
        return "delete"
    was_on, is_on = (spec.get("enable", True) for spec in (change.before, change.after))
    return "disable" if was_on and not is_on else ""


def _schemas_in(settings: Any) -> Iterator[str]:
    """The schemas that settings name, at any depth."""
    for member, value in settings or ():
        if member == "schema_name" and value is not None:
            yield value
        elif isinstance(value, BaseModel):
            yield from _schemas_in(value)
