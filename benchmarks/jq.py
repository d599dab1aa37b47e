"""jq in rules: programs a second on the publish path and in worker processes, by size of the input.

python -m benchmarks.jq
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Final

import uvloop

from rules.jq.evaluation import Request
from rules.jq.pool import WorkerPool
from rules.jq.program import outputs, program_of

PROGRAM: Final = "{t: .temp, f: (.temp * 1.8 + 32), d: .device}"
SLOW: Final = PROGRAM + ' | select(.d | test("^meter"))'
"""May take any time, as far as the analysis knows: a regular expression."""
SECONDS: Final = 2.0
BATCH: Final = 128
WANTED_INLINE, WANTED_WORKERS = 40_000, 15_000
SIZES: Final = {"128 B": 128, "1 kB": 1_000, "100 kB": 100_000, "5 MB": 5_000_000}


def main() -> int:
    """How many of the wanted figures were missed."""
    missed = 0
    for name, size in SIZES.items():
        text = payload(size)
        inline = rate(partial(run_inline, text))
        print(f"inline   {name:>7}: {inline:>10,.1f} /s")
        missed += name == "128 B" and inline < WANTED_INLINE
    for name, rate_s in uvloop.run(in_workers()).items():
        print(f"workers  {name:>7}: {rate_s:>10,.1f} /s")
        missed += name == "128 B" and rate_s < WANTED_WORKERS
    print(f"wanted at 128 B: inline {WANTED_INLINE:,} /s, workers {WANTED_WORKERS:,} /s")
    return missed


def payload(size: int) -> str:
    """A telemetry message of about so many bytes."""
    head = {"temp": 25.5, "device": "meter-0042", "state": "ok"}
    series = max(0, (size - 60) // 6)
    return json.dumps(
        {**head, "series": [number % 100 + 0.5 for number in range(series)]}, separators=(",", ":")
    )


def run_inline(text: str) -> None:
    """What the publish path does, wherever it is allowed to."""
    outputs(program_of(PROGRAM).run(text))


def rate(call: Callable[[], None]) -> float:
    """Calls a second."""
    call()
    count, started_s = 0, time.perf_counter()
    while (took_s := time.perf_counter() - started_s) < SECONDS:
        call()
        count += 1
    return count / took_s


async def in_workers() -> dict[str, float]:
    """Requests a second through the pool, in batches as deferred rules make them."""
    pool = WorkerPool(2, 1024 * 1024 * 1024)
    try:
        return {name: await through(pool, payload(size)) for name, size in SIZES.items()}
    finally:
        await pool.close()


async def through(pool: WorkerPool, text: str) -> float:
    """Requests a second for one input."""
    batch = [Request(SLOW, text, 30.0)] * max(1, min(BATCH, 4_000_000 // len(text)))
    await pool.run(batch[0])
    count, started_s = 0, time.perf_counter()
    while (took_s := time.perf_counter() - started_s) < SECONDS:
        for answer in await asyncio.gather(*map(pool.run, batch + batch)):
            outputs(answer)
        count += 2 * len(batch)
    return count / took_s


if __name__ == "__main__":
    sys.exit(main())
