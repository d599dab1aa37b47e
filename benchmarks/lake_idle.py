"""What tables cost while little happens: processor time and memory of the lake job: `python -m benchmarks.lake_idle`.

`sluice serve` with a rule, a stream and a table, twice; one client publishes a few messages a second in turn to both.
Measured is everything that the lake job is made of: the driver, its JVM and the Python processes under that. Spark's
start is not counted: measuring begins a while after both tables have their first row. Memory is what the processes have
for themselves, with their share of what they share.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import psutil

from benchmarks.load import connect, link_to, publish
from benchmarks.pipeline import create, serving, tables

TABLES = 2
WANTED_CORES = 0.2
PATIENCE_S = 300.0


def main() -> int:
    """Measure once and print the result; 1 if the job needs more than ``WANTED_CORES``."""
    options = _options()
    with serving() as (ready, _):
        for number in range(TABLES):
            for path, spec in _objects(number):
                create(ready["api"], path, spec)
        link = connect(link_to(ready["mqtt"]), "idle")
        ends_at = time.monotonic() + PATIENCE_S
        while not all(table["rows"] for table in tables(ready["api"])):
            if time.monotonic() > ends_at:
                raise SystemExit(f"no rows within {PATIENCE_S:g} s: {tables(ready['api'])}")
            _publish(link, options.rate, 1.0)
        _publish(link, options.rate, options.settle)
        [job] = [
            one
            for one in psutil.Process(int(ready["pid"])).children()
            if "bridges.spark.job" in one.cmdline()
        ]
        used_s, began = _cpu_s(job), time.monotonic()
        _publish(link, options.rate, options.seconds)
        cores = (_cpu_s(job) - used_s) / (time.monotonic() - began)
        for process in _family(job):
            print(f"  {process.memory_full_info().pss / 1e6:6.0f} MB  {_name(process)}")
        size = sum(process.memory_full_info().pss for process in _family(job))
    verdict = "ok" if cores <= WANTED_CORES else "MISSED"
    print(
        f"{TABLES} tables at {options.rate:g} messages/s: {cores:.2f} core (wanted {WANTED_CORES:g}, {verdict}), "
        f"{size / 1e6:,.0f} MB"
    )
    return int(cores > WANTED_CORES)


def _objects(number: int) -> list[tuple[str, dict[str, Any]]]:
    name = f"idle{number}"
    sql = f'SELECT payload.n AS n, clientid FROM "idle/{number}"'
    return [
        ("streams", {"name": name}),
        ("rules", {"name": name, "sql": sql, "actions": [{"type": "stream", "stream": name}]}),
        ("lake/tables", {"name": name, "stream": name, "format": ("delta", "iceberg")[number % 2]}),
    ]


def _publish(link: Any, rate: float, seconds: float) -> None:
    """Publish at a rate for some seconds."""
    began = time.monotonic()
    for number in range(int(rate * seconds)):
        time.sleep(max(0.0, began + number / rate - time.monotonic()))
        link.sendall(publish(f"idle/{number % TABLES}", json.dumps({"n": number}).encode(), 0))


def _family(job: psutil.Process) -> list[psutil.Process]:
    return [job, *job.children(recursive=True)]


def _cpu_s(job: psutil.Process) -> float:
    """Processor time of the job's processes, with that of processes which they have waited for."""
    return sum(sum(process.cpu_times()[:4]) for process in _family(job))


def _name(process: psutil.Process) -> str:
    return " ".join(process.cmdline())[:60]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rate", type=float, default=4.0, help="messages a second, over both tables"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to measure")
    parser.add_argument("--settle", type=float, default=30.0, help="how long to wait first")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
