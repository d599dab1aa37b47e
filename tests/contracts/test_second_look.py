"""The plugin that runs failed tests once more: what it forgives and what it does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.second_look import FAILED, FLAKY, FOUND, MOST, findings, flaky_tests

ROOT = Path(__file__).parents[2]
FAILS_ONCE = """
import pathlib, pytest
@pytest.mark.parametrize("number", range(NUMBER))
def test_fails_once(number):
    seen = pathlib.Path(__file__).with_name(f"{number} {test_fails_once.__name__}")
    was_there = seen.exists()
    seen.touch()
    assert was_there
"""
FAILS = "def test_fails(): raise ValueError('always')"
WORKS = "def test_works(): pass"


@pytest.mark.parametrize(
    ("tests", "exit_code", "printed", "flaky"),
    [
        (WORKS, 0, "1 passed", 0),
        (FAILS_ONCE.replace("NUMBER", "1"), 0, "1 failed", 1),
        (FAILS_ONCE.replace("NUMBER", str(MOST + 1)), 1, f"{MOST + 1} failed", 0),
        (FAILS, 1, "FAILED AGAIN", 0),
        (FAILS_ONCE.replace("NUMBER", "1") + FAILS, 1, "FAILED AGAIN", 1),
        ("import nothing_of_this_name", 2, "1 error", 0),
    ],
    ids=[
        "nothing fails",
        "one fails once",
        "too many fail",
        "one fails always",
        "one of each",
        "a broken file",
    ],
)
def test_what_fails_beside_others_must_pass_alone(
    tmp_path: Path, tests: str, exit_code: int, printed: str, flaky: int
) -> None:
    done = run(tmp_path, tests)
    assert done.returncode == exit_code, done.stdout + done.stderr
    assert printed in done.stdout + done.stderr
    assert done.stdout.count("FLAKY") == flaky
    if exit_code == 0:
        assert len(flaky_tests(tmp_path)) == flaky
    else:
        assert all(finding.startswith(FAILED) for finding in findings(tmp_path))
        assert findings(tmp_path)


def test_flaky_tests_of_other_tiers_count_too(tmp_path: Path) -> None:
    (tmp_path / FOUND).mkdir(parents=True)
    (tmp_path / FOUND / "quick").write_text(f"{FLAKY}one\n{FLAKY}two\n")
    assert run(tmp_path, FAILS_ONCE.replace("NUMBER", "1")).returncode == 1
    (tmp_path / FOUND / "quick").write_text(f"{FLAKY}one\n")
    assert (
        run(tmp_path, FAILS_ONCE.replace("NUMBER", "1").replace("fails_once", "other")).returncode
        == 0
    )
    assert flaky_tests(tmp_path) == ["test_some.py::test_other[0]", "one"]
    command = [sys.executable, "-m", "tests.support.second_look"]
    told = subprocess.run(
        command,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.splitlines() == findings(tmp_path)


def test_a_failure_is_told_at_once_with_its_cause(tmp_path: Path) -> None:
    text = """
import pytest
pytestmark = pytest.mark.filterwarnings("error")
def end(self): raise OSError("lost")
def test_fails(): type("Dropped", (), {"__del__": end})()
"""
    done = run(tmp_path, text)
    told = done.stdout.partition("FAILED test_some.py::test_fails\n")[2].splitlines()
    assert told[0] == "OSError: lost"
    assert "PytestUnraisableExceptionWarning: Exception ignored in: <function end" in told[1]


def run(directory: Path, tests: str) -> subprocess.CompletedProcess[str]:
    (directory / "test_some.py").write_text(tests)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.support.second_look",
        "-c",
        "/dev/null",
        "--rootdir",
    ]
    return subprocess.run(
        [*command, str(directory), "test_some.py"],
        cwd=directory,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
