"""``sluice actions dead-letters``: rows that an action gave up, seen, sent once more and forgotten."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from broker.cli import exit_codes
from broker.cli.asking import confirm
from broker.cli.errors import hinting
from broker.cli.objects import Noun
from broker.cli.options import DATA_DIR, DataDirOption, JsonOption, OutputOption, UrlOption, api_client

_SLOW_S: Final = 120
_LIMIT: Final = "At most so many."
Name = Annotated[str, typer.Argument(help="Its name.")]


def group_for(noun: Noun, where: str) -> typer.Typer:
    """The commands of dead letters; ``where`` is how those of actions are called."""
    letters = typer.Typer(help="Rows that an action gave up and kept.", no_args_is_help=True)
    _add_show(letters, noun, where)
    _add_redrive(letters, noun, where)
    _add_purge(letters, noun, where)
    return letters


def _add_show(letters: typer.Typer, noun: Noun, where: str) -> None:
    @letters.command("ls")
    def show(
        name: Name,
        limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help=_LIMIT)] = 20,
        url: UrlOption = None,
        data_dir: DataDirOption = DATA_DIR,
        output: OutputOption = "table",
        as_json: JsonOption = False,
    ) -> None:
        """Show the oldest dead letters, and why each was given up."""
        from broker.cli.client import name_path
        from broker.cli.output import print_json, print_table, say

        with api_client(url, data_dir) as client, hinting(exit_codes.NOT_FOUND, f"{where} ls"):
            found = client.get(f"{name_path(noun.path, name)}/dead-letters", limit=limit)
        if as_json or output == "json":
            print_json(found)
            return
        columns = ("offset", "cause", "reason", "attempts", "topic", "clientid", "row")
        print_table(columns, [[item[column] for column in columns] for item in found["items"]])
        if found["waiting"] > len(found["items"]):
            say(f"{found['waiting'] - len(found['items']):,} more wait")


def _add_redrive(letters: typer.Typer, noun: Noun, where: str) -> None:
    @letters.command("redrive")
    def redrive(
        name: Name,
        limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help=_LIMIT)] = 10_000,
        url: UrlOption = None,
        data_dir: DataDirOption = DATA_DIR,
        as_json: JsonOption = False,
    ) -> None:
        """Hand dead letters to the action once more, oldest first. One that fails again becomes a new one."""
        from broker.cli.client import name_path
        from broker.cli.output import print_json, print_line, say

        with api_client(url, data_dir, _SLOW_S) as client, hinting(exit_codes.NOT_FOUND, f"{where} ls"):
            found = client.post(f"{name_path(noun.path, name)}/dead-letters:redrive", {"limit": limit})
        if as_json:
            print_json(found)
        else:
            print_line(f"action {name}: {found['sent']:,} sent, {found['waiting']:,} wait")
            if found["problem"]:
                say(found["problem"])


def _add_purge(letters: typer.Typer, noun: Noun, where: str) -> None:
    @letters.command("purge")
    def purge(
        name: Name,
        yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
        url: UrlOption = None,
        data_dir: DataDirOption = DATA_DIR,
        as_json: JsonOption = False,
    ) -> None:
        """Forget all dead letters of an action."""
        from broker.cli.client import name_path
        from broker.cli.output import print_json, print_line

        command = f"{where} dead-letters purge {name} --yes"
        confirm(f"Forget all dead letters of action {name!r}?", yes=yes, command=command)
        with api_client(url, data_dir) as client, hinting(exit_codes.NOT_FOUND, f"{where} ls"):
            found = client.post(f"{name_path(noun.path, name)}/dead-letters:purge")
        print_json(found) if as_json else print_line(f"action {name}: {found['purged']:,} dead letters forgotten")
