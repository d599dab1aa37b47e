"""The history of metrics."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


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
    (`reloaded`) there is none. Objects are `added`, `changed` or `removed`, and `kind` is theirs: `rule`, `schema`.
    `by` is who changed it by the API; absent otherwise."""

    at: str
    kind: str
    name: str
    what: str
    by: str | None = None


class MetricsWindow(BaseModel):
    """Series of metrics between two times, RFC 3339 in UTC. The first value is of the ``step_s`` seconds from ``from``
    on, each further one of the next; ``to`` is the end of the last. Series without values are left out."""

    from_: str = Field(alias="from")
    to: str
    step_s: int
    series: list[SeriesPoints]
    markers: list[HistoryMarker]
