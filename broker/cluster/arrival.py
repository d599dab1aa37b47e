"""Contents of a cell that ends in order, noted in its store. The next process of the cell compares them with the store
that it opened, and a job that moves cells reports the difference."""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from broker.admin.cells import Arrival
from broker.core.values import Values

_KEY: Final = "cluster/left"


class Holding(Protocol):
    """What has sessions and their messages (``broker.net.server.Server``)."""

    parted: int

    def held(self) -> tuple[int, int]: ...


class _Left(msgspec.Struct, array_like=True, frozen=True):
    """The machine that a cell left, the clients that it disconnected for that, its sessions, and the messages that are
    stored for them."""

    machine: str
    clients: int
    sessions: int
    messages: int


def leave(values: Values, server: Holding, machine: str) -> None:
    """Note what this cell has, once its clients are disconnected."""
    left = _Left(machine, server.parted, *server.held())
    values.put(_KEY, msgspec.msgpack.encode(left))


def arrived(values: Values, server: Holding, machine: str) -> Arrival | None:
    """Contents with which this cell came to this machine, once its store is loaded; None where it ended on this
    machine, was killed, or is of another release."""
    data = values.get(_KEY)
    if data is None:
        return None
    values.put(_KEY, None)
    try:
        left = msgspec.msgpack.decode(data, type=_Left)
    except msgspec.MsgspecError:
        return None  # a start does not fail for a report
    if left.machine == machine:
        return None
    sessions, messages = server.held()
    return {
        "machine": left.machine,
        "clients": left.clients,
        "sessions": left.sessions,
        "messages": left.messages,
        "expired_sessions": 0,
        "lost_sessions": max(0, left.sessions - sessions),
        "lost_messages": max(0, left.messages - messages),
    }
