"""``sluice version``."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer


def version(
    as_json: Annotated[
        bool, typer.Option("--json", help="As JSON, with Python's version.")
    ] = False,
) -> None:
    """Print the version."""
    version = _version()
    print(
        json.dumps({"version": version, "python": sys.version.split()[0]})
        if as_json
        else f"sluice {version}"
    )


def show_version(asked: bool) -> None:
    """Print the version for ``sluice --version``."""
    if asked:
        print(f"sluice {_version()}")
        raise typer.Exit


def _version() -> str:
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as version_of

    try:
        return version_of("sluicemq")
    except PackageNotFoundError:
        return "unknown (not installed)"
