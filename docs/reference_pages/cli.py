"""The page of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import typer

from broker.cli import exit_codes
from broker.cli.application import app
from docs.reference_pages.markdown import page, table

_HELP_WIDTH: Final = 100


def cli() -> str:
    """Every command with its help."""
    codes = [
        (f"`{value}`", name.lower().replace("_", " "))
        for name, value in vars(exit_codes).items()
        if name.isupper() and isinstance(value, int)
    ]
    return page(
        "The command `sluice`",
        "Commands that talk to a broker find it by `--url`, else `SLUICE_URL`, else by the node that runs on "
        "`--data-dir`, else at `http://127.0.0.1:18083`. Their token is `SLUICE_API_TOKEN`, else, for the node that "
        "runs on the data directory, the one kept there.",
        "## Exit codes\n\n" + table(("code", "meaning"), codes),
        *_commands(typer.main.get_command(app), "sluice"),
    )


def _commands(command: Any, path: str) -> Iterator[str]:
    if command.hidden:
        return
    context = command.make_context(path, [], resilient_parsing=True, terminal_width=_HELP_WIDTH)
    text = "\n".join(line.rstrip() for line in command.get_help(context).strip().splitlines())
    yield f"## `{path}`\n\n```text\n{text}\n```"
    for name, below in getattr(command, "commands", {}).items():
        yield from _commands(below, f"{path} {name}")
