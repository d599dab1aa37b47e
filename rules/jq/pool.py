"""The worker processes of a broker: requests in, answers out, those that take too long or too much are killed.

A process takes a batch of the waiting requests and runs them one after another. When a request takes longer than it may
or its process dies, that request alone has failed: the process is replaced, and the rest of the batch goes to the end
of the line, so that a rule whose programs never end does not keep others from their turn."""

from __future__ import annotations

import asyncio
import mmap
import os
import signal
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from broker.observe.log import get_logger
from broker.observe.metrics import Metrics
from rules.jq.evaluation import Request
from rules.jq.program import JqError
from rules.jq.worker import LENGTH, OUT_OF_MEMORY, PROGRESS

_log = get_logger(__name__)

DEFAULT_MEMORY_BYTES: Final = 256 * 1024 * 1024
# Time that a process may take before it begins with its first program.
_START_S: Final = 20.0
_STARTING_POLL_S: Final = 0.05
# Maximum requests in the batch of one process.
_BATCH: Final = 128
_FEW: Final = 16
# The place of the request in its batch, the outputs, or the reason why there are none.
_Answer = tuple[int, str | None, str]
_ERRORS_READ: Final = 4096


@dataclass(slots=True, eq=False)
class _Job:
    request: Request
    done: asyncio.Future[str]

    def fail(self, why: str) -> None:
        """Answer with an error, where the caller still waits."""
        if not self.done.done():
            self.done.set_exception(JqError(why))


class _Figures:
    def __init__(self, metrics: Metrics, pool: WorkerPool) -> None:
        self.evaluations = metrics.counter(
            "jq_worker_evaluations", "jq programs run in worker processes"
        )
        self.timeouts = metrics.counter("jq_timeouts", "jq programs ended since they ran too long")
        self.memory = metrics.counter(
            "jq_memory_kills", "jq programs ended since they needed too much memory"
        )
        self.crashes = metrics.counter(
            "jq_crashes", "jq programs that crashed their worker otherwise"
        )
        self.restarts = metrics.counter("jq_worker_restarts", "worker processes replaced")
        metrics.gauge(
            "jq_queue_length",
            lambda: pool.waiting,
            "jq programs that wait for a worker or run in one",
        )


