"""A broker with its store on disk and its loop on a thread of its own: what the loop does is measured apart from the
clients that the test plays."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from broker.core.clock import SystemClock
from broker.storage.rocksdb.store import RocksStore
from tests.support.lateness import Lateness, observed
from tests.support.mqtt_server import Node, running

_R = TypeVar("_R")
_DEADLINE_S = 60.0


class BrokerThread:
    """A running broker: its ``node``, and what its loop is late by."""

    node: Node
    lateness: Lateness

    def __init__(self, directory: Path, **options: Any) -> None:
        self._directory, self._options = directory, options
        self._loop = uvloop.new_event_loop()
        self._ready, self._over = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="broker", daemon=True)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        store = RocksStore(self._directory, "os")
        clock: Any = SystemClock()
        async with (
            running(store, clock=clock, **self._options) as self.node,
            observed() as self.lateness,
        ):
            self._ready.set()
            await self._over.wait()

    def call(self, work: Coroutine[Any, Any, _R]) -> _R:
        """The result of something done on the broker's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_DEADLINE_S)

    def on_loop(self, work: Callable[[], _R]) -> _R:
        """The same for a plain call."""

        async def do() -> _R:
            return work()

        return self.call(do())

    def start(self) -> None:
        """Start, and wait until it listens."""
        self._thread.start()
        assert self._ready.wait(_DEADLINE_S)

    def stop(self) -> None:
        """Stop, and wait until it has."""
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(_DEADLINE_S)


@contextmanager
def broker_thread(directory: Path, **options: Any) -> Iterator[BrokerThread]:
    """A broker that is stopped at the end."""
    broker = BrokerThread(directory, **options)
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


class Socket:
    """A client that sends bytes and waits, on the test's thread."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=_DEADLINE_S)
        self._unread = bytearray()

    def send(self, data: bytes) -> bool:
        """Send all of it; False when the broker closed meanwhile."""
        try:
            self._socket.sendall(data)
        except OSError:
            return False
        return True

    def read_until(self, first: int | None = None) -> bool:
        """Read packets up to one that begins with this byte, or any; False when the broker closes before."""
        while True:
            packet = self._packet()
            if packet is None:
                return False
            if first in (None, packet):
                return True

    def _packet(self) -> int | None:
        """The first byte of the next whole packet."""
        size, shift, at = 0, 0, 1
        while True:
            while len(self._unread) <= at:
                if not self._read():
                    return None
            byte = self._unread[at]
            size, shift, at = size | (byte & 0x7F) << shift, shift + 7, at + 1
            if byte < 0x80:
                break
        while len(self._unread) < at + size:
            if not self._read():
                return None
        first = self._unread[0]
        del self._unread[: at + size]
        return first

    def _read(self) -> bool:
        try:
            data = self._socket.recv(1 << 20)
        except ConnectionError:
            return False
        self._unread += data
        return bool(data)

    def ask(self, data: bytes, first: int) -> bool:
        """``send`` and ``read_until``."""
        return self.send(data) and self.read_until(first)

    def close(self) -> None:
        """Close without a word."""
        self._socket.close()
