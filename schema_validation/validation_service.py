"""The verbs a person has for validations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from broker.core import wire
from broker.core.contributor import Trial
from broker.core.errors import Invalid, Problem
from broker.core.feature import Services
from broker.core.message import Message
from broker.core.objects import ObjectSection
from broker.core.quarantine import quarantine_problems
from broker.core.schema import FieldType, SchemaLookup, TrialSchemas
from broker.core.topic import TopicFilter
from broker.observe.gate_objects import GateObjects
from rules.sql.compiler import Surroundings
from schema_validation.binding import payload_type
from schema_validation.recent import Binding
from schema_validation.spec import CheckSpec, SchemaCheckSpec, SqlCheckSpec, key_of
from schema_validation.sql_checks import check_functions
from schema_validation.stage import ValidationGate, internal_failure
from schema_validation.validation import Validation, compile_validation, missing_schemas, names_of_missing

Answer = dict[str, Any]


class ValidationService(GateObjects[Validation]):
    """A ``broker.core.objects.ObjectService`` for validations, in their order."""

    kind = "validation"
    metric = "schema_validation"
    label = "validation_name"
    follows_schema = "its messages are checked by the new version"

    def __init__(self, services: Services, section: ObjectSection, gate: ValidationGate) -> None:
        super().__init__(services, section, gate)
        self._functions = check_functions(lambda: services.schemas)
        self._surroundings = Surroundings(services.node.name, {}, lambda: services.node.clock.now_ns() // 1_000_000)

    def _missing(self, item: Validation, schemas: SchemaLookup) -> Sequence[Problem]:
        return missing_schemas(item, schemas)

    def bound_filters(self) -> Sequence[TopicFilter]:
        """The topics whose payloads a schema checks."""
        return [own for item in self._objects if item.spec.enable and _schema_checks(item) for own in item.filters]

    def bindings(self, schema: str) -> Sequence[Binding]:
        """The topics that a schema is bound to, and the message type it names there."""
        return [
            Binding(own.filter, getattr(check, "message_type", None))
            for item in self._objects
            for check in _schema_checks(item)
            if check.schema_name == schema and getattr(check, "wire_format", "confluent") == "none"
            for own in item.filters
        ]

    def payload_type(self, topic_filter: str, schemas: SchemaLookup | None = None) -> FieldType | None:
        """The type that rules find in payloads on the topics of a filter, or None where nothing is guaranteed.

        It is the type that validations guarantee, as later stages change it. ``schemas`` stand in place of the
        registered ones.
        """
        found = payload_type(list(self._objects), topic_filter, schemas or self._services.schemas)
        for later in self._services.contributors:
            found = None if found is None else later.payload_type_after(topic_filter, found)
        return found

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
        message = wire.message_from_wire(body.get("message"), self._services.node.clock.now_ns())
        return _tried(validations, schemas, message)

    def _all_compiled(self, specs: Any, schemas: SchemaLookup, check_references: bool) -> Sequence[Validation]:
        if not isinstance(specs, Sequence) or isinstance(specs, str):
            raise Invalid("validations are a list", [Problem("a list is wanted", "/validations")])
        made: dict[str, Validation] = {}
        functions = check_functions(lambda: schemas)
        problems: list[Problem] = []
        for index, spec in enumerate(specs):
            pointer = f"/validations/{index}"
            try:
                item = compile_validation(spec, functions, self._surroundings, pointer, strict=False)
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
        made = compile_validation(spec, self._functions, self._surroundings)
        problems = missing_schemas(made, self._services.schemas)
        problems += quarantine_problems(made.spec.quarantine, self._services.storage.streams)
        if problems:
            names = names_of_missing(made, self._services.schemas)
            members = {"missing_schemas": names} if names else None
            raise Invalid(f"validation {made.name!r} cannot be saved", problems, members=members)
        return made

    def _does(self, item: Validation) -> str:
        return f"{item.spec.strategy}: {', '.join(map(_told, item.spec.checks))}"


def _told(check: CheckSpec) -> str:
    return check.sql if isinstance(check, SqlCheckSpec) else key_of(check)


def _schema_checks(item: Validation) -> Sequence[SchemaCheckSpec]:
    return [check for check in item.spec.checks if not isinstance(check, SqlCheckSpec)]


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
