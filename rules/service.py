"""The verbs people have for rules: create, change, delete, list, test, and what their rows look like."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlglot import exp

from broker.core.errors import Invalid, Problem, SluiceError
from broker.core.feature import Services
from broker.core.objects import ObjectSection, Spec
from broker.core.ordered import OrderedObjects
from broker.core.schema import FieldType
from broker.core.template import Template
from rules import tester
from rules.engine import RuleEngine
from rules.functions.registry import Functions
from rules.making import MadeRule, RuleMaker
from rules.rule import Statement
from rules.settings import RulesSettings
from rules.spec import RepublishAction, RuleSpec, StreamAction
from rules.sql.types import Inferred, infer, unified
from rules.sql.values import text_of


class RuleService:
    """A ``broker.core.objects.ObjectService`` for rules, and what is asked of them."""

    kind = "rule"

    def __init__(
        self,
        services: Services,
        section: ObjectSection,
        engine: RuleEngine,
        functions: Functions,
        settings: RulesSettings,
    ) -> None:
        self._services, self._engine = services, engine
        self._functions = functions
        self._maker = RuleMaker(services, functions, settings)
        self._objects: OrderedObjects[MadeRule] = OrderedObjects(
            self.kind, section, lambda saved: saved.spec.model_dump(mode="json")
        )

    # The five verbs

    def load(self, specs: Sequence[Spec]) -> list[str]:
        """Take the rules of the configuration; gives a sentence for each that cannot be used."""
        problems = []
        for spec in specs:
            try:
                saved = self._maker.make(spec)
                self._objects.check_free(saved.spec.name)
                self._objects.adopt(saved.spec.name, saved)
            except SluiceError as error:
                problems.append(self._objects.refusal(spec, error))
        self._changed()
        return problems

    def list(self) -> Sequence[Spec]:
        return [self._shown(saved) for saved in self._objects]

    def get(self, name: str) -> Spec:
        return self._shown(self._objects.get(name))

    def create(self, spec: Spec) -> Spec:
        saved = self._maker.make(spec)
        self._objects.check_free(saved.spec.name)
        return self._put(saved)

    def replace(self, name: str, spec: Spec) -> Spec:
        """Change a rule; its counters begin anew."""
        self._objects.check_changeable(name)
        saved = self._maker.make({**spec, "name": spec.get("name", name)})
        if saved.spec.name != name:
            raise Invalid("a rule keeps its name", [Problem(f"expected {name!r}", "/name")])
        self._put(saved)
        saved.rule.counts.reset()
        return self._shown(saved)

    def delete(self, name: str) -> None:
        self._objects.remove(name)
        self._services.metrics.remove(rule=name)
        self._changed()

    def reset_metrics(self, name: str) -> None:
        """Set the counters of a rule to zero."""
        self._objects.get(name).rule.counts.reset()

    # Who uses what

    def users_of_stream(self, stream: str) -> Sequence[str]:
        """The rules that write to a stream, as texts."""
        return [f"rule '{saved.spec.name}'" for saved in self._objects if stream in _streams(saved.spec)]

    def users_of_schema(self, schema: str) -> Sequence[str]:
        """The rules whose functions name a schema, as texts."""
        return [f"rule '{saved.spec.name}'" for saved in self._objects if schema in _schemas(saved.rule.statement)]

    # Asking

    def test(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Run SQL on an event that never happened.

        Gives ``{"outcome": "rows", "rows"}``, ``{"outcome": "no_result"}`` or ``{"outcome": "error", "error"}``.

        Raises:
            Invalid: the SQL does not parse or check, or the event cannot be read.
        """
        return tester.test(body, self._functions, self._services.node, self._services.clock.now_ns)

    def render(self, body: Mapping[str, Any]) -> dict[str, str]:
        """The text of a template for a row. Raises ``Invalid`` when those are not given."""
        return tester.render(body)

    def program_of(self, name: str) -> str:
        """The Python source a rule was compiled to."""
        return self._objects.get(name).rule.statement.on_message.source

    def inferred(self, name: str) -> Inferred:
        """Types of a rule's columns, and warnings."""
        return self._inferred(self._objects.get(name).rule.statement)

    def output_columns_of_stream(self, stream: str) -> Sequence[dict[str, str]]:
        """Name and type of all columns that rules write to a stream; ``unknown`` where they disagree."""
        columns: dict[str, FieldType] = {}
        for saved in self._objects:
            if stream in _streams(saved.spec):
                for name, kind in self._inferred(saved.rule.statement).columns:
                    columns[name] = unified(columns[name], kind) if name in columns else kind
        return [{"name": name, "type": kind.name} for name, kind in columns.items()]

    # Keeping and showing

    def _put(self, saved: MadeRule) -> Spec:
        self._objects.put(saved.spec.name, saved)
        self._changed()
        return self._shown(saved)

    def _changed(self) -> None:
        self._engine.use({saved.spec.name: saved.rule for saved in self._objects})
        self._services.plans.invalidate()

    def _shown(self, saved: MadeRule) -> Spec:
        rule, inferred = saved.rule, self._inferred(saved.rule.statement)
        error = rule.last_error
        return {
            **saved.spec.model_dump(mode="json"),
            "from": [*rule.statement.sources.texts],
            "columns": [{"name": name, "type": kind.name} for name, kind in inferred.columns],
            "warnings": [problem.as_dict() for problem in (*inferred.warnings, *_unset(saved.spec, inferred))],
            "metrics": rule.counts.as_dict(),
            "last_error": None if error is None else {"text": error.text, "time_ms": error.time_ns // 1_000_000},
        }

    def _inferred(self, statement: Statement) -> Inferred:
        return infer(statement.tree, self._functions, self._payload_type(statement))

    def _payload_type(self, statement: Statement) -> FieldType | None:
        """The payload's type where one schema is bound to all that the rule reads."""
        sources = statement.sources
        if not sources.filters or sources.events or sources.ingress:
            return None
        kinds = [self._services.schemas.payload_type(one.filter) for one in sources.filters]
        return kinds[0] if all(kind == kinds[0] for kind in kinds) else None


def _unset(spec: RuleSpec, inferred: Inferred) -> Iterator[Problem]:
    """Placeholders of templates for columns that the SQL does not give, which would render as ``undefined``."""
    if inferred.has_star:
        return
    names = {name for name, _ in inferred.columns}
    for position, action in enumerate(spec.actions):
        if isinstance(action, RepublishAction):
            for member, text in (("topic", action.topic), ("payload", action.payload)):
                for path in Template(text, text_of).paths:
                    if path[0] not in names:
                        yield Problem(
                            f"the SQL gives no column '{path[0]}', so ${{{'.'.join(path)}}} renders as undefined",
                            f"/actions/{position}/{member}",
                            suggestion=f"select {path[0]}",
                        )


def _streams(spec: RuleSpec) -> set[str]:
    return {action.stream for action in spec.actions if isinstance(action, StreamAction)}


def _schemas(statement: Statement) -> set[str]:
    calls = statement.tree.find_all(exp.Anonymous)
    return {
        call.expressions[0].name
        for call in calls
        if call.name.startswith("schema_") and call.expressions and isinstance(call.expressions[0], exp.Literal)
    }
