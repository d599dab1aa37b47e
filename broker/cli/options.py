"""Options that many commands share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from broker.cli.client import ApiClient

DATA_DIR_VARIABLE = "SLUICE_DATA_DIR"
DATA_DIR: Final = Path("data")
"""The broker's directory where none is named."""


def _remember_format(context: typer.Context, value: str) -> str:
    """Errors are told in the format that was asked for, also those raised far from the option."""
    if value not in ("table", "json"):
        raise typer.BadParameter(f"{value!r} is not an output format; choose table or json")
    chosen = context.find_root().ensure_object(dict)
    chosen["format"] = value if value == "json" else chosen.get("format", value)
    return value


def _remember_json(context: typer.Context, value: bool) -> bool:
    if value:
        context.find_root().ensure_object(dict)["format"] = "json"
    return value


DataDirOption = Annotated[
    Path,
    typer.Option("--data-dir", envvar=DATA_DIR_VARIABLE, help="The broker's directory.", show_default="data"),
]
UrlOption = Annotated[
    str | None,
    typer.Option("--url", help="Address of the management API; else SLUICE_URL, else the node of --data-dir."),
]
OutputOption = Annotated[
    str,
    typer.Option("-o", "--output", help="table, or json.", callback=_remember_format, metavar="FORMAT"),
]


JsonOption = Annotated[bool, typer.Option("--json", help="As JSON, like -o json.", callback=_remember_json)]


def api_client(url: str | None, data_dir: Path, timeout_s: float = 30.0) -> ApiClient:
    """A client for the broker that the options name."""
    from broker.cli.client import ApiClient
    from broker.cli.target import find_target

    return ApiClient(find_target(url, data_dir, os.environ), timeout_s)
