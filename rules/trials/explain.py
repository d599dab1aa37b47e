"""Explanation of a rule on one event, step by step: the compiled rule itself reports each value (``compiler.Trace``).

Steps come in the order of evaluation: FROM, source by source; each item of SELECT or FOREACH; each condition of WHERE;
for each item of the array INCASE, then DO; each action on each row, rehearsed. A sub-expression that is not there was
not evaluated: AND, OR and CASE stop as soon as they can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NotRequired, cast

from sqlglot import exp
from typing_extensions import TypedDict

from broker.core import jsontext
from broker.core.action import CONNECTED, MISSING, Row, Settlement, Sinks
from broker.core.errors import Invalid, Problem
from broker.core.feature import Services
from broker.core.json_values import ProblemEntry, WireMessage, message_to_wire, payload_to_wire
from broker.core.marks import marked
from broker.core.message import Message
from broker.core.objects import Spec
from broker.core.stage import Outcome, Refusal
from broker.core.stream import Append, StreamAppender, StreamRecord
from broker.observe.metrics import Metrics
from rules.actions.action import LastError, Step
from rules.builder import RuleBuilder
from rules.engine import event_message
from rules.functions.registry import Functions
from rules.rule import compile_statement
from rules.settings import RulesSettings
from rules.sql.compiler.columns import Event
from rules.sql.compiler.compile import compile_for_events
from rules.sql.compiler.program import RuleContext
from rules.sql.sources import sources
from rules.sql.syntax.parser import parse
from rules.sql.syntax.printer import text_of_tree
from rules.sql.syntax.tree import place_of, sources_of
from rules.sql.values import UNDEFINED, json_text
from rules.trials import tester

# Maximum values in an answer; a FOREACH over a long array has more.
MAX_VALUES: Final = 20_000
# Maximum length of a value as JSON; longer ones are cut.
MAX_VALUE_BYTES: Final = 4096
_CONDITIONS: Final = ("WHERE", "INCASE")
# Members of a step that came to its end.
_ENDS: Final = ("type", "value", "is_cut", "holds")


class ExplainedValue(TypedDict):
    """A sub-expression with its place in the SQL, its value, and the values of its parts; see ``ExplainStep``."""

    text: str
    line: int
    column: int
    type: str
    value: NotRequired[Any]
    is_cut: NotRequired[bool]
    expressions: NotRequired[list[ExplainedValue]]


class AppendEffect(TypedDict):
    """A row that the action would append to a stream, under a topic."""

    stream: str
    topic: str | None
    row: Any


class SendEffect(TypedDict):
    """A row that the action would send to a bridge."""

    bridge: str
    row: Any


class DropEffect(TypedDict):
    """The message would be refused for a reason; with ``disconnect`` its client would be disconnected."""

    reason: str
    disconnect: bool


class ActionEffect(TypedDict):
    """Effect of an action; one of the members. ``direct_dispatch`` accompanies ``publish``: subscribers alone would
    get the message."""

    log: NotRequired[Any]
    publish: NotRequired[WireMessage]
    direct_dispatch: NotRequired[bool]
    append: NotRequired[AppendEffect]
    send: NotRequired[SendEffect]
    drop: NotRequired[DropEffect]


class ExplainStep(TypedDict):
    """A step: a source of FROM, an expression of SELECT or FOREACH, a condition, an ``ITEM`` of FOREACH, or an
    ``ACTION``.

    ``text`` is its SQL, from ``line`` and ``column`` on. ``holds`` is whether a source or a condition matches.
    ``value`` is what an expression gives, left out where it is undefined, and the beginning of its JSON where
    ``is_cut``.
    ``item`` is the number of the item of FOREACH. Of an action: the number of the ``row`` it got, its position
    (``action``) in the rule, its type and ``name``, its ``effects``, or why its row would be ``discarded``.
    """

    clause: str
    item: NotRequired[int]
    line: NotRequired[int]
    column: NotRequired[int]
    text: NotRequired[str]
    holds: NotRequired[bool]
    type: NotRequired[str]
    value: NotRequired[Any]
    is_cut: NotRequired[bool]
    expressions: NotRequired[list[ExplainedValue]]
    error: NotRequired[ProblemEntry]
    row: NotRequired[int]
    action: NotRequired[int]
    name: NotRequired[str]
    effects: NotRequired[list[ActionEffect]]
    discarded: NotRequired[str]


class Explanation(tester.RuleOutcome):
    """Result of SQL for an event, step by step; ``is_cut`` where there are more values than are shown."""

    steps: list[ExplainStep]
    is_cut: NotRequired[Literal[True]]


@dataclass(slots=True)
class _Trace:
    """The values that the compiled rule reports, cut after ``MAX_VALUES``."""

    values: list[tuple[str, exp.Expr, Any]] = field(default_factory=list)
    is_cut: bool = False

    def __call__(self, what: str, node: exp.Expr, value: Any) -> None:
        if len(self.values) < MAX_VALUES:
            self.values.append((what, node, value))
        else:
            self.is_cut = True

    def forget(self) -> None:
        """Restart: the statement is evaluated once more."""
        self.values.clear()


@dataclass(slots=True)
class DryRun:
    """The actions of a rule, made to be rehearsed, and where they note what they would do."""

    steps: Sequence[Step] = ()
    effects: Effects = field(default_factory=list)

    @classmethod
    def of(
        cls, spec: Spec, services: Services, functions: Functions, settings: RulesSettings
    ) -> DryRun:
        """Explain a rule, saved or not."""
        effects: Effects = []
        steps = (
            RuleBuilder(dry_run_services(services, effects), functions, settings)
            .make(spec)
            .rule.steps
        )
        for step in steps:
            for action in (step, *step.fallbacks):
                action.on_failure = _unlogged
        return cls(steps, effects)


def explain(
    tree: exp.Select,
    functions: Functions,
    context: RuleContext,
    columns: dict[str, Any],
    rehearsal: DryRun | None = None,
) -> Explanation:
    """The answer of the test API with ``steps``.

    Raises:
        Invalid: the SQL cannot be compiled.
    """
    steps: list[Any] = list(_from(tree, columns))
    if not any(step["holds"] for step in steps):
        return {"outcome": "no_result", "steps": steps}
    trace = _Trace()
    rows: list[dict[str, Any]] = []  # as the rule made them, before they are written as JSON
    program = compile_for_events(tree, functions, context, trace)
    outcome = tester.outcome(program, Event(columns), rows.extend, trace.forget)
    steps += _steps(trace.values)
    if outcome["outcome"] == "error":
        steps[-1] = _failed(steps[-1], outcome["error"])
    steps += _dry_run(rehearsal or DryRun(), rows, _message_of(columns))
    explained = {**outcome, "steps": steps, **({"is_cut": True} if trace.is_cut else {})}
    return cast(Explanation, explained)


class Explainer:
    """Answers ``rules:explain`` for one node."""

    def __init__(self, services: Services, functions: Functions, settings: RulesSettings) -> None:
        self._services = services
        self._functions = functions
        self._settings = settings

    def explain(self, body: Any, spec_of: Callable[[str], Spec]) -> Explanation:
        """See ``RuleService.explain``; ``spec_of`` gives a saved rule."""
        name = body.get("name") if isinstance(body, Mapping) else None
        if name is None:
            sql, event = tester.sql_and_event(body)
            unsaved = {"name": "test", "sql": sql, "actions": body.get("actions", [])}
            return self._explain(
                sql, event, "test", self._rehearsal(unsaved) if unsaved["actions"] else DryRun()
            )
        if not isinstance(name, str) or "sql" in body:
            raise Invalid(
                "this cannot be explained",
                [Problem("give the name of a rule, or SQL, not both", "/name")],
            )
        spec = spec_of(name)
        _, event = tester.sql_and_event({**body, "sql": spec["sql"]})
        return self._explain(spec["sql"], event, name, self._rehearsal(spec))

    def _rehearsal(self, spec: Spec) -> DryRun:
        return DryRun.of(spec, self._services, self._functions, self._settings)

    def _explain(
        self, sql: str, event: Mapping[str, Any], name: str, rehearsal: DryRun
    ) -> Explanation:
        node = self._services.node.name
        now_ms = self._services.node.clock.now_ns() // 1_000_000
        functions = self._functions.trial()
        context = RuleContext(node, {"rule_id": name}, lambda: now_ms)
        # reports every problem, which a trace alone would not
        compile_statement(sql, functions, context)
        columns = tester.columns_of(event, node, now_ms, name)
        return explain(parse(sql), functions, context, columns, rehearsal)


def _from(tree: exp.Select, columns: Mapping[str, Any]) -> Iterator[ExplainStep]:
    """A step for each source, each alone compared with the event."""
    for table in sources_of(tree):
        select = exp.Select(expressions=[exp.Star()], from_=exp.From(this=table.copy()), joins=[])
        line, column = place_of(table)
        holds = tester.reads(sources(select), columns)
        yield {"clause": "FROM", "line": line, "column": column, "text": table.name, "holds": holds}


def _steps(values: Sequence[tuple[str, exp.Expr, Any]]) -> list[dict[str, Any]]:
    """The flat list as steps, each with the tree of its sub-expressions."""
    steps: list[dict[str, Any]] = []
    waiting: list[tuple[exp.Expr, dict[str, Any]]] = []
    item = 0
    for label, node, value in values:
        if label == "value":
            if not isinstance(node, (exp.Literal, exp.Boolean)):
                _add(waiting, node, value)
            continue
        _finish(steps, waiting)
        waiting = []
        if label == "ITEM":
            item += 1
            steps.append({"clause": label, "item": item, **_shown(value)})
        else:
            inside = {"item": item} if label in ("INCASE", "DO") else {}
            steps.append(
                {"clause": label, **inside, **_place(node), "text": _text(node), "expressions": []}
            )
    _finish(steps, waiting)
    return steps


def _add(waiting: list[tuple[exp.Expr, dict[str, Any]]], node: exp.Expr, value: Any) -> None:
    """Add a value; the values before it that are inside it become its parts."""
    parts = []
    while waiting and _is_inside(waiting[-1][0], node):
        parts.append(waiting.pop()[1])
    same = parts and parts[0]["text"] == _text(node)
    shown = {"text": _text(node), **_place(node), **_shown(value)}
    inner = parts[0].get("expressions", []) if same else list(reversed(parts))
    waiting.append((node, {**shown, "expressions": inner} if inner else shown))


def _is_inside(node: exp.Expr, outer: exp.Expr) -> bool:
    step: exp.Expr | None = node
    while step is not None:
        if step is outer:
            return True
        step = step.parent
    return False


def _finish(
    steps: list[dict[str, Any]], waiting: Sequence[tuple[exp.Expr, dict[str, Any]]]
) -> None:
    """Complete the last step: its value, or whether its condition holds."""
    if not waiting or not steps:
        return
    step, (_, last) = steps[-1], waiting[-1]
    step["expressions"] = [shown for _, shown in waiting]
    if step["clause"] in _CONDITIONS:
        step["holds"] = last.get("value") is True
    else:
        step |= {name: last[name] for name in ("type", "value", "is_cut") if name in last}


def _failed(step: Mapping[str, Any], error: Mapping[str, Any]) -> dict[str, Any]:
    """A step that failed. The last value is that of one of its parts, which hold it."""
    return {name: value for name, value in step.items() if name not in _ENDS} | {"error": error}


def _place(node: exp.Expr) -> dict[str, int]:
    line, column = place_of(node)
    return {"line": line, "column": column}


def _text(node: exp.Expr) -> str:
    return text_of_tree(node)


def _shown(value: Any) -> dict[str, Any]:
    """A value as JSON with its type; an undefined one has a type only, a long one its beginning."""
    kind = _type(value)
    if kind == "undefined":
        return {"type": kind}
    shown = marked(tester.shown(value))
    text = jsontext.encode(shown).decode()
    if len(text) > MAX_VALUE_BYTES:
        return {"type": kind, "value": text[:MAX_VALUE_BYTES], "is_cut": True}
    return {"type": kind, "value": shown}


def _type(value: Any) -> str:
    if value is UNDEFINED:
        return "undefined"
    names = {
        type(None): "null",
        bool: "boolean",
        int: "integer",
        float: "float",
        str: "string",
        bytes: "bytes",
    }
    names |= {list: "array", dict: "map"}
    return names.get(type(value), type(value).__name__.lower())


def _message_of(columns: Mapping[str, Any]) -> Message:
    """The message that an event's columns describe, as actions take it."""
    timestamp_ms = columns.get("timestamp")
    received_ns = timestamp_ms * 1_000_000 if isinstance(timestamp_ms, int) else 0
    return event_message(str(columns["event"]), columns, received_ns)


