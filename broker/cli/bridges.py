"""``sluice connectors``, ``actions``, ``sources`` beyond the verbs of every kind, and ``sluice bridges`` over all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from broker.cli import exit_codes
from broker.cli.client import name_path
from broker.cli.command import SLOW_S, Call, command
from broker.cli.errors import CommandError
from broker.cli.files import read_objects
from broker.cli.objects import Name, lists, path_of
from broker.cli.output import print_columns, print_line, print_table, say
from broker.core.kinds import Kind, are, counted, kind_at

group = typer.Typer(help="All connectors, actions and sources at once.", no_args_is_help=True)
_ACTIONS = "sluice actions ls"
_SHOWN = ("connectors", "actions", "sources")
_COLUMNS = {
    "kind": "kind",
    "id": "id",
    "status": "status",
    "reason": "status_reason",
    "done": "metrics/success",
    "failed": "metrics/failed",
    "dropped": "metrics/dropped",
    "queuing": "metrics/queuing",
}


def add_actions(commands: typer.Typer) -> None:
    """Add the commands of actions in addition to the verbs of every kind."""
    command(commands, "drain", known=_ACTIONS, writes=True)(drain)


def add_test(commands: typer.Typer, kind: Kind) -> None:
    """Add the test of a kind whose objects can be tested step by step."""
    help = f"Test {kind.one} step by step. Exit code 7 when a step fails."

    @command(commands, "test", help=help, known=lists(kind), timeout_s=SLOW_S)
    def test(
        call: Call,
        name: Annotated[str | None, typer.Argument(help="Its name; or give a file.")] = None,
        file: Annotated[
            str | None,
            typer.Option("-f", "--file", help="One that is not saved: JSON or HOCON; - is stdin."),
        ] = None,
    ) -> None:
        if (name is None) == (file is None):
            raise CommandError(
                "give a name, or a file", exit_codes.USAGE, hint=f"sluice {kind.path} test NAME"
            )
        if name is not None:
            result = call.api.post(f"{name_path(path_of(kind), name)}:test")
        else:
            result = call.api.post(f"{path_of(kind)}:probe", read_objects(str(file))[0])
        columns = {"step": "name", "result": "result", "ms": "duration_ms", "message": "message"}
        call.show(result, lambda _: print_columns(result["steps"], columns))
        if not result["ok"]:
            raise typer.Exit(exit_codes.CHECK_SAID_NO)


def print_types(answer: Mapping[str, Any]) -> None:
    """The types of connectors, each with the missing part if it cannot be used."""
    rows = [
        (item["name"], item["title"], item["problem"] or item["summary"])
        for item in answer["items"]
    ]
    print_table(("type", "title", "summary"), rows)


def drain(
    call: Call,
    name: Name,
    timeout: Annotated[
        int, typer.Option("--timeout", min=0, max=3600, help="Seconds to wait.")
    ] = 30,
) -> None:
    """Accept no more rows, send those that wait, then stop. Exit code 7 if some are left."""
    call.timeout_s = timeout + SLOW_S
    result = call.api.post(f"{name_path('/actions', name)}:drain", {"timeout_s": timeout})
    call.show(
        result, lambda answer: print_line(f"action {name}: {are(answer['left'], 'row')} left")
    )
    if result.get("left"):  # a dry run has none
        raise typer.Exit(exit_codes.CHECK_SAID_NO)


@command(group, "ls")
def list_bridges(call: Call) -> None:
    """List all connectors, actions and sources with their states and counters."""

    def show(answer: Mapping[str, Any]) -> None:
        items = [{"kind": kind_at(path).short, **item} for path in _SHOWN for item in answer[path]]
        print_columns(items, _COLUMNS)

    call.show({path: list(call.api.items(f"/{path}")) for path in _SHOWN}, show)


def print_redriven(answer: Mapping[str, Any]) -> None:
    """Number of dead letters that were sent again, and the reason it stopped."""
    print_line(f"action {answer['action']}: {answer['sent']:,} sent, {answer['waiting']:,} wait")
    if answer["problem"]:
        say(answer["problem"])


def print_purged(answer: Mapping[str, Any]) -> None:
    """Print the number of dead letters that were deleted."""
    print_line(f"action {answer['action']}: {counted(answer['purged'], 'dead letter')} deleted")
