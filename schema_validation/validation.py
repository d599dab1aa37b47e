"""One validation: compiled when it is saved, bound to schemas when a topic's plan is made, run per message."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from broker.config.schema_use import ExternalHttpUse
from broker.core.errors import Invalid, Problem
from broker.core.schema import SchemaLookup
from broker.core.topic import TopicFilter
from broker.observe.gate_objects import GateObject
from rules.functions.registry import Functions
from rules.sql.compiler.program import RuleContext
from schema_validation.checks import Check, all_pass, any_pass, schema_check
from schema_validation.spec import SchemaCheckSpec, SqlCheckSpec, ValidationSpec, parse_spec
from schema_validation.sql_checks import SqlCheck, compile_sql_check


@dataclass(frozen=True, slots=True)
class Validation(GateObject):
    """A checked and compiled validation."""

    spec: ValidationSpec
    sql: Mapping[int, SqlCheck]
    """The compiled SQL checks by their place among the checks."""

    def waits(self, schemas: SchemaLookup) -> bool:
        """True if a check may ask another process: then it is run by ``broker.core.waiting.settled``."""
        if any(isinstance(check, ExternalHttpUse) for check in self.spec.checks):
            return True
        return any(check.asked.waits(schemas) for check in self.sql.values())

    def bind(self, schemas: SchemaLookup) -> Check:
        """The check of a message, with the current schemas."""
        checks = [
            self.sql[index].bind(index)
            if isinstance(check, SqlCheckSpec)
            else schema_check(index, check, schemas)
            for index, check in enumerate(self.spec.checks)
        ]
        strategy: Callable[[Sequence[Check]], Check] = (
            all_pass if self.spec.strategy == "all_pass" else any_pass
        )
        return strategy(checks)

    def schema_uses(self) -> Iterator[tuple[str, SchemaCheckSpec]]:
        """The checks that name a schema, by their pointers."""
        for index, check in enumerate(self.spec.checks):
            if not isinstance(check, SqlCheckSpec):
                yield f"/checks/{index}", check


def compile_validation(
    spec: Mapping[str, Any],
    functions: Functions,
    context: RuleContext,
    pointer: str = "",
    *,
    strict: bool = True,
) -> Validation:
    """Check and compile what was sent; ``functions`` are for SQL, and ``strict`` refuses SQL with unknown ones.

    Raises:
        Invalid: with every problem; for SQL line, column and suggestion.
    """
    checked = parse_spec(spec, pointer)
    sql: dict[int, SqlCheck] = {}
    problems: list[Problem] = []
    for index, check in enumerate(checked.checks):
        if isinstance(check, SqlCheckSpec):
            try:
                place = f"{pointer}/checks/{index}/sql"
                sql[index] = compile_sql_check(check.sql, functions, context, place, strict=strict)
            except Invalid as error:
                problems += error.problems
    if problems:
        raise Invalid(f"validation {checked.name!r} cannot be saved", problems)
    return Validation(checked, tuple(TopicFilter.parse(topic) for topic in checked.topics), sql)
