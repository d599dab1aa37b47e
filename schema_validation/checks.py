"""Checks of a validation, bound to the schemas of this moment: a message in, None or the failure out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.config.schema_use import message_type_of, serde_of
from broker.core.errors import NotFound
from broker.core.jsontext import JsonError
from broker.core.message import Message
from broker.core.schema import SchemaLookup
from schema_validation.serdes.base import SchemaSerde
from schema_validation.spec import SchemaCheckSpec

if TYPE_CHECKING:
    from schema_validation.serdes.json_schema import JsonSchemaSerde


@dataclass(frozen=True, slots=True)
class CheckFailure:
    """A check that a message did not pass. ``path`` is the place in the payload, "" where there is none."""

    check: int
    type: str
    schema: str | None
    path: str
    reason: str
    is_payload: bool
    """The payload does not fit a schema; false for a condition and for an internal error."""

    @property
    def text(self) -> str:
        """``payload.temp: 'hot' is not of type "number"``"""
        return f"{self.path}: {self.reason}" if self.path else self.reason


Check = Callable[[Message], CheckFailure | None]


def schema_check(index: int, spec: SchemaCheckSpec, schemas: SchemaLookup) -> Check:
    """The check of a payload by a schema. A schema that is not there, or is of another type, fails every message."""
    from schema_validation.serdes.json_schema import JsonSchemaSerde

    try:
        serde = serde_of(spec, schemas)
    except NotFound as error:
        return _always(CheckFailure(index, spec.type, spec.schema_name, "", str(error), True))
    if isinstance(serde, JsonSchemaSerde) and spec.type == "json":
        return _json_check(index, spec.schema_name, serde)
    if not isinstance(serde, SchemaSerde) or serde.kind != spec.type:
        reason = f"schema '{spec.schema_name}' is not of type {spec.type}"
        return _always(CheckFailure(index, spec.type, spec.schema_name, "", reason, True))
    return _decoding_check(index, spec, serde)


def _json_check(index: int, schema: str, serde: JsonSchemaSerde) -> Check:
    """The hot one: the payload is decoded once a message, by the first to ask, and validated by native code."""
    is_valid, explain = serde.is_valid, serde.explain

    def check(message: Message) -> CheckFailure | None:
        try:
            value = message.json()
        except JsonError as error:
            return CheckFailure(index, "json", schema, "payload", f"not JSON: {error}", True)
        if is_valid(value):
            return None
        found = explain(value)
        return CheckFailure(index, "json", schema, found.path, found.detail, True)

    return check


def _decoding_check(index: int, spec: SchemaCheckSpec, serde: SchemaSerde) -> Check:
    misfit, kind, schema, message_type = serde.misfit, spec.type, spec.schema_name, message_type_of(spec)

    def check(message: Message) -> CheckFailure | None:
        found = misfit(message.payload, message_type)
        return None if found is None else CheckFailure(index, kind, schema, found.path, found.detail, True)

    return check


def _always(failure: CheckFailure) -> Check:
    def check(message: Message) -> CheckFailure | None:
        return failure

    return check


def all_pass(checks: Sequence[Check]) -> Check:
    """Passes when all pass; stops at the first that does not."""
    if len(checks) == 1:
        return checks[0]

    def run(message: Message) -> CheckFailure | None:
        for check in checks:
            failure = check(message)
            if failure is not None:
                return failure
        return None

    return run


def any_pass(checks: Sequence[Check]) -> Check:
    """Passes when one passes, and stops there; otherwise gives the first failure. A check that breaks has failed."""

    def run(message: Message) -> CheckFailure | None:
        first: CheckFailure | None = None
        for index, check in enumerate(checks):
            try:
                failure = check(message)
            except Exception as error:  # noqa: BLE001 # the next check may still pass
                failure = CheckFailure(index, "", None, "", f"internal error: {error!r:.200}", False)
            if failure is None:
                return None
            first = first or failure
        return first

    return run
