"""Which partition of a topic a record goes to."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from aiokafka.partitioner import murmur2

_KEPT: Final = 65_536
"""Keys whose partition is remembered: hashing one takes some 10 µs in Python."""


class Partitions:
    """The partitions of one topic. ``strategy`` is that of the settings."""

    def __init__(self, numbers: Sequence[int], strategy: str, choose: Callable[[Sequence[int]], int] = random.choice):
        self.numbers = sorted(numbers)
        self._strategy, self._choose = strategy, choose
        self.is_by_key = strategy != "random"
        """Whether records of one key, in one batch, go to one partition."""
        self._of_key: dict[bytes, int] = {}

    def pick(self, key: bytes | None, sticky: int) -> int:
        """For one record; ``sticky`` is what the batch stays with (``sticky()``)."""
        if self._strategy == "random":
            return self._choose(self.numbers)
        if key is None or self._strategy == "sticky":
            return sticky
        found = self._of_key.get(key)
        if found is None:
            if len(self._of_key) >= _KEPT:
                self._of_key.clear()
            found = self._of_key[key] = self.numbers[(murmur2(key) & 0x7FFFFFFF) % len(self.numbers)]
        return found

    def sticky(self) -> int:
        """A partition for a whole batch."""
        return self._choose(self.numbers)
