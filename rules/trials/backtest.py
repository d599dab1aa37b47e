"""Back-tests of a node: jobs, each a process of its own, with progress, an end that always comes, and a result.

The broker's part is to start the process, to read a line of progress a few times a second and to end it. Records go
from the range server to the process.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from broker.core.errors import Invalid, NotFound, Problem, Unavailable
from broker.core.feature import Services
from broker.core.objects import Spec
from broker.core.times import MILLISECONDS, rfc3339_or_none
from rules.settings import RulesSettings

MAX_RUNNING: Final = 2
MAX_KEPT: Final = 20
"""So many run at once, and so many that are over can be looked at; the oldest are forgotten."""
MAX_SAMPLES: Final = 200
_SAMPLES: Final = 10
_GRACE_S: Final = 10.0
"""The process ends by itself when its time is over; so long later it is killed."""
_MAX_LINE_BYTES: Final = 64 * 1024 * 1024
_WHAT: Final = "this cannot be back-tested"


@dataclass(slots=True)
class Backtest:
    """One job. ``state`` is ``running``, ``done``, ``failed`` or ``cancelled``."""

    id: str
    rule: str | None
    stream: str
    total: int
    started_ms: int
    ranges: Sequence[Mapping[str, Any]]
    state: str = "running"
    done: int = 0
    ended_ms: int | None = None
    error: str | None = None
    result: dict[str, Any] | None = None
    process: Process | None = None
    task: asyncio.Task[None] | None = None
    began_s: float = field(default_factory=time.monotonic)

    def as_dict(self) -> dict[str, Any]:
        """As the API shows it; rates and times in seconds."""
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


@dataclass(frozen=True, slots=True)
class BacktestRequest:
    """What is to be compared over what, checked. ``start`` and ``end`` are offsets, or texts of times."""

    before: Spec | None
    after: Spec
    stream: str
    start: int | datetime | None
    end: int | datetime | None
    limit: int
    samples: int
    timeout_s: float


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
        self._node, self._clock, self._command, self._settings = node.name, node.clock, node.backtest, settings
        self._positions, self._schemas = services.storage.positions, schemas
        self._jobs: dict[str, Backtest] = {}

    def start(self, request: BacktestRequest) -> dict[str, Any]:
        """Begin; the job.

        Raises:
            NotFound: there is no such stream.
            Invalid: it keeps rows of rules, or holds none of what was asked for.
            Unavailable: enough run already.
        """
        if sum(job.state == "running" for job in self._jobs.values()) >= MAX_RUNNING:
            raise Unavailable(f"{MAX_RUNNING} back-tests run already; wait for one, or cancel it", retry_after_s=10)
        where = self._positions(request.stream, None)
        if where["kind"] != "topics":
            hint = "name a stream that captures topics; those of rows have no messages"
            raise Invalid(
                _WHAT, [Problem(f"stream {request.stream!r} keeps rows of rules", "/stream", suggestion=hint)]
            )
        ranges = self._ranges(request)
        job = Backtest(
            secrets.token_hex(8),
            request.after["name"] if request.before is not None else None,
            request.stream,
            sum(end - start for _, start, end in ranges),
            self._clock.now_ns() // 1_000_000,
            [{"shard": shard, "from": str(start), "to": str(end)} for shard, start, end in ranges],
        )
        document = {
            "node": self._node, "rule": request.after["name"], "stream": request.stream, "before": request.before,
            "after": request.after, "ranges": ranges, "ranges_url": where["ranges_url"], "log": where["log"],
            "ticket": where["ticket"], "samples": request.samples, "deadline_s": request.timeout_s,
            "memory_bytes": self._settings.backtest_memory, "schemas": list(self._schemas()), "parent": os.getpid(),
        }  # fmt: skip
        self._keep(job)
        job.task = asyncio.create_task(self._run(job, document, request.timeout_s), name=f"back-test {job.id}")
        return job.as_dict()

    def known(self) -> Sequence[dict[str, Any]]:
        """All that are known, newest first, without their results."""
        return [{**job.as_dict(), "result": None} for job in reversed(self._jobs.values())]

    def get(self, id: str) -> dict[str, Any]:
        """One with its result. Raises ``NotFound``."""
        return self._job(id).as_dict()

    async def over(self, id: str) -> dict[str, Any]:
        """The same once it is over. Raises ``NotFound``."""
        job = self._job(id)
        if job.task is not None:
            await asyncio.wait([job.task])
        return job.as_dict()

    def cancel(self, id: str) -> dict[str, Any]:
        """End one; nothing happens when it is over. Raises ``NotFound``."""
        job = self._job(id)
        if job.state == "running":
            self._finish(job, "cancelled")
            _kill(job)
        return job.as_dict()

    def stop(self) -> None:
        """End all."""
        for job in self._jobs.values():
            if job.task is not None:
                job.task.cancel()
            _kill(job)

    def _job(self, id: str) -> Backtest:
        found = self._jobs.get(id)
        if found is None:
            raise NotFound("back-test", id, f"the last {MAX_KEPT} are kept, until the broker stops")
        return found

    def _keep(self, job: Backtest) -> None:
        self._jobs[job.id] = job
        over = [known.id for known in self._jobs.values() if known.state != "running"]
        for id in over[: max(0, len(self._jobs) - MAX_KEPT)]:
            del self._jobs[id]

    def _ranges(self, request: BacktestRequest) -> list[tuple[int, int, int]]:
        """Shard, first offset and offset after the last, of what is there; the newest when that is more than asked."""
        firsts, ends = self._offsets(request.stream, request.start), self._offsets(request.stream, request.end)
        ranges = []
        for held in self._positions(request.stream, None)["shards"]:
            shard, first, following = held["shard"], int(held["first_offset"]), int(held["next_offset"])
            start = max(first, firsts.get(shard, first))
            end = min(following, ends.get(shard, following))
            if start < end:
                ranges.append((shard, start, end))
        if not ranges:
            raise Invalid(_WHAT, [Problem(f"stream {request.stream!r} holds nothing of that range", "/from")])
        return _newest(ranges, request.limit)

    def _offsets(self, stream: str, place: int | datetime | None) -> dict[int, int]:
        """The offset of each shard at a place; none when no place was named."""
        if place is None:
            return {}
        at_us = None if isinstance(place, int) else round(place.timestamp() * 1_000_000)
        shards = self._positions(stream, at_us)["shards"]
        return {one["shard"]: place if isinstance(place, int) else int(one["at_offset"]) for one in shards}

    async def _run(self, job: Backtest, document: Mapping[str, Any], timeout_s: float) -> None:
        try:
            process = job.process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=PIPE,
                stdout=PIPE,
                env=_environment(),
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
        self._finish(job, "failed", f"its process ended with status {process.returncode}; its errors are in the log")

    async def _follow(self, job: Backtest, process: Process, document: Mapping[str, Any]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(document).encode() + b"\n")  # left open: its end would end the process
        while line := await process.stdout.readline():
            told = json.loads(line)
            if "result" in told:
                job.result, job.done = told["result"], told["result"]["messages"]
                self._finish(job, "done")
            elif "failed" in told:
                self._finish(job, "failed", told["failed"])
            else:
                job.done = told["done"]
        await process.wait()  # killed while it ends, its status would be lost

    def _finish(self, job: Backtest, state: str, error: str | None = None) -> None:
        if job.state == "running":
            job.state, job.error, job.ended_ms = state, error, self._clock.now_ns() // 1_000_000


def requested(
    body: Any, spec_of: Callable[[str], Spec], check: Callable[[Spec], None], settings: RulesSettings
) -> BacktestRequest:
    """The request that a body holds.

    ``name`` and ``sql`` compare new SQL with the rule; ``sql`` alone, or ``name`` alone, with nothing. In place of SQL
    a program in jq may stand (``language``, ``jq``), and in ``sources`` what it reads, else what the rule reads.

    Raises:
        Invalid: with all that is wrong with it.
        NotFound: there is no such rule.
    """
    given = body if isinstance(body, Mapping) else {}
    name, sql, stream = given.get("name"), given.get("sql"), given.get("stream")
    problems = [
        Problem("expected a string", f"/{member}")
        for member, value in (("name", name), ("sql", sql))
        if value is not None and not isinstance(value, str)
    ]
    if name is None and sql is None and given.get("language") != "jq":
        problems.append(Problem("give the name of a rule, SQL, or both", "/sql"))
    if not isinstance(stream, str):
        problems.append(Problem("expected the name of a stream", "/stream"))
    start, end = _place(given, "from", problems), _place(given, "to", problems)
    limit = _number(given, "limit", settings.backtest_max_messages, settings.backtest_max_messages, problems)
    samples = _number(given, "samples", _SAMPLES, MAX_SAMPLES, problems)
    timeout_s = _number(given, "timeout_s", settings.backtest_timeout, settings.backtest_timeout, problems)
    if problems or not isinstance(stream, str):
        raise Invalid(_WHAT, problems)
    running = spec_of(name) if isinstance(name, str) else None
    known = {key: value for key, value in (running or {"name": "backtest"}).items() if key in _EVALUATED}
    new = _new(given, known)
    after = known if new is None else {"name": known["name"], **new}
    check(after)
    before = known if running and new is not None else None
    return BacktestRequest(before, after, stream, start, end, limit, samples, timeout_s)


_EVALUATED: Final = ("name", "sql", "language", "jq", "from")
"""Members of a rule that say what it evaluates; ``jq`` and ``from`` those of one in jq alone."""


def _new(given: Mapping[str, Any], known: Spec) -> Spec | None:
    """What is to be evaluated in place of the rule; None when the rule itself is."""
    if given.get("language") == "jq":
        return {"language": "jq", "jq": given.get("jq"), "from": given.get("sources", known.get("from"))}
    return {"sql": given["sql"]} if given.get("sql") is not None else None


def _place(given: Mapping[str, Any], member: str, problems: list[Problem]) -> int | datetime | None:
    """An offset, or a time with its zone."""
    value = given.get(member)
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    if isinstance(value, str):
        if re.fullmatch(r"\d{1,18}", value, re.ASCII):
            return int(value)
        with suppress(ValueError):
            moment = datetime.fromisoformat(value)
            if moment.tzinfo is not None:
                return moment
    problems.append(Problem("expected an offset or a time such as 2026-01-31T12:00:00Z", f"/{member}"))
    return None


def _number(given: Mapping[str, Any], member: str, default: Any, most: Any, problems: list[Problem]) -> Any:
    value = given.get(member, default)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= most:
        return value if isinstance(default, float) else int(value)
    problems.append(Problem(f"expected a number above 0 and up to {most:,}", f"/{member}"))
    return default


def _newest(ranges: Sequence[tuple[int, int, int]], limit: int) -> list[tuple[int, int, int]]:
    """At most so many messages: the newest of each shard, in proportion to what it holds."""
    total = sum(end - start for _, start, end in ranges)
    if total <= limit:
        return list(ranges)
    cut = [(shard, end - max(1, (end - start) * limit // total), end) for shard, start, end in ranges]
    return cut[:limit]


def _environment() -> dict[str, str]:
    """This process's, with this program's modules to be found wherever it was started from."""
    root = str(Path(__file__).resolve().parents[2])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])}


def _kill(job: Backtest) -> None:
    if job.process is not None and job.process.returncode is None:
        with suppress(ProcessLookupError):
            job.process.kill()
