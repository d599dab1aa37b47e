"""Evaluating a program inside of a rule: at once where that is safe, else by asking for a worker.

The function ``jq`` cannot wait. Where a program must not run in the broker it asks for its outputs by
``broker.core.waiting``: the caller has that evaluated elsewhere and runs the rule again with the answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeVar

from broker.core.waiting import answer_to, is_waited_for
from rules.jq.program import JqError, Program, outputs, program_of

G = TypeVar("G")
T = TypeVar("T")

DEFAULT_TIMEOUT_S: Final = 10.0

# The columns that ``$ENV`` stands for.
Variables = Callable[[], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Request:
    """A program to run on an input, and for how long at most: a ``broker.core.waiting.Question``."""

    program: str
    text: str
    timeout_s: float
    reason: str = ""
    """Reason why the program does not run in the broker."""
    most: ClassVar[int] = 10_000

    @property
    def about(self) -> Hashable:
        """The program."""
        return f"the jq program {self.program}"

    def ask(self) -> Awaitable[str]:
        """The outputs, as the JSON text of an array. Raises ``JqError``: it failed, or there are no workers here."""
        run = _workers.get()
        if run is None:
            raise self.refused
        return run(self)

    @property
    def refused(self) -> JqError:
        """The error where there are no workers."""
        return JqError(f"the program runs in a worker process only, since {self.reason}")


_workers: Final[ContextVar[Callable[[Request], Awaitable[str]] | None]] = ContextVar(
    "workers of jq", default=None
)
_variables: Final[ContextVar[Variables]] = ContextVar("variables of jq", default=dict)


class Counts:
    """Counts of the programs that ran in this process."""

    inline = 0


@contextmanager
def workers_at_hand(run: Callable[[Request], Awaitable[str]]) -> Iterator[None]:
    """Let these workers answer requests inside the block."""
    token = _workers.set(run)
    try:
        yield
    finally:
        _workers.reset(token)


@contextmanager
def at_hand(variables: Variables) -> Iterator[None]:
    """Let programs see these variables inside the block."""
    token = _variables.set(variables)
    try:
        yield
    finally:
        _variables.reset(token)


def with_variables(
    compute: Callable[[G], T], variables: Callable[[G], Mapping[str, Any]]
) -> Callable[[G], T]:
    """A computation that calls jq, in which programs see the variables of its argument."""

    def compute_with_variables(source: G) -> T:
        token = _variables.set(lambda: variables(source))
        try:
            return compute(source)
        finally:
            _variables.reset(token)

    return compute_with_variables


def run(
    program_text: str, encode: Callable[[Any], str], value: Any, timeout_s: float | None
) -> list[Any]:
    """All outputs of a program on a value.

    Args:
        program_text: the program.
        encode: makes JSON text of values.
        value: the input.
        timeout_s: time that a worker may take; None for the configured one.

    Raises:
        JqError: the program does not compile or fails, a worker ended it, or it needs one and the caller cannot wait.
        Waits: it must run in a worker.
    """
    program = program_of(program_text)
    text = _input(program, encode, value)
    if len(text) <= program.inline_bytes:
        Counts.inline += 1
        return outputs(program.run(text))
    limit_s = JqDefaults.timeout_s if timeout_s is None else timeout_s
    request = Request(program_text, text, limit_s, program.why_not_inline)
    if not is_waited_for():
        raise request.refused
    return outputs(answer_to(request))


class JqDefaults:
    """Settings of this process."""

    timeout_s = DEFAULT_TIMEOUT_S


def _input(program: Program, encode: Callable[[Any], str], value: Any) -> str:
    return (
        f"[{encode(_variables.get()())},{encode(value)}]"
        if program.reads_variables
        else encode(value)
    )
