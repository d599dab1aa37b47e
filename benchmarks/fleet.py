"""Fleets of devices, Sluice beside mosquitto and nats-server: `python -m benchmarks.fleet`.

Each device has a connection and a topic of its own and sends one message at a time, so nothing comes in bulk. The
brokers run at the same time and are loaded in turns; the figures to look at are the processor time of the broker per
message and its ratio to mosquitto's. Sluice runs as users run it (`sluice serve`, default settings, RocksDB); with the
pipeline on every message passes a JSON Schema, a transformation and a rule into a stream, while the others only
forward. `least` is a bare uvloop protocol (`benchmarks/least.py`): the limit of Python without an MQTT broker in it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bare import ROOT
from benchmarks.pipeline import OBJECTS, create, serving
from tests.support import peers
from tests.support.processes import ServerProcess, free_port, is_open

SLUICE, MOSQUITTO, UNBOUNDED, NATS, LEAST = (
    "sluice",
    "mosquitto",
    "mosquitto unbounded",
    "nats-server",
    "least",
)
_ONE_OPEN = ("--qos", "1")
_PIPELINE = ("--topics", "bench")


@dataclass(frozen=True, slots=True)
class Case:
    """One way of loading the brokers. ``wanted`` is the most processor time per message, as a multiple of the time of
    ``against``; ``ours`` are arguments of the load on Sluice only."""

    name: str
    wanted: float
    arguments: tuple[str, ...]
    messages: int
    brokers: tuple[str, ...] = (SLUICE, MOSQUITTO, NATS, LEAST)
    against: str = MOSQUITTO
    ours: tuple[str, ...] = ()
    loses_nothing: bool = True


CASES = (
    Case("QoS 0, 1,000 to 1", 0.7, (), 200_000),
    Case("QoS 0, 300 to 300", 0.5, ("--devices", "300", "--subs", "300"), 150_000),
    Case("QoS 1 to QoS 0, 1,000 to 1", 0.9, _ONE_OPEN, 100_000),
    Case(
        "QoS 1 to QoS 1, 1,000 to 1",
        1.2,
        (*_ONE_OPEN, "--subqos", "1"),
        60_000,
        (SLUICE, MOSQUITTO, UNBOUNDED, NATS),
        UNBOUNDED,
    ),
    Case("pipeline, QoS 0, 1,000 to 1", 1.0, (), 100_000, (SLUICE, MOSQUITTO), ours=_PIPELINE),
    Case(
        "pipeline, QoS 1, 1,000 to 1", 1.5, _ONE_OPEN, 60_000, (SLUICE, MOSQUITTO), ours=_PIPELINE
    ),
)


@dataclass(frozen=True, slots=True)
class Broker:
    """One that runs: its MQTT port, and the processes whose time is measured."""

    port: int
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Figures:
    """What a broker did in a case: medians of its turns, and of what it lost the most in one turn."""

    case: str
    broker: str
    cpu_us: float
    per_s: float
    delivered_per_s: float
    lost: float
    """The share of the messages (with QoS 1: of the acknowledged ones) that were not delivered."""

    def line(self, compared_us: float) -> str:
        """Of the table."""
        return (
            f"{self.case:28} {self.broker:20} {self.cpu_us:7.1f} µs {self.cpu_us / compared_us:6.2f} x "
            f"{self.per_s:>10,.0f} /s   delivered {self.delivered_per_s:>10,.0f} /s   lost {self.lost:.1%}"
        )


def main() -> None:
    """Run the cases and print a table; the exit status tells whether every wanted ratio was reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="turns per broker and case")
    parser.add_argument(
        "--messages", type=int, help="messages of a turn, in place of each case's own number"
    )
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument(
        "--brokers", default="", help="of the brokers these only, separated by commas"
    )
    parser.add_argument(
        "--json", action="store_true", help="print an object for each broker and case, one a line"
    )
    options = parser.parse_args()
    cases = [case for case in CASES if options.only in case.name]
    wanted = {name for case in cases for name in case.brokers} & set(
        options.brokers.split(",") if options.brokers else _START
    )
    with ExitStack() as running, tempfile.TemporaryDirectory() as folder:
        brokers = {
            name: running.enter_context(_START[name](Path(folder)))
            for name in _START
            if name in wanted
        }
        reached = [
            compare(
                case,
                brokers,
                options.rounds,
                options.messages or case.messages,
                is_json=options.json,
            )
            for case in cases
        ]
    sys.exit(0 if all(reached) else 1)


