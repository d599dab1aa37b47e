"""``sluice lake``, ``sluice audit`` and ``sluice replay``: tables, and proof and repair of what is in them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from broker.cli import exit_codes
from broker.cli.errors import CommandError, hinting
from broker.cli.features import call
from broker.cli.options import DATA_DIR, DataDirOption, JsonOption, OutputOption, UrlOption, api_client
from broker.cli.target import TOKEN_VARIABLE, Target, find_target

group = typer.Typer(help="Tables of the lakehouse, and the job that fills them.", no_args_is_help=True)

TableArgument = Annotated[str, typer.Argument(metavar="TABLE")]
LAKE_DIRECTORY = "lake"
"""Where tables lie in the data directory, with the scratch files of the job."""


def audit(
    table: TableArgument,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Prove that a table has every record.

    Every offset of the stream that the table covers must be a row, filtered, or a dead letter, once. Exit code 7 when
    it is not so.
    """
    target = _target_of(table, url, data_dir)
    report = call("audit", table, url=target.url, token=target.token or "")
    _print_report(report, as_json=as_json or output == "json")
    if not report.ok:
        raise typer.Exit(exit_codes.CHECK_SAID_NO)


def replay(
    table: TableArgument,
    start: Annotated[str, typer.Option("--from", metavar="PLACE", help="First offset, or a time, 2026-01-31T12:00Z.")],
    end: Annotated[str, typer.Option("--to", metavar="PLACE", help="The offset after the last, or a time.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be replayed; change nothing.")] = False,
    rule: Annotated[
        str | None, typer.Option("--rule", metavar="NAME", help="Run this rule, not the one that the table has.")
    ] = None,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Read a range of a stream again into its table.

    The rows of the range are replaced; the same range twice leaves the same table. For a table with a rule, the rule
    as it is now runs again on the messages of the range.
    """
    from broker.cli.output import say

    target = _target_of(table, url, data_dir)
    directory = (data_dir / LAKE_DIRECTORY).resolve()
    if not dry_run:
        say(f"replaying {table}; Spark takes some seconds to start")
    options = {"url": target.url, "token": target.token or "", "directory": directory, "dry_run": dry_run, "rule": rule}
    _print_report(call("replay", table, start, end, **options), as_json=as_json or output == "json")


def _target_of(table: str, url: str | None, data_dir: Path) -> Target:
    """The broker, once it has answered that it knows the table: so errors are told as other commands tell them."""
    from broker.cli.client import ApiClient, name_path

    target = find_target(url, data_dir, os.environ)
    with ApiClient(target) as client, hinting(exit_codes.NOT_FOUND, "sluice lake tables ls"):
        client.get(name_path("/lake/tables", table))
    return target


def _print_report(report: Any, *, as_json: bool) -> None:
    from broker.cli.output import print_json, print_line

    if as_json:
        print_json(report.as_dict())
    else:
        print_line(report.text())


@group.command(
    "run",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    help="Run the job that fills the tables, in this process; other options are the job's (sluice lake run -- --help).",
)
def run_job(context: typer.Context, url: UrlOption = None, data_dir: DataDirOption = DATA_DIR) -> None:
    """What ``sluice serve`` starts by itself, for whoever runs it elsewhere."""
    target = find_target(url, data_dir, os.environ)
    if target.token:
        os.environ[TOKEN_VARIABLE] = target.token  # not among the arguments, which every user of the machine can see
    arguments = ["--url", target.url, *context.args]
    if "--directory" not in context.args:
        arguments += ["--directory", str(data_dir / LAKE_DIRECTORY)]
    raise typer.Exit(call("lake run", arguments))


def add_to(tables: typer.Typer) -> None:
    """Add what tables have beyond the verbs of every kind."""
    text = "Wait until a table has so many rows; exit code 124 when it does not in time."
    tables.command("wait", help=text)(wait_for_rows)


def wait_for_rows(
    name: Annotated[str, typer.Argument()],
    rows: Annotated[int, typer.Option("--rows", min=0, help="Rows and dead letters, together at least.")] = 1,
    timeout: Annotated[float, typer.Option("--timeout", min=0, help="Seconds.")] = 120.0,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
) -> None:
    """Polls the status, twice a second."""
    deadline = time.monotonic() + timeout
    with api_client(url, data_dir) as client:
        while True:
            table = _table(client.get("/status"), name)
            written, dead = table.get("rows") or 0, table.get("dead_letters") or 0
            if written + dead >= rows:
                print(f"table {name} has {written:,} rows and {dead:,} dead letters")
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
