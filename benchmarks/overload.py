"""Five times the regular load: `python -m benchmarks.overload`.

A whole broker (`sluice serve`) carries a regular load of QoS 1, then five times the publishers with five times the
window, a flood of QoS 0, and clients that connect all the time. Wanted: the same process answers all along, clients
that were connected before stay connected and have their pings answered promptly, and memory stays bounded.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.pipeline import serving

ROOT = Path(__file__).parent.parent
TIMES = 5
OLD_CLIENTS = 20
PING_EVERY_S = 0.05
WANTED_P99_S = 0.5
_PUBLISHERS, _WINDOW, _COUNT = 2, 20, 60_000
_CONNECT_4 = b"\x10%c\0\4MQTT\4\2\0\0\0%c%b"


@dataclass(slots=True)
class Pings:
    """How long old clients waited for the answers to their pings, in seconds, and how many of them were cut off."""

    waited_s: list[float] = field(default_factory=list)
    cut_off: int = 0

    def told(self) -> str:
        """For people."""
        cuts = statistics.quantiles(self.waited_s, n=100)
        p50_ms, p99_ms, worst_ms = cuts[49] * 1000, cuts[98] * 1000, max(self.waited_s) * 1000
        return f"{len(self.waited_s):,} pings p50 {p50_ms:.1f} ms, p99 {p99_ms:.1f} ms, max {worst_ms:.1f} ms"

    @property
    def p99_s(self) -> float:
        """What one ping in a hundred takes at least."""
        return statistics.quantiles(self.waited_s, n=100)[98]


def main() -> None:
    """Run both loads once; the exit status tells whether the broker behaved as wanted."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=_COUNT, help="messages of the regular load")
    options = parser.parse_args()
    with serving() as (ready, _):
        sys.exit(asyncio.run(measure(ready["mqtt"], ready["api"], options.count)))


async def measure(mqtt: str, api: str, count: int) -> int:
    """Load and tell; the exit status."""
    host, _, port = mqtt.rpartition(":")
    links = [await asyncio.open_connection(host, int(port)) for _ in range(OLD_CLIENTS)]
    for number, (reader, writer) in enumerate(links):
        writer.write(connect_packet(b"old%d" % number))
        await reader.readexactly(4)
    rates, pings, memory = [], [], [memory_bytes(api)]
    for times in (1, TIMES):
        async with pinging(links) as measured, connecting(host, int(port), times=times - 1):
            rates.append(await loaded(port, times, count))
        pings.append(measured)
        memory.append(memory_bytes(api))
    for name, rate, measured, used in zip(
        ("regular", f"{TIMES} times"), rates, pings, memory[1:], strict=True
    ):
        print(
            f"{name:8} {rate:>9,.0f} QoS 1 messages/s   {measured.told()}   memory {used / 2**20:.0f} MiB",
            flush=True,
        )
    cut_off = pings[-1].cut_off
    is_prompt = pings[-1].p99_s <= WANTED_P99_S
    print(
        f"old clients cut off: {cut_off}; p99 within {WANTED_P99_S:g} s: {'ok' if is_prompt else 'MISSED'}"
    )
    return 0 if is_prompt and not cut_off else 1


async def loaded(port: str, times: int, count: int) -> float:
    """QoS 1 messages a second under so many times the regular load."""
    one = [
        "--pubs",
        str(_PUBLISHERS * times),
        "--window",
        str(_WINDOW * times),
        "--count",
        str(count * times),
    ]
    loads = [await start_load(port, [*one, "--qos", "1", "--subqos", "1"])]
    if times > 1:
        flood = ["--pubs", str(times), "--count", str(count * times * 10), "--filter", "flood/#"]
        loads.append(await start_load(port, flood))
    answers = [await load.communicate() for load in loads]
    return float(json.loads(answers[0][0])["pub_per_s"])


async def start_load(port: str, arguments: list[str]) -> asyncio.subprocess.Process:
    """A load generator in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.load",
        "throughput",
        "--port",
        port,
        "--idle",
        "1",
        *arguments,
    ]
    return await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=subprocess.PIPE)


@contextlib.asynccontextmanager
async def pinging(
    links: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]],
) -> AsyncIterator[Pings]:
    """Ping on all links meanwhile."""
    pings = Pings()

    async def ping(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            began = time.perf_counter()
            writer.write(b"\xc0\0")
            try:
                await reader.readexactly(2)
            except (OSError, asyncio.IncompleteReadError):
                pings.cut_off += 1
                return
            pings.waited_s.append(time.perf_counter() - began)
            await asyncio.sleep(PING_EVERY_S)

    tasks = [asyncio.create_task(ping(*link)) for link in links]
    try:
        yield pings
    finally:
        await _end(tasks)


@contextlib.asynccontextmanager
async def connecting(host: str, port: int, *, times: int) -> AsyncIterator[None]:
    """Clients that connect and leave, one after the other in each of so many tasks."""

    async def connect(name: int) -> None:
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_connection(host, port)
                writer.write(connect_packet(b"new%d" % name))
                await reader.readexactly(4)
                writer.close()

    tasks = [asyncio.create_task(connect(name)) for name in range(times)]
    try:
        yield
    finally:
        await _end(tasks)


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def connect_packet(client_id: bytes) -> bytes:
    """A CONNECT of 3.1.1 with a clean session and no keep-alive."""
    return _CONNECT_4 % (12 + len(client_id), len(client_id), client_id)


def memory_bytes(api: str) -> int:
    """The resident memory of the broker, as it says itself."""
    with urllib.request.urlopen(f"http://{api}/metrics") as answer:
        lines: list[str] = answer.read().decode().splitlines()
    return int(
        float(next(line for line in lines if line.startswith("sluice_memory_bytes ")).split()[1])
    )


if __name__ == "__main__":
    main()
