"""Packets that wait to be written to one connection in this turn of the loop.

A turn writes to each connection once, however many messages it got: a message written singly costs 4,450 ns, in
batches of 64 it costs 170. Where there is very much to write, the rest is left to the turns to come.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

# Connections written to in one turn of the loop: with a system call each, some 8 ms.
AT_ONCE: Final = 256
# Bytes written in one turn, to several connections: some milliseconds.
AT_ONCE_BYTES: Final = 4 * 1024 * 1024

# Size of packets that many connections may share: they are not copied for each, to be joined with later ones.
_LARGE: Final = 32 * 1024


class PendingWrites:
    """The outboxes with something to write. ``defer`` is to call what it is given in another turn of the loop, once the
    first one is added; ``left`` hears whether some are left to turns to come, when that changes."""

    __slots__ = ("_defer", "_has_left", "_is_awake", "_left", "dirty", "read_bytes")

    def __init__(
        self, defer: Callable[[Callable[[], None]], object], left: Callable[[bool], None]
    ) -> None:
        self._defer = defer
        self._left = left
        self._is_awake = self._has_left = False
        self.dirty: list[Outbox] = []
        self.read_bytes = 0
        """Read since the last flush, by all connections."""

    def wake(self) -> None:
        """Schedule the write of everything."""
        if not self._is_awake:
            self._is_awake = True
            self._defer(self._run)

    def flush(self) -> None:
        """Write what waits, as much as a turn takes."""
        dirty = self.dirty
        self.dirty = []
        self.read_bytes = 0
        written = 0
        for number, box in enumerate(dirty, 1):
            written += box.flush()
            if written >= AT_ONCE_BYTES or number == AT_ONCE:
                self.dirty = dirty[number:]
                break
        has_left = bool(self.dirty)
        if has_left is not self._has_left:
            self._has_left = has_left
            self._left(has_left)

    def _run(self) -> None:
        self._is_awake = False
        self.flush()
        if self.dirty:
            self.wake()


class Outbox:
    """Bytes for one connection. The hot path appends to ``chunks`` itself and calls ``mark`` unless ``is_dirty``."""

    __slots__ = (
        "_pending",
        "_write",
        "bytes_out",
        "chunks",
        "corked_with",
        "is_dirty",
        "messages_out",
    )

    is_plain = True
    """True if packets may be appended to ``chunks`` unchanged."""

    def __init__(self, pending: PendingWrites, write: Callable[[bytes], object]) -> None:
        self._pending = pending
        self._write = write
        self.chunks: list[bytes] = []
        self.is_dirty = False
        self.corked_with = b""
        """Packet that is sent before all else, once ``uncork`` is called; empty when nothing is held back."""
        self.bytes_out = self.messages_out = 0
        """Written so far. Messages are counted where they are added."""

    def add(self, chunk: bytes) -> None:
        """Write this in the present turn."""
        self.chunks.append(chunk)
        if not self.is_dirty:
            self.mark()

    def mark(self) -> None:
        """Make the present turn write what is there."""
        self.is_dirty = True
        pending = self._pending
        if not pending.dirty:
            pending.wake()
        pending.dirty.append(self)

    def cork(self, first: bytes) -> None:
        """Keep everything until ``uncork``, behind ``first``: nothing may leave before the CONNACK [MQTT-3.2.0-1]."""
        self.is_dirty = True
        self.corked_with = first

    def uncork(self) -> None:
        """Send what was kept."""
        self.chunks.insert(0, self.corked_with)
        self.corked_with = b""
        self.mark()

    def flush(self) -> int:
        """Write what is there now, unless it is corked; how many bytes that was."""
        if self.corked_with:
            return 0
        self.is_dirty = False
        chunks = self.chunks
        size = 0
        while len(chunks) > 1 and len(chunks[0]) >= _LARGE:
            size += self._send(chunks.pop(0))
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        return size + self._send(data) if data else size

    def tap(self, hear: Callable[[bytes], object]) -> Callable[[], None]:
        """Let a function see all bytes that are written from now on; returns what ends that. One at a time."""
        write = self._write

        def both(data: bytes) -> None:
            write(data)
            hear(data)

        def end() -> None:
            self._write = write

        self._write = both
        return end

    def topics_by_alias(self) -> dict[int, bytes]:
        """The topics that the client knows by a number."""
        return {}

    def _send(self, data: bytes) -> int:
        size = len(data)
        self.bytes_out += size
        self._write(data)
        return size
