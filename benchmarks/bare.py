"""Sluice, mosquitto and nats-server bare, side by side: `python -m benchmarks.bare`.

The brokers run at the same time on this machine and are loaded in turns, so that what else the machine does falls on
all; the figures to look at are the ratios. Sluice runs without stages, with its store in memory. Sessions that outlive
their connections are in `benchmarks/sessions.py`.
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
MOSQUITTO, NATS = "mosquitto", "nats-server"


@dataclass(frozen=True, slots=True)
class Case:
    """One way of loading the brokers. ``wanted`` is the least ratio to each peer; ``figure`` is what is compared.

    ``ours`` are arguments of the load on Sluice only. A peer that is not in ``wanted`` is not loaded.
    """

    name: str
    wanted: Mapping[str, float]
    figure: str
    arguments: tuple[str, ...]
    ours: tuple[str, ...] = ()
    mode: str = "throughput"


_RATE = "deliver_per_s"
_QOS_1 = ("--qos", "1", "--subqos", "1")
CASES = (
    Case("QoS 0, 1 to 1", {MOSQUITTO: 5, NATS: 0.7}, _RATE, ("--count", "400000")),
    Case("QoS 0, 5 to 1", {MOSQUITTO: 5, NATS: 0.7}, _RATE, ("--pubs", "5", "--count", "400000")),
    Case(
        "QoS 0, 1 to 10", {MOSQUITTO: 12, NATS: 0.8}, _RATE, ("--subs", "10", "--count", "100000")
    ),
    Case(
        "QoS 0, 1 to 1, 100 topics", {MOSQUITTO: 3}, _RATE, ("--topics", "100", "--count", "400000")
    ),
    Case("QoS 1, 1 to 1", {MOSQUITTO: 3}, _RATE, (*_QOS_1, "--count", "60000")),
    Case("QoS 1, 10 to 1", {MOSQUITTO: 3}, _RATE, (*_QOS_1, "--pubs", "10", "--count", "100000")),
    Case(
        "QoS 2, 1 to 1", {MOSQUITTO: 2}, _RATE, ("--qos", "2", "--subqos", "2", "--count", "60000")
    ),
)
LATENCY = Case(
    "QoS 1 at 1,000/s, p99",
    {MOSQUITTO: 0.5},
    "p99_ms",
    (*_QOS_1, "--rate", "1000", "--count", "5000"),
    mode="latency",
)


def main() -> None:
    """Run the cases and print a table; the exit code tells whether every wanted ratio was reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="turns per broker and case")
    parser.add_argument(
        "--serve", type=int, metavar="PORT", help="only run Sluice bare, on this port"
    )
    options = parser.parse_args()
    if options.serve is not None:
        serve(options.serve)
        return
    with ExitStack() as running:
        ours = running.enter_context(sluice())
        peers = {MOSQUITTO: running.enter_context(mosquitto())}
        if program(NATS):
            peers[NATS] = running.enter_context(nats())
        else:
            print(f"{NATS} is not installed, so nothing is compared with it")
        reached = [compare(case, ours, peers, options.rounds) for case in (*CASES, LATENCY)]
        reached.append(many_topics(ours, options.rounds))
    sys.exit(0 if all(reached) else 1)


def compare(case: Case, ours: int, peers: Mapping[str, int], rounds: int) -> bool:
    """Load the brokers in turns, print the medians, and tell whether the ratios are what is wanted."""
    others = {name: port for name, port in peers.items() if name in case.wanted}
    figures: dict[int, list[float]] = {port: [] for port in (ours, *others.values())}
    lost = 0.0
    for _ in range(rounds):
        for port, values in figures.items():
            result = load(
                port, case.arguments + case.ours if port == ours else case.arguments, case.mode
            )
            values.append(result[case.figure])
            lost += result.get("expected", 0) - result.get("received", 0) if port == ours else 0
    mine = statistics.median(figures[ours])
    told = _Told(case, mine, f"; not delivered {lost:.0f}" if case.mode == "throughput" else "")
    for name, port in others.items():
        told.add(name, statistics.median(figures[port]))
    print(told.line(), flush=True)
    return told.is_reached


