"""Connections that one cell accepts and another one serves, over one trunk."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest

from broker.cluster.relay import ROOM_BYTES, VERSION, Relayed, Served, Trunk
from broker.net.tcp import close_in_time
from tests.support.mqtt_server import on_loop
from tests.support.waiting import until, within

_OPEN_OF_CLIENT = b"told"
_REFUSED = b"not here"
_FAULTY = b"faulty"
_HOLDING = b"holding"


class _Link(asyncio.Protocol):
    """Serves a client: keeps what it sends."""

    def __init__(self) -> None:
        self.got = bytearray()
        self.is_slow = self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(Served, transport)

    def data_received(self, data: bytes) -> None:
        self.got += data

    def connection_lost(self, error: Exception | None) -> None:
        assert not self.is_lost
        self.is_lost = True

    def pause_writing(self) -> None:
        self.is_slow = True

    def resume_writing(self) -> None:
        self.is_slow = False


class _Faulty(_Link):
    def data_received(self, data: bytes) -> None:
        raise ArithmeticError


class _Holding(_Link):
    """Reads nothing while its client does not read, as a connection does."""

    def pause_writing(self) -> None:
        super().pause_writing()
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.transport.resume_reading()


class _Still(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).pause_reading()


class _Pair:
    """Two cells with a trunk between them."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.trunks: set[Trunk] = set()
        self.relayed: set[Relayed] = set()
        self.links: list[_Link] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.accepts: Trunk
        self.serves: Trunk

    async def start(self) -> None:
        near, far = socket.socketpair()
        _, self.accepts = await self.loop.create_connection(
            lambda: Trunk(self.loop, self.trunks), sock=near
        )
        _, self.serves = await self.loop.create_connection(
            lambda: Trunk(self.loop, self.trunks, self._opening), sock=far
        )

    def _opening(self, trunk: Trunk, number: int, told: bytes) -> None:
        if told == _REFUSED:
            trunk.refuse(number)
            return
        served = Served(trunk, number)
        trunk.accept(number, served)
        link = {_FAULTY: _Faulty, _HOLDING: _Holding}.get(told, _Link)()
        self.links.append(link)
        served.begin(link)

    async def client(
        self, told: bytes = _OPEN_OF_CLIENT
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, _Link]:
        """A client and the link that serves it."""
        relayed = Relayed(self.accepts, self.relayed)
        assert await relayed.open(told)
        link = self.links[-1]
        with socket.create_server(("127.0.0.1", 0)) as listening:
            own = socket.create_connection(listening.getsockname())
            accepted, _ = listening.accept()
        transport, _ = await self.loop.connect_accepted_socket(_Still, accepted)
        reader, writer = await asyncio.open_connection(sock=own)
        self.writers.append(writer)
        relayed.begin(transport)
        return reader, writer, link


@asynccontextmanager
async def _pair() -> AsyncIterator[_Pair]:
    pair = _Pair()
    await pair.start()
    try:
        yield pair
    finally:
        for trunk in list(pair.trunks):
            trunk.abort()
        for writer in pair.writers:
            writer.transport.abort()
        await until(lambda: not pair.trunks and not pair.relayed)


async def _at_end(reader: asyncio.StreamReader) -> bytes:
    with contextlib.suppress(ConnectionResetError):
        return await within(reader.read())
    return b""


@on_loop
async def test_megabytes_of_many_clients_go_both_ways_in_order() -> None:
    async with _pair() as pair:
        clients = [await pair.client() for _ in range(8)]
        sent = [os.urandom(ROOM_BYTES * 5 + number) for number in range(len(clients))]
        for (_, writer, link), data in zip(clients, sent, strict=True):
            writer.write(data)
            link.transport.write(data[::-1])
        for (reader, _, link), data in zip(clients, sent, strict=True):
            assert await within(reader.readexactly(len(data))) == data[::-1]
            await until(lambda link=link, data=data: link.got == data)  # type: ignore[misc]
        for _, writer, link in clients:
            writer.close()
            await until(lambda link=link: link.is_lost)  # type: ignore[misc]
        await until(lambda: not pair.relayed)


@on_loop
async def test_thousands_of_small_writes_of_one_turn_arrive() -> None:
    async with _pair() as pair:
        clients = [await pair.client() for _ in range(4)]
        for number in range(5000):
            for _, _, link in clients:
                link.transport.write(b"%06d" % number)
        expected = b"".join(b"%06d" % number for number in range(5000))
        for reader, _, _ in clients:
            assert await within(reader.readexactly(len(expected))) == expected


