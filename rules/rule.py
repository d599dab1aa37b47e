"""One rule: compiled, counted, with its actions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlglot import exp

from broker.core import jsontext
from broker.core.action import Row
from broker.core.contributor import RowsOf
from broker.core.errors import Invalid, Problem, Unavailable
from broker.core.message import Message
from broker.core.stage import RecordedTap, Refusal
from broker.core.waiting import Waits
from broker.observe.log import get_logger
from broker.observe.timing import SAMPLE_MASK, measured
from rules.actions.action import LastError, Step
from rules.deferred import Deferrals, Outcome, in_order, with_questions
from rules.functions.registry import Functions
from rules.jq.evaluation import with_variables
from rules.metrics import Counts
from rules.sql.compiler.columns import Event
from rules.sql.compiler.compile import compile_for_events, compile_for_messages
from rules.sql.compiler.program import DeferralNeeded, Program, Result, RuleContext
from rules.sql.limits import INLINE_BYTES, INLINE_ROWS, INLINE_WORK, MAX_ROWS_BYTES, MAX_ROWS_TIMES
from rules.sql.sources import Sources, sources
from rules.sql.syntax.parser import parse
from rules.sql.syntax.tree import jq_of
from rules.sql.values import UNDEFINED, NoArray, json_bytes
from rules.sql.work import CHAIN, EvaluationError

_log = get_logger(__name__)
_LOG_EVERY_NS: Final = 60_000_000_000


@dataclass(frozen=True, slots=True)
class Statement:
    """A rule's SQL, parsed and compiled for its sources."""

    sql: str
    tree: exp.Select
    sources: Sources
    on_message: Program
    on_event: Program

    @property
    def makes_lists(self) -> bool:
        """True if it may give several rows for one message."""
        return self.on_message.walks or jq_of(self.tree) is not None


