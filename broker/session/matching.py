"""Which of a session's filters match a topic, where they are too many to look through."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

from broker.core.filter_shapes import FilterShapes
from broker.core.subscription import Subscription
from broker.core.topic_index import TopicIndex

Item = TypeVar("Item")
Matching = Callable[[str], Iterable[Item]]
"""The items whose filters match a topic."""

FEW: Final = 8
"""So many are looked through one by one."""


def matching_subscriptions(subscriptions: Mapping[str, Subscription]) -> Matching[Subscription]:
    """Those of a session, shared ones among them; good until they change."""
    shared = [item for item in subscriptions.values() if item.filter.share_group is not None]
    if len(shared) > FEW:
        return TopicIndex((item, (item.filter.levels,)) for item in subscriptions.values()).matching
    plain = matching_filters(subscriptions)
    if not shared:
        return plain
    return lambda topic: [*plain(topic), *(item for item in shared if item.filter.matches(topic))]


def matching_filters(by_filter: Mapping[str, Item]) -> Matching[Item]:
    """Items by the text of their filter, without ``$share/NAME/``."""
    shapes = FilterShapes(by_filter)
    if shapes.are_few:
        return shapes.matching
    return TopicIndex((item, (tuple(text.split("/")),)) for text, item in by_filter.items()).matching
