"""Showing and removing one thing of the API, whatever it is."""

from __future__ import annotations

from pathlib import Path

from broker.cli import exit_codes
from broker.cli.asking import confirm
from broker.cli.errors import hinting
from broker.cli.options import api_client


def show_one(path: str, name: str, *, hint: str, url: str | None, data_dir: Path, is_json: bool) -> None:
    """Print what is under a path by its name; ``hint`` is the command that lists what there is."""
    from broker.cli.client import name_path
    from broker.cli.output import print_json, print_members

    with api_client(url, data_dir) as client, hinting(exit_codes.NOT_FOUND, hint):
        shown = client.get(name_path(path, name))
    print_json(shown) if is_json else print_members(shown)


def remove_one(
    path: str,
    name: str,
    *,
    what: str,
    question: str,
    command: str,
    hint: str,
    yes: bool,
    url: str | None,
    data_dir: Path,
    as_json: bool,
    query: str = "",
    none_left: str = "",
) -> None:
    """Ask, then remove what is under a path by its name; ``command`` does so without asking. ``none_left`` is said when
    it was the last."""
    from broker.cli.client import name_path
    from broker.cli.output import print_json, print_line, say

    confirm(question, yes=yes, command=command)
    with api_client(url, data_dir) as client, hinting(exit_codes.NOT_FOUND, hint):
        client.delete(f"{name_path(path, name)}{query}")
        is_last = bool(none_left) and not client.get(path)["items"]
    print_json({"removed": [name]}) if as_json else print_line(f"{what} {name} removed")
    if is_last:
        say(none_left)