def compare(
    case: Case, brokers: Mapping[str, Broker], rounds: int, messages: int, *, is_json: bool
) -> bool:
    """Load the brokers in turns and print their figures; returns whether the goal was reached."""
    turns: dict[str, list[dict[str, Any]]] = {name: [] for name in case.brokers if name in brokers}
    for _ in range(rounds):
        for name, results in turns.items():
            results.append(
                load(
                    brokers[name],
                    (*case.arguments, *(case.ours if name == SLUICE else ())),
                    messages,
                )
            )
    figures = {name: _figures(case.name, name, results) for name, results in turns.items()}
    ours, compared = figures[SLUICE], figures.get(case.against, figures[SLUICE])
    for one in figures.values():
        print(json.dumps(_as_json(one)) if is_json else one.line(compared.cpu_us), flush=True)
    is_reached = ours.cpu_us <= case.wanted * compared.cpu_us and not (
        case.loses_nothing and ours.lost
    )
    if not is_json and compared is not ours:
        verdict = "reached" if is_reached else "MISSED"
        print(
            f"{'':28} at most {case.wanted:g} x {case.against}, nothing lost: {verdict}", flush=True
        )
    return is_reached


def _figures(case: str, broker: str, results: list[dict[str, Any]]) -> Figures:
    cpu_us, per_s, delivered_per_s = (
        statistics.median(one[name] for one in results)
        for name in ("cpu_us", "per_s", "delivered_per_s")
    )
    lost = max(1 - one["delivered"] / (one["acknowledged"] or one["sent"]) for one in results)
    return Figures(case, broker, cpu_us, per_s, delivered_per_s, lost)


def _as_json(figures: Figures) -> dict[str, float | str]:
    return {name: getattr(figures, name) for name in Figures.__slots__}


def load(broker: Broker, arguments: tuple[str, ...], messages: int) -> dict[str, Any]:
    """One run of the load generator."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.fleet_load",
        f"127.0.0.1:{broker.port}",
        "--pid",
        *map(str, broker.pids),
    ]
    command += ["--messages", str(messages), *arguments]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@contextmanager
def _sluice(_folder: Path) -> Iterator[Broker]:
    with serving("overload.enable=false") as (
        ready,
        _,
    ):
        # else other programs on the machine make it refuse clients
        for kind, spec in OBJECTS:
            create(ready["api"], kind, spec)
        yield Broker(int(ready["mqtt"].rpartition(":")[2]), (int(ready["pid"]),))


@contextmanager
def _mosquitto(folder: Path) -> Iterator[Broker]:
    with peers.mosquitto(folder / "mosquitto", "set_tcp_nodelay true") as peer:
        yield Broker(peer.port, (peer.process.pid,))


@contextmanager
def _unbounded(folder: Path) -> Iterator[Broker]:
    with peers.mosquitto(
        folder / "unbounded", "set_tcp_nodelay true", "max_queued_messages 0"
    ) as peer:
        yield Broker(peer.port, (peer.process.pid,))


@contextmanager
def _nats(folder: Path) -> Iterator[Broker]:
    with peers.nats(folder / "nats") as peer:
        yield Broker(peer.port, (peer.process.pid,))


@contextmanager
def _least(folder: Path) -> Iterator[Broker]:
    port = free_port()
    command = (sys.executable, "-m", "benchmarks.least", str(port))
    process = ServerProcess(
        command, folder, lambda: is_open(port), environ={"PYTHONPATH": str(ROOT)}
    )
    process.start()
    try:
        yield Broker(port, (process.pid,))
    finally:
        process.stop()


_START = {SLUICE: _sluice, MOSQUITTO: _mosquitto, UNBOUNDED: _unbounded, NATS: _nats, LEAST: _least}


if __name__ == "__main__":
    main()
