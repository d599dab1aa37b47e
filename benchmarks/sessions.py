"""Sessions on disk, Sluice beside nats-server: `python -m benchmarks.sessions`.

QoS 1 from devices to subscribers whose sessions outlive their connections. Sluice runs as users run it (`sluice serve`,
default settings) and acknowledges what the disk has (`store.durability = fsync`). nats-server keeps a stream of
JetStream on disk and syncs it every two minutes, since 2.9 has no setting for it; a second Sluice with
`store.durability = os` is for comparison with that. They run at the same time and are loaded in turns. The figures to
look at are the ratios of the rates at which messages are acknowledged.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fleet import Broker, load
from benchmarks.pipeline import serving
from tests.support import peers

SLUICE, UNSYNCED, NATS = "sluice", "sluice, os", "nats-server"
_DURABLE = ("--qos", "1", "--subqos", "1", "--persistent")


@dataclass(frozen=True, slots=True)
class Case:
    """One way of loading the brokers; ``wanted`` is the least ratio of Sluice's rate to that of nats-server."""

    name: str
    wanted: float
    arguments: tuple[str, ...]
    messages: int


CASES = (
    Case("1,000 devices, 1 open; 100 subscribers, 10 devices each", 2, ("--subs", "100"), 30_000),
    Case(
        "100 devices, 1 open; 100 subscribers to all",
        2,
        ("--devices", "100", "--subs", "100", "--everything"),
        1_000,
    ),
    Case("1 publisher, 20 open; 1 subscriber", 0.8, ("--devices", "1", "--open", "20"), 20_000),
)


def main() -> None:
    """Run the cases and print a table; the exit status tells whether every wanted ratio was reached."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="turns per broker and case")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    options = parser.parse_args()
    with ExitStack() as running, tempfile.TemporaryDirectory() as folder:
        brokers = {
            SLUICE: running.enter_context(_sluice("fsync")),
            UNSYNCED: running.enter_context(_sluice("os")),
            NATS: running.enter_context(_nats(Path(folder))),
        }
        reached = [
            _compare(case, brokers, options.rounds) for case in CASES if options.only in case.name
        ]
    sys.exit(0 if all(reached) else 1)


def _compare(case: Case, brokers: Mapping[str, Broker], rounds: int) -> bool:
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in brokers}
    for _ in range(rounds):
        for name, results in turns.items():
            results.append(load(brokers[name], (*_DURABLE, *case.arguments), case.messages))
    print(case.name)
    for name, results in turns.items():
        acknowledged, delivered, cpu_us = (
            statistics.median(one[figure] for one in results)
            for figure in ("per_s", "delivered_per_s", "cpu_us")
        )
        lost = 1 - min(one["acknowledged"] / one["sent"] for one in results)
        print(
            f"  {name:12} {acknowledged:>9,.0f} /s   delivered {delivered:>9,.0f} /s   {cpu_us:7.1f} µs a message   "
            f"not acknowledged {lost:.1%}",
            flush=True,
        )
    pairs = zip(turns[SLUICE], turns[NATS], strict=True)
    ratio = statistics.median(ours["per_s"] / theirs["per_s"] for ours, theirs in pairs)
    print(
        f"  {ratio:.2f} times the rate, wanted {case.wanted:g}: {'reached' if ratio >= case.wanted else 'MISSED'}"
    )
    return ratio >= case.wanted


@contextmanager
def _sluice(durability: str) -> Iterator[Broker]:
    with serving(f"store.durability={durability}", "overload.enable=false") as (ready, _):
        yield Broker(int(ready["mqtt"].rpartition(":")[2]), (int(ready["pid"]),))


@contextmanager
def _nats(folder: Path) -> Iterator[Broker]:
    with peers.nats(folder / "nats") as peer:
        yield Broker(peer.port, (peer.process.pid,))


if __name__ == "__main__":
    main()
