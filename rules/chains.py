"""Rules that read the rows of other rules: what must hold between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from broker.core.errors import Problem, did_you_mean
from rules.sql.sources import RULE_PREFIX, Sources

# Maximum rules that read one another in a row: each is a few calls deep inside the one before.
MAX_LENGTH: Final = 32


@dataclass(frozen=True, slots=True)
class Link:
    """Sources of a rule, None when its SQL cannot be used; whether it may drop the message; and whether its rows may
    come when the message is on its way already, since a worker makes them."""

    sources: Sources | None
    decides: bool = False
    may_be_late: bool = False


def chain_problems(name: str, rules: Mapping[str, Link]) -> list[Problem]:
    """The problems of a rule among all rules: names that do not exist, rows that would go round, chains too long,
    and messages to be dropped that do not exist."""
    sources = rules[name].sources
    if sources is None:
        return []
    unknown = [other for other in _read_by(sources) if other not in rules]
    if unknown:
        return [_unknown(name, other, rules) for other in unknown]
    circle = _circle(name, rules)
    if circle:
        other = circle[-2]
        shown = " → ".join(circle)
        text = (
            f"the rule would read itself: {shown}"
            if len(circle) == 2
            else f"rows would go round: {shown}"
        )
        return [_at(sources, other, text)]
    if _length(name, rules, {}) > MAX_LENGTH:
        longest = max(sources.rules, key=lambda other: _length(other, rules, {}))
        return [
            _at(sources, longest, f"more than {MAX_LENGTH} rules would read one another in a row")
        ]
    return _undecidable(name, sources, rules) if rules[name].decides else []


def chained(rules: Mapping[str, Link]) -> list[str]:
    """The rules for which anything must hold: those that read others or stop messages."""
    return [
        name
        for name, link in rules.items()
        if link.sources is not None and (link.sources.rules or link.decides)
    ]


def _read_by(sources: Sources) -> list[str]:
    names = [
        text.removeprefix(RULE_PREFIX) for text in sources.texts if text.startswith(RULE_PREFIX)
    ]
    return list(dict.fromkeys(names))


def _reads(name: str, rules: Mapping[str, Link]) -> list[str]:
    link = rules.get(name)
    return [] if link is None or link.sources is None else _read_by(link.sources)


def _circle(name: str, rules: Mapping[str, Link]) -> list[str]:
    """The way that rows of a rule take back to it, with the rule at both ends; empty when there is none."""
    before: dict[str, str] = {}  # rule: the one that it feeds on the way to the rule asked about
    waiting = [name]
    while waiting:
        current = waiting.pop()
        for other in _reads(current, rules):
            if other == name:
                circle = [name]
                while current != name:
                    circle.append(current)
                    current = before[current]
                return [*circle, name]
            if other not in before:
                before[other] = current
                waiting.append(other)
    return []


def _length(name: str, rules: Mapping[str, Link], known: dict[str, int]) -> int:
    """Number of rules in a row behind a rule, itself included; rows that go round are another rule's mistake."""
    if name not in known:
        known[name] = 0
        known[name] = 1 + max(
            (_length(other, rules, known) for other in _reads(name, rules)), default=0
        )
    return known[name]


def _undecidable(name: str, sources: Sources, rules: Mapping[str, Link]) -> list[Problem]:
    """Reason why a rule that stops messages could not: there is no message, or it was already delivered."""
    if rules[name].may_be_late:
        text = f"'{name}' stops messages, and jq may run in a worker, when the message has gone on"
        return [Problem(text, "/sql", 1, 1, "decide with SQL only")]
    problems = []
    for other in _read_by(sources):
        behind = [rules[reader] for reader in _all_behind(other, rules) if reader in rules]
        if any(
            link.sources is not None and (link.sources.events or link.sources.ingress)
            for link in behind
        ):
            problems.append(
                _at(sources, other, f"'{name}' stops messages, and rule '{other}' runs on events")
            )
        if any(link.may_be_late for link in behind):
            problems.append(
                _at(
                    sources,
                    other,
                    f"'{name}' stops messages, and rows of '{other}' may come late, by jq",
                )
            )
    return problems


def _all_behind(name: str, rules: Mapping[str, Link]) -> set[str]:
    """A rule and all whose rows lead to it."""
    seen = {name}
    waiting = [name]
    while waiting:
        for other in _reads(waiting.pop(), rules):
            if other not in seen:
                seen.add(other)
                waiting.append(other)
    return seen


def _unknown(name: str, other: str, rules: Mapping[str, Link]) -> Problem:
    link = rules[name]
    assert link.sources is not None
    return _at(
        link.sources,
        other,
        f"there is no rule '{other}'",
        did_you_mean(other, [other_name for other_name in rules if other_name != name]),
    )


def _at(sources: Sources, other: str, text: str, suggestion: str | None = None) -> Problem:
    text_in_from = RULE_PREFIX + other
    places = [
        place
        for text, place in zip(sources.texts, sources.places, strict=False)
        if text == text_in_from
    ]
    line, column = places[0] if places else (None, None)
    return Problem(text, "/sql", line, column, suggestion)
