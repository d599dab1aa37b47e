"""Strategies that choose the member of a share group for a message. MQTT 5.0 section 4.8.2 leaves the choice to the
server.

The *free* strategies give a message to a member with room in its window; the *keyed* ones give all messages of one key
to one member, so that they stay in order: a key moves only when its member goes away, and only once what that member
had of it is settled. Every pick and every change takes constant time, or the logarithm of the number of members.
"""

from __future__ import annotations

import random
from bisect import bisect_left, insort
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final, Generic, Literal, Protocol, TypeVar
from zlib import crc32

from broker.core.message import Message

StrategyName = Literal[
    "round_robin", "random", "least_inflight", "sticky", "hash_clientid", "hash_topic"
]

# Keys whose member `sticky` remembers; the one given longest ago is forgotten first.
STICKY_KEYS: Final = 65_536
# Number of points of a member on the ring: with these the shares differ by about an eighth.
_POINTS: Final = 64


class Candidate(Protocol):
    """A member as strategies see it."""

    in_flight: int
    """Messages of the group that it has not acknowledged."""
    cell: int | None
    """The other cell that it is in; None for this one."""

    @property
    def client_id(self) -> str:
        """Identifier of the client of the session."""

    @property
    def has_room(self) -> bool:
        """True if it can take a message of QoS 1 or 2 now."""


M = TypeVar("M", bound=Candidate)


class Pool(Generic[M]):
    """Members by position, in no order; each change takes constant time."""

    __slots__ = ("_at", "items")

    def __init__(self) -> None:
        self.items: list[M] = []
        self._at: dict[M, int] = {}

    def __len__(self) -> int:
        return len(self.items)

    def __contains__(self, member: object) -> bool:
        return member in self._at

    def add(self, member: M) -> None:
        """Take a member; nothing when it is there."""
        if member not in self._at:
            self._at[member] = len(self.items)
            self.items.append(member)

    def discard(self, member: M) -> None:
        """Let a member go; nothing when it is not there."""
        at = self._at.pop(member, None)
        if at is None:
            return
        last = self.items.pop()
        if last is not member:
            self.items[at] = last
            self._at[last] = at


class Strategy(Generic[M]):
    """Base of all strategies. ``came`` and ``left`` report who has a connection, ``opened`` who has room again.

    ``pick_any`` is for messages of QoS 0, which no window holds back. Members of this cell (``near``) go before those
    of others where the strategy leaves it free.
    """

    counts: bool = False
    """True if ``changed`` must be called when a member has more or fewer messages in flight."""

    def __init__(self) -> None:
        self.here: Pool[M] = Pool()
        self.near: Pool[M] = Pool()
        self._next = 0

    def came(self, member: M) -> None:
        """The member has a connection."""
        self.here.add(member)
        if member.cell is None:
            self.near.add(member)

    def left(self, member: M) -> None:
        """Remove a member that has no connection, or left the group."""
        self.here.discard(member)
        self.near.discard(member)

    def opened(self, member: M) -> None:
        """The member has room in its window."""

    def let_go(self, member: M) -> None:
        """A member of another cell that left has nothing on its way: its keys may move."""

    def changed(self, member: M) -> None:
        """The member's ``in_flight`` is another one."""

    def pick(self, message: Message) -> M | None:
        """Member for a message of QoS 1 or 2; None when it must wait."""
        raise NotImplementedError

    def pick_any(self, message: Message) -> M | None:
        """Member for a message of QoS 0; None if no member is connected."""
        return self._in_turn(self.near.items or self.here.items)

    def _in_turn(self, members: list[M]) -> M | None:
        if not members:
            return None
        at = self._next
        if at >= len(members):
            at = 0
        self._next = at + 1
        return members[at]


class RoundRobin(Strategy[M]):
    """Members with room in turn."""

    def __init__(self) -> None:
        super().__init__()
        self._open: Pool[M] = Pool()
        self._open_far: Pool[M] = Pool()

    def left(self, member: M) -> None:
        super().left(member)
        self._open.discard(member)
        self._open_far.discard(member)

    def opened(self, member: M) -> None:
        (self._open if member.cell is None else self._open_far).add(member)

    def pick(self, message: Message) -> M | None:
        for pool in (self._open, self._open_far):
            members = pool.items
            while (member := self._in_turn(members)) is not None:
                if member.has_room:
                    return member
                pool.discard(member)  # it comes back with ``opened``
        return None


class Random(RoundRobin[M]):
    """Any member with room, with equal chances."""

    def _in_turn(self, members: list[M]) -> M | None:
        return members[int(random.random() * len(members))] if members else None


