"""Evaluating a program inside of a rule: at once where that is safe, else by asking for a worker.

The function ``jq`` cannot wait. Where a program must not run in the broker it raises ``NeedsWorker``; whoever runs the
rule has that evaluated elsewhere and runs the rule again with the answer at hand (``Evaluation.answers``), as often as
the rule calls such programs. Running again costs microseconds and needs no thread per rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

from rules.jq.program import JqError, Program, Programs, outputs

PROGRAMS: Final = Programs()
"""The programs of this process."""
DEFAULT_TIMEOUT_S: Final = 10.0
MAX_CALLS: Final = 10_000
"""The most calls of worker programs in one evaluation of a rule."""


@dataclass(frozen=True, slots=True)
class Request:
    """A program to run on an input, and for how long at most."""

    program: str
    text: str
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a request: ``outputs`` is the JSON text of an array, or None and then ``error`` says why."""

    outputs: str | None
    error: str = ""


class NeedsWorker(JqError):
    """A program must not run here; ``request`` says what is to run in a worker."""

    def __init__(self, request: Request, why: str) -> None:
        self.request = request
        super().__init__(f"the program runs in a worker process only, since {why}")


@dataclass(slots=True)
class Evaluation:
    """One evaluation of a rule: its variables, and the answers of workers in the order of the calls."""

    variables: Callable[[], Mapping[str, Any]]
    answers: list[Answer] = field(default_factory=list)
    next: int = 0


_current: Final[ContextVar[Evaluation | None]] = ContextVar("jq evaluation", default=None)


class Counts:
    """What ran in this process."""

    inline = 0


@contextmanager
def evaluating(evaluation: Evaluation, is_resumed: bool = False) -> Iterator[None]:
    """Calls of ``run`` in the block belong to this evaluation, which starts again unless it is resumed."""
    if not is_resumed:
        evaluation.next = 0
    token = _current.set(evaluation)
    try:
        yield
    finally:
        _current.reset(token)


def run(program_text: str, encode: Callable[[Any], str], value: Any, timeout_s: float | None) -> list[Any]:
    """All outputs of a program on a value.

    Args:
        program_text: the program.
        encode: makes JSON text of values.
        value: the input.
        timeout_s: how long a worker may take; None for what the settings say.

    Raises:
        JqError: the program does not compile or fails, or a worker gave up on it.
        NeedsWorker: it must run in a worker.
    """
    program = PROGRAMS.get(program_text)
    evaluation = _current.get()
    text = _input(program, evaluation, encode, value)
    if len(text) <= program.inline_bytes:
        Counts.inline += 1
        return outputs(program.run(text))
    if evaluation is not None and evaluation.next < len(evaluation.answers):
        answer = evaluation.answers[evaluation.next]
        evaluation.next += 1
        if answer.outputs is None:
            raise JqError(answer.error)
        return outputs(answer.outputs)
    if evaluation is not None and evaluation.next >= MAX_CALLS:
        raise JqError(f"more than {MAX_CALLS} calls of programs that need a worker")
    raise NeedsWorker(
        Request(program_text, text, JqDefaults.timeout_s if timeout_s is None else timeout_s), program.why_not_inline
    )


class JqDefaults:
    """What the configuration says for this process."""

    timeout_s = DEFAULT_TIMEOUT_S


def _input(program: Program, evaluation: Evaluation | None, encode: Callable[[Any], str], value: Any) -> str:
    if not program.reads_variables:
        return encode(value)
    variables = {} if evaluation is None else evaluation.variables()
    return f"[{encode(variables)},{encode(value)}]"
