"""A session as a member of a share group."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from broker.core.subscription import Subscription
from broker.session.delivery import MayHave
from broker.session.session import Session
from broker.session.shared_delivery import SharedDelivery

if TYPE_CHECKING:
    from broker.connection.sharing.group import ShareGroup

_NO_VERDICTS: Final[dict[str, bool]] = {}
_REMEMBERED: Final = 64
_REMEMBERED_CHARACTERS: Final = 256
"""Topics of which a member remembers whether it may have them, and how long they may be."""


class Member:
    """One session's part in a group. Who leaves and comes again is another member."""

    __slots__ = ("_rules", "_verdicts", "group", "identifiers", "in_flight", "is_here", "is_member", "lane",
                 "leaves_at_ns", "no_local", "qos", "retain_as_published", "session")  # fmt: skip

    def __init__(self, group: ShareGroup, session: Session) -> None:
        self.group, self.session = group, session
        self.in_flight = 0
        self.is_here, self.is_member = False, True
        self.leaves_at_ns = 0
        self.lane: deque[SharedDelivery] = deque()
        self._rules: MayHave | None = None
        self._verdicts = _NO_VERDICTS

    @property
    def client_id(self) -> str:
        """Whose session it is."""
        return self.session.client_id

    @property
    def has_room(self) -> bool:
        """Whether it can take a message now."""
        session = self.session
        return session.window.quota > 0 and not session.is_slow

    def may_have(self, topic: str) -> bool:
        """Whether access rules leave it messages on a topic; remembered, since it is asked message by message."""
        rules = self.session.may_have
        if rules is None:
            return True
        if rules is not self._rules:
            self._rules = rules
            self._verdicts = {}
        found = self._verdicts.get(topic)
        if found is None:
            found = rules(topic, self.qos)
            if len(self._verdicts) >= _REMEMBERED:
                self._verdicts.clear()
            if len(topic) <= _REMEMBERED_CHARACTERS:
                self._verdicts[topic] = found
        return found

    def describe(self, subscription: Subscription) -> None:
        """Take the options of its latest SUBSCRIBE."""
        self.qos, self.no_local, self._rules = subscription.qos, subscription.no_local, None
        self.retain_as_published = subscription.retain_as_published
        self.identifiers = (subscription.identifier,) if subscription.identifier else ()

    def settle(self, delivery: SharedDelivery) -> None:
        """The client has acknowledged a message, or refused it."""
        self.group.settled(self, delivery)

    def offer_room(self) -> None:
        """The session can take something."""
        self.group.has_room(self)
