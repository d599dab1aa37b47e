"""One client's packets do not keep the loop from everybody else: what was read and takes long waits for another turn.

A read holds up to 256 KiB, and a packet of a few bytes may ask for milliseconds of work: a SUBSCRIBE that searches a
million retained messages, say. So the time is looked at between packets, and the connection is parked for a turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.connection.connection import Connection

TURN_S: Final = 0.02
"""Seconds of one turn of the loop that the packets of one connection may take; the packet at hand is finished."""
_CAUSE: Final = object()


def give_way(c: Connection) -> None:
    """Read on in another turn of the loop; nothing is taken from the socket until then."""
    c.is_parked = True
    c.hold(_CAUSE)
    c.hub.later(0, _go_on, c)


def _go_on(c: Connection) -> None:
    if not c.is_closed:
        c.let_go(_CAUSE)
        c.go_on(_nothing)


def _nothing() -> None:
    """Nothing was left undone of the packet before."""
