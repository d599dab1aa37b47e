"""A message on its way to one client, to be acknowledged by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from broker.codec.outgoing import Outgoing

# Function that returns whether a client may have messages on a topic, by QoS.
MayHave = Callable[[str, int], bool]
# Reason for a drop of a message that the client may not have.
DENIED: Final = "not_authorized"


class Delivery:
    """One QoS 1 or 2 message for a session, waiting or in flight. ``offset`` is -1 when it is not in the log.

    ``holder`` is set on messages of share groups. While it waits, sessions that get the message alike share one object,
    which is not changed: ``own`` is what one of them has in flight.
    """

    __slots__ = (
        "holder",
        "identifiers",
        "is_released",
        "is_shared",
        "offset",
        "outgoing",
        "qos",
        "retain",
        "sent_ns",
    )

    def __init__(
        self,
        outgoing: Outgoing | None,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...],
        offset: int = -1,
    ) -> None:
        self.outgoing = outgoing
        self.qos = qos
        self.retain = retain
        self.identifiers = identifiers
        self.offset = offset
        self.holder: Holder | None = None
        self.is_released = False  # QoS 2: PUBREC has come, PUBREL goes out until PUBCOMP
        self.is_shared = False
        self.sent_ns = 0

    def own(self) -> Delivery:
        """This one, or where other sessions have it too a copy."""
        if not self.is_shared:
            return self
        return Delivery(self.outgoing, self.qos, self.retain, self.identifiers, self.offset)

    @property
    def size_bytes(self) -> int:
        """Size in the bound of a queue."""
        return self.outgoing.size_bytes if self.outgoing is not None else 0


class Deliveries:
    """Creates waiting deliveries, one object for all sessions that get a message alike.

    A thousand subscribers that do not read have a million messages waiting: separate objects took 120 bytes each,
    and the garbage collector half a second to scan.
    """

    __slots__ = ("_latest",)

    def __init__(self) -> None:
        self._latest = RAW

    def of(
        self,
        outgoing: Outgoing,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...],
        offset: int = -1,
    ) -> Delivery:
        """A message as one more session gets it."""
        latest = self._latest
        if (
            latest.outgoing is outgoing
            and latest.qos == qos
            and latest.retain is retain
            and latest.identifiers == identifiers
            and latest.offset == offset
        ):
            latest.is_shared = True
            return latest
        self._latest = delivery = Delivery(outgoing, qos, retain, identifiers, offset)
        return delivery


# In flight for a session that ends with its connection, on the fast path: nothing of it will be needed again but its
# identifier.
RAW: Final = Delivery(None, 1, False, ())


class Holder(Protocol):
    """A session's part in a share group; each message refers to it that the session has from there."""

    def settle(self, delivery: Any, /) -> None:
        """The client has acknowledged a message of the group, or refused it, or cannot take it."""

    def offer_room(self) -> None:
        """The session's window has room."""


# Source of a message of a share group: the group's key, log, shard and offset.
Claim = tuple[str, int, int, int]

NO_OFFSET: Final = -1


class SharedDelivery(Delivery):
    """``offset`` is always -1, since the session does not find the message in the session log; its group does.

    ``number`` is its place in the order of the group. ``may_be_seen`` means that it was sent to some member,
    ``given_ns`` when (0 where no one asks). ``claim`` is kept with a durable session, so that both agree after a
    restart. ``tried`` are members that may not have it, or take no packet so large.
    """

    __slots__ = (
        "claim",
        "cursor",
        "given_from",
        "given_ns",
        "key",
        "may_be_seen",
        "number",
        "place",
        "tried",
    )

    def __init__(self, outgoing: Outgoing | None, cursor: object, place: int, number: int) -> None:
        super().__init__(outgoing, 0, False, ())
        self.cursor = cursor
        self.place = place
        self.number = number
        self.key: str | None = None
        self.claim: Claim | None = None
        self.given_from: Any = None
        """The cursor of a message that was written down as given before it was sent."""
        self.may_be_seen = False
        self.given_ns = 0
        self.tried: tuple[object, ...] = ()

    def __lt__(self, other: SharedDelivery) -> bool:
        return self.number < other.number

    @classmethod
    def restored(
        cls, claim: Claim, qos: int, retain: bool, identifiers: tuple[int, ...]
    ) -> SharedDelivery:
        """Delivery from the record of a durable session; the group adds its message."""
        delivery = cls(None, None, claim[3], 0)
        delivery.qos = qos
        delivery.retain = retain
        delivery.identifiers = identifiers
        delivery.claim = claim
        delivery.may_be_seen = True
        return delivery
