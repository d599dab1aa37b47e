"""A write batch that can be written again: rocksdict uses up its own even when the write is refused."""

from __future__ import annotations

from rocksdict import WriteBatch


class Changes:
    """Puts and deletes that are made together, in the order given."""

    __slots__ = ("_steps",)

    def __init__(self) -> None:
        self._steps: list[tuple[bytes, bytes | None, bool]] = []

    def put(self, key: bytes, value: bytes) -> None:
        """Set a key."""
        self._steps.append((key, value, False))

    def delete(self, key: bytes) -> None:
        """Delete a key."""
        self._steps.append((key, None, False))

    def delete_range(self, start: bytes, end: bytes) -> None:
        """Delete all keys from ``start`` up to, not including, ``end``."""
        self._steps.append((start, end, True))

    def batch(self) -> WriteBatch:
        """A fresh write batch."""
        batch = WriteBatch(raw_mode=True)
        for key, value, is_range in self._steps:
            if value is None:
                batch.delete(key)
            elif is_range:
                batch.delete_range(key, value)
            else:
                batch.put(key, value)
        return batch
