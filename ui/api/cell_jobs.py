"""Jobs that each cell carries out on its own data, under one identifier: they are shown as one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from broker.core.objects import Spec
from ui.api.cell_joins import summed

JOB_HEADER: Final = "sluice-job"
"""Header of a call from the front with the identifier of the job to begin."""
# States of a job in one cell that decide for all, in this order.
_DECIDE: Final = ("running", "paused", "failed", "interrupted", "cancelled")


def is_over(job: Spec) -> bool:
    """True if a job has ended."""
    return job["state"] not in ("running", "paused")


def joined(parts: Sequence[Spec]) -> Spec:
    """A job as its cells show it, as one."""
    if len(parts) == 1:
        return parts[0]
    states = [part["state"] for part in parts]
    state = next((state for state in _DECIDE if state in states), states[0])
    ended = [part["ended_at"] for part in parts]
    job = {
        **parts[0],
        "state": state,
        "progress": {
            **parts[0]["progress"],
            **{name: sum(part["progress"][name] for part in parts) for name in ("done", "total")},
        },
        "rate": _of_any(sum, [part["rate"] for part in parts]),
        "eta_s": _of_any(max, [part["eta_s"] for part in parts]),
        "started_at": min(part["started_at"] for part in parts),
        "ended_at": None if None in ended else max(ended),
        "error": next((part["error"] for part in parts if part["error"]), None),
    }
    if "result" in parts[0]:
        job["result"] = results([part["result"] for part in parts])
    return job


def results(parts: Iterable[Any]) -> Any:
    """The results of the parts of a job, as one: numbers added, lists one behind the other."""
    total: Any = None
    for part in parts:
        total = summed(total, part)
    return total


def together(jobs: Iterable[Spec]) -> list[Spec]:
    """Jobs of all cells, those of one identifier as one, newest first."""
    by_id: dict[str, list[Spec]] = {}
    for job in jobs:
        by_id.setdefault(job["id"], []).append(job)
    one_each = [joined(parts) for parts in by_id.values()]
    return sorted(one_each, key=lambda job: str(job["started_at"]), reverse=True)


def _of_any(how: Any, values: Sequence[Any]) -> Any:
    numbers = [value for value in values if value is not None]
    return how(numbers) if numbers else None
