"""Runs the commands of a page as a reader would: block after block in one bash, in an empty directory, on free ports.

A block fenced with ``sh`` is run, one fenced with ``sh background`` runs on until the end. Where the page installs
Sluice, the environment of the tests is used instead.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from tests.support import node
from tests.support.processes import free_port
from tests.support.zygote import ForkedCommand

ROOT: Final = Path(__file__).parents[2]
TIMEOUT_S: Final = 900.0
_INSTALLS: Final = re.compile(
    r"^(make install|\. \.venv/bin/activate|make install && \. \.venv/bin/activate)$", re.M
)
_MOMENTS: Final = re.compile(r"(?<![\w-])(sleep|-W|--timeout) (\d+)(?![.\d])")
"""Waits of whole seconds, enough for a reader, are three times as long here: this machine may be busy."""
_PORTS: Final = ("18083", "1883", "1884", "8883", "9009")
"""The ports that pages name; free ones are used instead."""
_MARK: Final = "=====8<===== block"
_BEGIN: Final = """
set -euo pipefail
set -m  # each background job gets a group of its own, so that all of it can be ended
trap 'for job in $(jobs -p); do kill -- -"$job" 2>/dev/null || true; done; wait' EXIT
mosquitto_pub() { command mosquitto_pub -p MQTT_PORT "$@"; }
mosquitto_sub() { command mosquitto_sub -p MQTT_PORT "$@"; }
ready() {
  for _ in $(seq 600); do
    ! grep -q "sluice ready" "$1" || return 0
    kill -0 $! 2>/dev/null || break
    sleep 0.1
  done
  cat "$1"; return 1
}
"""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: what stands behind the fence, the text, and the heading that it stands under."""

    info: str
    text: str
    heading: str


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    return list(_blocks(page.read_text().splitlines()))


def _blocks(lines: Sequence[str]) -> Iterator[Block]:
    heading = ""
    info: str | None = None
    inside: list[str] = []
    for line in lines:
        if info is None and line.startswith("#"):
            heading = line.lstrip("#").strip()
        elif line.startswith("```") and info is None:
            info, inside = line[3:].strip(), []
        elif line == "```" and info is not None:
            yield Block(info, "\n".join(inside) + "\n", heading)
            info = None
        elif info is not None:
            inside.append(line)
    assert info is None, f"a block under {heading!r} is not closed"


def commands(page: Path, heading: str | None = None) -> list[Block]:
    """The blocks of a page, or of one of its headings, that a reader is to run."""
    found = [
        b
        for b in blocks(page)
        if b.info in ("sh", "sh background") and heading in (None, b.heading)
    ]
    assert found, f"{page} has no commands under {heading or 'any heading'}"
    return found


def run(
    chosen: Sequence[Block], directory: Path, servers: Mapping[str, int] | None = None
) -> list[str]:
    """Run blocks in order; what each printed. Fails when one fails. ``servers`` tells the ports of those that the test
    has started, by the ports that the page names."""
    status, output = _bash(_script(chosen, servers or {}), directory)
    parts = output.split(_MARK)
    assert status == 0, (
        f"block {len(parts) - 1} of {len(chosen)} ended with {status}:\n{output[-6000:]}"
    )
    return parts[1:]


def _script(chosen: Sequence[Block], servers: Mapping[str, int]) -> str:
    ports = {name: free_port() for name in _PORTS} | dict(servers)
    pieces = [_BEGIN]
    for number, block in enumerate(chosen):
        text = _MOMENTS.sub(
            lambda found: f"{found[1]} {3 * int(found[2])}", _INSTALLS.sub("", block.text)
        )
        pieces.append(f"echo; echo '{_MARK}'")
        if block.info == "sh background":
            log = f"background-{number}.log"
            text = f"{{\n{text}}} >{log} 2>&1 &\n" + (
                f"ready {log}\n" if "sluice serve" in text else ""
            )
        pieces.append(text)
    script = re.sub(
        rf"\b({'|'.join(ports)})\b", lambda found: str(ports[found[1]]), "\n".join(pieces)
    )
    return script.replace("MQTT_PORT", str(ports["1883"]))


def _bash(script: str, directory: Path) -> tuple[int, str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
    environ["PYTHONPATH"] = str(ROOT)
    output = directory / "session.log"
    with output.open("wb") as log, _programs(directory) as programs:
        environ["PATH"] = f"{programs}:{Path(sys.executable).parent}:{environ['PATH']}"
        process = subprocess.Popen(
            ["bash", "-c", script],
            cwd=directory,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            status = process.wait(TIMEOUT_S)
        except BaseException:
            _kill_family(process.pid)
            raise
    return status, output.read_text(errors="replace")


@contextmanager
def _programs(directory: Path) -> Iterator[Path]:
    """A directory with the command of this very tree, whatever is installed."""
    programs = directory / ".programs"
    programs.mkdir()
    if node.are_forks:
        with closing(ForkedCommand(programs)):
            yield programs
        return
    sluice = programs / "sluice"
    sluice.write_text(f'#!/bin/sh\nexec {sys.executable} -m broker.cli.main "$@"\n')
    sluice.chmod(0o755)
    yield programs


def _kill_family(pid: int) -> None:
    with suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        for process in [*parent.children(recursive=True), parent]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
