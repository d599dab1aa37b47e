"""Another machine, the connections with it, and which of them have ended.

A network that fails may end a connection at one side only: the other would keep it, and a client that says nothing, for
ever. So connections belong to the *lives* of both machines towards each other at the time. A machine that has heard
nothing for a while ends all connections with that life of the other one, takes none of it any more, and says so with
its next greeting or answer. The other one then ends them too, and begins a new life.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from broker.core.cells import Machine


class Connection(Protocol):
    """A connection that is carried."""

    def abort(self) -> None: ...


class Neighbour:
    """What a machine knows of another one. ``incarnation`` is that of this process."""

    def __init__(self, machine: Machine, incarnation: str) -> None:
        self.machine = machine
        self.is_reached = False
        self.ended = ""
        """The last life of the other machine that was ended here."""
        self._incarnation = incarnation
        self._number = 0
        self._connections: dict[Connection, str] = {}
        """With the life of the other machine in which they began."""

    @property
    def life(self) -> str:
        """The life of this machine towards the other one."""
        return f"{self._incarnation}/{self._number}"

    def add(self, connection: Connection, life: str) -> None:
        """Note a connection that began in a life of the other machine."""
        self._connections[connection] = life
        if life == self.ended:  # meanwhile
            connection.abort()

    def remove(self, connection: Connection) -> None:
        """A connection has ended."""
        del self._connections[connection]

    def met(self, life: str) -> None:
        """The other machine is in this life: connections of earlier processes of it are gone."""
        self._end(lambda made_in: made_in != life)

    def lost(self, life: str) -> None:
        """Nothing was heard of a life of the other machine."""
        self.ended = life
        self._end(lambda made_in: made_in == life)

    def told(self, ended: str) -> None:
        """The other machine says which life of this one it has ended."""
        if ended == self.life:
            self._number += 1
            self._end(lambda _made_in: True)

    def _end(self, is_over: Callable[[str], bool]) -> None:
        for connection, made_in in list(self._connections.items()):
            if is_over(made_in):
                connection.abort()
