"""The verbs that a person has for the objects of a gate: validations and transformations, in their order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from broker.config.gate_spec import READ_ONLY, GateSpec
from broker.core import jsontext
from broker.core.contributor import Contributor, Uses
from broker.core.errors import Invalid, Problem
from broker.core.feature import Services
from broker.core.merge_patch import merged
from broker.core.objects import ObjectSection, Reference, Spec
from broker.core.ordered import OrderedObjects
from broker.core.quarantine import COLUMNS, quarantine
from broker.core.schema import FieldType, SchemaEffect, SchemaLookup
from broker.core.topic import TopicFilter
from broker.observe.counter_rates import Ticks
from broker.observe.gate_counters import GateBook, GateCounters


class GateObject(Protocol):
    """A checked and compiled object, a frozen dataclass."""

    @property
    def spec(self) -> Any: ...

    @property
    def name(self) -> str: ...

    @property
    def filters(self) -> tuple[TopicFilter, ...]: ...

    def matches(self, topic: str) -> bool: ...

    def schemas(self) -> Iterable[str]: ...


T = TypeVar("T", bound=GateObject)
_Taken = TypeVar("_Taken", bound=GateObject, contravariant=True)


class RunningGate(Protocol[_Taken]):
    """The gate that runs the objects."""

    schemas: SchemaLookup | None

    def use(self, objects: Iterable[tuple[_Taken, GateBook]], /) -> None: ...


class GateObjects(Contributor, ABC, Generic[T]):
    """A ``broker.core.objects.ObjectService``, and what gates have beside."""

    kind: ClassVar[str]
    """What an object is called, and the stage in quarantine and view."""
    metric: ClassVar[str]
    """What the names of its metrics begin with."""
    label: ClassVar[str]
    """The label of its metrics."""
    follows_schema: ClassVar[str]
    """What a change of a schema does to an object that goes on working."""

    def __init__(self, services: Services, section: ObjectSection, gate: RunningGate[T]) -> None:
        self._services, self._gate = services, gate
        self._objects: OrderedObjects[T] = OrderedObjects(self.kind, section, _saved)
        self._books: dict[str, GateBook] = {}
        self.ticks = Ticks(self.tick)

    @abstractmethod
    def _compiled(self, spec: Spec) -> T:
        """Check and compile what was sent, and what it refers to. Raises ``Invalid`` with every problem."""

    def load(self, specs: Sequence[Spec]) -> list[str]:
        """Take the objects of the configuration; gives a sentence for each that cannot be used."""
        problems: list[str] = []
        for spec in specs:
            try:
                made = self._compiled(spec)
                self._objects.check_free(made.name)
                self._objects.adopt(made.name, made)
            except (Invalid, ValueError) as error:
                problems.append(self._objects.refusal(spec, error))
        self._changed()
        return problems

    def list(self) -> Sequence[Spec]:
        return [self._shown(item) for item in self._objects]

    def get(self, name: str) -> Spec:
        return self._shown(self._objects.get(name))

    def create(self, spec: Spec) -> Spec:
        made = self._compiled(spec)
        self._objects.check_free(made.name)
        return self._put(made)

    def replace(self, name: str, spec: Spec) -> Spec:
        """Change an object. It keeps its place in the order; its counters restart at zero."""
        self._objects.check_changeable(name)
        made = self._compiled({**spec, "name": spec.get("name", name)})
        if made.name != name:
            raise Invalid(f"a {self.kind} keeps its name", [Problem(f"expected {name!r}", "/name")])
        self._put(made)
        self._books[name].reset()
        return self._shown(made)

    def patched(self, name: str, patch: Spec) -> Spec:
        """An object with a JSON Merge Patch (RFC 7396) applied, to be checked and saved by ``replace``."""
        shown = {key: value for key, value in patch.items() if key not in READ_ONLY}
        spec: Spec = merged(_saved(self._objects.get(name)), shown)
        return spec

    def etag(self, name: str) -> str:
        """Changes with every change of the object; the same after a restart."""
        return sha256(jsontext.encode(_saved(self._objects.get(name)))).hexdigest()[:16]

    def delete(self, name: str) -> None:
        self._objects.remove(name)
        self._services.monitoring.metrics.remove(**{self.label: name})
        self._books.pop(name, None)
        self._changed()

    def enable(self, name: str, enabled: bool) -> Spec:
        """Switch an object on or off. Its counters go on."""
        self._objects.check_changeable(name)
        item: Any = self._objects.get(name)
        switched: T = replace(item, spec=item.spec.model_copy(update={"enable": enabled}))
        return self._put(switched)

    def reorder(self, names: Sequence[str]) -> None:
        """Bring all objects into this order. Raises ``Invalid`` unless each is named exactly once."""
        self._objects.reorder(names)
        self._changed()

    def metrics(self, name: str) -> Spec:
        """What it counted since the start, or since it was changed; rates are per second."""
        self._objects.get(name)
        return self._books[name].metrics()

    def reset_metrics(self, name: str) -> None:
        """Set the counters of one object to zero."""
        self._objects.get(name)
        self._books[name].reset()

    def tick(self) -> None:
        """Sample the rates; called every ``counter_rates.STEP_S``."""
        now_s = self._services.node.clock.monotonic_s()
        for book in self._books.values():
            book.sample(now_s)

    def quarantines(self) -> Sequence[str]:
        """The streams in which what is stopped is kept."""
        return [item.spec.quarantine for item in self._objects if item.spec.quarantine is not None]

    def uses(self) -> Uses:
        """Streams that keep what is stopped, and schemas."""
        for item in self._objects:
            user = Reference(self.kind, item.name)
            if item.spec.quarantine is not None:
                yield user, Reference("stream", item.spec.quarantine)
            for schema in item.schemas():
                yield user, Reference("schema", schema)

    def columns_of_stream(self, stream: str) -> Mapping[str, FieldType]:
        return COLUMNS if stream in self.quarantines() else {}

    def effects_of_schema(self, schema: str, schemas: SchemaLookup) -> Sequence[SchemaEffect]:
        found = []
        for item in self._objects:
            if schema in item.schemas():
                why = "; ".join(problem.message for problem in self._missing(item, schemas))
                found.append(SchemaEffect(Reference(self.kind, item.name), bool(why), why or self.follows_schema))
        return found

    @abstractmethod
    def _missing(self, item: T, schemas: SchemaLookup) -> Sequence[Problem]:
        """The problems with the schemas that an object names."""

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

    def _put(self, made: T) -> Spec:
        self._objects.put(made.name, made)
        self._changed()
        return self._shown(made)

    def _shown(self, item: T) -> Spec:
        return {**_saved(item), **self._books[item.name].as_members()}

    def _book(self, item: T) -> GateBook:
        """The book of an object, kept over changes."""
        metrics, name = self._services.monitoring.metrics, item.name
        book = self._books.get(name)
        if book is None:
            book = self._books[name] = GateBook(GateCounters.of(metrics, self.metric, self.label, name))
        enabled = item.spec.enable
        metrics.gauge(f"{self.metric}_enable", lambda: enabled, "1 where it is switched on", **{self.label: name})
        stream = item.spec.quarantine
        append = None if stream is None else self._services.storage.streams.appender(stream)
        book.keep = None if append is None else quarantine(append, self.kind, name)
        return book

    def _changed(self) -> None:
        self._gate.schemas = self._services.schemas
        self._gate.use([(item, self._book(item)) for item in self._objects])
        self._services.messaging.plans.invalidate()


def _saved(item: GateObject) -> Spec:
    """The object as it is saved and shown, defaults filled in."""
    spec: GateSpec = item.spec
    return spec.model_dump(by_alias=True)
