"""``sluice sessions``: what is kept for clients, and clearing it away."""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from broker.cli import exit_codes
from broker.cli.asking import confirm
from broker.cli.clients import ClientArgument, ConnectedOption, PatternOption, SortOption, UserOption, ZoneOption
from broker.cli.errors import hinting
from broker.cli.options import DATA_DIR, DataDirOption, JsonOption, OutputOption, UrlOption, api_client
from broker.cli.pages import LimitOption, flag, print_rows, read_rows

group = typer.Typer(help="Sessions: list, show, purge, those with the longest queues.", no_args_is_help=True)
_COLUMNS = (
    "client_id", "username", "connected", "zone", "durable", "disconnected_at", "expires_at", "subscriptions_count",
    "inflight", "queued", "queue_bytes", "position",
)  # fmt: skip
_TOP = (
    "client_id", "username", "connected", "zone", "durable", "queued", "queued_bytes", "queued_in_memory",
    "queued_in_log",
)  # fmt: skip
_SUBSCRIPTION = ("filter", "qos", "no_local", "retain_as_published", "identifier")
_LONG_S = 600.0
"""Counting what waits in the log reads it."""


@group.command("ls")
def list_sessions(
    client_id: PatternOption = None,
    username: UserOption = None,
    connected: ConnectedOption = None,
    durable: Annotated[
        bool | None, typer.Option("--durable/--clean", help="Only those that are on disk, or in memory.")
    ] = None,
    zone: ZoneOption = None,
    min_queued: Annotated[int | None, typer.Option("--min-queued", help="At least so many messages wait.")] = None,
    sort: SortOption = "client_id",
    limit: LimitOption = 100,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """List sessions, of clients that are connected or away."""
    with api_client(url, data_dir) as client:
        answer = read_rows(
            client, "/sessions", limit, client_id=client_id, username=username, connected=flag(connected),
            durable=flag(durable), zone=zone, min_queued=None if min_queued is None else str(min_queued), sort=sort,
        )  # fmt: skip
    print_rows(answer, _COLUMNS, as_json=as_json or output == "json")


@group.command("show")
def show_session(
    client_id: ClientArgument,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Show a session, its subscriptions, and how much waits for it in memory and in the log."""
    from broker.cli.client import name_path
    from broker.cli.output import print_json, print_members, print_table

    with api_client(url, data_dir, _LONG_S) as client, hinting(exit_codes.NOT_FOUND, "sluice sessions ls"):
        answer = client.get(name_path("/sessions", client_id))
    if as_json or output == "json":
        print_json(answer)
        return
    print_members({key: value for key, value in answer.items() if key != "subscriptions"})
    if answer["subscriptions"]:
        print_table(_SUBSCRIPTION, [[item.get(column) for column in _SUBSCRIPTION] for item in answer["subscriptions"]])


@group.command("purge")
def purge(
    client_id: PatternOption = None,
    username: UserOption = None,
    zone: ZoneOption = None,
    older_than: Annotated[
        str | None, typer.Option("--older-than", help="Away for at least so long, as 1d, 12h, 30m.")
    ] = None,
    connected: Annotated[
        bool, typer.Option("--connected", help="Those of connected clients, who are told (0x98); else only away ones.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be purged.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Delete sessions, with what waits for them."""
    from broker.cli.output import print_json, print_members

    texts = {"client_id": client_id, "username": username, "zone": zone}
    body = _purge_body(texts, older_than, connected=connected)
    with api_client(url, data_dir, _LONG_S) as client:
        told = client.post("/sessions:purge", {**body, "dry_run": True})
        if not dry_run and told["sessions"]:
            question = f"Delete {told['sessions']} sessions, with {told['queued']} messages that wait for them?"
            confirm(question, yes=yes, command="sluice sessions purge … --yes")
            told = client.post("/sessions:purge", body)
    if as_json or output == "json":
        print_json(told)
    else:
        print_members(told)


def _purge_body(texts: Mapping[str, str | None], older_than: str | None, *, connected: bool) -> dict[str, Any]:
    from broker.cli.errors import CommandError
    from broker.config.units import parse_duration_s

    body: dict[str, Any] = {name: text for name, text in texts.items() if text is not None}
    if older_than is not None:
        try:
            body["older_than_s"] = int(float(str(parse_duration_s(older_than))))
        except (ValueError, OverflowError) as error:
            raise CommandError(f"--older-than: {error}", exit_codes.USAGE) from None
    if not body:
        raise CommandError(
            "say which sessions: by --id, --user, --zone or --older-than",
            exit_codes.USAGE,
            hint="sluice sessions purge --older-than 30d --dry-run",
        )
    return {**body, "connected": connected}


@group.command("top")
def top(
    count: Annotated[int, typer.Option("-n", "--count", min=1, max=1000, help="How many.")] = 10,
    by: Annotated[str, typer.Option("--by", help="messages, or bytes.")] = "messages",
    csv_file: Annotated[
        Path | None, typer.Option("--csv", help="Write them to a file as CSV; - is standard output.")
    ] = None,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Show the sessions with the longest queues, in memory and in the log."""
    from broker.cli.output import say

    with api_client(url, data_dir, _LONG_S) as client:
        answer = client.get("/sessions:top", count=count, by=by)
    if csv_file is None:
        print_rows(answer, _TOP, as_json=as_json or output == "json")
        return
    is_standard = str(csv_file) == "-"
    with nullcontext(sys.stdout) if is_standard else csv_file.open("w", newline="") as file:
        _write_csv(file, answer["items"])
    if not is_standard:
        say(f"{len(answer['items'])} rows in {csv_file}")


def _write_csv(file: TextIO, items: list[dict[str, Any]]) -> None:
    writer = csv.DictWriter(file, _TOP, extrasaction="ignore")
    writer.writeheader()
    writer.writerows(items)


@group.command("rm")
def remove(
    client_id: ClientArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Delete one session; its client is disconnected (0x98)."""
    from broker.cli.client import name_path

    confirm(f"Delete the session of {client_id}?", yes=yes, command=f"sluice sessions rm {client_id} --yes")
    with api_client(url, data_dir) as client, hinting(exit_codes.NOT_FOUND, "sluice sessions ls"):
        client.delete(name_path("/sessions", client_id))
