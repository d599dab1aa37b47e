"""A pytest plugin: one or two tests that fail beside others run once more, each in a process of its own.

``make test`` loads it with ``-p tests.support.second_look``. A bound of time or a race that shows once in ten thousand
tests on a busy machine is a bug to find, and no reason to call a commit broken. So a test that passes alone is named as
flaky, with its first failure printed in full above, and the run passes. More than ``MOST``, or one that fails again,
fail the run.

Where a process of tests ends with an error of its own, the controller fails with another one that only says which test
was due; the first of them is told last.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any, Final

import pytest

MOST: Final = 2
_errors: list[str] = []


def pytest_internalerror(excrepr: Any) -> None:
    """Keep what ended the run."""
    _errors.append(str(excrepr))


def pytest_unconfigure() -> None:
    """Tell the first error again, where the last one hides it."""
    if len(_errors) > 1:
        print(_errors[0], file=sys.stderr)


@pytest.hookimpl(tryfirst=True)  # before plugins that fail the run for reasons of their own
def pytest_terminal_summary(terminalreporter: Any, exitstatus: int) -> None:
    """Run the failed tests again, and pass the run when each of them passes."""
    reports = [*terminalreporter.stats.get("failed", ()), *terminalreporter.stats.get("error", ())]
    tests = sorted({report.nodeid for report in reports})
    if exitstatus != pytest.ExitCode.TESTS_FAILED or not 0 < len(tests) <= MOST:
        return
    terminalreporter.section("a second look, alone")
    flaky = [test for test in tests if _passes_alone(test)]
    for test in tests:
        terminalreporter.line(f"{'FLAKY' if test in flaky else 'FAILED AGAIN'} {test}", red=True)
    if flaky == tests:
        terminalreporter._session.exitstatus = pytest.ExitCode.OK


def _passes_alone(test: str) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    return subprocess.run(command, check=False, stdout=sys.stderr).returncode == pytest.ExitCode.OK
