"""Keys and values in memory, in the order of the keys."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from sortedcontainers import SortedDict


class OrderedKeys:
    """A key space. Changing a key takes microseconds however many there are; 100 bytes a key in addition to key and
    value."""

    def __init__(self, lock: AbstractContextManager[Any] | None = None) -> None:
        """``lock`` is held by a thread that changes keys, and by a cursor on another thread for each step."""
        self._items: SortedDict = SortedDict()
        self._lock = lock or nullcontext()

    def __len__(self) -> int:
        return len(self._items)

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, or None."""
        value: bytes | None = self._items.get(key)
        return value

    def put(self, key: bytes, value: bytes | None) -> None:
        """Set a key, or delete it with None."""
        if value is None:
            self._items.pop(key, None)
        else:
            self._items[key] = value

    def under(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """All keys and values that begin with a prefix, in order, as of the call."""
        pairs = []
        for key in self._items.irange(prefix):
            if not key.startswith(prefix):
                break
            pairs.append((key, self._items[key]))
        return pairs

    def cursor(self, prefix: bytes) -> OrderedCursor:
        """A cursor over the keys that begin with ``prefix``. Changes made while it is used may be seen."""
        return OrderedCursor(self._items, prefix, self._lock)


class OrderedCursor:
    """Implements ``broker.storage.store.KeyCursor``."""

    __slots__ = ("_items", "_key", "_lock", "_prefix")

    def __init__(self, items: SortedDict, prefix: bytes, lock: AbstractContextManager[Any]) -> None:
        self._items = items
        self._prefix = prefix
        self._lock = lock
        self._key: bytes | None = None

    def seek(self, key: bytes) -> bytes | None:
        with self._lock:
            return self._stand_on(next(self._items.irange(max(key, self._prefix)), None))

    def next(self) -> bytes | None:
        if self._key is None:
            return None
        with self._lock:
            return self._stand_on(
                next(self._items.irange(self._key, inclusive=(False, True)), None)
            )

    def value(self) -> bytes:
        value: bytes = self._items.get(self._key, b"")
        return value

    def _stand_on(self, key: bytes | None) -> bytes | None:
        self._key = key if key is not None and key.startswith(self._prefix) else None
        return self._key
