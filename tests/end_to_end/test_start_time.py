"""A start imports only what is used, and takes little of the processor."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from tests.support.node import READY, TOKEN, eventually
from tests.support.plain_http import NO_TLS
from tests.support.processor import is_within
from tests.support.sessions import fill

_ROOT: Final = Path(__file__).parents[2]
_NOT_AT_START: Final = (
    "aiokafka", "asyncpg", "cryptography", "deltalake", "fastapi", "fastavro", "google.protobuf", "httpcore", "httpx",
    "jsonschema", "jsonschema_rs", "jwt", "numpy", "pandas", "pyarrow", "pydantic.v1", "pyspark",
    "referencing", "rich", "starlette", "uvicorn",
)  # fmt: skip
"""What an empty broker has no use for until a client of the API, a schema, a table or a bridge comes."""
_SESSIONS: Final = 100_000
_OTHERS: Final = 1.6
"""How much longer a processor takes that shares its core with other work, as tests of several workers do."""


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """With compiled modules, as an installed broker has them, and in which no other test has a part."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {
        "PYTHONPYCACHEPREFIX": str(tmp_path_factory.mktemp("compiled")),
        "SLUICE_API_TOKEN": TOKEN,
    }


@contextmanager
def _started(
    data_dir: Path, environ: dict[str, str], *options: str, **streams: Any
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A broker that has just printed that it is ready, and that line."""
    command = [
        sys.executable, *options, "-m", "broker.cli.main", "serve", "--data-dir", str(data_dir),
        "--mqtt", "127.0.0.1:0", "--api", "127.0.0.1:0",
    ]  # fmt: skip
    process = subprocess.Popen(
        command, cwd=_ROOT, env=environ, text=True, stdout=subprocess.PIPE, **streams
    )
    assert process.stdout is not None
    with process:
        try:
            yield process, process.stdout.readline()
        finally:
            process.terminate()
            assert process.wait(60) == 0


def _processor_s(data_dir: Path, environ: dict[str, str]) -> float:
    """Processor seconds of the broker's own process until it is ready."""
    with _started(data_dir, environ) as (process, line):
        times = psutil.Process(process.pid).cpu_times()
        assert READY.search(line)
        return float(times.user + times.system)


def test_an_empty_broker_imports_only_what_it_uses(environ: dict[str, str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    with (
        log.open("w") as written,
        _started(tmp_path / "data", environ, "-v", stderr=written) as (_, line),
    ):
        assert READY.search(line)
    until_ready = log.read_text().partition("node.ready")[0]
    imported = set(re.findall(r"^import '([^']+)' #", until_ready, re.MULTILINE))
    assert "broker.app.lifecycle" in imported
    assert [name for name in _NOT_AT_START if name in imported] == []


def test_an_empty_broker_is_ready_within_a_second_of_the_processor(
    environ: dict[str, str], tmp_path: Path
) -> None:
    """With others at work the same instructions take longer: so the bound is for the best of some starts."""
    _processor_s(tmp_path / "first", environ)  # compiles modules
    taken_s = [_processor_s(tmp_path / f"data{number}", environ) for number in range(3)]
    assert is_within(min(taken_s), 1.0 * _OTHERS), taken_s


def test_a_broker_with_100_000_sessions_is_ready_within_three_seconds_of_the_processor(
    environ: dict[str, str], tmp_path: Path
) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    fill(data_dir, _SESSIONS)
    _processor_s(tmp_path / "first", environ)  # compiles modules
    taken_s = [_processor_s(data_dir, environ) for _ in range(2)]
    assert is_within(min(taken_s), 3.0 * _OTHERS), taken_s


def test_requests_made_at_the_ready_line_are_answered(
    environ: dict[str, str], tmp_path: Path
) -> None:
    """The management API is put together after that; until then connections wait."""
    import httpx

    with _started(tmp_path / "data", environ) as (_, line):
        ready = READY.search(line)
        assert ready
        with httpx.Client(trust_env=False, verify=NO_TLS, timeout=60) as client:
            assert client.get(f"http://{ready['api']}/readyz").status_code == 200
            answer = client.get(
                f"http://{ready['api']}/api/v1/status", headers={"Authorization": f"Bearer {TOKEN}"}
            )
        assert answer.json()["listeners"][-1]["address"] == ready["api"]


def test_a_broker_stopped_at_the_ready_line_ends_in_order(
    environ: dict[str, str], tmp_path: Path
) -> None:
    with _started(tmp_path / "data", environ, stderr=subprocess.PIPE) as (process, line):
        assert READY.search(line)
        process.terminate()
        assert process.stderr is not None
        log = process.stderr.read()
    assert "Traceback" not in log
    eventually(lambda: not (tmp_path / "data" / "run" / "node.json").exists())
