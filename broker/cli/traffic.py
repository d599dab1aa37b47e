"""Commands for clients, sessions, subscriptions and share groups that are more than one request, and ``publish``."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from broker.cli import exit_codes
from broker.cli.client import name_path
from broker.cli.command import LONG_S, Call, LimitOption, api_command, command
from broker.cli.errors import CommandError
from broker.cli.files import pairs, read_payload
from broker.cli.objects import add_show
from broker.cli.output import print_columns, print_members, say
from broker.core.kinds import counted

ClientArgument = Annotated[str, typer.Argument(help="The client identifier.")]
GroupArgument = Annotated[
    str, typer.Argument(help="What its members subscribe to, as '$share/NAME/FILTER'.")
]
FiltersArgument = Annotated[list[str], typer.Argument(help="Topic filters.")]
TopicArgument = Annotated[str, typer.Argument(help="The topic.")]
_TOP_COLUMNS = (
    "clientid", "username", "connected", "zone", "durable", "queued", "queued_bytes", "queued_in_memory",
    "queued_in_log",
)  # fmt: skip
_AUDIT_COLUMNS = (
    "at", "actor", "origin", "address", "operation", "kind", "name", "outcome", "status", "summary", "request",
    "request_id", "id", "changes", "omitted",
)  # fmt: skip
# Characters that begin a formula in a spreadsheet, or is skipped before one.
# full-width ones, too
_FORMULA = (
    "=",
    "+",
    "-",
    "@",
    "\uff1d",
    "\uff0b",
    "\uff0d",
    "\uff20",
    "\t",
    "\r",
    "\n",
)
_SUBSCRIPTION_COLUMNS = (
    "clientid", "filter", "qos", "durable", "connected", "share_group", "no_local", "retain_as_published",
    "identifier",
)  # fmt: skip
_MEMBER_COLUMNS = ("clientid", "connected", "durable", "qos", "inflight", "queued")
_OF_CLIENT = ("filter", "qos", "no_local", "retain_as_published", "identifier")
_CLIENTS = "sluice clients ls"
_GROUPS = "sluice groups ls"


def print_with_subscriptions(answer: Mapping[str, Any]) -> None:
    """Print a client or session, with its subscriptions as a table."""
    apart = ("subscriptions", "inflight_messages")
    print_members({key: value for key, value in answer.items() if key not in apart})
    if answer["subscriptions"]:
        print_columns(answer["subscriptions"], _OF_CLIENT)


def check_kicked(answer: Mapping[str, Any]) -> None:
    """Fail where a client to disconnect was not connected."""
    if answer["not_connected"]:
        raise CommandError(
            f"not connected: {', '.join(answer['not_connected'])}", exit_codes.NOT_FOUND
        )


def check_cleared(answer: Mapping[str, Any]) -> None:
    """Fail where a client to clear has no session."""
    if answer["unknown"]:
        raise CommandError(f"no session: {', '.join(answer['unknown'])}", exit_codes.NOT_FOUND)


def add_clients(clients: typer.Typer) -> None:
    """Add subscribing a client."""

    @command(clients, "subscribe", known=_CLIENTS)
    def subscribe(
        call: Call,
        client_id: ClientArgument,
        filters: FiltersArgument,
        qos: Annotated[int, typer.Option("--qos", min=0, max=2, help="The QoS to request.")] = 0,
    ) -> None:
        """Subscribe a connected client, as if it had sent SUBSCRIBE."""
        items = [{"filter": text, "qos": qos} for text in filters]
        answer = call.api.post(
            "/clients:subscribe", {"clientid": client_id, "subscriptions": items}
        )
        call.show_rows({"items": answer["subscriptions"], "next": None}, _OF_CLIENT)
        refused = [
            f"{result['filter']}: {result['detail']}"
            for result in answer["results"]
            if "detail" in result
        ]
        if refused:
            raise CommandError("; ".join(refused), exit_codes.FAILED)


def add_sessions(sessions: typer.Typer) -> None:
    """Add the sessions with the longest queues."""

    @command(sessions, "top", timeout_s=LONG_S)
    def top(
        call: Call,
        count: Annotated[
            int, typer.Option("-n", "--count", min=1, max=1000, help="How many.")
        ] = 10,
        by: Annotated[str, typer.Option("--by", help="messages, or bytes.")] = "messages",
        csv_file: Annotated[
            Path | None,
            typer.Option("--csv", help="Write them to a file as CSV; - is standard output."),
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


def _write_csv(
    file: TextIO, items: Iterable[Mapping[str, Any]], columns: Sequence[str] = _TOP_COLUMNS
) -> int:
    """Write rows, each in its place; their number."""
    writer = csv.DictWriter(file, columns, extrasaction="ignore")
    writer.writeheader()
    number = 0
    for item in items:
        writer.writerow({name: _cell(value) for name, value in item.items()})
        number += 1
    return number


def _cell(value: Any) -> Any:
    """A value that no spreadsheet takes for a formula: names come from clients."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def add_audit_log(audit_log: typer.Typer) -> None:
    """Add the export of the audit log."""

    @command(audit_log, "export", timeout_s=LONG_S)
    def export(
        call: Call,
        file: Annotated[
            Path, typer.Argument(metavar="FILE", help="The file; - is standard output.")
        ] = Path("-"),
        form: Annotated[
            str, typer.Option("--format", metavar="FORMAT", help="jsonl or csv.")
        ] = "jsonl",
        since: Annotated[
            str | None, typer.Option("--since", help="Earliest time, as 2026-01-31T12:00:00Z.")
        ] = None,
        until: Annotated[
            str | None, typer.Option("--until", help="Time after the last one.")
        ] = None,
        search: Annotated[
            str | None, typer.Option("--search", help="Words that must all be in an entry.")
        ] = None,
    ) -> None:
        """Export whole entries of the audit log, newest first."""
        if form not in ("jsonl", "csv"):
            raise CommandError(f"--format: expected jsonl or csv, got {form!r}", exit_codes.USAGE)
        filters = {"since": since, "until": until, "search": search}
        lines = call.api.lines(
            "/audit-log:export", **{name: value for name, value in filters.items() if value}
        )
        is_standard = str(file) == "-"
        with nullcontext(sys.stdout) if is_standard else file.open("w", newline="") as output:
            if form == "csv":
                rows = ({**line, "changes": json.dumps(line["changes"])} for line in lines)
                number = _write_csv(output, rows, _AUDIT_COLUMNS)
            else:
                number = sum(1 for line in lines if output.write(f"{json.dumps(line)}\n"))
        if not is_standard:
            say(f"{'1 entry' if number == 1 else f'{number:,} entries'} in {file}")


