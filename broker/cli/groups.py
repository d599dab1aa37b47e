"""``sluice groups``: share groups, who is in them and what waits for them."""

from __future__ import annotations

from typing import Annotated

import typer

from broker.cli import exit_codes
from broker.cli.errors import hinting
from broker.cli.options import DATA_DIR, DataDirOption, JsonOption, OutputOption, UrlOption, api_client

GroupArgument = Annotated[str, typer.Argument(help="What its members subscribe to, as '$share/NAME/FILTER'.")]

group = typer.Typer(help="Share groups: members, what waits, what is under way.", no_args_is_help=True)
_COLUMNS = ("group", "strategy", "durable", "members", "connected", "waiting", "inflight", "redelivered")
_MEMBERS = ("clientid", "connected", "durable", "qos", "inflight", "queued")
_SHOWN_APART = ("member_list", "places")


@group.command("ls")
def list_groups(
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """List all share groups."""
    from broker.cli.output import print_json, print_table

    with api_client(url, data_dir) as client:
        answer = client.get("/groups")
    if as_json or output == "json":
        print_json(answer)
    else:
        print_table(_COLUMNS, [[item.get(column) for column in _COLUMNS] for item in answer["items"]])


@group.command("show")
def show_group(
    name: GroupArgument,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Show a share group and its members."""
    from broker.cli.client import name_path
    from broker.cli.output import print_json, print_members, print_table

    with api_client(url, data_dir) as client, hinting(exit_codes.NOT_FOUND, "sluice groups ls"):
        answer = client.get(name_path("/groups", name))
    if as_json or output == "json":
        print_json(answer)
        return
    print_members({key: value for key, value in answer.items() if key not in _SHOWN_APART})
    print_table(_MEMBERS, [[member.get(column) for column in _MEMBERS] for member in answer["member_list"]])


@group.command("create")
def create_group(
    name: GroupArgument,
    strategy: Annotated[str | None, typer.Option("--strategy", help="Which member gets a message.")] = None,
    start: Annotated[
        str | None, typer.Option("--start", help="Begin in a stream: earliest, latest, a time, -1h, offset:42.")
    ] = None,
    stream: Annotated[
        str | None, typer.Option("--stream", help="The stream, where several capture the topics.")
    ] = None,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Make a share group that outlives its members: messages of QoS 1 and 2 wait for it until it is deleted."""
    from broker.cli.output import print_json, say

    asked = {"group": name, "strategy": strategy, "start": start, "stream": stream}
    with api_client(url, data_dir) as client:
        answer = client.post("/groups", {key: value for key, value in asked.items() if value is not None})
    if as_json or output == "json":
        print_json(answer)
    else:
        say(f"share group {name} is there")


@group.command("rm")
def delete_group(
    name: GroupArgument,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
) -> None:
    """Discard what waits for a share group; without members it is gone."""
    from broker.cli.client import name_path
    from broker.cli.output import say

    with api_client(url, data_dir) as client, hinting(exit_codes.NOT_FOUND, "sluice groups ls"):
        client.delete(name_path("/groups", name))
    say(f"what waited for share group {name} is discarded")
