"""Cost of filling a table: processor time and memory of the lake job, by process: `python -m benchmarks.lake_cost`.

`sluice serve` captures messages from an MQTT client into a stream; then a Delta table with a rule is created, and the
broker starts its lake job, which fills the table. Measured is all that the job consists of, until every row is in the
table: the driver, its JVM and the Python processes below it. Then as many messages are published again, which shows
what records cost a job that runs.

Processor time is user and system time, with that of processes that have ended. Memory is the largest sum of what the
processes have resident at one time, with their share of what they share (PSS). The phase ``start`` ends when Spark has
started the query.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from benchmarks.load import connect, link_to, publish
from benchmarks.pipeline import create, serving, tables

WANTED_CPU_S, WANTED_MB = 15.0, 1200.0
LOOK_EVERY_S = 0.25
PATIENCE_S = 600.0
BLOCK = 1000
"""Messages that are sent at once."""
SQL = (
    "SELECT payload.device AS device, payload.temperature AS celsius, payload.temperature * 1.8 + 32 AS fahrenheit, "
    'payload.status AS status, clientid FROM "plant/#" WHERE payload.temperature >= 0'
)
OBJECTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("streams", {"name": "cost", "topics": ["plant/#"]}),
    ("rules", {"name": "cost", "sql": SQL, "actions": []}),
)
COLUMNS = (
    ("device", "string"),
    ("celsius", "double"),
    ("fahrenheit", "double"),
    ("status", "string"),
)
TABLE = {
    "name": "cost",
    "stream": "cost",
    "rule": "cost",
    "columns": [{"name": name, "type": kind} for name, kind in (*COLUMNS, ("clientid", "string"))],
}
PAYLOAD = b'{"device":"meter-%04d","temperature":%d.%02d,"pressure":%d,"status":"running-ok","site":"plant-7"}'
STARTED = "lake.started table=cost"


def main() -> int:
    """Measure once and print the result; the number of figures that were missed."""
    options = _options()
    with serving(*options.set) as (ready, folder):
        for path, spec in OBJECTS:
            create(ready["api"], path, spec)
        link = connect(link_to(ready["mqtt"]), "cost")
        _publish(link, options.rows)
        broker = psutil.Process(int(ready["pid"]))
        create(ready["api"], "lake/tables", {**TABLE, "format": options.format})
        job = _wait_for(lambda: _job_of(broker), "the lake job")
        usage = Usage(job)
        log = Path(folder) / "logs" / "lake.log"
        usage.watch(lambda: _has_line(log, STARTED), "start")
        usage.watch(lambda: _rows(ready["api"]) >= options.rows, "records")
        usage.print(options.rows)
        missed = _tell(usage)
        warm = Usage(job)
        _publish(link, options.rows)
        warm.watch(lambda: _rows(ready["api"]) >= 2 * options.rows, "as many again")
        warm.print(options.rows)
    return missed


@dataclass(slots=True)
class Usage:
    """What a job and its processes use, sampled until conditions hold."""

    job: psutil.Process
    cpu_s: dict[str, float] = field(default_factory=dict)
    """By phase."""
    most_mb: float = 0.0
    at_most: dict[str, float] = field(default_factory=dict)
    """The memory of each process when their sum was largest."""
    _cpu_of: dict[str, float] = field(default_factory=dict)
    """The processor time of each process when it was last seen."""
    _before_s: float = 0.0

    def __post_init__(self) -> None:
        self._before_s = _cpu_s(self.job)

    def watch(self, is_over: Callable[[], bool], phase: str) -> None:
        """Sample until the phase is over."""
        ends_at = time.monotonic() + PATIENCE_S
        while not is_over():
            if time.monotonic() > ends_at:
                raise SystemExit(f"{phase}: not over within {PATIENCE_S:g} s")
            self._sample()
            time.sleep(LOOK_EVERY_S)
        self._sample()
        now_s = _cpu_s(self.job)
        self.cpu_s[phase], self._before_s = now_s - self._before_s, now_s

    @property
    def total_s(self) -> float:
        return sum(self.cpu_s.values())

    def print(self, rows: int) -> None:
        """Print the figures by phase and by process."""
        phases = ", ".join(f"{phase} {seconds:.1f}" for phase, seconds in self.cpu_s.items())
        print(
            f"{rows:,} records: {self.total_s:.1f} s of processor time ({phases}), at most {self.most_mb:,.0f} MB"
        )
        for name, seconds in sorted(self._cpu_of.items(), key=lambda one: -one[1]):
            print(f"  {seconds:6.1f} s  {self.at_most.get(name, 0.0):6.0f} MB  {name}", flush=True)

    def _sample(self) -> None:
        sizes = {}
        for process in (self.job, *self.job.children(recursive=True)):
            with suppress(psutil.Error):
                name = _name(process)
                sizes[name] = process.memory_full_info().pss / 1e6
                self._cpu_of[name] = sum(process.cpu_times()[:2])
        if sum(sizes.values()) > self.most_mb:
            self.most_mb, self.at_most = sum(sizes.values()), sizes


def _tell(usage: Usage) -> int:
    missed = 0
    for name, value, wanted in (
        ("s of processor time", usage.total_s, WANTED_CPU_S),
        ("MB", usage.most_mb, WANTED_MB),
    ):
        print(
            f"{value:,.1f} {name} (wanted {wanted:,g}, {'ok' if value <= wanted else 'MISSED'})",
            flush=True,
        )
        missed += value > wanted
    return missed


def _name(process: psutil.Process) -> str:
    program, *arguments = process.cmdline()
    modules = [after for before, after in pairwise(arguments) if before == "-m"]
    return " ".join([str(process.pid), os.path.basename(program), *(modules or arguments[-1:])])


def _cpu_s(job: psutil.Process) -> float:
    """Processor time of the job's processes, with that of processes that they have waited for."""
    times = []
    for process in (job, *job.children(recursive=True)):
        with suppress(psutil.Error):
            times.append(sum(process.cpu_times()[:4]))
    return float(sum(times))


def _job_of(broker: psutil.Process) -> psutil.Process | None:
    for process in broker.children():
        with suppress(psutil.Error):
            if "bridges.spark.job" in process.cmdline():
                return process
    return None


def _has_line(log: Path, text: str) -> bool:
    with suppress(OSError):
        return text in log.read_text(errors="replace")
    return False


def _rows(api: str) -> int:
    [table] = tables(api)
    if table.get("last_error"):
        print(f"the job reports: {table['last_error']['message']}", flush=True)
    return int(table["rows"] or 0)


def _wait_for(find: Callable[[], Any], name: str) -> Any:
    ends_at = time.monotonic() + PATIENCE_S
    while (value := find()) is None:
        if time.monotonic() > ends_at:
            raise SystemExit(f"{name}: not there within {PATIENCE_S:g} s")
        time.sleep(LOOK_EVERY_S)
    return value


def _publish(link: Any, rows: int) -> None:
    for first in range(0, rows, BLOCK):
        numbers = range(first, min(first + BLOCK, rows))
        link.sendall(
            b"".join(
                publish(f"plant/7/meter/{number % 50}", _payload(number), 0) for number in numbers
            )
        )


def _payload(number: int) -> bytes:
    return PAYLOAD % (number % 50, number % 40, number % 100, 1000 + number % 30)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--format", choices=("delta", "iceberg"), default="delta")
    parser.add_argument(
        "--set", action="append", default=[], help="a setting of the broker, as NAME=VALUE"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
