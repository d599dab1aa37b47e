"""``sluice rewrites try``: what becomes of a topic."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from broker.cli.options import DATA_DIR, DataDirOption, JsonOption, OutputOption, UrlOption, api_client


def add_to(group: typer.Typer) -> None:
    """Add what rewrites have beyond the verbs of every kind."""
    group.command("try")(try_rewrites)


def try_rewrites(
    topic: Annotated[str, typer.Argument(help="The topic, or with --subscribe the filter, that a client names.")],
    subscribe: Annotated[bool, typer.Option("--subscribe", help="As a filter of SUBSCRIBE.")] = False,
    clientid: Annotated[str, typer.Option("--clientid", help="The client's identifier.")] = "client",
    username: Annotated[str | None, typer.Option("--username", help="Its user name.")] = None,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Show what a topic is rewritten to, and by which rewrite. Nothing is published."""
    from broker.cli.output import print_json, print_line

    body: dict[str, Any] = {"topic": topic, "action": "subscribe" if subscribe else "publish", "clientid": clientid}
    with api_client(url, data_dir) as client:
        found = client.post("/rewrites:test", body | ({"username": username} if username else {}))
    if as_json or output == "json":
        print_json(found)
    elif found["rewrite"] is None:
        print_line(f"{topic} stays as it is: no rewrite matches")
    else:
        print_line(f"{found['topic']}  (by {found['rewrite']})")
