"""A rule as it is sent and saved."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from broker.config.spec_problems import spec_problems
from broker.core.errors import Invalid
from rules.actions.republish import PROPERTIES

_NAME = re.compile(r"[0-9A-Za-z][-0-9A-Za-z_.]*", re.ASCII)
MAX_NAME_BYTES = 254
_ACTIONS = ("stream", "console", "republish")


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class StreamAction(_Model):
    """Append rows to a stream."""

    type: Literal["stream"]
    stream: str = Field(min_length=1)


class ConsoleAction(_Model):
    """Log rows."""

    type: Literal["console"]


class RepublishAction(_Model):
    """Publish a message per row."""

    type: Literal["republish"]
    topic: str = Field(min_length=1)
    payload: str = "${payload}"
    qos: int | str = "${qos}"
    retain: bool | str = "${retain}"
    user_properties: str | dict[str, str] = "${user_properties}"
    mqtt_properties: dict[str, str] = Field(default_factory=dict)

    @field_validator("qos")
    @classmethod
    def _qos(cls, value: int | str) -> int | str:
        if value in (0, 1, 2) or _is_placeholder(value):
            return value
        raise ValueError("must be 0, 1, 2 or one placeholder such as ${qos}")

    @field_validator("retain")
    @classmethod
    def _retain(cls, value: bool | str) -> bool | str:
        if isinstance(value, bool) or _is_placeholder(value):
            return value
        raise ValueError("must be true, false or one placeholder such as ${flags.retain}")

    @field_validator("mqtt_properties")
    @classmethod
    def _properties(cls, value: dict[str, str]) -> dict[str, str]:
        unknown = sorted(set(value) - PROPERTIES)
        if unknown:
            raise ValueError(f"{unknown[0]} cannot be set; {', '.join(sorted(PROPERTIES))} can")
        return value


AnyAction = Annotated[StreamAction | ConsoleAction | RepublishAction, Field(discriminator="type")]


class RuleSpec(_Model):
    """A rule: its SQL and what to do with the rows, in order."""

    name: str
    sql: str
    actions: list[AnyAction] = Field(default_factory=list)
    enable: bool = True
    description: str = ""

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        if _NAME.fullmatch(value) and len(value) <= MAX_NAME_BYTES:
            return value
        raise ValueError("must begin with a letter or digit and hold letters, digits, '-', '_' and '.' only")


READ_ONLY = ("state", "columns", "warnings", "metrics", "last_error", "from")
"""Members of a shown rule that are left out when it is sent back."""


def parse_spec(spec: dict[str, Any]) -> RuleSpec:
    """The spec of a rule, checked.

    Raises:
        Invalid: with every problem, each with a JSON pointer.
    """
    try:
        return RuleSpec.model_validate({key: value for key, value in spec.items() if key not in READ_ONLY})
    except ValidationError as error:
        raise Invalid("the rule cannot be saved", spec_problems(error, RuleSpec, _ACTIONS)) from None


def _is_placeholder(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"\$\{[A-Za-z0-9._]+\}", value) is not None
