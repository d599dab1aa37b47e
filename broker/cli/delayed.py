"""``sluice delayed``: messages that are published later."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from broker.cli import exit_codes
from broker.cli.objects import confirm, hinting
from broker.cli.options import DataDirOption, JsonOption, OutputOption, UrlOption, api_client

IdArgument = Annotated[str, typer.Argument(help="Its id, as 'sluice delayed ls' shows it.")]

group = typer.Typer(
    help="Messages published to $delayed/SECONDS/TOPIC that wait until they are due.", no_args_is_help=True
)
_COLUMNS = ("id", "topic", "clientid", "qos", "payload_bytes", "due_at")


@group.command("ls")
def list_delayed(
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="At most so many.")] = 100,
    url: UrlOption = None,
    data_dir: DataDirOption = Path("data"),
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """List them in the order in which they are due."""
    from broker.cli.output import print_json, print_table, say

    with api_client(url, data_dir) as client:
        found = client.get("/delayed", limit=limit)
    if as_json or output == "json":
        print_json(found)
        return
    print_table(_COLUMNS, [[item[column] for column in _COLUMNS] for item in found["items"]])
    if found["total"] > len(found["items"]):
        say(f"{found['total'] - len(found['items']):,} more wait")


@group.command("show")
def show_delayed(
    id: IdArgument,
    url: UrlOption = None,
    data_dir: DataDirOption = Path("data"),
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Show one with its payload."""
    from broker.cli.client import name_path
    from broker.cli.output import print_json, print_members

    with api_client(url, data_dir) as client, hinting(exit_codes.NOT_FOUND, "sluice delayed ls"):
        shown = client.get(name_path("/delayed", id))
    print_json(shown) if as_json or output == "json" else print_members(shown)


@group.command("rm")
def remove_delayed(
    id: IdArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    url: UrlOption = None,
    data_dir: DataDirOption = Path("data"),
    as_json: JsonOption = False,
) -> None:
    """Delete one: it is not published."""
    from broker.cli.client import name_path
    from broker.cli.output import print_json, print_line

    confirm(f"Delete delayed message {id}?", yes=yes, command=f"sluice delayed rm {id} --yes")
    with api_client(url, data_dir) as client, hinting(exit_codes.NOT_FOUND, "sluice delayed ls"):
        client.delete(name_path("/delayed", id))
    print_json({"removed": [id]}) if as_json else print_line(f"delayed message {id} removed")
