"""Collections: the values of one kind in the store, by key.

A collection is the only way in which what is not a log reaches the store. Of the kinds, a ``Collection`` remembers
nothing, a ``LiveCollection`` what waits for its commit, a ``ResidentCollection`` everything; a ``RetriedCollection``
has its changes committed, however often a commit fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Generic, NamedTuple, TypeVar

from broker.storage.store import KeyCursor
from broker.storage.writer import Writer

K = TypeVar("K")
V = TypeVar("V")

# Changes of one commit group, None for a deletion.
_Changes = dict[bytes, bytes | None]


class Codec(NamedTuple, Generic[V]):
    """Encoding of keys or values. The bytes of keys must sort in the order of scans."""

    encode: Callable[[V], bytes]
    decode: Callable[[bytes], V]


def _same(data: bytes) -> bytes:
    return data


TEXT: Final = Codec[str](str.encode, bytes.decode)
NUMBER: Final = Codec[int](lambda number: number.to_bytes(8), int.from_bytes)
RAW: Final = Codec[bytes](_same, _same)


class Collection(Generic[K, V]):
    """Values in the store, read as they were committed. Changes take part in the commit group that is gathering.

    ``put`` and ``delete`` are for the event loop, reads for any thread.

    Args:
        writer: what commits.
        prefix: begins the collection's keys in the store, and no other collection's.
        keys: how keys are written.
        values: how values are written.
    """

    def __init__(self, writer: Writer, prefix: bytes, keys: Codec[K], values: Codec[V]) -> None:
        self.writer = writer
        self.prefix = prefix
        self._keys = keys
        self._values = values
        self._encode_key = keys.encode
        self._encode = values.encode

    def committed(self, key: K) -> V | None:
        """The value of a key in the store, or None."""
        data = self.writer.store.get(self.prefix + self._encode_key(key))
        return None if data is None else self._values.decode(data)

    def stored(self, begin: bytes = b"") -> Iterator[tuple[K, V]]:
        """All keys that begin so and their values, in order, as they are in the store."""
        length = len(self.prefix)
        for key, data in self.writer.store.scan(self.prefix + begin):
            yield self._keys.decode(key[length:]), self._values.decode(data)

    def keys_from(self, after: K | None, limit: int) -> list[K]:
        """At most ``limit`` keys in the store behind ``after`` (None: from the first), in order."""
        cursor = self.cursor()
        keys = list[K]()
        key = cursor.seek(b"" if after is None else self._encode_key(after) + b"\0")
        while key is not None and len(keys) < limit:
            keys.append(self._keys.decode(key))
            key = cursor.next()
        return keys

    def cursor(self) -> KeyCursor:
        """A cursor over the keys in the store, as bytes, without the prefix."""
        return _Cursor(self.writer.store.cursor(self.prefix), self.prefix)

    def put(self, key: K, value: V | None) -> None:
        """Set a value, or delete it with None."""
        self.writer.put(
            self.prefix + self._encode_key(key), None if value is None else self._encode(value)
        )


class _Cursor:
    """Implements ``KeyCursor``."""

    __slots__ = ("_cursor", "_length", "_prefix", "value")

    def __init__(self, cursor: KeyCursor, prefix: bytes) -> None:
        self._cursor, self._prefix, self._length = cursor, prefix, len(prefix)
        self.value = cursor.value

    def seek(self, key: bytes) -> bytes | None:
        reached = self._cursor.seek(self._prefix + key)
        return None if reached is None else reached[self._length :]

    def next(self) -> bytes | None:
        key = self._cursor.next()
        return None if key is None else key[self._length :]


class LiveCollection(Collection[K, V]):
    """A collection that knows what waits for its commit: ``get`` sees it.

    ``on_failure`` is called with a key, the value that was put and the one that the store has, once no commit can bring
    the first: an owner that counts values or keeps an index takes it back.
    """

    def __init__(
        self,
        writer: Writer,
        prefix: bytes,
        keys: Codec[K],
        values: Codec[V],
        on_failure: Callable[[K, V | None, V | None], None] | None = None,
    ) -> None:
        super().__init__(writer, prefix, keys, values)
        self._on_failure = on_failure
        self._pending: dict[bytes, _Changes] = {}
        """Group that changes a key last, by key."""
        self._open: _Changes = {}
        writer.before_commit(self._seal)

    def get(self, key: K) -> V | None:
        """The value of a key as it was put last, or None."""
        stored_key = self._encode_key(key)
        changes = self._pending.get(stored_key)
        data = (
            self.writer.store.get(self.prefix + stored_key)
            if changes is None
            else changes[stored_key]
        )
        return None if data is None else self._values.decode(data)

    @property
    def waiting_count(self) -> int:
        """Number of changes that wait for their commit."""
        return len(self._pending)

    def is_waiting(self, key: K) -> bool:
        """True if a change of a key waits for its commit."""
        return self._encode_key(key) in self._pending

    def waiting(self) -> Iterator[tuple[K, V | None]]:
        """The changes that wait for their commit, None where a value is deleted."""
        for key, changes in self._pending.items():
            yield self._keys.decode(key), self._decoded(changes[key])

    def put(self, key: K, value: V | None) -> None:
        """Set a value, or delete it with None."""
        stored_key = self._encode_key(key)
        data = None if value is None else self._encode(value)
        self.writer.put(self.prefix + stored_key, data)
        changes = self._open
        if not changes:
            self.writer.when_committed(lambda error: self._settle(changes, error))
        changes[stored_key] = data
        self._pending[stored_key] = changes

    def _seal(self) -> None:
        if self._open:
            self._open = {}

    def _settle(self, changes: _Changes, error: BaseException | None) -> None:
        for key, data in changes.items():
            if self._pending[key] is not changes:
                continue
            del self._pending[key]
            if error is not None and self._on_failure is not None:
                stored = self.writer.store.get(self.prefix + key)
                self._on_failure(self._keys.decode(key), self._decoded(data), self._decoded(stored))

    def _decoded(self, data: bytes | None) -> V | None:
        return None if data is None else self._values.decode(data)


class RetriedCollection(LiveCollection[K, V]):
    """A collection whose changes are in each commit group until one of these is committed. So no group is committed
    without the changes before it, and one that fails takes none of them back."""

    def _seal(self) -> None:
        for key, changes in self._pending.items():
            if changes is not self._open:
                self.put(self._keys.decode(key), self._decoded(changes[key]))
        super()._seal()

    def _settle(self, changes: _Changes, error: BaseException | None) -> None:
        if error is None:
            super()._settle(changes, None)


class ResidentCollection(LiveCollection[K, V]):
    """A collection whose values are all in memory too.

    ``on_change`` is called with a key and its value, or None, after each change, also when a failed commit takes it
    back: an owner with an index has one function for it.
    """

    def __init__(
        self,
        writer: Writer,
        prefix: bytes,
        keys: Codec[K],
        values: Codec[V],
        on_change: Callable[[K, V | None], None] | None = None,
    ) -> None:
        super().__init__(
            writer, prefix, keys, values, lambda key, _, stored: self._hold(key, stored)
        )
        self._resident: dict[K, V] = {}
        self._on_change = on_change

    def __len__(self) -> int:
        return len(self._resident)

    def __iter__(self) -> Iterator[K]:
        return iter(self._resident)

    def load(self) -> None:
        """Take what the store holds, before anything else is asked."""
        for key, value in self.stored():
            self._hold(key, value)

    def values(self) -> list[V]:
        """All values, in the order in which their keys were first put."""
        return list(self._resident.values())

    def get(self, key: K) -> V | None:
        """The value of a key, or None."""
        return self._resident.get(key)

    def put(self, key: K, value: V | None) -> None:
        """See ``LiveCollection.put``."""
        super().put(key, value)
        self._hold(key, value)

    def _hold(self, key: K, value: V | None) -> None:
        if value is None:
            self._resident.pop(key, None)
        else:
            self._resident[key] = value
        if self._on_change is not None:
            self._on_change(key, value)
