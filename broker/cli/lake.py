"""``sluice lake`` and ``sluice audit``: tables, proof of their rows, and texts of jobs on tables."""

from __future__ import annotations

import os
import time
from typing import Annotated, Any

import typer

from broker.cli import exit_codes, features
from broker.cli.client import name_path
from broker.cli.command import (
    DATA_DIR,
    LONG_S,
    Call,
    DataDirOption,
    UrlOption,
    api_command,
    command,
)
from broker.cli.errors import CommandError
from broker.cli.jobs import followed
from broker.cli.output import print_columns, print_line, say
from broker.cli.target import TOKEN_VARIABLE, find_target
from broker.core.errors import Unreadable
from broker.core.kinds import counted

group = typer.Typer(
    help="Tables of the lakehouse, and the job that fills them.", no_args_is_help=True
)

TableArgument = Annotated[str, typer.Argument(metavar="TABLE")]
# Folder of the tables in the data directory, with the scratch files of the job.
LAKE_DIRECTORY = "lake"


@api_command(known="sluice lake tables ls", timeout_s=LONG_S)
def audit(
    call: Call,
    table: TableArgument,
    values: Annotated[
        bool,
        typer.Option(
            "--values", help="Compare values, too, with the sums that commits keep of them."
        ),
    ] = False,
    deep: Annotated[
        bool,
        typer.Option(
            "--deep",
            help="Also convert the stream's records again, by the rule as it is now, and compare.",
        ),
    ] = False,
    local: Annotated[
        bool,
        typer.Option(
            "--local", help="Read the table in this process, where no lake job is running."
        ),
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Print the job's identifier and do not wait.")
    ] = False,
) -> None:
    """Prove that a table has every record.

    Every offset of the stream that the table covers must be a row, filtered, or a dead letter, once. Exit code 7 when
    it is not so, 8 when the table cannot be read. It is a job of the broker, run by the lake job; the table is filled
    while it runs.
    """
    path = name_path("/lake/tables", table)
    hint = f"sluice lake tables show {table}"
    depth = "deep" if deep else "values" if values else None
    if local:
        call.api.get(path)  # errors are the same as those of other commands
        try:
            target = call.target
            audit = features.call(
                "audit", table, url=target.url, token=target.token or "", depth=depth or "offsets"
            )
            report = audit.as_dict()
        except Unreadable as error:
            raise CommandError(str(error), exit_codes.UNREADABLE, hint=hint) from error
    else:
        question = f"?depth={depth}" if depth else ""
        job = call.api.post(f"{path}:audit{question}", prefer="respond-async")
        if detach:
            call.show(job, job["id"])
            return
        job = followed(call.api, name_path("/jobs", job["id"]), job)
        if job["state"] != "done":
            code = exit_codes.UNREADABLE if job["state"] == "failed" else exit_codes.FAILED
            raise CommandError(job["error"] or f"the audit was {job['state']}", code, hint=hint)
        report = job["result"]
    call.show(report, lambda _: print_line(audit_text(report)))
    if not report["ok"]:
        raise typer.Exit(exit_codes.CHECK_SAID_NO)


def audit_text(report: dict[str, Any]) -> str:
    """The report of an audit as text."""
    members = f", in {counted(len(report['tables']), 'table')}" if report["tables"] else ""
    lines = [
        f"table {report['table']} from stream {report['stream']}, version {report['version']}{members}"
    ]
    for shard in report["shards"]:
        superseded = f" + {shard['superseded']} superseded or deleted" if report["key"] else ""
        removed = f" + {shard['removed']} removed by their age" if shard["removed"] else ""
        lines.append(
            f"  shard {shard['shard']}: offsets {shard['first']} to {shard['next']}: "
            f"{counted(shard['next'] - shard['first'], 'record')} = {counted(shard['rows'], 'row')} + "
            f"{counted(shard['dead_letters'], 'dead letter')} + {shard['filtered']} filtered{superseded}{removed}"
            f"; {shard['lag']} more wait in the stream"
        )
        if shard.get("compared") is not None:
            rest = shard["rows"] - shard["outside"] - shard["compared"]
            unknown = f"; of {counted(rest, 'row')} no sum is known" if rest else ""
            lines.append(
                f"    the values of {counted(shard['compared'], 'row')} were compared{unknown}"
            )
    lines += [f"  PROBLEM: {problem}" for problem in report["problems"]]
    if not any(shard["rows"] for shard in report["shards"]):
        lines.append("  the table has no rows yet")
    lines.append(
        "every record is accounted for, once" if report["ok"] else "records are not accounted for"
    )
    return "\n".join(lines)


def _rows_and_letters(rows: int, dead_letters: int) -> str:
    return f"{counted(rows, 'row')} and {counted(dead_letters, 'dead letter')}"


def replayed(report: dict[str, Any]) -> str:
    """The rows that a replay replaced, or would; or the progress of a shadow."""
    if "is_complete" in report:
        return _shadow(report)
    return _planned(report) if report["dry_run"] else _replayed(report)


