"""``sluice jobs``: long work of the broker: back-tests, replays, dead letters and messages that are sent again."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Annotated, Any

import typer

from broker.cli import exit_codes
from broker.cli.client import ApiClient, name_path
from broker.cli.command import Call, command
from broker.cli.errors import CommandError
from broker.cli.output import print_line

_POLL_S = 0.25
_SAY_EVERY_S = 10.0
_SILENT_S = 20.0
_KNOWN = "sluice jobs ls"
JobId = Annotated[str, typer.Argument(metavar="ID", help="Its identifier.")]


def add_to(group: typer.Typer) -> None:
    """Add watching a job."""

    @command(group, "watch", known=_KNOWN)
    def watch_job(call: Call, id: JobId) -> None:
        """Follow a job until it ends. Ctrl-C stops watching, not the job."""
        job = followed(call.api, name_path("/jobs", id), call.api.get(name_path("/jobs", id)))
        done, total, unit = (job["progress"][member] for member in ("done", "total", "unit"))
        call.show(job, f"{job['kind']} {job['name']}: {job['state']}, {done:,} of {total:,} {unit}")
        if job["state"] in ("failed", "interrupted"):
            verb = "failed" if job["state"] == "failed" else "was interrupted"
            raise CommandError(f"the {job['kind']} {verb}: {job['error']}")


def follow(
    call: Call, job: dict[str, Any], verb: str, detach: bool, text: Callable[[dict[str, Any]], str]
) -> None:
    """Wait for a job's end and show its result, or show its identifier at once."""
    if detach:
        call.show(job, job["id"])
        return
    job = followed(call.api, name_path("/jobs", job["id"]), job)
    if job["state"] != "done":
        so_far = text(job["result"]) if job.get("result") else "nothing was changed"
        raise CommandError(f"the {verb} {job['state']}: {job['error'] or so_far}")
    call.show(job["result"], lambda report: print_line(text(report)))


def followed(client: ApiClient, path: str, job: dict[str, Any]) -> dict[str, Any]:
    """The job at a path of the API once it is over; its progress is shown until then. The API may be away for a while:
    the broker starts again, or its first cell moves."""
    heard_s = time.monotonic()
    with Progress(job["progress"]["total"], job["progress"]["unit"]) as progress:
        while job["state"] in ("running", "paused"):
            time.sleep(_POLL_S)
            try:
                job = client.get(path)
            except CommandError as error:
                is_away = error.exit_code in (exit_codes.NOT_REACHABLE, exit_codes.FAILED)
                if not is_away or time.monotonic() - heard_s > _SILENT_S:
                    raise
                continue
            heard_s = time.monotonic()
            progress.show(job["progress"]["done"], job["rate"])
    return job


class Progress:
    """A bar on a terminal, a line every ten seconds elsewhere; on standard error."""

    def __init__(self, total: int, unit: str) -> None:
        self._total, self._unit, self._said_s = total, unit, time.monotonic()
        self._began_s = self._said_s
        self._bar: Any = None  # of rich, which is imported where there is a terminal

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                TextColumn,
                TimeRemainingColumn,
            )

            columns = (
                TextColumn(self._unit),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
            )
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
            self._bar.add_task(self._unit, total=self._total)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, done: int, rate: float | None = None) -> None:
        """Show how much is done, at a rate per second; without one the mean so far."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done)
        elif time.monotonic() - self._said_s > _SAY_EVERY_S:
            self._said_s = time.monotonic()
            rate = round(done / (self._said_s - self._began_s)) if rate is None else rate
            print(f"{done:,} of {self._total:,} {self._unit}, {rate:,} a second", file=sys.stderr)
