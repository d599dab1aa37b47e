"""Commands for clients and what the broker keeps for them: ``sluice clients``, ``sessions``, ``subscriptions``,
``groups``, ``retained``, ``delayed`` and ``publish``."""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from math import isinf
from pathlib import Path
from typing import Annotated, Any, TextIO
from urllib.parse import quote

import typer

from broker.cli import exit_codes
from broker.cli.client import name_path
from broker.cli.command import LONG_S, Call, LimitOption, api_command, command
from broker.cli.errors import CommandError
from broker.cli.files import duration_s, pairs, read_payload
from broker.cli.objects import add_remove, add_show
from broker.cli.output import print_columns, print_members, say
from broker.core.kinds import counted

clients = typer.Typer(help="Clients: list, show, disconnect, subscribe for them.", no_args_is_help=True)
sessions = typer.Typer(help="Sessions: list, show, purge, those with the longest queues.", no_args_is_help=True)
subscriptions = typer.Typer(help="Subscriptions: by client, by filter, by a topic.", no_args_is_help=True)
retained = typer.Typer(help="Retained messages: list, show, delete, clear, count.", no_args_is_help=True)
delayed = typer.Typer(
    help="Messages published to $delayed/SECONDS/TOPIC that wait until they are due.", no_args_is_help=True
)

ClientArgument = Annotated[str, typer.Argument(help="The client identifier.")]
PatternOption = Annotated[str | None, typer.Option("--id", help="An identifier, or a pattern with * ? [abc].")]
UserOption = Annotated[str | None, typer.Option("--user", help="A user name, or a pattern.")]
ConnectedOption = Annotated[bool | None, typer.Option("--connected/--away", help="Only those connected, or away.")]
DurableOption = Annotated[
    bool | None, typer.Option("--durable/--clean", help="Only sessions that are on disk, or in memory.")
]
SortOption = Annotated[
    str,
    typer.Option(
        "--sort",
        help="client_id, connected_at, queued, queue_bytes, inflight, subscriptions; with - in front, descending.",
    ),
]
ZoneOption = Annotated[str | None, typer.Option("--zone", help="Of clients in this zone, or a pattern.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only show what would be deleted.")]
GroupArgument = Annotated[str, typer.Argument(help="What its members subscribe to, as '$share/NAME/FILTER'.")]
FilterArgument = Annotated[str, typer.Argument(help="A topic filter.")]
FiltersArgument = Annotated[list[str], typer.Argument(help="Topic filters.")]
TopicArgument = Annotated[str, typer.Argument(help="The topic.")]
DelayedId = Annotated[str, typer.Argument(help="Its id, as 'sluice delayed ls' shows it.")]

_CLIENT_COLUMNS = (
    "client_id", "username", "connected", "address", "listener", "protocol", "keep_alive_s", "connected_at",
    "subscriptions_count", "inflight", "queued", "queue_bytes", "dropped",
)  # fmt: skip
_SESSION_COLUMNS = (
    "client_id", "username", "connected", "zone", "durable", "disconnected_at", "expires_at", "subscriptions_count",
    "inflight", "queued", "queue_bytes", "position",
)  # fmt: skip
_TOP_COLUMNS = (
    "client_id", "username", "connected", "zone", "durable", "queued", "queued_bytes", "queued_in_memory",
    "queued_in_log",
)  # fmt: skip
# What begins a formula in a spreadsheet, or is skipped before one.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
_SUBSCRIPTION_COLUMNS = (
    "client_id", "filter", "qos", "durable", "connected", "share_group", "no_local", "retain_as_published",
    "identifier",
)  # fmt: skip
_MEMBER_COLUMNS = ("clientid", "connected", "durable", "qos", "inflight", "queued")
_RETAINED_COLUMNS = ("topic", "qos", "payload_bytes", "client_id", "username", "received_at", "expires_at", "payload")
_OF_CLIENT = ("filter", "qos", "no_local", "retain_as_published", "identifier")
_CLIENTS = "sluice clients ls"
_SESSIONS = "sluice sessions ls"
_GROUPS = "sluice groups ls"
_RETAINED = "sluice retained ls"
_DELAYED = "sluice delayed ls"


@command(clients, "ls")
def list_clients(
    call: Call,
    client_id: PatternOption = None,
    username: UserOption = None,
    address: Annotated[str | None, typer.Option("--address", help="Without port, or a pattern.")] = None,
    zone: ZoneOption = None,
    attribute: Annotated[str | None, typer.Option("--attribute", help="NAME=VALUE of a client attribute.")] = None,
    connected: ConnectedOption = None,
    sort: SortOption = "client_id",
    limit: LimitOption = 100,
) -> None:
    """List clients that are connected, or have a session that waits for them."""
    answer = call.page(
        "/clients", limit, client_id=client_id, username=username, address=address, zone=zone, attribute=attribute,
        connected=connected, sort=sort,
    )  # fmt: skip
    call.show_rows(answer, _CLIENT_COLUMNS)


