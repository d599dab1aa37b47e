"""A session as a member of a share group."""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

from broker.core.subscription import Subscription
from broker.session import sending
from broker.session.delivery import MayHave, SharedDelivery
from broker.session.session import Session

_NO_VERDICTS: Final[dict[str, bool]] = {}
_REMEMBERED: Final = 64
# Topics of which a member remembers whether it may have them, and how long they may be.
_REMEMBERED_CHARACTERS: Final = 256


class Group(Protocol):
    """The group that a session is a member of."""

    key: str

    def came(self, member: Member) -> None:
        """A member has a connection."""

    def went_away(self, member: Member, *, for_good: bool) -> None:
        """A member's connection is lost, and its session has ended where it is ``for_good``."""

    def has_room(self, member: Member) -> None:
        """A member can take something."""

    def settled(self, member: Member, delivery: SharedDelivery) -> None:
        """A member has acknowledged a message, or refused it."""

    def part_with(self, member: Member, delivery: SharedDelivery) -> None:
        """Leave a message in flight to the member's session alone, where no one else may get it."""


class Asker(Protocol):
    """Another cell that has messages for a member."""

    def offer(self, member: Member) -> None:
        """The member can take something of it."""


class Member:
    """One session's part in a group. Who leaves and comes again is another member."""

    __slots__ = ("_rules", "_verdicts", "askers", "group", "identifiers", "in_flight", "is_here", "is_member", "lane",
                 "leaves_at_ns", "no_local", "qos", "reserved", "retain_as_published", "session")  # fmt: skip

    cell: int | None = None
    """The other cell that the session is in; None for this one."""
    emit = staticmethod(sending.send_shared)
    fits = staticmethod(sending.fits)

    def __init__(self, group: Group, session: Session) -> None:
        self.group = group
        self.session = session
        self.in_flight = 0
        self.is_here = False
        self.is_member = True
        self.leaves_at_ns = 0
        self.lane: deque[SharedDelivery] = deque()
        self.askers: tuple[Asker, ...] = ()
        """Other cells that wait for room of this member, the next one first."""
        self.reserved = 0
        """Room that was promised to other cells."""
        self._rules: MayHave | None = None
        self._verdicts = _NO_VERDICTS

    @property
    def client_id(self) -> str:
        """Client that the session belongs to."""
        return self.session.client_id

    @property
    def has_room(self) -> bool:
        """True if it can take a message now."""
        session = self.session
        return session.window.quota > self.reserved and not session.is_slow

    def may_have(self, topic: str) -> bool:
        """True if access rules leave it messages on a topic; remembered, since it is asked message by message."""
        rules = self.session.may_have
        if rules is None:
            return True
        if rules is not self._rules:
            self._rules = rules
            self._verdicts = {}
        verdict = self._verdicts.get(topic)
        if verdict is None:
            verdict = rules(topic, self.qos)
            if len(self._verdicts) >= _REMEMBERED:
                self._verdicts.clear()
            if len(topic) <= _REMEMBERED_CHARACTERS:
                self._verdicts[topic] = verdict
        return verdict

    def describe(self, subscription: Subscription) -> None:
        """Take the options of its latest SUBSCRIBE."""
        self.qos = subscription.qos
        self.no_local = subscription.no_local
        self._rules = None
        self.retain_as_published = subscription.retain_as_published
        self.identifiers = (subscription.identifier,) if subscription.identifier else ()

    def settle(self, delivery: SharedDelivery) -> None:
        """The client has acknowledged a message, or refused it."""
        self.group.settled(self, delivery)

    def offer_room(self) -> None:
        """The session can take something."""
        self.group.has_room(self)
