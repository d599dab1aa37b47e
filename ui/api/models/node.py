"""The node itself: listeners, alarms."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, create_model

from broker.core.kinds import load
from ui.api.models.shapes import CheckedBody

ListenerSpec: Any = create_model(
    "ListenerSpec",
    __base__=(CheckedBody, load("broker.net.settings:WssListenerSettings")),
    __doc__="Settings of a listener, as in section `listeners` of the configuration. "
    "`ssl_options` is for `ssl` and `wss`, `websocket` for `ws` and `wss`.",
)


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
