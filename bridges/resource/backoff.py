"""Pauses between attempts: each twice the one before, up to a bound, a little different each time."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

JITTER: Final = 0.2
"""A pause is up to so much of itself shorter, so that what failed together does not come again together."""


class Backoff:
    """The pauses of one thing that is tried again. ``chance`` gives numbers from 0 to 1."""

    __slots__ = ("_chance", "_first_s", "_most_s", "_next_s")

    def __init__(self, first_s: float, most_s: float, chance: Callable[[], float] = random.random) -> None:
        self._first_s, self._most_s, self._chance = first_s, max(first_s, most_s), chance
        self._next_s = first_s

    def pause_s(self) -> float:
        """The next pause."""
        pause_s, self._next_s = self._next_s, min(self._most_s, self._next_s * 2)
        return pause_s * (1 - JITTER * self._chance())

    def reset(self) -> None:
        """It went well: begin with the first again."""
        self._next_s = self._first_s
