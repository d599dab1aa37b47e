"""``sluice streams records``, ``export``, ``import``, ``replay``: what streams hold, as files, and sending it again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker.cli import exit_codes
from broker.cli.client import name_path
from broker.cli.command import LONG_S, SLOW_S, Call, LimitOption, command
from broker.cli.errors import CommandError
from broker.cli.jobs import follow
from broker.cli.output import print_columns, print_line
from broker.core import jsontext
from broker.core.kinds import counted, load

if TYPE_CHECKING:
    from broker.config.places import Place

NameArgument = Annotated[str, typer.Argument(help="The name of a stream.")]
_KNOWN = "sluice streams ls"
_UNITS_S = {"s": 1, "m": 60, "h": 3600}


def add_to(group: typer.Typer) -> None:
    """Give the group of streams these commands."""
    command(group, "records", known=_KNOWN)(records)
    command(group, "export", known=_KNOWN)(export)
    command(group, "import", known=_KNOWN, timeout_s=SLOW_S)(import_records)
    command(group, "replay", known=_KNOWN, timeout_s=LONG_S)(replay)


def records(
    call: Call,
    name: NameArgument,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="OFFSET|TIME", help="Where to start; the first record if absent."
        ),
    ] = None,
    topics: Annotated[
        str | None,
        typer.Option(
            "--filter", metavar="FILTER", help="Topic filter: only records with such topics."
        ),
    ] = None,
    shard: Annotated[int, typer.Option("--shard", min=0, help="Shard, counted from 0.")] = 0,
    decode: Annotated[
        bool,
        typer.Option(
            "--decode", help="Decode payloads by the schemas that are bound to their topics."
        ),
    ] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Show payloads as base64, byte for byte.")
    ] = False,
    limit: LimitOption = 20,
) -> None:
    """Show the records of a stream, from an offset or a time on."""
    wanted: dict[str, Any] = {
        "from": start,
        "filter": topics,
        "shard": shard,
        "decode": decode,
        "raw": raw,
    }
    page = call.page(f"{name_path('/streams', name)}/records", limit, **wanted)
    shown = (
        {**page, "items": [_shown(item) for item in page["items"]]} if not call.is_json else page
    )
    call.show_rows(shown, ("offset", "at", "topic", "payload", "clientid", "rule"))


FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="NDJSON, or Parquet if its name ends so.")
]
FromOption = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="PLACE", help="First offset, by shard as 0:100,1:200, or a time."
    ),
]
UntilOption = Annotated[
    str | None,
    typer.Option(
        "--until", metavar="PLACE", help="The offset after the last, or a time. Default: now."
    ),
]
FilterOption = Annotated[
    str | None,
    typer.Option("--filter", metavar="FILTER", help="Topic filter: only records with such topics."),
]
FormatOption = Annotated[
    str | None,
    typer.Option(
        "--format", metavar="FORMAT", help="ndjson or parquet; else by the name of the file."
    ),
]


def export(
    call: Call,
    name: NameArgument,
    file: FileArgument,
    start: FromOption = None,
    until: UntilOption = None,
    topics: FilterOption = None,
    form: FormatOption = None,
) -> None:
    """Write records of a stream to a file, byte for byte: NDJSON or Parquet.

    The records come from the range server, so the broker publishes undisturbed. The file appears once it is complete.
    """
    transfer = load("broker.cli.stream_files:exported")
    report = transfer(
        call.api,
        name,
        file,
        _format(file, form),
        _place(start, "--from"),
        _place(until, "--until"),
        topics,
    )
    call.show(report, f"wrote {counted(report['records'], 'record')} of stream {name} to {file}")


def import_records(
    call: Call, name: NameArgument, file: FileArgument, form: FormatOption = None
) -> None:
    """Append the records of a file to a stream: topic, time, payload, client and properties as they are.

    No stage sees them, and no client gets them. Where the broker is away for less than a minute, the command continues;
    each record of the file is appended once.
    """
    transfer = load("broker.cli.stream_files:imported")
    report = transfer(call.api, name, file, _format(file, form))
    notes = "".join(f"\n{note}" for note in report["notes"])
    call.show(report, f"appended {counted(report['records'], 'record')} to stream {name}{notes}")


def _format(file: Path, name: str | None) -> str:
    form = name or ("parquet" if file.suffix == ".parquet" else "ndjson")
    if form not in ("ndjson", "parquet"):
        raise CommandError(f"--format: expected ndjson or parquet, got {form!r}", exit_codes.USAGE)
    return form


def _place(text: str | None, option: str) -> Place | None:
    from broker.config.places import parse_place  # imports Pydantic

    try:
        return None if text is None else parse_place(text)
    except ValueError as error:
        raise CommandError(f"{option}: {error}", exit_codes.USAGE) from None


def replay(
    call: Call,
    name: NameArgument,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="TARGET",
            help="mqtt: topics of this broker; stream:NAME; or an action, as kafka:NAME.",
        ),
    ],
    start: FromOption = None,
    until: UntilOption = None,
    topics: FilterOption = None,
    rule: Annotated[
        str | None,
        typer.Option(
            "--rule", metavar="NAME", help="Send the rows of this rule; its actions do not run."
        ),
    ] = None,
    rate: Annotated[
        str,
        typer.Option(
            "--rate",
            metavar="N/s",
            help="Maximum messages or rows, as 500/s or 6000/m; max: no limit.",
        ),
    ] = "1000/s",
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic",
            metavar="TEMPLATE",
            help="With mqtt: topic of each message, as 'again/${topic}'.",
        ),
    ] = None,
    retain: Annotated[
        bool, typer.Option("--retain", help="With mqtt: messages keep their retain flag.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan; send nothing.")
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Print the job's identifier and do not wait.")
    ] = False,
) -> None:
    """Send records of a stream again: to topics, to an action, or into another stream.

    It is a job of the broker, which continues when the broker starts again. `sluice jobs` watches, pauses, resumes and
    cancels it.
    """
    options = {
        "from": start,
        "until": until,
        "filter": topics,
        "rule": rule,
        "topic": topic,
        "retain": retain or None,
    }
    body: dict[str, Any] = {key: value for key, value in options.items() if value is not None}
    body |= {"to": to, "rate": _rate(rate)}
    path = name_path("/streams", name)
    if dry_run:
        call.show(call.api.post(f"{path}:plan-replay", body), _print_plan)
        return
    follow(
        call,
        call.api.post(f"{path}:replay", body, prefer="respond-async"),
        "replay",
        detach,
        _replayed,
    )


def _rate(text: str) -> int | None:
    if text == "max":
        return None
    count, _, unit = text.partition("/")
    per_s = _UNITS_S.get(unit or "s")
    if not count.isdigit() or per_s is None or int(count) < per_s:
        wanted = f"--rate: expected records per time, at least 1/s, got {text!r}. Try: 1000/s, 6000/m, max"
        raise CommandError(wanted, exit_codes.USAGE)
    return int(count) // per_s


def _print_plan(plan: dict[str, Any]) -> None:
    about = "about " if plan["is_estimate"] else ""
    places = (
        ", ".join(
            f"[{sample['start']}, {sample['end']}) of shard {sample['shard']}"
            for sample in plan["ranges"]
        )
        or "nothing"
    )
    print_line(f"would replay {places} to {plan['to']}")
    of = "" if plan["matched"] == plan["records"] else f" of {plan['records']:,}"
    print_line(
        f"{about}{plan['matched']:,}{of}, {counted(plan['bytes'], 'byte')}, {plan['oldest']} to {plan['newest']}"
    )
    if plan["seconds"] is not None:
        print_line(f"{about}{plan['seconds']:,} s at {plan['rate']:,} a second")
    samples = [
        {**sample, "row": sample["row"] and jsontext.encode(sample["row"]).decode()}
        for sample in plan["samples"]
    ]
    print_columns(samples, ("shard", "offset", "at", "topic", "row"))
    for note in plan["notes"]:
        print_line(note)


def _replayed(report: dict[str, Any]) -> str:
    others = ("skipped", "expired", "errors", "refused", "failed")
    counts = "".join(f", {report[name]:,} {name}" for name in others if report[name])
    problems = [
        f"\nshard {problem['shard']}, offset {problem['offset']}: {problem['reason']}"
        for problem in report["problems"]
    ]
    records = counted(report["records"], "record")
    return (
        f"replayed {records} to {report['to']}: {report['sent']:,} sent{counts}{''.join(problems)}"
    )


def _shown(record: dict[str, Any]) -> dict[str, Any]:
    payload = record["payload"]
    data = (
        payload["data"]
        if isinstance(payload["data"], str)
        else jsontext.encode(payload["data"]).decode()
    )
    return {**record, "payload": data + "…" * payload["truncated"]}
