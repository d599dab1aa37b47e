"""``sluice connectors``, ``actions``, ``sources`` beyond the verbs of every kind, and ``sluice bridges`` over all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import typer

from broker.cli import dead_letters, exit_codes
from broker.cli.errors import hinting
from broker.cli.files import read_objects
from broker.cli.objects import Noun
from broker.cli.options import DATA_DIR, DataDirOption, JsonOption, OutputOption, UrlOption, api_client

_SLOW_S: Final = 120
Name = Annotated[str, typer.Argument(help="Its name.")]
Names = Annotated[list[str], typer.Argument(help="Their names.")]

_STATUS: Final = {"name": "name", "type": "type", "status": "status", "reason": "status_reason"}
CONNECTORS: Final = Noun(
    "connectors", "connector", "/connectors", {**_STATUS, "actions": "actions", "sources": "sources"}
)
ACTIONS: Final = Noun("actions", "action", "/actions", {**_STATUS, "connector": "connector", "rules": "rules"})
SOURCES: Final = Noun("sources", "source", "/sources", {**_STATUS, "connector": "connector", "rules": "rules"})
NOUNS: Final = (CONNECTORS, ACTIONS, SOURCES)

group = typer.Typer(help="All connectors, actions and sources at once.", no_args_is_help=True)

_SWITCHES: Final[Mapping[str, tuple[str, Sequence[str]]]] = {
    "enable": ("Enable {} permanently.", ("connectors", "actions", "sources")),
    "disable": ("Disable {} permanently; buffered rows stay.", ("connectors", "actions", "sources")),
    "start": ("Start {} that were stopped.", ("connectors", "actions", "sources")),
    "stop": ("Stop {} until they are started or the broker restarts.", ("connectors", "actions", "sources")),
    "restart": ("Stop and start {}.", ("connectors", "actions", "sources")),
    "pause": ("Pause {}: what comes waits.", ("actions", "sources")),
    "resume": ("Go on with {} that were paused.", ("actions", "sources")),
}
_DONE: Final = {
    "enable": "enabled", "disable": "disabled", "start": "started", "stop": "stopped", "restart": "restarted",
    "pause": "paused", "resume": "resumed",
}  # fmt: skip


def add_to(commands: typer.Typer, noun: Noun, where: str) -> None:
    """Add what a kind of bridges has beside the verbs of every kind."""
    for verb, (text, kinds) in _SWITCHES.items():
        if noun.plural in kinds:
            _add_switch(commands, noun, where, verb, text.format(noun.plural))
    _add_test(commands, noun, where)
    if noun.plural == "connectors":
        _add_types(commands)
    else:
        _add_metrics(commands, noun, where)
    if noun.plural == "actions":
        _add_drain(commands, noun, where)
        commands.add_typer(dead_letters.group_for(noun, where), name="dead-letters")


def _add_switch(commands: typer.Typer, noun: Noun, where: str, verb: str, help: str) -> None:
    @commands.command(verb, help=help)
    def switch(
        names: Names, url: UrlOption = None, data_dir: DataDirOption = DATA_DIR, as_json: JsonOption = False
    ) -> None:
        from broker.cli.client import name_path
        from broker.cli.output import print_json, print_line

        answers = []
        with api_client(url, data_dir, _SLOW_S) as client, hinting(exit_codes.NOT_FOUND, f"{where} ls"):
            for name in names:
                answers.append(client.post(f"{name_path(noun.path, name)}:{verb}"))
                if not as_json:
                    print_line(f"{noun.singular} {name} {_DONE[verb]}")
        if as_json:
            print_json({"items": answers})


def _add_test(commands: typer.Typer, noun: Noun, where: str) -> None:
    @commands.command("test", help=f"Test one {noun.singular} step by step. Exit code 7 when a step fails.")
    def test(
        name: Annotated[str | None, typer.Argument(help="Its name; or give a file.")] = None,
        file: Annotated[
            str | None, typer.Option("-f", "--file", help="One that is not saved: JSON or HOCON; - is stdin.")
        ] = None,
        url: UrlOption = None,
        data_dir: DataDirOption = DATA_DIR,
        output: OutputOption = "table",
        as_json: JsonOption = False,
    ) -> None:
        from broker.cli.client import name_path
        from broker.cli.errors import CommandError
        from broker.cli.output import print_json, print_table

        if (name is None) == (file is None):
            raise CommandError("give a name, or a file", exit_codes.USAGE, hint=f"{where} test NAME")
        with api_client(url, data_dir, _SLOW_S) as client, hinting(exit_codes.NOT_FOUND, f"{where} ls"):
            if name is not None:
                found = client.post(f"{name_path(noun.path, name)}:test")
            else:
                found = client.post(f"{noun.path}:probe", read_objects(str(file))[0])
        if as_json or output == "json":
            print_json(found)
        else:
            columns = ("name", "result", "duration_ms", "message")
            print_table(("step", "result", "ms", "message"), [[one[key] for key in columns] for one in found["steps"]])
        if not found["ok"]:
            raise typer.Exit(exit_codes.CHECK_SAID_NO)


def _add_types(commands: typer.Typer) -> None:
    @commands.command("types", help="List the types of connectors, and what each needs.")
    def types(
        url: UrlOption = None,
        data_dir: DataDirOption = DATA_DIR,
        output: OutputOption = "table",
        as_json: JsonOption = False,
    ) -> None:
        from broker.cli.output import print_json, print_table

        with api_client(url, data_dir) as client:
            found = client.get("/connector-types")
        if as_json or output == "json":
            print_json(found)
            return
        rows = [(one["name"], one["title"], one["problem"] or one["summary"]) for one in found["items"]]
        print_table(("type", "title", "summary"), rows)


def _add_metrics(commands: typer.Typer, noun: Noun, where: str) -> None:
    @commands.command("metrics", help=f"Counters and rates of one {noun.singular}.")
    def metrics(
        name: Name,
        reset: Annotated[bool, typer.Option("--reset", help="Set them to zero.")] = False,
        url: UrlOption = None,
        data_dir: DataDirOption = DATA_DIR,
        output: OutputOption = "table",
        as_json: JsonOption = False,
    ) -> None:
        from broker.cli.client import name_path
        from broker.cli.output import print_json, print_members

        with api_client(url, data_dir) as client, hinting(exit_codes.NOT_FOUND, f"{where} ls"):
            path = name_path(noun.path, name)
            if reset:
                client.post(f"{path}/metrics:reset")
            found = client.get(f"{path}/metrics")
        print_json(found) if as_json or output == "json" else print_members(found)


def _add_drain(commands: typer.Typer, noun: Noun, where: str) -> None:
    @commands.command("drain", help="Take no more rows, send those that wait, then stop. Exit code 7 if some are left.")
    def drain(
        name: Name,
        timeout: Annotated[int, typer.Option("--timeout", min=0, max=3600, help="Seconds to wait.")] = 30,
        url: UrlOption = None,
        data_dir: DataDirOption = DATA_DIR,
        as_json: JsonOption = False,
    ) -> None:
        from broker.cli.client import name_path
        from broker.cli.output import print_json, print_line

        with api_client(url, data_dir, timeout + _SLOW_S) as client, hinting(exit_codes.NOT_FOUND, f"{where} ls"):
            found = client.post(f"{name_path(noun.path, name)}:drain", {"timeout_s": timeout})
        print_json(found) if as_json else print_line(f"action {name}: {found['left']:,} rows are left")
        if found["left"]:
            raise typer.Exit(exit_codes.CHECK_SAID_NO)


@group.command("ls")
def list_all(
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """List all connectors, actions and sources with their states and counters."""
    from broker.cli.output import print_json, print_table

    with api_client(url, data_dir) as client:
        found = {noun.plural: list(client.items(noun.path)) for noun in NOUNS}
    if as_json or output == "json":
        print_json(found)
        return
    columns = ("kind", "id", "status", "reason", "done", "failed", "dropped", "queuing")
    print_table(columns, [_row(noun, item) for noun in NOUNS for item in found[noun.plural]])


def _row(noun: Noun, item: Mapping[str, Any]) -> Sequence[Any]:
    counts = item.get("metrics", {})
    numbers = [counts.get(name, "") for name in ("success", "failed", "dropped", "queuing")]
    return [noun.singular, item["id"], item["status"], item["status_reason"], *numbers]
