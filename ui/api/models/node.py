"""The node itself: alarms."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


class Alarm(BaseModel):
    """Something that is or was wrong: ``message`` in a sentence, ``details`` in numbers. Times are RFC 3339 in UTC."""

    name: str
    message: str
    details: dict[str, Any]
    activated_at: str
    deactivated_at: str | None
    lasted_s: float


class AlarmList(BaseModel):
    """Alarms, newest first."""

    items: list[Alarm]
    next: None
    total: int
    total_is_estimate: bool
