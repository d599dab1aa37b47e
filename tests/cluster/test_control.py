"""The line of a cell to its supervisor, which is lost and made again."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import msgspec

from broker.cluster.channel import CONTROL, Ask, Bind, Bound, FromCell, Hello, Welcome, bind
from broker.cluster.control import Control
from broker.core.cells import Place

KEY = "mqtt"
WITHIN_S = 10.0


def _heard(link: socket.socket) -> FromCell:
    data, descriptors, *_ = socket.recv_fds(link, 65536, 8)
    for descriptor in descriptors:
        os.close(descriptor)
    said: FromCell = msgspec.json.decode(data, type=FromCell)
    return said


def _supervise(run: Path, listening: socket.socket) -> list[FromCell]:
    """Lose the first line once sockets are asked for on it; what the cell says on the second one."""
    said: list[FromCell] = []
    with bind(run, "pass-0.sock", socket.SOCK_DGRAM) as passed, listening:
        for is_lost in (True, False):
            link, _ = listening.accept()
            with link:
                link.settimeout(WITHIN_S)
                assert isinstance(_heard(link), Hello)
                welcome = msgspec.json.encode(Welcome())
                socket.send_fds(link, [welcome], [passed.fileno(), 2])
                said.append(_heard(link))
                if not is_lost:
                    link.send(msgspec.json.encode(Bind(KEY)))
                    said.append(_heard(link))
    return said[1:]


def test_sockets_are_asked_for_again_where_the_line_was_lost_before_the_answer(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        listening = bind(tmp_path, CONTROL, socket.SOCK_SEQPACKET)
        listening.listen()
        listening.settimeout(WITHIN_S)
        supervising = asyncio.create_task(asyncio.to_thread(_supervise, tmp_path, listening))
        control = Control(Place(0, 1, tmp_path))

        async def make() -> list[socket.socket]:
            return [socket.create_server(("127.0.0.1", 0))]

        await control.start()
        try:
            async with asyncio.timeout(WITHIN_S):
                [taken] = await control.sockets(KEY, make)
            taken.close()
            assert await supervising == [Ask(KEY), Bound(KEY)]
        finally:
            control.stop()

    asyncio.run(test())
