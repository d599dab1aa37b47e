"""Sluice and mosquitto bare, side by side: `python -m benchmarks.bare`.

Both brokers run at the same time on this machine and are loaded in turns, so that what else the machine does falls on
both; the figures to look at are the ratios. Sluice runs without stages, with its store in memory.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class Case:
    """One way of loading a broker. ``wanted`` is the least ratio to mosquitto or 0, ``figure`` what is compared.

    ``ours`` are arguments of the load on Sluice only.
    """

    name: str
    wanted: float
    figure: str
    arguments: tuple[str, ...]
    ours: tuple[str, ...] = ()


CASES = (
    Case("QoS 0, 1 to 1", 3, "deliver_per_s", ("--count", "400000")),
    Case("QoS 1, 1 to 1", 2, "deliver_per_s", ("--qos", "1", "--subqos", "1", "--count", "60000")),
    Case("QoS 1, 10 to 1", 2, "deliver_per_s", ("--qos", "1", "--subqos", "1", "--pubs", "10", "--count", "100000")),
    Case("QoS 0, 1 to 10", 8, "deliver_per_s", ("--subs", "10", "--count", "100000")),
    Case("QoS 0, 1 to 1, 100 topics", 3, "deliver_per_s", ("--topics", "100", "--count", "400000")),
)


def main() -> None:
    """Run the cases and print a table; the exit code tells whether every wanted ratio was reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="turns per broker and case")
    parser.add_argument("--serve", type=int, metavar="PORT", help="only run Sluice bare, on this port")
    options = parser.parse_args()
    if options.serve is not None:
        serve(options.serve)
        return
    with sluice() as ours, mosquitto() as theirs:
        reached = [compare(case, ours, theirs, options.rounds) for case in CASES]
    sys.exit(0 if all(reached) else 1)


def compare(case: Case, ours: int, theirs: int, rounds: int) -> bool:
    """Load both brokers in turns, print the medians, and tell whether the ratio is what is wanted."""
    figures: dict[int, list[float]] = {ours: [], theirs: []}
    lost = 0.0
    for _ in range(rounds):
        for port, values in figures.items():
            result = load(port, case.arguments + case.ours if port == ours else case.arguments)
            values.append(result[case.figure])
            lost += result["expected"] - result["received"] if port == ours else 0
    mine, other = statistics.median(figures[ours]), statistics.median(figures[theirs])
    ratio = mine / other
    verdict = (
        f"wanted {case.wanted:g} x, {'ok' if ratio >= case.wanted else 'TOO SLOW'}" if case.wanted else "for comparison"
    )
    print(
        f"{case.name:28} sluice {mine:>11,.0f}/s   mosquitto {other:>11,.0f}/s   {ratio:5.1f} x "
        f"({verdict}; not delivered {lost:.0f})",
        flush=True,
    )
    return ratio >= case.wanted


def load(port: int, arguments: tuple[str, ...]) -> dict[str, float]:
    """One run of the load generator."""
    command = [sys.executable, "-m", "benchmarks.load", "throughput", "--port", str(port), *arguments]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


@contextmanager
def mosquitto() -> Iterator[int]:
    """A mosquitto on a free port, with TCP_NODELAY as Sluice has it: without, its QoS 1 waits 40 ms a window."""
    program = shutil.which("mosquitto") or "/usr/sbin/mosquitto"
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        configuration = Path(folder, "mosquitto.conf")
        configuration.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\nset_tcp_nodelay true\n")
        yield from _running([program, "-c", str(configuration)], port)


@contextmanager
def sluice() -> Iterator[int]:
    """Sluice without stages, on a free port."""
    port = free_port()
    yield from _running([sys.executable, "-m", "benchmarks.bare", "--serve", str(port)], port)


def serve(port: int) -> None:
    """Run the server alone, with its store in memory, until SIGTERM."""
    import uvloop

    from broker.connection.settings import MqttSettings
    from broker.core.clock import SystemClock
    from broker.core.events import Events
    from broker.net.server import Server
    from broker.net.settings import ListenerSettings, NamedListener
    from broker.observe.metrics import Metrics
    from broker.storage.memory import MemoryStore
    from broker.storage.store import LogShard
    from broker.storage.writer import Writer

    async def run() -> None:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, ended.set)
        writer = Writer(MemoryStore(), loop)
        server = Server(
            settings=MqttSettings(),
            listeners=[NamedListener(ListenerSettings(bind=f"127.0.0.1:{port}"))],
            writer=writer,
            session_log=LogShard(1),
            metrics=Metrics(),
            events=Events(),
            clock=SystemClock(),
        )
        await server.start()
        await ended.wait()
        await server.stop()
        await writer.close()

    uvloop.run(run())


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _running(command: list[str], port: int) -> Iterator[int]:
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(port, process)
        yield port
    finally:
        process.terminate()
        process.wait(10)


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    ends_at = time.monotonic() + 10
    while time.monotonic() < ends_at and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise SystemExit(f"{process.args!r} did not listen on port {port} within 10 s")


if __name__ == "__main__":
    main()