def _print_with_subscriptions(answer: Mapping[str, Any]) -> None:
    """What a client or session is, with its subscriptions as a table."""
    apart = ("subscriptions", "inflight_messages")
    print_members({key: value for key, value in answer.items() if key not in apart})
    if answer["subscriptions"]:
        print_columns(answer["subscriptions"], _OF_CLIENT)


add_show(
    clients,
    "/clients",
    ClientArgument,
    help="Show everything that is known of a client.",
    known=_CLIENTS,
    text=_print_with_subscriptions,
)


@command(clients, "kick", confirms=True)
def kick(call: Call, client_ids: Annotated[list[str], typer.Argument(help="The client identifiers.")]) -> None:
    """Disconnect clients (0x98). Their sessions stay until they expire."""
    body = {"client_ids": client_ids}
    call.confirm(f"Disconnect {counted(len(client_ids), 'client')}?", [("POST", "/clients:kick", body)])
    answer = call.api.post("/clients:kick", body)
    call.show(answer, f"disconnected: {answer['kicked']}")
    if answer["not_connected"]:
        raise CommandError(f"not connected: {', '.join(answer['not_connected'])}", exit_codes.NOT_FOUND)


@command(clients, "subscribe", known=_CLIENTS)
def subscribe(
    call: Call,
    client_id: ClientArgument,
    filters: FiltersArgument,
    qos: Annotated[int, typer.Option("--qos", min=0, max=2, help="The QoS to request.")] = 0,
) -> None:
    """Subscribe a connected client, as if it had sent SUBSCRIBE."""
    items = [{"filter": text, "qos": qos} for text in filters]
    answer = call.api.post("/clients:subscribe", {"client_id": client_id, "subscriptions": items})
    call.show_rows({"items": answer["subscriptions"], "next": None}, _OF_CLIENT)
    refused = [f"{result['filter']}: {result['detail']}" for result in answer["results"] if "detail" in result]
    if refused:
        raise CommandError("; ".join(refused), exit_codes.FAILED)


@command(clients, "unsubscribe", known=_CLIENTS)
def unsubscribe(call: Call, client_id: ClientArgument, filters: FiltersArgument) -> None:
    """End subscriptions of a connected client. Filters are as it subscribed to them."""
    answer = call.api.post("/clients:unsubscribe", {"client_id": client_id, "filters": filters})
    call.show_rows({"items": answer["subscriptions"], "next": None}, _OF_CLIENT)


@command(sessions, "ls")
def list_sessions(
    call: Call,
    client_id: PatternOption = None,
    username: UserOption = None,
    connected: ConnectedOption = None,
    durable: DurableOption = None,
    zone: ZoneOption = None,
    min_queued: Annotated[int | None, typer.Option("--min-queued", help="Minimum number of queued messages.")] = None,
    sort: SortOption = "client_id",
    limit: LimitOption = 100,
) -> None:
    """List sessions, of clients that are connected or away."""
    answer = call.page(
        "/sessions", limit, client_id=client_id, username=username, connected=connected, durable=durable, zone=zone,
        min_queued=min_queued, sort=sort,
    )  # fmt: skip
    call.show_rows(answer, _SESSION_COLUMNS)


add_show(
    sessions,
    "/sessions",
    ClientArgument,
    help="Show a session, its subscriptions, and how much waits for it in memory and in the log.",
    known=_SESSIONS,
    text=_print_with_subscriptions,
    timeout_s=LONG_S,
)


@command(sessions, "purge", confirms=True, timeout_s=LONG_S)
def purge(
    call: Call,
    client_id: PatternOption = None,
    username: UserOption = None,
    zone: ZoneOption = None,
    older_than: Annotated[
        str | None, typer.Option("--older-than", help="Away for at least this long, as 1d, 12h, 30m.")
    ] = None,
    connected: Annotated[
        bool,
        typer.Option(
            "--connected", help="Sessions of connected clients, which are disconnected (0x98); else only away ones."
        ),
    ] = False,
    dry_run: DryRunOption = False,
) -> None:
    """Delete sessions, with what waits for them."""
    body = _purge_body({"client_id": client_id, "username": username, "zone": zone}, older_than)
    body["connected"] = connected
    found = call.api.post("/sessions:purge", {**body, "dry_run": True})
    if not dry_run and found["sessions"]:
        call.confirm(f"Delete {counted(found['sessions'], 'session')}?", [("POST", "/sessions:purge", body)])
        found = call.api.post("/sessions:purge", body)
    call.show(found)


