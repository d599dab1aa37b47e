"""The verbs of the objects of a gate: validations and transformations, in their order."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any, ClassVar, Protocol, TypeVar

from broker.config.gate_spec import READ_ONLY, GateSpec
from broker.core import jsontext
from broker.core.feature import Services
from broker.core.merge_patch import merged
from broker.core.objects import ObjectSection, Spec
from broker.core.ordered import ObjectVerbs
from broker.core.quarantine import quarantine
from broker.core.schema import SchemaLookup
from broker.core.topic import TopicFilter
from broker.observe.counter_rates import Ticks
from broker.observe.gate_counters import GateCounters, GateStats


class GateObject(Protocol):
    """A checked and compiled object, a frozen dataclass."""

    @property
    def spec(self) -> Any: ...

    @property
    def name(self) -> str: ...

    @property
    def filters(self) -> tuple[TopicFilter, ...]: ...

    def matches(self, topic: str) -> bool: ...

    def names_schema(self, schema: str) -> bool: ...


T = TypeVar("T", bound=GateObject)
_Taken = TypeVar("_Taken", bound=GateObject, contravariant=True)


class RunningGate(Protocol[_Taken]):
    """The gate that runs the objects."""

    schemas: SchemaLookup | None

    def use(self, objects: Iterable[tuple[_Taken, GateStats]], /) -> None: ...


class GateObjects(ObjectVerbs[T]):
    """The verbs of every kind, and what gates have beside."""

    metric: ClassVar[str]
    """What the names of its metrics begin with."""
    label: ClassVar[str]
    """The label of its metrics."""

    def __init__(self, services: Services, section: ObjectSection, gate: RunningGate[T]) -> None:
        super().__init__(section, _saved)
        self._services, self._gate = services, gate
        self._stats: dict[str, GateStats] = {}
        self.ticks = Ticks(self.tick)

    def replace(self, name: str, spec: Spec) -> Spec:
        """Change an object. It keeps its place in the order; its counters restart at zero."""
        super().replace(name, spec)
        self._stats[name].reset()
        return self.get(name)

    def patched(self, name: str, patch: Spec) -> Spec:
        """An object with a JSON Merge Patch (RFC 7396) applied, to be checked and saved by ``replace``."""
        shown = {key: value for key, value in patch.items() if key not in READ_ONLY}
        spec: Spec = merged(_saved(self._objects.get(name)), shown)
        return spec

    def etag(self, name: str) -> str:
        """Changes with every change of the object; the same after a restart."""
        return sha256(jsontext.encode(_saved(self._objects.get(name)))).hexdigest()[:16]

    def delete(self, name: str) -> None:
        super().delete(name)
        self._services.metrics.remove(**{self.label: name})
        self._stats.pop(name, None)

    def enable(self, name: str, enabled: bool) -> Spec:
        """Switch an object on or off. Its counters go on."""
        self._objects.check_changeable(name)
        item: Any = self._objects.get(name)
        switched: T = replace(item, spec=item.spec.model_copy(update={"enable": enabled}))
        return self._put(switched)

    def metrics(self, name: str) -> Spec:
        """What it counted since the start, or since it was changed; rates are per second."""
        self._objects.get(name)
        return self._stats[name].metrics()

    def reset_metrics(self, name: str) -> None:
        """Set the counters of one object to zero."""
        self._objects.get(name)
        self._stats[name].reset()

    def tick(self) -> None:
        """Sample the rates; called every ``counter_rates.STEP_S``."""
        now_s = self._services.clock.monotonic_s()
        for book in self._stats.values():
            book.sample(now_s)

    def quarantines(self) -> Sequence[str]:
        """The streams in which what is stopped is kept."""
        return [item.spec.quarantine for item in self._objects if item.spec.quarantine is not None]

    def users_of_stream(self, stream: str) -> Sequence[str]:
        """The objects that keep what they stop in a stream, as texts."""
        return [self._called(item) for item in self._objects if item.spec.quarantine == stream]

    def users_of_schema(self, schema: str) -> Sequence[str]:
        """The objects that name a schema, as texts."""
        return [self._called(item) for item in self._objects if item.names_schema(schema)]

    def on_topic(self, topic: str) -> Sequence[Spec]:
        """What runs on messages published on a topic, in order, those switched off among them."""
        return [self._told(item, topic) for item in self._objects if item.matches(topic)]

    @abstractmethod
    def _does(self, item: T) -> str:
        """What an object does, in a line."""

    def _told(self, item: T, topic: str) -> Spec:
        spec: GateSpec = item.spec
        return {
            "stage": self.kind,
            "name": item.name,
            "enabled": spec.enable,
            "topics": [one.filter for one in item.filters if one.matches(topic)],
            "mode": spec.mode,
            "on_failure": spec.effective_action,
            "does": self._does(item),
        }

    def _called(self, item: T) -> str:
        return f"{self.kind} '{item.name}'"

    def _shown(self, item: T) -> Spec:
        return {**_saved(item), **self._stats[item.name].as_members()}

    def _book(self, item: T) -> GateStats:
        """The book of an object, kept over changes."""
        metrics, name = self._services.metrics, item.name
        book = self._stats.get(name)
        if book is None:
            book = self._stats[name] = GateStats(GateCounters.of(metrics, self.metric, self.label, name))
        enabled = item.spec.enable
        metrics.gauge(f"{self.metric}_enable", lambda: enabled, "1 where it is switched on", **{self.label: name})
        stream = item.spec.quarantine
        append = None if stream is None else self._services.streams.appender(stream)
        book.keep = None if append is None else quarantine(append, self.kind, name)
        return book

    def _changed(self) -> None:
        self._gate.schemas = self._services.schemas
        self._gate.use([(item, self._book(item)) for item in self._objects])
        self._services.plans.invalidate()


def _saved(item: GateObject) -> Spec:
    """The object as it is saved and shown, defaults filled in."""
    spec: GateSpec = item.spec
    return spec.model_dump(by_alias=True)