@dataclass(slots=True)
class _Told:
    case: Case
    mine: float
    end: str
    parts: list[str] = field(default_factory=list)
    is_reached: bool = True

    def add(self, name: str, other: float) -> None:
        """A peer's figure and the ratio: how many times faster Sluice is, or how many times sooner."""
        is_time, wanted = self.case.mode == "latency", self.case.wanted[name]
        ratio = other / self.mine if is_time else self.mine / other
        verdict = (
            f"wanted {wanted:g} x, {'ok' if ratio >= wanted else 'MISSED'}"
            if wanted
            else "for comparison"
        )
        self.is_reached = self.is_reached and ratio >= wanted
        self.parts.append(f"{name} {_shown(other, is_time=is_time)} {ratio:6.2f} x ({verdict})")

    def line(self) -> str:
        """The table's line."""
        mine = _shown(self.mine, is_time=self.case.mode == "latency")
        return f"{self.case.name:34} sluice {mine}   {'   '.join(self.parts)}{self.end}"


def _shown(figure: float, *, is_time: bool) -> str:
    return f"{figure:8.2f} ms" if is_time else f"{figure:>11,.0f}/s"


def many_topics(ours: int, rounds: int) -> bool:
    """10,000 topics in turn instead of one, which is sent in blocks of as many messages.

    Long enough that planning each topic once, some 5 µs, is not what is measured: 400 messages a topic.
    """
    rates: dict[str, list[float]] = {"one": [], "many": []}
    for _ in range(rounds):
        for kind, topics in (("one", "1"), ("many", "10000")):
            arguments = ("--topics", topics, "--count", "4000000", "--block", "10000")
            rates[kind].append(load(ours, arguments)[_RATE])
    one, many = statistics.median(rates["one"]), statistics.median(rates["many"])
    verdict = "ok" if many >= 0.7 * one else "MISSED"
    print(
        f"{'QoS 0, 10,000 topics in turn':34} sluice {_shown(many, is_time=False)}   one topic "
        f"{_shown(one, is_time=False)} {many / one:6.2f} x (wanted 0.7 x, {verdict})",
        flush=True,
    )
    return many >= 0.7 * one


def load(port: int, arguments: Sequence[str], mode: str = "throughput") -> dict[str, float]:
    """One run of the load generator."""
    command = [sys.executable, "-m", "benchmarks.load", mode, "--port", str(port), *arguments]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


@contextmanager
def mosquitto() -> Iterator[int]:
    """A mosquitto on a free port, with TCP_NODELAY as Sluice has it: without, its QoS 1 waits 40 ms a window."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        configuration = Path(folder, "mosquitto.conf")
        configuration.write_text(
            f"listener {port} 127.0.0.1\nallow_anonymous true\nset_tcp_nodelay true\n"
        )
        yield from _running([program(MOSQUITTO), "-c", str(configuration)], port)


@contextmanager
def nats() -> Iterator[int]:
    """A nats-server with JetStream on disk, its MQTT listener on a free port."""
    port, client_port = free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        configuration = Path(folder, "nats.conf")
        configuration.write_text(
            f'server_name = bench\nlisten = "127.0.0.1:{client_port}"\njetstream {{ store_dir = "{folder}" }}\n'
            f'mqtt {{ listen = "127.0.0.1:{port}" }}\n'
        )
        yield from _running([program(NATS), "-c", str(configuration)], port)


@contextmanager
def sluice() -> Iterator[int]:
    """Sluice without stages, on a free port; what is durable is kept in memory."""
    port = free_port()
    yield from _running([sys.executable, "-m", "benchmarks.bare", "--serve", str(port)], port)


def program(name: str) -> str:
    """Where a program is; Debian keeps servers off the path of users. Empty when it is not there."""
    found = shutil.which(name) or f"/usr/sbin/{name}"
    return found if Path(found).exists() else ""


def serve(port: int) -> None:
    """Run the server alone until SIGTERM, with its store in memory."""
    from broker.app import loops
    from broker.connection.hub import ServerSettings
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
        store = MemoryStore()
        writer = Writer(store, loop)
        server = Server(
            settings=ServerSettings(),
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
        store.close()

    loops.run(run(), "uvloop")


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _running(command: list[str], port: int) -> Iterator[int]:
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_for(port, process)
        yield port
    finally:
        process.terminate()
        process.wait(10)


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
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
