"""Operations on rules: create, change, delete, list, test, and what their rows look like."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import nlargest
from typing import Any, Final, Literal

from typing_extensions import TypedDict

from broker.core.column_text import column_text
from broker.core.contributor import Change, Contributor, Drafts, RowsOf, TopicStage, Trial, Uses
from broker.core.errors import Conflict, Invalid, Problem, SluiceError, Unavailable
from broker.core.feature import Services
from broker.core.json_values import LastErrorView, ProblemEntry, problem_to_wire
from broker.core.kinds import counted
from broker.core.message import Message
from broker.core.objects import Listed, ObjectSection, Reference, Spec, merged
from broker.core.ordered import ObjectVerbs
from broker.core.schema import FieldType, SchemaEffect, SchemaLookup
from broker.core.times import MILLISECONDS, rfc3339_or_none
from rules.actions.action import RuleActionView
from rules.actions.spec import BridgeAction, StreamAction, all_actions
from rules.builder import BuiltRule, RuleBuilder, UnusableRule
from rules.chains import Link, chain_problems, chained
from rules.engine import RuleEngine
from rules.functions.registry import Functions
from rules.functions.schemas import schemas_in
from rules.metrics import Counts, RuleMetrics, Totals
from rules.rule import Statement, rows_of
from rules.settings import RulesSettings
from rules.spec import RuleSpec, checked_name, parse_spec
from rules.sql.spark.transpiler import to_spark
from rules.sql.spark.values import NotInSpark
from rules.sql.syntax.layout import formatted
from rules.sql.type_checker.inference import Inferred
from rules.sql.type_checker.lineage import RuleLineage
from rules.sql.type_checker.types import unified
from rules.trials import tester
from rules.trials.backtest import Backtests, BacktestView, Comparison, requested
from rules.trials.cases import CaseResult, CasesReport, refuse_failures, report, run_cases
from rules.trials.explain import Explainer, Explanation
from rules.type_check import InputFields, RuleColumn, RuleTypes, TypeChecker, TypedRule, effects
from rules.versions import VersionDifference, VersionRow, Versions, VersionView, difference

_UNUSABLE: Final = Link(None)


class FormattedSql(TypedDict):
    """SQL in the usual layout: a clause per line."""

    sql: str


class SparkColumn(TypedDict):
    """A column of a rule's rows, with its type as tables have it."""

    name: str
    type: str


class SparkForm(TypedDict):
    """A rule as Spark SQL over the view ``records`` of the source ``sluice``.

    Where no equal ``sql`` is known it is null, and ``problem`` is the expression that prevents it. ``source`` is the
    SQL, or a comment with the problem.
    """

    language: Literal["spark-sql"]
    source: str
    sql: str | None
    columns: list[SparkColumn]
    problem: ProblemEntry | None


RuleReadOnly = TypedDict(
    "RuleReadOnly",
    {
        "version": int,
        "created_at": str | None,
        "updated_at": str | None,
        "state": Literal["running", "disabled", "failed", "mistyped"],
        "problem": str | None,
        "from": list[str],
        "columns": list[RuleColumn],
        "warnings": list[ProblemEntry],
        "action_details": list[RuleActionView],
        "metrics": RuleMetrics,
        "last_error": LastErrorView | None,
    },
)
RuleReadOnly.__doc__ = """How a rule is: the number of its version and when it was saved (null where a file defines it),
its state and the problem, what it reads, the columns of its rows, and what it did."""


