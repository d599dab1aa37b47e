"""``sluice import``: objects of another broker's configuration."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker.cli import exit_codes
from broker.cli.client import ApiClient
from broker.cli.command import Call, command
from broker.cli.errors import CommandError
from broker.cli.output import print_line, print_table
from broker.core.kinds import counted

if TYPE_CHECKING:
    from broker.cli.emqx import Item

group = typer.Typer(help="Import objects of another broker.", no_args_is_help=True)


@group.callback()
def of_another_broker() -> None:
    """Keeps the name of the other broker a word of its own while there is only one."""


@command(group, "emqx")
def emqx(
    call: Call,
    file: Annotated[
        str,
        typer.Argument(
            help="EMQX's cluster.hocon or emqx.conf, an archive of 'emqx ctl data export', or - ."
        ),
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Report only; needs no running broker.")
    ] = False,
) -> None:
    """Import connectors, actions, sources, rules, schemas and gates of an EMQX configuration.

    Reports for each item whether it is imported as it is, changed, or not supported, and why. Objects that exist are
    not replaced. Settings are printed as lines for sluice.conf.

    Example: sluice import emqx cluster.hocon --dry-run
    """
    from broker.cli.emqx import planned, read_emqx

    items = planned(read_emqx(file))
    import_module("broker.app.rehearsal").rehearse(items, call.data_dir)
    if not dry_run:
        for item in items:
            if item.path and not item.reason:
                _create(call.api, item)
    answer = {"dry_run": dry_run, "items": [_shown(item) for item in items]}
    call.show(answer, lambda _: _print(items, dry_run=dry_run))
    if any(item.reason.startswith(_REFUSED) for item in items):
        raise typer.Exit(exit_codes.FAILED)


_REFUSED = "the broker refused it: "


def _create(client: ApiClient, item: Item) -> None:
    try:
        client.post(f"/{item.path}", item.spec)
    except CommandError as error:
        if error.exit_code in (exit_codes.NOT_REACHABLE, exit_codes.NOT_ALLOWED):
            raise
        item.reason = _REFUSED + "; ".join([str(error), *error.details])


def _shown(item: Item) -> dict[str, Any]:
    return {
        "item": item.origin,
        "result": item.result,
        "becomes": item.becomes,
        "changes": item.changes,
        "reason": item.reason,
    }


def _print(items: list[Item], *, dry_run: bool) -> None:
    rows = [
        (item.origin, item.result, item.becomes, item.reason or "; ".join(item.changes))
        for item in items
    ]
    print_table(("item", "result", "becomes", "why"), rows)
    if settings := [item.setting for item in items if item.setting and not item.reason]:
        print_line("")
        print_line("Add to sluice.conf, then run 'sluice config reload':")
        for setting in settings:
            print_line(f"  {setting}")
    objects = [item for item in items if item.path]
    count = sum(not item.reason for item in objects)
    print_line("")
    verb = "would be imported; run without --dry-run to import them" if dry_run else "imported"
    print_line(f"{count:,} of {counted(len(objects), 'object')} {verb}.")
