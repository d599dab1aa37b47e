"""The verbs a person has for validations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NotRequired, cast

from typing_extensions import TypedDict

from broker.config.schema_use import TaggedUse, message_type_of, serde_of
from broker.core.contributor import Drafts, Trial, TrialStep, Uses
from broker.core.errors import NotFound, PeerError
from broker.core.feature import Services
from broker.core.message import Message
from broker.core.objects import ObjectSection, Reference
from broker.core.schema import FieldType, SchemaLookup
from broker.core.topic import TopicFilter, covers
from broker.observe.gate_objects import GateObjects
from rules.sql.compiler.program import RuleContext
from rules.sql.type_checker.types import unified_all
from schema_validation.recent import Binding
from schema_validation.serdes.base import SchemaSerde
from schema_validation.serdes.json_types import meet
from schema_validation.spec import CheckSpec, SchemaCheckSpec, SqlCheckSpec, key_of
from schema_validation.sql_checks import check_functions
from schema_validation.stage import ValidationGate, internal_failure
from schema_validation.validation import Validation, compile_validation


class ValidationResult(TypedDict):
    """Result of one validation for a message. If it does not pass: the number from 0, type and schema of the first
    check that fails, the ``path`` in the payload (empty if there is none), the ``reason``, and the action."""

    name: str
    passed: bool
    check: NotRequired[int]
    type: NotRequired[str]
    schema: NotRequired[str | None]
    path: NotRequired[str]
    reason: NotRequired[str]
    action: NotRequired[str]


class ValidationsTrial(TypedDict):
    """Result of the validations for a message: ``pass``, or the action that stops it; ``failed`` are the names of those
    that it does not pass."""

    outcome: str
    failed: list[str]
    results: list[ValidationResult]


class ValidationService(GateObjects[Validation]):
    """A ``broker.core.objects.ObjectService`` for validations, in their order."""

    kind = "validation"
    many = "validations"
    metric = "schema_validation"
    label = "validation_name"
    acted = "passed"
    follows_schema = "its messages are checked by the new version"

    def __init__(self, services: Services, section: ObjectSection, gate: ValidationGate) -> None:
        super().__init__(services, section, gate)
        self._validations = gate
        self._functions = check_functions(lambda: services.schemas)
        self._context = RuleContext(
            services.node.name, {}, lambda: services.node.clock.now_ns() // 1_000_000
        )

    def uses(self) -> Uses:
        """Streams and schemas as of every gate, and what SQL checks name."""
        yield from super().uses()
        for item in self._objects:
            user = Reference(self.kind, item.name)
            yield from ((user, named) for check in item.sql.values() for named in check.named)

    def bound_filters(self) -> Sequence[TopicFilter]:
        """The topics whose payloads a schema checks."""
        return [
            own
            for item in self._objects
            if item.spec.enable and _schema_checks(item)
            for own in item.filters
        ]

    def bindings(self, schema: str) -> Sequence[Binding]:
        """The topics that a schema is bound to, and the message type it names there."""
        return [
            Binding(own.filter, message_type_of(check))
            for item in self._objects
            for check in _schema_checks(item)
            if check.schema_name == schema and getattr(check, "wire_format", "confluent") == "none"
            for own in item.filters
        ]

    def bound_schema(self, topic: str) -> tuple[str, Callable[[bytes], Any]] | None:
        """The name of the schema that a validation binds to a topic first, and what decodes payloads by it or raises
        ``SchemaError``."""
        for item in self._validations.on_topic(topic):
            for check in _schema_checks(item):
                if isinstance(check, TaggedUse):
                    with suppress(NotFound):
                        serde = serde_of(check, self._services.schemas)
                        return check.schema_name, partial(
                            serde.decode, message_type=message_type_of(check)
                        )
        return None

    def payload_type(
        self, topic_filter: str, schemas: SchemaLookup | None = None
    ) -> FieldType | None:
        """The type that rules find in payloads on the topics of a filter, or None where nothing is guaranteed.

        It is the type that validations guarantee, as later stages change it. ``schemas`` are in place of the
        registered ones.
        """
        kind = payload_type(list(self._objects), topic_filter, schemas or self._services.schemas)
        for later in self._services.contributors:
            kind = None if kind is None else later.payload_type_after(topic_filter, kind)
        return kind

    def try_on(self, message: Message, drafts: Drafts) -> Trial:
        """Run the validations on a message that no one published."""
        trial = _tried(self._with(drafts), self._services.schemas, message)
        outcome = trial["outcome"]
        steps = [
            cast(
                TrialStep, {"stage": "validation", "outcome": step.get("action", "passed"), **step}
            )
            for step in trial["results"]
        ]
        return Trial(steps, message if outcome == "pass" else None)

    def test(self, body: Mapping[str, Any]) -> ValidationsTrial:
        """Run validations that need not be saved on a message that no one published.

        Raises:
            Invalid: the validations, schemas or message cannot be used.
        """
        validations, schemas, message = self._for_trial(body)
        return _tried(validations, schemas, message)

    def _compile(
        self, spec: Mapping[str, Any], pointer: str = "", schemas: SchemaLookup | None = None
    ) -> Validation:
        functions = self._functions if schemas is None else check_functions(lambda: schemas)
        return compile_validation(spec, functions, self._context, pointer, strict=schemas is None)

    def _does(self, item: Validation) -> str:
        checks = (
            check.sql if isinstance(check, SqlCheckSpec) else key_of(check)
            for check in item.spec.checks
        )
        how = (
            ""
            if len(item.spec.checks) == 1
            else "all of "
            if item.spec.strategy == "all_pass"
            else "one of "
        )
        return f"checks {how}{', '.join(checks)}"


def _schema_checks(item: Validation) -> Sequence[SchemaCheckSpec]:
    return [check for check in item.spec.checks if not isinstance(check, SqlCheckSpec)]


def _tried(
    validations: Sequence[Validation], schemas: SchemaLookup, message: Message
) -> ValidationsTrial:
    """The gate's result in full; nothing is counted."""
    results: list[ValidationResult] = []
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


