"""Long work as jobs: progress, an end that can be asked for, a result.

What runs in the event loop is started here; others, such as back-tests, say what they run (``JobSource``) and have it
stored by ``Jobs.keep``. What was running when the broker stopped is listed as ``interrupted`` after its next start.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from broker.core import jsontext
from broker.core.clock import Clock
from broker.core.errors import Conflict, NotFound, SluiceError, Unavailable
from broker.core.objects import Spec
from broker.core.resources import resources
from broker.core.times import rfc3339
from broker.core.values import Values

log = logging.getLogger("sluice.jobs")
JOB_ID: ContextVar[str | None] = ContextVar("job_id", default=None)
"""Identifier of the job that a request begins, where the request has chosen one."""
NOTHING_TO_DO: Final = "nothing_to_do"
"""Code of the problem that a job has nothing to do, which another cell may have."""
MAX_RUNNING: Final = 20
# Maximum jobs that are over and can be shown, until the broker stops; interrupted jobs also after that.
MAX_KEPT: Final = 20
_PREFIX: Final = "jobs/"
# Interval at which the progress of a running job is stored.
_KEEP_EVERY_S: Final = 1.0
_INTERRUPTED: Final = (
    "The broker stopped while the job ran. What was done stays. Try: start it again for the rest."
)


class JobSource(Protocol):
    """Jobs that run elsewhere. ``pause`` and ``resume`` raise ``Conflict`` where that is not possible."""

    def known(self) -> Sequence[Spec]:
        """Running and ended jobs, each in the form of ``Job.as_dict``."""

    def cancel(self, id: str) -> object:
        """End one; nothing happens when it is over."""

    def pause(self, id: str) -> None:
        """Pause a job."""

    def resume(self, id: str) -> None:
        """Resume a paused job."""

    def result(self, id: str) -> Mapping[str, Any] | None:
        """The result, where it has none elsewhere."""


class NoPause:
    """Answers of a source of jobs that cannot be paused."""

    def pause(self, id: str) -> None:
        """See ``JobSource``."""
        raise Conflict(f"job {id} cannot be paused, only cancelled")

    def resume(self, id: str) -> None:
        """See ``JobSource``."""
        raise Conflict(f"job {id} cannot be resumed")

    def result(self, id: str) -> Mapping[str, Any] | None:
        """See ``JobSource``."""
        return None


def new_job_id() -> str:
    """The identifier of a job that begins now."""
    return JOB_ID.get() or secrets.token_hex(8)


@dataclass(eq=False)
class Job:
    """Work in the event loop. It calls ``advance`` between two pieces, and ends early when that is false.

    With an ``order``, which says all that there is to do, it continues when the broker starts again. It may be paused
    where its work looks at ``is_paused`` (``may_pause``).
    """

    kind: str
    name: str
    unit: str
    total: int
    clock: Clock
    keep: Callable[[Spec], None]
    id: str = field(default_factory=lambda: new_job_id())
    state: str = "running"
    done: int = 0
    ended_ns: int | None = None
    result: Mapping[str, Any] | None = None
    failure: Exception | None = None
    is_cancelled: bool = False
    order: Spec | None = None
    may_pause: bool = False
    task: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self.started_ns = self.clock.now_ns()
        self._kept_s = -_KEEP_EVERY_S
        self._keep()

    def is_paused(self) -> bool:
        """True if the work must wait."""
        return self.state == "paused"

    def pause(self, *, is_paused: bool) -> None:
        """Pause or resume the job. Raises ``Conflict`` if it cannot."""
        verb, state = ("paused", "running") if is_paused else ("resumed", "paused")
        if not self.may_pause or self.state != state:
            raise Conflict(
                f"job {self.id} cannot be {verb}: it is a {self.kind} that is {self.state}"
            )
        self.state = "paused" if is_paused else "running"
        self._kept_s = -_KEEP_EVERY_S
        self._keep()

    def advance(self, done: int) -> bool:
        """Record the progress. Return whether to continue."""
        self.done = done
        self._keep()
        return not self.is_cancelled

    def _keep(self) -> None:
        now_s = self.clock.monotonic_s()
        if now_s - self._kept_s >= _KEEP_EVERY_S:
            self._kept_s = now_s
            self.keep(
                self.as_dict() if self.order is None else {**self.as_dict(), "order": self.order}
            )

    async def over(self) -> Mapping[str, Any]:
        """The result once it is over; raises what ended the work."""
        assert self.task is not None
        await asyncio.shield(self.task)
        if self.failure is not None:
            raise self.failure
        return self.result or {}

    def as_dict(self) -> Spec:
        """The job as it is shown, without its result."""
        seconds = ((self.ended_ns or self.clock.now_ns()) - self.started_ns) / 1e9
        rate = self.done / seconds if seconds > 0 and self.done else None
        left = max(0, self.total - self.done)
        return {
            "id": self.id,
            "kind": self.kind,
            "name": self.name,
            "state": self.state,
            "progress": {"done": self.done, "total": self.total, "unit": self.unit},
            "rate": None if rate is None else round(rate),
            "eta_s": round(left / rate, 1) if rate and self.state == "running" else None,
            "started_at": rfc3339(self.started_ns),
            "ended_at": None if self.ended_ns is None else rfc3339(self.ended_ns),
            "error": None if self.failure is None else str(self.failure),
            "result_url": None,
        }


Work = Callable[[Job], Awaitable[Any]]
_AT_WORK: Final = ("running", "paused")
_NO_PAUSE: Final = NoPause()


class Jobs:
    """The jobs of a node. Used on the event loop."""

    def __init__(self, values: Values, clock: Clock) -> None:
        self._values, self._clock, self._jobs = values, clock, dict[str, Job]()
        self.sources: list[JobSource] = []
        self._is_stopping = False
        rows = [
            jsontext.decode(data) for name in values.names(_PREFIX) if (data := values.get(name))
        ]
        self._left = [row for row in rows if row.get("order")]
        self._works: dict[str, Work] = {}
        self._pausable: set[str] = set()
        over = {"state": "interrupted", "rate": None, "eta_s": None, "error": _INTERRUPTED}
        ended = [row for row in rows if not row.get("order")]
        self._interrupted: dict[str, Spec] = {
            row["id"]: {**row, **over}
            for row in sorted(ended, key=lambda row: str(row["started_at"]))
        }

    def start(
        self,
        kind: str,
        name: str,
        unit: str,
        total: int,
        work: Work | None = None,
        order: Spec | None = None,
    ) -> Job:
        """Begin work on ``total`` of ``unit``: an order, or else work that ends with the broker. Raises ``Unavailable``
        where enough runs already."""
        if sum(job.state in _AT_WORK for job in self._jobs.values()) >= MAX_RUNNING:
            raise Unavailable(
                f"{MAX_RUNNING} jobs run already; wait for one, or cancel it", retry_after_s=10
            )
        job = Job(kind, name, unit, total, self._clock, self.keep, order=order)
        return self._begin(job, work)

    def takes_orders(self, kind: str, work: Work, *, may_pause: bool = True) -> None:
        """Say what the orders of a kind of jobs are done by, and if that may be paused."""
        self._works[kind] = work
        if may_pause:
            self._pausable.add(kind)

    def start_again(self) -> None:
        """After a start of the broker: continue what has an order."""
        for row in sorted(self._left, key=lambda row: str(row["started_at"])):
            kind = row["kind"]
            name = row["name"]
            progress = row["progress"]
            self._begin(
                Job(
                    kind, name, progress["unit"], progress["total"], self._clock, self.keep, row["id"], row["state"],
                    progress["done"], order=row["order"],
                )
            )  # fmt: skip
        self._left = []

    def _begin(self, job: Job, work: Work | None = None) -> Job:
        job.may_pause = job.order is not None and job.kind in self._pausable
        job.task = asyncio.create_task(
            self._run(job, work or self._works[job.kind]), name=f"{job.kind} {job.name}"
        )
        self._jobs[job.id] = job
        return job

    def scope_of(self, id: str) -> Mapping[str, str]:
        """The topics that the result of a job has messages of, for scopes. Raises ``NotFound``."""
        kind = self.get(id)["kind"]
        jobs = (verb.job for resource in resources() for verb in resource.verbs)
        has_messages = any(
            job is not None and job.kind == kind and job.has_messages for job in jobs
        )
        return {"topic": "#"} if has_messages else {}

    def keep(self, row: Spec) -> None:
        """Store a job that runs, so that it is listed as ``interrupted`` after a restart; forget one that is over."""
        is_running = row["state"] in _AT_WORK
        self._values.put(f"{_PREFIX}{row['id']}", jsontext.encode(row) if is_running else None)
        over = [
            *self._interrupted,
            *(job.id for job in self._jobs.values() if job.state not in _AT_WORK),
        ]
        for id in over[: max(0, len(over) - MAX_KEPT)]:
            if self._interrupted.pop(id, None) is None:
                del self._jobs[id]
            else:
                self._values.put(f"{_PREFIX}{id}", None)

    def known(self) -> Sequence[Spec]:
        """Running and ended jobs, newest first."""
        every = [*self._interrupted.values(), *(job.as_dict() for job in self._jobs.values())]
        every += [row for source in self.sources for row in source.known()]
        return sorted(every, key=lambda row: str(row["started_at"]), reverse=True)

    def get(self, id: str) -> Spec:
        """One with its result, where it is kept here. Raises ``NotFound``."""
        row = next((row for row in self.known() if row["id"] == id), None)
        if row is None:
            raise NotFound(
                "job", id, f"the last {MAX_KEPT} of a kind are kept, until the broker stops"
            )
        own = self._jobs.get(id)
        source = self._source_of(id)
        return {
            **row,
            "result": own.result
            if own is not None
            else source.result(id)
            if source is not None
            else None,
        }

    def cancel(self, id: str) -> Spec:
        """Cancel a job after the piece that it works on; completed work is kept. Raises ``NotFound``."""
        self.get(id)
        if id in self._jobs:
            self._jobs[id].is_cancelled = True
        elif (source := self._source_of(id)) is not None:
            source.cancel(id)
        return self.get(id)

    def pause(self, id: str) -> Spec:
        """Pause a job after the piece that it works on. Raises ``NotFound``, ``Conflict`` if it cannot be paused."""
        self.get(id)
        if id in self._jobs:
            self._jobs[id].pause(is_paused=True)
        else:
            (self._source_of(id) or _NO_PAUSE).pause(id)
        return self.get(id)

    def resume(self, id: str) -> Spec:
        """Resume a paused job. Raises ``NotFound``, ``Conflict`` if it is not paused."""
        self.get(id)
        if id in self._jobs:
            self._jobs[id].pause(is_paused=False)
        else:
            (self._source_of(id) or _NO_PAUSE).resume(id)
        return self.get(id)

    def _source_of(self, id: str) -> JobSource | None:
        return next(
            (source for source in self.sources if any(row["id"] == id for row in source.known())),
            None,
        )

    async def stop(self) -> None:
        """Cancel all jobs, and wait for them to end."""
        self._is_stopping = True
        running = [
            job.task for job in self._jobs.values() if job.task is not None and not job.task.done()
        ]
        for job in self._jobs.values():
            if job.order is None:
                job.is_cancelled = True
            elif job.task is not None:  # the part that works on the order resumes, if it can
                job.task.cancel()
        if running:
            await asyncio.wait(running, timeout=5)

    async def _run(self, job: Job, work: Work) -> None:
        try:
            job.result = await work(job)
            job.state = "cancelled" if job.is_cancelled else "done"
        except SluiceError as error:
            job.failure = error
            job.state = "failed"
        except Exception as error:  # raised where the job is waited for
            log.exception("job.failed", extra={"job": job.id, "kind": job.kind})
            job.failure = error
            job.state = "failed"
        finally:
            job.ended_ns = self._clock.now_ns()
            if not (self._is_stopping and job.state in ("cancelled", *_AT_WORK)):
                self._values.put(f"{_PREFIX}{job.id}", None)
