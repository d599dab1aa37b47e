"""Members of a share group that are in other cells, as this cell's part of the group sees them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from broker.cluster.frames import MemberState
from broker.codec.outgoing import Outgoing
from broker.connection.sharing.group import ShareGroup
from broker.connection.sharing.member import Member
from broker.session.delivery import SharedDelivery


class Granting(Protocol):
    """What takes messages to a cell."""

    number: int

    @property
    def is_full(self) -> bool:
        """True if more is on the way, or granted and not settled, than may be."""

    def grant(self, member: FarMember, delivery: SharedDelivery, *, dup: bool) -> None:
        """Send a member a message of QoS 1 or 2."""

    def grant_qos0(self, member: FarMember, outgoing: Outgoing) -> None:
        """Send a member a message of QoS 0, or drop and count it."""

    def ask(self, member: FarMember) -> None:
        """Ask for room of a member."""

    def drop(self, why: str) -> None:
        """Count a message that no member gets."""


class _NoWindow:
    """The window of a session in another cell: what is in flight there is that cell's to take back."""

    quota = 0

    @staticmethod
    def give_up(holder: object) -> list[Any]:
        """Nothing is in flight here."""
        del holder
        return []


class FarSession:
    """The session of a member, which is in another cell. Has what a group looks at of a session."""

    __slots__ = ("_grants", "client_id", "is_durable", "is_ended", "member", "window")

    is_v5 = True
    owner = box = fast = may_have = None

    def __init__(self, grants: Granting, client_id: str) -> None:
        self._grants = grants
        self.client_id = client_id
        self.is_ended = self.is_durable = False
        self.window = _NoWindow()
        self.member: FarMember

    @property
    def is_away(self) -> bool:
        """True if it has no connection, as far as this cell knows."""
        return not self.member.is_here

    @property
    def is_slow(self) -> bool:
        """True if the way to its cell is full."""
        return self._grants.is_full

    def take_packets(self, packets: bytes, count: int) -> bool:
        """False: each message is granted by itself."""
        del packets, count
        return False

    def deliver(
        self, outgoing: Outgoing, qos: int, retain: bool, identifiers: tuple[int, ...]
    ) -> None:
        """Take a message of QoS 0."""
        del qos, retain, identifiers
        self.member.group.given -= 1  # counted in its cell
        self._grants.grant_qos0(self.member, outgoing)

    def drop(self, outgoing: Outgoing, why: str) -> None:
        """Count a message that it does not get."""
        del outgoing
        self._grants.drop(why)

    def take_back(self, holder: object, is_wanted: Callable[[Any], bool]) -> list[Any]:
        """Nothing: its cell takes back what it has, and says so."""
        del holder, is_wanted
        return []


class FarMember(Member):
    """A member in another cell.

    A message is granted to it while it has fewer than ``size`` unsettled from here. Where its window is full all the
    same, its cell refuses and the part asks for room: it is then granted as many as it has ``credit``, None for any
    number. What is granted in an earlier ``turn`` is refused too, so that messages keep their order.
    """

    __slots__ = ("cell", "credit", "grants", "is_connected", "size", "turn")

    cell: int

    def __init__(self, grants: Granting, client_id: str, state: MemberState) -> None:
        session: Any = FarSession(grants, client_id)
        super().__init__(_NO_GROUP, session)
        session.member = self
        self.cell = grants.number
        self.grants = grants
        self.turn = state.turn
        self.credit: int | None = None
        self.identifiers = ()
        self.no_local = False
        self.take(state)

    group: ShareGroup

    def take(self, state: MemberState) -> None:
        """Its cell says how it is a member."""
        self.qos = state.qos
        self.is_connected = state.is_here
        self.retain_as_published = state.retains
        self.size = state.window
        self.session.is_durable = state.is_durable

    @property
    def has_room(self) -> bool:
        """True if it can be granted a message now."""
        return (
            self.in_flight < self.size
            and self.credit != 0
            and self.is_here
            and not self.grants.is_full
        )

    def may_have(self, topic: str) -> bool:
        """True: its cell knows its access rules, and refuses."""
        del topic
        return True

    @staticmethod
    def emit(session: Any, delivery: Any, *, dup: bool) -> bool:
        """Grant it a message for which it has room."""
        member: FarMember = session.member
        member.group.given -= 1  # counted in its cell
        member.grants.grant(member, delivery, dup=dup)
        if member.credit is not None:
            member.credit -= 1
            if not member.credit:
                member.grants.ask(member)
        return True

    @staticmethod
    def fits(session: Any, delivery: Any) -> bool:
        """True: its cell knows the size of packets that it takes, and refuses."""
        del session, delivery
        return True


class _NoGroup:
    """Stands for the group until the member enters one."""

    key = ""


_NO_GROUP: Final[Any] = _NoGroup()
