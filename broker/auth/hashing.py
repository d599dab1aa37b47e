"""Hashing of passwords off the loop, within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from os import cpu_count
from typing import Literal, TypeVar

from pydantic import Field

from broker.auth.passwords import DEFAULT_ITERATIONS, Algorithm
from broker.config.model import Settings
from broker.core.errors import Unavailable
from broker.observe.metrics import Metrics

_R = TypeVar("_R")


class PasswordHashingSettings(Settings):
    """Section ``password_hashing``: how passwords that people choose are kept, and at what cost they are checked."""

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
    threads: int = Field(default=0, ge=0, le=256, description="Threads that hash; 0 is one less than there are cores.")
    max_waiting: int = Field(
        default=1000, ge=1, description="Logins that may wait for a thread; more are told that the broker is busy."
    )
    max_remembered: int = Field(
        default=10_000, ge=0, description="Logins that are remembered, as a keyed digest in memory, so that clients "
        "that come back with the same password cost nothing."
    )  # fmt: skip

    def rounds(self, algorithm: Algorithm) -> int:
        """Rounds of an algorithm; the setting is for the one that is set."""
        default = DEFAULT_ITERATIONS.get(algorithm, 0)
        return self.iterations or default if algorithm == self.algorithm and default else default


class HashPool:
    """Threads for hashing, which lets go of the interpreter's lock. ``busy`` counts what was turned away."""

    def __init__(self, settings: PasswordHashingSettings, metrics: Metrics) -> None:
        threads = settings.threads or max((cpu_count() or 2) - 1, 1)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="password")
        self._most, self._under_way = threads + settings.max_waiting, 0
        self._busy = metrics.counter("password_hashing_busy", "logins turned away since too many waited for a thread")
        metrics.gauge("password_hashing", lambda: self._under_way, "passwords being hashed, or waiting for a thread")

    async def run(self, work: Callable[[], _R]) -> _R:
        """The result of ``work``, done on a thread.

        Raises:
            Unavailable: as many wait as may.
        """
        if self._under_way >= self._most:
            self._busy.value += 1
            raise Unavailable("too many passwords wait to be checked; try again later", retry_after_s=5)
        self._under_way += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self._under_way -= 1

    def close(self) -> None:
        """End the threads; what waits is not done."""
        self._threads.shutdown(wait=False, cancel_futures=True)
