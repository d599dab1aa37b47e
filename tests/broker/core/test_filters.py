"""Which topic filters take in, or meet, which others."""

from __future__ import annotations

import pytest
from hypothesis import given

from broker.core.topic import TopicFilter, covers, overlaps
from tests.support.strategies import filters, topics


def levels(text: str) -> tuple[str, ...]:
    return tuple(text.split("/"))


@pytest.mark.parametrize(
    ("wide", "narrow", "expected"),
    [
        ("#", "a/b", True), ("#", "a/+", True), ("#", "$SYS/#", False), ("#", "$SYS/a", False), ("a/#", "a", True),
        ("a/#", "a/+/b", True), ("a/#", "a/b/#", True), ("a/#", "#", False), ("a/+", "a/#", False),
        ("a/+", "a/+", True), ("a/+", "a", False), ("a/b", "a/+", False), ("a/+/c", "a/b/c", True),
        ("a/+/#", "a/#", False), ("+/b", "a/b", True), ("+/+", "a", False), ("$SYS/#", "$SYS/+", True),
    ],
)  # fmt: skip
def test_filter_covers_filter(wide: str, narrow: str, expected: bool) -> None:
    assert covers(levels(wide), levels(narrow)) is expected


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("a/+", "+/b", True), ("a", "b", False), ("a/#", "a", True), ("a/b", "a", False), ("#", "x/y", True),
        ("#", "$SYS/#", False), ("$SYS/uptime", "+/uptime", False), ("$SYS/+", "$SYS/#", True),
    ],
)  # fmt: skip
def test_filters_overlap(one: str, other: str, expected: bool) -> None:
    assert overlaps(levels(one), levels(other)) is expected
    assert overlaps(levels(other), levels(one)) is expected


@given(filters, filters, topics)
def test_they_say_what_topics_show(one: str, other: str, topic: str) -> None:
    wide, narrow = TopicFilter.parse(one), TopicFilter.parse(other)
    if narrow.matches(topic):
        assert wide.matches(topic) or not covers(wide.levels, narrow.levels)
        assert overlaps(wide.levels, narrow.levels) or not wide.matches(topic)
