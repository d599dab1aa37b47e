"""Builder of rules from their specs: SQL compiled, actions bound, and all problems reported at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from sqlglot import exp

from broker.core.errors import Invalid, Problem, SluiceError
from broker.core.feature import Services
from broker.core.objects import Spec
from broker.core.stream import rows_problem
from rules.actions.action import Action, ActionCounts, Step
from rules.actions.republish import columns_read, republish
from rules.actions.spec import BridgeAction, Effect, RepublishAction, StreamAction, all_actions
from rules.actions.targets import append_to_stream, console, hand_to_sink, stop_message
from rules.chains import Link
from rules.functions.registry import Functions
from rules.functions.schemas import waiting_of
from rules.metrics import Counts
from rules.rule import Rule, Statement, compile_statement
from rules.settings import RulesSettings
from rules.spec import RuleSpec, about_sources, parse_spec
from rules.sql.compiler.columns import all_columns
from rules.sql.compiler.compile import compile_for_templates
from rules.sql.compiler.program import Program, RuleContext


@dataclass(frozen=True, slots=True)
class BuiltRule:
    """A rule and the spec it was made from."""

    spec: RuleSpec
    rule: Rule
    link: Link

    @property
    def name(self) -> str:
        """The name of the rule."""
        return self.spec.name


@dataclass(frozen=True, slots=True)
class UnusableRule:
    """A rule of the configuration that cannot be made: kept as written, shown, and not run."""

    name: str
    stored: Spec
    error: SluiceError

    @property
    def sentence(self) -> str:
        """The problem, as a sentence."""
        problems = self.error.problems if isinstance(self.error, Invalid) else ()
        return "; ".join(map(str, problems)) or str(self.error)


# Statements compiled beforehand and not yet saved.
_MOST_PREPARED: Final = 8


class RuleBuilder:
    """Makes rules for one node."""

    def __init__(self, services: Services, functions: Functions, settings: RulesSettings) -> None:
        self._prepared: dict[tuple[str, str], Statement] = {}
        self._services = services
        self._functions = functions
        self._settings = settings

    def make(self, spec: Spec) -> BuiltRule:
        """The rule of a spec.

        Raises:
            Invalid: with every problem, each with a JSON pointer, and line and column where it is in the SQL.
        """
        checked = parse_spec(spec)
        problems: list[Problem] = []
        statement: Statement | None = None
        try:
            statement = self.statement(checked)
        except Invalid as error:
            problems += (
                map(about_sources, error.problems) if checked.language == "jq" else error.problems
            )
        steps = []
        for position, action in enumerate(checked.actions):
            try:
                steps.append(self._step(action, checked.name, str(position)))
            except Invalid as error:
                problems += [_inside(problem, f"/actions/{position}") for problem in error.problems]
        if problems or statement is None:
            raise Invalid(f"rule {checked.name!r} cannot be saved", problems)
        if checked.decides and statement.sources.events | statement.sources.ingress:
            raise Invalid(f"rule {checked.name!r} cannot be saved", [_nothing_to_drop(checked)])
        counts = Counts(checked.name)
        counts.parts += [step.counts for step in steps]
        program = self._program_for_templates(checked, statement)
        rule = Rule(
            checked.name,
            statement,
            steps,
            counts,
            self._services.node.clock.now_ns,
            checked.enable,
            program,
        )
        rule.decides = checked.decides
        if calls_jq(statement.tree):
            context = self._context(checked.name)
            rule.variables = lambda message: all_columns(
                message, context.node, context.metadata, context.now_ms
            )
        if asked := waiting_of(statement.tree, self._functions):
            rule.may_wait = lambda: asked.waits(self._services.schemas)
        link = Link(rule.statement.sources, checked.decides, calls_jq(rule.statement.tree))
        return BuiltRule(checked, rule, link)

    def prepare(self, spec: Spec) -> None:
        """Compile what is about to be saved, on another thread: long SQL takes a second, which the loop has not got.

        Raises:
            Invalid: as ``make`` would.
        """
        checked = parse_spec(spec)
        self._keep(checked, self.statement(checked))

    def keep(self, built: BuiltRule) -> None:
        """Keep the compiled statement of a rule, so that building it again does not compile it again."""
        self._keep(built.spec, built.rule.statement)

    def _keep(self, spec: RuleSpec, statement: Statement) -> None:
        while len(self._prepared) >= _MOST_PREPARED:
            self._prepared.pop(next(iter(self._prepared)), None)
        self._prepared[spec.name, spec.sql] = statement

    def statement(self, checked: RuleSpec) -> Statement:
        """The compiled statement of a rule. Raises ``Invalid``."""
        prepared = self._prepared.pop((checked.name, checked.sql), None)
        return prepared or compile_statement(
            checked.sql, self._functions, self._context(checked.name)
        )

    def _program_for_templates(self, checked: RuleSpec, statement: Statement) -> Program | None:
        """A function that builds only the columns that templates name, if all actions are templates."""
        names: set[str] = set()
        for action in all_actions(checked.actions):
            read = columns_read(action) if isinstance(action, RepublishAction) else None
            if read is None and not isinstance(action, Effect):
                return None
            names |= read or frozenset()
        context = self._context(checked.name)
        return compile_for_templates(statement.tree, self._functions, context, frozenset(names))

    def _context(self, name: str) -> RuleContext:
        now_ns = self._services.node.clock.now_ns
        return RuleContext(
            self._services.node.name, {"rule_id": name}, lambda: now_ns() // 1_000_000
        )

    def _step(self, action: Any, rule: str, position: str) -> Step:
        """The action at a position (``0``, or ``0.1`` for a fallback), bound to its target."""
        fallbacks = [
            self._step(fallback, rule, f"{position}.{number}")
            for number, fallback in enumerate(getattr(action, "fallback_actions", ()))
        ]
        counts = ActionCounts(
            rule, position, action.type, [fallback.counts for fallback in fallbacks]
        )
        services = self._services
        if isinstance(action, BridgeAction):
            state = partial(services.endpoints.sinks.state_of, action.bridge)
            step = Step("bridge", action.bridge, counts, fallbacks, state=state)
            return step.hands_to(hand_to_sink(services.endpoints.sinks, action.bridge))
        target = action.stream if isinstance(action, StreamAction) else ""
        return Step(action.type, target, counts, fallbacks).does(self._action(action, rule))

    def _action(self, action: Any, rule: str) -> Action:
        if isinstance(action, StreamAction):
            return self._stream_action(action, rule)
        if isinstance(action, RepublishAction):
            services = self._services
            max_depth = self._settings.max_republish_depth
            return republish(
                action, rule, services.messaging.publisher, max_depth, services.node.clock.now_ns
            )
        if isinstance(action, Effect):
            return stop_message(rule, disconnect=action.type == "disconnect")
        return console(rule)

    def _stream_action(self, action: StreamAction, rule: str) -> Action:
        streams = self._services.storage.streams
        if problem := rows_problem(action.stream, streams, "/stream"):
            raise Invalid("the action cannot be used", [problem])
        trace = partial(streams.trace, action.stream)
        return append_to_stream(streams.appender(action.stream), rule, trace)


def calls_jq(tree: exp.Select) -> bool:
    """True if a statement calls jq, as a function or in a clause or block."""
    return any(call.name == "jq" for call in tree.find_all(exp.Anonymous))


def _inside(problem: Problem, pointer: str) -> Problem:
    return Problem(
        problem.message, pointer + problem.pointer, problem.line, problem.column, problem.suggestion
    )


def _nothing_to_drop(spec: RuleSpec) -> Problem:
    position = next(at for at, action in enumerate(spec.actions) if isinstance(action, Effect))
    kind = spec.actions[position].type
    text = f"{kind} stops published messages, and FROM names an event or a connector, which has no message to stop"
    return Problem(text, f"/actions/{position}", suggestion="read topics only")
