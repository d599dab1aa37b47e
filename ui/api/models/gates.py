"""Validations and transformations, and messages to try them on."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from ui.api.models.messages import EncodedPayload


class TestMessage(BaseModel, extra="forbid"):
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
    properties: dict[str, Any] = Field(
        default={}, description="Publish properties by their MQTT name."
    )


class PipelinePreview(BaseModel, extra="forbid"):
    """A message to try everything on that is configured, and drafts in place of saved objects of the same name; others
    come last."""

    message: TestMessage
    validations: list[dict[str, Any]] = []
    transformations: list[dict[str, Any]] = []


class _GateTrial(BaseModel, extra="forbid"):
    message: TestMessage
    schemas: list[dict[str, Any]] = []
    check_references: bool = True


class TransformPreview(_GateTrial):
    """Transformations and the message to run them on; schemas are registered for this call only."""

    transformations: list[dict[str, Any]]


class ValidationTest(_GateTrial):
    """Validations and the message to run them on; schemas are registered for this call only."""

    validations: list[dict[str, Any]]


class VariformEval(BaseModel, extra="forbid"):
    """An expression and its variables."""

    expression: str
    bindings: dict[str, Any] = {}
    raw: bool = False
