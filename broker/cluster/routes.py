"""Topic filters that the clients of a cell subscribe to, as it announces them to the other cells.

Subscriptions are counted by filter and *kind*: their QoS, whether they want RETAIN as it was published, and whether
QoS 1 and 2 messages must be kept for them on disk. A cell announces one kind for each filter, which covers all of
its subscriptions, whenever it changes. Of ``$SYS``, it announces filters of messages about clients only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from broker.core.subscription import Subscription
from broker.core.topic import SYSTEM_LEVEL, system_of_clients
from broker.routing.router import Subscriber

_RETAINS: Final = 3
_DURABLE: Final = 6
_KINDS: Final = 12
# Bits for the number of subscriptions of one kind: memory bounds them long before.
_BITS: Final = 32
_MASK: Final = (1 << _BITS) - 1


class Kind(NamedTuple):
    """What must be sent for a filter: at most this QoS, with RETAIN or without, by the session log or live."""

    qos: int
    retains: bool
    is_durable: bool

    @classmethod
    def of(cls, number: int) -> Kind:
        """The kind as it is on the wire."""
        return cls(number % 3, number % _DURABLE >= _RETAINS, number >= _DURABLE)


def kind_of(subscriber: Subscriber, subscription: Subscription) -> int:
    """The number of a subscription's kind."""
    is_durable = subscriber.is_durable and subscription.qos > 0
    return (
        subscription.qos
        + (_RETAINS if subscription.retain_as_published else 0)
        + (_DURABLE if is_durable else 0)
    )


def joined_kind(number: int | None, qos: int, *, retains: bool) -> int:
    """The number of one kind that covers another one and a subscription of a durable session."""
    kind = Kind(0, False, True) if number is None else Kind.of(number)
    return max(kind.qos, qos) + (_RETAINS if kind.retains or retains else 0) + _DURABLE


class Interest:
    """The filters of a cell's own clients. ``on_change`` is called when there is something to tell.

    Implements ``broker.routing.router.Listener``.
    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self.version = 1
        """Grows with each change that is announced."""
        self._counts: dict[str, int] = {}
        """By filter: the number of subscriptions of each kind, ``_BITS`` bits each."""
        self.changed: dict[str, int | None] = {}
        """Kinds as they were last announced, of the filters that changed since."""

    def added(self, subscriber: Subscriber, subscription: Subscription) -> None:
        """A client has this subscription from now on."""
        self._count(subscription, kind_of(subscriber, subscription), 1)

    def removed(self, subscriber: Subscriber, subscription: Subscription) -> None:
        """A client no longer has it."""
        self._count(subscription, kind_of(subscriber, subscription), -1)

    def turned(self, subscriber: Subscriber, subscription: Subscription) -> None:
        """A client's messages are kept on disk from now on, or no more."""
        if subscription.qos:
            kind = kind_of(subscriber, subscription)
            self._count(subscription, (kind + _DURABLE) % _KINDS, -1)
            self._count(subscription, kind, 1)

    def _count(self, subscription: Subscription, kind: int, change: int) -> None:
        levels = subscription.filter.levels
        if levels[0] == SYSTEM_LEVEL:
            for text in system_of_clients(levels):
                self._count_filter(text, kind, change)
        else:
            self._count_filter(subscription.filter.text, kind, change)

    def _count_filter(self, text: str, kind: int, change: int) -> None:
        before = self._counts.get(text, 0)
        after = before + (change << _BITS * kind)
        if after:
            self._counts[text] = after
        else:
            self._counts.pop(text, None)
        was = _joined(before)
        if was != _joined(after) and text not in self.changed:
            if not self.changed:
                self._on_change()
            self.changed[text] = was

    def take_changes(self) -> list[tuple[str, int | None]]:
        """What the other cells have to be told."""
        changes = []
        for text, was in self.changed.items():
            kind = _joined(self._counts.get(text, 0))
            if kind != was:
                changes.append((text, kind))
        self.changed.clear()
        self.version += bool(changes)
        return changes

    def all(self) -> Iterator[tuple[str, int | None]]:
        """Every filter with its kind, as of the first step."""
        for text, counts in list(self._counts.items()):
            yield text, _joined(counts)

    def __len__(self) -> int:
        return len(self._counts)


def _joined(counts: int) -> int | None:
    """One kind that covers all that are counted."""
    if not counts:
        return None
    qos = 0
    joined = 0
    for number in range(_KINDS):
        if counts >> _BITS * number & _MASK:
            kind = Kind.of(number)
            qos = max(qos, kind.qos)
            joined |= kind.retains | kind.is_durable << 1
    return qos + (_RETAINS if joined & 1 else 0) + (_DURABLE if joined & 2 else 0)
