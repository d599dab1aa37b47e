"""Lake tables as objects of the configuration: create, change, delete, list.

Runs in the broker, which need not have Spark's packages: modules that read tables are imported on first use.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final

from bridges.spark.broker_side.local import LocalSpark
from bridges.spark.broker_side.states import TableStates, advice_of
from bridges.spark.broker_side.table_spec import (
    LakeTableSpec,
    Places,
    as_shown,
    checked,
    parse_spec,
)
from bridges.spark.broker_side.views import TablesForJob
from bridges.spark.tasks.rule_text import RuleText
from broker.config.places import Place
from broker.config.secret_text import with_references
from broker.core.contributor import Change, Contributor, Uses
from broker.core.errors import Invalid, MissingDependency, NotFound, Problem, SluiceError
from broker.core.feature import Services
from broker.core.kinds import counted
from broker.core.objects import ObjectSection, Reference, Spec
from broker.core.ordered import ObjectVerbs

# Members of a table as it is shown that say how it is doing; ignored when it is sent back.
_SHOWN_ONLY = frozenset(
    {
        "columns",
        "rule_text",
        "is_expected",
        "expected",
        "begins",
        "store",
        "catalog_settings",
        "state",
        "reason",
        "advice",
        "report",
        "replay",
        "lag_records",
        "lag_s",
        "valid_through",
        "rows",
        "dead_letters",
        "last_audit",
    }
)
# The types of columns that may be in the names of tables.
_NAMING: Final = ("string", "enum", "integer", "long", "double", "boolean", "date")


class LakeTableService(ObjectVerbs[LakeTableSpec], Contributor):
    """Lake tables as objects: create, change, delete, list."""

    kind = "lake table"

    def __init__(
        self, services: Services, section: ObjectSection, places: Places, job: LocalSpark
    ) -> None:
        super().__init__(section, lambda spec: spec.model_dump(mode="json"))
        self._services = services
        self.places = places
        self.positions = services.storage.positions
        self.states = TableStates(services, self._objects, places, job)

    def spec(self, name: str) -> LakeTableSpec:
        """The spec of a table. Raises ``NotFound``."""
        return self._objects.get(name)

    def specs(self) -> Iterator[LakeTableSpec]:
        """The specs of all tables."""
        return iter(self._objects)

    def load(self, specs: Sequence[Spec]) -> builtins.list[str]:
        """Take the tables of the configuration; gives a sentence for each that cannot be used.

        The stream and the path are not checked: the job finds them, and a broker starts with its tables even if a disk
        is gone.
        """
        problems = []
        for spec in specs:
            try:
                parsed = checked(spec)
                self._objects.check_free(parsed.name)
            except SluiceError as error:
                problems.append(self._objects.refusal(spec, error))
                continue
            self._objects.adopt(
                parsed.name, parsed.model_copy(update={"path": self.places.path_of(parsed)})
            )
        self._changed()
        return problems

    def replace(self, name: str, spec: Spec) -> Spec:
        """Change a table; its files are those of one stream, format and kind of rows."""
        self._objects.check_changeable(name)
        before = self._objects.get(name)
        parsed = self._compiled({**spec, "name": name})
        if parsed.path == before.path and bool(parsed.rule) != bool(before.rule):
            text = f"the table at {before.path} has rows of {'a rule' if before.rule else 'the stream itself'}"
            raise Invalid(
                f"lake table {name!r} cannot be saved",
                [Problem(f"{text}; give another path with it", "/rule")],
            )
        for member in ("stream", "format", "key", "tables"):
            if parsed.path == before.path and getattr(parsed, member) != getattr(before, member):
                value = getattr(before, member) or "none"
                text = (
                    f"the table at {before.path} has {member} {value!r}; give another path with it"
                )
                raise Invalid(f"lake table {name!r} cannot be saved", [Problem(text, f"/{member}")])
        if (
            parsed.path == before.path
            and parsed.format == "delta"
            and parsed.partition_by != before.partition_by
        ):
            text = (
                f"the Delta table at {before.path} is partitioned by {', '.join(before.partition_by) or 'nothing'}, "
                f"which cannot change; give another path with it"
            )
            raise Invalid(f"lake table {name!r} cannot be saved", [Problem(text, "/partition_by")])
        return self._put(parsed)

    def delete(self, name: str) -> None:
        """Forget the table; its files stay."""
        super().delete(name)
        self.states.forget(name)

    def uses(self) -> Uses:
        """The streams that fill tables, and the rules that tables run."""
        for spec in self._objects:
            user = Reference(self.kind, spec.name)
            yield user, Reference("stream", spec.stream)
            if spec.rule:
                yield user, Reference("rule", spec.rule)

    def consequences(self, change: Change) -> Iterator[str]:
        """Remains of a table that is deleted, and effects of a changed rule on tables that run it."""
        before = change.before or {}
        after = change.after
        if (
            change.target.kind == "rule"
            and after is not None
            and before.get("sql") != after.get("sql")
        ):
            for table in self._objects:
                if table.rule == change.target.name:
                    yield f"Table {table.name!r} keeps its rows as they are; the changed rule makes its new rows."
        spec = self._objects.find(change.target.name) if change.target.kind == self.kind else None
        if spec is None or (
            after is not None and after.get("path") in (None, spec.path, before.get("path"))
        ):
            return
        rows = self.states.size(spec, "rows")
        letters = self.states.size(spec, "dead_letters")
        kept = "All rows" if rows is None else counted(rows, "row")
        kept += f" and {counted(letters, 'dead letter')}" if letters else ""
        yield f"{kept} stay in {spec.path}. New records of stream {spec.stream!r} are no longer written there."

    def unread_of(self, stream: str) -> Mapping[int, int]:
        """First offset by shard that a table of a stream does not have yet, or that a replay must read."""
        tables = [spec for spec in self._objects if spec.stream == stream and spec.holds_stream]
        starts: builtins.list[tuple[int, int]] = []
        for spec in tables:
            waits = self.states.waits(spec)
            if waits is None:  # the job has not found yet where the table begins
                shards = self.positions(stream)["shards"]
                starts += [
                    (int(position["shard"]), int(position["first_offset"])) for position in shards
                ]
            else:
                starts += [(shard, start) for shard, (start, _) in waits.items()]
            if spec.name in self.states.orders:
                starts += [
                    (span["shard"], span["start"])
                    for span in self.states.orders[spec.name].order["ranges"]
                ]
        return {shard: min(start for each, start in starts if each == shard) for shard, _ in starts}

    def _put(self, item: LakeTableSpec) -> Spec:
        super()._put(item)
        start = item.start
        offsets: Mapping[int, int] = {}
        if start is not None and not self._is_found_by_job(start):
            where = partial(self.positions_at, item.stream)
            offsets = lake_module("bridges.spark.driver.batch").starts_of(where, start)
        self.states.note_start(item, offsets)
        return self._shown(item)

    def _is_found_by_job(self, start: Place) -> bool:
        """True for a time to come, and with several cells for any: to ask the others for offsets takes a while."""
        return isinstance(start, datetime) and (
            self._services.node.cells > 1
            or start.timestamp() * 1e9 > self._services.node.clock.now_ns()
        )

    def _compiled(self, spec: Spec) -> LakeTableSpec:
        parsed = parse_spec(spec, self.places, self._services.storage.streams.names(), _SHOWN_ONLY)
        self._check_rule(parsed)
        self._check_key(parsed)
        self._check_layout(parsed)
        self._check_tables(parsed)
        if parsed.start is not None and not self._is_found_by_job(parsed.start):
            lake_module("bridges.spark.driver.batch").starts_of(
                partial(self.positions_at, parsed.stream), parsed.start
            )
        for other in self._objects:
            if other.name != parsed.name and _is_within(parsed, other):
                text = (
                    f"lake table {other.name!r} lies in {other.path} already; choose another path"
                )
                raise Invalid(
                    f"lake table {parsed.name!r} cannot be saved", [Problem(text, "/path")]
                )
        return parsed

    def _check_rule(self, spec: LakeTableSpec) -> None:
        """Refuse a rule that there is not, or that Spark cannot run on this stream."""
        if not spec.rule:
            return
        problems = []
        if self.positions(spec.stream)["kind"] != "topics":
            text = (
                f"stream {spec.stream!r} holds rows of rules; a rule runs on a stream of messages"
            )
            problems.append(
                Problem(
                    text, "/stream", suggestion="make a stream of the topics that the rule reads"
                )
            )
        try:
            self.topics_of_rule(spec.rule)
        except NotFound as error:
            problems.append(Problem(str(error), "/rule"))
        except Invalid as error:
            problems += [Problem(problem.message, "/rule") for problem in error.problems]
        if problems:
            raise Invalid(f"lake table {spec.name!r} cannot be saved", problems)

    def topics_of_rule(self, name: str) -> builtins.list[str]:
        """The topic filters of a rule that Spark can run.

        Raises:
            NotFound: no such rule.
            Invalid: Spark cannot run it.
        """
        rule_run = lake_module("bridges.spark.tasks.rule_run")
        rule = rule_run.RuleRun(
            RuleText(name, self._services.contributors.rule_for_spark(name)["sql"])
        )
        return ["/".join(levels) for levels in rule.filters]

    def _check_key(self, spec: LakeTableSpec) -> None:
        """Refuse a key of columns that the table cannot have, and a condition that does not compile."""
        if not spec.key:
            return
        columns = lake_module("bridges.spark.columns.column")
        fixed = {column.name: column.type for column in columns.PROVENANCE}
        if spec.rule or self.positions(spec.stream)["kind"] == "rows":
            row_columns, _ = columns.columns_of_api(self.job_spec(spec)["columns"])
            types = fixed | {column.name: column.type for column in row_columns}
            unknown: builtins.list[str] = []  # further columns follow from the rows
        else:
            types = fixed | {column.name: column.type for column in columns.RAW}
            unknown = [name for name in spec.key if name not in types]
        problems = [
            Problem(
                f"expected columns of the table ({', '.join(types)}), got {name!r}",
                "/key",
                suggestion="give the table a rule that selects it, as payload.device AS device",
            )
            for name in unknown
        ]
        problems += [
            Problem(f"{name}: expected a column with one value a row, got {types[name]}", "/key")
            for name in spec.key
            if types.get(name, "").startswith(("json", "struct", "array", "map"))
        ]
        if spec.delete_when:
            problem = lake_module("bridges.spark.tasks.condition").condition_problem(
                spec.delete_when
            )
            problems += [problem] if problem is not None else []
        if problems:
            raise Invalid(f"lake table {spec.name!r} cannot be saved", problems)

    def _known_columns(self, spec: LakeTableSpec) -> tuple[dict[str, str], bool]:
        """The columns that a table has from the start with their types, and whether rows may give it more."""
        columns = lake_module("bridges.spark.columns.column")
        is_raw = not spec.rule and self.positions(spec.stream)["kind"] == "topics"
        own = columns.RAW if is_raw else columns.columns_of_api(self.job_spec(spec)["columns"])[0]
        return {column.name: column.type for column in (*columns.PROVENANCE, *own)}, not is_raw

    def _check_tables(self, spec: LakeTableSpec) -> None:
        """Refuse names of tables made of columns that there cannot be, or that have no text for one."""
        if not spec.tables:
            return
        types, has_more = self._known_columns(spec)
        template = lake_module("bridges.spark.columns.template").NameTemplate.parse(spec.tables)
        for name in template.columns:
            kind = types.get(name, "string" if has_more else None)
            if kind is None:
                text = f"expected columns of the table ({', '.join(types)}), got {name!r}"
            elif kind not in _NAMING:
                text = f"{name}: expected a column of type {', '.join(_NAMING)}, got {kind}"
            else:
                continue
            hint = "give the table a rule that selects it, as payload.site AS site"
            raise Invalid(
                f"lake table {spec.name!r} cannot be saved",
                [Problem(text, "/tables", suggestion=hint)],
            )

    def _check_layout(self, spec: LakeTableSpec) -> None:
        """Refuse partitions and an order that the table's format or columns do not have."""
        if not spec.partition_by and not spec.sort_by:
            return
        layout = lake_module("bridges.spark.columns.layout")
        types, _ = self._known_columns(spec)
        try:
            layout.Layout.parse(spec.format, spec.partition_by, spec.sort_by, types)
        except layout.LayoutError as error:
            problem = Problem(str(error), f"/{error.member}")
            raise Invalid(f"lake table {spec.name!r} cannot be saved", [problem]) from None

    def _changed(self) -> None:
        self.states.changed()

    def positions_at(self, stream: str, at: datetime | None) -> Any:
        """Positions of a stream, and with a time its offsets then, as a reader over HTTP would get them."""
        positions = self.positions(
            stream, None if at is None else round(at.timestamp() * 1_000_000)
        )
        return lake_module("pyspark_sluice.client").Positions.parse(
            {"ranges_url": "", "ticket": "", **positions}
        )

    def for_job(self) -> TablesForJob:
        """All tables as the job needs them, which decrypts the secrets of their stores and catalogs."""
        return {
            "tables": [
                {**self._shown(spec), **self.places.settings_of(spec, with_references)}
                for spec in self._objects
            ]
        }

    def job_spec(self, spec: LakeTableSpec, rule_name: str | None = None) -> Spec:
        """A table as the job needs it: with its rule, or why it has none. Another rule than its own must be usable."""
        table = {**spec.model_dump(mode="json"), **self.places.settings_of(spec, with_references)}
        kept = self.states.kept_of(spec)
        table["is_expected"] = bool(kept.get("offsets"))
        table["expected"] = self.states.expected(spec)
        table["begins"] = None if table["is_expected"] else kept.get("begins")
        if rule_name is not None and not spec.rule:
            text = (
                f"no rule runs for table {spec.name!r}: it is filled from the rows of stream {spec.stream!r}; create a "
                f"table with a rule and a stream of messages"
            )
            raise Invalid("the table cannot be replayed with a rule", [Problem(text, "/rule")])
        if not spec.rule:
            return {**table, "columns": self._services.contributors.columns_of_stream(spec.stream)}
        try:
            rule = self._services.contributors.rule_for_spark(rule_name or spec.rule)
        except SluiceError as error:
            if rule_name is not None:
                raise Invalid(
                    "the rule cannot run in Spark", [Problem(str(error), "/rule")]
                ) from error
            return {**table, "columns": [], "rule_text": {"name": spec.rule, "problem": str(error)}}
        columns = [dict(column) for column in rule["columns"]]
        return {
            **table,
            "columns": columns,
            "rule_text": {key: rule[key] for key in ("name", "sql", "node")},
        }

    def _shown(self, spec: LakeTableSpec) -> Spec:
        status = self.states.status(spec)
        doing = {
            key: status[key]
            for key in ("state", "reason", "lag_records", "lag_s", "rows", "dead_letters")
        }
        replaying = self.states.orders.get(spec.name)
        replay = None if replaying is None else replaying.order
        report = self.states.reports.get(spec.name)
        doing["valid_through"] = self.states.valid_through(spec)
        doing["advice"] = advice_of(spec.name, report or {}, spec.partition_by)
        audit = self.states.last_audit(spec.name)
        shown = {**self.job_spec(spec), **self.places.settings_of(spec, as_shown)}
        return {**shown, **doing, "report": report, "replay": replay, "last_audit": audit}


def _is_within(spec: LakeTableSpec, other: LakeTableSpec) -> bool:
    """Return whether two tables are in the same place, or one is in the place of the other's members."""
    pairs = ((spec, other), (other, spec))
    return spec.path == other.path or any(
        a.tables and b.path.startswith(f"{a.path}__tables/") for a, b in pairs
    )


def lake_module(name: str) -> Any:
    """A module that needs Spark's extra.

    Raises:
        MissingDependency: a package is not installed.
    """
    from importlib import import_module

    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise MissingDependency(
            f"reading lake tables needs the package {error.name!r}; install it with pip install 'sluicemq[spark]'"
        ) from error
