"""FROM: topic filters for messages, event topics, ingress connectors."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from sqlglot import exp

from broker.core.errors import Invalid, PeerError, Problem
from broker.core.events import EVENT_TYPES
from broker.core.topic import TopicFilter, levels_match
from rules.sql.tree import place_of, sources_of

EVENT_PREFIX = "$events/"
INGRESS_PREFIXES = ("$bridges/", "$sources/")
PUBLISH = "message.publish"


@dataclass(frozen=True, slots=True)
class Sources:
    """What a rule reads: messages on topics that match ``filters``, events by name, ingress connectors by name."""

    filters: tuple[TopicFilter, ...]
    events: frozenset[str]
    ingress: frozenset[str]
    texts: tuple[str, ...]

    def matches_topic(self, topic: str) -> bool:
        """Whether messages on the topic are read."""
        return any(levels_match(one.levels, topic) for one in self.filters)

    def matches_event(self, name: str) -> bool:
        """Whether the event of that name (``client.connected``) is read."""
        if name in self.events or name in self.ingress:
            return True
        return name.startswith(INGRESS_PREFIXES) and any(_same_ingress(name, source) for source in self.ingress)


def sources(tree: exp.Select) -> Sources:
    """The sources of a statement.

    Raises:
        Invalid: filters that are none, event topics that no event has.
    """
    filters: list[TopicFilter] = []
    events: set[str] = set()
    ingress: set[str] = set()
    texts: list[str] = []
    problems: list[Problem] = []
    for table in sources_of(tree):
        text: str = table.name
        texts.append(text)
        line, column = place_of(table)
        if text.startswith(EVENT_PREFIX):
            found = events_of(text)
            if not found:
                problems.append(Problem(f"no event has the topic '{text}'", "/sql", line, column, _similar(text)))
            events |= found
        elif text.startswith(INGRESS_PREFIXES):
            ingress.add(text)
        else:
            try:
                filters.append(TopicFilter.parse(text))
            except PeerError as error:
                problems.append(Problem(str(error), "/sql", line, column))
    if problems:
        raise Invalid("the SQL cannot be used", problems, code="sql_check")
    return Sources(tuple(filters), frozenset(events), frozenset(ingress), tuple(texts))


def events_of(event_filter: str) -> frozenset[str]:
    """The names of the events whose topic, new or old, matches."""
    levels = tuple(event_filter.split("/"))
    return frozenset(
        event.name
        for event in EVENT_TYPES.values()
        if levels_match(levels, event.topic) or (event.old_topic and levels_match(levels, event.old_topic))
    )


def _same_ingress(name: str, source: str) -> bool:
    """Whether two connector names are the same, either of which may end with ``*``."""
    if name.endswith("*"):
        return source.startswith(name[:-1])
    return source.endswith("*") and name.startswith(source[:-1])


def _similar(text: str) -> str | None:
    close = difflib.get_close_matches(text, [event.topic for event in EVENT_TYPES.values()], 1)
    return f"did you mean '{close[0]}'?" if close else None
