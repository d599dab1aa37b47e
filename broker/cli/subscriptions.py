"""``sluice subscriptions``: who gets what."""

from __future__ import annotations

from typing import Annotated

import typer

from broker.cli.options import DATA_DIR, DataDirOption, JsonOption, OutputOption, UrlOption, api_client
from broker.cli.pages import LimitOption, flag, print_rows, read_rows

group = typer.Typer(help="Subscriptions: by client, by filter, by a topic.", no_args_is_help=True)
_COLUMNS = (
    "client_id", "filter", "qos", "durable", "connected", "share_group", "no_local", "retain_as_published",
    "identifier",
)  # fmt: skip


@group.command("ls")
def list_subscriptions(
    client_id: Annotated[str | None, typer.Option("--client", help="Of this client.")] = None,
    topic_filter: Annotated[str | None, typer.Option("--filter", help="Of this filter, as it was subscribed.")] = None,
    durable: Annotated[
        bool | None, typer.Option("--durable/--clean", help="Only of sessions that are on disk, or in memory.")
    ] = None,
    limit: LimitOption = 100,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """List subscriptions in the order of clients and filters."""
    with api_client(url, data_dir) as client:
        answer = read_rows(
            client, "/subscriptions", limit, client_id=client_id, filter=topic_filter, durable=flag(durable)
        )
    print_rows(answer, _COLUMNS, as_json=as_json or output == "json")


@group.command("match")
def match(
    topic: Annotated[str, typer.Argument(help="A topic.")],
    limit: LimitOption = 100,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """List the subscriptions that match a topic: who gets what is published there."""
    with api_client(url, data_dir) as client:
        answer = read_rows(client, "/subscriptions", limit, match=topic)
    print_rows(answer, _COLUMNS, as_json=as_json or output == "json")
