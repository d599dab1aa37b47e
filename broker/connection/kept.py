"""What of a connection hangs on a commit group: answers that wait for it, and what is lost with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

Waiting = bytes | Callable[[], None]
"""An answer that waits for a commit, or what is to be done then."""


class Kept(NamedTuple):
    """A publish that left something in the commit group, and what is lost with it when that cannot be written."""

    packet_id: int
    is_wanted: bool
    """Somebody was to get it."""
    is_refused: bool = False
    """Its answer says so whatever becomes of the group."""
