"""Filters found by their shapes are exactly those that match."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.core.topic import TopicFilter
from broker.core.topic_index import MOST_SHAPES, FilterShapes
from tests.support.strategies import filters, topics


@given(st.lists(filters, max_size=12, unique=True), topics)
def test_it_finds_exactly_the_filters_that_match(texts: list[str], topic: str) -> None:
    shapes = FilterShapes({text: text for text in texts})
    assert sorted(shapes.matching(topic)) == sorted(
        text for text in texts if TopicFilter.parse(text).matches(topic)
    )


def test_hidden_topics_are_not_found_by_leading_wildcards() -> None:
    texts = ["#", "+/a", "+/#", "$x/#", "$x/+", "$x/a"]
    shapes = FilterShapes({text: text for text in texts})
    assert sorted(shapes.matching("$x/a")) == ["$x/#", "$x/+", "$x/a"]
    assert sorted(shapes.matching("$x")) == ["$x/#"]
    assert sorted(shapes.matching("b/a")) == ["#", "+/#", "+/a"]


def test_what_is_added_in_a_known_shape_is_found_and_what_is_removed_is_not() -> None:
    held = {"a/+": 1, "b": 2}
    shapes = FilterShapes(held)
    held["c/+"] = 3
    del held["b"]
    assert (shapes.matching("c/x"), shapes.matching("b")) == ([3], [])


def test_very_many_shapes_are_known_as_such() -> None:
    few = {
        "/".join("+" if number >> at & 1 else "a" for at in range(6)): number
        for number in range(MOST_SHAPES)
    }
    assert FilterShapes(few).are_few
    assert not FilterShapes({**few, "+/#": 0, "a/b/c/d/e/f/g": 0, "+": 0, "a/+/#": 0}).are_few
