"""Questions to the keepers of machines, at sockets in the run directory that the tunnel carries: what all machines have
written, and the order to a machine to give its cells away, or to get them back. A line each way."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from broker.cluster.channel import connect
from broker.cluster.line_server import ASK_S, LINE, LineServer
from broker.core.errors import Unavailable

_LINE_BYTES: Final = 1024 * 1024
# An order is written into NATS before its answer.
_ORDER_S: Final = 15.0


class State(msgspec.Struct, frozen=True):
    """What a machine writes: a number that grows, the cells that it runs, and the positions of copies that follow."""

    life: str
    number: int
    runs: list[int]
    copies: dict[int, int]
    ends: dict[int, int]
    """Positions of the logs of cells that it may have to give to another machine."""
    behind: list[int] = []
    """Cells whose copies do not follow."""
    is_leaving: bool = False
    cluster: str = ""
    """Digest of the cluster (``ClusterSettings.digest``)."""
    is_drained: bool = False
    """True if it gives its cells to other machines, and takes none that another one can take."""
    version: str = ""
    clock_ns: int = 0
    """Its clock when it wrote this, in nanoseconds since 1970."""
    wants: list[int] = []
    """Those of ``runs`` that it is about to take, unless another machine goes first."""
    opening: list[int] = []
    """Cells whose copies it has not opened yet: how far these are is not known."""


class Orders(msgspec.Struct, frozen=True):
    """What users have ordered about all machines, kept in NATS: cells that belong to another machine than their own
    one, and machines that are not expected back."""

    homes: dict[int, str] = {}
    forgotten: list[str] = []


ALL: Final = -1
"""Number of cells of a machine that is to give all of them."""
Verb = Literal["show", "drain", "give", "resume", "take", "rebalance", "forget"]


class Asked(msgspec.Struct, frozen=True):
    """A question to a keeper; the ``machine`` and the ``cell`` are those of an order that is about them. A machine that
    is drained ``gives`` so many of its cells until the next order. A ``cell`` is rebalanced by itself."""

    verb: Verb
    machine: str = ""
    cell: int = -1
    gives: int = ALL


class Told(msgspec.Struct, frozen=True):
    """Its answer: the machines that are not silent, by name. ``problem``: why they are not known at present, since this
    one does not reach NATS or has not heard from all, or why an order cannot be kept. ``refused``: why an order is not
    one that could be carried out."""

    machines: Mapping[str, State] = {}
    problem: str = ""
    refused: str = ""
    homes: Mapping[int, str] = {}
    """The machine that each cell belongs to."""
    forgotten: Sequence[str] = ()
    clocks_s: Mapping[str, float] = {}
    """Seconds that clocks of other machines are ahead of this one's, up to a second less."""
    unheard: Sequence[str] = ()
    """Machines that have written nothing since the keeper began, and do not count as silent yet."""


def socket_of_keeper(machine: str) -> str:
    """Name of the socket at which the keeper of a machine answers."""
    return f"keeper-{machine}.sock"


def server_of_keeper(run: Path, machine: str, answer: Callable[[Asked], Told]) -> LineServer:
    """A server that answers with what ``answer`` gives for a question; it is called on a thread."""

    async def tell(line: bytes, writer: asyncio.StreamWriter) -> None:
        told = await asyncio.to_thread(answer, _ASKED.decode(line))
        writer.write(msgspec.json.encode(told) + LINE)

    return LineServer(run, socket_of_keeper(machine), tell)


def ask(run: Path, machine: str, asked: Asked) -> Told:
    """The answer of the keeper of a machine. Blocks.

    Raises:
        Unavailable: it does not answer.
    """
    try:
        link = connect(run, socket_of_keeper(machine), socket.SOCK_STREAM)
        with link:
            link.settimeout(ASK_S if asked.verb == "show" else _ORDER_S)
            link.sendall(msgspec.json.encode(asked) + LINE)
            with link.makefile("rb") as answer:
                return _TOLD.decode(answer.readline(_LINE_BYTES))
    except (OSError, ValueError) as error:
        raise Unavailable(f"machine {machine!r} does not answer") from error


_ASKED: Final = msgspec.json.Decoder(Asked)
_TOLD: Final = msgspec.json.Decoder(Told)
SHOW: Final = Asked("show")
