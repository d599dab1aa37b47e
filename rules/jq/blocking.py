"""Running programs in a worker for callers that may wait: trying a rule, tools, tests. Not for the event loop."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar

from msgspec import json

from rules.jq.evaluation import PROGRAMS, Answer, Evaluation, NeedsWorker, Request, evaluating
from rules.jq.process import DEFAULT_MEMORY_BYTES, Popen, Progress, decode_answers, frame, too_long, why_it_ended
from rules.jq.program import ProgramError
from rules.jq.worker import LENGTH

_START_S: Final = 20.0
_STOP_S: Final = 2.0
_SHOWN: Final = 80

T = TypeVar("T")


_CHECK_S: Final = 2.0
"""How long a program may take to compile."""


def check(text: str) -> None:
    """Whether a program compiles. One that would hold up the broker is compiled in a worker, whose end is waited for.

    Raises:
        ProgramError: it does not, or not in time.
    """
    program = PROGRAMS.get(text)
    if program.is_checked:
        return
    with BlockingWorker() as worker:
        answer = worker.run(Request(text, "", _CHECK_S))
    if answer.outputs is None:
        raise ProgramError(f"it cannot be compiled: {answer.error}")
    if problem := json.decode(answer.outputs):
        raise ProgramError(*problem)
    program.is_checked = True


class OutOfTime(Exception):
    """The evaluation took longer than its deadline; the text says which program it was."""


def evaluate(
    call: Callable[[], T],
    variables: Callable[[], Mapping[str, Any]],
    *,
    deadline_s: float | None = None,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    again: Callable[[], None] = lambda: None,
    worker: BlockingWorker | None = None,
) -> T:
    """What ``call`` returns or raises, with its jq programs run in a worker where they need one.

    Args:
        call: evaluates a rule; called again for each program that needs a worker, so it has no effects.
        variables: the columns, for ``$ENV``.
        deadline_s: seconds that all programs together may take; then ``OutOfTime`` is raised.
        memory_bytes: the address space of the worker.
        again: called before ``call`` is called once more.
        worker: used in place of one that lives as long as this call, by those who evaluate much.
    """
    evaluation = Evaluation(variables)
    ends_s = None if deadline_s is None else time.monotonic() + deadline_s
    running = worker or BlockingWorker(memory_bytes)
    try:
        while True:
            try:
                with evaluating(evaluation):
                    return call()
            except NeedsWorker as needed:
                evaluation.answers.append(running.run(needed.request, ends_s))
                again()
    finally:
        if worker is None:
            running.close()


class BlockingWorker:
    """A worker that is started with its first program. A context manager; used by one thread."""

    def __init__(self, memory_bytes: int = DEFAULT_MEMORY_BYTES) -> None:
        self._memory_bytes = memory_bytes
        self._process: Popen | None = None
        self._progress: Progress | None = None
        self._batch = 0

    def __enter__(self) -> BlockingWorker:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def run(self, request: Request, ends_s: float | None = None) -> Answer:
        """The answer to one request.

        Raises:
            OutOfTime: ``ends_s``, a time of the monotonic clock, came first.
        """
        process, progress = self._started()
        self._batch += 1
        received = bytearray()
        sender = threading.Thread(target=_send, args=(process, frame(self._batch, [request])), daemon=True)
        sender.start()
        try:
            return self._answer(process, progress, request, ends_s, received)
        finally:
            sender.join(_STOP_S)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
        if self._progress is not None:
            self._progress.close()
            self._progress = None

    def _started(self) -> tuple[Popen, Progress]:
        if self._process is None or self._progress is None:
            self._progress = Progress()
            self._process = Popen(self._memory_bytes, self._progress)
        return self._process, self._progress

    def _answer(
        self, process: Popen, progress: Progress, request: Request, ends_s: float | None, received: bytearray
    ) -> Answer:
        sent_s = time.monotonic()
        assert process.stdout is not None
        while True:
            now_s = time.monotonic()
            noted = progress.read(self._batch)
            limit_s = sent_s + _START_S if noted is None else noted[1] + request.timeout_s
            if ends_s is not None and now_s >= ends_s:
                self.close()
                text = " ".join(request.program.split())
                shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
                raise OutOfTime(f"the jq program {shown} ran longer than the deadline allows and was ended")
            if now_s >= limit_s:
                self.close()
                return Answer(None, too_long(request))
            until_s = min(limit_s, ends_s or limit_s, now_s + 0.05 if noted is None else limit_s)
            if not select.select([process.stdout], [], [], until_s - now_s)[0]:
                continue
            piece = process.stdout.read1(1 << 20)  # type: ignore[attr-defined]  # a BufferedReader by default
            if not piece:
                return self._ended(process, request)
            received += piece
            if len(received) >= LENGTH.size and len(received) - LENGTH.size >= LENGTH.unpack_from(received)[0]:
                (_, outputs, error), *_ = decode_answers(received[LENGTH.size :])
                return Answer(outputs, error)

    def _ended(self, process: Popen, request: Request) -> Answer:
        assert process.stderr is not None
        errors = process.stderr.read()
        returncode = process.wait()
        self.close()
        return Answer(None, why_it_ended(request, returncode, errors))


def _send(process: Popen, data: bytes) -> None:
    assert process.stdin is not None
    with suppress(OSError, ValueError):  # it ended meanwhile, which its reader notices
        process.stdin.write(data)
        process.stdin.flush()
