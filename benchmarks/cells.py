"""Cells beside one process, and messages that cross between cells: `python -m benchmarks.cells`.

Brokers of one process and of two cells run at the same time and are loaded in turns, by the fleets of
`benchmarks.fleet_load`. A message that crosses has its publisher in one cell and its subscriber in the other; its cost
is the processor time of both. Cells *carry* so many times what one process or mosquitto does, with a processor for
each: the processor time of that for a delivery (a message, where nobody subscribes), divided by that of the busiest
cell. A cell gets as many messages a second as one process does, some 40 % of what it could take: cells that are less
busy read less at once, and need more time for each message. *Two brokers* are two of one process each, loaded at
the same time: what they carry is what the machine allows, since its caches and processors are shared by all.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.bare import ROOT
from benchmarks.fleet import Broker, load
from benchmarks.pipeline import OBJECTS, create, serving
from tests.support import peers

_ONE, _TWO, _MOSQUITTO = "one process", "two cells", "mosquitto"
_APART: Final = "two brokers"
_Start = Callable[[Path, Path], AbstractContextManager[Broker]]
_QOS_1_TO_0: Final = ("--qos", "1")
_QOS_1: Final = ("--qos", "1", "--subqos", "1")
_PAIRS: Final = ("--devices", "300", "--subs", "300")
_WITHIN: Final = ("--cells", "2", "--from-cell", "0", "--to-cell", "0")
_ACROSS: Final = ("--cells", "2", "--from-cell", "0", "--to-cell", "1")
_PIPELINE: Final = ("--topics", "bench")

Turns = list[dict[str, Any]]
"""Results of the turns of one way."""


@dataclass(frozen=True, slots=True)
class Case:
    """Two ways of loading, each a broker with arguments, and the goal for their ratio; a third is compared too."""

    name: str
    messages: int
    ways: Sequence[tuple[str, tuple[str, ...]]]
    wanted: float
    compare: Callable[[Sequence[Turns]], float]
    is_least: bool = False


def _crossing(ways: Sequence[Turns]) -> float:
    within, across = (_median(turns, "cpu_us") for turns in ways)
    return across / within


def _carrying(ways: Sequence[Turns]) -> float:
    one, cells = (
        statistics.median(max(turn["cpu_us_each"]) / _deliveries(turn) for turn in turns)
        for turns in ways
    )
    return float(one / cells)


def _deliveries(turn: dict[str, Any]) -> float:
    """Deliveries of a message; 1 without subscribers."""
    return float(turn["expected"] / (turn["acknowledged"] or turn["sent"])) or 1.0


def _median(results: list[dict[str, Any]], name: str) -> float:
    return float(statistics.median(turn[name] for turn in results))


def _cross(name: str, messages: int, *arguments: str) -> Case:
    ways = ((_TWO, (*arguments, *_WITHIN)), (_TWO, (*arguments, *_ACROSS)))
    return Case(f"crossing, {name}", messages, ways, 1.1, _crossing)


def _carry(name: str, rate: int, wanted: float, devices: int, subs: int, *arguments: str) -> Case:
    """Two cells have twice the clients and messages, so that each has as much to do at once as one process has."""

    def loaded(cells: int) -> tuple[str, ...]:
        numbers = {"--devices": devices, "--subs": subs, "--rate": rate}
        each = [text for name, number in numbers.items() for text in (name, str(cells * number))]
        return (*each, *arguments, "--cells", str(cells))

    ways = ((_ONE, loaded(1)), (_TWO, loaded(2)), (_APART, loaded(1)))
    return Case(f"carried, {name}", 4 * rate, ways, wanted * 2, _carrying, is_least=True)


def _against(name: str, rate: int, *arguments: str) -> Case:
    two = ("--rate", str(2 * rate), *arguments, *_PIPELINE, "--cells", "2")
    ways = ((_MOSQUITTO, ("--rate", str(rate), *arguments)), (_TWO, two))
    return Case(f"carried of mosquitto, {name}", 4 * rate, ways, 1.5, _carrying, is_least=True)


CASES = (
    _cross("QoS 0, 1,000 to 1", 200_000),
    _cross("QoS 0, 300 to 300", 150_000, *_PAIRS),
    _cross("QoS 1 to QoS 0, 1,000 to 1", 100_000, *_QOS_1_TO_0),
    _cross("QoS 1 to QoS 1, 1,000 to 1", 60_000, *_QOS_1),
    _carry("QoS 1 to rules and streams", 10_000, 0.95, 1000, 0, *_PIPELINE, *_QOS_1_TO_0),
    _carry("QoS 0, 100 to 50 each", 5_000, 0.9, 100, 50, "--everything"),
    _carry("QoS 0, 1,000 to 2", 60_000, 0.75, 1000, 2),
    _carry("QoS 0, 300 to 300", 40_000, 0.75, 300, 300),
    _carry("QoS 1, 300 to 300", 15_000, 0.75, 300, 300, *_QOS_1),
    _against("pipeline, QoS 0, 1,000 to 4", 30_000, "--subs", "4"),
    _against("pipeline, QoS 1, 1,000 to 4", 10_000, "--subs", "4", *_QOS_1_TO_0),
)


def main() -> None:
    """Run the cases and print a table; the exit status tells whether every wanted ratio was reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="turns for each way")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--tree", type=Path, default=ROOT, help="work tree of the broker")
    options = parser.parse_args()
    cases = [case for case in CASES if options.only in case.name]
    wanted = {broker for case in cases for broker, _ in case.ways}
    with ExitStack() as running, tempfile.TemporaryDirectory() as folder:
        brokers = {
            name: [running.enter_context(start(Path(folder), options.tree)) for start in starts]
            for name, starts in _START.items()
            if name in wanted
        }
        reached = [_compared(case, brokers, options.rounds) for case in cases]
    sys.exit(0 if all(reached) else 1)


