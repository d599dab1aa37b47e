"""Connectors, actions and sources, and tests of them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from ui.api.models.shapes import Body


class ProbeResult(BaseModel):
    """A test of a connection: of each step ``name``, ``result`` (ok, failed, skipped), ``duration_ms``, ``message``."""

    ok: bool
    steps: list[dict[str, Any]]


class Drain(Body):
    """How long to wait for the rows that are left to be sent, in seconds."""

    timeout_s: float = Field(default=30, ge=0, le=3600)
