"""A transformation as people write it, checked.

Field names are those that EMQX users know: ``topics``, ``failure_action``, ``payload_decoder``, ``operations``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, field_validator

from broker.config.model import Settings
from broker.config.spec_problems import spec_problems
from broker.core.errors import Invalid, PeerError, Problem
from broker.core.ordered import name_problem
from broker.core.topic import TopicFilter

READ_ONLY = frozenset({"metrics"})
"""Members of a shown transformation that are left out when it is sent back."""


_CODECS = ("none", "json", "avro", "protobuf")


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class NoCodec(Settings):
    type: Literal["none"] = "none"


class JsonCodec(Settings):
    type: Literal["json"]


class AvroCodec(Settings):
    type: Literal["avro"]
    schema_name: str = Field(alias="schema", min_length=1)


class ProtobufCodec(Settings):
    type: Literal["protobuf"]
    schema_name: str = Field(alias="schema", min_length=1)
    message_type: str = Field(min_length=1)


CodecSpec = Annotated[NoCodec | JsonCodec | AvroCodec | ProtobufCodec, Field(discriminator="type")]


class OperationSpec(Settings):
    key: str
    value: str


class LogFailure(Settings):
    level: Literal["error", "warning", "notice", "info", "debug", "none"] = "info"


class TransformationSpec(Settings):
    """One transformation. ``operations`` run in order; with none it only converts the payload."""

    name: str
    topics: Annotated[list[str], BeforeValidator(_listed)]
    failure_action: Literal["drop", "disconnect", "ignore"]
    payload_decoder: CodecSpec = NoCodec()
    payload_encoder: CodecSpec = NoCodec()
    operations: list[OperationSpec] = Field(default_factory=list, max_length=1000)
    log_failure: LogFailure = LogFailure()
    enable: bool = True
    description: str = ""
    tags: list[str] = Field(default_factory=list)

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        if problem := name_problem(value):
            raise ValueError(problem)
        return value

    @field_validator("topics")
    @classmethod
    def _topics(cls, value: list[str]) -> list[str]:
        check_topics(value)
        return value


def check_topics(topics: list[str]) -> None:
    """Raise ``ValueError`` unless there is at least one filter, all are filters, and none stands there twice."""
    if not topics:
        raise ValueError("at least one topic filter is needed")
    doubled = sorted({topic for topic in topics if topics.count(topic) > 1})
    if doubled:
        raise ValueError(f"duplicated topics: {', '.join(doubled)}")
    for topic in topics:
        try:
            if TopicFilter.parse(topic).share_group is not None:
                raise ValueError(f"topic filter {topic!r}: shared subscriptions have no meaning here")
        except PeerError as error:
            raise ValueError(str(error)) from None


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
