"""A pytest plugin: seconds by kind of test and by file, printed at the end of a run and kept in ``build/``.

``python -m tests.support.durations`` writes what the last runs of all tiers kept into ``tests/seconds.json``, which
orders the files of the next run, and prints both tables in Markdown.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

ROOT: Final = Path(__file__).parents[2]
SECONDS: Final = ROOT / "tests" / "seconds.json"
"""Seconds that each file took. The longest files run first."""
SHOWN: Final = 30
T = TypeVar("T")
Place = tuple[str, str]
"""The kind and the file of a test."""
_seconds: defaultdict[Place, float] = defaultdict(float)
_cases: Counter[Place] = Counter()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add set-up, test and tear-down to the file and the kind of the test."""
    kind = str(dict(report.user_properties).get("kind", ""))
    place = kind, report.nodeid.split("::")[0].removeprefix("tests/")
    _seconds[place] += report.duration
    _cases[place] += report.when == "call"


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print and keep the figures of a tier."""
    tier = config.getoption("tier")
    if not tier or not _seconds:
        return
    terminalreporter.section(f"seconds by kind, and the {SHOWN} longest files")
    for line in (*_kinds(), *_files(SHOWN)):
        terminalreporter.line(line)
    kept = ROOT / "build" / "durations" / f"{tier}.json"
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(
        json.dumps([[*place, seconds, _cases[place]] for place, seconds in _seconds.items()])
    )


def _kinds() -> list[str]:
    kinds = {kind for kind, _ in _seconds}
    seconds = {
        kind: sum(spent for place, spent in _seconds.items() if place[0] == kind) for kind in kinds
    }
    cases = {
        kind: sum(count for place, count in _cases.items() if place[0] == kind) for kind in kinds
    }
    return [f"| {kind} | {cases[kind]:,} | {seconds[kind]:,.0f} |" for kind in _longest(seconds)]


def _files(most: int) -> list[str]:
    longest = _longest(_seconds)[:most]
    return [
        f"| `tests/{place[1]}` ({place[0]}) | {_cases[place]:,} | {_seconds[place]:,.0f} |"
        for place in longest
    ]


def _longest(seconds: Mapping[T, float]) -> list[T]:
    return sorted(seconds, key=lambda place: -seconds[place])


def main() -> None:
    """Write ``tests/seconds.json``, and print the tables."""
    for kept in sorted((ROOT / "build" / "durations").glob("*.json")):
        for kind, file, seconds, cases in json.loads(kept.read_text()):
            _seconds[kind, file] += seconds
            _cases[kind, file] += cases
    by_file: defaultdict[str, float] = defaultdict(float)
    for (_, file), seconds in _seconds.items():
        by_file[file] += seconds
    rounded = {file: round(by_file[file], 1) for file in sorted(by_file) if by_file[file] >= 1}
    SECONDS.write_text(json.dumps(rounded, indent=0) + "\n")
    print("\n".join((*_kinds(), "", *_files(SHOWN))))


if __name__ == "__main__":
    main()
