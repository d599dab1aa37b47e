"""``sluice rules backtest``: new SQL over a range of a stream, next to the rule that runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from broker.cli import exit_codes
from broker.cli.client import ApiClient
from broker.cli.command import Call, command
from broker.cli.errors import CommandError
from broker.cli.jobs import followed
from broker.cli.output import print_line, print_table, say
from broker.cli.rule_tries import Sql, sql_text
from broker.core.kinds import counted


def backtest(
    call: Call,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The rule to compare with.")
    ] = None,
    stream: Annotated[str, typer.Option("--stream", help="A stream that captures topics.")] = "",
    sql: Sql = None,
    start: Annotated[
        str | None, typer.Option("--from", metavar="PLACE", help="First offset, or a time.")
    ] = None,
    end: Annotated[
        str | None,
        typer.Option("--to", metavar="PLACE", help="The offset after the last, or a time."),
    ] = (None),
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Maximum messages to read, the newest.")
    ] = None,
    samples: Annotated[
        int, typer.Option("--samples", min=1, max=200, help="Differences of each kind to show.")
    ] = 5,
    timeout: Annotated[
        float | None, typer.Option("--timeout", help="Seconds that it may take.")
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Print its identifier and do not wait.")
    ] = False,
) -> None:
    """Run SQL over what a stream holds, next to the rule that runs: which rows come, go and change. No action runs."""
    if not stream:
        raise CommandError(
            "name a stream",
            exit_codes.USAGE,
            hint="sluice rules backtest NAME --sql ... --stream raw",
        )
    text = None if sql is None else sql_text(sql)
    wanted = {
        "name": name, "sql": text, "stream": stream, "from": start, "to": end, "limit": limit, "samples": samples,
        "timeout_s": timeout,
    }  # fmt: skip
    job = call.api.post(
        "/rules:backtest", {key: value for key, value in wanted.items() if value is not None}
    )
    if not detach:
        job = _followed(call.api, job)
    if call.is_json or detach:
        call.show(job, job["id"])
    elif job["state"] == "done":
        _print_result(job)
    if job["state"] in ("failed", "cancelled"):
        raise CommandError(f"the back-test {job['state']}: {job['error'] or 'it was ended'}")


def _followed(client: ApiClient, job: dict[str, Any]) -> dict[str, Any]:
    """The job once it is over; Ctrl-C cancels it."""
    path = f"/backtests/{job['id']}"
    try:
        return followed(client, path, job)
    except KeyboardInterrupt:
        client.post(f"{path}:cancel")
        raise


def _print_result(job: Mapping[str, Any]) -> None:
    result = job["result"]
    where = ", ".join(
        f"shard {part['shard']} [{part['from']}, {part['to']})" for part in job["ranges"]
    )
    print_line(
        f"{counted(result['messages'], 'message')} of {job['stream']}, {where}; {result['messages_per_s']:,} a second"
    )
    if not result["complete"]:
        say(f"not all was read: {result['why']}")
    sides = ("before", "after")
    print_table(
        ["", "before" if job["rule"] else "nothing", "after"],
        [
            ["rows", *(result["rows"][side] for side in sides)],
            ["messages matched", *(result["matched"][side] for side in sides)],
            ["no result", *(result["no_result"][side] for side in sides)],
            ["errors", *(sum(kind["count"] for kind in result["errors"][side]) for side in sides)],
        ],
    )
    rows = result["rows"]
    print_line(
        ", ".join(f"{rows[kind]:,} {kind}" for kind in ("unchanged", "added", "lost", "changed"))
    )
    if result["undefined_columns"]:
        say(
            f"a stream does not keep {', '.join(result['undefined_columns'])}: undefined on both sides"
        )
    _print_samples(result["samples"])
    for side in sides:
        for kind in result["errors"][side]:
            first = f"shard {kind['first']['shard']} offset {kind['first']['offset']}"
            print_line(
                f"error {side}: {kind['message']} ({counted(kind['count'], 'time')}, first at {first})",
                style="red",
            )


def _print_samples(samples: Mapping[str, Any]) -> None:
    for kind, sign, style in (
        ("added", "+", "green"),
        ("lost", "-", "red"),
        ("changed", "~", "yellow"),
    ):
        for sample in samples[kind]:
            place = f"{sample['shard']}/{sample['offset']} {sample['topic']}"
            rows = [
                json.dumps(sample[side], ensure_ascii=False)
                for side in ("before", "after")
                if side in sample
            ]
            print_line(f"{sign} {place}  {' → '.join(rows)}", style=style)


def add_to(group: typer.Typer) -> None:
    """Give the group of rules this command."""
    command(group, "backtest", known="sluice rules ls; sluice streams ls")(backtest)
