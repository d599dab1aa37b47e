"""``sluice actions dead-letters``: rows that an action gave up, seen, sent once more and forgotten."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from broker.cli import exit_codes
from broker.cli.asking import confirm
from broker.cli.errors import hinting
from broker.cli.objects import SLOW_S, Name
from broker.cli.options import DATA_DIR, DataDirOption, JsonOption, OutputOption, UrlOption, api_client

_ACTIONS: Final = "sluice actions ls"
_LIMIT: Final = "At most so many."

group = typer.Typer(help="Rows that an action gave up and kept.", no_args_is_help=True)


@group.command("ls")
def show(
    name: Name,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help=_LIMIT)] = 20,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Show the oldest dead letters, and why each was given up."""
    from broker.cli.client import name_path
    from broker.cli.output import print_json, print_table, say

    with api_client(url, data_dir) as client, hinting(exit_codes.NOT_FOUND, _ACTIONS):
        found = client.get(f"{name_path('/actions', name)}/dead-letters", limit=limit)
    if as_json or output == "json":
        print_json(found)
        return
    columns = ("offset", "cause", "reason", "attempts", "topic", "clientid", "row")
    print_table(columns, [[item[column] for column in columns] for item in found["items"]])
    if found["waiting"] > len(found["items"]):
        say(f"{found['waiting'] - len(found['items']):,} more wait")


@group.command("redrive")
def redrive(
    name: Name,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help=_LIMIT)] = 10_000,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    as_json: JsonOption = False,
) -> None:
    """Hand dead letters to the action once more, oldest first. One that fails again becomes a new one."""
    from broker.cli.client import name_path
    from broker.cli.output import print_json, print_line, say

    with api_client(url, data_dir, SLOW_S) as client, hinting(exit_codes.NOT_FOUND, _ACTIONS):
        found = client.post(f"{name_path('/actions', name)}/dead-letters:redrive", {"limit": limit})
    if as_json:
        print_json(found)
    else:
        print_line(f"action {name}: {found['sent']:,} sent, {found['waiting']:,} wait")
        if found["problem"]:
            say(found["problem"])


@group.command("purge")
def purge(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    as_json: JsonOption = False,
) -> None:
    """Forget all dead letters of an action."""
    from broker.cli.client import name_path
    from broker.cli.output import print_json, print_line

    command = f"sluice actions dead-letters purge {name} --yes"
    confirm(f"Forget all dead letters of action {name!r}?", yes=yes, command=command)
    with api_client(url, data_dir) as client, hinting(exit_codes.NOT_FOUND, _ACTIONS):
        found = client.post(f"{name_path('/actions', name)}/dead-letters:purge")
    print_json(found) if as_json else print_line(f"action {name}: {found['purged']:,} dead letters forgotten")
