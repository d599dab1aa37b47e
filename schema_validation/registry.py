"""Schemas by name, each with its versions; a ``broker.core.schema.SchemaLookup``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from broker.core.errors import Invalid, NotFound, Problem
from broker.core.schema import FieldType, SchemaLookup
from schema_validation.schemas import Schema, first_version
from schema_validation.serdes.base import SchemaSerde

PayloadType = Callable[[str], "FieldType | None"]


class Registry:
    """What codes payloads by schema name, and what type the payloads of a topic have.

    ``payload_type_of`` is settable: it is answered from validations, which come after schemas.
    """

    def __init__(self, find: Callable[[str], Schema | None], names: Callable[[], Iterable[str]]) -> None:
        self._find, self._names = find, names
        self.payload_type_of: PayloadType = _unknown

    def serde(self, name: str) -> SchemaSerde:
        """The serde of a schema's version in use. Raises ``NotFound`` with a suggestion."""
        found = self._find(name)
        if found is None:
            close = get_close_matches(name, list(self._names()), n=1)
            raise NotFound("schema", name, f"did you mean '{close[0]}'?" if close else None)
        return found.current.serde

    def payload_type(self, topic_filter: str) -> FieldType | None:
        """The type of payloads on the topics a filter names, when validations bind one schema to all of them."""
        return self.payload_type_of(topic_filter)

    def with_schemas(self, specs: Sequence[Mapping[str, Any]]) -> SchemaLookup:
        """A lookup that knows these schemas beside the registered ones; nothing is stored.

        Raises:
            Invalid: with every problem, pointers beginning with ``/schemas``.
        """
        made: dict[str, Schema] = {}
        problems: list[Problem] = []
        for index, spec in enumerate(specs):
            try:
                schema = first_version(spec, f"/schemas/{index}")
                made[schema.name] = schema
            except Invalid as error:
                problems += error.problems
        if problems:
            raise Invalid("the schemas cannot be used", problems)
        trial = Registry(lambda name: made.get(name) or self._find(name), lambda: [*made, *self._names()])
        trial.payload_type_of = self.payload_type_of
        return trial


def _unknown(topic_filter: str) -> FieldType | None:
    return None
