"""``sluice events`` and ``sluice functions``: what rules and transformations can be written with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from json import dumps
from typing import Annotated, Any

import typer

from broker.cli.command import Call, api_command
from broker.cli.output import print_columns, print_line, print_table, say
from broker.core.errors import did_you_mean
from broker.core.kinds import counted

PartOfName = Annotated[str, typer.Argument(help="The name, or a part of it.")]


@api_command()
def events(call: Call, name: PartOfName = "") -> None:
    """List the events that rules can read. With the name of one: its columns, an example, a rule to start from."""
    catalogue = _matching(call, "/events", name)
    call.show(
        catalogue, lambda shown: _one_or_all(shown["items"], ("name", "topic", "text"), _show_event)
    )


@api_command()
def functions(
    call: Call,
    name: PartOfName = "",
    language: Annotated[
        str | None, typer.Option("--language", help="sql (rules) or variform (transformations).")
    ] = (None),
    origin: Annotated[
        str | None, typer.Option("--origin", help="sluice, or the name of a plugin.")
    ] = None,
) -> None:
    """List functions, with the problems of plugins. With the name of one: its examples."""
    catalogue = _matching(call, "/functions", name, language=language)
    items = [item for item in catalogue["items"] if origin in (None, item["origin"])]
    call.show({**catalogue, "items": items, "total": len(items)}, _show_functions)


def _matching(call: Call, path: str, name: str, **filters: Any) -> dict[str, Any]:
    """The part of a catalogue whose names contain ``name``; only the entries of exactly that name, if there are any."""
    query = {key: value for key, value in filters.items() if value is not None}
    matching: dict[str, Any] = call.api.get(path, name=name, **query)
    if not matching["items"]:
        names = [item["name"] for item in call.api.get(path, **query)["items"]]
        rename = did_you_mean(name, names)
        say(f"no {path[1:-1]} has {name!r} in its name{f'; {rename}' if rename else ''}")
    exact = [item for item in matching["items"] if item["name"] == name]
    return {**matching, "items": exact, "total": len(exact)} if exact else matching


def _one_or_all(
    items: Sequence[Mapping[str, Any]], columns: Sequence[str], show: Callable[[Any], None]
) -> None:
    if len({item["name"] for item in items}) == 1:
        for item in items:
            show(item)
    elif items:
        print_columns(items, columns)


def _show_event(event: Mapping[str, Any]) -> None:
    print_line(f"{event['topic']}  {event['text']}", style="bold")
    print_line(event["rule"])
    print_table(
        ("column", "type", "example", "meaning"),
        [
            (
                column["name"],
                column["type"],
                dumps(event["example"].get(column["name"])),
                column["text"],
            )
            for column in event["columns"]
        ],
    )


def _show_functions(answer: Mapping[str, Any]) -> None:
    items = [
        {**item, "meaning": item["documentation"].partition("\n")[0].replace("``", "")}
        for item in answer["items"]
    ]
    _one_or_all(items, ("signature", "language", "returns", "meaning", "origin"), _show_function)
    for plugin in answer["plugins"]:
        brought = (
            counted(len(plugin["functions"]), "function") if plugin["functions"] else "nothing"
        )
        print_line(
            f"plugin {plugin['name']} ({plugin['package']} {plugin['version']}) brought {brought}"
        )
        for problem in plugin["problems"]:
            print_line(f"  {problem}")


def _show_function(function: Mapping[str, Any]) -> None:
    print_line(f"{function['signature']} → {function['returns']}", style="bold")
    print_line(function["documentation"].replace("``", ""))
    for example in function["examples"]:
        print_line(f"{example['expression']} → {dumps(example['result'], ensure_ascii=False)}")
