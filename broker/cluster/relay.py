"""Connections that one cell accepts and another one serves: all of them go over one stream socket, the *trunk*.

A connection whose socket cannot be passed, since its TLS ends here or its cell is on another machine, is relayed. What
comes from clients and for clients in a turn of the loop is one write, whatever the number of clients. Each connection
may be ahead of its reader by ``ROOM_BYTES`` in each direction, so that one that reads slowly holds up no other.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from struct import Struct
from typing import Any, Final, cast

from broker.core.errors import SluiceError
from broker.net.tcp import CLOSE_DEADLINE_S, close_in_time

VERSION: Final = b"\1"
"""First byte of a trunk, from the cell that opens it: a cell closes trunks of versions that it does not know."""
ROOM_BYTES: Final = 256 * 1024
"""Bytes of a connection that may be under way or unread at the other end, in each direction."""
# Type, number of the connection, and number of bytes, which follow in OPEN and DATA.
_HEADER: Final = Struct("!BQI")
_OPEN, _OPENED, _REFUSED, _DATA, _ROOM, _END, _CLOSE = range(1, 8)
MOST_OPENING_BYTES: Final = 1024 * 1024
"""Maximum size of OPEN, which describes the client, in bytes."""
# Bytes that the trunk's own socket has not taken, with which connections wait.
_FULL_BYTES: Final = 1024 * 1024
# Limits of a turn of the loop: frames taken, of which an OPEN counts as several, and connections cut off.
_PER_TURN: Final = 512
_OPENS_AS: Final = 8
_CUTS_PER_TURN: Final = 256
# Number of the trunk itself: its CLOSE ends the trunk once all before it was taken.
_TRUNK: Final = 0


class RelayError(SluiceError):
    """The other cell has sent what is no frame of a trunk."""


class Trunk(asyncio.Protocol):
    """One end of a trunk. Whichever cell opens it numbers the connections."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        trunks: set[Trunk],
        opening: Callable[[Trunk, int, bytes], None] | None = None,
    ) -> None:
        """``trunks`` is the set of open trunks of this process. ``opening`` is called with number and description of
        each new connection, at the end that serves them."""
        self.loop: Final = loop
        self.is_full = False
        """True while the trunk's own socket takes no more."""
        self.is_lost = False
        self._trunks = trunks
        self._opening = opening
        self._is_begun = opening is None
        self._transport: asyncio.Transport | None = None
        self._relays: dict[int, Relay] = {}
        self._waiting: dict[Relay, None] = {}
        """Connections with bytes that wait until the trunk is not full, in order."""
        self._last = 0
        self._frames: list[bytes | memoryview] = []
        self._framed_bytes = 0
        self._received = b""
        self._is_behind = False
        """True while frames wait for the next turn of the loop, and nothing is read."""

    # -- asyncio.Protocol --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The cells are connected."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(_FULL_BYTES)
        self._trunks.add(self)
        if self._opening is None:
            self._transport.write(VERSION)

    def data_received(self, data: bytes) -> None:
        """Take frames."""
        self._received += data
        if not self._is_behind:
            self._take()

    def connection_lost(self, error: Exception | None) -> None:
        """The other cell is gone, and its ends of all connections with it."""
        self.is_lost = True
        self._transport = None
        self._trunks.discard(self)
        relays = list(self._relays.values())
        self._relays.clear()
        self._waiting.clear()
        self._cut(relays)

    def _cut(self, relays: list[Relay]) -> None:
        for relay in relays[:_CUTS_PER_TURN]:
            self.guarded(relay, relay.cut)
        if left := relays[_CUTS_PER_TURN:]:
            self.loop.call_soon(self._cut, left)

    def pause_writing(self) -> None:
        """The socket takes no more."""
        self.is_full = True

    def resume_writing(self) -> None:
        """The socket takes more: connections go on, in order."""
        self.is_full = False
        for relay in list(self._waiting):
            if self.is_full:
                return
            if relay in self._waiting:
                del self._waiting[relay]
                self.guarded(relay, relay.go_on)

    def guarded(self, relay: Relay, do: Callable[..., None], *arguments: Any) -> None:
        """Do something for a connection, whose fault ends that one, and no other."""
        try:
            do(*arguments)
        except Exception as error:  # noqa: BLE001  whatever it is
            self.loop.call_exception_handler(
                {"message": "a relayed connection failed", "exception": error}
            )
            relay.abort()

    # -- connections --

    def add(self, relay: Relay) -> int:
        """The number of a connection that begins here."""
        self._last += 1
        self._relays[self._last] = relay
        return self._last

    def accept(self, number: int, relay: Relay) -> None:
        """Serve a connection that the other cell has opened."""
        self._relays[number] = relay
        self.put(_OPENED, number)

    def refuse(self, number: int) -> None:
        """Refuse a connection: the other cell tries again."""
        self.put(_REFUSED, number)

    def forget(self, relay: Relay) -> None:
        """A connection is over."""
        self._relays.pop(relay.number, None)
        self._waiting.pop(relay, None)

    def wait(self, relay: Relay) -> None:
        """Have a connection go on when the trunk is not full any more."""
        self._waiting[relay] = None

    def put(self, kind: int, number: int, size: int = 0, data: bytes | memoryview = b"") -> None:
        """Send a frame with the others of this turn."""
        frames = self._frames
        if not frames:
            self.loop.call_soon(self.flush)
        frames.append(_HEADER.pack(kind, number, size))
        if data:
            frames.append(data)
            self._framed_bytes += size
            if self._framed_bytes > _FULL_BYTES:
                self.flush()

    def flush(self) -> None:
        """Send what was put."""
        frames = self._frames
        if not frames:
            return
        data = b"".join(frames)
        frames.clear()
        self._framed_bytes = 0
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """End the trunk, once the other cell has taken what was put."""
        self.put(_CLOSE, _TRUNK)
        self.flush()

    def abort(self) -> None:
        """End the trunk now."""
        if self._transport is not None:
            self._transport.abort()

    # -- frames --

    def _take(self) -> None:
        """Take frames that are complete, some in this turn and the others in the next ones."""
        was_behind, self._is_behind = self._is_behind, False
        try:
            self._is_behind = self._take_some()
        except RelayError:
            self.abort()
            return
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._is_behind:
            self.loop.call_soon(self._take)
        if self._is_behind != was_behind:
            (transport.pause_reading if self._is_behind else transport.resume_reading)()

    def _take_some(self) -> bool:
        """True if there are more."""
        data = self._received
        at = 0
        if not self._is_begun:
            if data[:1] != VERSION:
                raise RelayError
            self._is_begun = True
            at = 1
        end = len(data)
        relays = self._relays
        left = _PER_TURN
        while left > 0 and end - at >= _HEADER.size:
            left -= 1
            kind, number, size = _HEADER.unpack_from(data, at)
            start = at + _HEADER.size
            if kind == _DATA:
                if size > ROOM_BYTES:
                    raise RelayError
                if start + size > end:
                    break
                at = start + size
                relay = relays.get(number)
                if relay is not None:
                    self.guarded(relay, relay.received, data[start:at])
            elif kind == _OPEN:
                if size > MOST_OPENING_BYTES or self._opening is None:
                    raise RelayError
                if start + size > end:
                    break
                at = start + size
                left -= _OPENS_AS
                self._opening(self, number, data[start:at])
            elif number == _TRUNK:
                at = start
                if self._transport is not None:
                    self._transport.close()
            else:
                at = start
                relay = relays.get(number)
                if relay is not None:
                    self.guarded(relay, relay.told, kind, size)
        self._received = data[at:] if at < end else b""
        return left <= 0


