"""References of checks and codecs to the schema of payloads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from broker.config.model import Settings
from broker.core.errors import NotFound, Problem
from broker.core.schema import SchemaLookup, Serde, TypedSerde


class SchemaUse(Settings):
    """A schema by name, of a type."""

    type: str
    schema_name: str = Field(alias="schema", min_length=1)


class TaggedUse(SchemaUse):
    """A schema whose payloads may begin with Confluent's tag."""

    wire_format: Literal["none", "confluent"] = "none"


class JsonUse(TaggedUse):
    type: Literal["json"]


class AvroUse(TaggedUse):
    type: Literal["avro"]


class ProtobufUse(TaggedUse):
    type: Literal["protobuf"]
    message_type: str = Field(min_length=1)


class ExternalHttpUse(SchemaUse):
    type: Literal["external_http"]


def message_type_of(use: SchemaUse) -> str | None:
    """The message type that a protobuf schema is used with; None of other schemas."""
    return use.message_type if isinstance(use, ProtobufUse) else None


def serde_of(use: SchemaUse, schemas: SchemaLookup) -> Serde:
    """Codec of the payloads. Raises ``NotFound``."""
    if isinstance(use, TaggedUse) and use.wire_format == "confluent":
        return schemas.tagged(use.schema_name)
    return schemas.serde(use.schema_name)


def problem_of(use: SchemaUse, schemas: SchemaLookup, pointer: str = "") -> Problem | None:
    """Problem with the schema, or None if it can be used."""
    name = use.schema_name
    message_type = message_type_of(use)
    try:
        serde = schemas.serde(name)
    except NotFound as error:
        return Problem(str(error), f"{pointer}/schema")
    if not isinstance(serde, TypedSerde):
        return None
    if serde.kind != use.type:
        return Problem(
            f"schema {name!r} is of type {serde.kind}, not {use.type}", f"{pointer}/schema"
        )
    if message_type is not None and not serde.has_message_type(message_type):
        return Problem(
            f"schema {name!r} has no message type {message_type!r}", f"{pointer}/message_type"
        )
    return None


def missing_schemas(
    uses: Iterable[tuple[str, SchemaUse]], schemas: SchemaLookup, pointer: str = ""
) -> list[Problem]:
    """A problem for each schema or message type that does not exist; ``uses`` are pointers and what is there."""
    problems = [problem_of(use, schemas, pointer + place) for place, use in uses]
    return [problem for problem in problems if problem is not None]


def names_of_missing(
    uses: Iterable[tuple[str, SchemaUse]], schemas: SchemaLookup
) -> list[list[str]]:
    """The same as names: of each the schema, and the message type where one is named."""
    absent = [use for _, use in uses if problem_of(use, schemas) is not None]
    return [[use.schema_name, *filter(None, [message_type_of(use)])] for use in absent]
