"""The gate: validations, transformations, quarantine, and messages to try them on."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from ui.api.models.messages import EncodedPayload


class ValidationSpec(BaseModel, extra="allow"):
    """Checks for messages on topics, and what to do when they fail."""

    name: str
    topics: list[str] | str
    strategy: Literal["all_pass", "any_pass"]
    failure_action: Literal["drop", "disconnect", "ignore"]
    checks: list[dict[str, Any]]
    mode: Literal["enforce", "shadow"] = "enforce"
    quarantine: str | None = None
    enable: bool = True


class TransformSpec(BaseModel, extra="allow"):
    """Changes to messages on topics, all or none."""

    name: str
    topics: list[str] | str
    failure_action: Literal["drop", "disconnect", "ignore"]
    operations: list[dict[str, Any]] = []
    mode: Literal["enforce", "shadow"] = "enforce"
    quarantine: str | None = None
    enable: bool = True


class TestMessage(BaseModel, extra="allow"):
    """A message to try something on."""

    topic: str
    payload: str | EncodedPayload = ""
    qos: int = 0
    retain: bool = False


class TransformPreview(BaseModel, extra="allow"):
    """Transformations and the message to run them on; schemas are registered for this call only."""

    transformations: list[dict[str, Any]]
    message: TestMessage
    schemas: list[dict[str, Any]] = []
    check_references: bool = True


class ValidationTest(BaseModel, extra="allow"):
    """Validations and the message to run them on; schemas are registered for this call only."""

    validations: list[dict[str, Any]]
    message: TestMessage
    schemas: list[dict[str, Any]] = []
    check_references: bool = True


class VariformEval(BaseModel, extra="allow"):
    """An expression and its variables."""

    expression: str
    bindings: dict[str, Any] = {}
    raw: bool = False


class PipelinePreview(BaseModel, extra="allow"):
    """A message to try everything on that is configured."""

    message: dict[str, Any]


class TakeAgain(BaseModel, extra="allow"):
    """How many messages to take out of quarantine at most."""

    limit: int = Field(default=10_000, ge=1, le=100_000)
