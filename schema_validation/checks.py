"""Checks of a validation, bound to the schemas of this moment: a message in, None or the failure out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from broker.config.schema_use import message_type_of, serde_of
from broker.core.errors import NotFound
from broker.core.jsontext import JsonError
from broker.core.message import Message
from broker.core.schema import SchemaLookup
from schema_validation.serdes.base import Misfit, SchemaSerde
from schema_validation.spec import SchemaCheckSpec

if TYPE_CHECKING:
    from schema_validation.serdes.json_schema import JsonSchemaSerde


@dataclass(slots=True)
class CheckFailure:
    """A check that a message did not pass. ``path`` is the place in the payload, empty if it has no place."""

    check: int
    type: str
    schema: str | None
    cause: Misfit | Callable[[], Misfit]
    """The misfit, or a call that determines it: by JSON Schema that takes ten times as long as to see that it does not
    fit."""
    is_payload: bool
    """The payload does not fit a schema; false for a condition and for an internal error."""

    @property
    def misfit(self) -> Misfit:
        """Place and reason."""
        if not isinstance(self.cause, Misfit):
            self.cause = self.cause()
        return self.cause

    @property
    def path(self) -> str:
        """The place in the payload."""
        return self.misfit.path

    @property
    def reason(self) -> str:
        """The reason at that place."""
        return self.misfit.detail

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
        return _always(
            CheckFailure(index, spec.type, spec.schema_name, Misfit("", str(error)), True)
        )
    if isinstance(serde, JsonSchemaSerde) and spec.type == "json":
        return _json_check(index, spec.schema_name, serde)
    if not isinstance(serde, SchemaSerde) or serde.kind != spec.type:
        reason = f"schema '{spec.schema_name}' is not of type {spec.type}"
        return _always(CheckFailure(index, spec.type, spec.schema_name, Misfit("", reason), True))
    return _decoding_check(index, spec, serde)


def _json_check(index: int, schema: str, serde: JsonSchemaSerde) -> Check:
    """The hot one: the payload is decoded once a message, by the first to ask, and validated by native code."""
    is_valid = serde.is_valid
    explain = serde.explain

    def check(message: Message) -> CheckFailure | None:
        try:
            value = message.json()
        except JsonError as error:
            return CheckFailure(
                index, "json", schema, Misfit("payload", f"not JSON: {error}"), True
            )
        if is_valid(value):
            return None
        return CheckFailure(index, "json", schema, partial(explain, value), True)

    return check


def _decoding_check(index: int, spec: SchemaCheckSpec, serde: SchemaSerde) -> Check:
    misfit = serde.misfit
    kind = spec.type
    schema = spec.schema_name
    message_type = message_type_of(spec)

    def check(message: Message) -> CheckFailure | None:
        problem = misfit(message.payload, message_type)
        return None if problem is None else CheckFailure(index, kind, schema, problem, True)

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
                failure = CheckFailure(
                    index, "", None, Misfit("", f"internal error: {error!r:.200}"), False
                )
            if failure is None:
                return None
            first = first or failure
        return first

    return run
