"""The verbs a person has for validations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from broker.core import wire
from broker.core.errors import Invalid, Problem
from broker.core.feature import Services
from broker.core.message import Message
from broker.core.objects import ObjectSection, Spec
from broker.core.ordered import OrderedObjects
from broker.core.path import Trial
from broker.core.quarantine import quarantine, quarantine_problems
from broker.core.schema import FieldType, SchemaEffect, SchemaLookup, TrialSchemas
from broker.core.topic import TopicFilter
from broker.observe.gate_counters import GateBook
from rules.sql.compiler import Surroundings
from schema_validation.binding import payload_type
from schema_validation.recent import Binding
from schema_validation.spec import CheckSpec, SchemaCheckSpec, SqlCheckSpec, key_of
from schema_validation.stage import ValidationGate, counters_of, internal_failure
from schema_validation.validation import Validation, compile_validation, missing_schemas

Answer = dict[str, Any]


class ValidationService:
    """A ``broker.core.objects.ObjectService`` for validations, in their order."""

    kind = "validation"

    def __init__(self, services: Services, section: ObjectSection, gate: ValidationGate) -> None:
        self._services, self._gate = services, gate
        self._surroundings = Surroundings(services.node, {}, lambda: services.clock.now_ns() // 1_000_000)
        self._objects: OrderedObjects[Validation] = OrderedObjects(self.kind, section, Validation.as_spec)
        self._books: dict[str, GateBook] = {}

    def load(self, specs: Sequence[Spec]) -> list[str]:
        """Take the validations of the configuration; gives a sentence for each that cannot be used."""
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
        """Change a validation. It keeps its place in the order; its counters begin anew."""
        self._objects.check_changeable(name)
        made = self._compiled({**spec, "name": spec.get("name", name)})
        if made.name != name:
            raise Invalid("a validation keeps its name", [Problem(f"expected {name!r}", "/name")])
        self._put(made)
        self._books[name].reset()
        return self._shown(made)

    def delete(self, name: str) -> None:
        self._objects.remove(name)
        self._services.metrics.remove(validation_name=name)
        self._books.pop(name, None)
        self._changed()

    def enable(self, name: str, enabled: bool) -> Spec:
        """Switch a validation on or off."""
        self._objects.check_changeable(name)
        validation = self._objects.get(name)
        return self._put(replace(validation, spec=validation.spec.model_copy(update={"enable": enabled})))

    def reorder(self, names: Sequence[str]) -> None:
        """Bring all validations into this order. Raises ``Invalid`` unless each is named exactly once."""
        self._objects.reorder(names)
        self._changed()

    def metrics(self, name: str) -> Spec:
        """What it counted since the start, or since it was changed."""
        self._objects.get(name)
        return self._books[name].counters.as_dict()

    def reset_metrics(self, name: str) -> None:
        """Set the counters of one validation to zero."""
        self._objects.get(name)
        self._books[name].reset()

    def quarantines(self) -> Sequence[str]:
        """The streams in which validations keep what they stop."""
        return [item.spec.quarantine for item in self._objects if item.spec.quarantine is not None]

    def users_of_stream(self, stream: str) -> Sequence[str]:
        """The validations that keep what they stop in a stream, as texts."""
        return [f"validation '{item.name}'" for item in self._objects if item.spec.quarantine == stream]

    def users_of_schema(self, schema: str) -> Sequence[str]:
        """The validations whose checks name a schema, as texts."""
        return [f"validation '{item.name}'" for item in self._objects if item.names_schema(schema)]

    def effects_of_schema(self, schema: str, schemas: SchemaLookup) -> Sequence[SchemaEffect]:
        """The validations that name a schema, and which of them would fail every message with such schemas."""
        users = [item for item in self._objects if item.names_schema(schema)]
        return [_effect(item, missing_schemas(item, schemas)) for item in users]

    def bound_filters(self) -> Sequence[TopicFilter]:
        """The topics whose payloads a schema checks."""
        return [own for item in self._objects if item.spec.enable and _schema_checks(item) for own in item.filters]

    def bindings(self, schema: str) -> Sequence[Binding]:
        """The topics that a schema is bound to, and the message type it names there."""
        return [
            Binding(own.filter, getattr(check, "message_type", None))
            for item in self._objects
            for check in _schema_checks(item)
            if check.schema_name == schema and check.wire_format == "none"
            for own in item.filters
        ]

    def payload_type(self, topic_filter: str, schemas: SchemaLookup | None = None) -> FieldType | None:
        """The type that rules find in payloads on the topics of a filter, or None where nothing is guaranteed.

        It is the type that validations guarantee, as later stages change it. ``schemas`` stand in place of the
        registered ones.
        """
        found = payload_type(list(self._objects), topic_filter, schemas or self._services.schemas)
        for change in self._services.payload_changes:
            found = None if found is None else change(topic_filter, found)
        return found

    def on_topic(self, topic: str) -> Sequence[Spec]:
        """The validations that run on messages published on a topic, in order, those switched off among them."""
        return [
            {
                "stage": "validation",
                "name": item.name,
                "enabled": item.spec.enable,
                "topics": [one.filter for one in item.filters if one.matches(topic)],
                "mode": item.spec.mode,
                "on_failure": item.spec.effective_action,
                "does": f"{item.spec.strategy}: {', '.join(map(_told, item.spec.checks))}",
            }
            for item in self._objects
            if item.matches(topic)
        ]

    def try_on(self, message: Message) -> Trial:
        """Run the validations on a message that nobody published."""
        found = _tried(list(self._objects), self._services.schemas, message)
        outcome = found["outcome"]
        steps = [
            {"stage": "validation", "outcome": "passed" if step["passed"] else step["action"], **step}
            for step in found["results"]
        ]
        return Trial(steps, message if outcome == "pass" else None)

    def test(self, body: Mapping[str, Any]) -> Answer:
        """Run validations that need not be saved on a message that nobody published.

        Raises:
            Invalid: the validations, schemas or message cannot be used.
        """
        schemas = _schemas(body.get("schemas"), self._services.schemas)
        validations = self._all_compiled(body.get("validations"), schemas, body.get("check_references", True) is True)
        message = wire.message_from_wire(body.get("message"), self._services.clock.now_ns())
        return _tried(validations, schemas, message)

    def _all_compiled(self, specs: Any, schemas: SchemaLookup, check_references: bool) -> Sequence[Validation]:
        if not isinstance(specs, Sequence) or isinstance(specs, str):
            raise Invalid("validations are a list", [Problem("a list is wanted", "/validations")])
        made: dict[str, Validation] = {}
        problems: list[Problem] = []
        for index, spec in enumerate(specs):
            pointer = f"/validations/{index}"
            try:
                item = compile_validation(spec, self._surroundings, pointer, strict=False)
            except Invalid as error:
                problems += error.problems
                continue
            if item.name in made:
                problems.append(Problem(f"the name {item.name!r} is taken", f"{pointer}/name"))
            if check_references:
                problems += missing_schemas(item, schemas, pointer)
            made[item.name] = item
        if problems:
            raise Invalid("the validations cannot be saved", problems)
        return tuple(made.values())

    def _compiled(self, spec: Mapping[str, Any]) -> Validation:
        made = compile_validation(spec, self._surroundings)
        problems = missing_schemas(made, self._services.schemas)
        problems += quarantine_problems(made.spec.quarantine, self._services.streams)
        if problems:
            raise Invalid(f"validation {made.name!r} cannot be saved", problems)
        return made

    def _put(self, made: Validation) -> Spec:
        self._objects.put(made.name, made)
        self._changed()
        return self._shown(made)

    def _shown(self, item: Validation) -> Spec:
        return {**item.as_spec(), **self._books[item.name].as_members()}

    def _book(self, item: Validation) -> GateBook:
        """The book of a validation, kept over changes."""
        book = self._books.get(item.name)
        if book is None:
            book = self._books[item.name] = GateBook(counters_of(self._services.metrics, item.name))
        stream = item.spec.quarantine
        append = None if stream is None else self._services.streams.appender(stream)
        book.keep = None if append is None else quarantine(append, "validation", item.name)
        return book

    def _changed(self) -> None:
        self._gate.schemas = self._services.schemas
        self._gate.use([(item, self._book(item)) for item in self._objects])
        self._services.plans.invalidate()


def _told(check: CheckSpec) -> str:
    return check.sql if isinstance(check, SqlCheckSpec) else key_of(check)


def _schema_checks(item: Validation) -> Sequence[SchemaCheckSpec]:
    return [check for check in item.spec.checks if not isinstance(check, SqlCheckSpec)]


def _effect(item: Validation, problems: Sequence[Problem]) -> SchemaEffect:
    why = "; ".join(problem.message for problem in problems)
    return SchemaEffect(
        f"validation '{item.name}'", bool(problems), why or "its messages are checked by the new version"
    )


def _schemas(specs: Any, known: SchemaLookup) -> SchemaLookup:
    if not specs:
        return known
    if not isinstance(specs, list) or not isinstance(known, TrialSchemas):
        raise Invalid("schemas cannot be used", [Problem("a list of schemas is wanted", "/schemas")])
    return known.with_schemas(specs)


def _tried(validations: Sequence[Validation], schemas: SchemaLookup, message: Message) -> Answer:
    """What the gate would do, told in full, counting nothing."""
    results: list[Answer] = []
    outcome = "pass"
    for validation in validations:
        if not validation.spec.enable or not validation.matches(message.topic):
            continue
        result = _one(validation, schemas, message)
        results.append(result)
        if not result["passed"] and validation.spec.stops:
            outcome = validation.spec.failure_action
            break
    failed = [result["name"] for result in results if not result["passed"]]
    return {"outcome": outcome, "failed": failed, "results": results}


def _one(validation: Validation, schemas: SchemaLookup, message: Message) -> Answer:
    try:
        failure = validation.bind(schemas)(message)
    except Exception as error:  # noqa: BLE001 # as in the gate: a check that breaks has failed
        failure = internal_failure(error)
    if failure is None:
        return {"name": validation.name, "passed": True}
    return {
        "name": validation.name,
        "passed": False,
        "check": failure.check,
        "type": failure.type,
        "schema": failure.schema,
        "path": failure.path,
        "reason": failure.reason,
        "action": validation.spec.effective_action,
    }
