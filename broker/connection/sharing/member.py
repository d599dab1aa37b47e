"""A session as a member of a share group."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from broker.core.subscription import Subscription
from broker.session.session import Session
from broker.session.shared_delivery import SharedDelivery

if TYPE_CHECKING:
    from broker.connection.sharing.group import ShareGroup


class Member:
    """One session's part in a group. Who leaves and comes again is another member."""

    __slots__ = ("group", "identifiers", "in_flight", "is_here", "is_member", "lane", "leaves_at_ns", "no_local", "qos",
                 "retain_as_published", "session")  # fmt: skip

    def __init__(self, group: ShareGroup, session: Session) -> None:
        self.group, self.session = group, session
        self.in_flight = 0
        self.is_here, self.is_member = False, True
        self.leaves_at_ns = 0
        self.lane: deque[SharedDelivery] = deque()

    @property
    def client_id(self) -> str:
        """Whose session it is."""
        return self.session.client_id

    @property
    def has_room(self) -> bool:
        """Whether it can take a message now."""
        session = self.session
        return session.window.quota > 0 and not session.is_slow

    def describe(self, subscription: Subscription) -> None:
        """Take the options of its latest SUBSCRIBE."""
        self.qos, self.no_local = subscription.qos, subscription.no_local
        self.retain_as_published = subscription.retain_as_published
        self.identifiers = (subscription.identifier,) if subscription.identifier else ()

    def settle(self, delivery: SharedDelivery) -> None:
        """The client has acknowledged a message, or refused it."""
        self.group.settled(self, delivery)

    def offer_room(self) -> None:
        """The session can take something."""
        self.group.has_room(self)
