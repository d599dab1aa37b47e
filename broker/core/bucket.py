"""A token bucket with a rate per second and a burst. Time is an argument."""

from __future__ import annotations


class TokenBucket:
    """Holds at most ``burst`` tokens and gains ``rate`` of them a second; it is full when it is made.

    Use ``try_take`` for work that can be refused, ``spend`` for work that is already done: the bucket goes into debt,
    and the spender waits until the debt is paid. Either way, in any span of T seconds no more than ``burst + rate * T``
    tokens are taken by those who follow the answers, but for the last thing that was spent.
    """

    __slots__ = ("_at_s", "_level", "burst", "rate")

    def __init__(self, rate: float, burst: float, now_s: float) -> None:
        self.rate, self.burst = rate, max(burst, 1.0)
        self._level = self.burst
        self._at_s = now_s

    def try_take(self, now_s: float) -> bool:
        """Take one token, when there is one."""
        self._fill(now_s)
        if self._level < 1:
            return False
        self._level -= 1
        return True

    def spend(self, amount: float, now_s: float) -> None:
        """Take tokens whether they are there or not."""
        self._fill(now_s)
        self._level -= amount

    def wait_s(self, now_s: float, tokens: float = 0) -> float:
        """Seconds until ``tokens`` are available, 0 if they are; without ``tokens`` until the debt is paid."""
        self._fill(now_s)
        return max(0.0, (tokens - self._level) / self.rate)

    def is_full(self, now_s: float) -> bool:
        """True if the bucket is full, as a new one is, so that it may be forgotten."""
        self._fill(now_s)
        return self._level >= self.burst

    def _fill(self, now_s: float) -> None:
        if now_s > self._at_s:
            self._level = min(self.burst, self._level + (now_s - self._at_s) * self.rate)
            self._at_s = now_s