def _purge_body(texts: Mapping[str, str | None], older_than: str | None) -> dict[str, Any]:
    body: dict[str, Any] = {name: text for name, text in texts.items() if text is not None}
    if older_than is not None:
        seconds = duration_s(older_than, "--older-than")
        if isinf(seconds):
            raise CommandError("--older-than: expected a finite duration", exit_codes.USAGE)
        body["older_than_s"] = int(seconds)
    if not body:
        raise CommandError(
            "say which sessions: by --id, --user, --zone or --older-than",
            exit_codes.USAGE,
            hint="sluice sessions purge --older-than 30d --dry-run",
        )
    return body


@command(sessions, "top", timeout_s=LONG_S)
def top(
    call: Call,
    count: Annotated[int, typer.Option("-n", "--count", min=1, max=1000, help="How many.")] = 10,
    by: Annotated[str, typer.Option("--by", help="messages, or bytes.")] = "messages",
    csv_file: Annotated[
        Path | None, typer.Option("--csv", help="Write them to a file as CSV; - is standard output.")
    ] = None,
) -> None:
    """Show the sessions with the longest queues, in memory and in the log."""
    answer = call.api.get("/sessions:top", count=count, by=by)
    if csv_file is None:
        call.show_rows(answer, _TOP_COLUMNS)
        return
    is_standard = str(csv_file) == "-"
    with nullcontext(sys.stdout) if is_standard else csv_file.open("w", newline="") as file:
        _write_csv(file, answer["items"])
    if not is_standard:
        say(f"{counted(len(answer['items']), 'row')} in {csv_file}")


def _write_csv(file: TextIO, items: Sequence[Mapping[str, Any]]) -> None:
    writer = csv.DictWriter(file, _TOP_COLUMNS, extrasaction="ignore")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in item.items()} for item in items)


