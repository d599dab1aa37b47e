"""The micro-batches of a table: when the next one begins, which records it has, and the thread that they run on.

A batch is a Spark job without SQL: its tasks read ranges of the stream and write files. So a table starts no process of
its own and no record passes through the JVM, and the end of the table is all that a start needs to know.
"""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from broker.core.errors import Unavailable
from pyspark_sluice.client import Positions, StreamClient, check_epoch, check_held, check_not_back
from pyspark_sluice.errors import Unreachable
from pyspark_sluice.ranges import Range, advance, split

_LONGEST_POLL_S = 1.0
# Below this a further task costs more than it saves.
_MIN_TASK_ROWS = 20_000
# Limit in seconds for the end of a batch whose tasks were cancelled: a commit that has begun is not interrupted.
_STOP_S = 30.0
# Writes and commits ranges of a stream; the offsets after the last, by shard, that the table has then.
RunBatch = Callable[[Positions, Sequence[Range]], Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class Pace:
    """When a batch begins: with ``rows`` waiting records at once, with fewer ``interval_s`` seconds after the start of
    the previous one. ``most_rows`` is the maximum of a batch."""

    interval_s: float
    rows: int
    most_rows: int

    def is_due(self, waiting: int, since_s: float) -> bool:
        """Return whether a batch begins with ``records`` records, some seconds after the previous one began."""
        return waiting > 0 and (
            waiting >= min(self.rows, self.most_rows) or since_s >= self.interval_s
        )

    def pause_s(self, waiting: int, since_s: float) -> float:
        """Seconds to wait until the stream is asked again."""
        longest_s = min(_LONGEST_POLL_S, self.interval_s)
        return min(longest_s, max(0.0, self.interval_s - since_s)) if waiting else longest_s


class Batches:
    """Runs the batches of a stream on a thread of its own, until one fails or ``stop`` is called."""

    def __init__(
        self,
        context: Any,
        stream: StreamClient,
        epoch: str,
        begun: Mapping[int, int],
        pace: Pace,
        run: RunBatch,
        *,
        name: str,
    ) -> None:
        self._context = context
        self._stream = stream
        self._pace = pace
        self._run_batch = run
        self._epoch = epoch
        self._begun = dict(begun)
        self.group = f"{name} {uuid.uuid4().hex[:12]}"
        """Name of the jobs in Spark."""
        self._began_at = -math.inf
        self._is_running = False
        self._stopping = threading.Event()
        self.failure: BaseException = Unavailable("the batches were stopped")
        """Reason for their end."""
        self._thread = threading.Thread(target=self._run, args=(name,), name=name, daemon=True)
        self._thread.start()

    @property
    def is_active(self) -> bool:
        """True while further batches come."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """End the thread, and the tasks of a batch that runs."""
        self._stopping.set()
        if self._is_running:
            with suppress(Exception):  # the JVM may have ended
                self._context.cancelJobGroup(self.group)
        if threading.current_thread() is not self._thread:
            self._thread.join(_STOP_S)

    def _run(self, name: str) -> None:
        try:
            self._context.setJobGroup(self.group, name)
            # Tables get equal shares of the workers, however much one of them has to catch up.
            self._context.setLocalProperty("spark.scheduler.pool", name)
            while not self._stopping.is_set():
                self._stopping.wait(self._poll())
        except BaseException as error:  # noqa: BLE001 - of many libraries, not all are an Exception; the owner reports it
            if not self._stopping.is_set():
                self.failure = error

    def _poll(self) -> float:
        """Run a batch if one is due; the pause in seconds before the next poll."""
        try:
            where = self._stream.positions()
        except Unreachable:  # a broker that is away fails no table
            return _LONGEST_POLL_S
        check_epoch(where.stream, self._epoch, where.epoch)
        check_not_back(where, self._begun)
        waiting = sum(end - self._begun.get(shard, 0) for shard, end in where.next().items())
        since_s = time.monotonic() - self._began_at
        if not self._pace.is_due(waiting, since_s):
            return self._pace.pause_s(waiting, since_s)
        self._began_at = time.monotonic()
        end = advance(self._begun, where.next(), self._pace.most_rows)
        for shard, to in end.items():
            check_held(where, shard, self._begun.get(shard, 0), to)
        ranges = split(self._begun, end, self._context.defaultParallelism, _MIN_TASK_ROWS)
        self._is_running = True
        committed = self._run_batch(where, ranges)
        self._is_running = False
        self._begun = {shard: max(to, committed.get(shard, 0)) for shard, to in end.items()}
        return 0.0
