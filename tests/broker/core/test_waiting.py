"""Computations that stop at questions to other processes and are run again with the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from broker.core.errors import Unavailable
from broker.core.schema import SchemaError
from broker.core.waiting import (
    MAX_ANSWER_BYTES,
    MAX_QUESTIONS,
    Waits,
    answer_to,
    is_waited_for,
    settled,
    stopping_at_questions,
)
from ui.api.deadline import settled_on_thread


@dataclass
class Ask:
    about: Hashable
    answer: Any
    asked: list[Hashable]
    most: ClassVar[int] = MAX_QUESTIONS

    async def ask(self) -> Any:
        self.asked.append(self.about)
        await asyncio.sleep(0)
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer == "never":
            await asyncio.Event().wait()
        return self.answer


def test_each_question_is_asked_once_and_what_lies_between_is_run_again() -> None:
    asked: list[Hashable] = []
    runs: list[int] = []

    def compute() -> int:
        runs.append(1)
        assert is_waited_for()
        first: int = answer_to(Ask("a", 1, asked))
        second: int = answer_to(Ask("a", 2, asked))
        return first * 10 + second

    assert asyncio.run(settled(compute)) == 12
    assert asked == ["a", "a"]
    assert len(runs) == 3


def test_an_error_is_raised_where_the_question_is_put() -> None:
    def compute() -> str:
        try:
            answer_to(Ask("a", SchemaError("no"), []))
        except Exception as error:  # noqa: BLE001 - what a function in between does; it sees the error, not the waiting
            return f"seen: {error}"
        return "not seen"

    assert asyncio.run(settled(compute)) == "seen: no"


def test_an_answer_is_not_given_to_another_question() -> None:
    """A computation that goes another way when it is run again, as chance may have it."""
    ways = iter(("a", "b", "b"))
    asked: list[Hashable] = []

    def compute() -> str:
        way = next(ways)
        answer: str = answer_to(Ask(way, f"to {way}", asked))
        return answer

    assert asyncio.run(settled(compute)) == "to b"
    assert asked == ["a", "b"]


def test_a_computation_that_always_asks_something_new_ends() -> None:
    asked: list[Hashable] = []
    with pytest.raises(Unavailable, match=f"more than {MAX_QUESTIONS} questions"):
        asyncio.run(settled(lambda: answer_to(Ask(len(asked), 0, asked))))
    assert len(asked) == MAX_QUESTIONS


def test_where_nobody_waits_it_is_said() -> None:
    assert not is_waited_for()
    with pytest.raises(Unavailable, match="needs an answer from another process"):
        answer_to(Ask("a", 1, []))


def test_stopping_passes_by_whoever_catches_errors() -> None:
    def compute(given: int) -> int:
        try:
            answer: int = answer_to(Ask("a", 1, []))
        except Exception:  # noqa: BLE001
            return -1
        return given + answer

    with pytest.raises(Waits):
        stopping_at_questions(compute)(1)
    assert not is_waited_for()


@pytest.mark.parametrize(("answer", "expected"), [(3, "3"), ("never", "no answer within 0.1 s")])
def test_a_thread_waits_for_answers_from_the_loop(answer: Any, expected: str) -> None:
    def compute() -> str:
        try:
            return str(answer_to(Ask("a", answer, [])))
        except Unavailable as error:
            return str(error)

    async def on_loop() -> str:
        return await asyncio.to_thread(settled_on_thread, compute, asyncio.get_running_loop(), 0.1)

    assert expected in asyncio.run(on_loop())


def test_answers_to_one_computation_have_a_bound_in_bytes() -> None:
    asked: list[Hashable] = []

    def compute() -> int:
        return sum(
            len(answer_to(Ask(number, "x" * (MAX_ANSWER_BYTES // 4), asked)))
            for number in range(100)
        )

    with pytest.raises(
        Unavailable, match="more than 16,777,216 bytes of answers from other processes"
    ):
        asyncio.run(settled(compute))
    assert len(asked) == 5
