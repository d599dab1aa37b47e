"""What keeps a table from being filled, asked every few seconds beside its query.

Clients of stores try again and again before they give up, and Spark runs their tasks again: a batch says after minutes
that the store does not answer. Here that is known within ``KNOWN_AFTER_S``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

# Between two looks.
EVERY_S: Final = 3.0
# A look that takes longer has found that something does not answer.
LONGEST_S: Final = 9.0
# With the look before, and the next reports of the job, what is promised.
KNOWN_AFTER_S: Final = 15.0


class Watch:
    """Calls ``look`` on a thread of its own, one at a time. It gets a function that it tells what it asks now, and
    returns a sentence where that is no answer or a bad one."""

    def __init__(self, look: Callable[[Callable[[str], None]], str | None], clock: Callable[[], float]) -> None:
        self._look = look
        self._clock = clock
        self._began: float | None = None
        self._next_at = clock()
        self._asks = ""
        self._found: str | None = None
        self.has_looked = False
        self._starting = threading.Lock()

    def problem(self) -> str | None:
        """What the last look found; begins the next one when it is time."""
        with self._starting:
            now = self._clock()
            if self._began is None and now >= self._next_at:
                self._began = now
                threading.Thread(target=self._run, name="watch", daemon=True).start()
            elif self._began is not None and now - self._began > LONGEST_S:
                self._found = f"{self._asks}: no answer within {LONGEST_S:g} s"
                self.has_looked = True
            return self._found

    def _run(self) -> None:
        found = self._look(self._ask)
        with self._starting:
            self._found = found
            self.has_looked = True
            self._began = None
            self._next_at = self._clock() + EVERY_S

    def _ask(self, what: str) -> None:
        self._asks = what
