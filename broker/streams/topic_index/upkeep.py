"""Keeps the topic index up with the streams: a thread of the range server, which leaves the work to processes.

What to index is under ``streams/indexed/LOG`` in the store, written by the catalogue. Records are indexed once many
wait, or some have waited long; those that wait are read without the index. A store that lost its last commits, as after
a power failure, is recognised by the last indexed record: then the index of the shard is made again.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from subprocess import PIPE, Popen
from typing import TYPE_CHECKING, Final

import msgspec

from broker.core.errors import SluiceError
from broker.core.lazy_module import LazyModule
from broker.core.process import environment
from broker.core.stream import ShardRange
from broker.storage import frames
from broker.storage.rocksdb.follower import Follower, RangeMissing
from broker.storage.store import LogShard
from broker.streams.settled import Settled
from broker.streams.topic_index import layout
from broker.streams.topic_index.build import Order
from broker.streams.topic_index.index import TopicIndex
from broker.streams.topic_index.layout import Epoch
from broker.streams.topic_index.report import INDEXED, IndexReport, ShardIndex, Wanted

if TYPE_CHECKING:
    import pyarrow as pa

    from broker.storage import records
else:
    pa = LazyModule("pyarrow")
    records = LazyModule("broker.storage.records")

# The folder of the data directory that has the index; it can be deleted while no broker runs.
FOLDER: Final = "topic-index"

RUN_RECORDS: Final = 262_144
# Maximum bytes of a run, which one process arranges.
RUN_BYTES: Final = 32 * 1024 * 1024
MIN_RECORDS: Final = 65_536
# Waiting bytes from which a run is made at once.
MIN_BYTES: Final = 16 * 1024 * 1024
# Parts of the retention; the index keeps up to one part longer than the stream.
_EPOCHS: Final = 8
_STEP_S: Final = 1.0
# Time for which the store's view may show less than was indexed before it is believed.
_DOUBT_S: Final = 10.0
_PAUSE_S: Final = 10.0


# Builds a run of the messages, as many as fit one.
Builder = Callable[[Order, Iterable[bytes | memoryview]], Epoch]


class Upkeep:
    """Builds and trims the index. ``index`` is None until there is something to index."""

    def __init__(
        self,
        directory: Path,
        follower: Follower,
        delay_s: float,
        tell: Callable[[IndexReport], None],
        monotonic_s: Callable[[], float] = time.monotonic,
        build: Builder | None = None,
    ) -> None:
        """Take the data directory; ``delay_s`` is how long records wait at most when there are few."""
        self.index: TopicIndex | None = None
        self._path = directory / FOLDER
        self._follower = follower
        self._delay_s = delay_s
        self._tell = tell
        self._monotonic_s = monotonic_s
        self._build = build or built_by_process
        self._settled = Settled(monotonic_s)
        self._waiting_since_s: dict[LogShard, float] = {}
        self._doubted_since_s: dict[LogShard, float] = {}
        self._told = IndexReport()
        self._runs = 0

    def run(self) -> None:
        """Work until the process ends."""
        while True:
            problem = None
            runs = self._runs
            try:
                self.step()
            except Exception as error:  # noqa: BLE001 - rocksdict raises nothing more exact; told, and tried again
                problem = str(error) or repr(error)
                print(f"range server: topic index: {problem}", file=sys.stderr)
            self._report(problem)
            if problem is not None:
                time.sleep(_PAUSE_S)
            elif self._runs == runs:
                time.sleep(_STEP_S)

    def step(self) -> None:
        """Do what there is to do once: at most one run a shard."""
        self._follower.refresh()
        wanted = {
            int(key.removeprefix(INDEXED)): msgspec.json.decode(value, type=Wanted)
            for key, value in self._follower.scan(INDEXED)
        }
        if self.index is None:
            if not wanted and not self._path.exists():
                return
            index = TopicIndex(self._path)
            index.warm_up()
            self.index = index
            shutil.rmtree(self._building, ignore_errors=True)
        shards = {
            LogShard(log, shard): log_wanted
            for log, log_wanted in wanted.items()
            for shard in range(log_wanted.first_shard, log_wanted.first_shard + log_wanted.shards)
        }
        for shard in set(self.index.stored) - set(shards):
            if self._is_believed(shard):
                self._forget(self.index, shard, self.index.stored[shard])
        for shard, log_wanted in shards.items():
            self._keep(self.index, shard, log_wanted)

    @property
    def _building(self) -> Path:
        return self._path / "building"

    def _keep(self, index: TopicIndex, shard: LogShard, wanted: Wanted) -> None:
        range_now = self._follower.range_of(shard)
        epochs = index.stored.get(shard, [])
        if epochs and range_now.next_offset < epochs[-1].next_offset:
            if self._is_believed(shard):
                self._forget(index, shard, epochs)
            return
        self._doubted_since_s.pop(shard, None)
        settled = self._settled.offset(shard, range_now)
        gone = [epoch for epoch in epochs if epoch.next_offset <= range_now.first_offset]
        if gone:
            self._forget(index, shard, gone)
            epochs = index.stored.get(shard, [])
        try:
            if epochs and not index.epochs(shard):
                self._admit(index, shard, epochs)
            elif self._is_due(
                shard, epochs[-1].next_offset if epochs else range_now.first_offset, settled
            ):
                self._extend(index, shard, wanted, range_now, settled)
        except RangeMissing:
            pass  # retention was faster; the next step sees it

    def _admit(self, index: TopicIndex, shard: LogShard, epochs: list[Epoch]) -> None:
        if self._is_same(shard, epochs[-1]):
            index.admit(shard)
        else:
            self._forget(index, shard, epochs)

    def _is_same(self, shard: LogShard, epoch: Epoch) -> bool:
        """True if the stream has the last record of an epoch as it was indexed."""
        (message,) = self._follower.messages(shard, epoch.next_offset - 1, epoch.next_offset)
        ((offset, record),) = records.decode(
            pa.ipc.read_record_batch(pa.py_buffer(message), records.SCHEMA)
        )
        return layout.checksum(record.topic, layout.row_of(offset, record)) == epoch.checksum

    def _is_due(self, shard: LogShard, start: int, end: int) -> bool:
        if end <= start:
            self._waiting_since_s.pop(shard, None)
            return False
        since_s = self._waiting_since_s.setdefault(shard, self._monotonic_s())
        if end - start >= MIN_RECORDS or self._monotonic_s() - since_s >= self._delay_s:
            return True
        return (end - start) * self._follower.average_bytes(shard) >= MIN_BYTES

    def _extend(
        self, index: TopicIndex, shard: LogShard, wanted: Wanted, held: ShardRange, settled: int
    ) -> None:
        epochs = index.stored.get(shard, [])
        if epochs and not self._is_same(shard, epochs[-1]):
            self._forget(index, shard, epochs)
            return
        start = epochs[-1].next_offset if epochs else held.first_offset
        epoch = epochs[-1] if epochs else Epoch(start, start, 0, 0, 0, 0)
        if epochs and _is_full(epoch, wanted):
            epoch = Epoch(start, start, 0, 0, 0, 0)
        self._building.mkdir(exist_ok=True)
        file = self._building / f"{shard.log}-{shard.shard}.sst"
        order = Order(str(file), shard.log, shard.shard, epoch, os.getpid())
        end = min(settled, start + RUN_RECORDS)
        grown = self._build(order, self._follower.messages(shard, start, end))
        index.ingest(file, shard, grown)
        self._runs += 1
        if grown.next_offset >= settled:
            self._waiting_since_s.pop(shard, None)

    def _is_believed(self, shard: LogShard) -> bool:
        """True if the store has shown this for so long that it is not a hole in its view."""
        now_s = self._monotonic_s()
        return now_s - self._doubted_since_s.setdefault(shard, now_s) >= _DOUBT_S

    def _forget(self, index: TopicIndex, shard: LogShard, epochs: list[Epoch]) -> None:
        was_admitted = bool(index.epochs(shard))
        index.forget(shard, epochs)
        if was_admitted and shard in index.stored:
            index.admit(shard)
        self._doubted_since_s.pop(shard, None)

    def _report(self, problem: str | None) -> None:
        stored = {} if self.index is None else self.index.stored
        shards = [
            ShardIndex(*shard, epochs[-1].next_offset, sum(epoch.size_bytes for epoch in epochs))
            for shard, epochs in sorted(stored.items())
            if self.index is not None and self.index.epochs(shard)
        ]
        report = IndexReport(shards, problem, self._runs)
        if report != self._told:
            self._told = report
            self._tell(report)


def start(
    directory: Path, follower: Follower, delay_s: float, tell: Callable[[IndexReport], None]
) -> Upkeep:
    """Keep the index from a thread."""
    upkeep = Upkeep(directory, follower, delay_s, tell)
    threading.Thread(target=upkeep.run, name="topic index", daemon=True).start()
    return upkeep


def _is_full(epoch: Epoch, wanted: Wanted) -> bool:
    if epoch.size_bytes >= wanted.bytes / _EPOCHS:
        return True
    return wanted.age_us is not None and epoch.last_us - epoch.first_us >= wanted.age_us / _EPOCHS


def built_by_process(order: Order, messages: Iterable[bytes | memoryview]) -> Epoch:
    """Build a run of the messages, up to its maximum, in a process."""
    command = [sys.executable, "-m", "broker.streams.topic_index.build"]
    with Popen(command, stdin=PIPE, stdout=PIPE, env=environment()) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(msgspec.json.encode(order) + b"\n" + frames.schema_message())
            size = 0
            for message in messages:
                process.stdin.write(message)
                size += len(message)
                if size >= RUN_BYTES:
                    break
            process.stdin.write(frames.END_MESSAGE)
            process.stdin.close()
            answer = process.stdout.read()
        except BrokenPipeError as error:
            raise BuildFailed from error
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise BuildFailed
    return msgspec.json.decode(answer, type=Epoch)


class BuildFailed(SluiceError):
    """The process that arranges records ended early."""

    code = "index_failed"

    def __init__(self) -> None:
        super().__init__(
            "the process that builds the topic index ended early; its errors are above"
        )
