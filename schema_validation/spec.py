"""A validation as people write it, checked. Field names are those that EMQX users know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from broker.config.gate_spec import READ_ONLY, GateSpec
from broker.config.model import Settings
from broker.config.schema_use import AvroUse, ExternalHttpUse, JsonUse, ProtobufUse, message_type_of
from broker.config.spec_problems import parsed
from schema_validation.external_http.spec import Parameters

_CHECKS = ("sql", "json", "avro", "protobuf", "external_http")


class SchemaSpec(Settings):
    """A schema with a source, or one that a server of yours checks payloads with."""

    name: str = Field(description="What others name it by.")
    type: Literal["json", "avro", "protobuf", "external_http"] = Field(
        description="What it is; `external_http` is a server of yours."
    )
    source: str | dict[str, Any] | None = Field(default=None, description="The text of the schema, or a JSON value.")
    files: list[dict[str, Any]] | None = Field(
        default=None, description="Of `protobuf`, in place of `source`: files with `path`, `contents` and `root`."
    )
    parameters: Parameters | None = Field(
        default=None, description="Of `external_http`: the server, and how it is called."
    )
    references: list[dict[str, Any]] | None = Field(
        default=None, description="Other schemas that the source names: `name`, `schema` and `version`."
    )
    description: str = Field(default="", description="For people.")
    compatibility: str | None = Field(default=None, description="What a new version must be compatible with.")
    tags: list[str] = Field(default=[], description="For people.")
    metadata: dict[str, str] = Field(default={}, description="For people, by name.")


class SqlCheckSpec(Settings):
    type: Literal["sql"]
    sql: str = Field(min_length=1)


SchemaCheckSpec = JsonUse | AvroUse | ProtobufUse | ExternalHttpUse
CheckSpec = Annotated[SqlCheckSpec | SchemaCheckSpec, Field(discriminator="type")]


class ValidationSpec(GateSpec):
    """One validation: its checks run in order until the strategy is decided."""

    strategy: Literal["all_pass", "any_pass"]
    checks: list[CheckSpec] = Field(min_length=1, max_length=1000)

    @field_validator("checks")
    @classmethod
    def _checks(cls, value: list[CheckSpec]) -> list[CheckSpec]:
        keys = [key_of(check) for check in value if not isinstance(check, SqlCheckSpec)]
        doubled = sorted({key for key in keys if keys.count(key) > 1})
        if doubled:
            raise ValueError(f"duplicated schema checks: {', '.join(doubled)}")
        return value


def key_of(check: SchemaCheckSpec) -> str:
    """What makes two schema checks the same."""
    return ":".join(filter(None, (check.type, check.schema_name, message_type_of(check))))


def parse_spec(spec: Mapping[str, Any], pointer: str = "") -> ValidationSpec:
    """The checked form of a validation as it was sent.

    Raises:
        Invalid: with every problem of its shape.
    """
    what = "the validation cannot be saved"
    return parsed(ValidationSpec, spec, what, ignored=READ_ONLY, tags=_CHECKS, pointer=pointer)
