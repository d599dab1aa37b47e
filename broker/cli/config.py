"""``sluice config``: the settings in force, and those that a broker would start with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker.cli import exit_codes
from broker.cli.errors import CommandError, from_sluice_error, hinting
from broker.cli.options import DATA_DIR, DataDirOption, JsonOption, OutputOption, UrlOption, api_client

if TYPE_CHECKING:
    from broker.config.model import Settings
    from broker.config.root import Config

group = typer.Typer(help="Check and show the configuration.", no_args_is_help=True)

FileArgument = Annotated[
    Path | None,
    typer.Argument(metavar="FILE", help="The main file; else SLUICE_CONFIG, else DIR/sluice.conf."),
]


@group.command()
def check(file: FileArgument = None, data_dir: DataDirOption = DATA_DIR, output: OutputOption = "table") -> None:
    """Read all layers and try all objects, and tell every problem at once; exit code 7 when there are any."""
    from broker.core.errors import ConfigError

    try:
        config = _load(file, data_dir)
        if problems := import_module("broker.app.check").object_problems(config, data_dir):
            raise ConfigError(problems)
    except ConfigError as error:
        told = from_sluice_error(error)
        raise CommandError(
            str(told),
            exit_codes.CHECK_SAID_NO,
            details=told.details,
            hint="sluice config reference, which lists all settings",
            document={"ok": False, "problems": list(error.problems)} if output == "json" else None,
        ) from error
    from broker.cli.output import print_json, print_line

    count = sum(len(held.objects) for layers in config.objects.values() for held in layers)
    if output == "json":
        print_json({"ok": True, "problems": [], "objects": count})
    else:
        print_line(f"OK: {', '.join(config.files) or 'defaults'}; {count} object{'s' if count != 1 else ''}")


@group.command()
def show(
    file: FileArgument = None,
    files: Annotated[bool, typer.Option("--files", help="What a broker would start with.")] = False,
    changed: Annotated[bool, typer.Option("--changed", help="Only settings that are not the defaults.")] = False,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Show the settings in force on the running broker, and the source of each; secrets are masked.

    The last column shows what the files say by now where that differs: reload or restart to use it.
    """
    from broker.cli.output import print_json, print_table, say

    if files or file is not None:
        found = _of_files(file, data_dir)
    else:
        with (
            api_client(url, data_dir) as client,
            hinting(exit_codes.NOT_REACHABLE, "sluice config show --files", instead=True),
        ):
            found = client.get("/config")
    if changed:
        found["items"] = [one for one in found["items"] if one["set_by"] != "default" or "in_files" in one]
    if as_json or output == "json":
        print_json(found)
        return
    rows = [(one["key"], _value(one, one["value"]), one["set_by"], _in_files(one)) for one in found["items"]]
    print_table(("setting", "value", "set by", "in files"), rows)
    for problem in found["problems"]:
        say(f"warning: the files cannot be used: {problem}")


def _of_files(file: Path | None, data_dir: Path) -> dict[str, Any]:
    config = _load(file, data_dir)
    kinds = {entry.key: entry.type for entry in config.describe()}
    items = [
        {"key": key, "type": kinds.get(key), "value": value, "set_by": config.origin(key)}
        for key, value in config.leaves().items()
    ]
    return {"items": items, "files": config.files, "problems": []}


def _value(setting: Mapping[str, Any], value: Any) -> Any:
    """A value as one writes it in a file."""
    from broker.config.units import duration_text, size_text

    kind = str(setting.get("type")).partition(" ")[0]
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float) and kind in ("duration", "size"):
        return duration_text(value) if kind == "duration" else size_text(int(value))
    return value


def _in_files(setting: Mapping[str, Any]) -> str:
    from broker.cli.output import shown

    found = setting.get("in_files")
    return "" if found is None else f"{shown(_value(setting, found['value']))} ({found['set_by']})"


@group.command()
def reference(output: OutputOption = "table") -> None:
    """Every setting there is: key, type, default, description."""
    from dataclasses import asdict

    from broker.cli.output import print_json, print_table
    from broker.config.reference import describe

    entries = describe(_models())
    if output == "json":
        print_json([asdict(entry) for entry in entries])
        return
    print_table(
        ("setting", "type", "default", "description"),
        [(entry.key, entry.type, entry.default, entry.description) for entry in entries],
    )


@group.command()
def reload(
    drain: Annotated[bool, typer.Option("--drain", help="Let connections of listeners that go stay.")] = False,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
) -> None:
    """Have a running broker read its configuration again; when something is wrong, nothing changes."""
    from broker.cli.output import print_json, print_line

    with api_client(url, data_dir, 120) as client:
        done = client.post(f"/config:reload{'?drain=true' if drain else ''}", {})
    if output == "json":
        print_json(done)
        return
    listeners = [f"listener {id} {what}" for what, ids in done["listeners"].items() for id in ids]
    for line in (*done["settings"], *listeners, *done["objects"]):
        print_line(f"in force: {line}")
    for line in done["failed"]:
        print_line(f"not changed: {line}")
    for line in done["needs_restart"]:
        print_line(f"needs a restart: {line}")
    if not any((done["settings"], listeners, done["objects"], done["failed"], done["needs_restart"])):
        print_line("nothing has changed")


def _load(file: Path | None, data_dir: Path) -> Config:
    from broker.config.root import load_config

    return load_config(_models(), data_dir=data_dir, config_file=file, environ=os.environ)


def _models() -> Mapping[str, type[Settings]]:
    models: Mapping[str, type[Settings]] = import_module("broker.app.build").section_models()
    return models
