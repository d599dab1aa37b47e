"""Subscriptions that are made for clients."""

from __future__ import annotations

from pydantic import Field

from ui.api.models.shapes import Body


class SubscriptionOptions(Body):
    """A topic filter, or ``$share/GROUP/FILTER``, and the options of the subscription."""

    filter: str
    qos: int = Field(default=0, ge=0, le=2)
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = Field(default=0, ge=0, le=2)
