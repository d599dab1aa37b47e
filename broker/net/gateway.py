"""Copies bytes between a client's TLS and the cell that has the client, both ways, as fast as the slower side takes
them."""

from __future__ import annotations

import asyncio
import socket
from typing import Final

from broker.net.tcp import CLOSE_DEADLINE_S, close_in_time

_READ_BYTES: Final = 64 * 1024


class Gateway(asyncio.Protocol):
    """The client's side of a connection whose other side is a cell.

    Takes over a transport that does not read, and reads once it is begun.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        cell: socket.socket,
        others: set[Gateway],
    ) -> None:
        """``cell`` does not block; ``others`` has the gateways of this process, this one until it has ended."""
        self._loop = loop
        self._transport = transport
        self._cell = cell
        self._others = others
        self._unsent = b""
        self._is_ending = self._is_over = False

    def begin(self) -> None:
        """Copy until one side ends."""
        self._others.add(self)
        self._transport.set_protocol(self)
        self._loop.add_reader(self._cell, self._cell_sent)
        if self._transport.is_closing():
            self.connection_lost(None)
        else:
            self._transport.resume_reading()

    def abort(self) -> None:
        """Cut both sides off."""
        self._transport.abort()
        self._end()

    # -- from the client --

    def data_received(self, data: bytes) -> None:
        """Give bytes to the cell; read no more until it has taken them."""
        if self._is_ending:
            return
        if self._unsent:  # TLS had more than one record when it was paused
            self._unsent += data
            return
        self._unsent = data
        self._send()
        if self._unsent and not self._is_ending:
            self._transport.pause_reading()
            self._loop.add_writer(self._cell, self._send_rest)

    def connection_lost(self, error: Exception | None) -> None:
        """The client is gone: what it sent before still belongs to the cell."""
        if self._is_over or self._is_ending:
            self._end()
            return
        self._is_ending = True
        self._loop.remove_reader(self._cell)
        if not self._unsent:
            self._end()
        else:
            self._loop.call_later(CLOSE_DEADLINE_S, self._end)

    def pause_writing(self) -> None:
        """The client reads slowly: what the cell sends stays with the cell."""
        if not self._is_ending:
            self._loop.remove_reader(self._cell)

    def resume_writing(self) -> None:
        """The client has caught up."""
        if not self._is_ending:
            self._loop.add_reader(self._cell, self._cell_sent)

    def _send_rest(self) -> None:
        self._send()
        if self._unsent or self._is_over:
            return
        self._loop.remove_writer(self._cell)
        if self._is_ending:
            self._end()
        else:
            self._transport.resume_reading()

    def _send(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[self._cell.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:  # the cell has closed, and what it has sent is still to be read
            self._unsent = b""

    # -- from the cell --

    def _cell_sent(self) -> None:
        try:
            data = self._cell.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self._transport.abort()
            return
        if data:
            self._transport.write(data)
            return
        self._is_ending = True  # what the client sends from here on is read and thrown away
        self._loop.remove_reader(self._cell)
        self._transport.resume_reading()
        close_in_time(self._loop, self._transport, is_tls=True)

    def _end(self) -> None:
        if self._is_over:
            return
        self._is_over = self._is_ending = True
        self._others.discard(self)
        self._loop.remove_reader(self._cell)
        self._loop.remove_writer(self._cell)
        self._cell.close()
