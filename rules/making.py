"""From the spec of a rule to the rule: its SQL compiled, its actions bound, and all that is wrong with it at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from broker.core.errors import Invalid, Problem
from broker.core.feature import Services
from broker.core.objects import Spec
from broker.core.stream import rows_problem
from rules.actions.action import Action
from rules.actions.console import console
from rules.actions.republish import Republish, republish
from rules.actions.stream import append_to_stream
from rules.counts import Counts
from rules.functions.registry import Functions
from rules.rule import Rule, Statement, compile_statement
from rules.settings import RulesSettings
from rules.spec import RepublishAction, RuleSpec, StreamAction, parse_spec
from rules.sql.compiler import Surroundings


@dataclass(frozen=True, slots=True)
class MadeRule:
    """A rule and the spec it was made from."""

    spec: RuleSpec
    rule: Rule


class RuleMaker:
    """Makes rules for one node."""

    def __init__(self, services: Services, functions: Functions, settings: RulesSettings) -> None:
        self._services, self._functions, self._settings = services, functions, settings

    def make(self, spec: Spec) -> MadeRule:
        """The rule of a spec.

        Raises:
            Invalid: with every problem, each with a JSON pointer, and line and column where it is in the SQL.
        """
        checked = parse_spec(spec)
        problems: list[Problem] = []
        statement: Statement | None = None
        try:
            statement = compile_statement(checked.sql, self._functions, self._surroundings(checked.name))
        except Invalid as error:
            problems += error.problems
        actions = []
        for position, action in enumerate(checked.actions):
            try:
                actions.append(self._action(action, checked.name))
            except Invalid as error:
                problems += [_inside(problem, f"/actions/{position}") for problem in error.problems]
        if problems or statement is None:
            raise Invalid(f"rule {checked.name!r} cannot be saved", problems)
        counts = Counts(self._services.metrics, checked.name)
        return MadeRule(
            checked, Rule(checked.name, statement, actions, counts, self._services.clock.now_ns, checked.enable)
        )

    def _surroundings(self, name: str) -> Surroundings:
        now_ns = self._services.clock.now_ns
        return Surroundings(self._services.node, {"rule_id": name}, lambda: now_ns() // 1_000_000)

    def _action(self, action: Any, rule: str) -> Action:
        if isinstance(action, StreamAction):
            return self._stream_action(action, rule)
        if isinstance(action, RepublishAction):
            spec = Republish(**action.model_dump(exclude={"type"}))
            return republish(
                spec, rule, self._services.publisher, self._settings.max_republish_depth, self._services.clock.now_ns
            )
        return console(rule)

    def _stream_action(self, action: StreamAction, rule: str) -> Action:
        streams = self._services.streams
        if problem := rows_problem(action.stream, streams, "/stream"):
            raise Invalid("the action cannot be used", [problem])
        return append_to_stream(streams.appender(action.stream), rule)


def _inside(problem: Problem, pointer: str) -> Problem:
    return Problem(problem.message, pointer + problem.pointer, problem.line, problem.column, problem.suggestion)
