"""A message that a session holds for a share group: it may be taken back and given to another member."""

from __future__ import annotations

from typing import Final

from broker.codec.outgoing import Outgoing
from broker.session.delivery import Delivery

Claim = tuple[str, int, int, int]
"""Where a share group has a message from: the group's key, log, shard and offset."""

NO_OFFSET: Final = -1


class SharedDelivery(Delivery):
    """``offset`` is always -1, since the session does not find the message in the session log; its group does.

    ``number`` is its place in the order of the group. ``may_be_seen`` tells that some member was sent it, ``given_ns``
    when (0 where nobody asks). ``claim`` is kept with a durable session, so that both agree after a restart.
    """

    __slots__ = ("claim", "cursor", "given_ns", "key", "may_be_seen", "number", "place")

    def __init__(self, outgoing: Outgoing | None, cursor: object, place: int, number: int) -> None:
        super().__init__(outgoing, 0, False, ())
        self.cursor, self.place, self.number = cursor, place, number
        self.key: str | None = None
        self.claim: Claim | None = None
        self.may_be_seen = False
        self.given_ns = 0

    def __lt__(self, other: SharedDelivery) -> bool:
        return self.number < other.number

    @classmethod
    def restored(cls, claim: Claim, qos: int, retain: bool, identifiers: tuple[int, ...]) -> SharedDelivery:
        """What the record of a durable session says; the group gives it its message."""
        delivery = cls(None, None, claim[3], 0)
        delivery.qos, delivery.retain, delivery.identifiers = qos, retain, identifiers
        delivery.claim, delivery.may_be_seen = claim, True
        return delivery
