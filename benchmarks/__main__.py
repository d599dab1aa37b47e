"""Runs every benchmark, each in a process of its own, and keeps what they print with version and machine.

`python -m benchmarks` writes `benchmarks/results/<date>.txt`; `python -m benchmarks bare kafka` runs only these. The
figures to look at are the ratios within one run.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

BENCHMARKS = (
    "bare",
    "fleet",
    "cells",
    "sessions",
    "pipeline",
    "republish",
    "kafka",
    "rules",
    "jq",
    "gates",
    "store",
    "commit_log",
    "topic_index",
    "beside",
    "metrics_history",
    "live",
    "topics",
    "lake",
    "lake_cost",
    "lake_idle",
    "iceberg_commits",
    "rules_spark",
    "freshness",
    "overload",
    "storm",
    "idle",
    "scale",
)
RESULTS = Path(__file__).parent / "results"


def main() -> int:
    """The number of benchmarks that missed what is wanted of them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"which, of {', '.join(BENCHMARKS)}; all by default",
    )
    wanted = parser.parse_args().names or BENCHMARKS
    if unknown := sorted(set(wanted) - set(BENCHMARKS)):
        parser.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join(BENCHMARKS)}")
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{datetime.now(UTC):%Y-%m-%d-%H%M}.txt"
    missed = 0
    with file.open("w") as kept:
        _tell(
            kept,
            f"# {_commit()}, Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}",
        )
        for name in wanted:
            _tell(kept, f"\n## {name}")
            command = [sys.executable, "-m", f"benchmarks.{name}"]
            with subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            ) as process:
                assert process.stdout is not None
                for line in process.stdout:
                    _tell(kept, line.rstrip())
            missed += process.returncode != 0
    print(f"\nkept in {file}")
    return missed


def _tell(kept: object, line: str) -> None:
    print(line, flush=True)
    print(line, file=kept)  # type: ignore[call-overload]  # an open text file


def _commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "no commit"


if __name__ == "__main__":
    sys.exit(main())
