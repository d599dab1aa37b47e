"""``sluice quarantine``: messages that gates stopped and kept."""

from __future__ import annotations

from typing import Annotated

import typer

from broker.cli import exit_codes
from broker.cli.errors import hinting
from broker.cli.options import DATA_DIR, DataDirOption, JsonOption, OutputOption, UrlOption, api_client

NameArgument = Annotated[str, typer.Argument(help="The stream in which they are kept.")]

group = typer.Typer(help="Messages that gates stopped and kept: list and reprocess them.", no_args_is_help=True)
_WAITING = ("offset", "topic", "clientid", "stage", "name", "path", "reason", "payload")


@group.command("ls")
def list_quarantines(
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """List all quarantines with how many messages wait."""
    from broker.cli.output import print_json, print_table

    with api_client(url, data_dir) as client:
        answer = client.get("/quarantine")
    if as_json or output == "json":
        print_json(answer)
    else:
        print_table(("stream", "waiting"), [(item["stream"], item["waiting"]) for item in answer["items"]])


@group.command("show")
def show_quarantine(
    stream: NameArgument,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="At most so many messages.")] = 20,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Show what waits in a quarantine, oldest first, and why it was stopped."""
    from broker.cli.client import name_path
    from broker.cli.output import print_json, print_table, say

    with api_client(url, data_dir) as client, hinting(exit_codes.NOT_FOUND, "sluice quarantine ls"):
        answer = client.get(name_path("/quarantine", stream), limit=limit)
    if as_json or output == "json":
        print_json(answer)
        return
    print_table(_WAITING, [[item.get(column) for column in _WAITING] for item in answer["items"]])
    if answer["waiting"] > len(answer["items"]):
        say(f"{answer['waiting'] - len(answer['items']):,} more wait")


@group.command("take-again")
def take_again(
    stream: NameArgument,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="At most so many messages.")] = 10_000,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Publish what waits, through all stages. What fails again goes to the end with its new reason."""
    from broker.cli.client import name_path
    from broker.cli.output import print_json, print_members, print_table

    with api_client(url, data_dir, 600) as client, hinting(exit_codes.NOT_FOUND, "sluice quarantine ls"):
        answer = client.post(f"{name_path('/quarantine', stream)}:take-again", {"limit": limit})
    if as_json or output == "json":
        print_json(answer)
        return
    print_members({key: answer[key] for key in ("read", "published", "failed", "skipped", "waiting")})
    if failures := answer["failures"]:
        print_table(("offset", "topic", "reason"), [(one["offset"], one["topic"], one["reason"]) for one in failures])
