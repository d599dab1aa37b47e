"""``sluice metrics``: what the broker keeps of its own metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from statistics import fmean
from time import time
from typing import Annotated, Any

import typer

from broker.cli import exit_codes
from broker.cli.command import Call, command
from broker.cli.errors import CommandError
from broker.cli.output import print_columns, print_table, say

group = typer.Typer(
    help="Metrics: which ones the broker keeps, and their history.", no_args_is_help=True
)

LastOption = Annotated[
    str, typer.Option("--last", metavar="DURATION", help="How far back, as 15m, 6h or 7d.")
]
LabelsOption = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="NAME=VALUE", help="Only series with this label; repeatable."),
]


@command(group, "ls")
def list_metrics(call: Call, labels: LabelsOption = None, last: LastOption = "5m") -> None:
    """List the series of the history: the latest value, mean, minimum and maximum."""
    last_s = _seconds(last, "--last")
    wanted = {"from": _ago(last_s), "step": max(last_s // 10, 1), "labels": labels}
    columns = ("name", "kind", "latest", "mean", "min", "max")
    call.show(
        call.api.get("/metrics/history", **_query(wanted)),
        lambda answer: print_columns(map(_summary, answer["series"]), columns),
    )


@command(group, "history", known="sluice metrics ls")
def history(
    call: Call,
    names: Annotated[
        list[str], typer.Argument(help="Names of metrics, as 'sluice metrics ls' shows them.")
    ],
    labels: LabelsOption = None,
    last: LastOption = "1h",
    start: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="Start, instead of --last.")
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="End; the present if absent.")
    ] = None,
    step: Annotated[
        str, typer.Option("--step", metavar="DURATION", help="Minimum time per row, as 1s or 10m.")
    ] = "1m",
) -> None:
    """Show the history of metrics: means by time, with starts and stops of the broker."""
    begin = start or _ago(_seconds(last, "--last"))
    wanted = {
        "names": names,
        "labels": labels,
        "from": begin,
        "to": end,
        "step": _seconds(step, "--step"),
    }
    call.show(call.api.get("/metrics/history", **_query(wanted)), _show)


def _show(answer: Mapping[str, Any]) -> None:
    first = datetime.fromisoformat(answer["from"])
    step = timedelta(seconds=answer["step_s"])
    series = answer["series"]
    means = zip(*(entry["mean"] for entry in series), strict=True)
    rows = [
        (f"{first + place * step:%Y-%m-%dT%H:%M:%SZ}", *values)
        for place, values in enumerate(means)
    ]
    # One row is enough for a time without values, such as that before the broker's first start.
    rows = [
        row
        for before, row in zip([(), *rows], rows, strict=False)
        if _any_value(row) or _any_value(before)
    ]
    print_table(("time", *map(_title, series)), rows)
    for marker in answer["markers"]:
        by = f" by {marker['by']}" if marker.get("by") else ""
        say(
            f"{marker['at']} {marker['kind']} {marker['name']} {marker['what'].replace('_', ' ')}{by}"
        )
    if not series:
        say("no values in this time; --last and --from choose another")


def _any_value(row: Sequence[Any]) -> bool:
    return any(value is not None for value in row[1:])


def _summary(series: Mapping[str, Any]) -> dict[str, Any]:
    mean, least, most = (
        [value for value in series[kind] if value is not None] for kind in ("mean", "min", "max")
    )
    latest = {"latest": mean[-1], "mean": fmean(mean), "min": min(least), "max": max(most)}
    return {"name": _title(series), "kind": series["kind"], **latest}


def _title(series: Mapping[str, Any]) -> str:
    labels = ", ".join(f"{name}={value}" for name, value in series["labels"].items())
    return f"{series['name']}{{{labels}}}" if labels else series["name"]


def _ago(seconds: int) -> str:
    return str(int((time() - seconds) * 1000))


def _query(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if value is not None}


def _seconds(text: str, option: str) -> int:
    from broker.config.units import parse_duration_s

    try:
        return max(int(float(str(parse_duration_s(text)))), 1)
    except (ValueError, OverflowError) as error:
        raise CommandError(f"{option}: {error}", exit_codes.USAGE) from None
