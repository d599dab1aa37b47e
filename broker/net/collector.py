"""When Python's garbage collector looks at what lives as long as the server or a connection: never twice.

A full collection visits every object, with the loop waiting: 10,000 connected clients and the modules are half a
million, some 100 ms. What connections and sessions are made of goes without the collector when they end, since nothing
in it refers to itself. So once some have come they are set aside (``gc.freeze``), and a collection has to do only with
what came since.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_AT_ONCE: Final = 1000
"""Connections after which those that came are set aside; looking through what they are made of takes some 5 ms."""


class Collector:
    """The garbage collector of the process, as one server uses it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        # asyncio's own transports refer to themselves: set aside, they would never go
        self._may_set_aside = type(loop).__module__.startswith("uvloop")
        self._seen = 0

    @contextmanager
    def restoring(self) -> Iterator[None]:
        """Leave it off while sessions are restored, since of them nothing is garbage; then set aside all there is."""
        gc.collect()
        gc.disable()
        try:
            yield
        finally:
            gc.enable()
        gc.freeze()

    def tick(self, connected: int) -> None:
        """Set aside what has come, once it is enough. ``connected`` is the number of clients that ever came."""
        if self._may_set_aside and connected - self._seen >= _AT_ONCE:
            self._seen = connected
            gc.collect()
            gc.freeze()

    def set_aside(self) -> None:
        """What is there by now stays, as the libraries of the management API do: next to nothing of it is garbage."""
        if self._may_set_aside:
            gc.freeze()
