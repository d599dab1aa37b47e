"""Answers about jobs."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel


class JobProgress(BaseModel):
    """Progress of a job, in ``unit``."""

    done: int
    total: int
    unit: str


class Job(BaseModel):
    """Long work. ``rate`` is per second; ``result_url`` is where the result is, where it is not in ``result``.
    ``interrupted`` is what ran when the broker stopped: ``error`` says what to do. While a replay of a stream runs,
    ``error`` is what it waits for, and ``result`` what it did so far."""

    id: str
    kind: str
    name: str
    state: Literal["running", "paused", "done", "failed", "cancelled", "interrupted"]
    progress: JobProgress
    rate: float | None
    eta_s: float | None
    started_at: str
    ended_at: str | None
    error: str | None
    result_url: str | None


class JobWithResult(Job):
    """A job with its result."""

    result: dict[str, Any] | None
