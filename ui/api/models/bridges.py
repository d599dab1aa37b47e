"""Connectors, actions and sources, and tests of them."""

from __future__ import annotations

from pydantic import Field

from bridges.resource.registry import ConnectorTypeView
from ui.api.models.shapes import Body, Page


class ConnectorTypes(Page[ConnectorTypeView]):
    """The types of connectors."""


class Drain(Body):
    """How long to wait for the rows that are left to be sent, in seconds."""

    timeout_s: float = Field(default=30, ge=0, le=3600)
