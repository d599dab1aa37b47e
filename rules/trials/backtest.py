"""Back-tests of a node: jobs, each a process of its own, with progress, an end that always comes, and a result.

The broker's part is to start the process, to read a line of progress a few times a second and to end it. Records go
from the range server to the process.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NotRequired

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
)
from typing_extensions import TypedDict

from broker.config.places import Place, leaves_out
from broker.config.spec_problems import parsed
from broker.core.errors import Invalid, NotFound, Problem, Unavailable
from broker.core.feature import Services
from broker.core.objects import Spec
from broker.core.process import environment
from broker.core.signals import Signal
from broker.core.times import MILLISECONDS, rfc3339_or_none
from rules.settings import RulesSettings

MAX_RUNNING: Final = 2
# Maximum back-tests that run at once, and finished ones that are kept; the oldest are dropped.
MAX_KEPT: Final = 20
# The process ends when its time is over; this many seconds later it is killed.
_GRACE_S: Final = 10.0
_MAX_LINE_BYTES: Final = 64 * 1024 * 1024
_WHAT: Final = "this cannot be back-tested"


BacktestRange = TypedDict("BacktestRange", {"shard": int, "from": str, "to": str})
BacktestRange.__doc__ = """Offsets of a shard: ``from`` up to, not including, ``to``."""


class BacktestProgress(TypedDict):
    """Progress of a back-test."""

    done: int
    total: int
    unit: Literal["messages"]


class BeforeAndAfter(TypedDict):
    """A count of the rule that runs (``before``, 0 if there is none) and of the tried one."""

    before: int
    after: int


class BacktestRows(BeforeAndAfter):
    """The rows of both, and how many of them are unchanged, added, lost and changed."""

    unchanged: int
    added: int
    lost: int
    changed: int


class BacktestPlace(TypedDict):
    """Position of a message in the stream."""

    shard: int
    offset: str


class BacktestError(TypedDict):
    """A kind of error, how often it occurred, and the first message it occurred on."""

    message: str
    count: int
    first: BacktestPlace


class BacktestErrors(TypedDict):
    """The kinds of errors of both, most frequent first."""

    before: list[BacktestError]
    after: list[BacktestError]


class BacktestSample(BacktestPlace):
    """A row that differs, with its message: ``before`` where there was one, ``after`` where there is one."""

    stream: str
    ts_ms: int
    topic: str
    before: NotRequired[dict[str, Any]]
    after: NotRequired[dict[str, Any]]


class BacktestSamples(TypedDict):
    """Rows that differ, at most `samples` of each kind."""

    added: list[BacktestSample]
    lost: list[BacktestSample]
    changed: list[BacktestSample]


class BacktestResult(TypedDict):
    """Result of a back-test; ``why`` it is not ``complete``.

    ``matched`` are runs, ``no_result`` those without a row. ``undefined_columns`` are read by the SQL and not kept by
    streams, which are those of ``not_kept``.
    """

    messages: int
    matched: BeforeAndAfter
    no_result: BeforeAndAfter
    rows: BacktestRows
    errors: BacktestErrors
    samples: BacktestSamples
    elapsed_s: float
    messages_per_s: int
    complete: bool
    why: NotRequired[str]
    undefined_columns: list[str]
    not_kept: list[str]


class BacktestView(TypedDict):
    """A back-test. ``rule`` is the one compared with, ``rate`` is in messages per second. ``result`` is null until the
    back-test is done, and in lists."""

    id: str
    state: Literal["running", "done", "failed", "cancelled"]
    rule: str | None
    stream: str
    ranges: list[BacktestRange]
    progress: BacktestProgress
    rate: int | None
    eta_s: float | None
    started_at: str | None
    ended_at: str | None
    error: str | None
    result: BacktestResult | None


@dataclass(slots=True)
class Backtest:
    """One job."""

    id: str
    rule: str | None
    stream: str
    total: int
    started_ms: int
    ranges: list[BacktestRange]
    state: Literal["running", "done", "failed", "cancelled"] = "running"
    done: int = 0
    ended_ms: int | None = None
    error: str | None = None
    result: BacktestResult | None = None
    process: Process | None = None
    task: asyncio.Task[None] | None = None
    began_s: float = field(default_factory=time.monotonic)

    def view(self) -> BacktestView:
        """View for the API."""
        elapsed_s = time.monotonic() - self.began_s
        rate = self.done / elapsed_s if self.state == "running" and elapsed_s > 0 else None
        return {
            "id": self.id,
            "state": self.state,
            "rule": self.rule,
            "stream": self.stream,
            "ranges": self.ranges,
            "progress": {"done": self.done, "total": self.total, "unit": "messages"},
            "rate": None if rate is None else round(rate),
            "eta_s": round((self.total - self.done) / rate, 1) if rate else None,
            "started_at": rfc3339_or_none(self.started_ms, MILLISECONDS),
            "ended_at": rfc3339_or_none(self.ended_ms, MILLISECONDS),
            "error": self.error,
            "result": self.result,
        }


class BacktestRequest(BaseModel):
    """New SQL for a rule, or a rule, and the messages to run it on.

    ``name`` and ``sql`` compare the SQL with the rule that runs; one alone is run without a comparison. ``from`` and
    ``to`` are offsets, for every shard, or times; with more than ``limit`` messages between them the newest are read.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str | None = None
    language: Literal["sql", "jq"] = "sql"
    jq: str | None = Field(default=None, description="The program, with the language jq.")
    sources: list[str] | None = Field(
        default=None, description="What it reads, with the language jq."
    )
    sql: str | None = Field(default=None, validate_default=True)
    stream: str
    start: Place | None = Field(default=None, alias="from")
    end: Place | None = Field(default=None, alias="to")
    limit: int = Field(default=10_000_000, gt=0)
    samples: int = Field(default=10, ge=1, le=200)
    timeout_s: float = Field(default=300.0, gt=0)

    @field_validator("sql")
    @classmethod
    def _has_subject(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is None and info.data.get("name") is None and info.data.get("language") != "jq":
            raise ValueError("give the name of a rule, SQL, or both")
        return value


@dataclass(frozen=True, slots=True)
class Comparison:
    """The parts of a request: the rule as it is, if there is one, the changed one, and the range, if it was
    looked up."""

    before: Spec | None
    after: Spec
    request: BacktestRequest
    ranges: Sequence[tuple[int, int, int]] = ()


class Backtests:
    """The back-tests of a node. Used on the event loop."""

    def __init__(
        self,
        services: Services,
        settings: RulesSettings,
        schemas: Callable[[], Sequence[Spec]],
    ) -> None:
        """``schemas`` gives the specs of the schemas that functions may name."""
        node = services.node
        self._node = node.name
        self._clock = node.clock
        self._command = node.backtest
        self._settings = settings
        self._positions = services.storage.positions
        self._schemas = schemas
        self._jobs: dict[str, Backtest] = {}
        self.on_change = Signal[BacktestView]()
        """Signal that a back-test begins, progresses or ends; not sent when the broker stops it."""

    def start(self, comparison: Comparison) -> BacktestView:
        """Begin; the job.

        Raises:
            NotFound: there is no such stream.
            Invalid: it keeps rows of rules, or holds nothing in the requested range.
            Unavailable: enough run already.
        """
        request = comparison.request
        after = comparison.after
        if sum(job.state == "running" for job in self._jobs.values()) >= MAX_RUNNING:
            raise Unavailable(
                f"{MAX_RUNNING} back-tests run already; wait for one, or cancel it",
                retry_after_s=10,
            )
        where = self._positions(request.stream, None)
        if where["kind"] != "topics":
            hint = "name a stream that captures topics; those of rows have no messages"
            raise Invalid(
                _WHAT,
                [
                    Problem(
                        f"stream {request.stream!r} keeps rows of rules", "/stream", suggestion=hint
                    )
                ],
            )
        ranges = comparison.ranges or self.ranges(request)
        job = Backtest(
            secrets.token_hex(8),
            after["name"] if comparison.before is not None else None,
            request.stream,
            sum(end - start for _, start, end in ranges),
            self._clock.now_ns() // 1_000_000,
            [{"shard": shard, "from": str(start), "to": str(end)} for shard, start, end in ranges],
        )
        document = {
            "node": self._node, "rule": after["name"], "stream": request.stream, "before": comparison.before,
            "after": after, "ranges": ranges, "ranges_url": where["ranges_url"], "log": where["log"],
            "ticket": where["ticket"], "places": _places(where),
            "samples": request.samples, "deadline_s": request.timeout_s,
            "memory_bytes": self._settings.backtest_memory, "schemas": list(self._schemas()), "parent": os.getpid(),
        }  # fmt: skip
        self._keep(job)
        job.task = asyncio.create_task(
            self._run(job, document, request.timeout_s), name=f"back-test {job.id}"
        )
        return job.view()

    def known(self) -> Sequence[BacktestView]:
        """All that are known, newest first, without their results."""
        return [{**job.view(), "result": None} for job in reversed(self._jobs.values())]

    def get(self, id: str) -> BacktestView:
        """One with its result. Raises ``NotFound``."""
        return self._job(id).view()

    async def over(self, id: str) -> BacktestView:
        """The job once it is over. Raises ``NotFound``."""
        job = self._job(id)
        if job.task is not None:
            await asyncio.wait([job.task])
        return job.view()

    def cancel(self, id: str) -> BacktestView:
        """End one; nothing happens when it is over. Raises ``NotFound``."""
        job = self._job(id)
        if job.state == "running":
            self._finish(job, "cancelled")
            _kill(job)
        return job.view()

    async def stop(self) -> None:
        """End all; their processes have ended when this returns."""
        tasks = [job.task for job in self._jobs.values() if job.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _job(self, id: str) -> Backtest:
        job = self._jobs.get(id)
        if job is None:
            raise NotFound("back-test", id, f"the last {MAX_KEPT} are kept, until the broker stops")
        return job

    def _keep(self, job: Backtest) -> None:
        self._jobs[job.id] = job
        self.on_change(job.view())
        over = [job.id for job in self._jobs.values() if job.state != "running"]
        for id in over[: max(0, len(self._jobs) - MAX_KEPT)]:
            del self._jobs[id]

    def ranges(self, request: BacktestRequest) -> list[tuple[int, int, int]]:
        """Shard, first offset and offset after the last, of the stored records; the newest when that is more than
        asked. Blocks for as long as an object store takes to find a time: for a thread."""
        firsts = self._offsets(request.stream, request.start)
        ends = self._offsets(request.stream, request.end)
        ranges = []
        for positions in self._positions(request.stream, None)["shards"]:
            shard = positions["shard"]
            first = int(positions["first_offset"])
            following = int(positions["next_offset"])
            start = max(first, firsts.get(shard, first))
            end = min(following, ends.get(shard, following))
            if start < end and not leaves_out(shard, request.start, request.end):
                ranges.append((shard, start, end))
        if not ranges:
            raise Invalid(
                _WHAT, [Problem(f"stream {request.stream!r} holds nothing of that range", "/from")]
            )
        return _newest(ranges, request.limit)

    def _offsets(self, stream: str, place: Place | None) -> dict[int, int]:
        """The offset of each shard at a place; none when no place was named."""
        if place is None or isinstance(place, dict):
            return place or {}
        at_us = None if isinstance(place, int) else round(place.timestamp() * 1_000_000)
        shards = self._positions(stream, at_us)["shards"]
        return {
            shard["shard"]: place if isinstance(place, int) else int(shard["at_offset"])
            for shard in shards
        }

    async def _run(self, job: Backtest, document: Mapping[str, Any], timeout_s: float) -> None:
        try:
            process = job.process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=PIPE,
                stdout=PIPE,
                env=environment(),
                start_new_session=True,
                limit=_MAX_LINE_BYTES,
            )
        except OSError as error:
            self._finish(job, "failed", f"its process cannot be started: {error}")
            return
        try:
            async with asyncio.timeout(timeout_s + _GRACE_S):
                if job.state == "running":  # not cancelled while the process was started
                    await self._follow(job, process, document)
        except TimeoutError:
            self._finish(job, "failed", f"it did not end in {timeout_s:g} s")
        except (OSError, ValueError) as error:
            self._finish(job, "failed", f"its process cannot be read: {error}")
        finally:
            _kill(job)
            await process.wait()
        self._finish(
            job,
            "failed",
            f"its process ended with status {process.returncode}; its errors are in the log",
        )

    async def _follow(self, job: Backtest, process: Process, document: Mapping[str, Any]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        # left open: its end would end the process
        process.stdin.write(json.dumps(document).encode() + b"\n")
        while line := await process.stdout.readline():
            report = json.loads(line)
            if "result" in report:
                job.result = report["result"]
                job.done = report["result"]["messages"]
                self._finish(job, "done")
            elif "failed" in report:
                self._finish(job, "failed", report["failed"])
            else:
                job.done = report["done"]
                self.on_change(job.view())
        await process.wait()  # killed while it ends, its status would be lost

    def _finish(
        self, job: Backtest, state: Literal["done", "failed", "cancelled"], error: str | None = None
    ) -> None:
        if job.state == "running":
            job.state, job.error, job.ended_ms = state, error, self._clock.now_ns() // 1_000_000
            self.on_change(job.view())


def requested(
    body: Any,
    spec_of: Callable[[str], Spec],
    check: Callable[[Spec], None],
    settings: RulesSettings,
) -> Comparison:
    """The comparison that a body asks for.

    ``name`` and ``sql`` compare new SQL with the rule; ``sql`` alone, or ``name`` alone, with nothing. In place of SQL
    a program in jq may stand (``language``, ``jq``), and in ``sources`` the topics it reads, else the rule's.

    Raises:
        Invalid: with every problem.
        NotFound: there is no such rule.
    """
    most = {"limit": settings.backtest_max_messages, "timeout_s": settings.backtest_timeout}
    request = parsed(BacktestRequest, {**most, **body}, _WHAT)
    above = {name: limit for name, limit in most.items() if getattr(request, name) > limit}
    if above:
        raise Invalid(
            _WHAT,
            [Problem(f"expected at most {limit:,}", f"/{name}") for name, limit in above.items()],
        )
    running = None if request.name is None else spec_of(request.name)
    evaluated = {
        key: value for key, value in (running or {"name": "backtest"}).items() if key in _EVALUATED
    }
    new = _new(request, evaluated)
    after = evaluated if new is None else {"name": evaluated["name"], **new}
    check(after)
    return Comparison(evaluated if running and new is not None else None, after, request)


# Members of a rule that say what it evaluates; ``jq`` and ``from`` those of one in jq alone.
_EVALUATED: Final = ("name", "sql", "language", "jq", "from")


def _new(request: BacktestRequest, known: Spec) -> Spec | None:
    """The statement evaluated in place of the rule; None for the rule itself."""
    if request.language == "jq":
        return {"language": "jq", "jq": request.jq, "from": request.sources or known.get("from")}
    return None if request.sql is None else {"sql": request.sql}


def _newest(ranges: Sequence[tuple[int, int, int]], limit: int) -> list[tuple[int, int, int]]:
    """The newest ``limit`` messages, from each shard in proportion to its messages."""
    total = sum(end - start for _, start, end in ranges)
    if total <= limit:
        return list(ranges)
    cut = [
        (shard, end - max(1, (end - start) * limit // total), end) for shard, start, end in ranges
    ]
    return cut[:limit]


def _kill(job: Backtest) -> None:
    if job.process is not None and job.process.returncode is None:
        with suppress(ProcessLookupError):
            job.process.kill()


def _places(where: Mapping[str, Any]) -> dict[str, tuple[int, str]]:
    """Log and ticket of the shards that have others than the stream: those in other cells."""
    return {
        str(shard["shard"]): (shard["log"], shard["ticket"])
        for shard in where["shards"]
        if "log" in shard
    }
