"""What clients of several cells wait for: `python -m benchmarks.cell_steps`.

- Passing a connection to the cell of its client: processor time of all cells and the supervisor for a connect, against
  a connect to one process, for each connection that the wrong cell accepted.
- SUBACK with eight cells: the time that a client waits, one subscription after the other.
- A killed cell: its durable sessions come back as soon as connections are refused no more.

The exit status tells whether every target was reached.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import signal
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from benchmarks.cells import cell_pids
from benchmarks.idle import raise_open_files
from benchmarks.load import connect, cpu_s, link_to, subscribe
from benchmarks.pipeline import serving
from broker.codec.encode import encode_packet
from broker.codec.packets import Connect
from broker.core.cells import Place

_CONNACK: Final = 0x20
_AT_ONCE: Final = 400
"""Clients that connect at the same time, as the backlog of the listening sockets takes them."""
_PATIENCE_S: Final = 120.0
_STORM: Final = 200
_TURNS: Final = 9


def main() -> None:
    """Run what is asked for."""
    steps: dict[str, Callable[[argparse.Namespace], bool]] = {
        "passing": passing,
        "suback": suback,
        "restart": restart,
    }
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=steps, action="append", help="run these steps")
    parser.add_argument("--connects", type=int, default=4000, help="connects of a turn")
    parser.add_argument("--sessions", type=int, default=30_000, help="durable sessions of a cell")
    options = parser.parse_args()
    raise_open_files()
    reached = [steps[name](options) for name in options.only or steps]
    sys.exit(0 if all(reached) else 1)


def passing(options: argparse.Namespace) -> bool:
    """At most 35 µs for each connection that is passed, in storms of connects."""
    with ExitStack() as running:
        brokers = [running.enter_context(_broker(workers)) for workers in (1, 2)]
        costs: list[list[float]] = [[], []]
        for number in range(1 + _TURNS):
            for (address, pids), used in zip(brokers, costs, strict=True):
                before_s = sum(map(cpu_s, pids))
                for first in range(0, options.connects, _STORM):
                    _storm(address, [f"{number}-{first + i}" for i in range(_STORM)])
                used.append((sum(map(cpu_s, pids)) - before_s) / options.connects * 1e6)
    single, several = (statistics.median(each[1:]) for each in costs)  # the first turn warms up
    # either cell accepts a connection, whichever has its client
    return _tell(
        f"passing a connection ({single:.0f} µs a connect in one process, {several:.0f} in two cells)",
        2 * (several - single),
        35,
        "µs",
    )


def _storm(address: str, names: list[str]) -> None:
    """Connect all before the first is answered, and close them."""
    host, _, port = address.rpartition(":")
    links = [socket.create_connection((host, int(port))) for _ in names]
    for link, name in zip(links, names, strict=True):
        link.sendall(encode_packet(Connect(name, clean_start=True)))
    for link in links:
        assert link.recv(256)[0] == _CONNACK
    for link in links:
        link.close()


def suback(_options: argparse.Namespace) -> bool:
    """A median of at most 2 ms with eight cells."""
    with _broker(8) as (address, _):
        link = connect(link_to(address), "asks")
        waits = []
        for number in range(600):
            began_s = time.perf_counter()
            subscribe(link, f"sites/{number}/+/state", 1)
            waits.append((time.perf_counter() - began_s) * 1000)
        link.close()
    waits = sorted(waits[100:])
    text = f"SUBACK with 8 cells, median (p99 {waits[len(waits) * 99 // 100]:.1f} ms)"
    return _tell(text, statistics.median(waits), 2, "ms")


def restart(options: argparse.Namespace) -> bool:
    """A CONNACK within 1 s of the kill, and all within 10 s of the return of the clients."""
    place = Place(0, 2, Path())
    names = (f"durable-{number}" for number in range(10**9))
    own = [next(name for name in names if place.cell_of(name)) for _ in range(options.sessions)]
    with _broker(2) as (address, pids):
        host, _, port = address.rpartition(":")
        asyncio.run(_all_connected(host, int(port), own, is_first=True))
        began_s = time.monotonic()
        os.kill(pids[2], signal.SIGKILL)  # behind the supervisor and cell 0
        first_s = asyncio.run(_all_connected(host, int(port), own[:1], since_s=began_s))
        back_s = time.monotonic()
        asyncio.run(_all_connected(host, int(port), own, since_s=back_s))
        all_s = time.monotonic() - back_s
    name = f"a killed cell with {options.sessions:,} durable sessions"
    is_soon = _tell(f"{name}, first CONNACK", first_s, 1, "s")
    return _tell(f"{name}, all CONNACKs", all_s, 10, "s") and is_soon


async def _all_connected(
    host: str, port: int, names: list[str], *, is_first: bool = False, since_s: float = 0.0
) -> float:
    """Connect all, each until it succeeds, and close; the seconds from ``since_s`` to the first CONNACK."""
    room = asyncio.Semaphore(_AT_ONCE)
    firsts: list[float] = []

    async def one(name: str) -> None:
        packet = encode_packet(
            Connect(name, 5, is_first, 60, properties={"Session-Expiry-Interval": 3600})
        )
        async with room:
            until_s = time.monotonic() + _PATIENCE_S
            while time.monotonic() < until_s:
                try:
                    reader, writer = await asyncio.open_connection(host, port)
                except OSError:
                    await asyncio.sleep(0.01)
                    continue
                writer.write(packet)
                try:
                    answer = await reader.read(256)
                except OSError:
                    answer = b""
                writer.close()
                if len(answer) > 3 and answer[0] == _CONNACK and answer[3] == 0:
                    if not is_first and not answer[2] & 1:
                        raise SystemExit(f"the session of {name} is lost")
                    firsts.append(time.monotonic() - since_s)
                    return
                await asyncio.sleep(0.01)
            raise SystemExit(f"{name} was not connected within {_PATIENCE_S:g} s")

    await asyncio.gather(*map(one, names))
    return min(firsts)


@contextmanager
def _broker(workers: int) -> Iterator[tuple[str, list[int]]]:
    """The address of a broker, and its processes, the supervisor first."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    settings = ("overload.enable=false", "login_limits.enable=false")
    with serving(*settings, workers=workers) as (ready, _):
        pid = int(ready["pid"])
        pids = [pid, *(cell_pids(pid) if workers > 1 else ())]
        assert soft > 2 * _AT_ONCE
        yield ready["mqtt"], pids


def _tell(what: str, found: float, wanted: float, unit: str) -> bool:
    is_reached = found <= wanted
    verdict = "reached" if is_reached else "MISSED"
    print(f"{what}: {found:.1f} {unit}, at most {wanted:g}: {verdict}", flush=True)
    return is_reached


if __name__ == "__main__":
    main()
