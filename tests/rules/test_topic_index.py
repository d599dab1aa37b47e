"""The index finds what trying every filter finds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.core.topic import levels_match
from broker.core.topic_index import TopicIndex

NAMES = ("a", "b", "", "$SYS", "c")
TOPICS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4).map("/".join)
FILTERS = st.tuples(
    st.lists(st.sampled_from((*NAMES, "+", "+")), min_size=1, max_size=4),
    st.sampled_from(((), ("#",))),
).map(lambda parts: (*parts[0], *parts[1])) | st.just(("#",))


@given(st.lists(st.lists(FILTERS, max_size=3), max_size=8), TOPICS)
def test_it_finds_what_trying_every_filter_finds(
    filters: list[list[tuple[str, ...]]], topic: str
) -> None:
    index = TopicIndex(enumerate(filters))
    wanted = [
        number
        for number, own in enumerate(filters)
        if any(levels_match(levels, topic) for levels in own)
    ]
    assert index.matching(topic) == wanted


@given(
    st.lists(st.dictionaries(st.sampled_from("xyz"), st.lists(FILTERS, max_size=3)), max_size=5),
    TOPICS,
)
def test_what_it_had_before_makes_no_difference(
    turns: list[dict[str, list[tuple[str, ...]]]], topic: str
) -> None:
    index = TopicIndex[str]()
    for items in turns:
        index.use((name, name, filters) for name, filters in items.items())
        wanted = [
            name
            for name, own in items.items()
            if any(levels_match(levels, topic) for levels in own)
        ]
        assert index.matching(topic) == wanted