class Relay(ABC):
    """One end of a relayed connection. What is sent waits while the other end has no room, or the trunk is full."""

    number: int

    def __init__(self, trunk: Trunk) -> None:
        self._trunk = trunk
        self._room = ROOM_BYTES
        """Bytes that the other end has room for."""
        self._unsent: deque[bytes | memoryview] = deque()
        self._unsent_bytes = 0
        self._taken = 0
        """Bytes that were taken here since the other end was given room."""
        self._closes = False
        """True if the connection ends behind what is unsent."""
        self._is_over = False

    @abstractmethod
    def received(self, data: bytes) -> None:
        """Take bytes from the other end, and call ``_took`` when there is room for as many again."""

    @abstractmethod
    def has_sent(self) -> None:
        """Some of what waited has been sent."""

    @abstractmethod
    def abort(self) -> None:
        """Cut both ends off."""

    @abstractmethod
    def ended(self) -> None:
        """The other end sends no more, and still reads."""

    @abstractmethod
    def closed(self) -> None:
        """The other end is gone."""

    def told(self, kind: int, size: int) -> None:
        """Take a frame without bytes."""
        if kind == _ROOM:
            self._room += size
            if self._unsent:
                self.go_on()
        elif kind == _CLOSE:
            self._trunk.forget(self)
            self.cut()
        elif kind == _END:
            self.ended()

    def cut(self) -> None:
        """The trunk has forgotten the connection."""
        if not self._is_over:
            self._is_over = True
            self._unsent.clear()
            self._unsent_bytes = 0
            self.closed()

    def _send(self, data: bytes) -> None:
        if not (size := len(data)):
            return
        if self._unsent or size > self._room or self._trunk.is_full:
            self._unsent.append(data)
            self._unsent_bytes += size
            if len(self._unsent) == 1:
                self.go_on()
        else:
            self._room -= size
            self._trunk.put(_DATA, self.number, size, data)

    def go_on(self) -> None:
        """Send what waits, as far as there is room."""
        unsent, trunk = self._unsent, self._trunk
        while unsent and self._room and not trunk.is_full:
            data = unsent.popleft()
            if len(data) > self._room:
                # a view: of a large message the rest is not copied each time
                unsent.appendleft(memoryview(data)[self._room :])
                data = data[: self._room]
            size = len(data)
            self._room -= size
            self._unsent_bytes -= size
            trunk.put(_DATA, self.number, size, data)
        if unsent and trunk.is_full:
            trunk.wait(self)
        if not unsent and self._closes:
            self._end()
        elif not self._is_over:
            self.has_sent()

    def _took(self, size: int) -> None:
        """There is room for these bytes again."""
        self._taken += size
        if self._taken >= ROOM_BYTES // 2 and not self._is_over:
            self._trunk.put(_ROOM, self.number, self._taken)
            self._taken = 0

    def _close(self) -> None:
        """End the connection behind what is unsent."""
        self._closes = True
        if not self._unsent and not self._is_over:
            self._end()

    def _end(self) -> None:
        """End the connection."""
        if self._is_over:
            return
        self._is_over = True
        self._unsent.clear()
        self._unsent_bytes = 0
        self._trunk.forget(self)
        self._trunk.put(_CLOSE, self.number)


