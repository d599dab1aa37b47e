"""What the history of metrics costs: time of a sample and of a writing, bytes on disk when it is full.

python -m benchmarks.metrics_history

Times are medians of the processor time of the loop's thread. Half of the counters do not move. The exit status is 1
if a sample of the largest takes longer than its target, or the files are larger than the bound.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from broker.observe.metric_rows import RESOLUTIONS, SERIES_BYTES
from broker.observe.metrics import Metrics
from broker.observe.metrics_history import MetricsHistory
from broker.observe.settings import MetricsHistorySettings
from broker.storage.rocksdb.store import RocksStore
from broker.storage.writer import Writer
from broker.streams.queues import StoredValues

TARGET_MS = 1.0


class MovedClock:
    """A clock that only the benchmark moves, to full seconds."""

    seconds = 1_800_000_000

    def now_ns(self) -> int:
        return self.seconds * 1_000_000_000

    def monotonic_s(self) -> float:
        return float(self.seconds)


def main() -> int:
    """Print the figures for three numbers of series; the last is nearly what the default bound has room for."""
    for series in (30, 130, 600):
        sample_ms, write_ms, size_bytes = asyncio.run(_measured(series))
        print(
            f"{series} series: sample {sample_ms:.2f} ms, every tenth, with a writing, {write_ms:.2f} ms; "
            f"{size_bytes:,} bytes of at most {series * SERIES_BYTES:,}",
            flush=True,
        )
    return int(sample_ms > TARGET_MS or size_bytes > series * SERIES_BYTES)


async def _measured(series: int) -> tuple[float, float, int]:
    with TemporaryDirectory() as name:
        directory, clock, metrics, chance = Path(name), MovedClock(), Metrics(), random.Random(1)
        store = RocksStore(directory, "os")
        writer = Writer(store, asyncio.get_running_loop())
        history = MetricsHistory(metrics, StoredValues(writer), clock, MetricsHistorySettings())
        counters = [
            metrics.counter("rule_matched", rule=f"rule-{number}") for number in range(series)
        ]
        history.start()
        samples, writings = list[float](), list[float]()
        for resolution in RESOLUTIONS:
            for _ in range(resolution.rows):
                clock.seconds += resolution.step_s
                for counter in counters[::2]:
                    counter.value += round(chance.gauss(1000, 100))
                began_s = time.thread_time()
                history.sample()
                took_ms = (time.thread_time() - began_s) * 1000
                (writings if clock.seconds % 10 == 0 else samples).append(took_ms)
                if clock.seconds % 10 == 0:
                    await writer.committed()
            clock.seconds += -clock.seconds % 600
        history.stop()
        await writer.close()
        store.close()
        files = (directory / "rocksdb").iterdir()
        size_bytes = sum(file.stat().st_size for file in files if file.suffix in (".sst", ".log"))
        return median(samples), median(writings[:96]), size_bytes


if __name__ == "__main__":
    sys.exit(main())
