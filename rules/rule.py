"""One rule: compiled, counted, with its actions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

from sqlglot import exp

from broker.core import jsontext
from broker.core.errors import Invalid, Problem, Unavailable
from broker.core.message import Message
from rules.actions.action import Action
from rules.functions.registry import Functions
from rules.sql.columns import Occurrence
from rules.sql.compiler import Program, Result, Surroundings, compile_for_events, compile_for_messages
from rules.sql.parser import parse
from rules.sql.sources import Sources, sources
from rules.timing import SAMPLE_MASK, Timing


@dataclass(frozen=True, slots=True)
class Statement:
    """A rule's SQL, parsed and compiled for what it reads."""

    sql: str
    tree: exp.Select
    sources: Sources
    on_message: Program
    on_event: Program


def compile_statement(sql: str, functions: Functions, surroundings: Surroundings) -> Statement:
    """Parse and compile.

    Raises:
        Invalid: with every problem, each with line and column.
    """
    tree = parse(sql)
    problems = []
    compiled: list[Any] = []
    for step in (
        lambda: sources(tree),
        lambda: compile_for_messages(tree, functions, surroundings),
        lambda: compile_for_events(tree, functions, surroundings),
    ):
        try:
            compiled.append(step())
        except Invalid as error:
            problems += [problem for problem in error.problems if problem not in problems]
        except RecursionError:
            problems.append(Problem("expressions nest too deep", "/sql", 1, 1))
    if problems:
        raise Invalid("the SQL cannot be used", problems, code="sql_check")
    return Statement(sql, tree, *compiled)


@dataclass(frozen=True, slots=True)
class LastError:
    """The last failure of a rule: text and wall clock."""

    text: str
    time_ns: int


@dataclass(slots=True)
class Rule:
    """A saved rule. ``run_on_message`` never raises: failures are counted and the last one is kept."""

    name: str
    statement: Statement
    actions: Sequence[Action]
    counts: Any
    now_ns: Callable[[], int]
    is_enabled: bool = True
    last_error: LastError | None = field(default=None)

    def message_call(self) -> Callable[[Message], None]:
        """What the topic plan calls; everything it needs is bound to locals."""
        name, run, finish, counts = self.name, self.statement.on_message.run, self._finish, self.counts
        matched, passed, total, success = counts.matched, counts.passed, counts.actions_total, counts.actions_success
        only = self.actions[0] if len(self.actions) == 1 else None
        measured = _measured(run, counts.timing)

        def run_on_message(message: Message) -> None:
            if message.via and name in message.via:
                return
            matched.value = count = matched.value + 1
            try:
                result = (run if count & SAMPLE_MASK else measured)(message)
            except Exception as error:  # noqa: BLE001 (a rule must not stop the message, whatever it raises)
                self._failed(self.statement.on_message, error)
                return
            if only is None or type(result) is not dict:
                finish(result, message)
                return
            passed.value += 1  # one row for one action: in line, 0.2 µs less
            total.value += 1
            try:
                only(result, message)
            except Exception as error:  # noqa: BLE001 (as in _finish)
                self._action_failed(error)
            else:
                success.value += 1

        return run_on_message

    def run_on_event(self, occurrence: Occurrence, message: Message) -> None:
        """Run on an event; ``message`` stands for it towards the actions."""
        self.counts.matched.value += 1
        try:
            result = self.statement.on_event.run(occurrence)
        except Exception as error:  # noqa: BLE001 (a rule must not stop who raised the event)
            self._failed(self.statement.on_event, error)
            return
        self._finish(result, message)

    def _finish(self, result: Result, message: Message) -> None:
        if result is None or (not result and type(result) is list):
            self.counts.failed_no_result.value += 1
            return
        counts = self.counts
        counts.passed.value += 1
        total, success = counts.actions_total, counts.actions_success
        for row in (result,) if isinstance(result, dict) else result:
            for action in self.actions:  # in line: a method per action costs as much as a small action
                total.value += 1
                try:
                    action(row, message)
                except Exception as error:  # noqa: BLE001 (a failing action does not stop the next)
                    self._action_failed(error)
                else:
                    success.value += 1

    def _action_failed(self, error: Exception) -> None:
        if isinstance(error, Unavailable):
            self.counts.actions_failed_out_of_service.value += 1
        else:
            self.counts.actions_failed_unknown.value += 1
        self.last_error = LastError(str(error) or type(error).__name__, self.now_ns())

    def _failed(self, program: Program, error: Exception) -> None:
        self.counts.failed_exception.value += 1
        self.last_error = LastError(error_text(program, error), self.now_ns())


def _measured(run: Callable[[Any], Result], timing: Timing) -> Callable[[Any], Result]:
    """The same with a look at the clock before and after."""

    def run_measured(given: Any) -> Result:
        started_ns = perf_counter_ns()
        try:
            return run(given)
        finally:
            timing.note(perf_counter_ns() - started_ns)

    return run_measured


def error_text(program: Program, error: BaseException) -> str:
    """What went wrong and where in the SQL."""
    place = program.place_of(error)
    where = f"line {place[0]}, column {place[1]}: " if place else ""
    return where + plain_text(error)


def plain_text(error: BaseException) -> str:
    """What went wrong, as a sentence."""
    if isinstance(error, jsontext.JsonError):
        return f"the payload is not JSON: {error}"
    if isinstance(error, RecursionError):
        return "the value nests too deep"
    return str(error) or type(error).__name__
