"""``sluice streams records``: what streams hold."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from broker.cli.client import name_path
from broker.cli.command import Call, LimitOption, command
from broker.core import jsontext


def add_to(group: typer.Typer) -> None:
    """Give the group of streams this command."""
    command(group, "records", known="sluice streams ls")(records)


def records(
    call: Call,
    name: Annotated[str, typer.Argument(help="The name of a stream.")],
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="OFFSET|TIME", help="Where to start; the first record if absent."),
    ] = None,
    topics: Annotated[
        str | None, typer.Option("--filter", metavar="FILTER", help="Topic filter: only records with such topics.")
    ] = None,
    shard: Annotated[int, typer.Option("--shard", min=0, help="Shard, counted from 0.")] = 0,
    decode: Annotated[
        bool, typer.Option("--decode", help="Decode payloads by the schemas that are bound to their topics.")
    ] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Show payloads as base64, byte for byte.")] = False,
    limit: LimitOption = 20,
) -> None:
    """Show the records of a stream, from an offset or a time on."""
    wanted: dict[str, Any] = {"from": start, "filter": topics, "shard": shard, "decode": decode, "raw": raw}
    found = call.page(f"{name_path('/streams', name)}/records", limit, **wanted)
    shown = {**found, "items": [_shown(item) for item in found["items"]]} if not call.is_json else found
    call.show_rows(shown, ("offset", "at", "topic", "payload", "client_id", "rule"))


def _shown(record: dict[str, Any]) -> dict[str, Any]:
    payload = record["payload"]
    data = payload["data"] if isinstance(payload["data"], str) else jsontext.encode(payload["data"]).decode()
    return {**record, "payload": data + "…" * payload["truncated"]}
