"""Rules as part of the path of a message: which run on a topic, and what they would make of a message."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from broker.core.contributor import Trial
from broker.core.events import message_columns
from broker.core.message import Message
from broker.core.objects import Spec
from broker.core.wire import payload_to_wire, to_wire
from rules import tester
from rules.making import MadeRule

_STOPPING = ("drop", "disconnect")


def on_topic(rules: Iterable[MadeRule], topic: str) -> Sequence[Spec]:
    """The rules that run on messages on a topic, in order, those switched off among them."""
    return [
        {
            "stage": "rule",
            "name": made.spec.name,
            "enabled": made.spec.enable,
            "topics": [one.filter for one in made.rule.statement.sources.filters if one.matches(topic)],
            "does": " ".join(made.rule.statement.sql.split()),
            "actions": [action["type"] for action in made.spec.model_dump(mode="json")["actions"]],
        }
        for made in rules
        if made.rule.statement.sources.matches_topic(topic)
    ]


def try_on(rules: Iterable[MadeRule], message: Message, node: str, now_ms: int) -> Trial:
    """What the rules make of a message, a step for each that runs; actions are told and not done.

    Raises:
        Invalid: jq programs of a rule took too long.
    """
    columns = {**message_columns(message), "client_attrs": dict(message.client.attributes)}
    known = {name: value for name, value in columns.items() if value is not None and name != "payload"}
    event = {**to_wire(known), "payload": payload_to_wire(message.payload)}
    steps: list[Spec] = []
    for made in rules:
        statement = made.rule.statement
        if not made.spec.enable or not statement.sources.matches_topic(message.topic):
            continue
        step = _step(made, tester.run(statement, event, node, now_ms, made.spec.name))
        steps.append(step)
        if step["outcome"] in _STOPPING:
            return Trial(steps, None)
    return Trial(steps, message)


def _step(made: MadeRule, answer: dict[str, Any]) -> Spec:
    actions = [action["type"] for action in made.spec.model_dump(mode="json")["actions"]]
    outcome = answer["outcome"]
    if outcome == "rows" and answer["rows"]:
        outcome = next((action for action in actions if action in _STOPPING), outcome)
    result = {key: value for key, value in answer.items() if key != "outcome"}
    return {"stage": "rule", "name": made.spec.name, "outcome": outcome, **result, "actions": actions}
