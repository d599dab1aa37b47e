"""The base of all settings models."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Frozen; unknown keys are refused; every field has a default, a unit in its description, and a description."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    takes_a_list: ClassVar[bool] = False
    """Whether the section may be written as a list; its model then makes members of it."""
    member: ClassVar[type[Settings] | None] = None
    """What is below names that users choose, where the section holds such (``listeners.ssl.NAME``)."""