class LeastInflight(Strategy[M]):
    """The member with room that has the fewest messages of the group in flight; among equals in turn."""

    counts = True

    def __init__(self) -> None:
        super().__init__()
        self._by_count: list[tuple[dict[M, None], dict[M, None]]] = [({}, {})]
        """Members of this cell, and those of others."""
        self._count_of: dict[M, int] = {}
        self._lowest = 0

    def left(self, member: M) -> None:
        super().left(member)
        self._remove(member)

    def opened(self, member: M) -> None:
        if member not in self._count_of:
            self._place(member)

    def changed(self, member: M) -> None:
        if member in self._count_of:
            self._remove(member)
            self._place(member)

    def pick(self, message: Message) -> M | None:
        while self._count_of:
            near, far = self._by_count[self._lowest]
            if not (near or far):
                self._lowest += 1
                continue
            member = next(iter(near or far))
            if member.has_room:
                return member
            self._remove(member)
        return None

    def pick_any(self, message: Message) -> M | None:
        member = self.pick(message)
        if member is None:
            return super().pick_any(message)
        self.changed(member)  # to the end among its equals
        return member

    def _place(self, member: M) -> None:
        count = member.in_flight
        while len(self._by_count) <= count:
            self._by_count.append(({}, {}))
        self._by_count[count][member.cell is not None][member] = None
        self._count_of[member] = count
        self._lowest = min(self._lowest, count)

    def _remove(self, member: M) -> None:
        count = self._count_of.pop(member, None)
        if count is not None:
            del self._by_count[count][member.cell is not None][member]


class Keyed(Strategy[M]):
    """All messages of a key to one member. ``hold`` and ``release`` count what it has of a key and has not settled."""

    def __init__(self, key_of: Callable[[Message], str]) -> None:
        super().__init__()
        self.key_of = key_of
        self._held: dict[str, tuple[M, int]] = {}

    def left(self, member: M) -> None:
        super().left(member)
        if member.cell is None:  # else what it has is on its way
            self.let_go(member)

    def let_go(self, member: M) -> None:
        super().let_go(member)
        self._held = {key: entry for key, entry in self._held.items() if entry[0] is not member}

    def pick(self, message: Message) -> M | None:
        key = self.key_of(message)
        entry = self._held.get(key)
        return entry[0] if entry is not None else self._choose(key)

    pick_any = pick

    def hold(self, key: str, member: M) -> None:
        """The member was given a message of the key."""
        entry = self._held.get(key)
        self._held[key] = (member, 1 if entry is None or entry[0] is not member else entry[1] + 1)

    def release(self, key: str, member: M) -> None:
        """The member has settled one, or it was taken from it."""
        entry = self._held.get(key)
        if entry is None or entry[0] is not member:
            return
        if entry[1] == 1:
            del self._held[key]
        else:
            self._held[key] = (member, entry[1] - 1)

    def _choose(self, key: str) -> M | None:
        raise NotImplementedError


class Hashed(Keyed[M]):
    """Consistent hashing: of n members each has about one nth of the keys, and only a changed member's keys move."""

    def __init__(self, key_of: Callable[[Message], str]) -> None:
        super().__init__(key_of)
        self._ring: list[tuple[int, str]] = []
        self._by_client: dict[str, M] = {}

    def came(self, member: M) -> None:
        if member in self.here:
            return
        super().came(member)
        self._by_client[member.client_id] = member
        for point in _points(member.client_id):
            insort(self._ring, (point, member.client_id))

    def left(self, member: M) -> None:
        if member not in self.here:
            return
        super().left(member)
        del self._by_client[member.client_id]
        for point in _points(member.client_id):
            del self._ring[bisect_left(self._ring, (point, member.client_id))]

    def _choose(self, key: str) -> M | None:
        if not self._ring:
            return None
        at = bisect_left(self._ring, (_spread(key), ""))
        return self._by_client[self._ring[at if at < len(self._ring) else 0][1]]


class Sticky(Keyed[M]):
    """A publisher and topic stay with the member that they were first given to, as long as it is here."""

    def __init__(self, key_of: Callable[[Message], str]) -> None:
        super().__init__(key_of)
        self._given: dict[str, M] = {}

    def _choose(self, key: str) -> M | None:
        member = self._given.pop(key, None)
        if member is None or member not in self.here:
            member = self._in_turn(self.near.items or self.here.items)
            if member is None:
                return None
            if len(self._given) >= STICKY_KEYS:
                del self._given[next(iter(self._given))]
        self._given[key] = member
        return member


def strategy_of(name: StrategyName) -> Strategy[M]:
    """A new strategy of that name."""
    return _STRATEGIES[name]()


def _publisher(message: Message) -> str:
    return message.client.client_id


def _topic(message: Message) -> str:
    return message.topic


def _publisher_and_topic(message: Message) -> str:
    return f"{message.client.client_id}\0{message.topic}"


_STRATEGIES: Final[dict[StrategyName, Callable[[], Strategy[Any]]]] = {
    "round_robin": RoundRobin,
    "random": Random,
    "least_inflight": LeastInflight,
    "sticky": lambda: Sticky(_publisher_and_topic),
    "hash_clientid": lambda: Hashed(_publisher),
    "hash_topic": lambda: Hashed(_topic),
}


def _points(client_id: str) -> list[int]:
    """The places of a member on the ring: the same in every process, so that a restart moves no key."""
    digest = b"".join(
        blake2b(client_id.encode(errors="replace"), salt=b"%d" % n).digest()
        for n in range(_POINTS // 16)
    )
    return [int.from_bytes(digest[at : at + 4]) for at in range(0, 4 * _POINTS, 4)]


def _spread(key: str) -> int:
    """A place on the ring. The multiplication spreads what CRC-32 leaves close together: keys that end in a number."""
    hashed = crc32(key.encode(errors="replace"))
    return (hashed ^ hashed >> 16) * 0x45D9F3B & 0xFFFFFFFF
