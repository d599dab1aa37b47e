"""What the store keeps of a cell's links.

Keys: ``links/log``, the identity of this cell's session log; ``links/at/CELL``, how far another cell's log is kept
here, written in the commit group of what was kept; ``links/kept/CELL``, how far another cell has kept this cell's log;
``links/routes/CELL/FILTER``, the filters of its durable sessions.
"""

from __future__ import annotations

from typing import Final
from uuid import uuid4

import msgspec

from broker.storage.collection import RAW, TEXT, Collection
from broker.storage.writer import Writer

_pack: Final = msgspec.msgpack.Encoder().encode
_position: Final = msgspec.msgpack.Decoder(tuple[str, int]).decode
_route: Final = msgspec.msgpack.Decoder(tuple[int, int]).decode


class Positions:
    """Positions in session logs, and filters that must outlive the process. ``identity`` is that of this cell's log."""

    def __init__(self, writer: Writer) -> None:
        self._stored = Collection(writer, b"links/", TEXT, RAW)
        stored = self._stored.committed("log")
        self.identity = "" if stored is None else stored.decode()
        if stored is None:
            self.renew()

    def renew(self) -> None:
        """Make another log of this cell's, since offsets will be given again that other cells have records of."""
        self.identity = uuid4().hex
        self._stored.put("log", self.identity.encode())

    def at(self, number: int) -> tuple[str, int]:
        """Identity of another cell's session log, and the offset up to which it is kept here."""
        stored = self._stored.committed(f"at/{number}")
        return ("", 0) if stored is None else _position(stored)

    def keep_at(self, number: int, identity: str, offset: int) -> None:
        """Store it in the commit group that is gathering."""
        self._stored.put(f"at/{number}", _pack((identity, offset)))

    def kept_by(self, number: int) -> int | None:
        """Offset up to which another cell has kept this cell's log; None if it never did."""
        stored = self._stored.committed(f"kept/{number}")
        return None if stored is None else int(stored)

    def keep_kept(self, number: int, offset: int) -> None:
        """Store it."""
        self._stored.put(f"kept/{number}", str(offset).encode())

    def routes_of(self, number: int) -> list[tuple[str, int, int]]:
        """Filters of another cell's durable sessions, with their kinds and the offsets from which they hold."""
        prefix = f"routes/{number}/"
        return [
            (key.removeprefix(prefix), *_route(value))
            for key, value in self._stored.stored(prefix.encode())
        ]

    def keep_route(self, number: int, text: str, value: tuple[int, int] | None) -> None:
        """Store such a filter, or delete it."""
        self._stored.put(f"routes/{number}/{text}", None if value is None else _pack(value))
