"""Answers that another process must give, asked for by code that cannot wait.

A schema or a function of the rule language computes; it has no ``await``. Where it needs to know what another process
says, it calls ``answer_to``. Who is able to wait runs the computation by ``settled``: it is begun, stops at the first
question that has no answer yet, and is run again once the answer is there, as often as it asks. So only computations
without effects are run that way. Where no one waits, as on the publish path, ``answer_to`` raises ``Unavailable``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, Protocol, TypeVar

from broker.core.errors import Unavailable

G = TypeVar("G")
T = TypeVar("T")

# The most questions of one computation, those that it put in vain included, unless a question says otherwise.
MAX_QUESTIONS: Final = 1000


# Maximum total of the answers to one computation, in characters or bytes of those that are text.
MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024


class Question(Protocol):
    """Something to ask another process."""

    @property
    def about(self) -> Hashable:
        """Asker and kind of the answer; without the data, which may differ when a computation is run again."""

    @property
    def most(self) -> int:
        """Maximum number of questions that a computation may have put before this one."""

    def ask(self) -> Awaitable[Any]:
        """The answer, within a time of its own. What it raises is raised where the question was put."""


class Waits(BaseException):
    """A computation stopped at a question.

    Not an ``Exception``: code between the question and its caller must not take it for a failure of its own.
    """

    def __init__(self, question: Question) -> None:
        self.question = question
        super().__init__(f"waits for {question.about}")


class Answers:
    """The answers to the questions of one computation, in the order in which it puts them."""

    __slots__ = ("_asked", "_given", "_next", "_size")

    def __init__(self) -> None:
        self._given: list[tuple[Hashable, Any, Exception | None]] = []
        self._next = self._asked = self._size = 0

    @property
    def place(self) -> int:
        """Number of answers that the computation has had."""
        return self._next

    @contextmanager
    def at_hand(self, place: int = 0) -> Iterator[None]:
        """Provide these answers to ``answer_to`` inside the block, beginning with the one at the place."""
        self._next = place
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    async def fetch(self, question: Question, asked: Awaitable[Any] | None = None) -> None:
        """Keep the answer or the error as the next one; ``asked`` where the question is put already."""
        answer = None
        failure = None
        try:
            answer = await (question.ask() if asked is None else asked)
        except Exception as error:  # noqa: BLE001 - raised where the question is put
            failure = error
        self.keep(question, answer, failure)

    def keep(self, question: Question, answer: Any, failure: Exception | None) -> None:
        """Take the answer or the error to a question as the next one."""
        self._asked += 1
        self._size += len(answer) if isinstance(answer, (str, bytes)) else 0
        if self._size > MAX_ANSWER_BYTES:
            answer = None
            failure = Unavailable(
                f"more than {MAX_ANSWER_BYTES:,} bytes of answers from other processes"
            )
        self._given.append((question.about, answer, failure))

    def to(self, question: Question) -> Any:
        """The answer to the next question, or ``Waits``."""
        at = self._next
        if at < len(self._given) and self._given[at][0] != question.about:
            del self._given[at:]  # it went another way this time, as chance may have it
        if at >= len(self._given):
            if self._asked >= question.most:
                raise Unavailable(f"more than {question.most} questions to other processes")
            raise Waits(question)
        self._next = at + 1
        _, answer, failure = self._given[at]
        if failure is not None:
            raise failure
        return answer


_current: Final[ContextVar[Answers | None]] = ContextVar("answers of other processes", default=None)


def is_waited_for() -> bool:
    """True if a question put here and now would be waited for."""
    return _current.get() is not None


def answers_here() -> Answers:
    """The answers of the one who waits, for another who waits within; new ones where there is no one."""
    return _current.get() or Answers()


def answer_to(question: Question) -> Any:
    """Answer of another process.

    Raises:
        Unavailable: no one waits here.
        Waits: the answer has not arrived; the caller lets it pass.
    """
    answers = _current.get()
    if answers is None:
        raise Unavailable(
            "this needs an answer from another process, which cannot be waited for here"
        )
    return answers.to(question)


def stopping_at_questions(compute: Callable[[G], T]) -> Callable[[G], T]:
    """The same, but that it raises ``Waits`` at its first question, for a caller that has it run elsewhere."""

    def call(argument: G) -> T:
        token = _current.set(Answers())
        try:
            return compute(argument)
        finally:
            _current.reset(token)

    return call


async def settled(compute: Callable[[], T]) -> T:
    """The result of a computation without effects, run as often as it asks something new."""
    answers = Answers()
    while True:
        try:
            with answers.at_hand():
                return compute()
        except Waits as waits:
            question = waits.question
        await answers.fetch(question)
