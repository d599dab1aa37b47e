"""The plugin that runs failed tests once more: what it forgives and what it does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.second_look import MOST

ROOT = Path(__file__).parents[2]
FAILS_ONCE = """
import pathlib, pytest
@pytest.mark.parametrize("number", range(NUMBER))
def test_fails_once(number):
    seen = pathlib.Path(__file__).with_name(str(number))
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
    ids=["nothing fails", "one fails once", "too many fail", "one fails always", "one of each", "a broken file"],
)
def test_what_fails_beside_others_must_pass_alone(
    tmp_path: Path, tests: str, exit_code: int, printed: str, flaky: int
) -> None:
    (tmp_path / "test_some.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.support.second_look", "-c", "/dev/null", "--rootdir"]
    found = subprocess.run(
        [*command, str(tmp_path), "test_some.py"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == exit_code, found.stdout + found.stderr
    assert printed in found.stdout + found.stderr
    assert found.stdout.count("FLAKY") == flaky
