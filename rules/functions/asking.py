"""Which statements may have to wait for another process: those that code by a schema that one codes, or by a registry
elsewhere. Such a rule is run where it can wait (``rules.deferred``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from broker.core.schema import SchemaLookup, WaitingSchemas
from rules.functions.registry import Functions

_BY_NAME: Final = frozenset(("schema_decode", "schema_encode", "schema_check"))
"""Functions whose first argument names a registered schema; they wait only where another process codes that."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a statement may ask. ``schemas`` holds None where a name is worked out for each message."""

    schemas: frozenset[str | None]
    has_registry: bool

    def __bool__(self) -> bool:
        return self.has_registry or bool(self.schemas)

    def waits(self, lookup: SchemaLookup) -> bool:
        """Whether it may have to wait, with schemas as they are."""
        if self.has_registry:
            return True
        return isinstance(lookup, WaitingSchemas) and any(lookup.waits(name) for name in self.schemas)


NOTHING: Final = Asked(frozenset(), False)


def asked_by(tree: exp.Expression, functions: Functions) -> Asked:
    """What a statement may ask of other processes."""
    schemas: set[str | None] = set()
    has_registry = False
    for call in tree.find_all(exp.Anonymous):
        if call.name in _BY_NAME:
            first = call.expressions[0] if call.expressions else None
            is_text = isinstance(first, exp.Literal) and first.is_string
            schemas.add(first.this if isinstance(first, exp.Literal) and is_text else None)
        elif (known := functions.get(call.name)) is not None and known.may_wait:
            has_registry = True
    return Asked(frozenset(schemas), has_registry)