def _unlogged(step: Step, error: Exception) -> LastError:
    """In place of the rule's own: a rehearsal that fails is an answer, no event of the node."""
    return LastError(str(error) or type(error).__name__, 0)


def _dry_run(
    actions: DryRun, rows: Sequence[dict[str, Any]], message: Message
) -> Iterator[ExplainStep]:
    """A step for each action on each row, with its effect, or the reason why it would fail."""
    for number, row in enumerate(rows, 1):
        for position, step in enumerate(actions.steps):
            shown: ExplainStep = {
                "clause": "ACTION",
                "row": number,
                "action": position,
                "type": step.kind,
            }
            if step.target:
                shown["name"] = step.target
            if step.kind == "console":
                yield {**shown, "effects": [{"log": marked(tester.shown(row))}]}
                continue
            step.last_error = None
            actions.effects.clear()
            refusal = step.run(row, message)
            shown["effects"] = list(actions.effects) + (
                [refused(refusal)] if refusal is not None else []
            )
            if step.last_error is not None:
                shown["error"] = {"message": step.last_error.text}
            elif not shown["effects"]:
                shown["discarded"] = f"{step.kind} {step.target} is {step.state()}"
            yield shown


# Actions rehearsed: the real ones, bound to recorders in place of publisher, streams and bridges.


