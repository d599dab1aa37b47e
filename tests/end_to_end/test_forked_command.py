"""The program of shells in tests, whose work a fork does, behaves as the command that it stands for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from tests.support.zygote import ForkedCommand


@pytest.fixture
def program(tmp_path: Path) -> Iterator[str]:
    with closing(ForkedCommand(tmp_path)):
        yield str(tmp_path / "sluice")


@pytest.mark.parametrize(
    "words", [["--version"], ["rules", "--help"], ["no-such"], ["config", "check", "page.conf"]]
)
def test_output_and_exit_status_are_those_of_the_command(
    program: str, tmp_path: Path, words: list[str]
) -> None:
    (tmp_path / "page.conf").write_text("mqtt.no_such = 1\n")
    environ = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    forked, command = (
        subprocess.run(
            [*begin, *words], cwd=tmp_path, env=environ, capture_output=True, timeout=240
        )
        for begin in ([program], [sys.executable, "-m", "broker.cli.main"])
    )
    assert (forked.returncode, forked.stdout, forked.stderr) == (
        command.returncode, command.stdout, command.stderr,
    )  # fmt: skip


def _started(program: str, directory: Path) -> tuple[subprocess.Popen[bytes], psutil.Process]:
    words = ["serve", "--data-dir", "data", "--mqtt", "127.0.0.1:0", "--api", "127.0.0.1:0"]
    process = subprocess.Popen([program, *words], cwd=directory, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert b"ready" in process.stdout.readline()
    about = json.loads((directory / "data" / "run" / "node.json").read_text())
    return process, psutil.Process(about["pid"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_the_broker(program: str, tmp_path: Path, number: int) -> None:
    process, fork = _started(program, tmp_path)
    with process:
        process.send_signal(number)
        assert process.wait(60) in (0, -number, 128 + number)
        assert not fork.is_running()


def test_the_broker_ends_with_the_program(program: str, tmp_path: Path) -> None:
    process, fork = _started(program, tmp_path)
    with process:
        process.kill()
        psutil.wait_procs([fork], timeout=60)
        assert not fork.is_running()
