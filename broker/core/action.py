"""Sinks, the registry through which rules hand rows to bridges by name.

A bridge registers each of its sinks under ``<type>:<name>`` with ``Services.sinks``; a rule with the action
``"kafka:orders"`` finds it there, row by row, so that either may come and go without the other. A rule may name a sink
that is not there yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

from broker.core.errors import Unavailable
from broker.core.message import Message

Row = dict[str, Any]


class Settlement(Protocol):
    """Receives the outcome of each row once; on the event loop, and never raises. One for all rows of an action of a
    rule: a closure for each took 0.8 µs, and the garbage collector as long again."""

    def succeeded(self, rows: int) -> None:
        """This number of rows was delivered."""

    def failed(self, row: Row, message: Message, error: Exception) -> None:
        """This one was not delivered, and will not be."""


CONNECTED: Final = "connected"
CONNECTING: Final = "connecting"
DISCONNECTED: Final = "disconnected"
STOPPED: Final = "stopped"
DISABLED: Final = "disabled"
# States of a sink, as shown to users; ``missing`` is the state of a name under which nothing is registered.
MISSING: Final = "missing"


class PushedBack(Unavailable):
    """The sink is full and is to hold up who publishes: the message goes no further, and its publisher gets an
    error."""

    code = "pushed_back"


class SinkDisabled(Unavailable):
    """The sink is switched off by its settings: rows for it are discarded, not failed."""

    code = "disabled"


class Sink(Protocol):
    """The end of a bridge that takes rows. Used on the event loop."""

    @property
    def name(self) -> str:
        """``<type>:<name>``, as rules write it."""

    @property
    def state(self) -> str:
        """One of the states above."""

    @property
    def has_room(self) -> bool:
        """True if the buffer is small enough that a caller that can wait may add rows."""

    def write(self, row: Row, message: Message, settle: Settlement) -> None:
        """Take a row that a rule made of the message (or of the event, given as a message). Never waits.

        The sink owns the row from then on, must not change it, and reports to ``settle`` exactly once, now or later.

        Raises:
            SinkDisabled: its settings say that it takes none.
            broker.core.errors.Unavailable: it takes none now (not connected, buffer full); nothing is reported.
        """


class Sinks:
    """The sinks of a node, by name."""

    def __init__(self) -> None:
        self._sinks: dict[str, Sink] = {}
        self.find: Callable[[str], Sink | None] = self._sinks.get
        """The sink of that name, or None."""

    def add(self, sink: Sink) -> None:
        """Register a sink, in place of the one of that name."""
        self._sinks[sink.name] = sink

    def remove(self, name: str) -> None:
        """Forget a sink, if it is there."""
        self._sinks.pop(name, None)

    def state_of(self, name: str) -> str:
        """State of the sink of that name; ``missing`` if there is no such sink."""
        sink = self._sinks.get(name)
        return MISSING if sink is None else sink.state

    def __iter__(self) -> Iterator[Sink]:
        return iter(list(self._sinks.values()))