def add_subscriptions(subscriptions: typer.Typer) -> None:
    """Add the subscriptions that a topic matches."""

    @command(subscriptions, "match")
    def match(
        call: Call, topic: Annotated[str, typer.Argument(help="A topic.")], limit: LimitOption = 100
    ) -> None:
        """List the subscriptions that match a topic: who gets what is published there."""
        call.show_rows(call.page("/subscriptions", limit, match=topic), _SUBSCRIPTION_COLUMNS)


def _print_group(answer: Mapping[str, Any]) -> None:
    print_members(
        {key: value for key, value in answer.items() if key not in ("member_list", "places")}
    )
    print_columns(answer["member_list"], _MEMBER_COLUMNS)


def add_groups(group: typer.Typer) -> None:
    """Add the commands of share groups in addition to the verbs of every kind."""
    add_show(
        group,
        "/groups",
        GroupArgument,
        help="Show a share group and its members.",
        known=_GROUPS,
        text=_print_group,
    )

    @command(group, "create", writes=True)
    def create_group(
        call: Call,
        name: GroupArgument,
        strategy: Annotated[
            str | None, typer.Option("--strategy", help="Which member gets a message.")
        ] = None,
        start: Annotated[
            str | None,
            typer.Option(
                "--start", help="Begin in a stream: earliest, latest, a time, -1h, offset:42."
            ),
        ] = None,
        stream: Annotated[
            str | None,
            typer.Option("--stream", help="The stream, where several capture the topics."),
        ] = None,
    ) -> None:
        """Create a share group that outlives its members: messages of QoS 1 and 2 wait for it until it is deleted."""
        spec = {"group": name, "strategy": strategy, "start": start, "stream": stream}
        answer = call.api.post(
            "/groups", {key: value for key, value in spec.items() if value is not None}
        )
        call.show(answer, lambda _: say(f"share group {name} created"))

    @command(group, "rm", known=_GROUPS)
    def remove_group(call: Call, name: GroupArgument) -> None:
        """Discard what waits for a share group, and delete it when it has no members."""
        call.api.delete(name_path("/groups", name))
        say(f"messages that waited for share group {name} are discarded")


@api_command()
def publish(
    call: Call,
    topic: TopicArgument,
    payload: Annotated[str | None, typer.Argument(help="The payload as text.")] = None,
    message: Annotated[
        str | None, typer.Option("-m", "--message", help="The payload as text.")
    ] = None,
    file: Annotated[
        str | None,
        typer.Option("-f", "--file", help="A file with the payload; - is standard input."),
    ] = None,
    qos: Annotated[int, typer.Option("-q", "--qos", min=0, max=2, help="The QoS.")] = 0,
    retain: Annotated[
        bool, typer.Option("-r", "--retain", help="Keep it as the topic's retained message.")
    ] = False,
    properties: Annotated[
        list[str] | None,
        typer.Option("-D", "--property", help="NAME=VALUE of a user property; repeatable."),
    ] = None,
    content_type: Annotated[
        str | None, typer.Option("--content-type", help="What the payload is.")
    ] = None,
    expiry: Annotated[
        int | None, typer.Option("--expiry", min=0, help="Seconds until it expires.")
    ] = None,
) -> None:
    """Publish a message through all stages, and show its outcome. An empty payload with --retain deletes."""
    sources = [source for source in (payload, message, file) if source is not None]
    if len(sources) > 1:
        raise CommandError(
            "give the payload once: as PAYLOAD, by --message or by --file", exit_codes.USAGE
        )
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
