"""The verbs of the objects of a gate: validations and transformations, in their order."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Generic, TypeVar

from broker.config.gate_spec import READ_ONLY, GateSpec
from broker.config.schema_use import SchemaUse, missing_schemas, names_of_missing
from broker.core.contributor import Change, Contributor, Drafts, TopicStage, Uses
from broker.core.errors import Invalid, Problem
from broker.core.feature import Services
from broker.core.json_values import message_from_wire
from broker.core.kinds import counted
from broker.core.message import Message
from broker.core.objects import ObjectSection, Reference, Spec, merged
from broker.core.ordered import ObjectVerbs
from broker.core.quarantine import COLUMNS, quarantine, quarantine_problems
from broker.core.schema import FieldType, SchemaEffect, SchemaLookup
from broker.core.topic import TopicFilter
from broker.core.topic_index import TopicIndex
from broker.observe.counter_rates import Ticks
from broker.observe.gate_counters import STOPPING, GateCounters, GateMetrics, GateStats


@dataclass(frozen=True, slots=True)
class GateObject:
    """A checked and compiled validation or transformation."""

    spec: Any
    filters: tuple[TopicFilter, ...]

    @property
    def name(self) -> str:
        name: str = self.spec.name
        return name

    def matches(self, topic: str) -> bool:
        """True if any of its filters matches the topic."""
        return any(topic_filter.matches(topic) for topic_filter in self.filters)

    @abstractmethod
    def schema_uses(self) -> Iterable[tuple[str, SchemaUse]]:
        """The schemas that it names, by the pointers of their members."""


# Members that say what happens once a message has passed or failed.
_AFTERWARDS: Final = (
    "enable",
    "mode",
    "failure_action",
    "quarantine",
    "log_failure",
    "description",
    "tags",
)
T = TypeVar("T", bound=GateObject)


class RunningGate(Generic[T]):
    """The gate that runs the objects, each with its statistics."""

    def __init__(self) -> None:
        self._running: TopicIndex[tuple[T, GateStats]] = TopicIndex()
        self.schemas: SchemaLookup | None = None

    def use(self, objects: Iterable[tuple[T, GateStats]]) -> None:
        """Run these, in this order, from the next plan on; the disabled ones among them are left out."""
        enabled = (item for item in objects if item[0].spec.enable)
        self._running.use(
            (item[0].name, item, (own.levels for own in item[0].filters)) for item in enabled
        )

    def acting(self, topic: str) -> tuple[object, ...]:
        """See ``broker.core.stage.ActsByObjects``: the objects of a topic."""
        return tuple(self._running.matching(topic))


class GateObjects(Contributor, ObjectVerbs[T]):
    """The verbs of every kind, and those of gates."""

    many: ClassVar[str]
    """The member of a trial with objects that need not be saved."""
    metric: ClassVar[str]
    """Prefix of the names of its metrics."""
    label: ClassVar[str]
    """The label of its metrics."""
    acted: ClassVar[str]
    """The verb for messages that pass it."""
    follows_schema: ClassVar[str]
    """Effect of a change of a schema on an object that still works."""

    def __init__(self, services: Services, section: ObjectSection, gate: RunningGate[T]) -> None:
        super().__init__(section, _saved)
        self._services = services
        self._gate = gate
        self._stats: dict[str, GateStats] = {}
        self._booked: dict[str, T] = {}
        self.ticks = Ticks(self.tick)

    @abstractmethod
    def _compile(self, spec: Spec, pointer: str = "", schemas: SchemaLookup | None = None) -> T:
        """Check and compile what was sent, with ``schemas`` for a trial. Raises ``Invalid`` with every problem."""

    def _compiled(self, spec: Spec) -> T:
        """The same, with its references resolved."""
        item = self._compile(spec)
        schemas = self._services.schemas
        problems = missing_schemas(item.schema_uses(), schemas)
        problems += quarantine_problems(item.spec.quarantine, self._services.storage.streams)
        if problems:
            names = names_of_missing(item.schema_uses(), schemas)
            members = {"missing_schemas": names} if names else None
            raise Invalid(f"{self.kind} {item.name!r} cannot be saved", problems, members=members)
        return item

    def _for_trial(self, body: Mapping[str, Any]) -> tuple[list[T], SchemaLookup, Message]:
        """Objects that need not be saved, what they use of schemas, and the message of a trial.

        Raises:
            Invalid: something in it cannot be used.
        """
        schemas = _schemas_of_trial(body.get("schemas"), self._services.schemas)
        drafts = self._drafts(
            body.get(self.many), schemas, checks=body.get("check_references", True) is True
        )
        return (
            drafts,
            schemas,
            message_from_wire(body.get("message"), self._services.node.clock.now_ns()),
        )

    def _with(self, drafts: Drafts) -> list[T]:
        """The objects in their order, with drafts in place of those of the same name; new ones come last."""
        drafted = self._drafts(drafts.get(self.many, []), self._services.schemas)
        return list({item.name: item for item in (*self._objects, *drafted)}.values())

    def _drafts(self, specs: Any, schemas: SchemaLookup, *, checks: bool = True) -> list[T]:
        """Objects that need not be saved. Raises ``Invalid`` with every problem of every one."""
        title = f"the {self.many} cannot be saved"
        if not isinstance(specs, list):
            raise Invalid(title, [Problem("expected a list", f"/{self.many}")])
        drafts: dict[str, T] = {}
        problems: list[Problem] = []
        for index, spec in enumerate(specs):
            pointer = f"/{self.many}/{index}"
            try:
                item = self._compile(spec, pointer, schemas)
            except Invalid as error:
                problems += error.problems
                continue
            if item.name in drafts:
                problems.append(Problem(f"the name {item.name!r} is taken", f"{pointer}/name"))
            if checks:
                problems += missing_schemas(item.schema_uses(), schemas, pointer)
            drafts[item.name] = item
        if problems:
            raise Invalid(title, problems)
        return list(drafts.values())

    def replace(self, name: str, spec: Spec) -> Spec:
        """Change an object. It keeps its place in the order; its counters restart at zero."""
        super().replace(name, spec)
        self._stats[name].reset(self._services.node.clock.now_ns())
        return self.get(name)

    def patched(self, name: str, patch: Spec) -> Spec:
        """An object with a JSON Merge Patch (RFC 7396) applied, to be checked and saved by ``replace``."""
        shown = {key: value for key, value in patch.items() if key not in READ_ONLY}
        spec: Spec = merged(_saved(self._objects.get(name)), shown)
        return spec

    def delete(self, name: str) -> None:
        super().delete(name)
        self._services.monitoring.metrics.remove(**{self.label: name})
        self._stats.pop(name, None)
        self._booked.pop(name, None)

    def enable(self, name: str, enabled: bool) -> Spec:
        """Switch an object on or off. Its counters continue."""
        self._objects.check_changeable(name)
        item: Any = self._objects.get(name)
        switched: T = replace(item, spec=item.spec.model_copy(update={"enable": enabled}))
        return self._put(switched)

    def metrics(self, name: str) -> GateMetrics:
        """Counters since the start, or since the object was changed; rates are per second."""
        self._objects.get(name)
        return self._stats[name].metrics()

    def reset_metrics(self, name: str) -> None:
        """Set the counters of one object to zero."""
        self._objects.get(name)
        self._stats[name].reset(self._services.node.clock.now_ns())

    def tick(self) -> Iterator[None]:
        """Sample the rates; called every ``counter_rates.STEP_S``."""
        for book in list(self._stats.values()):
            book.sample(self._services.node.clock.monotonic_s())
            yield

    def quarantines(self) -> Sequence[str]:
        """The streams in which what is stopped is kept."""
        return [item.spec.quarantine for item in self._objects if item.spec.quarantine is not None]

    def uses(self) -> Uses:
        """Streams that keep what is stopped, and schemas."""
        for item in self._objects:
            user = Reference(self.kind, item.name)
            if item.spec.quarantine is not None:
                yield user, Reference("stream", item.spec.quarantine)
            for _, use in item.schema_uses():
                yield user, Reference("schema", use.schema_name)

    def consequences(self, change: Change) -> Iterator[str]:
        """Number of messages that it stopped or would have stopped, where a change begins or ends that."""
        kind, name = change.target
        if kind != self.kind or change.before is None or name not in self._objects:
            return
        did = self._stats[name].metrics()
        matched = did["matched"]
        failed = did["failed"]
        counts = f"{failed:,} of {counted(matched, 'message')} since {did['since']}"
        if matched:
            counts += f" ({100 * failed / matched:.2g} %)"
        stopped = _stops(change.before)
        stops = _stops(change.after)
        if stops and not stopped:
            is_known = matched and _works(change.before) == _works(change.after)
            unknown = "No message was checked this way yet, so the number of messages that it would stop is unknown."
            yield f"It would have stopped {counts}." if is_known else unknown
        elif stopped and not stops:
            yield f"It stopped {counts}. Messages that fail would pass."
        if matched and _acts(change.before) and not _acts(change.after):
            passed = counted(matched - failed, "message")
            yield f"It {self.acted} {passed} since {did['since']}. It would no longer do so."

    def columns_of_stream(self, stream: str) -> Mapping[str, FieldType]:
        return COLUMNS if stream in self.quarantines() else {}

    def effects_of_schema(self, schema: str, schemas: SchemaLookup) -> Sequence[SchemaEffect]:
        effects = []
        for item in self._objects:
            if any(use.schema_name == schema for _, use in item.schema_uses()):
                problems = "; ".join(
                    problem.message for problem in missing_schemas(item.schema_uses(), schemas)
                )
                effects.append(
                    SchemaEffect(
                        Reference(self.kind, item.name),
                        bool(problems),
                        problems or self.follows_schema,
                    )
                )
        return effects

    def on_topic(self, topic: str) -> Sequence[TopicStage]:
        """Objects that run on messages published on a topic, in order, disabled ones included."""
        return [self._told(item, topic) for item in self._objects if item.matches(topic)]

    @abstractmethod
    def _does(self, item: T) -> str:
        """Description of an object's effect, in a line."""

    def _told(self, item: T, topic: str) -> TopicStage:
        spec: GateSpec = item.spec
        return {
            "stage": self.kind,
            "name": item.name,
            "enabled": spec.enable,
            "topics": [
                topic_filter.filter for topic_filter in item.filters if topic_filter.matches(topic)
            ],
            "mode": spec.mode,
            "on_failure": spec.effective_action,
            "does": self._does(item),
        }

    def _shown(self, item: T) -> Spec:
        return {**_saved(item), **self._stats[item.name].as_members()}

    def _book(self, item: T) -> GateStats:
        """The book of an object, kept over changes."""
        metrics = self._services.monitoring.metrics
        name = item.name
        book = self._stats.get(name)
        if book is not None and self._booked.get(name) is item:
            return book
        self._booked[name] = item
        if book is None:
            counters = GateCounters.of(metrics, self.metric, self.label, name)
            book = self._stats[name] = GateStats(counters, self._services.node.clock.now_ns())
        enabled = item.spec.enable
        metrics.gauge(
            f"{self.metric}_enable",
            lambda: enabled,
            "1 where it is switched on",
            **{self.label: name},
        )
        stream = item.spec.quarantine
        append = None if stream is None else self._services.storage.streams.appender(stream)
        book.keep = None if append is None else quarantine(append, self.kind, name)
        return book

    def _changed(self) -> None:
        self._gate.schemas = self._services.schemas
        self._gate.use([(item, self._book(item)) for item in self._objects])
        self._services.messaging.plans.invalidate()


def _schemas_of_trial(specs: Any, saved: SchemaLookup) -> SchemaLookup:
    if not specs:
        return saved
    if not isinstance(specs, list):
        raise Invalid(
            "the schemas cannot be used", [Problem("expected a list of schemas", "/schemas")]
        )
    return saved.with_schemas(specs)


def _saved(item: GateObject) -> Spec:
    """The object as it is saved and shown, defaults filled in."""
    spec: GateSpec = item.spec
    return spec.model_dump(by_alias=True)


def _acts(spec: Spec | None) -> bool:
    """True if the findings of an object have an effect."""
    return (
        spec is not None
        and spec.get("enable", True) is True
        and spec.get("mode", "enforce") == "enforce"
    )


def _stops(spec: Spec | None) -> bool:
    """True if messages that fail are stopped."""
    return _acts(spec) and spec is not None and spec["failure_action"] in STOPPING


def _works(spec: Spec | None) -> Spec:
    """Members that decide which messages fail."""
    return {name: value for name, value in (spec or {}).items() if name not in _AFTERWARDS}