@on_loop
async def test_a_client_that_does_not_read_holds_up_no_other_and_takes_no_more_room() -> None:
    async with _pair() as pair:
        reader, _, slow = await pair.client()
        other_reader, _, other = await pair.client()
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        blob = os.urandom(16 * 1024 * 1024)
        slow.transport.set_write_buffer_limits(high=1000)
        slow.transport.write(blob)
        assert slow.is_slow
        for number in range(50):
            other.transport.write(b"%03d" % number)
            assert await within(other_reader.readexactly(3)) == b"%03d" % number
        # the rest is with the link, whose limits count it
        assert slow.transport.get_write_buffer_size() > 8 * 1024 * 1024
        reader._transport.resume_reading()  # type: ignore[attr-defined]
        assert await within(reader.readexactly(len(blob))) == blob
        await until(lambda: not slow.is_slow)


@on_loop
async def test_a_link_that_does_not_read_gets_all_later_and_holds_no_more_than_the_room() -> None:
    async with _pair() as pair:
        _, writer, link = await pair.client()
        _, other_writer, other = await pair.client()
        link.transport.pause_reading()
        blob = os.urandom(8 * 1024 * 1024)
        writer.write(blob)
        await until(lambda: len(link.transport._kept) == ROOM_BYTES)
        other_writer.write(b"goes on")
        await until(lambda: other.got == b"goes on")
        assert not link.got
        link.transport.resume_reading()
        await until(lambda: link.got == blob)


@on_loop
async def test_what_is_written_before_the_end_arrives() -> None:
    async with _pair() as pair:
        blob = os.urandom(ROOM_BYTES * 3)
        reader, _, link = await pair.client()
        link.transport.write(blob)
        close_in_time(pair.loop, link.transport, is_tls=False)
        assert await _at_end(reader) == blob
        await until(lambda: link.is_lost)
        # and the other way, to a link that reads late
        _, writer, link = await pair.client()
        link.transport.pause_reading()
        writer.write(blob)
        await writer.drain()
        writer.close()
        await until(lambda: len(link.transport._kept) == ROOM_BYTES)
        link.transport.resume_reading()
        await until(lambda: link.is_lost)
        assert link.got == blob


@on_loop
async def test_a_client_that_reads_nothing_and_leaves_is_gone() -> None:
    async with _pair() as pair:
        reader, writer, link = await pair.client(_HOLDING)
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        link.transport.write(bytes(8 * 1024 * 1024))
        assert link.is_slow
        writer.write(b"late")
        await until(lambda: bool(link.transport._kept))
        writer.transport.abort()
        await until(lambda: link.is_lost)
        assert link.got == b"late"


@on_loop
async def test_a_link_that_lingers_is_read_to_its_end() -> None:
    async with _pair() as pair:
        reader, writer, link = await pair.client()
        link.transport.write(b"why")
        assert link.transport.can_write_eof()
        link.transport.write_eof()
        link.transport.write(b"nothing more")
        assert await _at_end(reader) == b"why"
        assert not link.is_lost
        writer.write(b"late")
        writer.close()
        await until(lambda: link.is_lost)
        assert link.got == b"late"


@on_loop
async def test_an_end_comes_before_the_client_is_relayed() -> None:
    async with _pair() as pair:
        for ends_by in ("write_eof", "close", "abort"):
            relayed = Relayed(pair.accepts, pair.relayed)
            opening = asyncio.create_task(relayed.open(_OPEN_OF_CLIENT))
            await until(lambda: bool(pair.links))
            link = pair.links.pop()
            link.transport.write(b"refused")
            getattr(link.transport, ends_by)()
            assert await opening
            own, accepted = socket.socketpair()
            transport, _ = await pair.loop.connect_accepted_socket(_Still, accepted)
            reader, writer = await asyncio.open_connection(sock=own)
            relayed.begin(transport)
            assert await _at_end(reader) == b"refused"
            writer.close()
            await until(lambda link=link: link.is_lost)  # type: ignore[misc]
        await until(lambda: not pair.relayed)


