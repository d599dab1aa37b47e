"""Schemas: registered, elsewhere, not saved; what is decoded, encoded and learned with them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from ui.api.models.messages import EncodedPayload


class SchemaSource(BaseModel, extra="forbid"):
    """A schema that is not saved, or with a ``name`` alone a registered one and its ``version``."""

    type: str | None = None
    name: str | None = None
    version: int | None = None
    source: str | dict[str, Any] | None = None
    files: list[dict[str, Any]] | None = None
    parameters: dict[str, Any] | None = None
    references: list[dict[str, Any]] | None = None
    description: str = ""
    compatibility: str | None = None
    tags: list[str] = []
    metadata: dict[str, str] = {}


class _ToDecode(BaseModel, extra="forbid"):
    payload: str | EncodedPayload
    message_type: str | None = None


class _ToEncode(BaseModel, extra="forbid"):
    value: Any
    message_type: str | None = None


class _ToValidate(BaseModel, extra="forbid"):
    value: Any = None
    payload: str | EncodedPayload | None = None
    message_type: str | None = None


class _OfVersion(BaseModel, extra="forbid"):
    version: int | None = None


class SchemaDecode(SchemaSource, _ToDecode):
    """A schema and a payload to decode with it."""


class SchemaEncode(SchemaSource, _ToEncode):
    """A schema and a value to encode with it."""


class SchemaValidate(SchemaSource, _ToValidate):
    """A schema and a value or payload to hold against it."""


class RegisteredDecode(_OfVersion, _ToDecode):
    """A payload to decode with a registered schema, by the version in use or another."""


class RegisteredEncode(_OfVersion, _ToEncode):
    """A value to encode with a registered schema."""


class RegisteredValidate(_OfVersion, _ToValidate):
    """A value or payload to hold against a registered schema."""


class Compatibility(BaseModel, extra="forbid"):
    """Compatibility that a new version of a schema must have."""

    compatibility: Literal[
        "none",
        "backward",
        "backward_transitive",
        "forward",
        "forward_transitive",
        "full",
        "full_transitive",
        "disabled",
    ]


class SchemaInference(BaseModel, extra="forbid"):
    """Messages to learn a schema from: ``samples``, or a ``topic`` filter, or a ``stream``."""

    type: Literal["json", "avro"] = "json"
    samples: list[Any] | None = None
    topic: str | None = None
    stream: str | None = None
    name: str = "Message"
