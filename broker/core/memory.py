"""Small parts that keep sessions small, and count what clients have the broker keep."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Final

# An empty deque, shared by the many places where mostly nothing waits: one of its own takes 624 bytes, empty or not. A
# caller that adds to it takes ``filled`` first.
NOTHING: Final[deque[Any]] = deque(maxlen=0)


def filled(items: deque[Any]) -> deque[Any]:
    """The deque itself, or one that can be added to in place of ``NOTHING``."""
    return deque() if items is NOTHING else items


@dataclass(slots=True)
class MemoryUse:
    """Bytes that all clients together take for one kind of thing, such as subscriptions."""

    bytes: int = 0
