"""``sluice live``: the channels of the live channel, as they come."""

from __future__ import annotations

import json
from typing import Annotated, Any
from urllib.parse import parse_qs

import typer

from broker.cli import exit_codes
from broker.cli.client import BASE
from broker.cli.command import Call, api_command
from broker.cli.errors import CommandError

_NOT_ALLOWED = (4401, 4403)


@api_command()
def live(
    call: Call,
    channels: Annotated[
        list[str],
        typer.Argument(help="Channels with parameters, as status or 'object?kind=rules&name=hot'."),
    ],
    count: Annotated[
        int | None, typer.Option("--count", min=1, help="End after this number of frames.")
    ] = None,
) -> None:
    """Follow channels of the broker: a snapshot of each, then what changes. A line of JSON each."""
    from websockets.exceptions import ConnectionClosed, WebSocketException
    from websockets.sync.client import connect

    target = call.target
    headers = {"Authorization": f"Bearer {target.token}"} if target.token else {}
    address = f"{target.url.rstrip('/').replace('http', 'ws', 1)}{BASE}/live"
    try:
        with connect(
            address,
            additional_headers=headers,
            proxy=None,
            max_size=None,
            open_timeout=call.timeout_s,
        ) as link:
            for channel in channels:
                link.send(json.dumps(_subscription(channel)))
            for number, frame in enumerate(link, 1):
                print(frame, flush=True)
                if json.loads(frame)["kind"] == "error":
                    raise CommandError(json.loads(frame)["data"]["detail"])
                if number == count:
                    return
    except ConnectionClosed as closed:
        code, reason = (
            (closed.rcvd.code, closed.rcvd.reason)
            if closed.rcvd
            else (1006, "the connection was lost")
        )
        raise _failed(target.url, f"closed the connection: {reason or code}", code) from None
    except BrokenPipeError:  # of the reader of the lines
        raise
    except (OSError, WebSocketException) as error:
        raise _failed(target.url, f"cannot be reached ({str(error).lower()})") from None
    raise _failed(target.url, "closed the connection")


def _subscription(channel: str) -> dict[str, Any]:
    name, _, query = channel.partition("?")
    parameters = {
        key: values[0] if len(values) == 1 else values for key, values in parse_qs(query).items()
    }
    return {"kind": "subscribe", "id": channel, "channel": name, "parameters": parameters}


def _failed(url: str, what: str, code: int = 0) -> CommandError:
    exit_code = exit_codes.NOT_ALLOWED if code in _NOT_ALLOWED else exit_codes.NOT_REACHABLE
    return CommandError(f"the broker at {url} {what}", exit_code)
