"""Share groups as routing sees them, MQTT 5.0 section 4.8.2: each message to one member.

What a group does with a message is in ``broker.connection.sharing.group``; whom it picks in
``broker.connection.sharing.strategies``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from broker.codec.outgoing import Outgoing
from broker.core.client import Client
from broker.core.subscription import Subscription
from broker.core.topic import TopicFilter
from broker.core.topic_trie import FilterTrie

S_contra = TypeVar("S_contra", contravariant=True)


class RoutedGroup(Protocol):
    """One group. ``is_durable`` means that messages of QoS 1 and 2 for it go through the session log."""

    is_durable: bool
    key: str

    @property
    def takes_runs(self) -> bool:
        """True if packets of QoS 0 may be offered to it unparsed."""

    @property
    def client_id(self) -> str:
        """Empty: a group is not a client, and nothing is addressed to it."""

    def offer(self, outgoing: Outgoing) -> int:
        """Take a message that is not in the log; returns 1 if a member gets it, else 0."""

    def offer_run(self, chunk: bytes, client: Client, now_ns: int) -> int:
        """Take packets of QoS 0 without properties, as their publisher sent them; how many were sent on as they are."""

    def note_kept(self, outgoing: Outgoing) -> None:
        """A message for it is being appended to the session log."""

    def accept_logged(
        self, offset: int, outgoing: Outgoing, qos: int, retain: bool, identifiers: tuple[int, ...]
    ) -> None:
        """Take a message that was committed to the log at ``offset``; ``pump`` hands it out."""

    def pump(self) -> None:
        """Hand out what waits."""


class Memberships(Protocol[S_contra]):
    """Members of groups."""

    def join(self, subscriber: S_contra, subscription: Subscription) -> None:
        """Make the subscriber a member, or change how it is one."""

    def leave(self, subscriber: S_contra, text: str) -> bool:
        """End a membership by the text of its subscription; False when there was none."""


class RoutedGroups:
    """The share groups that get messages, by topic filter. ``on_change`` is called with the
    filter whose topics' routes are no longer right."""

    def __init__(self, on_change: Callable[[TopicFilter], None]) -> None:
        self._on_change = on_change
        self._by_filter: FilterTrie[RoutedGroup] = FilterTrie()

    def add(self, topic_filter: TopicFilter, key: str, group: RoutedGroup) -> None:
        """Let a group have the messages on topics that match."""
        self._by_filter.put(topic_filter.levels, key, group)
        self._on_change(topic_filter)

    def remove(self, topic_filter: TopicFilter, key: str) -> None:
        """The group is no more."""
        self._by_filter.remove(topic_filter.levels, key)
        self._on_change(topic_filter)

    def match(self, topic: str) -> Sequence[tuple[str, RoutedGroup]]:
        """The groups that get messages on a topic name, by key."""
        return () if self._by_filter.is_empty else self._by_filter.match(topic)