class Relayed(Relay, asyncio.Protocol):
    """The end at the cell that accepts a connection: the protocol of the client's transport, once it is begun."""

    def __init__(self, trunk: Trunk, others: set[Relayed]) -> None:
        """``others`` has those of this process, this one while it is open."""
        super().__init__(trunk)
        self._others = others
        self._transport: asyncio.Transport | None = None
        self._early: list[bytes] = []
        """What came for the client before its transport is there."""
        self._is_slow = self._is_paused = self._is_refused = self._is_ended = False
        self._opened: asyncio.Future[None] = trunk.loop.create_future()

    async def open(self, told: bytes, first: bytes = b"") -> bool:
        """Open the connection at the other cell; False if that refuses it. ``told`` describes the client, and ``first``
        is what it has sent."""
        trunk = self._trunk
        if trunk.is_lost:
            return False
        self.number = trunk.add(self)
        trunk.put(_OPEN, self.number, len(told), told)
        self._send(first)
        try:
            await self._opened
        except BaseException:
            self._end()
            raise
        return not self._is_refused

    def begin(self, transport: asyncio.Transport) -> None:
        """Relay from here on what a transport brings, which does not read yet."""
        self._transport = transport
        self._others.add(self)
        transport.set_protocol(self)
        for data in self._early:
            transport.write(data)
            self._took(len(data))
        self._early.clear()
        if transport.is_closing():
            self.connection_lost(None)
        elif self._is_over:
            self.closed()
        else:
            self._is_paused = bool(self._unsent)
            if not self._is_paused:
                transport.resume_reading()
            if self._is_ended:
                self.ended()

    def abort(self) -> None:
        """Cut both ends off."""
        if self._transport is not None:
            self._transport.abort()
        self._end()

    # -- from the client --

    def data_received(self, data: bytes) -> None:
        """Give bytes to the cell; read no more until it has room."""
        if self._is_over or self._closes:
            return
        self._send(data)
        if self._unsent and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()

    def connection_lost(self, error: Exception | None) -> None:
        """The client is gone: what it sent before still belongs to the cell."""
        self._others.discard(self)
        self._transport = None
        self._close()
        if not self._is_over:
            self._trunk.loop.call_later(CLOSE_DEADLINE_S, self._end)

    def pause_writing(self) -> None:
        """The client reads slowly: the cell is not told that there is room."""
        self._is_slow = True

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._is_slow = False
        self._took(0)

    # -- from the cell --

    def told(self, kind: int, size: int) -> None:
        """Take a frame without bytes."""
        if kind == _OPENED:
            self._answered()
        elif kind == _REFUSED:
            self._is_refused = self._is_over = True
            self._unsent.clear()
            self._trunk.forget(self)
            self._answered()
        else:
            super().told(kind, size)

    def _answered(self) -> None:
        if not self._opened.done():
            self._opened.set_result(None)

    def received(self, data: bytes) -> None:
        """Give bytes to the client."""
        if self._transport is None:
            self._early.append(data)
            return
        self._transport.write(data)
        if self._is_slow:
            self._taken += len(data)
        else:
            self._took(len(data))

    def has_sent(self) -> None:
        """Read again once the cell has all that was read."""
        if self._is_paused and not self._unsent and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()

    def ended(self) -> None:
        """The cell waits until the client has closed, so that it sees what was sent last."""
        self._is_ended = True
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if transport.can_write_eof():
            transport.write_eof()
        else:
            close_in_time(self._trunk.loop, transport, is_tls=True)

    def closed(self) -> None:
        """The cell has closed: what the client sends from here on is read and thrown away."""
        if not self._opened.done():  # the trunk is lost, or the client had no place there
            self._is_refused = self._trunk.is_lost
            self._answered()
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.resume_reading()
            close_in_time(self._trunk.loop, transport, is_tls=True)


