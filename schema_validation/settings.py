"""Settings of the schema registry."""

from __future__ import annotations

from pydantic import Field

from broker.config.model import Settings
from schema_validation.compatibility.verdict import Mode


class SchemaRegistrySettings(Settings):
    """Settings of the registry: compatibility of new versions, and messages kept to try them on."""

    compatibility: Mode = Field(
        default=Mode.BACKWARD,
        description="What a new version of a schema must be able to do, where the schema does not say it itself: "
        "read data of the last version (backward), be read by it (forward), both (full), of all versions "
        "(_transitive), nothing (none); disabled takes no new versions.",
    )
    sample_messages: int = Field(
        default=1000,
        ge=0,
        le=10_000,
        description="Recent messages kept in memory for each topic filter that a schema is bound to, to try changes of "
        "the schema on; at most one a millisecond. 0 keeps none.",
    )
    sample_bytes: int = Field(
        default=1_048_576,
        ge=0,
        le=67_108_864,
        description="Most bytes of payloads kept for each such filter.",
    )