def _compared(case: Case, brokers: Mapping[str, Sequence[Broker]], rounds: int) -> bool:
    ways: list[Turns] = [[] for _ in case.ways]
    for _ in range(rounds):
        for (name, arguments), turns in zip(case.ways, ways, strict=True):
            turns.append(_loaded(brokers[name], arguments, case.messages))
    print(case.name)
    for (name, _), turns in zip(case.ways, ways, strict=True):
        each = " + ".join(f"{used:.1f}" for used in turns[-1]["cpu_us_each"])
        lost = max(
            1 - turn["delivered"] / turn["expected"] if turn["expected"] else 0 for turn in turns
        )
        print(
            f"    {name:12} {_median(turns, 'cpu_us'):7.1f} µs ({each})"
            f" {_median(turns, 'per_s'):>9,.0f} /s   lost {lost:.1%}"
        )
    ratio = case.compare(ways[:2])
    is_reached = ratio >= case.wanted if case.is_least else ratio <= case.wanted
    bound = "at least" if case.is_least else "at most"
    verdict = "reached" if is_reached else "MISSED"
    apart = f"; two brokers {case.compare([ways[0], ways[2]]):.2f}" if ways[2:] else ""
    print(f"    {ratio:.2f}, {bound} {case.wanted:.2f}: {verdict}{apart}", flush=True)
    return is_reached


def _loaded(brokers: Sequence[Broker], arguments: tuple[str, ...], messages: int) -> dict[str, Any]:
    """A turn of brokers at the same time, which share the messages, as if they were one."""
    with ThreadPoolExecutor(len(brokers)) as threads:
        share = messages // len(brokers)
        turns = list(threads.map(lambda broker: load(broker, arguments, share), brokers))
    done = [turn["acknowledged"] or turn["sent"] for turn in turns]
    each = [
        used * count / sum(done)
        for turn, count in zip(turns, done, strict=True)
        for used in turn["cpu_us_each"]
    ]
    added = ("sent", "acknowledged", "delivered", "expected", "per_s")
    return {
        **{name: sum(turn[name] for turn in turns) for name in added},
        "cpu_us": sum(each),
        "cpu_us_each": each,
    }


@contextmanager
def _one(_folder: Path, tree: Path) -> Iterator[Broker]:
    with _cells(1, tree) as broker:
        yield broker


@contextmanager
def _two(_folder: Path, tree: Path) -> Iterator[Broker]:
    with _cells(2, tree) as broker:
        yield broker


@contextmanager
def _cells(count: int, tree: Path) -> Iterator[Broker]:
    with serving("overload.enable=false", tree=tree, workers=count) as (ready, _):
        for kind, spec in OBJECTS:
            create(ready["api"], kind, spec)
        pid = int(ready["pid"])
        pids = [pid] if count == 1 else cell_pids(pid)
        yield Broker(int(ready["mqtt"].rpartition(":")[2]), tuple(pids))


def cell_pids(supervisor: int) -> list[int]:
    """The processes of the cells in their order, without the zygote."""
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    by_cell = {}
    for child in children:
        arguments = Path(f"/proc/{child}/cmdline").read_text().split("\0")
        cell = json.loads(arguments[-2])["cell"]
        if cell != "any":
            by_cell[cell] = int(child)
    return [by_cell[cell] for cell in sorted(by_cell)]


@contextmanager
def _mosquitto(folder: Path, _tree: Path) -> Iterator[Broker]:
    with peers.mosquitto(folder / "mosquitto", "set_tcp_nodelay true") as peer:
        yield Broker(peer.port, (peer.process.pid,))


_START: Final[Mapping[str, Sequence[_Start]]] = {
    _ONE: [_one],
    _TWO: [_two],
    _APART: [_one, _one],
    _MOSQUITTO: [_mosquitto],
}


if __name__ == "__main__":
    main()
