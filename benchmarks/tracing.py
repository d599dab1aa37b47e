"""The cost of traces for each message: off, with contexts only, one message in a hundred, and every message.

python -m benchmarks.tracing [--before TREE]

Brokers with these settings run at the same time, and are loaded in turns; the figure is the processor time of the
broker per message, its exporter thread included. Spans go to a receiver of this process. `--before` adds the broker of
another work tree without tracing, such as one of the commit before. The exit status is 1 if one in a hundred costs more
than 5 % in the mean of the cases.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from statistics import mean, median

from benchmarks.bare import ROOT, load
from benchmarks.pipeline import OBJECTS, create, serving
from tests.support.collector import collecting

WANTED = 1.05
OFF, SAMPLED = "off", "one in a hundred"
FLEET = "fleet"
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
    parser.add_argument("--only", default="", help="cases whose name contains this")
    options = parser.parse_args()
    ratios: dict[str, list[float]] = {}
    with ExitStack() as stack:
        collector = stack.enter_context(collecting("http"))
        on = ("telemetry.enable=true", f"telemetry.endpoint={collector.endpoint}")
        trees = {} if options.before is None else {"before": ((), options.before)}
        settings = {
            **trees,
            OFF: ((), ROOT),
            "contexts only": (on, ROOT),
            SAMPLED: ((*on, "telemetry.trace_all=true", "telemetry.ratio=0.01"), ROOT),
            "every message": (
                (*on, "telemetry.trace_all=true", "telemetry.max_traces_per_s=0"),
                ROOT,
            ),
        }
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
            figures: dict[str, list[float]] = {name: [] for name in brokers}
            for _ in range(options.rounds):
                for name, ready in brokers.items():
                    figures[name].append(_cost_us(ready, kind, arguments))
                    collector.spans.clear()
            base = median(figures[OFF])
            for name, each in figures.items():
                ratio = median(each) / base
                ratios.setdefault(name, []).append(ratio)
                print(
                    f"{case:36} {name:18} {median(each):7.3f} µs each  {ratio:5.3f} x", flush=True
                )
    return int(mean(ratios[SAMPLED]) > WANTED)


def _cost_us(ready: dict[str, str], kind: str, arguments: tuple[str, ...]) -> float:
    """Processor time of the broker for each message of a turn, in microseconds."""
    count = int(arguments[arguments.index("--messages" if kind == FLEET else "--count") + 1])
    pid = int(ready["pid"])
    before_ns = cpu_ns(pid)
    if kind == FLEET:
        command = [
            sys.executable,
            "-m",
            "benchmarks.fleet_load",
            ready["mqtt"],
            "--pid",
            str(pid),
            *arguments,
        ]
        done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
        json.loads(done.stdout)
    else:
        load(int(ready["mqtt"].rpartition(":")[2]), (*arguments, "--idle", "1"))
    return (cpu_ns(pid) - before_ns) / count / 1e3


def cpu_ns(pid: int) -> int:
    """Processor time that the threads of a process have used, more exact than in hundredths of a second."""
    return sum(
        int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")
    )


if __name__ == "__main__":
    sys.exit(main())
