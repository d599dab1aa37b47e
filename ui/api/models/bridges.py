"""Connectors, actions and sources, and tests of them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field


class ConnectorSpec(BaseModel, extra="allow"):
    """A connector: its type, and the members of that type (``GET /connector-types``)."""

    name: str
    type: str = Field(examples=["kafka"])
    enable: bool = True
    description: str = ""
    resource_opts: dict[str, Any] | None = None


class ActionSpec(BaseModel, extra="allow"):
    """An action: where rules hand rows to, as ``<type>:<name>``."""

    name: str
    type: str = Field(examples=["kafka"])
    connector: str
    enable: bool = True
    description: str = ""
    parameters: dict[str, Any] | None = None
    resource_opts: dict[str, Any] | None = None
    fallback_actions: list[dict[str, Any]] | None = None
    dead_letters: dict[str, Any] | None = None


class SourceSpec(BaseModel, extra="allow"):
    """A source: what rules read with ``FROM "$bridges/<type>:<name>"``."""

    name: str
    type: str = Field(examples=["kafka"])
    connector: str
    enable: bool = True
    description: str = ""
    parameters: dict[str, Any] | None = None
    resource_opts: dict[str, Any] | None = None


class ProbeResult(BaseModel):
    """A test of a connection: of each step ``name``, ``result`` (ok, failed, skipped), ``duration_ms``, ``message``."""

    ok: bool
    steps: list[dict[str, Any]]


class Drain(BaseModel):
    """How long to wait for the rows that are left to be sent, in seconds."""

    timeout_s: float = 30
