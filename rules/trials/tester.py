"""Trying SQL and templates on what was sent, with nothing stored: the same compiler and functions as live rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from broker.core import jsontext
from broker.core.action import Row
from broker.core.contributor import TopicStage, Trial, TrialStep
from broker.core.errors import Invalid, Problem
from broker.core.events import EVENT_TYPES, message_columns
from broker.core.json_values import (
    ProblemEntry,
    from_wire,
    payload_from_wire,
    payload_to_wire,
    problem_to_wire,
)
from broker.core.marks import marked
from broker.core.message import Message
from broker.core.template import Template
from rules.actions.text import json_value
from rules.builder import BuiltRule
from rules.engine import as_strings
from rules.functions.registry import Functions
from rules.jq.blocking import OutOfTime, evaluate
from rules.rule import Statement, compile_statement, plain_text
from rules.spec import is_jq, with_sql
from rules.sql.compiler.columns import Event
from rules.sql.compiler.program import Program, Result, RuleContext
from rules.sql.sources import PUBLISH, Sources
from rules.sql.values import Bits, NoArray, defined, string, text_of


class RuleOutcome(TypedDict):
    """Result of SQL for an event: ``rows``, ``no_result`` where FROM or WHERE does not match, or the ``error``.
    ``no_result`` has a ``reason`` where FOREACH has no array to walk."""

    outcome: Literal["rows", "no_result", "error"]
    rows: NotRequired[list[dict[str, Any]]]
    reason: NotRequired[str]
    error: NotRequired[ProblemEntry]


class RuleOutcomes(TypedDict):
    """Results of SQL for several events; ``matched`` is the number of those with rows."""

    outcomes: list[RuleOutcome]
    matched: int


class RenderedTemplate(TypedDict):
    """The template with its placeholders filled."""

    text: str


_RULE = "test"
# Time that jq programs of a trial may take: less than the API waits for an answer.
JQ_DEADLINE_S = 1.8


def test(body: Any, functions: Functions, node: str, now_ns: Callable[[], int]) -> RuleOutcome:
    """Run ``body["sql"]`` on ``body["event"]``; see ``RuleService.test``."""
    sql, event = sql_and_event(body)
    now_ms = now_ns() // 1_000_000
    statement = compile_statement(
        sql, functions, RuleContext(node, {"rule_id": _RULE}, lambda: now_ms)
    )
    return run(statement, event, node, now_ms)


def test_many(
    body: Any, functions: Functions, node: str, now_ns: Callable[[], int]
) -> RuleOutcomes:
    """Run ``body["sql"]`` on each of ``body["events"]``; see ``RuleService.test_many``."""
    sql, _ = sql_and_event({name: value for name, value in body.items() if name != "events"})
    now_ms = now_ns() // 1_000_000
    statement = compile_statement(
        sql, functions, RuleContext(node, {"rule_id": _RULE}, lambda: now_ms)
    )
    events = (sql_and_event({"sql": sql, "event": event})[1] for event in body["events"])
    outcomes = [run(statement, event, node, now_ms) for event in events]
    return {"outcomes": outcomes, "matched": sum(bool(outcome.get("rows")) for outcome in outcomes)}


def run(
    statement: Statement, event: Mapping[str, Any], node: str, now_ms: int, rule: str = _RULE
) -> RuleOutcome:
    """Result of a statement for an event: the answer of ``test``.

    Raises:
        Invalid: the event cannot be read.
    """
    columns = columns_of(event, node, now_ms, rule)
    if not reads(statement.sources, columns):
        return {"outcome": "no_result"}
    return outcome(statement.on_event, Event(columns))


def render(body: Any) -> RenderedTemplate:
    """``body["template"]`` rendered for ``body["row"]``."""
    template, row = _members(body, "the template cannot be rendered", "template", "row")
    return {"text": Template(template, text_of, json_of=json_value).render(_values(row))}


def sql_and_event(body: Any) -> tuple[str, Mapping[str, Any]]:
    """The SQL and the event of a request. Raises ``Invalid`` with all that is wrong with them."""
    if isinstance(body, Mapping) and is_jq(body):
        body = with_sql({"from": _own_source(body.get("event")), **body})
    return _members(body, "the test cannot be run", "sql", "event")


def _own_source(event: Any) -> list[str]:
    """The source that FROM must name to take an event: the default source of a jq program that is tried."""
    members = event if isinstance(event, Mapping) else {}
    kind = EVENT_TYPES.get(str(members.get("event", PUBLISH)))
    return [str(members.get("topic", "")) if kind is None else kind.topic]


def _members(
    body: Any, what: str, text_name: str, object_name: str
) -> tuple[str, Mapping[str, Any]]:
    """A string and an object of a request, or ``Invalid`` with all that is wrong with them."""
    fields = body if isinstance(body, Mapping) else {}
    text = fields.get(text_name)
    members = fields.get(object_name, {})
    problems = []
    if not isinstance(text, str) or not _is_unicode(text):
        problems.append(Problem("expected a string", f"/{text_name}"))
    if not isinstance(members, Mapping) or not _is_unicode(members):
        problems.append(
            Problem("expected an object whose strings are valid Unicode", f"/{object_name}")
        )
    if problems or not isinstance(text, str) or not isinstance(members, Mapping):
        raise Invalid(what, problems)
    return text, members


def _is_unicode(value: Any) -> bool:
    """True if a value can be written in UTF-8 and is not nested too deep: no lone surrogates inside."""
    try:
        jsontext.decode(jsontext.encode(value))
    except (jsontext.JsonError, RecursionError):
        return False
    return True


def columns_of(
    event: Mapping[str, Any], node: str, now_ms: int, rule: str = _RULE
) -> dict[str, Any]:
    """The columns of an event as it was sent, with those that the broker always adds."""
    other_columns = {name: value for name, value in event.items() if name != "payload"}
    columns: dict[str, Any] = {
        "event": PUBLISH,
        "id": f"{now_ms:032X}",
        "node": node,
        "timestamp": now_ms,
        "metadata": {"rule_id": rule},
        **_values(other_columns),
    }
    if columns["event"] == PUBLISH:
        columns.setdefault("publish_received_at", now_ms)
    if event.get("payload") is not None:
        columns["payload"] = string(payload_from_wire(event["payload"], "/event/payload"))
    return columns


def _values(members: Mapping[str, Any]) -> dict[str, Any]:
    """Columns as rules have them. A name such as ``$base64`` is one here, which makes only values bytes."""
    return {name: as_strings(from_wire(value)) for name, value in members.items()}


def reads(sources: Sources, columns: Mapping[str, Any]) -> bool:
    """True if FROM takes the event."""
    event = columns["event"]
    topic = columns.get("topic")
    if event == PUBLISH:
        return isinstance(topic, str) and sources.matches_topic(topic)
    return isinstance(event, str) and sources.matches_event(event)


def outcome(
    program: Program,
    event: Event,
    keep: Callable[[list[Row]], None] | None = None,
    again: Callable[[], None] = lambda: None,
) -> RuleOutcome:
    """Rows, no result or an error, as JSON; ``keep`` is given the rows as they were made.

    A statement whose jq programs need a worker is evaluated once more for each; ``again`` is called before. Not for the
    event loop, since it waits for the worker.

    Raises:
        Invalid: the jq programs took longer than ``JQ_DEADLINE_S``.
    """
    try:
        result: Result = evaluate(
            lambda: program.run(event), lambda: event.columns, deadline_s=JQ_DEADLINE_S, again=again
        )
        if result is None:
            return {"outcome": "no_result"}
        rows = result if isinstance(result, list) else [result]
        if keep is not None:
            keep(rows)
        if isinstance(result, NoArray):
            return {"outcome": "no_result", "reason": result.reason}
        return {"outcome": "rows", "rows": [marked(shown(row)) for row in rows]}
    except OutOfTime as error:
        raise Invalid(
            "the rule could not be evaluated in time",
            [Problem(str(error), "/sql")],
            code="too_slow",
        ) from None
    except Exception as error:  # noqa: BLE001 (whatever the SQL does to this event is the answer)
        place = program.place_of(error) or (None, None)
        return {
            "outcome": "error",
            "error": problem_to_wire(Problem(plain_text(error), "/sql", *place)),
        }


def shown(value: Any) -> Any:
    """A value with undefined members left out, and bits as their size and value."""
    value = defined(value)
    if isinstance(value, Bits):
        return {"bits": value.size, "value": value.value}
    if isinstance(value, dict):
        return {key: shown(item) for key, item in value.items()}
    return [shown(item) for item in value] if isinstance(value, list) else value


# Rules as part of the path of a message: which run on a topic, and what they would make of a message.


_STOPPING = ("drop", "disconnect")


def on_topic(rules: Iterable[BuiltRule], topic: str) -> Sequence[TopicStage]:
    """The rules that run on messages on a topic, in order, those switched off among them."""
    return [
        {
            "stage": "rule",
            "name": built.spec.name,
            "enabled": built.spec.enable,
            "topics": [
                topic_filter.filter
                for topic_filter in built.rule.statement.sources.filters
                if topic_filter.matches(topic)
            ],
            "does": " ".join(built.rule.statement.sql.split()),
            "actions": [action["type"] for action in built.spec.model_dump(mode="json")["actions"]],
        }
        for built in rules
        if built.rule.statement.sources.matches_topic(topic)
    ]


def try_on(rules: Iterable[BuiltRule], message: Message, node: str, now_ms: int) -> Trial:
    """Result of the rules for a message, a step for each that runs; actions are listed and not run.

    Raises:
        Invalid: jq programs of a rule took too long.
    """
    columns = {**message_columns(message), "client_attrs": dict(message.client.attributes)}
    event_columns = {
        name: value for name, value in columns.items() if value is not None and name != "payload"
    }
    event = {**marked(event_columns), "payload": payload_to_wire(message.payload)}
    steps: list[TrialStep] = []
    for built in rules:
        statement = built.rule.statement
        if not built.spec.enable or not statement.sources.matches_topic(message.topic):
            continue
        step = _step(built, run(statement, event, node, now_ms, built.spec.name))
        steps.append(step)
        if step["outcome"] in _STOPPING:
            return Trial(steps, None)
    return Trial(steps, message)


def _step(built: BuiltRule, answer: RuleOutcome) -> TrialStep:
    actions = [action["type"] for action in built.spec.model_dump(mode="json")["actions"]]
    outcome: str = answer["outcome"]
    step: TrialStep = {"stage": "rule", "name": built.spec.name, "outcome": outcome}
    if outcome == "rows":
        step["rows"] = answer["rows"]
        if answer["rows"]:
            step["outcome"] = next((action for action in actions if action in _STOPPING), outcome)
    elif outcome == "error":
        step["error"] = answer["error"]
    step["actions"] = actions
    return step