class RuleService(Contributor, ObjectVerbs[BuiltRule | UnusableRule]):
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
        super().__init__(section, _saved_spec)
        self._services = services
        self._engine = engine
        self._functions = functions
        self._types = TypeChecker(services, functions, settings, self._statement_of)
        self._builder = RuleBuilder(services, functions, settings)
        self._settings = settings
        self.jobs: Backtests | None = None
        """Back-tests, where there are streams; set by the feature."""
        self._explainer = Explainer(services, functions, settings)
        self._unusable: dict[str, str] = {}
        """Rules that cannot be used, with why: rules the configuration holds, and readers of rules that are gone."""
        self._totals = Totals(lambda: (saved.rule.counts for saved in self._built()))
        self._totals.register(services.monitoring.metrics)
        directory = (
            None
            if services.node.data_dir is None
            else services.node.data_dir / "versions" / "rules"
        )
        self._versions = Versions(directory, services.node.clock.now_ns)

    # The five verbs

    def load(self, specs: Sequence[Spec]) -> list[str]:
        """Take the rules of the configuration; gives a sentence for each that has no name of its own.

        Others that cannot be used are kept in state ``failed``, see ``failures``.
        """
        refused = []
        for spec in specs:
            try:
                self._objects.check_free(checked_name(spec))
                saved = self._made_or_unusable(spec)
                self._objects.adopt(saved.name, saved)
                self._versions.adopt(
                    saved.name, _version_of(saved), self._section.where(saved.name)
                )
            except SluiceError as error:
                refused.append(self._objects.refusal(spec, error))
        self._changed()
        return refused

    def failures(self) -> Sequence[str]:
        """A sentence for each rule that cannot be used: file, rule, problem."""
        return [
            self._objects.refusal({"name": name}, SluiceError(sentence))
            for name, sentence in self._unusable.items()
        ]

    def mistyped(self) -> Mapping[str, str]:
        """The rules that run and could not be saved as schemas are now, by name, with the first reason."""
        errors = {
            saved.name: self._types.check(saved.rule.statement).errors for saved in self._built()
        }
        return {
            name: str(errors_of_rule[0])
            for name, errors_of_rule in errors.items()
            if errors_of_rule
        }

    def states(self) -> Mapping[str, int]:
        """Number of rules by their state."""
        return Counter(map(self._state, self._objects))

    def busiest(self, limit: int) -> Listed:
        """The rules that an overview shows: failed ones first, then those with errors, then the busiest."""

        def rank(saved: BuiltRule | UnusableRule) -> tuple[bool, bool, float, int]:
            if isinstance(saved, UnusableRule):
                return True, False, 0.0, 0
            counts = saved.rule.counts
            is_failed = saved.name in self._unusable
            has_errors = counts.failed_exception.value > 0
            return is_failed, has_errors, counts.rate.last, counts.matched.value

        return Listed([saved.name for saved in nlargest(limit, self._objects, key=rank)], self.get)

    def outcomes(self) -> Mapping[str, int]:
        """Sums of the counters of all present rules."""
        counted = [saved.rule.counts for saved in self._built()]
        return {
            "matched": sum(counts.matched.value for counts in counted),
            "passed": sum(counts.passed.value for counts in counted),
            "failed": sum(counts.failed_exception.value for counts in counted),
        }

    def create(self, spec: Spec, *, force: bool = False) -> Spec:
        """Make a rule. With ``force`` also one that fails its test cases."""
        saved = self._compiled(spec)
        self._objects.check_free(saved.spec.name)
        self._check_chains(saved)
        self._types.refuse_mistakes(saved.spec.name, saved.rule.statement)
        self._check_cases(saved, force)
        return self._save(saved)

    def replace(self, name: str, spec: Spec, *, force: bool = False) -> Spec:
        """Change a rule; its counters restart at zero when its SQL or actions change."""
        return self._replace(name, spec, force=force)

    def patched(self, name: str, patch: Spec) -> Spec:
        """A rule with a JSON Merge Patch (RFC 7396) applied, to be checked and saved by ``replace``."""
        spec: Spec = merged(_saved_spec(self._objects.get(name)), patch)
        return spec

    def enable(self, name: str, enabled: bool) -> Spec:
        """Switch a rule on or off, which makes no version of it and runs no test case."""
        saved = self._objects.get(name)
        if isinstance(saved, BuiltRule):
            self._builder.keep(saved)
        return self._replace(name, {**_saved_spec(saved), "enable": enabled}, force=True)

    def delete(self, name: str, *, force: bool = False) -> None:
        """Delete a rule; with ``force`` also one that rules read or tables run, which then stop.

        Raises:
            InUse: rules read its rows, or tables run it.
        """
        self._objects.check_changeable(name)
        if not force:
            self._services.contributors.check_unused(self.kind, name)
        before = self._objects.remove(name)
        self._versions.forget(name)
        if isinstance(before, BuiltRule):
            self._totals.retire(before.rule.counts)
        self._services.monitoring.metrics.remove(rule=name)
        self._changed()

    # Counting

    def metrics(self, name: str) -> dict[str, Any]:
        """Counts of a rule since it was saved, or since its counters were set to zero."""
        saved = self._usable(name)
        return {
            **self._metrics(name, saved.rule.counts),
            "actions": [step.view() for step in saved.rule.steps],
        }

    def reset_metrics(self, name: str) -> None:
        """Set the counters of a rule to zero."""
        counts = self._usable(name).rule.counts
        self._totals.retire(counts)
        counts.reset()

    def tick(self) -> Iterator[None]:
        """Sample the rates; called every ``broker.observe.counter_rates.STEP_S``."""
        for saved in self._built():
            saved.rule.counts.rate.note_all(
                saved.rule.counts, self._services.node.clock.monotonic_s()
            )
            yield

    # Versions

    def versions(self, name: str) -> Sequence[VersionRow]:
        """The versions of a rule that are kept, newest first."""
        self._objects.get(name)
        return [version.as_row() for version in reversed(self._versions.of(name))]

    def version(self, name: str, number: int) -> VersionView:
        """One version with the members that the rule had. Raises ``NotFound``."""
        self._objects.get(name)
        version = self._versions.get(name, number)
        return {**version.as_row(), "rule": {"name": name, **version.spec}}

    def difference(self, name: str, before: int, after: int) -> VersionDifference:
        """Changes from one version to another. Raises ``NotFound``."""
        self._objects.get(name)
        return difference(self._versions.get(name, before), self._versions.get(name, after))

    def restore(self, name: str, number: int, *, force: bool = False) -> Spec:
        """Make a rule again what it was, as a new version; it stays enabled or disabled.

        Raises:
            NotFound: there is no such rule or version.
            Invalid: that version can no longer be used, or fails its test cases.
        """
        enable = _saved_spec(self._objects.get(name)).get("enable", True)
        spec = {**self._versions.get(name, number).spec, "name": name, "enable": enable}
        return self._replace(name, spec, force=force, change=f"restored version {number}")

    # Test cases

    def try_cases(self, spec: Spec) -> None:
        """Run the test cases of a spec before it is saved; on any thread. Saving reports other problems.

        Raises:
            Invalid: with a problem for each case that fails.
        """
        try:
            checked = parse_spec(spec)
            statement = self._builder.statement(checked)
        except Invalid:
            return
        refuse_failures(checked.name, self._run_cases(checked, statement))

    def run_cases(self, name: str) -> CasesReport:
        """The saved test cases of a rule, run: how many passed and failed, and each with its outcome."""
        saved = self._usable(name)
        return report(self._run_cases(saved.spec, saved.rule.statement))

    def _spec_of(self, name: str) -> Spec:
        return _saved_spec(self._usable(name))

    # Back-tests

    def backtest_request(self, body: Mapping[str, Any]) -> Comparison:
        """Request of a back-test: ``sql`` over a ``stream``, compared with the rule ``name``. For a thread,
        since the SQL is compiled.

        Raises:
            Invalid: the SQL cannot be used, or there is nothing to run it on.
            NotFound: there is no such rule or stream.
            Unavailable: this node has no streams.
        """
        jobs = self._jobs()
        comparison = requested(body, self._spec_of, self._check_sql, self._settings)
        return replace(comparison, ranges=jobs.ranges(comparison.request))

    def backtest(self, request: Comparison) -> BacktestView:
        """Begin a back-test; the job.

        Raises:
            Invalid: there is nothing to run it on.
            NotFound: there is no such stream.
            Unavailable: enough run already.
        """
        return self._jobs().start(request)

    def backtests(self) -> Sequence[BacktestView]:
        """The back-tests that are known, newest first."""
        return self._jobs().known()

    def backtest_of(self, id: str) -> BacktestView:
        """A back-test with its result. Raises ``NotFound``."""
        return self._jobs().get(id)

    def cancel_backtest(self, id: str) -> BacktestView:
        """End a back-test. Raises ``NotFound``."""
        return self._jobs().cancel(id)

    def follow_backtests(self, on_change: Callable[[BacktestView], None]) -> None:
        """Call this when a back-test begins, progresses and ends."""
        if self.jobs is not None:
            self.jobs.on_change.connect(on_change)

    def _jobs(self) -> Backtests:
        if self.jobs is None:
            raise Unavailable("this node has no streams to test rules on")
        return self.jobs

    def _check_sql(self, spec: Spec) -> None:
        """Raise ``Invalid`` when a statement cannot be compiled."""
        self._builder.statement(parse_spec(spec))

    # Uses

    def uses(self) -> Uses:
        """Streams and actions that rules write to, sources and rules that they read, schemas and registries that their
        functions name."""
        for saved in self._built():
            sources = (name.partition("/")[2] for name in saved.rule.statement.sources.ingress)
            used = {
                "stream": _streams(saved.spec),
                "action": _sinks(saved.spec),
                "source": sources,
                "rule": saved.rule.statement.sources.rules,
            }
            user = Reference(self.kind, saved.spec.name)
            yield from (
                (user, Reference(kind, name)) for kind, names in used.items() for name in names
            )
            yield from ((user, named) for named in schemas_in(saved.rule.statement.tree))

    def consequences(self, change: Change) -> Iterator[str]:
        """Number of rows made by a rule that is deleted or disabled."""
        kind, name = change.target
        saved = self._objects.find(name) if kind == self.kind else None
        if (
            not isinstance(saved, BuiltRule)
            or not saved.spec.enable
            or (change.after or {}).get("enable", False)
        ):
            return
        did = saved.rule.counts.as_dict()
        if not did["matched"]:
            return
        targets = [
            str(used)
            for user, used in self.uses()
            if user.name == name and used.kind in ("stream", "action")
        ]
        to = f" for {', '.join(targets)}" if targets else ""
        yield f"It made rows of {did['passed']:,} of {counted(did['matched'], 'message')}{to}. It would make no more."

    def effects_of_schema(self, schema: str, schemas: SchemaLookup) -> Sequence[SchemaEffect]:
        """The rules that would be touched if schemas were as ``schemas`` has them."""
        then = TypeChecker(
            replace(self._services, schemas=schemas),
            self._functions,
            self._settings,
            self._statement_of,
        )
        rules = (
            TypedRule(saved.spec.name, saved.rule.statement, tuple(sorted(_streams(saved.spec))))
            for saved in self._built()
        )
        return effects(rules, self._types, then)

    # Asking

    def test(self, body: Mapping[str, Any]) -> tester.RuleOutcome:
        """Run SQL on an event that never happened.

        Gives ``{"outcome": "rows", "rows"}``, ``{"outcome": "no_result"}`` or ``{"outcome": "error", "error"}``.

        Raises:
            Invalid: the SQL does not parse or check, or the event cannot be read.
        """
        return tester.test(
            body,
            self._functions.trial(),
            self._services.node.name,
            self._services.node.clock.now_ns,
        )

    def test_many(self, body: Mapping[str, Any]) -> tester.RuleOutcomes:
        """Run SQL on each of ``body["events"]``. Raises ``Invalid`` as ``test``."""
        functions = self._functions.trial()
        node = self._services.node
        return tester.test_many(body, functions, node.name, node.clock.now_ns)

    def test_cases(self, body: Mapping[str, Any]) -> CasesReport:
        """The test cases of a rule that need not be saved. Raises ``Invalid`` as ``check``."""
        spec = parse_spec({"name": "check", **body})
        return report(self._run_cases(spec, self._builder.statement(spec)))

    def check(self, body: Mapping[str, Any]) -> RuleTypes:
        """Types of a rule that need not be saved, or of mere ``sql``.

        Gives ``columns``, ``warnings``, ``lineage``, ``arrow_schema`` and ``spark_schema``.

        Raises:
            Invalid: with everything that would keep it from being saved.
        """
        spec = parse_spec({"name": "check", **body})
        return self._types.report(self._builder.statement(spec), spec.actions)

    def fields(self, body: Mapping[str, Any]) -> InputFields:
        """Fields that a rule could read from ``body["from"]``: columns of events, and fields of payloads by their
        schemas."""
        return self._types.fields(body["from"])

    def format(self, body: Mapping[str, Any]) -> FormattedSql:
        """SQL in the usual layout.

        Raises:
            Invalid: it does not parse.
        """
        return {"sql": formatted(body["sql"])}

    def lineage(self, name: str) -> RuleLineage:
        """The origins of each column of a rule's rows and of its conditions."""
        inferred = self._types.inferred(self._usable(name).rule.statement)
        return {"rule": name, **inferred.lineage.as_dict()}

    def explain(self, body: Mapping[str, Any]) -> Explanation:
        """Run ``body["sql"]``, or the rule that ``body["name"]`` names, step by step, with its actions.

        ``steps`` lists FROM, each field and condition with the value of every sub-expression, each item of FOREACH,
        and what each action would do; nothing is done.

        Raises:
            Invalid: as ``test``.
            NotFound: there is no such rule.
        """
        return self._explainer.explain(body, self._spec_of)

    def render(self, body: Mapping[str, Any]) -> tester.RenderedTemplate:
        """The text of a template for a row. Raises ``Invalid`` when those are not given."""
        return tester.render(body)

    def code(self, name: str) -> dict[str, str]:
        """The Python source a rule was compiled to."""
        return {"language": "python", "source": self._usable(name).rule.statement.on_message.source}

    def spark_form(self, name: str) -> SparkForm:
        """A rule as Spark SQL."""
        statement = self._usable(name).rule.statement
        node = self._services.node.name
        payload = self._types.payload(statement)
        try:
            form = to_spark(
                statement.tree, statement.sources, self._functions, payload, rule=name, node=node
            )
        except NotInSpark as refusal:
            problem = refusal.problem
            where = f"line {problem.line}, column {problem.column}: " if problem.line else ""
            source = f"-- In Spark the compiled rule runs. Why it is not Spark SQL:\n-- {where}{problem.message}"
            shown = problem_to_wire(problem)
            return {
                "language": "spark-sql",
                "source": source,
                "sql": None,
                "columns": [],
                "problem": shown,
            }
        columns: list[SparkColumn] = [
            {"name": column, "type": kind} for column, kind in form.columns
        ]
        return {
            "language": "spark-sql",
            "source": form.sql,
            "sql": form.sql,
            "columns": columns,
            "problem": None,
        }

    def rule_for_spark(self, name: str) -> dict[str, Any]:
        """Members that the lake needs to run a rule on its own: ``name``, ``sql``, ``node`` and ``columns``."""
        statement = self._usable(name).rule.statement
        columns = [
            {"name": column, "type": column_text(kind)}
            for column, kind in self._types.inferred(statement).columns
        ]
        return {
            "name": name,
            "sql": statement.sql,
            "node": self._services.node.name,
            "columns": columns,
        }

    def rows_of(self, rule: str | None) -> RowsOf:
        """See ``Contributor.rows_of``."""
        if rule is None:
            return rows_of(
                self._builder.statement(parse_spec({"name": "replay", "sql": 'SELECT * FROM "#"'}))
            )
        source_rule = self._usable(rule).rule
        reason = None
        if not source_rule.statement.sources.filters:
            reason = "it reads events, sources or other rules, and no messages"
        elif source_rule.variables is not None or source_rule.may_wait is not None:
            reason = "it calls jq or another process, which a replay does not wait for"
        if reason is not None:
            raise Invalid(
                "the replay cannot be started",
                [Problem(f"rule {rule!r} cannot run: {reason}", "/rule")],
            )
        return rows_of(source_rule.statement)

    def inferred(self, name: str) -> Inferred:
        """Types of a rule's columns, and warnings."""
        return self._types.inferred(self._usable(name).rule.statement)

    def columns_of_stream(self, stream: str) -> Mapping[str, FieldType]:
        """The types of the columns that rules write to a stream."""
        return self._columns(saved for saved in self._built() if stream in _streams(saved.spec))

    def columns_of_sink(self, sink: str) -> Mapping[str, FieldType]:
        """The types of the columns in the rows that a bridge ``<type>:<name>`` is handed."""
        return self._columns(saved for saved in self._built() if sink in _sinks(saved.spec))

    def _columns(self, rules: Iterable[BuiltRule]) -> dict[str, FieldType]:
        columns: dict[str, FieldType] = {}
        for saved in rules:
            for name, kind in self._types.inferred(saved.rule.statement).columns:
                columns[name] = unified(columns[name], kind) if name in columns else kind
        return columns

    def prepare(self, spec: Spec) -> None:
        """Compile what is about to be saved; for a thread. Raises ``Invalid`` as ``create`` would."""
        self._builder.prepare(spec)

    # The path of a message

    def on_topic(self, topic: str) -> Sequence[TopicStage]:
        """The rules that run on messages on a topic; see ``broker.core.contributor``."""
        return tester.on_topic(self._built(), topic)

    def try_on(self, message: Message, drafts: Drafts) -> Trial:
        """Result of the rules for a message."""
        return tester.try_on(
            self._built(),
            message,
            self._services.node.name,
            self._services.node.clock.now_ns() // 1_000_000,
        )

    # Keeping and showing

    def _statement_of(self, name: str) -> Statement | None:
        saved = self._objects.find(name)
        return saved.rule.statement if isinstance(saved, BuiltRule) else None

    def _replace(self, name: str, spec: Spec, *, force: bool, change: str | None = None) -> Spec:
        self._objects.check_changeable(name)
        saved = self._compiled({**spec, "name": spec.get("name", name)})
        before = self._objects.get(name)
        if saved.spec.name != name:
            raise Invalid("a rule keeps its name", [Problem(f"expected {name!r}", "/name")])
        self._check_chains(saved)
        replaced = before if isinstance(before, BuiltRule) else None
        if replaced is None or saved.spec.sql != replaced.spec.sql:
            # one that a schema was changed under can be switched off
            self._types.refuse_mistakes(name, saved.rule.statement)
        self._check_cases(saved, force)
        if replaced is not None and (saved.spec.sql, saved.spec.actions) == (
            replaced.spec.sql,
            replaced.spec.actions,
        ):
            saved.rule.take_over(replaced.rule)
            replaced = None
        return self._save(saved, change, retired=replaced)

    def _compiled(self, spec: Spec) -> BuiltRule:
        return self._builder.make(spec)

    def _save(
        self, saved: BuiltRule, change: str | None = None, retired: BuiltRule | None = None
    ) -> Spec:
        is_new = saved.name not in self._objects
        self._objects.put(saved.spec.name, saved)
        if not is_new:
            self._services.monitoring.metrics.remove(rule=saved.name)
        if retired is not None:
            self._totals.retire(retired.rule.counts)
        self._register(saved)
        self._versions.note(saved.spec.name, _version_of(saved), change)
        self._changed()
        return self._shown(saved)

    def _check_cases(self, saved: BuiltRule, force: bool) -> None:
        if saved.spec.tests and not force:
            refuse_failures(saved.spec.name, self._run_cases(saved.spec, saved.rule.statement))

    def _run_cases(self, spec: RuleSpec, statement: Statement) -> Sequence[CaseResult]:
        node = self._services.node.name
        now_ms = self._services.node.clock.now_ns() // 1_000_000
        return run_cases(
            spec.tests, lambda event: tester.run(statement, event, node, now_ms, spec.name)
        )

    def _metrics(self, name: str, counts: Counts) -> dict[str, Any]:
        """Counters, rates, and how long a run takes: see ``rules.metrics.RuleMetrics``."""
        times = {
            name: counts.timing.quantile_s(share) for name, share in (("p50", 0.5), ("p99", 0.99))
        }
        return {
            **counts.as_dict(),
            **counts.rate.as_dict(),
            "evaluation_s": {**times, "timed": counts.timing.samples},
        }

    def _register(self, saved: BuiltRule) -> None:
        """Show the counters of a rule with the node's metrics."""
        metrics = self._services.monitoring.metrics
        name = saved.name
        counts = saved.rule.counts
        counts.register(metrics)
        metrics.gauge(
            "rule_matched_rate",
            lambda: counts.rate.last,
            "Matches a second, of the last 5 s.",
            rule=name,
        )
        metrics.gauge(
            "rule_evaluation_p99_seconds",
            lambda: counts.timing.quantile_s(0.99) or 0.0,
            "Time within which 99 of 100 runs end, of those that are timed.",
            rule=name,
        )

    def _changed(self) -> None:
        links = self._links()
        self._unusable = {
            saved.name: saved.sentence for saved in self._objects if isinstance(saved, UnusableRule)
        }
        for name in chained(links):
            if problems := chain_problems(name, links):
                self._unusable[name] = "; ".join(map(str, problems))
        running = [saved.rule for saved in self._built() if saved.name not in self._unusable]
        self._engine.use(running, [saved.name for saved in self._objects])
        self._services.messaging.plans.invalidate()

    def _made_or_unusable(self, spec: Spec) -> BuiltRule | UnusableRule:
        try:
            saved = self._compiled(spec)
        except SluiceError as error:
            return UnusableRule(spec["name"], dict(spec), error)
        self._register(saved)
        return saved

    def _built(self) -> Iterator[BuiltRule]:
        """The rules that could be made, in order."""
        return (saved for saved in self._objects if isinstance(saved, BuiltRule))

    def _usable(self, name: str) -> BuiltRule:
        """The rule of that name. Raises ``Conflict`` when it could not be made, and ``NotFound``."""
        saved = self._objects.get(name)
        if isinstance(saved, UnusableRule):
            raise Conflict(f"rule {name!r} cannot be used: {saved.sentence}")
        return saved

    def _links(self) -> dict[str, Link]:
        """Sources of each rule, for the checks of chains."""
        return {
            saved.name: saved.link if isinstance(saved, BuiltRule) else _UNUSABLE
            for saved in self._objects
        }

    def _check_chains(self, saved: BuiltRule) -> None:
        """Raise ``Invalid`` when the rule conflicts with other rules, or breaks one that reads it."""
        links = {**self._links(), saved.name: saved.link}
        problems = chain_problems(saved.name, links)
        for other in () if problems else chained(links):
            if other != saved.name and other not in self._unusable:
                problems += [
                    Problem(f"rule '{other}' would break: {problem.message}", "/sql")
                    for problem in chain_problems(other, links)
                ]
        if problems:
            raise Invalid(f"rule {saved.name!r} cannot be saved", problems, code="rule_chain")

    def _state(self, saved: BuiltRule | UnusableRule) -> str:
        if isinstance(saved, UnusableRule) or saved.name in self._unusable:
            return "failed"
        return "running" if saved.rule.is_enabled else "disabled"

    def _shown(self, saved: BuiltRule | UnusableRule) -> Spec:
        name = saved.name
        stored = _saved_spec(saved)
        version = self._versions.newest(saved.name)
        shown: Spec = {
            **stored,
            "version": version.number,
            "created_at": rfc3339_or_none(self._versions.created_ms(name), MILLISECONDS),
            "updated_at": rfc3339_or_none(version.saved_ms, MILLISECONDS),
        }
        if isinstance(saved, UnusableRule):
            nothing: dict[str, Any] = {
                member: [] for member in ("from", "columns", "warnings", "action_details")
            }
            return {
                **shown,
                "state": "failed",
                "problem": saved.sentence,
                **nothing,
                "metrics": self._metrics(name, Counts(name)),
                "last_error": None,
            }
        rule = saved.rule
        is_running = saved.rule.is_enabled and name not in self._unusable
        return {
            **shown,
            "tests": stored.get("tests", []),
            "state": self._state(saved),
            "problem": self._unusable.get(name),
            "from": [*rule.statement.sources.texts],
            **self._types.shown(rule.statement, saved.spec.actions, is_running=is_running),
            "action_details": [step.view() for step in rule.steps],
            "metrics": self._metrics(name, rule.counts),
            "last_error": None if rule.last_error is None else rule.last_error.view(),
        }


def _saved_spec(saved: BuiltRule | UnusableRule) -> Spec:
    """Members written to the configuration; cases keep the one expectation that they have."""
    if isinstance(saved, UnusableRule):
        return dict(saved.stored)
    tests = [case.model_dump(mode="json", exclude_unset=True) for case in saved.spec.tests]
    spec: Spec = saved.spec.model_dump(mode="json", exclude={"tests"})
    return {**spec, "tests": tests} if tests else spec


def _version_of(saved: BuiltRule | UnusableRule) -> Spec:
    """Members kept of a version: only those that were set, so that a later default is not a change."""
    if isinstance(saved, UnusableRule):
        return dict(saved.stored)
    members = {"name", *saved.spec.model_dump(exclude_defaults=True)}
    return {name: value for name, value in _saved_spec(saved).items() if name in members}


def _streams(spec: RuleSpec) -> set[str]:
    return {
        action.stream for action in all_actions(spec.actions) if isinstance(action, StreamAction)
    }


def _sinks(spec: RuleSpec) -> set[str]:
    return {
        action.bridge for action in all_actions(spec.actions) if isinstance(action, BridgeAction)
    }
