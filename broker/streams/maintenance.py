"""What is done to streams in the background: sealing, retention, forgetting removed ones. All on the writer thread."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Final

from broker.core.clock import Clock
from broker.core.errors import SluiceError, Unavailable
from broker.observe.metrics import Metrics
from broker.storage.store import LogShard
from broker.storage.writer import Writer
from broker.streams.catalogue import Catalogue
from broker.streams.retention import enforce
from broker.streams.sealer import Sealer
from broker.streams.settings import Retention, StreamSettings

_RUNS_A_TURN: Final = 32
"""How many runs of frames of one shard are joined before the next shard's turn."""


class Maintenance:
    """Does the background work of all streams, one piece at a time between commits."""

    def __init__(
        self, catalogue: Catalogue, writer: Writer, settings: StreamSettings, clock: Clock, metrics: Metrics
    ) -> None:
        self._catalogue, self._writer, self._settings, self._clock = catalogue, writer, settings, clock
        self._store = writer.store
        self._sealer = Sealer(self._store)
        self._trimmed = metrics.counter("stream_records_trimmed", "records that retention forgot")
        self._joined = metrics.counter("stream_frames_sealed", "runs of small frames joined into one")
        self._failures = metrics.counter("stream_maintenance_failed", "pieces of background work that failed")
        self.is_sealing_put_off = False

    async def run(self) -> None:
        """Work until cancelled."""
        last_retention_s = float("-inf")
        while True:
            if not self.is_sealing_put_off:
                await self._guarded(self.seal_all)
            await self._guarded(self.drop_removed)
            now_s = self._clock.monotonic_s()
            if now_s - last_retention_s >= self._settings.retention_interval:
                last_retention_s = now_s
                await self._guarded(self.retain_all)
            await asyncio.sleep(self._settings.sealing_interval)

    async def seal_all(self) -> None:
        """Join what small frames are worth it, in every log."""
        for shard in self._store.shards():
            await self._guarded(functools.partial(self._seal, shard))

    async def retain_all(self) -> None:
        """Trim every stream to its retention."""
        now_us = self._clock.now_ns() // 1000
        for stream in self._catalogue:
            whole = stream.spec.retention
            share = Retention.model_construct(age=whole.age, bytes=whole.bytes // len(stream.shards))
            for shard in stream.shards:
                trim = functools.partial(enforce, self._store, shard, share, now_us)
                self._trimmed.value += await self._on_thread(trim)

    async def drop_removed(self) -> None:
        """Forget the records of streams that were removed."""
        removed = self._catalogue.dropping()
        if removed:
            await self._all_committed()  # records appended before the removal would bring the log back
        for log in removed:
            await self._on_thread(functools.partial(self._drop, log))

    async def _seal(self, shard: LogShard) -> None:
        for _ in range(_RUNS_A_TURN):
            if not await self._on_thread(functools.partial(self._sealer.seal, shard)):
                break
            self._joined.value += 1

    async def _all_committed(self) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._writer.when_committed(lambda error: None if done.cancelled() else done.set_result(None))
        await done

    def _drop(self, log: int) -> int:
        self._catalogue.drop(log)
        self._sealer.forget(log)
        return 0

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        """A failing disk or a damaged frame must not end the work on the other streams."""
        try:
            await work()
        except SluiceError as error:
            self._failures.value += 1
            if not isinstance(error, Unavailable):  # what passes by itself is counted only
                context = {"message": "background work on streams failed", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)

    async def _on_thread(self, work: Callable[[], int]) -> int:
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        result = 0

        def keep_result() -> None:
            nonlocal result
            result = work()

        def finish(error: BaseException | None) -> None:
            if done.cancelled():
                return
            if error is None:
                done.set_result(result)
            else:
                done.set_exception(error)

        self._writer.call(keep_result, finish)
        return await done
