"""A transformation as users write it, checked.

Field names are those that EMQX users know: ``topics``, ``failure_action``, ``payload_decoder``, ``operations``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from broker.config.gate_spec import READ_ONLY, GateSpec
from broker.config.model import Settings
from broker.config.schema_use import AvroUse, ExternalHttpUse, ProtobufUse
from broker.config.spec_problems import parsed

_CODECS = ("none", "json", "avro", "protobuf", "external_http")


class NoCodec(Settings):
    type: Literal["none"] = "none"


class JsonCodec(Settings):
    type: Literal["json"]


CodecSpec = Annotated[
    NoCodec | JsonCodec | AvroUse | ProtobufUse | ExternalHttpUse, Field(discriminator="type")
]


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
    headline = "the transformation cannot be saved"
    return parsed(
        TransformationSpec, spec, headline, ignored=READ_ONLY, tags=_CODECS, pointer=pointer
    )
