"""What a change of a schema would do to those who use it, asked of them before it is saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from broker.core.feature import Services
from broker.core.objects import Reference
from broker.core.schema import SchemaEffect
from schema_validation.registry import Registry
from schema_validation.versions import Schema


@dataclass(slots=True)
class Impact:
    """Asks rules, validations and transformations, and the tables that their rows go to."""

    services: Services
    registry: Registry

    def of(self, schema: Schema) -> list[SchemaEffect]:
        """Whom the schema would touch if it stood in the registry as given, those it would break first."""
        trial = self.registry.trial({schema.name: schema})
        found: list[SchemaEffect] = []
        for one in self.services.contributors:
            found += one.effects_of_schema(schema.name, trial)
        found += self._on_tables(found)
        return sorted(found, key=lambda effect: not effect.breaks)

    def _on_tables(self, effects: Sequence[SchemaEffect]) -> list[SchemaEffect]:
        """The tables that follow a stream whose rows change their columns."""
        found: dict[Reference, SchemaEffect] = {}
        for effect in effects:
            for stream in effect.streams:
                for user in self.services.contributors.users_of("stream", stream):
                    if user.kind == "lake table":
                        why = f"rows of stream {stream!r} change with {effect.user}: {effect.why}"
                        found[user] = SchemaEffect(user, effect.breaks, why)
        return list(found.values())
