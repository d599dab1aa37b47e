"""Values of features over the store, each under ``values/``."""

from __future__ import annotations

from typing import Final

from broker.core.values import Done
from broker.storage.writer import Writer

_PREFIX: Final = b"values/"


class StoredValues:
    """Implements ``broker.core.values.Values``."""

    def __init__(self, writer: Writer) -> None:
        self._writer, self._store = writer, writer.store

    def get(self, key: str) -> bytes | None:
        """The value that is committed, or None."""
        return self._store.get(_PREFIX + key.encode())

    def put(self, key: str, value: bytes | None) -> None:
        """Set a value, or delete it with None, in the commit group that is gathering."""
        self._writer.put(_PREFIX + key.encode(), value)

    def names(self, prefix: str) -> list[str]:
        """The keys there are that begin so, in order."""
        return [key.removeprefix(_PREFIX).decode() for key, _ in self._store.scan(_PREFIX + prefix.encode())]

    def when_committed(self, done: Done) -> None:
        """Call ``done`` once all so far is committed, or with what kept it from being."""
        self._writer.when_committed(done)

    @property
    def is_congested(self) -> bool:
        """Whether more waits for the disk than the settings allow."""
        return self._writer.is_congested
