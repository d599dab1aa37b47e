"""Hashing of passwords off the loop, within bounds."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from os import cpu_count
from typing import Literal, TypeVar

from pydantic import Field

from broker.auth.passwords import DEFAULT_ITERATIONS, Algorithm
from broker.config.model import Settings
from broker.core.errors import Unavailable
from broker.observe.metrics import Metrics

_R = TypeVar("_R")


class PasswordHashingSettings(Settings):
    """Section ``password_hashing``: hashes of passwords, and the cost of checking them."""

    algorithm: Literal["pbkdf2_sha256", "pbkdf2_sha384", "pbkdf2_sha512"] = Field(
        default="pbkdf2_sha256", description="How passwords that are given are hashed from now on; each user keeps "
        "what it was made with."
    )  # fmt: skip
    iterations: int = Field(
        default=0, ge=0, le=10_000_000, description="Rounds of PBKDF2; 0 takes 600000 with SHA-256 and SHA-384, 220000 "
        "with SHA-512. Each login of a client with such a password costs that much, about a quarter of a second."
    )  # fmt: skip
    scram: bool = Field(
        default=True, description="Whether users can log in by SCRAM too: both of its hashes are kept, and clients do "
        "the rounds."
    )  # fmt: skip
    allow_weak_imports: bool = Field(
        default=False, description="Whether users may be imported whose passwords are hashed by MD5 or SHA-1. They "
        "keep these hashes until they get another password; a stolen file of them gives the passwords away."
    )  # fmt: skip
    threads: int = Field(
        default=0,
        ge=0,
        le=256,
        description="Threads that hash; 0 is one less than there are cores.",
    )
    max_waiting: int = Field(
        default=1000, ge=1, description="Logins that may wait for a thread. Addresses take turns; of more, the newest "
        "of the address with the most is refused, since the broker is busy."
    )  # fmt: skip
    max_remembered: int = Field(
        default=10_000, ge=0, description="Logins that are remembered, as a keyed digest in memory, so that clients "
        "that come back with the same password cost nothing."
    )  # fmt: skip

    def rounds(self, algorithm: Algorithm) -> int:
        """Rounds of an algorithm; the setting is for the one that is set."""
        default = DEFAULT_ITERATIONS.get(algorithm, 0)
        return self.iterations or default if algorithm == self.algorithm and default else default


class HashPool:
    """Threads for hashing, which lets go of the interpreter's lock. Places take turns, so that many logins from one of
    them delay no others."""

    def __init__(self, settings: PasswordHashingSettings, metrics: Metrics) -> None:
        threads = settings.threads or max((cpu_count() or 2) - 1, 1)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="password")
        self._count = self._free = threads
        self._most = settings.max_waiting
        self._waiting = 0
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}
        self._busy = metrics.counter(
            "password_hashing_busy", "logins turned away since too many waited for a thread"
        )
        metrics.gauge(
            "password_hashing",
            lambda: self._count - self._free + self._waiting,
            "passwords being hashed, or waiting for a thread",
        )

    async def run(self, work: Callable[[], _R]) -> _R:
        """The result of ``work``, done on a thread.

        Raises:
            Unavailable: as many wait as may.
        """
        async with self.turn():
            return await self.work(work)

    @asynccontextmanager
    async def turn(self, place: str = "") -> AsyncIterator[None]:
        """Wait until a thread is free for ``work``.

        Raises:
            Unavailable: as many wait as may, and none from a place that has more.
        """
        if self._free:
            self._free -= 1
        else:
            await self._wait(place)
        try:
            yield
        finally:
            self._pass_on()

    async def work(self, work: Callable[[], _R]) -> _R:
        """The result of ``work``, done on a thread; within a turn."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def _wait(self, place: str) -> None:
        if self._waiting >= self._most:
            self._make_room(place)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(place, deque()).append(turn)
        self._waiting += 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn in self._queues.get(place, ()):
                self._leave(place, turn)
            elif not turn.cancelled() and turn.exception() is None:  # a thread was free just now
                self._pass_on()
            raise

    def _make_room(self, place: str) -> None:
        self._busy.value += 1
        busy = Unavailable(
            "too many passwords wait to be checked; try again later", retry_after_s=5
        )
        longest = max(self._queues, key=lambda address: len(self._queues[address]))
        if len(self._queues[longest]) <= len(self._queues.get(place, ())) + 1:
            raise busy
        newest = self._queues[longest][-1]
        self._leave(longest, newest)
        newest.set_exception(busy)

    def _leave(self, place: str, turn: asyncio.Future[None]) -> None:
        queue = self._queues[place]
        queue.remove(turn)
        self._waiting -= 1
        if not queue:
            del self._queues[place]

    def _pass_on(self) -> None:
        """A thread is free: for the next place that waits."""
        while self._queues:
            place = next(iter(self._queues))
            turn = self._queues[place][0]
            self._leave(place, turn)
            if place in self._queues:
                self._queues[place] = self._queues.pop(place)  # behind the other places
            if not turn.cancelled():
                turn.set_result(None)
                return
        self._free += 1

    def close(self) -> None:
        """End the threads; what waits is not done."""
        self._threads.shutdown(wait=False, cancel_futures=True)
