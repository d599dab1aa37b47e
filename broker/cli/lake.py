"""``sluice lake``, ``sluice audit`` and ``sluice replay``: tables, and proof and repair of what is in them."""

from __future__ import annotations

import os
import time
from typing import Annotated, Any

import typer

from broker.cli import exit_codes, features
from broker.cli.client import name_path
from broker.cli.command import DATA_DIR, Call, DataDirOption, UrlOption, api_command, command
from broker.cli.errors import CommandError
from broker.cli.output import print_line, say
from broker.cli.target import TOKEN_VARIABLE, Target, find_target

group = typer.Typer(help="Tables of the lakehouse, and the job that fills them.", no_args_is_help=True)

TableArgument = Annotated[str, typer.Argument(metavar="TABLE")]
LAKE_DIRECTORY = "lake"
"""Where tables lie in the data directory, with the scratch files of the job."""


@api_command(known="sluice lake tables ls")
def audit(call: Call, table: TableArgument) -> None:
    """Prove that a table has every record.

    Every offset of the stream that the table covers must be a row, filtered, or a dead letter, once. Exit code 7 when
    it is not so.
    """
    target = _target_of(call, table)
    report = features.call("audit", table, url=target.url, token=target.token or "")
    _show_report(call, report)
    if not report.ok:
        raise typer.Exit(exit_codes.CHECK_SAID_NO)


@api_command(known="sluice lake tables ls")
def replay(
    call: Call,
    table: TableArgument,
    start: Annotated[str, typer.Option("--from", metavar="PLACE", help="First offset, or a time, 2026-01-31T12:00Z.")],
    end: Annotated[str, typer.Option("--to", metavar="PLACE", help="The offset after the last, or a time.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be replayed; change nothing.")] = False,
    rule: Annotated[
        str | None, typer.Option("--rule", metavar="NAME", help="Run this rule, not the one that the table has.")
    ] = None,
) -> None:
    """Read a range of a stream again into its table.

    The rows of the range are replaced; the same range twice leaves the same table. For a table with a rule, the rule
    as it is now runs again on the messages of the range.
    """
    target = _target_of(call, table)
    directory = (call.data_dir / LAKE_DIRECTORY).resolve()
    if not dry_run:
        say(f"replaying {table}; Spark takes some seconds to start")
    options = {"url": target.url, "token": target.token or "", "directory": directory, "dry_run": dry_run, "rule": rule}
    _show_report(call, features.call("replay", table, start, end, **options))


def _target_of(call: Call, table: str) -> Target:
    """The broker, once it has answered that it has the table: so errors are the same as those of other commands."""
    call.api.get(name_path("/lake/tables", table))
    return call.target


def _show_report(call: Call, report: Any) -> None:
    call.show(report.as_dict(), lambda _: print_line(report.text()))


@group.command(
    "run",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    help="Run the job that fills the tables, in this process; other options are the job's (sluice lake run -- --help).",
)
def run_job(context: typer.Context, url: UrlOption = None, data_dir: DataDirOption = DATA_DIR) -> None:
    """What ``sluice serve`` starts by itself, for running it on another machine."""
    target = find_target(url, data_dir, os.environ)
    if target.token:
        os.environ[TOKEN_VARIABLE] = target.token  # not among the arguments, which every user of the machine can see
    arguments = ["--url", target.url, *context.args]
    if "--directory" not in context.args:
        arguments += ["--directory", str(data_dir / LAKE_DIRECTORY)]
    raise typer.Exit(features.call("lake run", arguments))


def add_to(tables: typer.Typer) -> None:
    """Add what tables have beyond the verbs of every kind."""
    command(tables, "wait")(wait_for_rows)


def wait_for_rows(
    call: Call,
    name: Annotated[str, typer.Argument()],
    rows: Annotated[int, typer.Option("--rows", min=0, help="Minimum number of rows and dead letters, together.")] = 1,
    timeout: Annotated[float, typer.Option("--timeout", min=0, help="Seconds.")] = 120.0,
) -> None:
    """Wait until a table has this many rows; exit code 124 when it does not in time."""
    deadline = time.monotonic() + timeout
    while True:
        table = _table(call.api.get("/status"), name)
        written, dead = table.get("rows") or 0, table.get("dead_letters") or 0
        if written + dead >= rows:
            call.show(table, f"table {name} has {written:,} rows and {dead:,} dead letters")
            return
        if time.monotonic() >= deadline:
            raise _too_late(name, written + dead, rows, timeout, table)
        time.sleep(0.5)


def _table(status: dict[str, Any], name: str) -> dict[str, Any]:
    for table in status.get("tables", []):
        if table["name"] == name:
            found: dict[str, Any] = table
            return found
    raise CommandError(f"there is no lake table {name!r}", exit_codes.NOT_FOUND, hint="sluice lake tables ls")


def _too_late(name: str, held: int, rows: int, timeout_s: float, table: dict[str, Any]) -> CommandError:
    why = f"; it is {table['state']}" + (f": {table['reason']}" if table.get("reason") else "")
    return CommandError(
        f"table {name!r} has {held:,} of {rows:,} rows after {timeout_s:g} s{why}",
        exit_codes.TIMED_OUT,
        hint="sluice status",
    )