def _planned(plan: dict[str, Any]) -> str:
    if plan["fills"]:
        filled = f"would fill table {plan['table']} again from {_places(plan)}: {counted(plan['records'], 'record')}"
        return filled + _missing(plan)
    now = f"{_rows_and_letters(plan['rows_before'], plan['dead_letters_before'])} of table {plan['table']} now"
    return f"would replay {_places(plan)}: {counted(plan['records'], 'record')}, which are {now}{_missing(plan)}"


def _replayed(report: dict[str, Any]) -> str:
    after = _rows_and_letters(report["rows_after"], report["dead_letters_after"])
    if report["fills"]:
        filled = f"filled table {report['table']} again from {_places(report)}: it has {after}"
        return f"{filled} (version {report['version']}){_missing(report)}"
    filtered = f", {report['filtered_after']} filtered" if report["rule"] else ""
    return (
        f"replayed {_places(report)}: {counted(report['records'], 'record')}, which were "
        f"{_rows_and_letters(report['rows_before'], report['dead_letters_before'])} of table {report['table']}, are "
        f"{after}{filtered} (version "
        f"{report['version']}){_missing(report)}"
    )


def _missing(report: dict[str, Any]) -> str:
    """Records that a lost table lacks, if it lacks any."""
    ranges = [
        f"[{gap['start']}, {gap['end']}) of shard {gap['shard']}" for gap in report["missing"]
    ]
    return f"; the stream no longer has {', '.join(ranges)}" if ranges else ""


def _places(report: dict[str, Any]) -> str:
    ranges = [
        f"[{part['start']}, {part['end']}) of shard {part['shard']}" for part in report["ranges"]
    ]
    return (", ".join(ranges) or "nothing") + (
        f" by rule {report['rule']}" if report["rule"] else ""
    )


@group.command(
    "run",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    help="Run the job that fills the tables, in this process; other options are the job's (sluice lake run -- --help).",
)
def run_job(
    context: typer.Context, url: UrlOption = None, data_dir: DataDirOption = DATA_DIR
) -> None:
    """Run the lake job, which ``sluice serve`` starts on this machine, on another machine."""
    target = find_target(url, data_dir, os.environ)
    if target.token:
        # not among the arguments, which every user of the machine can see
        os.environ[TOKEN_VARIABLE] = target.token
    arguments = ["--url", target.url, *context.args]
    if "--directory" not in context.args:
        arguments += ["--directory", str(data_dir / LAKE_DIRECTORY)]
    raise typer.Exit(features.call("lake run", arguments))


def add_to(tables: typer.Typer) -> None:
    """Add what tables have beyond the verbs of every kind."""
    command(tables, "wait")(wait_for_rows)
    command(tables, "shadow", known="sluice lake tables ls")(shadow)
    tables.command("audit")(audit)


def print_preview(preview: dict[str, Any]) -> None:
    """Print the newest rows of a table."""
    print_columns(preview["rows"], preview["columns"])


def retyped(report: dict[str, Any]) -> str:
    """The rows and dead letters of a table whose column has another type."""
    return (
        f"column {report['column']} of table {report['table']} is {report['type']}: "
        f"{_rows_and_letters(report['rows_before'], report['dead_letters_before'])} are "
        f"{_rows_and_letters(report['rows_after'], report['dead_letters_after'])} (version {report['version']})"
    )


def cleaned(report: dict[str, Any]) -> str:
    """Number of removed files that no version refers to."""
    verb = "would remove" if report["dry_run"] else "removed"
    letters = f"{counted(report['dead_letter_files'], 'file')} of its dead letters"
    files = f"{counted(report['files'], 'file')} of table {report['table']}"
    return f"{verb} {files} and {letters} that no version refers to"


def compacted(report: dict[str, Any]) -> str:
    """Number of small files that were joined."""
    verb = "would join" if report["dry_run"] else "joined"
    return (
        f"{verb} {counted(report['files'], 'small file')} of table {report['table']}, "
        f"{counted(report['bytes'], 'byte')}, to {report['files_after']:,}"
    )


def expired(report: dict[str, Any]) -> str:
    """Number of files that were removed with old versions."""
    verb = "would remove" if report["dry_run"] else "removed"
    snapshots = f"{counted(report['snapshots'], 'snapshot')} and " if report["snapshots"] else ""
    files = counted(report["files"], "file")
    return (
        f"{verb} {snapshots}{files} of table {report['table']}, {counted(report['bytes'], 'byte')}"
    )


def retained(report: dict[str, Any]) -> str:
    """Number of old rows that were removed."""
    verb = "would remove" if report["dry_run"] else "removed"
    return f"{verb} {counted(report['rows'], 'row')} and dead letters of table {report['table']}"


def shadow(call: Call, name: TableArgument) -> None:
    """Show how far the shadow of a table is, which sluice replay --into shadow fills."""
    none = f"table {name} has no shadow; make one: sluice replay {name} --into shadow"
    answer = call.api.get(f"{name_path('/lake/tables', name)}/shadow")
    call.show(
        answer, lambda answer: print_line(_shadow(answer["shadow"]) if answer["shadow"] else none)
    )


