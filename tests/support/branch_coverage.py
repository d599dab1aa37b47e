"""A pytest plugin that measures branch coverage of the product and holds each package to a floor.

``make test`` loads it with ``-p tests.support.branch_coverage`` for ``MEASURED`` of ``tests/conftest.py``.
It counts what runs in the processes of pytest, not in brokers and commands that tests start. A branch costs nothing
after its first run: SlipCover removes the probe. The tracer of ``coverage`` stays, and the tests of the rule language
took 1.9 times the time with it.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).parent.parent.parent
FLOORS: Final = {
    "broker": 88, "bridges": 88, "pyspark_sluice": 47, "rules": 90, "schema_validation": 88, "transforms": 94, "ui": 90,
}  # fmt: skip
"""Least part of a package's branches and lines that the tests run, in percent: one below what they did run."""


PICKLED: Final = [
    str(ROOT / name) for name in ("bridges/spark/rule_frame.py", "bridges/spark/mapping.py", "pyspark_sluice/source.py")
]
"""Functions of these go to Spark's workers by value, and a probe cannot."""


class Coverage:
    """Instruments what is imported from now on; one in each process of pytest."""

    def __init__(self) -> None:
        from slipcover import Slipcover
        from slipcover.importer import FileMatcher, ImportManager

        sources = [str(ROOT / package) for package in FLOORS]
        find = Slipcover.find_functions
        # it looks through the variables of modules, to which another thread may add one meanwhile
        Slipcover.find_functions = staticmethod(lambda items, visited: find(list(items), visited))
        self._measured = Slipcover(branch=True)
        self._of_workers: list[dict[str, Any]] = []
        ImportManager(self._measured, FileMatcher(sources=sources, omit=PICKLED)).__enter__()

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A worker sends what it saw to the process that reports."""
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["coverage"] = json.dumps(self._measured.get_coverage())

    def pytest_testnodedown(self, node: Any) -> None:
        """Keep what a worker saw."""
        self._of_workers.append(json.loads(node.workeroutput["coverage"]))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the table, and fail the run where a package is below its floor."""
        found = percentages(self._of_workers or [self._measured.get_coverage()])
        terminalreporter.section("lines and branches that ran")
        for package, percent in found.items():
            terminalreporter.line(f"{package:20} {percent:5.1f} %   floor {FLOORS[package]} %")
        low = [package for package, percent in found.items() if percent < FLOORS[package]]
        if low:
            terminalreporter.line(f"below their floor: {', '.join(low)}", red=True)
            terminalreporter._session.exitstatus = pytest.ExitCode.TESTS_FAILED


def percentages(measured: list[dict[str, Any]]) -> dict[str, float]:
    """For each package, the percentage of lines and branches of imported modules that ran in any process."""
    ran: Counter[str] = Counter()
    there: Counter[str] = Counter()
    for name in sorted({name for one in measured for name in one["files"]}):
        package = Path(name).parts[0]
        for kind in ("lines", "branches"):
            files = [one["files"][name] for one in measured if name in one["files"]]
            executed = {str(item) for file in files for item in file[f"executed_{kind}"]}
            missing = {str(item) for file in files for item in file[f"missing_{kind}"]}
            ran[package] += len(executed)
            there[package] += len(executed | missing)
    return {package: 100 * ran[package] / there[package] for package in FLOORS if there[package]}


def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Begin before anything of the product is imported."""
    early_config.pluginmanager.register(Coverage(), "branch coverage")
