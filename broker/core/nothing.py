"""An empty deque for the many places where mostly nothing waits: one of its own takes 624 bytes, empty or not."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

NOTHING: Final[deque[Any]] = deque(maxlen=0)
"""Shared, and always empty: a caller that adds takes ``filled`` first."""


def filled(items: deque[Any]) -> deque[Any]:
    """The deque itself, or one that can be added to in place of ``NOTHING``."""
    return deque() if items is NOTHING else items
