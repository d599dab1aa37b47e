"""The function jq: outputs, numbers, variables, what is refused, the cache."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import pytest

from broker.core.waiting import Answers, Waits, answer_to
from rules.functions.library import standard
from rules.jq.blocking import BlockingWorker, OutOfTime, evaluate
from rules.jq.evaluation import Request
from rules.jq.program import JqError, Program, ProgramError, program_of
from rules.sql.values import EvaluationError

FOUND = standard().get("jq")
assert FOUND is not None
call = FOUND.call


@pytest.mark.parametrize(
    ("program", "value", "outputs"),
    [
        (".a", '{"b":1}', [None]),
        (".a[]", {"a": [1, 2, 3]}, [1, 2, 3]),
        ("empty", "1", []),
        ("[.a,.b]", {"a": 1, "b": 2}, [[1, 2]]),
        (".a,.b", '{"a":1,"b":2}', [1, 2]),
        ("reduce .[] as $x ({}; .acc += [$x.v])", [{"v": 1}, {"v": 2}, {"v": 3}], [{"acc": [1, 2, 3]}]),
        (".", "[100000000000000000000000001, 9007199254740993, 1.0, 1.5]",
         [[100000000000000000000000001, 9007199254740993, 1.0, 1.5]]),
        (". + 1", "9007199254740993", [9007199254740992]),
        ("nan", "1", [None]),
        ("[inputs]", "1", [[]]),
        ("debug, stderr", "1", [1, 1]),
        ("input_filename", "1", [None]),
        (".a # at the end", '{"a":1}', [1]),
        (".a # goes on \\", '{"a":1}', [1]),
        ("{halt: .import}", '{"import":2}', [{"halt": 2}]),
    ],
)  # fmt: skip
def test_outputs(program: str, value: Any, outputs: list[Any]) -> None:
    found = evaluate(lambda: call(program, value), dict)
    assert found == outputs
    assert [type(one) for one in found] == [type(one) for one in outputs]


@pytest.mark.parametrize(
    "program", ["$ENV", "env", '"\\($ENV | tojson)" | fromjson', "def f: $ENV; f", "[env] | .[0]"]
)
def test_env_is_the_variables_of_the_rule(program: str) -> None:
    assert evaluate(lambda: call(program, "1"), lambda: {"topic": "t/1"}) == [{"topic": "t/1"}]


def test_env_is_never_that_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_SECRET", "hidden")
    assert os.environ["SLUICE_SECRET"] == "hidden"
    for program in (
        "$ENV.SLUICE_SECRET, env.SLUICE_SECRET, $ENV.PATH",
        '[$ENV, env] | map(select(test("x")?)) | .[]?',
    ):
        assert not any(evaluate(lambda program=program: call(program, "1"), dict))  # type: ignore[misc]


@pytest.mark.parametrize(
    ("program", "text", "column"),
    [
        ("halt", "halt cannot be used in a rule: it would end the process", 1),
        ('1 | "\\(halt_error)"', "halt_error cannot be used", 8),
        ('import "a" as $x; $x', "import cannot be used in a rule: it reads files", 1),
        ('include "a"; .', "include cannot be used", 1),
        ('"a" | modulemeta', "modulemeta cannot be used", 7),
        (".a | foo", "foo/0 is not defined", 6),
        (". as $x | ", "syntax error, unexpected end of file", 10),
        ("1] | [2", "syntax error", 2),
    ],
)
def test_programs_that_are_refused(program: str, text: str, column: int) -> None:
    with pytest.raises(ProgramError, match="line 1, column") as raised:
        Program(program)
    assert text in str(raised.value)
    assert raised.value.column == column


@pytest.mark.parametrize(
    ("program", "value", "text"),
    [
        (".a", "[1]", 'jq: Cannot index array with string ("a")'),
        (
            ".a",
            '{"a":',
            "jq: argument 2 is not JSON: Unfinished JSON term at EOF at line 1, column 5",
        ),
        ('error("no")', "1", "jq: no"),
        (".", 5.0, None),
        ("foo", "1", "jq: foo/0 is not defined, at line 1, column 1 of the program"),
        ("def f: 1 + f; f", "1", "jq: the program needed more memory than a worker may have"),
    ],
)
def test_failures_are_one_sentence(program: str, value: Any, text: str | None) -> None:
    if text is None:
        assert call(program, value) == [5.0]
        return
    with pytest.raises((EvaluationError, JqError)) as raised:
        evaluate(lambda: call(program, value), dict)
    assert str(raised.value) == text


def test_what_may_not_end_is_not_run_here() -> None:
    with pytest.raises(EvaluationError, match="in a worker process only, since repeat may not end"):
        call("repeat(1)", "1", 250)


def test_a_large_input_goes_to_a_worker_too() -> None:
    assert call("length", [1] * 100) == [100]
    with pytest.raises(EvaluationError, match="may take longer than 10 ms on more than"):
        call("length", [1] * 100_000)
    assert evaluate(lambda: call("length", [1] * 100_000), dict) == [100_000]


def test_the_third_argument_is_the_time_limit() -> None:
    with pytest.raises(
        EvaluationError, match=r"jq: the program ran longer than 0\.3 s and was ended"
    ):
        evaluate(lambda: call("last(repeat(1))", "1", 300), dict)
    with pytest.raises(EvaluationError, match="argument 3 must be an integer above zero"):
        call(".", "1", 0)


def test_a_deadline_ends_the_evaluation() -> None:
    with pytest.raises(
        OutOfTime, match=r"the jq program last\(repeat\(1\)\) ran longer than the deadline allows"
    ):
        evaluate(lambda: call("last(repeat(1))", "1"), dict, deadline_s=0.3)


def test_a_worker_goes_on_after_a_program_that_was_ended() -> None:
    with BlockingWorker() as worker:
        with pytest.raises(JqError, match="ran longer than"):
            worker.run(Request("last(repeat(1))", "1", 0.2))
        assert worker.run(Request(". + 1", "1", 5.0)) == "[2]"


def test_several_calls_are_answered_in_their_order() -> None:
    found = evaluate(lambda: [call('[splits(",")]', f'"{n},{n}"')[0] for n in range(5)], dict)
    assert found == [[str(n), str(n)] for n in range(5)]


@dataclass
class Ask:
    about: str
    most: int = 10

    async def ask(self) -> Any:
        raise AssertionError("asked by the one who waits further out")


def test_other_questions_go_to_the_one_who_waits_further_out() -> None:
    answers = Answers()

    def compute() -> Any:
        return evaluate(
            lambda: (call('test("a")', '"a"'), answer_to(Ask("a")), call('test("b")', '"a"')), dict
        )

    with answers.at_hand(), pytest.raises(Waits) as stopped:
        compute()
    answers.keep(stopped.value.question, 5, None)
    with answers.at_hand():
        assert compute() == ([True], 5, [False])
    assert answers.place == 3


def test_the_cache_is_bounded_and_keeps_what_is_used() -> None:
    kept = program_of(".a")
    for number in range(600):
        program_of(f"{number}")
        assert program_of(".a") is kept
    assert program_of.cache_info().currsize == 512
