"""``sluice bans``: clients that are refused."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from broker.cli import exit_codes
from broker.cli.errors import CommandError, hinting
from broker.cli.options import DATA_DIR, DataDirOption, JsonOption, OutputOption, UrlOption, api_client
from broker.core.times import rfc3339_of

KindArgument = Annotated[
    str,
    typer.Argument(metavar="BY", help="clientid, username, peerhost, clientid_re, username_re or peerhost_net."),
]
WhoArgument = Annotated[str, typer.Argument(help="The identifier, name, address, pattern or network.")]

group = typer.Typer(help="Clients that are refused, by name, address or pattern.", no_args_is_help=True)
_COLUMNS = ("as", "who", "until", "by", "reason")
_SPAN = re.compile(r"(\d{1,9})(s|m|h|d)")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


@group.command("ls")
def list_bans(
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """List the bans that hold, newest first."""
    from broker.cli.output import print_json, print_table

    with api_client(url, data_dir) as client:
        items = list(client.items("/bans"))
    if as_json or output == "json":
        print_json({"items": items, "next": None, "total": len(items), "total_is_estimate": False})
        return
    print_table(_COLUMNS, [[item.get(column) for column in _COLUMNS] for item in items])


@group.command("add")
def add_ban(
    kind: KindArgument,
    who: WhoArgument,
    last: Annotated[str | None, typer.Option("--for", help="How long, as 10m, 2h, 7d; else for ever.")] = None,
    reason: Annotated[str, typer.Option("--reason", help="Why.")] = "",
    by: Annotated[str, typer.Option("--by", help="Who bans.")] = "",
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    as_json: JsonOption = False,
) -> None:
    """Refuse clients, and close those that are connected."""
    from broker.cli.output import print_json, print_line

    body = {"as": kind, "who": who, "reason": reason, "by": by, "until": _until(last)}
    with api_client(url, data_dir) as client:
        ban = client.post("/bans", body)
    print_json(ban) if as_json else print_line(f"{kind} {who} is banned until {ban['until']}")


@group.command("rm")
def remove_ban(
    kind: KindArgument,
    who: WhoArgument,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    as_json: JsonOption = False,
) -> None:
    """Lift a ban."""
    from broker.cli.client import name_path
    from broker.cli.output import print_json, print_line

    with api_client(url, data_dir) as client, hinting(exit_codes.NOT_FOUND, "sluice bans ls"):
        client.delete(name_path(f"/bans/{kind}", who))
    print_json({"removed": [f"{kind}/{who}"]}) if as_json else print_line(f"{kind} {who} is no longer banned")


def _until(last: str | None) -> str:
    if last is None:
        return "infinity"
    match = _SPAN.fullmatch(last)
    if match is None:
        raise CommandError(f"{last!r} is no time span", exit_codes.USAGE, hint="--for 10m, 2h or 7d")
    try:
        end = datetime.now(UTC) + timedelta(**{_UNITS[match[2]]: int(match[1])})
    except OverflowError:
        return "infinity"
    return rfc3339_of(end)