class WorkerPool:
    """Runs requests in at most ``workers`` processes, which are started when they are first needed. On one loop."""

    def __init__(
        self,
        workers: int = 2,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
        metrics: Metrics | None = None,
    ) -> None:
        self._most = workers
        self._memory_bytes = memory_bytes
        self._jobs: deque[_Job] = deque()
        self._arrived = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._idle = 0
        """Processes that look for requests, or will once they are started."""
        self._running = 0
        """Requests that processes have in hand."""
        self._figures = _Figures(metrics or Metrics(), self)
        self._is_closed = False

    @property
    def waiting(self) -> int:
        """Requests without an answer yet."""
        return len(self._jobs) + self._running

    def run(self, request: Request) -> asyncio.Future[str]:
        """The outputs of a program, or ``JqError``: it failed, or was ended. A cancelled request is no longer started.

        A future and no coroutine: one task for each of many requests costs more than the requests.
        """
        job = _Job(request, asyncio.get_running_loop().create_future())
        self._jobs.append(job)
        self._look_for_worker()
        return job.done

    async def close(self) -> None:
        """Kill the processes and wait for their end."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    def _look_for_worker(self) -> None:
        """Wake a process for the requests that wait, or start one where all are busy and there may be more."""
        self._arrived.set()
        if not self._idle and len(self._tasks) < self._most and not self._is_closed:
            self._idle += 1
            name = f"jq worker {len(self._tasks) + 1}"
            self._tasks.append(
                asyncio.create_task(self._work(_Worker(self._memory_bytes)), name=name)
            )

    async def _work(self, worker: _Worker) -> None:
        try:
            while True:
                if jobs := self._batch():
                    self._running += len(jobs)
                    await self._do(worker, jobs)
                    self._running -= len(jobs)
                    self._jobs += [job for job in jobs if not job.done.done()]
                    self._idle += 1
                else:
                    self._arrived.clear()
                    await self._arrived.wait()
        finally:
            await worker.end()

    def _batch(self) -> list[_Job]:
        """The share of one process in the waiting requests; a few requests are not worth several."""
        self._jobs = deque(job for job in self._jobs if not job.done.done())
        share = min(_BATCH, max(_FEW, -(-len(self._jobs) // self._most)))
        jobs = [self._jobs.popleft() for _ in range(min(share, len(self._jobs)))]
        if jobs:
            self._idle -= 1
        if self._jobs:
            self._look_for_worker()
        return jobs

    async def _do(self, worker: _Worker, jobs: Sequence[_Job]) -> None:
        """Give requests to the worker until all are answered, or it had to be killed for one of them."""
        try:
            async for index, outputs, error in worker.answers([job.request for job in jobs]):
                self._figures.evaluations.value += 1
                if outputs is None:
                    jobs[index].fail(error)
                elif not jobs[index].done.done():
                    jobs[index].done.set_result(outputs)
        except _Killed as killed:
            jobs[killed.index].fail(killed.why)
            self._count(killed)
            # The requests before it ended well, but their answers may be lost with the process: they are run again at
            # once.
            if lost := [job for job in jobs[: killed.index] if not job.done.done()]:
                await self._do(worker, lost)
        except Exception as error:  # noqa: BLE001 - a worker that cannot be started must not end the task that tries
            _log.error("jq.worker_failed", reason=str(error))
            await worker.end()
            jobs[0].fail(f"no worker could run the program: {error}")

    def _count(self, killed: _Killed) -> None:
        self._figures.restarts.value += 1
        if killed.is_timeout:
            self._figures.timeouts.value += 1
        elif killed.why == OUT_OF_MEMORY:
            self._figures.memory.value += 1
        else:
            self._figures.crashes.value += 1


class _Killed(Exception):
    """A worker is gone because of the request with this index."""

    def __init__(self, index: int, why: str, *, is_timeout: bool = False) -> None:
        self.index = index
        self.why = why
        self.is_timeout = is_timeout
        super().__init__(why)


class _Worker:
    """One process at a time, started when it is needed."""

    def __init__(self, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._process: Process | None = None
        self._progress: Progress | None = None
        self._batch = 0

    async def answers(self, requests: Sequence[Request]) -> AsyncIterator[_Answer]:
        """Yield ``(index, outputs or None, error)`` as they come. Raises ``_Killed`` when the process is gone."""
        process, progress = await self._started()
        assert process.stdin is not None
        self._batch += 1
        left = set(range(len(requests)))
        sent_s = time.monotonic()
        with suppress(OSError):  # it died: reading says so
            process.stdin.write(frame(self._batch, requests))
            await process.stdin.drain()
        while left:
            for answer in await self._read(process, progress, requests, left, sent_s):
                left.discard(answer[0])
                yield answer

    async def end(self) -> None:
        """Kill the process and wait until it is gone."""
        process = self._process
        self._process = None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        if self._progress is not None:
            self._progress.close()
            self._progress = None

    async def _started(self) -> tuple[Process, Progress]:
        if self._process is None or self._progress is None:
            self._progress = Progress()
            self._process = await asyncio.create_subprocess_exec(
                *command(self._memory_bytes, self._progress),
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                env=environment(),
                pass_fds=(self._progress.fd,),
                start_new_session=True,
            )
        return self._process, self._progress

    async def _read(
        self,
        process: Process,
        progress: Progress,
        requests: Sequence[Request],
        left: set[int],
        sent_s: float,
    ) -> list[_Answer]:
        """The next answers, watched by the clock of the program that runs."""
        assert process.stdout is not None
        reading = asyncio.ensure_future(_next_frame(process.stdout))
        try:
            while True:
                index, ends_s = self._deadline(progress, requests, left, sent_s)
                wait_s = max(0.0, ends_s - time.monotonic())
                if progress.read(self._batch) is None:  # its clock begins when it does
                    wait_s = min(wait_s, _STARTING_POLL_S)
                await asyncio.wait((reading,), timeout=wait_s)
                if reading.done():
                    return decode_answers(reading.result())
                if (
                    self._deadline(progress, requests, left, sent_s) == (index, ends_s)
                    and time.monotonic() >= ends_s
                ):
                    await self.end()
                    raise _Killed(index, too_long(requests[index]), is_timeout=True)
        except (asyncio.IncompleteReadError, OSError):
            raise await self._died(process, progress, requests, left) from None
        finally:
            reading.cancel()

    def _deadline(
        self, progress: Progress, requests: Sequence[Request], left: set[int], sent_s: float
    ) -> tuple[int, float]:
        """The running request, and its deadline."""
        noted = progress.read(self._batch)
        if noted is None:
            return min(left), sent_s + _START_S
        if noted[0] not in left:  # its answer is here, and the next one is about to begin
            return min(left), time.monotonic() + _START_S
        return noted[0], noted[1] + requests[noted[0]].timeout_s

    async def _died(
        self, process: Process, progress: Progress, requests: Sequence[Request], left: set[int]
    ) -> _Killed:
        noted = progress.read(self._batch)
        index = noted[0] if noted is not None and noted[0] in left else min(left)
        errors = b"" if process.stderr is None else await process.stderr.read(_ERRORS_READ)
        returncode = await process.wait()
        await self.end()
        reason = why_it_ended(requests[index], returncode, errors)
        return _Killed(index, reason, is_timeout=returncode == -signal.SIGALRM)


async def _next_frame(stream: asyncio.StreamReader) -> bytes:
    size: int = LENGTH.unpack(await stream.readexactly(LENGTH.size))[0]
    return await stream.readexactly(size)


# One worker process as its owner sees it: how it is started, what is sent, what its end means.


_MEMORY_SIGNS: Final = (b"cannot allocate memory", b"MemoryError", b"out of memory")

decode_answers: Final = msgspec.msgpack.Decoder(list[_Answer]).decode


class Progress:
    """The shared file in which a worker notes what it works on."""

    def __init__(self) -> None:
        with tempfile.TemporaryFile() as file:
            file.truncate(PROGRESS.size)
            self.fd = os.dup(file.fileno())
        self._map = mmap.mmap(self.fd, PROGRESS.size)

    def read(self, batch: int) -> tuple[int, float] | None:
        """The index that is being worked on and when it was begun (monotonic seconds); None before the first."""
        current, index, started_ns = PROGRESS.unpack(self._map[:])
        return (index, started_ns / 1e9) if current == batch else None

    def close(self) -> None:
        """Give up the file."""
        self._map.close()
        os.close(self.fd)


def command(memory_bytes: int, progress: Progress) -> list[str]:
    """Command that starts a worker; ``progress.fd`` must be passed on."""
    return [sys.executable, "-m", "rules.jq.worker", str(memory_bytes), str(progress.fd)]


def environment() -> dict[str, str]:
    """The environment that Python needs to start with this program's modules; the worker drops it, too."""
    return {
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        "PYTHONUTF8": "1",
        "PYTHONNOUSERSITE": "1",
    }


def frame(batch: int, requests: Sequence[Request]) -> bytes:
    """The bytes that ask a worker to run programs."""
    body = msgspec.msgpack.encode(
        (batch, [(request.program, request.text, request.timeout_s) for request in requests])
    )
    return LENGTH.pack(len(body)) + body


def why_it_ended(request: Request, returncode: int | None, errors: bytes) -> str:
    """Reason for the end of a process, for the program that it ran, as a sentence."""
    if any(sign in errors for sign in _MEMORY_SIGNS) or returncode == -signal.SIGKILL:
        return OUT_OF_MEMORY
    if returncode == -signal.SIGALRM:
        return too_long(request)
    if returncode is not None and returncode < 0:
        return f"the program crashed its worker ({signal.Signals(-returncode).name})"
    return f"the worker of the program ended with status {returncode}"


def too_long(request: Request) -> str:
    """The sentence for a program whose time is over."""
    return f"the program ran longer than {request.timeout_s:g} s and was ended"
