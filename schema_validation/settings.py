"""Settings of the schema registry and of validations."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from broker.config.model import Settings


class SchemaValidationSettings(Settings):
    """There are none yet: schemas and validations are objects with sections of their own."""


class SchemaRegistrySettings(Settings):
    """How the registry treats new versions, and what it remembers of messages to try them on."""

    compatibility: Literal[
        "none",
        "backward",
        "backward_transitive",
        "forward",
        "forward_transitive",
        "full",
        "full_transitive",
        "disabled",
    ] = Field(
        default="backward",
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
        default=1_048_576, ge=0, le=67_108_864, description="Most bytes of payloads kept for each such filter."
    )
