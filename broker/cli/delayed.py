"""``sluice delayed``: messages that are published later."""

from __future__ import annotations

from typing import Annotated

import typer

from broker.cli.options import DATA_DIR, DataDirOption, JsonOption, OutputOption, UrlOption, api_client
from broker.cli.single import remove_one, show_one

IdArgument = Annotated[str, typer.Argument(help="Its id, as 'sluice delayed ls' shows it.")]

group = typer.Typer(
    help="Messages published to $delayed/SECONDS/TOPIC that wait until they are due.", no_args_is_help=True
)
_COLUMNS = ("id", "topic", "clientid", "qos", "payload_bytes", "due_at")
_LIST = "sluice delayed ls"


@group.command("ls")
def list_delayed(
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="At most so many.")] = 100,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
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
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Show one with its payload."""
    show_one("/delayed", id, hint=_LIST, url=url, data_dir=data_dir, is_json=as_json or output == "json")


@group.command("rm")
def remove_delayed(
    id: IdArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    as_json: JsonOption = False,
) -> None:
    """Delete one: it is not published."""
    question, command = f"Delete delayed message {id}?", f"sluice delayed rm {id} --yes"
    remove_one(
        "/delayed", id, what="delayed message", question=question, command=command, hint=_LIST,
        yes=yes, url=url, data_dir=data_dir, as_json=as_json,
    )  # fmt: skip