@on_loop
async def test_a_lost_trunk_ends_its_connections_on_both_sides() -> None:
    async with _pair() as pair:
        clients = [await pair.client() for _ in range(3)]
        pair.serves.abort()
        for reader, _, link in clients:
            assert await _at_end(reader) == b""
            await until(lambda link=link: link.is_lost)  # type: ignore[misc]
        await until(lambda: not pair.relayed)
        assert not await Relayed(pair.accepts, pair.relayed).open(_OPEN_OF_CLIENT)


@on_loop
async def test_a_trunk_that_is_lost_while_a_connection_opens() -> None:
    async with _pair() as pair:
        opening = asyncio.create_task(Relayed(pair.accepts, pair.relayed).open(_OPEN_OF_CLIENT))
        await asyncio.sleep(0)
        pair.accepts.abort()
        assert not await within(opening)


@on_loop
async def test_a_refused_connection_leaves_nothing() -> None:
    async with _pair() as pair:
        assert not await Relayed(pair.accepts, pair.relayed).open(_REFUSED)
        assert not pair.accepts._relays
        assert not pair.serves._relays


@on_loop
async def test_a_client_that_gives_up_while_it_is_opened_leaves_nothing() -> None:
    async with _pair() as pair:
        opening = asyncio.create_task(Relayed(pair.accepts, pair.relayed).open(_OPEN_OF_CLIENT))
        await asyncio.sleep(0)
        opening.cancel()
        await until(lambda: bool(pair.links) and pair.links[0].is_lost)
        assert not pair.accepts._relays
        assert not pair.serves._relays


@on_loop
async def test_a_fault_of_one_link_ends_its_client_alone() -> None:
    async with _pair() as pair:
        failed: list[BaseException] = []
        pair.loop.set_exception_handler(lambda _, told: failed.append(told["exception"]))
        reader, writer, faulty = await pair.client(_FAULTY)
        _, other_writer, other = await pair.client()
        writer.write(b"x")
        assert await _at_end(reader) == b""
        await until(lambda: faulty.is_lost)
        assert [type(error) for error in failed] == [ArithmeticError]
        other_writer.write(b"goes on")
        await until(lambda: other.got == b"goes on")


@pytest.mark.parametrize(
    "sent",
    [
        b"\xff",
        VERSION + b"\x04" + (1).to_bytes(8, "big") + (ROOM_BYTES + 1).to_bytes(4, "big"),
        VERSION + b"\x01" + (1).to_bytes(8, "big") + (1 << 31).to_bytes(4, "big"),
    ],
    ids=["another version", "data beyond the room", "a connection of 2 GiB"],
)
def test_what_is_no_trunk_is_cut(sent: bytes) -> None:
    @on_loop
    async def test() -> None:
        loop = asyncio.get_running_loop()
        trunks: set[Trunk] = set()
        near, far = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=near)
        await loop.create_connection(lambda: Trunk(loop, trunks, lambda *_: None), sock=far)
        writer.write(sent)
        assert await _at_end(reader) == b""
        writer.transport.abort()
        await until(lambda: not trunks)

    test()


@on_loop
async def test_a_stop_sends_what_was_written_to_all_while_they_go_on_sending() -> None:
    async with _pair() as pair:
        opened = [Relayed(pair.accepts, pair.relayed) for _ in range(1500)]
        await asyncio.gather(*(relayed.open(_OPEN_OF_CLIENT) for relayed in opened))
        for link in pair.links:
            link.transport.write(b"goodbye")
            link.transport.close()
        pair.serves.close()
        while pair.trunks:
            for relayed in opened:
                relayed.data_received(b"x")
            await asyncio.sleep(0)
        assert {b"".join(relayed._early) for relayed in opened} == {b"goodbye"}


@on_loop
async def test_a_lost_trunk_of_thousands_does_not_hold_the_loop() -> None:
    async with _pair() as pair:
        opened = [Relayed(pair.accepts, pair.relayed) for _ in range(1500)]
        await asyncio.gather(*(relayed.open(_OPEN_OF_CLIENT) for relayed in opened))
        cut: list[int] = []
        lost = [False] * len(opened)

        def look() -> None:
            before, lost[:] = sum(lost), [link.is_lost for link in pair.links]
            cut.append(sum(lost) - before)
            if not all(lost):
                pair.loop.call_soon(look)

        pair.serves.abort()
        pair.loop.call_soon(look)
        await until(lambda: all(lost))
        assert max(cut) <= 512
