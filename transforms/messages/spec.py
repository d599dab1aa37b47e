"""A transformation as people write it, checked.

Field names are those that EMQX users know: ``topics``, ``failure_action``, ``payload_decoder``, ``operations``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from broker.config.gate_spec import READ_ONLY, GateSpec
from broker.config.model import Settings
from broker.config.spec_problems import spec_problems
from broker.core.errors import Invalid, Problem

_CODECS = ("none", "json", "avro", "protobuf", "external_http")


class NoCodec(Settings):
    type: Literal["none"] = "none"


class JsonCodec(Settings):
    type: Literal["json"]


class AvroCodec(Settings):
    type: Literal["avro"]
    schema_name: str = Field(alias="schema", min_length=1)
    wire_format: Literal["none", "confluent"] = "none"


class ProtobufCodec(Settings):
    type: Literal["protobuf"]
    schema_name: str = Field(alias="schema", min_length=1)
    message_type: str = Field(min_length=1)
    wire_format: Literal["none", "confluent"] = "none"


class ExternalHttpCodec(Settings):
    type: Literal["external_http"]
    schema_name: str = Field(alias="schema", min_length=1)


CodecSpec = Annotated[NoCodec | JsonCodec | AvroCodec | ProtobufCodec | ExternalHttpCodec, Field(discriminator="type")]


class OperationSpec(Settings):
    key: str
    value: str


class TransformationSpec(GateSpec):
    """One transformation. ``operations`` run in order; with none it only converts the payload."""

    payload_decoder: CodecSpec = NoCodec()
    payload_encoder: CodecSpec = NoCodec()
    operations: list[OperationSpec] = Field(default_factory=list, max_length=1000)


def parse_spec(spec: Mapping[str, Any], pointer: str = "") -> TransformationSpec:
    """The checked form of a transformation as it was sent.

    Raises:
        Invalid: with every problem of its shape.
    """
    if not isinstance(spec, Mapping):
        raise Invalid("a transformation is an object", [Problem("an object is wanted", pointer)])
    try:
        return TransformationSpec.model_validate({k: v for k, v in spec.items() if k not in READ_ONLY})
    except ValidationError as error:
        problems = spec_problems(error, TransformationSpec, _CODECS, pointer)
        raise Invalid("the transformation cannot be saved", problems) from None
