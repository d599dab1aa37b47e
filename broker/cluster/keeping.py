"""Questions to the keepers of machines, at sockets in the run directory that the tunnel carries: what all machines have
written, and the order to a machine to give its cells away, or to get them back. A line each way."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from broker.cluster.channel import bind, connect
from broker.core.errors import Unavailable

_LINE: Final = b"\n"
_LINE_BYTES: Final = 1024 * 1024
_ASK_S: Final = 3.0
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


class Orders(msgspec.Struct, frozen=True):
    """What users have ordered about all machines, kept in NATS: cells that belong to another machine than their own
    one, and machines that are not expected back."""

    homes: dict[int, str] = {}
    forgotten: list[str] = []


Verb = Literal["show", "drain", "resume", "take", "rebalance", "forget"]


class Asked(msgspec.Struct, frozen=True):
    """A question to a keeper; the ``machine`` and the ``cell`` are those of an order that is about them."""

    verb: Verb
    machine: str = ""
    cell: int = -1


class Told(msgspec.Struct, frozen=True):
    """Its answer: the machines that are not silent, by name. ``problem``: why they are not known at present, since this
    one does not reach NATS, or why an order cannot be kept; there are no machines then. ``refused``: why an order is
    not one that could be carried out."""

    machines: Mapping[str, State] = {}
    problem: str = ""
    refused: str = ""
    homes: Mapping[int, str] = {}
    """The machine that each cell belongs to."""
    forgotten: Sequence[str] = ()
    clocks_s: Mapping[str, float] = {}
    """Seconds that clocks of other machines are ahead of this one's, up to a second less."""


def socket_of_keeper(machine: str) -> str:
    """Name of the socket at which the keeper of a machine answers."""
    return f"keeper-{machine}.sock"


class KeeperServer:
    """Answers with what ``answer`` gives for a question; it is called on a thread."""

    def __init__(self, run: Path, machine: str, answer: Callable[[Asked], Told]) -> None:
        self._run = run
        self._machine = machine
        self._answer_to = answer
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Answer from now on."""
        listening = bind(self._run, socket_of_keeper(self._machine), socket.SOCK_STREAM)
        listening.listen()
        self._server = await asyncio.start_unix_server(self._answer, sock=listening)

    async def stop(self) -> None:
        """Answer no more."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_ASK_S):
                asked = _ASKED.decode(await reader.readuntil(_LINE))
            told = await asyncio.to_thread(self._answer_to, asked)
            writer.write(msgspec.json.encode(told) + _LINE)
            await writer.drain()
        except (OSError, EOFError, TimeoutError, ValueError, asyncio.LimitOverrunError):
            pass  # who asked sees that there is no answer
        finally:
            writer.close()


def ask(run: Path, machine: str, asked: Asked) -> Told:
    """The answer of the keeper of a machine. Blocks.

    Raises:
        Unavailable: it does not answer.
    """
    try:
        link = connect(run, socket_of_keeper(machine), socket.SOCK_STREAM)
        with link:
            link.settimeout(_ASK_S if asked.verb == "show" else _ORDER_S)
            link.sendall(msgspec.json.encode(asked) + _LINE)
            with link.makefile("rb") as answer:
                return _TOLD.decode(answer.readline(_LINE_BYTES))
    except (OSError, ValueError) as error:
        raise Unavailable(f"machine {machine!r} does not answer") from error


_ASKED: Final = msgspec.json.Decoder(Asked)
_TOLD: Final = msgspec.json.Decoder(Told)
SHOW: Final = Asked("show")