Effects = list[ActionEffect]


def dry_run_services(services: Services, effects: Effects) -> Services:
    """Services with which actions are made that only note their effects in ``effects``."""
    return replace(
        services,
        messaging=replace(services.messaging, publisher=_Publisher(effects)),
        storage=replace(services.storage, streams=_Streams(services.storage.streams, effects)),
        endpoints=replace(services.endpoints, sinks=_sinks(services.endpoints.sinks, effects)),
        monitoring=replace(services.monitoring, metrics=Metrics()),
    )


class _Publisher:
    def __init__(self, effects: Effects) -> None:
        self._effects = effects

    def publish(self, message: Message) -> Outcome:
        self._effects.append({"publish": message_to_wire(message)})
        return Outcome(0)

    def dispatch(self, message: Message) -> Outcome:
        self._effects.append({"publish": message_to_wire(message), "direct_dispatch": True})
        return Outcome(0)

    async def decided(self, topic: str) -> Outcome:
        """Nothing waits here."""
        return Outcome(0)


class _Streams:
    def __init__(self, streams: StreamAppender, effects: Effects) -> None:
        self._streams = streams
        self._effects = effects

    def appender(self, stream: str) -> Append:
        self._streams.appender(stream)  # it must be there

        def append(record: StreamRecord) -> None:
            self._effects.append(
                {"append": {"stream": stream, "topic": record.topic, "row": _row(record.payload)}}
            )

        return append

    def names(self) -> Sequence[str]:
        return self._streams.names()

    def trace(self, stream: str, message: Message) -> None:
        """Nothing is stored."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._streams, name)


class _Sink:
    state = CONNECTED
    has_room = True

    def __init__(self, name: str, effects: Effects) -> None:
        self.name = name
        self._effects = effects

    def write(self, row: Row, message: Message, settle: Settlement) -> None:
        self._effects.append(
            {"send": {"bridge": self.name, "row": jsontext.decode(json_text(row))}}
        )
        settle.succeeded(1)


def _sinks(real: Sinks, effects: Effects) -> Sinks:
    """Sinks that find a recorder for each name; a bridge that is not connected is only reported."""
    sinks = Sinks()
    sinks.find = lambda name: None if real.state_of(name) == MISSING else _Sink(name, effects)
    return sinks


def refused(refusal: Refusal) -> ActionEffect:
    """Effect of the action ``drop`` or ``disconnect``."""
    return {"drop": {"reason": refusal.reason, "disconnect": refusal.disconnect}}


def _row(payload: bytes) -> Any:
    try:
        return jsontext.decode(payload)
    except jsontext.JsonError:
        return payload_to_wire(payload)
