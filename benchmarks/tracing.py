"""The cost of traces for each message: off, with contexts only, and one message in a hundred.

python -m benchmarks.tracing [--before TREE] [--all]

Brokers with these settings run at the same time, and are loaded in turns over connections that stay; the figure is the
processor time of the broker per message: that of the event loop in the median of the turns, and that of its other
threads, the exporter's included, from the first turn to the last export. Spans go to a receiver of this process.
`--before` adds the broker of another work tree without tracing, such as one of the commit before; `--all` adds one in a
hundred without `max_traces_per_s`, and every message. The exit status is 1 if one in a hundred costs more than 5 % in
the mean of the cases. `python -m benchmarks.counted --traced` counts the same, whatever else the machine does.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import mean, median

from benchmarks.bare import ROOT
from benchmarks.fleet_load import Fleet
from benchmarks.fleet_load import options_of as fleet_options
from benchmarks.idle import raise_open_files
from benchmarks.load import options_of as load_options
from benchmarks.load import throughput
from benchmarks.pipeline import OBJECTS, create, serving
from tests.support.collector import Collector, collecting

WANTED = 1.05
OFF, SAMPLED = "off", "one in a hundred"
FLEET = "fleet"
_NO_LIMIT = "telemetry.max_traces_per_s=0"
# Longer than the exporter gathers spans and needs to send them, in seconds.
_SETTLE_S = 2.0
_FIRST_EXPORT_S = 20.0
CASES = (
    ("QoS 0, 1 to 1", "load", ("--count", "400000")),
    ("QoS 1, 1 to 1", "load", ("--qos", "1", "--subqos", "1", "--count", "20000")),
    ("QoS 0, 1,000 devices to 1", FLEET, ("--messages", "40000")),
    ("QoS 1, 1,000 devices to 1, QoS 0", FLEET, ("--qos", "1", "--messages", "20000")),
    ("pipeline, QoS 0, 1,000 devices to 1", FLEET, ("--topics", "bench", "--messages", "20000")),
    (
        "pipeline, QoS 1, 1,000 devices to 1",
        FLEET,
        ("--topics", "bench", "--qos", "1", "--messages", "12000"),
    ),
)


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="turns of each broker")
    parser.add_argument("--before", type=Path, help="another work tree")
    parser.add_argument("--all", action="store_true", help="more traces too")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    options = parser.parse_args()
    raise_open_files()
    ratios: dict[str, list[float]] = {}
    with ExitStack() as stack:
        collector = stack.enter_context(collecting("http"))
        on = ("telemetry.enable=true", f"telemetry.endpoint={collector.endpoint}")
        sampled = (*on, "telemetry.trace_all=true", "telemetry.ratio=0.01")
        settings: dict[str, tuple[tuple[str, ...], Path]] = {OFF: ((), ROOT)}
        if options.before is not None:
            settings["before"] = ((), options.before)
        settings["contexts only"] = (on, ROOT)
        settings[SAMPLED] = (sampled, ROOT)
        if options.all:
            settings["the same, no limit"] = ((*sampled, _NO_LIMIT), ROOT)
            settings["every message"] = ((*on, "telemetry.trace_all=true", _NO_LIMIT), ROOT)
        brokers = {
            name: stack.enter_context(serving("overload.enable=false", *values, tree=tree))[0]
            for name, (values, tree) in settings.items()
        }
        for ready in brokers.values():
            for kind, spec in OBJECTS:
                create(ready["api"], kind, spec)
        for case, kind, arguments in CASES:
            if options.only not in case:
                continue
            with ExitStack() as connected:
                loads = {
                    name: connected.enter_context(_load(ready, kind, arguments))
                    for name, ready in brokers.items()
                }
                costs = _costs(brokers, loads, options.rounds, collector)
            for name, cost_us in costs.items():
                ratio = cost_us / costs[OFF]
                ratios.setdefault(name, []).append(ratio)
                print(f"{case:36} {name:18} {cost_us:7.3f} µs each  {ratio:5.3f} x", flush=True)
    for name, each in ratios.items():
        print(f"{'mean of the cases':36} {name:18} {mean(each):27.3f} x")
    return int(mean(ratios[SAMPLED]) > WANTED)


@contextmanager
def _load(
    ready: dict[str, str], kind: str, arguments: tuple[str, ...]
) -> Iterator[Callable[[], int]]:
    """A function that loads a broker for a turn, and returns the number of messages."""
    if kind == FLEET:
        fleet = Fleet(fleet_options((ready["mqtt"], "--pid", ready["pid"], *arguments)))
        yield lambda: int(fleet.run()["sent"])
        fleet.close()
        return
    port = ready["mqtt"].rpartition(":")[2]
    options = load_options(("throughput", "--port", port, *arguments, "--idle", "0.3"))
    yield lambda: int(throughput(options)["expected"])


def _costs(
    brokers: dict[str, dict[str, str]],
    loads: dict[str, Callable[[], int]],
    rounds: int,
    collector: Collector,
) -> dict[str, float]:
    """Processor time of each broker for each message, in microseconds."""
    for load in loads.values():
        load()
    ends_at = time.monotonic() + _FIRST_EXPORT_S
    while not collector.headers and time.monotonic() < ends_at:
        time.sleep(0.05)  # the exporter is imported with the first spans
    time.sleep(_SETTLE_S)
    pids = {name: int(ready["pid"]) for name, ready in brokers.items()}
    others_ns = {name: _other_threads_ns(pid) for name, pid in pids.items()}
    turns: dict[str, list[float]] = {name: [] for name in brokers}
    count = 0
    for _ in range(rounds):
        for name, load in loads.items():
            before_ns = _loop_ns(pids[name])
            count = load()
            turns[name].append((_loop_ns(pids[name]) - before_ns) / count)
            collector.spans.clear()
    time.sleep(_SETTLE_S)
    return {
        name: (median(each) + (_other_threads_ns(pids[name]) - others_ns[name]) / (rounds * count))
        / 1e3
        for name, each in turns.items()
    }


def _loop_ns(pid: int) -> int:
    """Processor time of the thread of the event loop, which is a process's first."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0])


def _other_threads_ns(pid: int) -> int:
    return cpu_ns(pid) - _loop_ns(pid)


def cpu_ns(pid: int) -> int:
    """Processor time that the threads of a process have used, more exact than in hundredths of a second."""
    return sum(
        int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")
    )


if __name__ == "__main__":
    sys.exit(main())
