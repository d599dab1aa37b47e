"""Many small commits into one table: how long each takes, and how much metadata they leave.

    python -m benchmarks.iceberg_commits [--commits 10000] [--format iceberg] [--directory DIR]

Each commit has ten rows, by the writer of the lake job. The time of a commit begins when its tasks have written their
files. Between commits, every 30 seconds as in the job, the ledger is brought up to date and the table tidied, which is
timed apart. Wanted for 10,000 commits: p99 at most 250 ms, a mean of the last tenth of at most 1.5 times that of the
first, and at most 400 MB of metadata: the files of all versions of a day.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa

from bridges.spark.columns.column import Column
from bridges.spark.columns.place import Place
from bridges.spark.driver.batch import TableSpec, TableWriter
from bridges.spark.driver.ledger import Ledger
from bridges.spark.driver.upkeep import tidy
from bridges.spark.tables.contract import Binding
from bridges.spark.tables.formats import open_table
from bridges.spark.tasks.task import ROWS_COLUMNS, PartitionWriter, Plan, TaskResult
from pyspark_sluice.records import arrow_schema

ROWS = 10
COLUMNS = (Column("temp", "temp", "double"), Column("device", "device", "string"))
LOOK_EVERY = 100
P99_S, GROWTH, METADATA_BYTES = 0.25, 1.5, 400_000_000


def main() -> int:
    """Whether a figure is missed."""
    options = _options()
    place = Path(tempfile.mkdtemp(dir=options.directory))
    try:
        spec = TableSpec(
            "readings",
            options.format,
            Place(str(place / "readings")),
            "rows",
            Binding("readings", "benchmark"),
            COLUMNS,
        )
        return report(spec, *commit(spec, options.commits))
    finally:
        shutil.rmtree(place)


def commit(spec: TableSpec, commits: int) -> tuple[list[float], list[float], int]:
    """How long each commit took, and each tidying; and the most bytes of metadata that were seen."""
    writer, ledger = TableWriter(spec, "benchmark"), Ledger(spec.place, spec.name)
    took_s: list[float] = []
    tidied_s: list[float] = []
    most_bytes = 0
    written_at = 0.0

    def run(plan: Plan) -> list[TaskResult]:
        nonlocal written_at
        task = PartitionWriter(plan)
        task.add(_records(len(took_s) * ROWS))
        results = [TaskResult.from_json(task.finish().to_json())]
        written_at = time.perf_counter()
        return results

    while len(took_s) < commits:
        writer.write(run)
        took_s.append(time.perf_counter() - written_at)
        if ledger.due(began := time.monotonic()):
            tidy(spec, ledger, began)
            tidied_s.append(time.monotonic() - began)
        if len(took_s) % LOOK_EVERY == 0:
            most_bytes = max(most_bytes, _metadata_bytes(spec))
        if len(took_s) % 1000 == 0:
            print(
                f"{len(took_s):,} commits, the last 1,000 in {_mean_ms(took_s[-1000:]):.0f} ms each",
                flush=True,
            )
    return took_s, tidied_s, most_bytes


def report(spec: TableSpec, took_s: list[float], tidied_s: list[float], metadata: int) -> int:
    """Print the figures; whether one is missed."""
    table = open_table(spec.format, spec.place, spec.binding)
    assert table is not None
    assert table.rows() == len(took_s) * ROWS, "rows are missing, or there twice"
    tenth = max(1, len(took_s) // 10)
    first, last = _mean_ms(took_s[:tenth]), _mean_ms(took_s[-tenth:])
    ordered = sorted(took_s)
    p50_s, p99_s = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
    print(f"p50 {p50_s * 1000:.0f} ms, p99 {p99_s * 1000:.0f} ms, max {ordered[-1] * 1000:.0f} ms")
    print(
        f"tidied {len(tidied_s)} times, {sum(tidied_s):.1f} s in all, at most {max(tidied_s, default=0):.1f} s"
    )
    print(f"first tenth {first:.0f} ms each, last tenth {last:.0f} ms: {last / first:.2f} times")
    print(f"{metadata / 1e6:.1f} MB of metadata at most, {len(table.files())} data files")
    return int(p99_s > P99_S or last > GROWTH * first or metadata > METADATA_BYTES)


def _records(first: int) -> pa.RecordBatch:
    schema = arrow_schema(ROWS_COLUMNS)
    payloads = [
        json.dumps({"temp": number / 10, "device": f"meter-{number % 50}"})
        for number in range(first, first + ROWS)
    ]
    return pa.RecordBatch.from_pylist(
        [
            {
                "shard": 0,
                "offset": first + at,
                "ts": 0,
                "topic": "meters",
                "client_id": "m",
                "payload": payload.encode(),
            }
            for at, payload in enumerate(payloads)
        ],
        schema=schema,
    )


def _metadata_bytes(spec: TableSpec) -> int:
    folder = "_delta_log" if spec.format == "delta" else "metadata"
    sizes = 0
    for file in Path(spec.place.path, folder).iterdir():
        sizes += file.stat().st_size
    return sizes


def _mean_ms(took_s: list[float]) -> float:
    return sum(took_s) / len(took_s) * 1000


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--commits", type=int, default=10_000)
    parser.add_argument("--format", choices=("delta", "iceberg"), default="iceberg")
    parser.add_argument("--directory", type=Path, default=None)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
