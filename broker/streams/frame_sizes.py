"""Which frames are worth joining with their neighbours, and how large what they make may be."""

from __future__ import annotations

from typing import Final

SMALL_RECORDS: Final = 4096
# A frame with fewer records and bytes than these is worth joining with its neighbours.
SMALL_BYTES: Final = 512 * 1024
MAX_RECORDS: Final = 65_536
# What a joined frame may hold.
MAX_BYTES: Final = 1024 * 1024
# So many small frames are joined even when they hold little.
MAX_FRAMES: Final = 512


def is_small(records: int, size_bytes: int) -> bool:
    """Whether a frame is worth joining."""
    return records < SMALL_RECORDS and size_bytes < SMALL_BYTES


def is_frame(records: int, size_bytes: int) -> bool:
    """Whether so much fits a joined frame."""
    return records <= MAX_RECORDS and size_bytes <= MAX_BYTES
