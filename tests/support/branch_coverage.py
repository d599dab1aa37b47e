"""A pytest plugin that measures branch coverage of the product and holds each package to a floor.

``make test`` and ``make test-full`` load it with ``-p tests.support.branch_coverage``. ``make test`` has floors of its
own; those of ``make test-full`` are for what both ran, so that it reads what the first has kept.
It counts what runs in the processes of pytest, not in brokers and commands that tests start. A branch costs nothing
after its first run: SlipCover removes the probe. The tracer of ``coverage`` stays, and the tests of the rule language
took 1.9 times the time with it.
"""

from __future__ import annotations

import ast
import json
import marshal
import os
from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from time import monotonic
from types import ModuleType
from typing import Any, Final

import pytest
from slipcover.branch import preinstrument

from tests.support.second_look import keep

ROOT: Final = Path(__file__).parent.parent.parent
FLOORS: Final = {
    "broker": 88, "bridges": 88, "pyspark_sluice": 47, "rules": 90, "schema_validation": 88, "transforms": 94, "ui": 90,
}  # fmt: skip
"""Minimum percentage of a package's branches and lines that all tiers run: one below the measured one."""
QUICK_FLOORS: Final = FLOORS | {"bridges": 82, "broker": 84, "ui": 84}
"""The same for what ``make test`` runs: connectors, tables and machines of a cluster meet their outside systems in
``make test-full``."""
KEPT: Final = ROOT / "build" / "coverage-quick.json"
"""Coverage of the last quick run, with a digest of the product's files."""


PROBED: Final = ROOT / "build" / "probed"
"""Code of the product's files with the places of probes, by time and size of the file."""
PICKLED: Final = [
    str(ROOT / name)
    for name in (
        "bridges/spark/rule_frame.py",
        "bridges/spark/tasks/mapping.py",
        "pyspark_sluice/source.py",
    )
]
"""Functions of these go to Spark's workers by value, and a probe cannot."""


class Coverage:
    """Instruments what is imported from now on; one in each process of pytest."""

    def __init__(self) -> None:
        from slipcover import Slipcover
        from slipcover.importer import FileMatcher, ImportManager, SlipcoverLoader

        sources = [str(ROOT / package) for package in FLOORS]
        find = Slipcover.find_functions
        # it looks through the variables of modules, to which another thread may add one meanwhile
        Slipcover.find_functions = staticmethod(lambda items, visited: find(list(items), visited))
        Slipcover.deinstrument_seen = _seldom(Slipcover.deinstrument_seen)
        SlipcoverLoader.exec_module = _exec_module
        self._measured = Slipcover(branch=True)
        self._of_workers: list[dict[str, Any]] = []
        ImportManager(self._measured, FileMatcher(sources=sources, omit=PICKLED)).__enter__()

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A worker sends what it saw to the process that reports."""
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["coverage"] = json.dumps(self._measured.get_coverage())

    def pytest_testnodedown(self, node: Any) -> None:
        """Keep what a worker saw: one that was killed, whose test fails, says nothing."""
        output = getattr(node, "workeroutput", None)
        if output is not None:
            self._of_workers.append(json.loads(output["coverage"]))

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        """Print the table, and fail the run where a package is below its floor."""
        coverages = self._of_workers or [self._measured.get_coverage()]
        is_quick = config.getoption("tier") == "quick"
        terminalreporter.section("lines and branches that ran")
        if is_quick:
            KEPT.parent.mkdir(exist_ok=True)
            KEPT.write_text(json.dumps({"digest": _digest(), "coverages": coverages}))
        else:
            kept: dict[str, Any] = json.loads(KEPT.read_text()) if KEPT.exists() else {"digest": ""}
            if kept["digest"] != _digest():
                terminalreporter.line(
                    "The floors are for both: run 'make test' on these files first", red=True
                )
                terminalreporter._session.exitstatus = pytest.ExitCode.TESTS_FAILED
                return
            coverages += kept["coverages"]
        floors = QUICK_FLOORS if is_quick else FLOORS
        ran = percentages(coverages)
        for package, percent in ran.items():
            terminalreporter.line(f"{package:20} {percent:5.1f} %   floor {floors[package]} %")
        low = [package for package, percent in ran.items() if percent < floors[package]]
        if low:
            finding = f"below their floor: {', '.join(low)}"
            terminalreporter.line(finding, red=True)
            keep(config, finding)
            terminalreporter._session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _seldom(remove: Callable[[Any], None]) -> Callable[[Any], None]:
    """Remove probes at most every thirty seconds: each time it looks through the functions of all modules."""
    last_s = [0.0]

    def seldom(measured: Any) -> None:
        if monotonic() > last_s[0] + 30:
            remove(measured)
            last_s[0] = monotonic()

    return seldom


def _exec_module(loader: Any, module: ModuleType) -> None:
    """Run a module with probes. Where they go is found once for each version of its file."""
    origin: Path = loader.origin
    about = origin.stat()
    kept = (
        PROBED
        / f"{str(origin.relative_to(ROOT)).replace('/', '.')}.{about.st_mtime_ns}.{about.st_size}"
    )
    if kept.exists():
        code = marshal.loads(kept.read_bytes())
    else:
        code = compile(preinstrument(ast.parse(origin.read_bytes())), str(origin), "exec")
        kept.parent.mkdir(parents=True, exist_ok=True)
        whole = kept.with_name(f"{kept.name}.{os.getpid()}")
        whole.write_bytes(marshal.dumps(code))
        whole.rename(kept)
    loader.sci.register_module(module)
    exec(loader.sci.instrument(code), module.__dict__)


def _digest() -> str:
    digest = sha256()
    for package in FLOORS:
        for file in sorted((ROOT / package).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()


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
