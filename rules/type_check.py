"""The type checker as rules use it: the current types of a statement's payloads, and the handling of reports.

Nothing is kept that schemas, validations or transformations could make wrong: a result is used again only while the
types it was made from are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlglot import exp
from typing_extensions import TypedDict

from broker.core.errors import Invalid, NotFound, Problem
from broker.core.feature import Services
from broker.core.json_values import ProblemEntry, problem_to_wire
from broker.core.lazy_module import LazyModule
from broker.core.objects import Reference
from broker.core.schema import UNKNOWN, FieldType, SchemaEffect
from rules.actions.checks import missing_bridges, unset_placeholders
from rules.functions.registry import Functions
from rules.rule import Statement
from rules.settings import RulesSettings
from rules.sql.syntax.printer import name_text
from rules.sql.type_checker.inference import Inferred, infer
from rules.sql.type_checker.inputs import Input, columns_of, inputs_of, is_open, payload_of
from rules.sql.type_checker.lineage import RowLineage

if TYPE_CHECKING:
    from rules.sql.type_checker import arrow_schema
else:
    arrow_schema = LazyModule("rules.sql.type_checker.arrow_schema")

_DEEPEST = 8
# Maximum fields listed of a rule's sources, and their maximum depth.
_MOST_FIELDS = 1000
# Statements whose types are kept.
_MOST_KNOWN = 4096


class RuleColumn(TypedDict):
    """A column of a rule's rows; ``spark_type`` says what arrays and maps hold."""

    name: str
    type: str
    spark_type: str


class ArrowField(TypedDict):
    """A column in the Arrow schema of a rule's rows."""

    name: str
    type: str
    nullable: bool


class InputField(TypedDict):
    """A column of an event, or a field inside it: ``payload.temp``, and ``payload.tags[1].id`` for the items of
    an array."""

    path: str
    type: str
    nullable: bool


class InputFields(TypedDict):
    """Fields that a rule can read. ``is_open`` where there may be further columns."""

    fields: list[InputField]
    is_open: bool


class RuleTypes(TypedDict):
    """The rows of a rule: types of the columns, what is suspicious in it, and what each column is
    computed from; the schema of the rows for Arrow, and as Spark's DDL."""

    columns: list[RuleColumn]
    warnings: list[ProblemEntry]
    lineage: RowLineage
    arrow_schema: list[ArrowField]
    spark_schema: str


