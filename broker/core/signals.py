"""Observer lists: an object announces a change to subscribers that it does not know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVarTuple

P = TypeVarTuple("P")


class Signal(Generic[*P]):
    """Calls everything that is connected to it, in the order of ``connect``, in the same turn of the loop."""

    __slots__ = ("_receivers",)

    def __init__(self) -> None:
        self._receivers: list[Callable[[*P], object]] = []

    def connect(self, receiver: Callable[[*P], object]) -> None:
        """Call ``receiver`` each time from now on."""
        self._receivers.append(receiver)

    def __call__(self, *what: *P) -> None:
        for receiver in self._receivers:
            receiver(*what)
