"""The connections to a server: those that have not authenticated make room for others, those that have keep theirs."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, Protocol, TypeVar


class Guest(Hashable, Protocol):
    """A connection, as a room sees it."""

    @property
    def is_busy(self) -> bool:
        """True while a request of the connection is in progress."""

    def make_room(self) -> None:
        """Close the connection at once: its place goes to another."""


G = TypeVar("G", bound=Guest)


class Lobby(Generic[G]):
    """The connections that have not authenticated, the oldest first: at most ``most``, and half of that from one
    address.

    Where there are too many, one of the address with the most makes room: the oldest that is not busy. So an address
    that opens many connections loses its own, and no other does.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._hosts: dict[G, str | None] = {}
        self._by_host: dict[str | None, dict[G, None]] = {}

    def __len__(self) -> int:
        return len(self._hosts)

    def __iter__(self) -> Iterator[G]:
        return iter(list(self._hosts))

    def __contains__(self, guest: object) -> bool:
        return guest in self._hosts

    def enter(self, guest: G, host: str | None) -> None:
        """Take a connection in; another makes room for it where there are too many."""
        of_host = self._by_host.get(host, {})
        if len(of_host) >= max(1, self.most // 2):
            self._evict(of_host)
        elif len(self._hosts) >= self.most:
            self.make_room()
        self._hosts[guest] = host
        self._by_host.setdefault(host, {})[guest] = None

    def leave(self, guest: G) -> bool:
        """Let a connection go that has authenticated or ended; returns whether it was here."""
        if guest not in self._hosts:
            return False
        host = self._hosts.pop(guest)
        of_host = self._by_host[host]
        del of_host[guest]
        if not of_host:
            del self._by_host[host]
        return True

    def make_room(self) -> bool:
        """Close one connection; False when there is none."""
        if not self._hosts:
            return False
        self._evict(max(self._by_host.values(), key=len))
        return True

    def _evict(self, guests: dict[G, None]) -> None:
        guest = next((guest for guest in guests if not guest.is_busy), None) or next(iter(guests))
        self.leave(guest)
        guest.make_room()


class Room(Generic[G]):
    """The connections to one server, at most ``most``.

    A new connection takes the place of one that has not authenticated, else of the one that has been idle for longest;
    it is refused only where all others have authenticated and are busy.
    """

    def __init__(self, most: int, most_unauthenticated: int | None = None) -> None:
        self.most = most
        self.lobby = Lobby[G](most if most_unauthenticated is None else most_unauthenticated)
        self._members: dict[G, None] = {}
        """Authenticated members, the one answered last at the end."""

    def __len__(self) -> int:
        return len(self.lobby) + len(self._members)

    def enter(self, guest: G, host: str | None) -> bool:
        """Take in a connection that has not authenticated; False when there is no place for it."""
        if len(self) >= self.most and not self.lobby.make_room():
            idle = next((member for member in self._members if not member.is_busy), None)
            if idle is None:
                return False
            del self._members[idle]
            idle.make_room()
        self.lobby.enter(guest, host)
        return True

    def authenticated(self, guest: G) -> None:
        """Give a connection that has authenticated a place that it keeps."""
        if self.lobby.leave(guest):
            self._members[guest] = None

    def answered(self, guest: G) -> None:
        """Make a connection that was answered the last one that has to make room."""
        if guest in self._members:
            del self._members[guest]
            self._members[guest] = None

    def leave(self, guest: G) -> None:
        """Forget a connection that has ended."""
        if not self.lobby.leave(guest):
            self._members.pop(guest, None)