def compile_statement(sql: str, functions: Functions, context: RuleContext) -> Statement:
    """Parse and compile.

    Raises:
        Invalid: with every problem, each with line and column.
    """
    tree = parse(sql)
    problems = []
    compiled: list[Any] = []
    for step in (
        lambda: sources(tree),
        lambda: compile_for_messages(tree, functions, context),
        lambda: compile_for_events(tree, functions, context),
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


# Arguments of a rule that reads another one's rows: a row, and the message or event that led to it.
RowCall = Callable[[Row, Message], "Refusal | None"]


@dataclass(slots=True)
class Rule:
    """A saved rule. Running it never raises: failures are counted, the last one is kept, and one in a while is logged.

    ``readers`` are the rules that read its rows (``FROM "$rules/name"``), in their order; the engine sets them.
    """

    name: str
    statement: Statement
    steps: Sequence[Step]
    counts: Counts
    now_ns: Callable[[], int]
    is_enabled: bool = True
    for_templates: Program | None = field(default=None)
    """In place of ``statement.on_message`` while only the templates of the actions see the rows."""
    last_error: LastError | None = field(default=None)
    readers: Sequence[RowCall] = field(default=())
    variables: Callable[[Message], Row] | None = field(default=None)
    """All columns of a message, for a rule that calls jq."""
    decides: bool = field(default=False)
    """True if it may drop its message, and so cannot be deferred."""
    may_wait: Callable[[], bool] | None = field(default=None)
    """True if it may have to ask another process, with schemas as they are; None for a rule that never does."""
    deferrals: Deferrals | None = field(default=None)
    """Queue for evaluations off the publish path; the engine sets it."""
    on_row: Callable[[Row], None] | None = field(default=None)
    """Gets each row of the message that is being recorded."""
    _quiet_until_ns: int = field(default=0)

    def __post_init__(self) -> None:
        for step in self.steps:
            for action in (step, *step.fallbacks):
                action.on_failure = self._action_failed

    def take_over(self, before: Rule) -> None:
        """Take over what a rule that does the same has counted, and its actions with it."""
        self.steps = before.steps
        self.counts = before.counts
        self.last_error = before.last_error
        self.__post_init__()

    def recorded_call(self) -> RecordedTap:
        """The call for a message that is recorded, whose rows and failures are reported."""
        call = self.message_call(is_recorded=True)

        def run(message: Message, on_row: Callable[[Row], None]) -> tuple[Refusal | None, str]:
            error_before = self.last_error
            self.on_row = on_row
            try:
                refusal = call(message)
            finally:
                self.on_row = None
            error = self.last_error
            return refusal, error.text if error is not None and error is not error_before else ""

        return run

    def message_call(self, *, is_recorded: bool = False) -> Callable[[Message], Refusal | None]:
        """The call of the topic plan; everything it needs is bound to locals. Returns why the message is stopped."""
        name = self.name
        finish = self._finish
        counts = self.counts
        program = (
            self.statement.on_message
            if self.for_templates is None or self.readers
            else self.for_templates
        )
        may_wait = self.may_wait is not None and (self.may_wait() or self._is_busy())
        run = self._runner(program, self.variables, may_wait)
        matched = counts.matched
        passed = counts.passed
        only = (
            self.steps[0].run
            if len(self.steps) == 1 and not (self.readers or is_recorded)
            else None
        )
        timed = measured(run, counts.timing)

        def run_on_message(message: Message) -> Refusal | None:
            if message.via and name in message.via:
                self._log_recursion(message)
                return None
            matched.value = count = matched.value + 1
            try:
                result = (run if count & SAMPLE_MASK else timed)(message)
            except (Waits, DeferralNeeded) as needed:
                self._defer(message, message, program, needed)
                return None
            except Exception as error:  # noqa: BLE001 (a rule must not stop the message, whatever it raises)
                self._failed(program, error)
                return None
            if only is None or type(result) is not dict:
                return finish(result, message)
            passed.value += 1  # one row for one action: in line, 0.2 µs less
            return only(result, message)

        return run_on_message

    def run_on_event(self, event: Event, message: Message) -> Refusal | None:
        """Run on an event or on a row of another rule; ``message`` stands for it towards the actions."""
        if message.via and self.name in message.via:
            self._log_recursion(message)
            return None
        variables = None if self.variables is None else _columns
        matched = self.counts.matched
        run = self._runner(self.statement.on_event, variables, self.may_wait is not None)
        matched.value = count = matched.value + 1
        try:
            result = (run if count & SAMPLE_MASK else measured(run, self.counts.timing))(event)
        except (Waits, DeferralNeeded) as needed:
            self._defer(event, message, self.statement.on_event, needed)
            return None
        except Exception as error:  # noqa: BLE001 (a rule must not stop who raised the event)
            self._failed(self.statement.on_event, error)
            return None
        return self._finish(result, message)

    @property
    def event_program(self) -> Program:
        """The function that evaluates columns, also those of deferred messages."""
        return self.statement.on_event

    def complete(self, outcome: Outcome, message: Message) -> Iterator[object]:
        """Count the evaluation of a deferred input and run the actions for its rows. It is too late to drop anything.

        Stops after each row of a list, for others to have their turn.
        """
        self.counts.matched.value += 1
        if isinstance(outcome, Exception):
            self._failed(self.statement.on_event, outcome)
        elif isinstance(outcome, Iterator):
            most_bytes = max(MAX_ROWS_BYTES, MAX_ROWS_TIMES * len(message.payload))
            try:
                yield from self._act_on_many(outcome, message, most_bytes)
            except Exception as error:  # noqa: BLE001 (of a part of the list behind the rows that are done)
                self._failed(self.statement.on_event, error)
        else:
            self._finish(outcome, message)

    def _runner(
        self, program: Program, variables: Callable[[Any], Row] | None, may_wait: bool
    ) -> Callable[[Any], Result]:
        """The function that evaluates a program when no caller can wait; long work is deferred."""
        if self.decides or not self.statement.makes_lists:
            run = program.run_short
        else:
            run = in_order(program.at_once, self._is_busy, self._most_rows)
        if variables is not None:
            run = with_variables(run, variables)
        return with_questions(run, self._is_busy) if may_wait or variables is not None else run

    @property
    def _most_rows(self) -> int:
        """Number of rows acted on at once; a row's actions take as long as ten expressions each, or longer."""
        actions = sum(1 + len(step.fallbacks) for step in self.steps) + len(self.readers)
        return min(INLINE_ROWS, INLINE_WORK // (10 * max(1, actions)))

    def _defer(
        self,
        item: Message | Event,
        message: Message,
        program: Program,
        needed: Waits | DeferralNeeded,
    ) -> None:
        """Evaluate it later, when it is counted too; a failure if nothing can be deferred."""
        if self.deferrals is None:
            self._failed(
                program, needed if isinstance(needed, Exception) else Unavailable(str(needed))
            )
            return
        try:
            self.deferrals.defer(self.name, item, message, self.now_ns() // 1_000_000)
        except Unavailable as error:
            self._failed(program, error)
        else:
            self.counts.matched.value -= 1

    def _is_busy(self) -> bool:
        return self.deferrals is not None and (self.name in self.deferrals.busy or CHAIN.is_late)

    def _finish(self, result: Result, message: Message) -> Refusal | None:
        """Row by row: the actions, then the rules that read the rows, unless the message is to go no further."""
        if result is None or (not result and isinstance(result, list)):
            self.counts.failed_no_result.value += 1
            if isinstance(result, NoArray):
                self.last_error = LastError(result.reason, self.now_ns())
            return None
        if isinstance(result, dict):
            self.counts.passed.value += 1
            return self._act(result, message)
        is_first = CHAIN.begin()
        refusal = None
        try:
            if len(result) * len(message.payload) > INLINE_BYTES:
                for other in self._act_on_many(result, message, INLINE_BYTES):
                    refusal = _graver(refusal, other)
                return refusal
            self.counts.passed.value += 1
            for row in result:
                refusal = _graver(refusal, self._act(row, message))
            return refusal
        finally:
            if is_first:
                CHAIN.end()

    def _act_on_many(
        self, rows: Iterable[Row], message: Message, most_bytes: int
    ) -> Iterator[Refusal | None]:
        """The same row by row, within a maximum of bytes of rows: each may hold all of a large payload."""
        made_bytes = 0
        for number, row in enumerate(rows):
            if made_bytes > most_bytes:
                self._failed(self.statement.on_event, _too_large(most_bytes, number))
                return
            before_bytes = self._uncommitted_bytes()
            refusal = self._act(row, message)
            made_bytes += self._uncommitted_bytes() - before_bytes
            yield refusal
        self.counts.passed.value += 1

    def _uncommitted_bytes(self) -> int:
        return 0 if self.deferrals is None else self.deferrals.uncommitted_bytes

    def _act(self, row: Row, message: Message) -> Refusal | None:
        """The actions for one row, then the rules that read it."""
        if self.on_row is not None:
            self.on_row(row)
        refusal: Refusal | None = None
        for step in self.steps:
            refusal = _graver(refusal, step.run(row, message))
        for read in self.readers if refusal is None else ():
            refusal = _graver(refusal, read(row, message))
            if refusal is not None:
                break
        return refusal

    def _action_failed(self, step: Step, error: Exception) -> LastError:
        self.last_error = last_error = LastError(str(error) or type(error).__name__, self.now_ns())
        self._log("rule.action_failed", last_error, action=f"{step.kind} {step.target}".rstrip())
        return last_error

    def _failed(self, program: Program, error: Exception) -> None:
        self.counts.failed_exception.value += 1
        self.last_error = last_error = LastError(error_text(program, error), self.now_ns())
        self._log("rule.failed", last_error)

    def _log_recursion(self, message: Message) -> None:
        text = "the rule does not run on what it published itself"
        self._log("rule.recursion", LastError(text, self.now_ns()), topic=message.topic)

    def _log(self, event: str, error: LastError, **fields: str) -> None:
        """One line a minute for each rule, however often it fails: making a line costs more than most rules."""
        if error.time_ns >= self._quiet_until_ns:
            self._quiet_until_ns = error.time_ns + _LOG_EVERY_NS
            _log.warning(
                event,
                rule=self.name,
                error=error.text,
                failed=self.counts.failed_exception.value,
                **fields,
            )


def _too_large(most_bytes: int, rows: int) -> EvaluationError:
    return EvaluationError(
        f"the rows of one message take more than {most_bytes >> 20} MiB; those after row {rows} are dropped"
    )


def _columns(event: Event) -> Row:
    return event.columns


def _graver(refusal: Refusal | None, other: Refusal | None) -> Refusal | None:
    """The refusal that disconnects out of two for one message, else the first."""
    if refusal is None or (other is not None and other.disconnect and not refusal.disconnect):
        return other
    return refusal


def rows_of(statement: Statement) -> RowsOf:
    """A function that gives a statement's rows for a message, each with its JSON, on topics that it reads."""
    run = statement.on_message.run_short
    reads = statement.sources.matches_topic

    def rows(message: Message) -> Sequence[tuple[Row, bytes]]:
        result = run(message) if reads(message.topic) else None
        results = result if isinstance(result, list) else [] if result is None else [result]
        defined_rows = [
            {name: value for name, value in row.items() if value is not UNDEFINED}
            for row in results
        ]
        return [(row, json_bytes(row)) for row in defined_rows]

    return rows


def error_text(program: Program, error: BaseException) -> str:
    """Text of an error with its place in the SQL."""
    place = program.place_of(error)
    where = f"line {place[0]}, column {place[1]}: " if place else ""
    return where + plain_text(error)


def plain_text(error: BaseException) -> str:
    """Text of an error, as a sentence."""
    if isinstance(error, jsontext.JsonError):
        return f"the payload is not JSON: {error}"
    if isinstance(error, RecursionError):
        return "the value nests too deep"
    return str(error) or type(error).__name__
