"""A validation as users write it, checked. Field names are those of EMQX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from broker.config.gate_spec import READ_ONLY, GateSpec
from broker.config.model import Settings
from broker.config.names import repeated
from broker.config.schema_use import AvroUse, ExternalHttpUse, JsonUse, ProtobufUse, message_type_of
from broker.config.spec_problems import parsed
from broker.core.ordered import MAX_NAME_BYTES, name_problem
from schema_validation.compatibility.verdict import Mode
from schema_validation.external_http.spec import Parameters


def _schema_name(value: str) -> str:
    if problem := schema_name_problem(value):
        raise ValueError(problem)
    return value


def schema_name_problem(name: object) -> str | None:
    """Reason why this cannot be the name of a schema, or None. Dots are allowed inside it, as in subjects of Kafka
    topics."""
    if isinstance(name, str) and len(name) <= MAX_NAME_BYTES and not name.endswith("."):
        return name_problem(name.replace(".", "-"))
    return name_problem(name)


SchemaName = Annotated[str, AfterValidator(_schema_name)]
_CHECKS = ("sql", "json", "avro", "protobuf", "external_http")


Texts = Annotated[list[str], Field(max_length=1000)]


class SchemaBody(Settings):
    """Input of the schema compiler: a source, files, or the parameters of a server that codes payloads."""

    type: Literal["json", "avro", "protobuf", "external_http"] = Field(
        description="The schema language; `external_http` is a server of yours."
    )
    source: str | dict[str, Any] | list[Any] | None = Field(
        default=None, description="The text of the schema, or a JSON value."
    )
    files: list[dict[str, Any]] | None = Field(
        default=None,
        description="For `protobuf`, in place of `source`: files with `path`, `contents` and `root`.",
    )
    parameters: Parameters | None = Field(
        default=None, description="For `external_http`: the server, and how it is called."
    )
    references: list[dict[str, Any]] | None = Field(
        default=None,
        description="Other schemas that the source names: `name`, `schema` and `version`.",
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        is_external = self.type == "external_http"
        refused = (
            ("source", "files", "references")
            if is_external
            else ()
            if self.type == "protobuf"
            else ("files",)
        )
        problems = [
            f"a schema of type {self.type} has no {name}" for name in refused if getattr(self, name)
        ]
        if is_external and self.parameters is None:
            problems.append("expected parameters, with at least a url")
        if not is_external and (self.source is None) == (not self.files):
            problems.append("expected either source or files")
        if problems:
            raise ValueError("; ".join(problems))
        return self


class SchemaSpec(SchemaBody):
    """A schema with a source, or one whose payloads are checked by a server of yours."""

    name: SchemaName = Field(description="The name by which other objects use the schema.")
    description: str = Field(default="", description="A description for display.")
    compatibility: Mode | None = Field(
        default=None, description="What a new version must be compatible with."
    )
    tags: Texts = Field(default=[], description="Tags for display.")
    metadata: dict[str, str] = Field(
        default={}, max_length=1000, description="Texts for display, by name."
    )


class SqlCheckSpec(Settings):
    """A condition: a message that the SQL gives a row for is valid."""

    type: Literal["sql"]
    sql: str = Field(
        min_length=1,
        description="`SELECT ... WHERE` without `FROM`. A row means that the message is valid, no row that it fails: "
        "`WHERE` says what valid messages have: `SELECT * WHERE payload.temp < 50`.",
    )


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
        if doubled := repeated(keys):
            raise ValueError(f"duplicated schema checks: {', '.join(doubled)}")
        return value


def key_of(check: SchemaCheckSpec) -> str:
    """Identity of a schema check."""
    return ":".join(filter(None, (check.type, check.schema_name, message_type_of(check))))


def parse_spec(spec: Mapping[str, Any], pointer: str = "") -> ValidationSpec:
    """The checked form of a validation as it was sent.

    Raises:
        Invalid: with every problem of its shape.
    """
    headline = "the validation cannot be saved"
    return parsed(ValidationSpec, spec, headline, ignored=READ_ONLY, tags=_CHECKS, pointer=pointer)