def _shadow(shadow: dict[str, Any]) -> str:
    filtered = f", {shadow['filtered']:,} filtered" if shadow["filtered"] else ""
    return (
        f"the shadow of table {shadow['table']} has {shadow['done']:,} of {counted(shadow['records'], 'record')} "
        f"({_places({**shadow, 'rule': None})}): {_rows_and_letters(shadow['rows'], shadow['dead_letters'])}"
        f"{filtered}"
    )


def compared(report: dict[str, Any]) -> str:
    """The differences of a table and its shadow."""
    lines = [f"{counted(report['records'], 'record')} of table {report['table']} and its shadow"]
    for noun, difference in (("rows", report["rows"]), ("dead letters", report["dead_letters"])):
        lines.append(
            f"{noun}: {difference['same']:,} the same, {difference['changed']:,} changed, "
            f"{difference['only_table']:,} only in the table, {difference['only_shadow']:,} only in the shadow"
        )
        lines += [
            f"  column {column}: {count:,} changed"
            for column, count in difference["columns"].items()
        ]
        lines += [f"  {_sample(sample)}" for sample in difference["samples"]]
    return "\n".join(lines)


def _sample(row: dict[str, Any]) -> str:
    sides = [
        ", ".join(f"{name}={value}" for name, value in side.items())
        for side in (row["table"], row["shadow"])
        if side
    ]
    return (
        f"{row['shard']}/{row['offset']} {row['kind'].replace('_', ' in ')}: {' -> '.join(sides)}"
    )


def swapped(report: dict[str, Any]) -> str:
    """The rows that a table has from its shadow, or would have."""
    if "version" not in report:
        return f"would swap: {_shadow(report)}"
    return (
        f"table {report['table']} has {_rows_and_letters(report['rows'], report['dead_letters'])} of "
        f"{_places({**report, 'rule': None})} from its shadow (version {report['version']})"
    )


def discarded(report: dict[str, Any]) -> str:
    """A shadow that was removed."""
    return f"table {report['table']} {'no longer has a shadow' if report['discarded'] else 'had no shadow'}"


def accepted(report: dict[str, Any]) -> str:
    """The records that a table continues without."""
    ranges = ", ".join(
        f"[{gap['start']}, {gap['end']}) of shard {gap['shard']}" for gap in report["ranges"]
    )
    records = counted(report["records"], "record")
    return f"table {report['table']} continues without {records}: {ranges or 'it has no gap'}"


def print_history(history: dict[str, Any]) -> None:
    """Print the versions of a table, and the number of its files."""
    shown = ("version", "at", "operation", "rows", "dead_letters", "filtered", "offsets")
    rows = [
        {**version, "offsets": _places({**version, "rule": None})}
        for version in history["versions"]
    ]
    print_columns(rows, shown)
    counts = f"{counted(history['rows'], 'row')} in {counted(history['files'], 'file')}"
    say(f"{counts} of {counted(history['bytes'], 'byte')}")


def wait_for_rows(
    call: Call,
    name: Annotated[str, typer.Argument()],
    rows: Annotated[
        int,
        typer.Option("--rows", min=0, help="Minimum number of rows and dead letters, together."),
    ] = 1,
    timeout: Annotated[float, typer.Option("--timeout", min=0, help="Seconds.")] = 120.0,
) -> None:
    """Wait until a table has this many rows; exit code 124 when it does not in time."""
    deadline = time.monotonic() + timeout
    progress = ""
    while True:
        table = _table(call.api.get("/status"), name)
        written = table.get("rows") or 0
        dead = table.get("dead_letters") or 0
        if written + dead >= rows:
            call.show(table, f"table {name} has {_rows_and_letters(written, dead)}")
            return
        if time.monotonic() >= deadline:
            raise _too_late(name, written + dead, rows, timeout, table)
        before = progress
        progress = _progress(table, written + dead, rows)
        if progress != before:
            say(progress)
        time.sleep(0.5)


def _progress(table: dict[str, Any], held: int, rows: int) -> str:
    lag = table.get("lag_records")
    behind = "lag unknown" if lag is None else f"{counted(lag, 'record')} behind"
    return f"table {table['name']} is {_state(table)}: {held:,} of {counted(rows, 'row')}, {behind}"


def _state(table: dict[str, Any]) -> str:
    """The state of a table with its reason, if it has one."""
    reason = table.get("reason")
    return f"{table['state']} ({reason})" if reason else str(table["state"])


def _table(status: dict[str, Any], name: str) -> dict[str, Any]:
    for table in status.get("tables", []):
        if table["name"] == name:
            row: dict[str, Any] = table
            return row
    raise CommandError(
        f"there is no lake table {name!r}", exit_codes.NOT_FOUND, hint="sluice lake tables ls"
    )


def _too_late(
    name: str, held: int, rows: int, timeout_s: float, table: dict[str, Any]
) -> CommandError:
    return CommandError(
        f"table {name!r} has {held:,} of {counted(rows, 'row')} after {timeout_s:g} s; it is {_state(table)}",
        exit_codes.TIMED_OUT,
        hint="sluice status",
    )
