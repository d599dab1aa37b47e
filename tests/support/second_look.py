"""A pytest plugin: one or two tests that fail beside others run once more, each in a process of its own.

``make test`` and ``make test-full`` load it with ``-p tests.support.second_look``. A test that fails beside others and
passes alone is flaky, which is a bug to find, and no reason to call a commit broken. The run passes, its first failure
is printed in full, and its name is kept. A run fails with a test that fails again, and with more than ``MOST`` flaky
tests in all tiers together. ``python -m tests.support.second_look`` prints what the last run of each tier found, as the
last thing that CI prints.

Where a process of tests ends with an error of its own, the controller fails with another one that only says which test
was due; the first of them is told last.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

MOST: Final = 2
FOUND: Final = Path("build") / "found"
"""A file for each tier, with a line for each finding of its last run; below the root of the tests."""
# Lines of the message of a failure that are printed at once.
_MOST_LINES: Final = 5
FLAKY: Final = "flaky, find its race: "
FAILED: Final = "failed: "
_errors: list[str] = []
_reporters: list[Any] = []


@pytest.hookimpl(trylast=True)  # after the reporter is there
def pytest_configure(config: pytest.Config) -> None:
    """Find the reporter."""
    _reporters[:] = [config.pluginmanager.get_plugin("terminalreporter")]


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Name a test that fails at once: a long run is not over for a while."""
    if report.failed and _reporters[0] is not None:
        _reporters[0].write_line(f"\nFAILED {report.nodeid}", red=True)
        for cause in _causes(report):
            _reporters[0].write_line(cause)


def _causes(report: pytest.TestReport) -> list[str]:
    """What it failed with, and the cause of that. A group of exceptions does not say it itself."""
    chain = getattr(report.longrepr, "chain", ())
    messages = [crash.message for _, crash, _ in chain if crash is not None]
    if "sub-exceptions" not in "".join(messages[-1:]):
        return [line for text in messages[-2:] for line in text.splitlines()[:_MOST_LINES]]
    return [line for line in report.longreprtext.splitlines() if "Warning: " in line][1:]


def pytest_internalerror(excrepr: Any) -> None:
    """Keep what ended the run."""
    _errors.append(str(excrepr))


def pytest_unconfigure() -> None:
    """Tell the first error again, where the last one hides it."""
    if len(_errors) > 1:
        print(_errors[0], file=sys.stderr)


@pytest.hookimpl(tryfirst=True)  # before plugins that fail the run for reasons of their own
def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    """Run the failed tests again, and pass the run when each of them passes."""
    reports = [*terminalreporter.stats.get("failed", ()), *terminalreporter.stats.get("error", ())]
    tests = sorted({report.nodeid for report in reports})
    flaky = []
    _found(config).unlink(missing_ok=True)
    allowed = MOST - len(flaky_tests(config.rootpath))
    if exitstatus == pytest.ExitCode.TESTS_FAILED and 0 < len(tests) <= allowed:
        terminalreporter.section("a second look, alone")
        flaky = [test for test in tests if _passes_alone(test)]
        for test in tests:
            word = "FLAKY" if test in flaky else "FAILED AGAIN"
            terminalreporter.line(f"{word} {test}", red=True)
        if flaky == tests:
            terminalreporter._session.exitstatus = pytest.ExitCode.OK
    for test in tests:
        keep(config, f"{FLAKY if flaky == tests else FAILED}{test}")


def keep(config: pytest.Config, finding: str) -> None:
    """Add a line to what is printed last."""
    _found(config).parent.mkdir(parents=True, exist_ok=True)
    with _found(config).open("a") as file:
        file.write(f"{finding}\n")


def _found(config: pytest.Config) -> Path:
    return config.rootpath / FOUND / (config.getoption("tier", None) or "all")


def findings(root: Path) -> list[str]:
    """What the last run of each tier found."""
    return [
        line
        for found in sorted((root / FOUND).glob("*"))
        for line in found.read_text().splitlines()
    ]


def flaky_tests(root: Path) -> list[str]:
    """The names of flaky tests in the last run of each tier."""
    return [line.removeprefix(FLAKY) for line in findings(root) if line.startswith(FLAKY)]


def _passes_alone(test: str) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    return subprocess.run(command, check=False, stdout=sys.stderr).returncode == pytest.ExitCode.OK


if __name__ == "__main__":
    for finding in findings(Path.cwd()):
        print(finding)
