"""Disk space of what was deleted, given back.

A range that is deleted stays in RocksDB's files until they are compacted, and files that no one writes near to are not:
after 300 MB were trimmed, 256 MB stayed until the next start. So once much has been deleted the range is compacted, on
a thread of its own, since that takes a while (0.14 s for those 256 MB; the interpreter lock is let go meanwhile).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

AFTER_BYTES: Final = 64 * 1024 * 1024
"""So much is deleted before a range is compacted: as a write buffer holds."""


class Reclaim:
    """Compacts ranges by ``compact(start, end)``. ``forgotten`` is called by one thread at a time."""

    def __init__(self, compact: Callable[[bytes, bytes], None], after_bytes: int = AFTER_BYTES) -> None:
        self._compact, self._after_bytes = compact, after_bytes
        self._deleted_bytes = 0
        self._thread: threading.Thread | None = None

    def forgotten(self, size_bytes: int, start: bytes, end: bytes) -> None:
        """The keys from ``start`` up to ``end`` were deleted; bytes are before compression."""
        self._deleted_bytes += size_bytes
        if self._deleted_bytes < self._after_bytes or (self._thread is not None and self._thread.is_alive()):
            return
        self._deleted_bytes = 0
        self._thread = threading.Thread(target=self._compact, args=(start, end), name="store reclaim", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait for a compaction that is under way: before the files are closed."""
        if self._thread is not None:
            self._thread.join()