def _one(validation: Validation, schemas: SchemaLookup, message: Message) -> ValidationResult:
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


def payload_type(
    validations: Iterable[Validation], topic_filter: str, schemas: SchemaLookup
) -> FieldType | None:
    """The type of payloads that passed every schema check on these topics."""
    try:
        wanted = TopicFilter.parse(topic_filter).levels
    except PeerError:
        return None
    met: FieldType | None = None
    for validation in validations:
        spec = validation.spec
        if (
            spec.enable
            and spec.stops
            and any(covers(own.levels, wanted) for own in validation.filters)
        ):
            met = _met(met, _type_of(validation, schemas))
    return met


def _met(field_type: FieldType | None, other: FieldType | None) -> FieldType | None:
    """The type of payloads that pass two checks; the first where they are written differently."""
    if field_type is None or other is None:
        return field_type if other is None else other
    return (
        replace(meet(field_type, other), coding=field_type.coding)
        if field_type.coding == other.coding
        else field_type
    )


def _type_of(validation: Validation, schemas: SchemaLookup) -> FieldType | None:
    """The type by all checks together, or what they have in common where any one suffices."""
    kinds = [_type_by(check, schemas) for check in validation.spec.checks]
    certain_kinds = [kind for kind in kinds if kind is not None]
    if validation.spec.strategy == "all_pass":
        met: FieldType | None = None
        for kind in certain_kinds:
            met = _met(met, kind)
        return met
    if len(certain_kinds) < len(kinds) or len({kind.coding for kind in certain_kinds}) > 1:
        return None
    return replace(unified_all(certain_kinds), coding=certain_kinds[0].coding)


def _type_by(check: CheckSpec, schemas: SchemaLookup) -> FieldType | None:
    if not isinstance(check, TaggedUse) or check.wire_format != "none":
        return None
    try:
        serde = schemas.serde(check.schema_name)
    except NotFound:
        return None
    if not isinstance(serde, SchemaSerde) or serde.kind != check.type:
        return None
    kind = serde.field_type(message_type_of(check))
    return replace(kind, coding=serde.kind)
