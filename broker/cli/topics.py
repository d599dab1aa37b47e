"""Commands for published topics and messages: ``sluice topics tree``, ``top`` and ``latest``, and ``sluice tail``."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from broker.cli import exit_codes
from broker.cli.command import Call, api_command, command
from broker.cli.errors import CommandError
from broker.cli.files import duration_s
from broker.cli.output import print_columns, print_line, print_table, say, shown
from broker.core.kinds import counted

# Rates are those between two looks.
_LOOK_AGAIN_S: Final = 1.1
_LONGEST_S: Final = 86_400
_ROW: Final = (
    "topics",
    "messages",
    "message_rate",
    "byte_rate",
    "mean_bytes",
    "last_at",
    "retained",
)
_STYLES: Final = {"dropped": "red", "transformed": "cyan", "passed": ""}
# Maximum characters of a payload on the terminal.
_SIGNS: Final = 500


def tree(
    call: Call,
    under: Annotated[
        str | None, typer.Argument(help="Only below this level, as site/hall; else all.")
    ] = None,
    depth: Annotated[int, typer.Option("--depth", min=1, max=8, help="Number of levels.")] = 2,
    sort: Annotated[
        str,
        typer.Option(
            "--sort",
            help="rate, messages, bytes, topics, last_at, name; with - in front, descending.",
        ),
    ] = "-rate",
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=1000, help="Maximum number of rows of a level.")
    ] = 20,
) -> None:
    """Show the tree of topics with rates, sizes and times, from the broker's counters.

    Counting starts with the first look and ends five minutes after the last one.
    """
    tree = _with_levels(
        call, _looked(call, under=under, sort=sort, limit=limit), depth, sort, limit
    )
    call.show(tree, lambda _: print_table(["topic", *_ROW], list(_rows(tree, ""))))
    if tree["is_sampled"]:
        say("counts are estimates: the publish rate is so high that only a sample is counted")


def _looked(call: Call, **query: Any) -> Any:
    """A page of topics. Where counting has just begun, a second later, so that there are rates."""
    wanted = {name: value for name, value in query.items() if value is not None}
    page = call.api.get("/topics", **wanted)
    if page["under"]["message_rate"] is None:
        time.sleep(_LOOK_AGAIN_S)
        page = call.api.get("/topics", **wanted)
    return page


def _with_levels(call: Call, page: Any, depth: int, sort: str, limit: int) -> Any:
    """The page with the pages of the levels below its rows."""
    for row in page["items"]:
        if depth > 1 and row["levels"]:
            below = call.api.get("/topics", under=row["topic"], sort=sort, limit=limit)
            row["below"] = _with_levels(call, below, depth - 1, sort, limit)
    return page


def _rows(page: Mapping[str, Any], indent: str) -> Iterator[list[Any]]:
    for row in page["items"]:
        yield [f"{indent}{row['name']}", *(row[member] for member in _ROW)]
        if "below" in row:
            yield from _rows(row["below"], f"{indent}  ")
    more = page["total"] - len(page["items"])
    rest = page["rest"]
    if more > 0:
        yield [f"{indent}and {more:,} more", *([""] * len(_ROW))]
    if rest["topics"]:
        yield [
            f"{indent}and {counted(rest['topics'], 'topic')} without a row",
            "",
            rest["messages"],
            "",
            "",
            "",
            rest["last_at"],
            "",
        ]


def top(
    call: Call,
    pattern: Annotated[
        str, typer.Argument(help="Topics that match this pattern with * ? [abc].")
    ] = "*",
    count: Annotated[int, typer.Option("-n", "--count", min=1, max=1000, help="How many.")] = 10,
    by: Annotated[str, typer.Option("--by", help="rate, messages, bytes, or last_at.")] = "rate",
) -> None:
    """Show the busiest topics."""
    page = _looked(call, search=pattern, sort=f"-{by}", limit=count)
    call.show(page, lambda answer: print_columns(answer["items"], ("topic", *_ROW[1:])))


def print_latest(answer: Mapping[str, Any]) -> None:
    """Print messages, each with its publisher and payload."""
    rows = [
        {
            **item,
            **item["message"],
            "payload": item["message"]["payload"]["data"],
        }
        for item in answer["items"]
    ]
    print_columns(rows, ("at", "source", "topic", "clientid", "qos", "payload"))


def add_to(group: typer.Typer) -> None:
    """Add looking at the tree, and the busiest topics."""
    for function in (tree, top):
        command(group, function.__name__)(function)


def add_captures(group: typer.Typer) -> None:
    """Add downloading a capture."""

    @command(group, "download")
    def download(
        call: Call,
        name: Annotated[str, typer.Argument(help="Its name, as 'sluice captures ls' shows it.")],
    ) -> None:
        """Print the records of a capture, one JSON object a line."""
        for line in call.api.lines(f"/captures/{quote(name, safe='')}/file"):
            print(json.dumps(line, ensure_ascii=False))


@api_command()
def tail(
    call: Call,
    topic_filter: Annotated[str, typer.Argument(help="A topic filter.")],
    count: Annotated[
        int | None, typer.Option("-n", "--count", min=1, help="End after this number of messages.")
    ] = None,
    lasting: Annotated[str, typer.Option("--for", help="End after this long, as 10s, 5m.")] = "1d",
    rate: Annotated[
        int, typer.Option("--rate", min=1, max=200, help="Maximum messages per second.")
    ] = 200,
    client: Annotated[
        str | None,
        typer.Option("--client", help="Client that publishes, or a pattern with * ? [abc]."),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option("--address", help="Address of the publisher, or a network as 10.0.0.0/8."),
    ] = None,
) -> None:
    """Follow the messages of a filter as they pass: each published message, and its outcome.

    It is a sample within 200 messages and 1 MiB a second, and delivery is left alone. With --json one object a line,
    with all properties.
    """
    query: dict[str, Any] = {"filter": topic_filter, "messages_per_s": rate}
    query |= {
        name: value
        for name, value in (("clientid", client), ("address", address))
        if value is not None
    }
    if count is not None:
        query["count"] = count
    skipped = 0
    for line in call.api.lines(
        "/topics/tail", **query, seconds=min(duration_s(lasting, "--for"), _LONGEST_S)
    ):
        if call.is_json:
            print(json.dumps(line, ensure_ascii=False), flush=True)
        elif line["kind"] == "message":
            print_line(_text(line), style=_STYLES[line["outcome"]])
        elif line["skipped"] > skipped:
            say(f"{line['skipped'] - skipped:,} more messages were not shown")
            skipped = line["skipped"]


def _text(message: Mapping[str, Any]) -> str:
    flags = f"qos {message['qos']}{' retained' if message['retain'] else ''}"
    text = f"{message['at']} {message['topic']} {flags} from {message['clientid']}: {_payload(message)}"
    if message["outcome"] == "dropped":
        return f"{text} → dropped: {message['refusal']['text']}"
    became = message["became"]
    return text if became is None else f"{text} → {became['topic']} {_payload(became)}"


def _payload(published: Mapping[str, Any]) -> str:
    payload = published["payload"]
    text = shown(payload["data"])
    if payload["truncated"] or len(text) > _SIGNS:
        return f"{text[:_SIGNS]}… ({counted(payload['size_bytes'], 'byte')})"
    return text


def latest_event(call: Call, topic_filter: str) -> dict[str, Any]:
    """The columns of the latest message of a filter, as the event of a rule."""
    items = call.api.get("/topics/latest", filter=topic_filter, wait=5)["items"]
    if not items:
        raise CommandError(
            f"--latest: no message on {topic_filter!r} is stored, and none came within 5 s",
            exit_codes.NOT_FOUND,
            hint="sluice publish TOPIC -m PAYLOAD, or --event FILE",
        )
    if (refusal := items[0]["refusal"]) is not None:
        raise CommandError(
            f"--latest: {refusal['stage']} {refusal['name']!r} dropped the latest message on {topic_filter!r}: "
            f"{refusal['text']}",
            exit_codes.CHECK_SAID_NO,
            hint="sluice pipeline preview",
        )
    event: dict[str, Any] = items[0]["event"]
    return event


def print_receivers(answer: Mapping[str, Any]) -> None:
    """Print who gets a topic: the publisher's right, the stages, the subscriptions, the share groups."""
    if answer["becomes"]:
        say(f"becomes {answer['becomes']} by a rewrite")
    if publisher := answer["publisher"]:
        access = publisher["access"]
        by = f"by {access['source']} {access['rule'] or ''}".rstrip()
        say(
            f"{publisher['clientid']} {'may' if access['allowed'] else 'may not'} publish there, {by}"
        )
    if answer["stages"]:
        print_columns(answer["stages"], ("stage", "name", "enabled", "does"))
    if answer["subscriptions"]:
        print_columns(answer["subscriptions"], ("clientid", "filter", "qos", "gets", "why"))
    for group in answer["groups"]:
        say(f"{group['group']}: {group['choice']}")
        if group["members"]:
            print_columns(group["members"], ("clientid", "can_get", "why", "inflight"))
    if not answer["subscriptions"] and not answer["groups"]:
        say("No client gets it.")
    elif answer["subscriptions_total"] > len(answer["subscriptions"]):
        say(
            f"{len(answer['subscriptions'])} of {answer['subscriptions_total']} subscriptions; --limit shows more"
        )
