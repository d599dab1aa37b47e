"""``sluice clients``: who is connected, and what is done about it."""

from __future__ import annotations

from typing import Annotated

import typer

from broker.cli import exit_codes
from broker.cli.asking import confirm
from broker.cli.errors import CommandError, hinting
from broker.cli.options import DATA_DIR, DataDirOption, JsonOption, OutputOption, UrlOption, api_client
from broker.cli.pages import LimitOption, flag, print_rows, read_rows

ClientArgument = Annotated[str, typer.Argument(help="The client identifier.")]
PatternOption = Annotated[str | None, typer.Option("--id", help="An identifier, or a pattern with * ? [abc].")]
UserOption = Annotated[str | None, typer.Option("--user", help="A user name, or a pattern.")]
ConnectedOption = Annotated[bool | None, typer.Option("--connected/--away", help="Only those connected, or away.")]
SortOption = Annotated[
    str,
    typer.Option(
        "--sort",
        help="client_id, connected_at, queued, queue_bytes, inflight, subscriptions; with - in front, falling.",
    ),
]
ZoneOption = Annotated[str | None, typer.Option("--zone", help="Of clients in this zone, or a pattern.")]

group = typer.Typer(help="Clients: list, show, disconnect, subscribe for them.", no_args_is_help=True)
_COLUMNS = (
    "client_id", "username", "connected", "address", "listener", "protocol", "keep_alive_s", "connected_at",
    "subscriptions_count", "inflight", "queued", "queue_bytes", "dropped",
)  # fmt: skip
_SUBSCRIPTION = ("filter", "qos", "no_local", "retain_as_published", "identifier")
_APART = ("subscriptions", "inflight_messages")


@group.command("ls")
def list_clients(
    client_id: PatternOption = None,
    username: UserOption = None,
    address: Annotated[str | None, typer.Option("--address", help="Without port, or a pattern.")] = None,
    zone: ZoneOption = None,
    attribute: Annotated[str | None, typer.Option("--attribute", help="NAME=VALUE of a client attribute.")] = None,
    connected: ConnectedOption = None,
    sort: SortOption = "client_id",
    limit: LimitOption = 100,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """List clients that are connected, or have a session that waits for them."""
    with api_client(url, data_dir) as client:
        answer = read_rows(
            client, "/clients", limit, client_id=client_id, username=username, address=address, zone=zone,
            attribute=attribute, connected=flag(connected), sort=sort,
        )  # fmt: skip
    print_rows(answer, _COLUMNS, as_json=as_json or output == "json")


@group.command("show")
def show_client(
    client_id: ClientArgument,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Show everything that is known of a client."""
    from broker.cli.client import name_path
    from broker.cli.output import print_json, print_members, print_table

    with api_client(url, data_dir) as client, hinting(exit_codes.NOT_FOUND, "sluice clients ls"):
        answer = client.get(name_path("/clients", client_id))
    if as_json or output == "json":
        print_json(answer)
        return
    print_members({key: value for key, value in answer.items() if key not in _APART})
    if answer["subscriptions"]:
        print_table(_SUBSCRIPTION, [[item.get(column) for column in _SUBSCRIPTION] for item in answer["subscriptions"]])


@group.command("kick")
def kick(
    client_ids: Annotated[list[str], typer.Argument(help="The client identifiers.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Disconnect clients (0x98). Their sessions stay as their expiry says."""
    from broker.cli.errors import CommandError
    from broker.cli.output import print_json, print_line

    command = f"sluice clients kick {' '.join(client_ids)} --yes"
    confirm(f"Disconnect {len(client_ids)} clients?", yes=yes, command=command)
    with api_client(url, data_dir) as client:
        answer = client.post("/clients:kick", {"client_ids": client_ids})
    if as_json or output == "json":
        print_json(answer)
    else:
        print_line(f"disconnected: {answer['kicked']}")
    if answer["not_connected"]:
        raise CommandError(f"not connected: {', '.join(answer['not_connected'])}", exit_codes.NOT_FOUND)


@group.command("subscribe")
def subscribe(
    client_id: ClientArgument,
    filters: Annotated[list[str], typer.Argument(help="Topic filters.")],
    qos: Annotated[int, typer.Option("--qos", min=0, max=2, help="The QoS to ask for.")] = 0,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Subscribe a connected client, as if it had asked for that itself."""
    items = [{"filter": text, "qos": qos} for text in filters]
    with api_client(url, data_dir) as client, hinting(exit_codes.NOT_FOUND, "sluice clients ls"):
        answer = client.post("/clients:subscribe", {"client_id": client_id, "subscriptions": items})
    print_rows({"items": answer["subscriptions"], "next": None}, _SUBSCRIPTION, as_json=as_json or output == "json")
    refused = [f"{result['filter']}: {result['detail']}" for result in answer["results"] if "detail" in result]
    if refused:
        raise CommandError("; ".join(refused), exit_codes.FAILED)


@group.command("unsubscribe")
def unsubscribe(
    client_id: ClientArgument,
    filters: Annotated[list[str], typer.Argument(help="Topic filters, as they were subscribed.")],
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """End subscriptions of a connected client."""
    with api_client(url, data_dir) as client, hinting(exit_codes.NOT_FOUND, "sluice clients ls"):
        answer = client.post("/clients:unsubscribe", {"client_id": client_id, "filters": filters})
    print_rows({"items": answer["subscriptions"], "next": None}, _SUBSCRIPTION, as_json=as_json or output == "json")
