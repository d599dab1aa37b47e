"""``sluice rules functions``: what rules can call, and which plugins brought some of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any

import typer

from broker.cli.options import DATA_DIR, DataDirOption, JsonOption, OutputOption, UrlOption, api_client


def functions(
    like: Annotated[str | None, typer.Argument(help="Part of the name, or of what it does.")] = None,
    origin: Annotated[str | None, typer.Option("--origin", help="sluice, or the name of a plugin.")] = None,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """List the functions of the rule language, with what plugins brought and what is wrong with plugins."""
    from broker.cli.output import print_json, print_line, print_table, say

    with api_client(url, data_dir) as client:
        found = client.get("/functions")
    items = [item for item in found["items"] if _is_wanted(item, like, origin)]
    if as_json or output == "json":
        print_json({**found, "items": items, "total": len(items)})
        return
    if items:
        print_table(["function", "result", "meaning", "origin"], [_row(item) for item in items])
    else:
        close = get_close_matches(like or "", [item["name"] for item in found["items"]], 1)
        say(f"there is no such function{f'; did you mean {close[0]!r}?' if close else ''}")
    for plugin in found["plugins"]:
        brought = f"{len(plugin['functions'])} functions" if plugin["functions"] else "nothing"
        print_line(f"plugin {plugin['name']} ({plugin['package']} {plugin['version']}) brought {brought}")
        for problem in plugin["problems"]:
            print_line(f"  {problem}")


def _is_wanted(item: Mapping[str, Any], like: str | None, origin: str | None) -> bool:
    text = f"{item['name']} {item['documentation']}".lower()
    return (like is None or like.lower() in text) and origin in (None, item["origin"])


def _row(item: Mapping[str, Any]) -> Sequence[str]:
    first_line = item["documentation"].partition("\n")[0].replace("``", "")
    return [item["signature"], item["returns"], first_line, item["origin"]]


def add_to(group: typer.Typer) -> None:
    """Give the group of rules this command."""
    group.command("functions")(functions)
