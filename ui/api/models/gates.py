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


class TestMessage(BaseModel):
    """A message to try something on."""

    topic: str
    payload: str | EncodedPayload = ""
    qos: int = 0
    retain: bool = False
    clientid: str = "c1"
    username: str | None = None
    client_attrs: dict[str, str] = {}
    peername: str = "127.0.0.1:19872"
    user_properties: list[tuple[str, str]] | dict[str, str] = []
    properties: dict[str, Any] = Field(default={}, description="Publish properties by their MQTT name.")


class TransformPreview(BaseModel):
    """Transformations and the message to run them on; schemas are registered for this call only."""

    transformations: list[dict[str, Any]]
    message: TestMessage
    schemas: list[dict[str, Any]] = []
    check_references: bool = True


class ValidationTest(BaseModel):
    """Validations and the message to run them on; schemas are registered for this call only."""

    validations: list[dict[str, Any]]
    message: TestMessage
    schemas: list[dict[str, Any]] = []
    check_references: bool = True


class VariformEval(BaseModel):
    """An expression and its variables."""

    expression: str
    bindings: dict[str, Any] = {}
    raw: bool = False


class PipelinePreview(BaseModel):
    """A message to try everything on that is configured."""

    message: TestMessage


class TakeAgain(BaseModel):
    """How many messages to take out of quarantine at most."""

    limit: int = Field(default=10_000, ge=1, le=100_000)
