"""The subscriptions of one session, and which of them a topic is for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from broker.codec.outgoing import Outgoing
from broker.core.memory import MemoryUse
from broker.core.message import Message
from broker.core.subscription import Subscription
from broker.core.topic import TopicFilter
from broker.core.topic_index import FilterShapes, TopicIndex
from broker.session.delivery import Delivery, MayHave
from broker.session.log_queue import LostRecords

_SUBSCRIPTION_BYTES: Final = 300
_LEVEL_BYTES: Final = 100


def size_of(topic_filter: TopicFilter) -> int:
    """About how many bytes a subscription takes, its levels in the tree of filters included."""
    return (
        _SUBSCRIPTION_BYTES + 2 * len(topic_filter.text) + _LEVEL_BYTES * len(topic_filter.levels)
    )


class Subscriptions(dict[str, Subscription]):
    """Subscriptions by the text of their filters, shared ones included. After a change ``changed`` has to be called,
    once for as many as there are. ``size_bytes`` is what they take, and part of the tally of all sessions."""

    __slots__ = ("_index", "_tally", "size_bytes")

    def __init__(self, tally: MemoryUse | None = None) -> None:
        super().__init__()
        self._index: Matching[Subscription] | None = None
        self._tally = tally or MemoryUse()
        self.size_bytes = 0

    def __setitem__(self, text: str, item: Subscription) -> None:
        if text not in self:
            self._grow(size_of(item.filter))
        super().__setitem__(text, item)

    def __delitem__(self, text: str) -> None:
        self._grow(-size_of(self[text].filter))
        super().__delitem__(text)

    def pop(self, text: str, default: Any = None) -> Any:
        """The subscription, which is removed, or the default."""
        subscription = super().pop(text, None)
        if subscription is None:
            return default
        self._grow(-size_of(subscription.filter))
        return subscription

    def clear(self) -> None:
        """Remove all."""
        self._grow(-self.size_bytes)
        super().clear()

    def _grow(self, size: int) -> None:
        self.size_bytes += size
        self._tally.bytes += size

    def changed(self) -> None:
        """Some were added, replaced or removed."""
        self._index = None

    def matching(self, topic: str) -> Iterable[Subscription]:
        """The subscriptions whose filters match a topic name."""
        if len(self) <= FEW:
            return [item for item in self.values() if item.filter.matches(topic)]
        if self._index is None:
            self._index = matching_subscriptions(self)
        return self._index(topic)

    def without(
        self, waiting: Iterable[Delivery], given_up: Sequence[TopicFilter]
    ) -> list[Delivery]:
        """Waiting messages that matched a filter of ``given_up`` and match no other."""
        was_asked = matching_filters({topic_filter.text: True for topic_filter in given_up})
        return [
            delivery
            for delivery in waiting
            if delivery.outgoing is not None
            and any(was_asked(topic := delivery.outgoing.message.topic))
            and not any(item.qos for item in self.matching(topic))
        ]

    def match_logged(
        self,
        offset: int,
        message: Message,
        client_id: str,
        addressee: str | None,
        may_have: MayHave | None = None,
    ) -> Delivery | None:
        """Delivery of a record of the session log to the client, or None if no subscription at the time of the append
        matches; ``addressee`` is the only client it is for. ``may_have`` filters subscriptions, None for all."""
        if addressee is not None and addressee != client_id:
            return None
        is_addressed = addressee is not None
        matches = [
            subscription
            for subscription in self.matching(message.topic)
            if is_addressed
            or (not subscription.is_membership and subscription.since_offset <= offset)
        ]
        if may_have is not None:
            matches = [
                subscription
                for subscription in matches
                if may_have(message.topic, subscription.qos)
            ]
        if not is_addressed and message.client.client_id == client_id:
            matches = [subscription for subscription in matches if not subscription.no_local]
        qos = min(message.qos, max((subscription.qos for subscription in matches), default=0))
        if qos == 0:
            return None
        retain = message.retain and (
            is_addressed or any(item.retain_as_published for item in matches)
        )
        identifiers = tuple(item.identifier for item in matches if item.identifier)
        return Delivery(Outgoing(message), qos, retain, identifiers, offset)

    def take_back_offsets(self, lost: LostRecords) -> bool:
        """Let what was to hold from behind lost records on hold from those that get their offsets; False where there
        is no such subscription."""
        moved = {
            text: replace(item, since_offset=since)
            for text, item in self.items()
            if (since := lost.moved(item.since_offset)) != item.since_offset
        }
        for text, subscription in moved.items():
            self[text] = subscription
        if moved:
            self.changed()
        return bool(moved)


Item = TypeVar("Item")
# The items whose filters match a topic.
Matching = Callable[[str], Iterable[Item]]

# Maximum number of items that are tested one by one.
FEW: Final = 8


def matching_subscriptions(subscriptions: Mapping[str, Subscription]) -> Matching[Subscription]:
    """An index of a session's subscriptions, shared ones among them; valid until they change."""
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
    return TopicIndex(
        (item, (tuple(text.split("/")),)) for text, item in by_filter.items()
    ).matching
