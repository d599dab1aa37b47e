"""What the store keeps of a cell's links.

Keys: ``links/log``, the identity of this cell's session log; ``links/at/CELL``, how far another cell's log is kept
here, written in the commit group of what was kept; ``links/kept/CELL``, how far another cell has kept this cell's log;
``links/routes/CELL/FILTER``, the filters of its durable sessions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from uuid import uuid4

import msgspec

from broker.storage.collection import RAW, TEXT, Collection, RetriedCollection
from broker.storage.store import Batch, Store
from broker.storage.writer import Writer

_PREFIX: Final = b"links/"
_ROUTES: Final = b"links/routes/"
_pack: Final = msgspec.msgpack.Encoder().encode
_position: Final = msgspec.msgpack.Decoder(tuple[str, int]).decode
_route: Final = msgspec.msgpack.Decoder(tuple[int, int]).decode


class Positions:
    """Positions in session logs, and filters that must outlive the process. ``identity`` is that of this cell's log."""

    def __init__(self, writer: Writer) -> None:
        self._stored = Collection(writer, _PREFIX, TEXT, RAW)
        # another cell tells a filter once
        self._routes = RetriedCollection(writer, _ROUTES, TEXT, RAW)
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
        prefix = f"{number}/"
        return [
            (key.removeprefix(prefix), *_route(value))
            for key, value in self._routes.stored(prefix.encode())
        ]

    def keep_route(self, number: int, text: str, value: tuple[int, int] | None) -> None:
        """Store such a filter, or delete it."""
        self._routes.put(f"{number}/{text}", None if value is None else _pack(value))


class StoredPositions:
    """The same in the store of a cell that does not run."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.identity = (store.get(_PREFIX + b"log") or b"").decode()

    def keep_identity(self) -> None:
        """Give the cell's session log an identity if it has none."""
        if not self.identity:
            self.identity = uuid4().hex
            self._store.commit(Batch(puts={_PREFIX + b"log": self.identity.encode()}))

    def at(self, number: int) -> tuple[str, int] | None:
        """See ``Positions.at``; None if nothing of that cell was ever kept here."""
        stored = self._store.get(_PREFIX + b"at/%d" % number)
        return None if stored is None else _position(stored)

    def kept_by(self, number: int) -> int | None:
        """See ``Positions.kept_by``."""
        stored = self._store.get(_PREFIX + b"kept/%d" % number)
        return None if stored is None else int(stored)

    def routes_of(self, number: int) -> list[tuple[str, int, int]]:
        """See ``Positions.routes_of``."""
        prefix = _routes(number)
        return [
            (key.removeprefix(prefix).decode(), *_route(value))
            for key, value in self._store.scan(prefix)
        ]

    def replace(self, number: int, filters: Mapping[str, int], offset: int) -> None:
        """Set the filters of another cell's durable sessions, with their kinds, which hold from an offset on, and that
        the cell has all before it."""
        puts: dict[bytes, bytes | None] = {
            key: None for key, _ in self._store.scan(_routes(number))
        }
        for text, kind in filters.items():
            puts[_routes(number) + text.encode()] = _pack((kind, offset))
        puts[_PREFIX + b"kept/%d" % number] = b"%d" % offset
        self._store.commit(Batch(puts=puts))

    @staticmethod
    def kept_at(number: int, identity: str, offset: int) -> dict[bytes, bytes | None]:
        """The change that notes how far another cell's log is kept."""
        return {_PREFIX + b"at/%d" % number: _pack((identity, offset))}


def _routes(number: int) -> bytes:
    return _ROUTES + b"%d/" % number