def _cell(value: Any) -> Any:
    """A value that no spreadsheet takes for a formula: names come from clients."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


@command(sessions, "rm", known=_SESSIONS, confirms=True)
def remove_session(call: Call, client_id: ClientArgument) -> None:
    """Delete one session; its client is disconnected (0x98)."""
    place = name_path("/sessions", client_id)
    call.confirm(f"Delete the session of {client_id}?", [("DELETE", place, None)])
    call.api.delete(place)


@command(subscriptions, "ls")
def list_subscriptions(
    call: Call,
    client_id: Annotated[str | None, typer.Option("--client", help="Of this client.")] = None,
    topic_filter: Annotated[str | None, typer.Option("--filter", help="Of this filter, as it was subscribed.")] = None,
    durable: DurableOption = None,
    limit: LimitOption = 100,
) -> None:
    """List subscriptions in the order of clients and filters."""
    answer = call.page("/subscriptions", limit, client_id=client_id, filter=topic_filter, durable=durable)
    call.show_rows(answer, _SUBSCRIPTION_COLUMNS)


@command(subscriptions, "match")
def match(call: Call, topic: Annotated[str, typer.Argument(help="A topic.")], limit: LimitOption = 100) -> None:
    """List the subscriptions that match a topic: who gets what is published there."""
    call.show_rows(call.page("/subscriptions", limit, match=topic), _SUBSCRIPTION_COLUMNS)


def _print_group(answer: Mapping[str, Any]) -> None:
    print_members({key: value for key, value in answer.items() if key not in ("member_list", "places")})
    print_columns(answer["member_list"], _MEMBER_COLUMNS)


def add_groups(group: typer.Typer) -> None:
    """Add what share groups have beside the verbs of every kind."""
    add_show(
        group, "/groups", GroupArgument, help="Show a share group and its members.", known=_GROUPS, text=_print_group
    )

    @command(group, "create", writes=True)
    def create_group(
        call: Call,
        name: GroupArgument,
        strategy: Annotated[str | None, typer.Option("--strategy", help="Which member gets a message.")] = None,
        start: Annotated[
            str | None, typer.Option("--start", help="Begin in a stream: earliest, latest, a time, -1h, offset:42.")
        ] = None,
        stream: Annotated[
            str | None, typer.Option("--stream", help="The stream, where several capture the topics.")
        ] = None,
    ) -> None:
        """Create a share group that outlives its members: messages of QoS 1 and 2 wait for it until it is deleted."""
        spec = {"group": name, "strategy": strategy, "start": start, "stream": stream}
        answer = call.api.post("/groups", {key: value for key, value in spec.items() if value is not None})
        call.show(answer, lambda _: say(f"share group {name} created"))

    @command(group, "rm", known=_GROUPS)
    def remove_group(call: Call, name: GroupArgument) -> None:
        """Discard what waits for a share group, and delete it when it has no members."""
        call.api.delete(name_path("/groups", name))
        say(f"messages that waited for share group {name} are discarded")


@command(retained, "ls")
def list_retained(call: Call, topic_filter: FilterArgument = "#", limit: LimitOption = 100) -> None:
    """List retained messages whose topics match a filter; long payloads are cut."""
    answer = call.page("/retained", limit, filter=topic_filter)
    if not call.is_json:
        for item in answer["items"]:
            item["payload"] = item["payload"]["data"]
    call.show_rows(answer, _RETAINED_COLUMNS)


@command(retained, "show", known=_RETAINED)
def show_retained(call: Call, topic: TopicArgument) -> None:
    """Show the retained message of a topic, with its whole payload."""
    answer = call.api.get("/retained:message", topic=topic)
    call.show(answer, lambda _: print_members({**answer, "payload": answer["payload"]["data"]}))


@command(retained, "count")
def count_retained(call: Call) -> None:
    """Show how many retained messages there are, and their bytes."""
    call.show(call.api.get("/retained:count"))


@command(retained, "rm", known=_RETAINED, confirms=True)
def remove_retained(call: Call, topic: TopicArgument) -> None:
    """Delete the retained message of a topic."""
    place = f"/retained:message?topic={quote(topic, safe='')}"
    call.confirm(f"Delete the retained message of {topic}?", [("DELETE", place, None)])
    call.api.delete(place)


@command(retained, "clear", confirms=True, timeout_s=LONG_S)
def clear_retained(
    call: Call,
    topic_filter: FilterArgument,
    expired: Annotated[bool, typer.Option("--expired", help="Only what has expired.")] = False,
    dry_run: DryRunOption = False,
) -> None:
    """Delete all retained messages whose topics match a filter."""
    body = {"filter": topic_filter, "only_expired": expired}
    found = call.api.post("/retained:clear", {**body, "dry_run": True})
    if not dry_run and found["messages"]:
        call.confirm(f"Delete {counted(found['messages'], 'retained message')}?", [("POST", "/retained:clear", body)])
        found = call.api.post("/retained:clear", body)
    call.show(found)


@command(delayed, "ls")
def list_delayed(call: Call, limit: LimitOption = 100) -> None:
    """List delayed messages in the order in which they are due."""
    call.show_rows(call.page("/delayed", limit), ("id", "topic", "clientid", "qos", "payload_bytes", "due_at"))


add_show(delayed, "/delayed", DelayedId, help="Show a delayed message with its payload.", known=_DELAYED)
add_remove(
    delayed,
    "/delayed",
    DelayedId,
    what="delayed message",
    help="Delete a delayed message: it is not published.",
    known=_DELAYED,
    cascades=False,
)


@api_command()
def publish(
    call: Call,
    topic: TopicArgument,
    payload: Annotated[str | None, typer.Argument(help="The payload as text.")] = None,
    message: Annotated[str | None, typer.Option("-m", "--message", help="The payload as text.")] = None,
    file: Annotated[
        str | None, typer.Option("-f", "--file", help="A file with the payload; - is standard input.")
    ] = None,
    qos: Annotated[int, typer.Option("-q", "--qos", min=0, max=2, help="The QoS.")] = 0,
    retain: Annotated[bool, typer.Option("-r", "--retain", help="Keep it as the topic's retained message.")] = False,
    properties: Annotated[
        list[str] | None, typer.Option("-D", "--property", help="NAME=VALUE of a user property; repeatable.")
    ] = None,
    content_type: Annotated[str | None, typer.Option("--content-type", help="What the payload is.")] = None,
    expiry: Annotated[int | None, typer.Option("--expiry", min=0, help="Seconds until it expires.")] = None,
) -> None:
    """Publish a message through all stages, and show its outcome. An empty payload with --retain deletes."""
    sources = [source for source in (payload, message, file) if source is not None]
    if len(sources) > 1:
        raise CommandError("give the payload once: as PAYLOAD, by --message or by --file", exit_codes.USAGE)
    body: dict[str, Any] = {
        "topic": topic,
        "payload": "".join(sources) if file is None else read_payload(file, exit_codes.FAILED),
        "qos": qos,
        "retain": retain,
        "user_properties": [list(pair) for pair in pairs(properties, "--property")],
    }
    if content_type is not None:
        body["content_type"] = content_type
    if expiry is not None:
        body["message_expiry_interval"] = expiry
    call.show(call.api.post("/messages:publish", body))
