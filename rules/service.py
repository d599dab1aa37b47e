"""The verbs people have for rules: create, change, delete, list, test, and what their rows look like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from sqlglot import exp

from broker.core import jsontext
from broker.core.errors import Invalid, Problem, SluiceError
from broker.core.feature import Services
from broker.core.merge_patch import merged
from broker.core.objects import ObjectSection, Spec
from broker.core.ordered import OrderedObjects
from broker.core.schema import FieldType
from rules import tester
from rules.actions.spec import StreamAction
from rules.case_runs import refuse_failures, report, run_cases
from rules.engine import RuleEngine
from rules.functions.registry import Functions
from rules.making import MadeRule, RuleMaker
from rules.rule import Statement
from rules.settings import RulesSettings
from rules.spec import RuleSpec
from rules.sql.inference import Inferred
from rules.sql.types import unified
from rules.type_check import TypeChecker
from rules.versions import Versions, difference, rfc3339


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
        self._types = TypeChecker(services, functions, settings)
        self._maker = RuleMaker(services, functions, settings)
        self._section = section
        self._objects: OrderedObjects[MadeRule] = OrderedObjects(self.kind, section, _saved_spec)
        directory = None if services.data_dir is None else services.data_dir / "versions" / "rules"
        self._versions = Versions(directory, services.clock.now_ns)

    # The five verbs

    def load(self, specs: Sequence[Spec]) -> list[str]:
        """Take the rules of the configuration; gives a sentence for each that cannot be used."""
        problems = []
        for spec in specs:
            try:
                saved = self._maker.make(spec)
                self._objects.check_free(saved.spec.name)
                self._objects.adopt(saved.spec.name, saved)
                self._versions.adopt(saved.spec.name, _version_of(saved), self._section.where(saved.spec.name))
            except SluiceError as error:
                problems.append(self._objects.refusal(spec, error))
        self._changed()
        return problems

    def list(self) -> Sequence[Spec]:
        return [self._shown(saved) for saved in self._objects]

    def get(self, name: str) -> Spec:
        return self._shown(self._objects.get(name))

    def create(self, spec: Spec, *, force: bool = False) -> Spec:
        """Make a rule. With ``force`` also one that fails its test cases."""
        saved = self._maker.make(spec)
        self._objects.check_free(saved.spec.name)
        self._types.refuse_mistakes(saved.spec.name, saved.rule.statement)
        self._check_cases(saved, force)
        return self._put(saved)

    def replace(self, name: str, spec: Spec, *, force: bool = False) -> Spec:
        """Change a rule; its counters begin anew when its SQL or actions change."""
        return self._replace(name, spec, force=force)

    def patch(self, name: str, patch: Spec, *, force: bool = False) -> Spec:
        """Change members of a rule by a JSON Merge Patch (RFC 7396)."""
        present = _saved_spec(self._objects.get(name))
        return self._replace(name, merged(present, patch), force=force)

    def switch(self, name: str, enable: bool) -> Spec:
        """Enable or disable a rule, which makes no version of it and runs no test case."""
        return self._replace(name, {**_saved_spec(self._objects.get(name)), "enable": enable}, force=True)

    def delete(self, name: str) -> None:
        self._objects.remove(name)
        self._versions.forget(name)
        self._services.metrics.remove(rule=name)
        self._changed()

    def etag(self, name: str) -> str:
        """Changes with every change of the rule; the same after a restart."""
        saved = self._objects.get(name)
        digest = sha256(jsontext.encode(_saved_spec(saved))).hexdigest()
        return f"{self._versions.newest(name).number}-{digest[:12]}"

    # Counting

    def metrics(self, name: str) -> dict[str, Any]:
        """What a rule did since it was saved, or since its counters were set to zero."""
        return self._metrics(self._objects.get(name))

    def reset_metrics(self, name: str) -> None:
        """Set the counters of a rule to zero."""
        self._objects.get(name).rule.counts.reset()

    # Versions

    def versions(self, name: str) -> Sequence[dict[str, Any]]:
        """The versions of a rule that are kept, newest first."""
        self._objects.get(name)
        return [version.as_dict() for version in reversed(self._versions.of(name))]

    def version(self, name: str, number: int) -> dict[str, Any]:
        """One version with the members that the rule had. Raises ``NotFound``."""
        self._objects.get(name)
        version = self._versions.get(name, number)
        return {**version.as_dict(), "rule": {"name": name, **version.spec}}

    def difference(self, name: str, before: int, after: int) -> dict[str, Any]:
        """What changed from one version to another. Raises ``NotFound``."""
        self._objects.get(name)
        return difference(self._versions.get(name, before), self._versions.get(name, after))

    def restore(self, name: str, number: int, *, force: bool = False) -> Spec:
        """Make a rule again what it was, as a new version; it stays enabled or disabled.

        Raises:
            NotFound: there is no such rule or version.
            Invalid: what it was cannot be used any more, or fails its test cases.
        """
        enable = self._objects.get(name).spec.enable
        spec = {**self._versions.get(name, number).spec, "name": name, "enable": enable}
        return self._replace(name, spec, force=force, change=f"restored version {number}")

    # Test cases

    def run_cases(self, name: str) -> dict[str, Any]:
        """The saved test cases of a rule, run: how many passed and failed, and each with its outcome."""
        return report(self._cases(self._objects.get(name)))

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
        return tester.test(body, self._functions.trial(), self._services.node, self._services.clock.now_ns)

    def render(self, body: Mapping[str, Any]) -> dict[str, str]:
        """The text of a template for a row. Raises ``Invalid`` when those are not given."""
        return tester.render(body)

    def program_of(self, name: str) -> str:
        """The Python source a rule was compiled to."""
        return self._objects.get(name).rule.statement.on_message.source

    def inferred(self, name: str) -> Inferred:
        """Types of a rule's columns, and warnings."""
        return self._types.inferred(self._objects.get(name).rule.statement)

    def output_columns_of_stream(self, stream: str) -> Sequence[dict[str, str]]:
        """Name and type of all columns that rules write to a stream; ``unknown`` where they disagree."""
        columns: dict[str, FieldType] = {}
        for saved in self._objects:
            if stream in _streams(saved.spec):
                for name, kind in self._types.inferred(saved.rule.statement).columns:
                    columns[name] = unified(columns[name], kind) if name in columns else kind
        return [{"name": name, "type": kind.name} for name, kind in columns.items()]

    # Keeping and showing

    def _replace(self, name: str, spec: Spec, *, force: bool, change: str | None = None) -> Spec:
        self._objects.check_changeable(name)
        saved, before = self._maker.make({**spec, "name": spec.get("name", name)}), self._objects.get(name)
        if saved.spec.name != name:
            raise Invalid("a rule keeps its name", [Problem(f"expected {name!r}", "/name")])
        if saved.spec.sql != before.spec.sql:  # a rule that a schema was changed under can still be switched off
            self._types.refuse_mistakes(name, saved.rule.statement)
        self._check_cases(saved, force)
        does_the_same = (saved.spec.sql, saved.spec.actions) == (before.spec.sql, before.spec.actions)
        if does_the_same:
            saved.rule.counts, saved.rule.last_error = before.rule.counts, before.rule.last_error
        shown = self._put(saved, change)
        if not does_the_same:
            saved.rule.counts.reset()
            shown["metrics"] = self._metrics(saved)
        return shown

    def _put(self, saved: MadeRule, change: str | None = None) -> Spec:
        self._objects.put(saved.spec.name, saved)
        self._versions.note(saved.spec.name, _version_of(saved), change)
        self._changed()
        return self._shown(saved)

    def _check_cases(self, saved: MadeRule, force: bool) -> None:
        if saved.spec.tests and not force:
            refuse_failures(saved.spec.name, self._cases(saved))

    def _cases(self, saved: MadeRule) -> Sequence[dict[str, Any]]:
        node, now_ms = self._services.node, self._services.clock.now_ns() // 1_000_000
        statement, name = saved.rule.statement, saved.spec.name
        return run_cases(saved.spec.tests, lambda event: tester.run(statement, event, node, now_ms, name))

    def _metrics(self, saved: MadeRule) -> dict[str, Any]:
        counts: dict[str, Any] = saved.rule.counts.as_dict()
        return counts

    def _changed(self) -> None:
        self._engine.use({saved.spec.name: saved.rule for saved in self._objects})
        self._services.plans.invalidate()

    def _shown(self, saved: MadeRule) -> Spec:
        rule, name = saved.rule, saved.spec.name
        error, version, spec = rule.last_error, self._versions.newest(name), _saved_spec(saved)
        return {
            **spec,
            "tests": spec.get("tests", []),
            "version": version.number,
            "created_at": rfc3339(self._versions.created_ms(name)),
            "last_modified_at": rfc3339(version.saved_ms),
            "from": [*rule.statement.sources.texts],
            **self._types.shown(rule.statement, saved.spec.actions),
            "metrics": self._metrics(saved),
            "last_error": None if error is None else {"text": error.text, "time_ms": error.time_ns // 1_000_000},
        }


def _saved_spec(saved: MadeRule) -> Spec:
    """What is written to the configuration; cases keep the one expectation that they have."""
    tests = [case.model_dump(mode="json", exclude_unset=True) for case in saved.spec.tests]
    spec: Spec = saved.spec.model_dump(mode="json", exclude={"tests"})
    return {**spec, "tests": tests} if tests else spec


def _version_of(saved: MadeRule) -> Spec:
    """What is kept of a version: only what was set, so that a default that comes later is no change."""
    members = {"name", *saved.spec.model_dump(exclude_defaults=True)}
    return {name: value for name, value in _saved_spec(saved).items() if name in members}


def _streams(spec: RuleSpec) -> set[str]:
    return {action.stream for action in spec.actions if isinstance(action, StreamAction)}


def _schemas(statement: Statement) -> set[str]:
    calls = statement.tree.find_all(exp.Anonymous)
    return {
        call.expressions[0].name
        for call in calls
        if call.name.startswith("schema_") and call.expressions and isinstance(call.expressions[0], exp.Literal)
    }
