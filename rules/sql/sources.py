"""FROM: topic filters for messages, event topics, ingress connectors, other rules."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from broker.core.errors import Invalid, PeerError, Problem, did_you_mean
from broker.core.events import EVENT_TYPES, SOURCE_PREFIXES
from broker.core.topic import TopicFilter, levels_match
from rules.sql.syntax.tree import place_of, sources_of

EVENT_PREFIX = "$events/"
INGRESS_PREFIXES = SOURCE_PREFIXES
RULE_PREFIX = "$rules/"
PUBLISH = "message.publish"


@dataclass(frozen=True, slots=True)
class Sources:
    """Sources of a rule: messages on topics that match ``filters``, events and ingress connectors by name, rows of
    other rules by the rule's name. ``texts`` are all of them as they are in FROM, ``places`` line and column of each.
    """

    filters: tuple[TopicFilter, ...]
    events: frozenset[str]
    ingress: frozenset[str]
    texts: tuple[str, ...]
    rules: frozenset[str] = frozenset()
    places: tuple[tuple[int, int], ...] = ()

    def matches_topic(self, topic: str) -> bool:
        """True if messages on the topic are read."""
        return any(levels_match(topic_filter.levels, topic) for topic_filter in self.filters)

    def matches_event(self, name: str) -> bool:
        """True if the event of that name (``client.connected``, ``$rules/hot``) is read."""
        if name in self.events or name in self.ingress:
            return True
        if name.startswith(RULE_PREFIX):
            return name.removeprefix(RULE_PREFIX) in self.rules
        return name.startswith(INGRESS_PREFIXES) and any(
            _same_ingress(name, source) for source in self.ingress
        )


def sources(tree: exp.Select) -> Sources:
    """The sources of a statement.

    Raises:
        Invalid: filters that are none, event topics that no event has.
    """
    filters: list[TopicFilter] = []
    events: set[str] = set()
    ingress: set[str] = set()
    texts: list[str] = []
    places: list[tuple[int, int]] = []
    rules: set[str] = set()
    problems: list[Problem] = []
    for table in sources_of(tree):
        text: str = table.name
        texts.append(text)
        line, column = place_of(table)
        places.append((line, column))
        if text.startswith(EVENT_PREFIX):
            matching = events_of(text)
            if not matching:
                problems.append(
                    Problem(
                        f"no event has the topic '{text}'", "/sql", line, column, _similar(text)
                    )
                )
            events |= matching
        elif text.startswith(INGRESS_PREFIXES):
            ingress.add(text)
            if ":" not in text:
                hint = "write '$bridges/mqtt:name'"
                problems.append(
                    Problem(
                        f"'{text}' names no connector by type and name", "/sql", line, column, hint
                    )
                )
        elif text.startswith(RULE_PREFIX):
            rules.add(text.removeprefix(RULE_PREFIX))
            if text == RULE_PREFIX or "/" in text.removeprefix(RULE_PREFIX):
                hint = "write '$rules/' and the name of one rule"
                problems.append(Problem(f"'{text}' names no rule", "/sql", line, column, hint))
        else:
            try:
                filters.append(TopicFilter.parse(text))
            except PeerError as error:
                problems.append(Problem(str(error), "/sql", line, column))
    if problems:
        raise Invalid("the SQL cannot be used", problems, code="sql_check")
    return Sources(
        tuple(filters),
        frozenset(events),
        frozenset(ingress),
        tuple(texts),
        frozenset(rules),
        tuple(places),
    )


def events_of(event_filter: str) -> frozenset[str]:
    """The names of the events whose topic, new or old, matches."""
    levels = tuple(event_filter.split("/"))
    return frozenset(
        event.name
        for event in EVENT_TYPES.values()
        if levels_match(levels, event.topic)
        or (event.old_topic and levels_match(levels, event.old_topic))
    )


def _same_ingress(name: str, source: str) -> bool:
    """True if two connector names are the same, either of which may end with ``*``."""
    if name.endswith("*"):
        return source.startswith(name[:-1])
    return source.endswith("*") and name.startswith(source[:-1])


def _similar(text: str) -> str | None:
    return did_you_mean(text, [event.topic for event in EVENT_TYPES.values()])
