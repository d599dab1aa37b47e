"""The Spark that comes with the broker: the lake job as a supervised child process.

It runs while there is a table. It is started again when it ends, with growing pauses; it dies with the broker, however
the broker ends; its output goes to a log file of bounded size.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from bridges.spark.broker_side.settings import LakeSettings
from bridges.spark.driver.java import find_java
from bridges.spark.driver.orphan import PARENT_VARIABLE
from bridges.spark.driver.session import not_installed
from broker.core.errors import SluiceError
from broker.core.process import environment
from broker.core.times import rfc3339
from broker.observe.log import get_logger
from broker.observe.rotating_file import RotatingFile

_log = get_logger(__name__)
_PACKAGES = ("pyspark", "pandas", "deltalake", "pyarrow")
_FIRST_BACK_OFF_S = 1.0
_LONGEST_BACK_OFF_S = 60.0
_HEALTHY_AFTER_S = 60.0
_LOG_BYTES = 10 * 1024 * 1024
# A job that is killed loses nothing; it is only given time to end its queries.
_STOP_DEADLINE_S = 8.0


class LocalSpark:
    """Owns the child process. Used on the event loop."""

    def __init__(self, settings: LakeSettings, directory: Path, log_path: Path) -> None:
        self._settings = settings
        self._directory = directory
        self._log = RotatingFile(log_path, max_bytes=_LOG_BYTES, max_files=1, rotation="none")
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._state = "stopped"
        self._reason = None if settings.run_spark else "lake.run_spark is off"
        self._started_at: str | None = None
        self._restarts = 0

    def want(self, wanted: bool) -> None:
        """Start the job, or end it: whether there is work for it."""
        if wanted:
            self._wanted.set()
            return
        self._wanted.clear()
        self._signal(signal.SIGTERM)

    async def start(self, url: str, token: str) -> None:
        """Begin supervising; returns at once."""
        self._task = asyncio.create_task(self._supervise(url, token), name="lake job")

    async def stop(self) -> None:
        """End the job: in order, and after a deadline with force."""
        if self._task is None:
            return
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        self._task = None
        self._state = "stopped"
        self._log.close()

    def succeeded(self) -> None:
        """A table was filled, or found complete: before that, a process that exists has shown nothing."""
        if self._process is not None:
            self._state = "running"

    def state(self) -> dict[str, Any]:
        """``state`` is ``stopped``, ``starting``, ``running`` or ``failed``; ``reason`` is a sentence."""
        pid = self._process.pid if self._process else None
        progress = {"pid": pid, "started_at": self._started_at, "restarts": self._restarts}
        return {"state": self._state, "reason": self._reason, **progress}

    async def _supervise(self, url: str, token: str) -> None:
        back_off_s = _FIRST_BACK_OFF_S
        while True:
            await self._wanted.wait()
            began = time.monotonic()
            try:
                self._state = "starting"
                self._log.path.parent.mkdir(parents=True, exist_ok=True)
                environment = await asyncio.to_thread(self._environment, token)
                status = await self._run(url, environment)
                self._ended(status)
            except (SluiceError, OSError) as error:
                self._state, self._reason = "failed", str(error)
            except Exception as error:  # noqa: BLE001 - a supervisor that ends leaves tables that never start
                _log.exception("lake.job_not_started")
                self._state, self._reason = (
                    "failed",
                    f"the lake job did not start: {type(error).__name__}: {error}",
                )
            if not self._wanted.is_set():
                self._state = "stopped"
                self._reason = None
                continue
            back_off_s = (
                _FIRST_BACK_OFF_S if time.monotonic() - began > _HEALTHY_AFTER_S else back_off_s
            )
            await asyncio.sleep(back_off_s)
            back_off_s = min(back_off_s * 2, _LONGEST_BACK_OFF_S)
            self._restarts += 1

    async def _run(self, url: str, environment: dict[str, str]) -> int:
        """One life of the child; its exit status."""
        self._started_at = rfc3339(time.time_ns())
        process = await asyncio.create_subprocess_exec(
            *self._command(url),
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            # Ctrl-C in the terminal is for the broker, which then ends the job in order.
            start_new_session=True,
        )
        self._process = process
        self._reason = None
        try:
            await self._keep_log(process)
            return await process.wait()
        finally:
            if process.returncode is None:
                await asyncio.shield(self._end(process))
            self._process = None

    async def _keep_log(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while chunk := await process.stdout.read(65536):
            with suppress(OSError):  # a full disk loses log lines, never the job
                self._log.append(chunk, time.time(), sync=False)

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            # The output is read on: a child that writes into a full pipe would not end.
            async with asyncio.timeout(_STOP_DEADLINE_S):
                await self._keep_log(process)
        except TimeoutError:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        await process.wait()

    def _ended(self, status: int) -> None:
        self._state = "failed"
        self._reason = f"the lake job ended with status {status}: {last_line(self._log.path)}"

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    def _command(self, url: str) -> list[str]:
        settings = self._settings
        return [
            *(sys.executable, "-m", "bridges.spark.job", "--url", url),
            *("--directory", str(self._directory)),
            *("--master", settings.master),
            *("--max-rows", str(settings.max_rows_per_trigger)),
            *("--driver-memory", settings.driver_memory),
        ]

    def _environment(self, token: str) -> dict[str, str]:
        """The environment of the child; it has the token, since every user of the machine can see arguments.

        Raises:
            MissingDependency: a package or Java is not there; says what to install.
        """
        for package in _PACKAGES:
            # Not importlib.util.find_spec: that one asks sys.modules first, where another thread may just be importing.
            if PathFinder.find_spec(package) is None:
                raise not_installed(package)
        variables = environment()
        # Spark starts a dozen Python processes; without kept bytecode each compiles its packages again, 1.3 s of CPU.
        variables.pop("PYTHONDONTWRITEBYTECODE", None)
        find_java(self._directory / "_spark").apply(variables)
        variables["SLUICE_API_TOKEN"] = token
        variables[PARENT_VARIABLE] = str(os.getpid())
        return variables


def last_line(path: Path) -> str:
    """The last line of a log, empty when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.path.getsize(path) - 4096))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1].strip() if lines else ""
