"""The node itself: alarms."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field


class Alarm(BaseModel):
    """Something that is or was wrong: ``message`` in a sentence, ``details`` in numbers. Times are RFC 3339 in UTC."""

    name: str
    message: str
    details: dict[str, Any]
    activated_at: str
    deactivated_at: str | None
    lasted_s: float


class SeriesPoints(BaseModel):
    """One series. ``kind`` is ``rate`` (a counter, per second) or ``gauge``. ``mean``, ``min`` and ``max`` have one
    value per step, null where the broker did not run or the series did not exist."""

    name: str
    labels: dict[str, str]
    kind: Literal["rate", "gauge"]
    mean: list[float | None]
    min: list[float | None]
    max: list[float | None]


class HistoryMarker(BaseModel):
    """A change. Of `broker` (`started`, `started_after_crash`, `stopped`) the name is its version; of `configuration`
    (`reloaded`) there is none. Objects are `added`, `changed` or `removed`, and `kind` is theirs: `rule`, `schema`."""

    at: str
    kind: str
    name: str
    what: str


class MetricsWindow(BaseModel):
    """Series of metrics between two times, RFC 3339 in UTC. The first value is of the ``step_s`` seconds from ``from``
    on, each further one of the next; ``to`` is the end of the last. Series without values are left out."""

    from_: str = Field(alias="from")
    to: str
    step_s: int
    series: list[SeriesPoints]
    markers: list[HistoryMarker]


class AlarmList(BaseModel):
    """Alarms, newest first."""

    items: list[Alarm]
    next: None
    total: int
    total_is_estimate: bool
