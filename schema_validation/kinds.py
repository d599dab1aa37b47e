"""Schemas, registries elsewhere, and validations."""

from __future__ import annotations

from broker.core.kinds import ENABLE, OF_GATES, Abilities, Kind

KINDS = (
    Kind(
        name="schema registry",
        path="schema-registries",
        section="schema_registry.external",
        models=("schema_validation.confluent:ConfluentSpec",),
        read_only="schema_validation.external_service:RegistryReadOnly",
        about="A Confluent-compatible schema registry on another server. Secrets are shown as stars; stars keep them.",
        tag="Schemas",
        columns={"name": "name", "type": "type", "url": "url", "cached": "cached", "last error": "last_error"},
    ),
    Kind(
        name="schema",
        path="schemas",
        section="schema_registry.schemas",
        models=("schema_validation.spec:SchemaSpec",),
        read_only="schema_validation.service:SchemaReadOnly",
        documents=("source", "files"),
        about="What payloads are made of. Saving another source adds a version, which is used from then on.",
        tag="Schemas",
        columns={"name": "name", "type": "type", "version": "version"},
    ),
    Kind(
        name="validation",
        path="validations",
        section="schema_validation.validations",
        models=("schema_validation.spec:ValidationSpec",),
        about="Checks for messages on topics, and what happens to messages that fail.",
        tag="Validations",
        columns=OF_GATES,
        read_only="broker.observe.gate_counters:GateReadOnly",
        abilities=Abilities(
            can_patch=True,
            can_reorder=True,
            metrics="broker.observe.gate_counters:GateMetrics",
            switches=ENABLE,
        ),
    ),
)
