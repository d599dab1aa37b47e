"""Settings of what the node tells about itself."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from broker.config.model import Settings


class LogSettings(Settings):
    """Section ``log``."""

    level: Literal["debug", "info", "warning", "error"] = Field("info", description="The least severe level written.")
    format: Literal["text", "json"] = Field("text", description="Lines for people, or one JSON object a line.")
