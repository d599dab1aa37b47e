"""``sluice alarms``: what is wrong with the broker now, and what was lately."""

from __future__ import annotations

from typing import Annotated

import typer

from broker.cli.options import DATA_DIR, DataDirOption, JsonOption, OutputOption, UrlOption, api_client

_ACTIVE = ("activated_at", "name", "lasted_s", "message")
_OVER = ("activated_at", "deactivated_at", "name", "lasted_s", "message")


def alarms(
    history: Annotated[bool, typer.Option("--history", help="Those that are over, instead of active ones.")] = False,
    forget: Annotated[bool, typer.Option("--forget", help="Forget those that are over.")] = False,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Show the alarms that are active: what is wrong with the broker, and since when."""
    from broker.cli.output import print_json, print_table, say

    with api_client(url, data_dir) as client:
        if forget:
            client.delete("/alarms/history")
            say("alarms that are over are forgotten")
            return
        answer = client.get("/alarms/history" if history else "/alarms")
    if as_json or output == "json":
        print_json(answer)
        return
    if not answer["items"]:
        say("no alarm is over" if history else "no alarm is active")
        return
    columns = _OVER if history else _ACTIVE
    print_table(columns, [[item.get(column) for column in columns] for item in answer["items"]])
