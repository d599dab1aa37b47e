"""Index of rules by the topics, events and rows of other rules that they read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from broker.core.action import Row
from broker.core.client import Client
from broker.core.events import EVENT_TYPES, SOURCE_PREFIXES, Events
from broker.core.message import Message, Properties
from broker.core.stage import RecordedTap, Refusal, TapCall
from broker.core.topic_index import TopicIndex
from rules.deferred import Deferrals
from rules.rule import RowCall, Rule
from rules.sql.compiler.columns import Event
from rules.sql.sources import RULE_PREFIX
from rules.sql.values import string

_EVENT_QOS = (0, 1, 2)


class RuleEngine:
    """The rules of a node, in their order. Used on the event loop."""

    def __init__(
        self,
        node: str,
        events: Events,
        now_ns: Callable[[], int],
        *,
        ignores_sys_messages: bool,
        deferrals: Deferrals | None = None,
    ) -> None:
        self._node = node
        self._events = events
        self._now_ns = now_ns
        self._ignores_sys_messages = ignores_sys_messages
        self._rules: list[Rule] = []
        self._by_event: dict[str, list[Rule]] = {}
        self._by_topic: TopicIndex[Rule] = TopicIndex()
        self._deferrals = deferrals
        events.listen(self._on_event)

    def use(self, rules: Iterable[Rule], names: Iterable[str] = ()) -> None:
        """Replace all rules; ``names`` are those of all that are kept, whether they run or not.

        The caller invalidates the topic plans.
        """
        self._rules = [rule for rule in rules if rule.is_enabled]
        self._by_event = {}
        wanted: set[str] = set()
        readers: dict[str, list[Rule]] = {}
        for rule in self._rules:
            for name in rule.statement.sources.rules:
                readers.setdefault(name, []).append(rule)
        for rule in self._rules:
            sources = rule.statement.sources
            wanted.update(sources.events, sources.ingress)
            for name in sources.events:
                self._by_event.setdefault(name, []).append(rule)
            rule.readers = [
                self._row_call(rule.name, reader) for reader in readers.get(rule.name, ())
            ]
            rule.deferrals = self._deferrals
        self._by_topic.use(
            (
                rule.name,
                rule,
                [topic_filter.levels for topic_filter in rule.statement.sources.filters],
            )
            for rule in self._rules
        )
        if self._deferrals is not None:
            self._deferrals.use(self._rules, {*names, *(rule.name for rule in self._rules)})
        self._events.want(frozenset(wanted))

    def rules_for(self, topic: str) -> list[Rule]:
        """The rules that read a topic."""
        if self._ignores_sys_messages and topic.startswith("$SYS/"):
            return []
        return self._by_topic.matching(topic)

    def calls_for(self, topic: str) -> list[Callable[[Message], Refusal | None]]:
        """The calls for a message on this topic, a callable per rule that reads it."""
        return [rule.message_call() for rule in self.rules_for(topic)]

    def _on_event(self, name: str, columns: Mapping[str, Any], about: Message | None) -> None:
        rules = self._by_event.get(name)
        if rules is None and name.startswith(SOURCE_PREFIXES):
            rules = self._by_event[name] = self._readers_of_source(name.partition("/")[2])
        if not rules:
            return
        now_ns = self._now_ns()
        message = event_message(name, columns, now_ns, about)
        for rule in rules:
            common = {
                "event": name,
                "node": self._node,
                "timestamp": now_ns // 1_000_000,
                "metadata": {"rule_id": rule.name},
            }
            rule.run_on_event(Event({**as_values(columns), **common}), message)

    def _readers_of_source(self, source: str) -> list[Rule]:
        """The rules that read what a connector brings in, under either of its names."""
        names = [prefix + source for prefix in SOURCE_PREFIXES]
        return [
            rule for rule in self._rules if any(map(rule.statement.sources.matches_event, names))
        ]

    def _row_call(self, source: str, reader: Rule) -> RowCall:
        """Hands rows of one rule to a rule that reads them: their columns, and the common ones they do not have."""
        event = RULE_PREFIX + source
        metadata = {"rule_id": reader.name}
        node = self._node
        now_ns = self._now_ns

        def read(row: Row, message: Message) -> Refusal | None:
            columns = {
                "node": node,
                "timestamp": now_ns() // 1_000_000,
                **row,
                "event": event,
                "metadata": metadata,
            }
            return reader.run_on_event(Event(columns), message)

        return read


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


def event_message(
    name: str, columns: Mapping[str, Any], now_ns: int, about: Message | None = None
) -> Message:
    """A message that stands for an event towards actions.

    Its topic is the event's own or its event topic; user properties and the rules it came through are those of the
    message that the event is about.
    """
    topic = columns.get("topic")
    qos = columns.get("qos")
    payload = columns.get("payload")
    client_id = columns.get("clientid")
    username = columns.get("username")
    event = EVENT_TYPES.get(name)
    return Message(
        topic=topic if isinstance(topic, str) and topic else event.topic if event else name,
        payload=payload.encode()
        if isinstance(payload, str)
        else payload
        if isinstance(payload, bytes)
        else b"",
        qos=qos if qos in _EVENT_QOS else 0,
        retain=False,
        client=Client(
            client_id if isinstance(client_id, str) else "",
            username if isinstance(username, str) else None,
        ),
        received_ns=now_ns,
        properties=about.properties
        if about is not None
        else _user_properties(columns.get("pub_props")),
        via=about.via if about is not None else (),
        receipt=about.receipt if about is not None else None,
    )


def _user_properties(columns: Any) -> Properties | None:
    """The user properties of a ``pub_props`` column, as a message has them."""
    if not isinstance(columns, Mapping):
        return None
    pairs = columns.get("User-Property-Pairs")
    if isinstance(pairs, (list, tuple)):
        return {"User-Property": [(str(pair["key"]), str(pair["value"])) for pair in pairs]}
    single = columns.get("User-Property")
    return (
        {"User-Property": [(str(k), str(v)) for k, v in single.items()]}
        if isinstance(single, Mapping)
        else None
    )


# The tap in the pipeline: rules read messages, in order; those with the action drop or disconnect may stop one.


class RulesTap:
    """The rules of a node as a stage."""

    name = "rules"

    def __init__(self, engine: RuleEngine) -> None:
        self._engine = engine

    def acting(self, topic: str) -> tuple[object, ...] | None:
        """See ``broker.core.stage.ActsByObjects``: the rules of a topic. One that may wait decides that for each
        topic."""
        rules = self._engine.rules_for(topic)
        return tuple(rules) if all(rule.may_wait is None for rule in rules) else None

    def parts(self, topic: str) -> list[tuple[str, RecordedTap]]:
        """See ``broker.core.stage.HasParts``: a call for each rule."""
        return [(rule.name, rule.recorded_call()) for rule in self._engine.rules_for(topic)]

    def plan(self, topic: str) -> TapCall | None:
        """The rules that read this topic as one call; None when there are none, so that they cost nothing."""
        calls = self._engine.calls_for(topic)
        if not calls:
            return None
        if len(calls) == 1:
            return calls[0]

        def run_all(message: Message) -> Refusal | None:
            for call in calls:
                refusal = call(message)
                if refusal is not None:
                    return refusal
            return None

        return run_all