class Served(Relay, asyncio.Transport):
    """The end at the cell that serves a connection: the transport of its link."""

    def __init__(self, trunk: Trunk, number: int) -> None:
        super().__init__(trunk)
        self.number = number
        self._high = self._low = 0
        self._is_paused = self._is_behind = self._is_slow = self._is_left = self._ends = False
        self._kept = bytearray()
        """What came while the link does not read."""
        self._protocol: asyncio.Protocol | None = None

    def begin(self, protocol: asyncio.Protocol) -> None:
        """Have a link serve the connection."""
        self._protocol = protocol
        self.set_write_buffer_limits()
        protocol.connection_made(self)

    # -- from the client --

    def received(self, data: bytes) -> None:
        """Give bytes to the link, or keep them until it reads."""
        protocol = self._protocol
        if protocol is None or self._closes:
            self._took(len(data))
        elif self._is_paused or self._kept:
            self._kept += data
        else:
            protocol.data_received(data)
            self._took(len(data))

    def _give_kept(self) -> None:
        self._is_behind = False
        if self._is_paused or self._protocol is None:
            return
        data = bytes(self._kept)
        self._kept.clear()
        if data:
            self._protocol.data_received(data)
            self._took(len(data))
        if self._is_left:
            self.closed()

    def ended(self) -> None:
        """Never sent by the cell that accepts."""

    def closed(self) -> None:
        """The client is gone, or its cell: the link gets first what came before."""
        self._is_left = True
        if self._is_slow and self._protocol is not None:  # what waited for the client is gone, too
            self._is_slow = False
            self._protocol.resume_writing()
        if not self._kept or self._closes:
            self._lose()

    def _lose(self) -> None:
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            self._kept.clear()
            self._closes = True
            protocol.connection_lost(None)

    # -- asyncio.Transport --

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What is known of the client is in its ``Origin``."""
        return default

    def is_closing(self) -> bool:
        """True if it was closed, or the client has left."""
        return self._closes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """As of ``asyncio.WriteTransport``."""
        self._high = 64 * 1024 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        """Bytes that the other end, or the trunk, has no room for."""
        return self._unsent_bytes

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send; never waits."""
        if self._closes or self._ends:
            return
        if self._is_over:  # the client has left, and the link has not read all that it sent
            self._trunk.loop.call_soon(self._lose)
            return
        self._send(bytes(data))
        if self._unsent_bytes > self._high and not self._is_slow and self._protocol is not None:
            self._is_slow = True
            self._protocol.pause_writing()

    def has_sent(self) -> None:
        """Tell the link that the client has caught up."""
        if self._is_slow and self._unsent_bytes <= self._low and self._protocol is not None:
            self._is_slow = False
            self._protocol.resume_writing()
        if self._ends and not self._unsent and not self._closes:
            self._trunk.put(_END, self.number)

    def can_write_eof(self) -> bool:
        """True: the cell that accepted the connection ends what the client reads."""
        return True

    def write_eof(self) -> None:
        """Send no more, and read on."""
        if not self._ends and not self._is_over:
            self._ends = True
            if not self._unsent:
                self._trunk.put(_END, self.number)

    def pause_reading(self) -> None:
        """Give the link nothing more."""
        self._is_paused = True

    def resume_reading(self) -> None:
        """Give the link what came meanwhile, and all that comes."""
        self._is_paused = False
        if self._kept and not self._is_behind:
            self._is_behind = True
            self._trunk.loop.call_soon(self._trunk.guarded, self, self._give_kept)

    def is_reading(self) -> bool:
        """True unless it is paused or closed."""
        return not self._is_paused and not self._closes

    def close(self) -> None:
        """Send what waits, then close."""
        if self._closes:
            return
        self._kept.clear()
        self._close()
        if self._is_left:
            self._trunk.loop.call_soon(self._lose)

    def abort(self) -> None:
        """Close at once."""
        self._closes = True
        self._kept.clear()
        self._end()

    def _end(self) -> None:
        super()._end()
        self._trunk.loop.call_soon(self._lose)
