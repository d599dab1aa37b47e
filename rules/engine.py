"""Which rules run on which topics and events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from broker.core.client import Client
from broker.core.events import EVENT_TYPES, Events
from broker.core.message import Message
from rules.rule import Rule
from rules.sql.columns import Occurrence
from rules.sql.values import string

_EVENT_QOS = (0, 1, 2)


class RuleEngine:
    """The rules of a node, by name. Used on the event loop."""

    def __init__(self, node: str, events: Events, now_ns: Callable[[], int], *, ignores_sys_messages: bool) -> None:
        self._node = node
        self._events = events
        self._now_ns = now_ns
        self._ignores_sys_messages = ignores_sys_messages
        self._rules: list[Rule] = []
        self._by_event: dict[str, list[Rule]] = {}
        events.listen(self._on_event)

    def use(self, rules: Mapping[str, Rule]) -> None:
        """Replace all rules. The caller invalidates the topic plans."""
        self._rules = [rule for rule in rules.values() if rule.is_enabled]
        self._by_event = {}
        for rule in self._rules:
            for name in rule.statement.sources.events:
                self._by_event.setdefault(name, []).append(rule)
        self._events.want(frozenset(self._by_event))

    def calls_for(self, topic: str) -> list[Callable[[Message], None]]:
        """What to call for a message on this topic, a callable per rule that reads it."""
        if self._ignores_sys_messages and topic.startswith("$SYS/"):
            return []
        return [rule.message_call() for rule in self._rules if rule.statement.sources.matches_topic(topic)]

    def _on_event(self, name: str, columns: dict[str, Any]) -> None:
        rules = self._by_event.get(name)
        if not rules:
            return
        now_ns = self._now_ns()
        message = event_message(name, columns, now_ns)
        for rule in rules:
            common = {
                "event": name,
                "node": self._node,
                "timestamp": now_ns // 1_000_000,
                "metadata": {"rule_id": rule.name},
            }
            rule.run_on_event(Occurrence({**as_values(columns), **common}), message)


def as_values(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Columns with bytes as strings, at any depth, and absent ones left out."""
    return {name: as_strings(value) for name, value in columns.items() if value is not None}


def as_strings(value: Any) -> Any:
    """The value with bytes as strings wherever they are UTF-8."""
    if isinstance(value, bytes):
        return string(value)
    if isinstance(value, Mapping):
        return {key: as_strings(item) for key, item in value.items()}
    return [as_strings(item) for item in value] if isinstance(value, (list, tuple)) else value


def event_message(name: str, columns: Mapping[str, Any], now_ns: int) -> Message:
    """A message that stands for an event towards actions: its topic is the event's own or its event topic."""
    topic, qos, payload = columns.get("topic"), columns.get("qos"), columns.get("payload")
    client_id, username = columns.get("clientid"), columns.get("username")
    event = EVENT_TYPES.get(name)
    return Message(
        topic=topic if isinstance(topic, str) and topic else event.topic if event else name,
        payload=payload.encode() if isinstance(payload, str) else payload if isinstance(payload, bytes) else b"",
        qos=qos if qos in _EVENT_QOS else 0,
        retain=False,
        client=Client(client_id if isinstance(client_id, str) else "", username if isinstance(username, str) else None),
        received_ns=now_ns,
    )
