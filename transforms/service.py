"""The verbs a person has for transformations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from broker.core.errors import Invalid, PeerError, Problem
from broker.core.feature import Services
from broker.core.filters import overlaps
from broker.core.message import Message
from broker.core.objects import ObjectSection, Spec
from broker.core.ordered import OrderedObjects
from broker.core.path import Trial
from broker.core.quarantine import quarantine, quarantine_problems
from broker.core.schema import FieldType, SchemaEffect, SchemaLookup
from broker.core.topic import TopicFilter
from broker.core.wire import from_wire, to_wire
from broker.observe.gate_counters import GateBook
from transforms.messages.preview import preview, try_on
from transforms.messages.stage import TransformationGate, counters_of
from transforms.messages.transformation import Transformation, compile_transformation, missing_schemas
from transforms.messages.types import type_after
from transforms.variform.compiler import compile_expression
from transforms.variform.errors import CompileError, EvalError


class TransformService:
    """A ``broker.core.objects.ObjectService`` for transformations, in their order."""

    kind = "transformation"

    def __init__(self, services: Services, section: ObjectSection, gate: TransformationGate) -> None:
        self._services, self._gate = services, gate
        self._objects: OrderedObjects[Transformation] = OrderedObjects(self.kind, section, Transformation.as_spec)
        self._books: dict[str, GateBook] = {}

    def load(self, specs: Sequence[Spec]) -> list[str]:
        """Take the transformations of the configuration; gives a sentence for each that cannot be used."""
        problems: list[str] = []
        for spec in specs:
            try:
                made = self._compiled(spec, check_references=True)
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
        made = self._compiled(spec, check_references=True)
        self._objects.check_free(made.name)
        return self._put(made)

    def replace(self, name: str, spec: Spec) -> Spec:
        """Change a transformation. It keeps its place in the order; its counters begin anew."""
        self._objects.check_changeable(name)
        made = self._compiled({**spec, "name": spec.get("name", name)}, check_references=True)
        if made.name != name:
            raise Invalid("a transformation keeps its name", [Problem(f"expected {name!r}", "/name")])
        self._put(made)
        self._books[name].reset()
        return self._shown(made)

    def delete(self, name: str) -> None:
        self._objects.remove(name)
        self._services.metrics.remove(transformation_name=name)
        self._books.pop(name, None)
        self._changed()

    def enable(self, name: str, enabled: bool) -> Spec:
        """Switch a transformation on or off."""
        self._objects.check_changeable(name)
        spec = {**self._objects.get(name).as_spec(), "enable": enabled}
        return self._put(self._compiled(spec, check_references=False))

    def reorder(self, names: Sequence[str]) -> None:
        """Bring all transformations into this order. Raises ``Invalid`` unless each is named exactly once."""
        self._objects.reorder(names)
        self._changed()

    def metrics(self, name: str) -> Spec:
        """What it counted since the start, or since it was changed."""
        self._objects.get(name)
        return self._books[name].counters.as_dict()

    def reset_metrics(self, name: str) -> None:
        """Set the counters of one transformation to zero."""
        self._objects.get(name)
        self._books[name].reset()

    def quarantines(self) -> Sequence[str]:
        """The streams in which transformations keep what they stop."""
        return [item.spec.quarantine for item in self._objects if item.spec.quarantine is not None]

    def users_of_stream(self, stream: str) -> Sequence[str]:
        """The transformations that keep what they stop in a stream, as texts."""
        return [f"transformation '{item.name}'" for item in self._objects if item.spec.quarantine == stream]

    def users_of_schema(self, schema: str) -> Sequence[str]:
        """The transformations whose decoder or encoder names a schema, as texts."""
        return [f"transformation '{item.name}'" for item in self._objects if _names_schema(item, schema)]

    def effects_of_schema(self, schema: str, schemas: SchemaLookup) -> Sequence[SchemaEffect]:
        """The transformations that name a schema, and which of them would fail every message with such schemas."""
        found = []
        for item in self._objects:
            if _names_schema(item, schema):
                why = "; ".join(problem.message for problem in missing_schemas(item, schemas))
                text = why or "its payloads are coded by the new version"
                found.append(SchemaEffect(f"transformation '{item.name}'", bool(why), text))
        return found

    def payload_type_after(self, topic_filter: str, before: FieldType) -> FieldType | None:
        """The type of the payloads on a filter's topics after all transformations, given the type before them.

        Transformations that move messages to other topics are not followed.
        """
        try:
            levels = TopicFilter.parse(topic_filter).levels
        except PeerError:
            return None
        known: FieldType | None = before
        for item in self._objects:
            if known is not None and item.spec.enable and any(overlaps(own.levels, levels) for own in item.filters):
                known = type_after(item, known)
        return known

    def on_topic(self, topic: str) -> Sequence[Spec]:
        """The transformations of messages published on a topic, in order, those switched off among them."""
        return [
            {
                "stage": "transformation",
                "name": item.name,
                "enabled": item.spec.enable,
                "topics": [one.filter for one in item.filters if one.matches(topic)],
                "mode": item.spec.mode,
                "on_failure": item.spec.effective_action,
                "does": "; ".join(f"{one.key} = {one.value}" for one in item.operations)
                or f"{item.spec.payload_decoder.type} to {item.spec.payload_encoder.type}",
            }
            for item in self._objects
            if item.matches(topic)
        ]

    def try_on(self, message: Message) -> Trial:
        """Run the transformations on a message that nobody published."""
        return try_on(list(self._objects), message, self._services)

    def preview(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Run transformations that need not be saved on a message that nobody published.

        Raises:
            Invalid: the transformations, schemas or message cannot be used.
        """
        return preview(body, self._services)

    def evaluate(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Evaluate a variform expression over bindings.

        Raises:
            Invalid: it does not compile, or fails.
        """
        source, bindings = body.get("expression"), body.get("bindings", {})
        if not isinstance(source, str):
            raise Invalid("an expression is wanted", [Problem("a text is wanted", "/expression")])
        if not isinstance(bindings, Mapping):
            raise Invalid("bindings are an object", [Problem("an object is wanted", "/bindings")])
        try:
            expression = compile_expression(source, raw=bool(body.get("raw", False)))
            return {"value": to_wire(expression.evaluate(from_wire(bindings)))}
        except CompileError as error:
            problem = Problem(error.message, "/expression", error.line, error.column, error.suggestion)
            raise Invalid("the expression does not compile", [problem]) from None
        except EvalError as error:
            raise Invalid("the expression fails", [Problem(str(error), "/expression")], code=error.reason) from None

    def _compiled(self, spec: Mapping[str, Any], *, check_references: bool) -> Transformation:
        made = compile_transformation(spec)
        problems = missing_schemas(made, self._services.schemas) if check_references else []
        problems += quarantine_problems(made.spec.quarantine, self._services.streams)
        if problems:
            raise Invalid(f"transformation {made.name!r} cannot be saved", problems)
        return made

    def _put(self, made: Transformation) -> Spec:
        self._objects.put(made.name, made)
        self._changed()
        return self._shown(made)

    def _shown(self, item: Transformation) -> Spec:
        return {**item.as_spec(), **self._books[item.name].as_members()}

    def _book(self, item: Transformation) -> GateBook:
        """The book of a transformation, kept over changes."""
        book = self._books.get(item.name)
        if book is None:
            book = self._books[item.name] = GateBook(counters_of(self._services.metrics, item.name))
        stream = item.spec.quarantine
        append = None if stream is None else self._services.streams.appender(stream)
        book.keep = None if append is None else quarantine(append, "transformation", item.name)
        return book

    def _changed(self) -> None:
        self._gate.schemas = self._services.schemas
        self._gate.use([(item, self._book(item)) for item in self._objects])
        self._services.plans.invalidate()


def _names_schema(item: Transformation, schema: str) -> bool:
    return any(
        getattr(codec, "schema_name", None) == schema
        for codec in (item.spec.payload_decoder, item.spec.payload_encoder)
    )
