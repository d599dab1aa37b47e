"""``sluice connectors``, ``actions``, ``sources`` beyond the verbs of every kind, and ``sluice bridges`` over all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from broker.cli import dead_letters, exit_codes
from broker.cli.errors import hinting
from broker.cli.files import read_objects
from broker.cli.objects import SLOW_S, Name, lists, path_of
from broker.cli.options import DATA_DIR, DataDirOption, JsonOption, OutputOption, UrlOption, api_client
from broker.core.kinds import Kind, kind_at

group = typer.Typer(help="All connectors, actions and sources at once.", no_args_is_help=True)


def add_connectors(commands: typer.Typer) -> None:
    """Add what connectors have beside the verbs of every kind."""
    _add_test(commands, kind_at("connectors"))
    _add_types(commands)


def add_actions(commands: typer.Typer) -> None:
    """Add what actions have beside the verbs of every kind."""
    kind = kind_at("actions")
    _add_test(commands, kind)
    _add_drain(commands, kind)
    commands.add_typer(dead_letters.group, name="dead-letters")


def add_sources(commands: typer.Typer) -> None:
    """Add what sources have beside the verbs of every kind."""
    _add_test(commands, kind_at("sources"))


def _add_test(commands: typer.Typer, kind: Kind) -> None:
    @commands.command("test", help=f"Test {kind.one} step by step. Exit code 7 when a step fails.")
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
            raise CommandError("give a name, or a file", exit_codes.USAGE, hint=f"sluice {kind.path} test NAME")
        with api_client(url, data_dir, SLOW_S) as client, hinting(exit_codes.NOT_FOUND, lists(kind)):
            if name is not None:
                found = client.post(f"{name_path(path_of(kind), name)}:test")
            else:
                found = client.post(f"{path_of(kind)}:probe", read_objects(str(file))[0])
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


def _add_drain(commands: typer.Typer, kind: Kind) -> None:
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

        with api_client(url, data_dir, timeout + SLOW_S) as client, hinting(exit_codes.NOT_FOUND, lists(kind)):
            found = client.post(f"{name_path(path_of(kind), name)}:drain", {"timeout_s": timeout})
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
        found = {kind.path: list(client.items(path_of(kind))) for kind in _shown()}
    if as_json or output == "json":
        print_json(found)
        return
    columns = ("kind", "id", "status", "reason", "done", "failed", "dropped", "queuing")
    print_table(columns, [_row(kind, item) for kind in _shown() for item in found[kind.path]])


def _shown() -> Sequence[Kind]:
    return [kind_at(path) for path in ("connectors", "actions", "sources")]


def _row(kind: Kind, item: Mapping[str, Any]) -> Sequence[Any]:
    counts = item.get("metrics", {})
    numbers = [counts.get(name, "") for name in ("success", "failed", "dropped", "queuing")]
    return [kind.short, item["id"], item["status"], item["status_reason"], *numbers]
