"""``sluice publish``: a message on the way that a client's message takes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from broker.cli import exit_codes
from broker.cli.options import DATA_DIR, DataDirOption, JsonOption, OutputOption, UrlOption, api_client


def publish(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    message: Annotated[str | None, typer.Option("-m", "--message", help="The payload as text.")] = None,
    file: Annotated[
        Path | None, typer.Option("-f", "--file", help="A file with the payload; - is standard input.")
    ] = None,
    qos: Annotated[int, typer.Option("-q", "--qos", min=0, max=2, help="The QoS.")] = 0,
    retain: Annotated[bool, typer.Option("-r", "--retain", help="Keep it as the topic's retained message.")] = False,
    properties: Annotated[
        list[str] | None, typer.Option("-D", "--property", help="NAME=VALUE of a user property; repeatable.")
    ] = None,
    content_type: Annotated[str | None, typer.Option("--content-type", help="What the payload is.")] = None,
    expiry: Annotated[int | None, typer.Option("--expiry", min=0, help="Seconds until it expires.")] = None,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Publish a message through all stages, and say what became of it. An empty payload with --retain deletes."""
    from broker.cli.output import print_json, print_members

    body: dict[str, Any] = {"topic": topic, "payload": _payload(message, file), "qos": qos, "retain": retain}
    body["user_properties"] = [_pair(text) for text in properties or []]
    if content_type is not None:
        body["content_type"] = content_type
    if expiry is not None:
        body["message_expiry_interval"] = expiry
    with api_client(url, data_dir) as client:
        answer = client.post("/messages:publish", body)
    if as_json or output == "json":
        print_json(answer)
    else:
        print_members(answer)


def _payload(message: str | None, file: Path | None) -> Any:
    from base64 import b64encode

    from broker.cli.errors import CommandError

    if message is not None and file is not None:
        raise CommandError("give the payload by --message or by --file, not by both", exit_codes.USAGE)
    if file is None:
        return message or ""
    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror}", exit_codes.FAILED) from None
    return {"encoding": "base64", "data": b64encode(data).decode()}


def _pair(text: str) -> list[str]:
    from broker.cli.errors import CommandError

    name, equals, value = text.partition("=")
    if not equals:
        raise CommandError(f"--property: {text!r} is not NAME=VALUE", exit_codes.USAGE)
    return [name, value]
