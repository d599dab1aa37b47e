"""A validation as people write it, checked. Field names are those that EMQX users know."""

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
"""Members of a shown validation that are left out when it is sent back."""


_CHECKS = ("sql", "json", "avro", "protobuf")


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class SqlCheckSpec(Settings):
    type: Literal["sql"]
    sql: str = Field(min_length=1)


class JsonCheckSpec(Settings):
    type: Literal["json"]
    schema_name: str = Field(alias="schema", min_length=1)


class AvroCheckSpec(Settings):
    type: Literal["avro"]
    schema_name: str = Field(alias="schema", min_length=1)


class ProtobufCheckSpec(Settings):
    type: Literal["protobuf"]
    schema_name: str = Field(alias="schema", min_length=1)
    message_type: str = Field(min_length=1)


SchemaCheckSpec = JsonCheckSpec | AvroCheckSpec | ProtobufCheckSpec
CheckSpec = Annotated[SqlCheckSpec | SchemaCheckSpec, Field(discriminator="type")]


class LogFailure(Settings):
    level: Literal["error", "warning", "notice", "info", "debug", "none"] = "info"


class ValidationSpec(Settings):
    """One validation: its checks run in order until the strategy is decided."""

    name: str
    topics: Annotated[list[str], BeforeValidator(_listed)]
    strategy: Literal["all_pass", "any_pass"]
    failure_action: Literal["drop", "disconnect", "ignore"]
    checks: list[CheckSpec] = Field(min_length=1, max_length=1000)
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
        if not value:
            raise ValueError("at least one topic filter is needed")
        doubled = sorted({topic for topic in value if value.count(topic) > 1})
        if doubled:
            raise ValueError(f"duplicated topics: {', '.join(doubled)}")
        for topic in value:
            _check_filter(topic)
        return value

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
    message_type = f":{check.message_type}" if isinstance(check, ProtobufCheckSpec) else ""
    return f"{check.type}:{check.schema_name}{message_type}"


def _check_filter(topic: str) -> None:
    try:
        parsed = TopicFilter.parse(topic)
    except PeerError as error:
        raise ValueError(str(error)) from None
    if parsed.share_group is not None:
        raise ValueError(f"topic filter {topic!r}: shared subscriptions have no meaning here")


def parse_spec(spec: Mapping[str, Any], pointer: str = "") -> ValidationSpec:
    """The checked form of a validation as it was sent.

    Raises:
        Invalid: with every problem of its shape.
    """
    if not isinstance(spec, Mapping):
        raise Invalid("a validation is an object", [Problem("an object is wanted", pointer)])
    try:
        return ValidationSpec.model_validate({k: v for k, v in spec.items() if k not in READ_ONLY})
    except ValidationError as error:
        problems = spec_problems(error, ValidationSpec, _CHECKS, pointer)
        raise Invalid("the validation cannot be saved", problems) from None