@dataclass(frozen=True, slots=True)
class Checked:
    """A statement by the schemas of this moment: ``errors`` keep it from being saved, ``warnings`` do not."""

    inferred: Inferred
    errors: tuple[Problem, ...]
    warnings: tuple[Problem, ...]

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Errors and warnings in the order of the SQL; those of actions last."""
        reports = (*self.errors, *self.warnings)
        return tuple(
            sorted(
                reports,
                key=lambda problem: (problem.line is None, problem.line or 0, problem.column or 0),
            )
        )


class TypeChecker:
    """Types of statements, with the schemas of a node and the setting ``rule_engine.type_check``."""

    def __init__(
        self,
        services: Services,
        functions: Functions,
        settings: RulesSettings,
        statement_of: Callable[[str], Statement | None] = lambda _: None,
    ) -> None:
        """``statement_of`` finds the rules that others read."""
        self._services = services
        self._functions = functions
        self._settings = settings
        self._statement_of = statement_of
        self._known: dict[str, tuple[Sequence[Input], Inferred]] = {}

    def check(self, statement: Statement, actions: Sequence[Any] = ()) -> Checked:
        """Types and problems of a statement and of the templates of its actions."""
        inputs = self._inputs(statement)
        inferred = self._inferred(statement, inputs)
        level = self._settings.type_check
        mistakes = tuple(report.problem for report in inferred.reports if report.is_mistake)
        warnings = tuple(report.problem for report in inferred.reports if not report.is_mistake)
        templates = (
            *unset_placeholders(actions, inferred, payload_of(inputs)),
            *missing_bridges(actions, self._services.endpoints.sinks),
        )
        if level == "error":
            return Checked(inferred, mistakes, (*warnings, *templates))
        return Checked(
            inferred, (), (*(mistakes if level == "warning" else ()), *warnings, *templates)
        )

    def refuse_mistakes(self, name: str, statement: Statement) -> None:
        """Raise ``Invalid`` with every certain mistake, where the setting says that such a rule is not saved."""
        errors = self.check(statement).errors
        if errors:
            raise Invalid(f"rule {name!r} cannot be saved", errors, code="type_check")

    def inferred(self, statement: Statement) -> Inferred:
        """Types, lineage and reports of a statement by the schemas of this moment."""
        return self._inferred(statement, self._inputs(statement))

    def fields(self, sources: Sequence[str]) -> InputFields:
        """Fields that a rule on these sources could read, by the current schemas."""
        inputs = inputs_of(
            sources, self._services.schemas.payload_type, partial(self._row_type, frozenset())
        )
        columns = {**columns_of(inputs)}
        if "payload" in columns and (payload := payload_of(inputs)).name != "unknown":
            columns["payload"] = payload
        fields = [
            field
            for name, kind in columns.items()
            for field in _fields(name_text(name), kind, _DEEPEST)
        ]
        return {"fields": fields[:_MOST_FIELDS], "is_open": is_open(inputs)}

    def payload(self, statement: Statement) -> FieldType:
        """The type of the payloads that a statement reads."""
        return payload_of(self._inputs(statement))

    def shown(
        self, statement: Statement, actions: Sequence[Any] = (), *, is_running: bool = True
    ) -> dict[str, Any]:
        """The members of a rule as it is shown that depend on types.

        After a schema was changed under a rule, ``warnings`` holds what would be refused if the rule were saved now. It
        keeps running; its state is ``mistyped`` then, and ``problem`` has the reason.
        """
        checked = self.check(statement, actions)
        members: dict[str, Any] = {
            "columns": columns_dict(checked.inferred),
            "warnings": [problem_to_wire(problem) for problem in checked.problems],
        }
        if is_running and checked.errors:
            members |= {"state": "mistyped", "problem": str(checked.errors[0])}
        return members

    def report(self, statement: Statement, actions: Sequence[Any] = ()) -> RuleTypes:
        """All that is known of a statement that need not be saved.

        Raises:
            Invalid: with every certain mistake.
        """
        checked = self.check(statement, actions)
        if checked.errors:
            raise Invalid("the SQL cannot be used", checked.errors, code="type_check")
        inferred = checked.inferred
        return {
            "columns": columns_dict(inferred),
            "warnings": [problem_to_wire(problem) for problem in checked.warnings],
            "lineage": inferred.lineage.as_dict(),
            "arrow_schema": [
                {"name": field.name, "type": str(field.type), "nullable": True}
                for field in arrow_schema.arrow_schema(inferred.columns)
            ],
            "spark_schema": arrow_schema.spark_schema(inferred.columns),
        }

    def _inputs(
        self, statement: Statement, within: frozenset[str] = frozenset()
    ) -> Sequence[Input]:
        """Sources of the statement; ``within`` are the rules it is checked for, which must not read each other."""
        row_type = partial(self._row_type, within)
        return inputs_of(statement.sources.texts, self._services.schemas.payload_type, row_type)

    def _row_type(self, within: frozenset[str], name: str) -> Mapping[str, FieldType] | None:
        statement = None if name in within else self._statement_of(name)
        if statement is None:
            return None
        inferred = self._inferred(statement, self._inputs(statement, within | {name}))
        return None if inferred.has_star else dict(inferred.columns)

    def _inferred(self, statement: Statement, inputs: Sequence[Input]) -> Inferred:
        before = self._known.get(statement.sql)
        if before is not None and before[0] == inputs and not _names_schemas(statement.tree):
            return before[1]
        inferred = infer(statement.tree, self._functions, inputs, self._schema_type)
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[statement.sql] = (inputs, inferred)
        return inferred

    def _schema_type(self, name: str, message_type: str | None) -> FieldType:
        try:
            serde: Any = self._services.schemas.serde(name)
        except NotFound:
            return UNKNOWN
        kind: FieldType = (
            serde.field_type(message_type) if hasattr(serde, "field_type") else UNKNOWN
        )
        return kind


def _fields(path: str, kind: FieldType, levels: int) -> Iterator[InputField]:
    yield {"path": path, "type": kind.name, "nullable": kind.nullable}
    inner = kind.item if kind.name == "array" and kind.item is not None else kind
    begin = path if inner is kind else f"{path}[1]"
    for name, field in inner.fields.items() if levels else ():
        yield from _fields(f"{begin}.{name_text(name)}", field, levels - 1)


def columns_dict(inferred: Inferred) -> list[RuleColumn]:
    """Name and type of each column."""
    return [
        {"name": name, "type": kind.name, "spark_type": arrow_schema.spark_type(kind)}
        for name, kind in inferred.columns
    ]


def _names_schemas(tree: exp.Select) -> bool:
    """True if the types depend on more than the inputs."""
    return any(call.name == "schema_decode" for call in tree.find_all(exp.Anonymous))


# Effects of other schemas on rules: their SQL typed again, compared with the current types.


@dataclass(frozen=True, slots=True)
class TypedRule:
    """A rule as far as it matters here; ``streams`` are those its rows go to."""

    name: str
    statement: Statement
    streams: tuple[str, ...]


def effects(rules: Iterable[TypedRule], now: TypeChecker, then: TypeChecker) -> list[SchemaEffect]:
    """The rules that would be touched. One breaks when it makes mistakes it did not make, or a column changes type."""
    schema_effects = []
    for rule in rules:
        before = now.inferred(rule.statement)
        after = then.inferred(rule.statement)
        mistakes = _mistakes(after) - _mistakes(before)
        columns = _changed_columns(dict(before.columns), dict(after.columns))
        reasons = [*sorted(mistakes), *columns]
        if reasons:
            breaks = bool(mistakes) or any(columns.values())
            schema_effects.append(
                SchemaEffect(
                    Reference("rule", rule.name),
                    breaks,
                    "; ".join(reasons),
                    rule.streams if columns else (),
                )
            )
    return schema_effects


def _mistakes(inferred: Inferred) -> set[str]:
    return {str(report.problem) for report in inferred.reports if report.is_mistake}


def _changed_columns(
    before: Mapping[str, FieldType], after: Mapping[str, FieldType]
) -> dict[str, bool]:
    """Columns of another type, in words, and whether that breaks their readers."""
    changed = {}
    for name in dict.fromkeys((*before, *after)):
        old = before.get(name)
        new = after.get(name)
        if old is None or new is None:
            change = f"column {name} is new" if old is None else f"column {name} is gone"
            changed[change] = new is None
        elif old.name != new.name:
            changed[f"column {name} was {old.name} and is {new.name}"] = not _is_widened(old, new)
    return changed


def _is_widened(old: FieldType, new: FieldType) -> bool:
    return old.name in ("unknown", "null") or (old.name, new.name) == ("long", "double")
