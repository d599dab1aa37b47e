"""Size limits of frames: those worth joining with their neighbours, and the joined ones."""

from __future__ import annotations

from typing import Final

SMALL_RECORDS: Final = 4096
# A frame with fewer records and bytes than these is worth joining with its neighbours.
SMALL_BYTES: Final = 512 * 1024
MAX_RECORDS: Final = 65_536
# Maximum size of a joined frame.
MAX_BYTES: Final = 1024 * 1024
# Number of small frames that are joined even when they hold little.
MAX_FRAMES: Final = 512


def is_small(records: int, size_bytes: int) -> bool:
    """True if a frame is worth joining."""
    return records < SMALL_RECORDS and size_bytes < SMALL_BYTES


def is_frame(records: int, size_bytes: int) -> bool:
    """True if the records and bytes fit a joined frame."""
    return records <= MAX_RECORDS and size_bytes <= MAX_BYTES
