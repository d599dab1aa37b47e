"""``sluice retained``: the last retained message of each topic."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from broker.cli import exit_codes
from broker.cli.asking import confirm
from broker.cli.errors import hinting
from broker.cli.options import DATA_DIR, DataDirOption, JsonOption, OutputOption, UrlOption, api_client
from broker.cli.pages import LimitOption, print_rows, read_rows

FilterArgument = Annotated[str, typer.Argument(help="A topic filter.")]
TopicArgument = Annotated[str, typer.Argument(help="The topic.")]

group = typer.Typer(help="Retained messages: list, show, delete, clear, count.", no_args_is_help=True)
_COLUMNS = ("topic", "qos", "payload_bytes", "client_id", "username", "received_at", "expires_at", "payload")
_LONG_S = 600.0


@group.command("ls")
def list_retained(
    topic_filter: FilterArgument = "#",
    limit: LimitOption = 100,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """List retained messages whose topics match a filter; long payloads are cut."""
    with api_client(url, data_dir) as client:
        answer = read_rows(client, "/retained", limit, filter=topic_filter)
    if not (as_json or output == "json"):
        for item in answer["items"]:
            item["payload"] = item["payload"]["data"]
    print_rows(answer, _COLUMNS, as_json=as_json or output == "json")


@group.command("show")
def show_retained(
    topic: TopicArgument,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Show the retained message of a topic, with its whole payload."""
    from broker.cli.output import print_json, print_members

    with api_client(url, data_dir) as client, hinting(exit_codes.NOT_FOUND, "sluice retained ls"):
        answer = client.get("/retained:message", topic=topic)
    if as_json or output == "json":
        print_json(answer)
    else:
        print_members({**answer, "payload": answer["payload"]["data"]})


@group.command("count")
def count_retained(
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """How many retained messages there are, and their bytes."""
    from broker.cli.output import print_json, print_members

    with api_client(url, data_dir) as client:
        answer = client.get("/retained:count")
    if as_json or output == "json":
        print_json(answer)
    else:
        print_members(answer)


@group.command("rm")
def remove(
    topic: TopicArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Delete the retained message of a topic."""
    confirm(f"Delete the retained message of {topic}?", yes=yes, command=f"sluice retained rm {topic} --yes")
    with api_client(url, data_dir) as client, hinting(exit_codes.NOT_FOUND, "sluice retained ls"):
        client.delete(f"/retained:message?topic={quote(topic, safe='')}")


@group.command("clear")
def clear(
    topic_filter: FilterArgument,
    expired: Annotated[bool, typer.Option("--expired", help="Only what has expired.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be deleted.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Delete all retained messages whose topics match a filter."""
    from broker.cli.output import print_json, print_members

    body = {"filter": topic_filter, "only_expired": expired}
    with api_client(url, data_dir, _LONG_S) as client:
        told = client.post("/retained:clear", {**body, "dry_run": True})
        if not dry_run and told["messages"]:
            question = f"Delete {told['messages']} retained messages ({told['payload_bytes']} bytes)?"
            confirm(question, yes=yes, command=f"sluice retained clear {topic_filter!r} --yes")
            told = client.post("/retained:clear", body)
    if as_json or output == "json":
        print_json(told)
    else:
        print_members(told)
