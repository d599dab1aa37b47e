"""``sluice config``: the active settings, and those that a broker would start with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker.cli import exit_codes
from broker.cli.command import Call, command
from broker.cli.errors import CommandError, from_sluice_error, hinting
from broker.cli.output import print_columns, print_line, print_table, say, shown
from broker.core.kinds import counted

if TYPE_CHECKING:
    from broker.config.model import Settings
    from broker.config.root import Config

group = typer.Typer(help="Check and show the configuration.", no_args_is_help=True)

FileArgument = Annotated[
    Path | None,
    typer.Argument(metavar="FILE", help="The main file; else SLUICE_CONFIG, else DIR/sluice.conf."),
]


@command(group, "check", is_local=True)
def check(call: Call, file: FileArgument = None) -> None:
    """Read all layers, try all objects and report every problem at once. Exit code 7 when there are any."""
    from broker.core.errors import ConfigError

    try:
        config = load_files(file, call.data_dir)
        if problems := import_module("broker.app.check").object_problems(config, call.data_dir):
            raise ConfigError(problems)
    except ConfigError as error:
        told = from_sluice_error(error)
        raise CommandError(
            str(told),
            exit_codes.CHECK_SAID_NO,
            details=told.details,
            hint="sluice config reference, which lists all settings",
            document={"ok": False, "problems": list(error.problems)} if call.is_json else None,
        ) from error
    count = sum(len(layer.objects) for layers in config.objects.values() for layer in layers)
    text = f"OK: {', '.join(config.files) or 'defaults'}; {counted(count, 'object')}"
    call.show({"ok": True, "problems": [], "objects": count}, text)


@command(group, "show")
def show(
    call: Call,
    file: FileArgument = None,
    files: Annotated[bool, typer.Option("--files", help="What a broker would start with.")] = False,
    changed: Annotated[bool, typer.Option("--changed", help="Only settings that are not the defaults.")] = False,
) -> None:
    """Show the active settings of the running broker, and the source of each; secrets are masked.

    The last column shows what the files say by now where that differs: reload or restart to use it.
    """
    if files or file is not None:
        settings = _of_files(file, call.data_dir)
    else:
        with hinting(exit_codes.NOT_REACHABLE, "sluice config show --files", instead=True):
            settings = call.api.get("/config")
    if changed:
        settings["items"] = [item for item in settings["items"] if item["set_by"] != "default" or "in_files" in item]
    call.show(settings, _print_settings)


def _print_settings(answer: Mapping[str, Any]) -> None:
    rows = [
        (setting["key"], _value(setting, setting["value"]), setting["set_by"], _in_files(setting))
        for setting in answer["items"]
    ]
    print_table(("setting", "value", "set by", "in files"), rows)
    for problem in answer["problems"]:
        say(f"warning: the files cannot be used: {problem}")


def _of_files(file: Path | None, data_dir: Path) -> dict[str, Any]:
    config = load_files(file, data_dir)
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
    in_files = setting.get("in_files")
    return "" if in_files is None else f"{shown(_value(setting, in_files['value']))} ({in_files['set_by']})"


@command(group, "reference", is_local=True)
def reference(call: Call) -> None:
    """List all settings: key, type, default, description."""
    from dataclasses import asdict

    from broker.config.reference import describe

    columns = {"setting": "key", "type": "type", "default": "default", "description": "description"}
    call.show([asdict(entry) for entry in describe(_models())], lambda entries: print_columns(entries, columns))


def print_reloaded(done: Mapping[str, Any]) -> None:
    """Print what a reload has changed, and what it could not."""
    listeners = [f"listener {id} {change}" for change, ids in done["listeners"].items() for id in ids]
    parts = {
        "active": (*done["settings"], *listeners, *done["objects"]),
        "not changed": done["failed"],
        "needs a restart": done["needs_restart"],
    }
    lines = [f"{part}: {line}" for part, changes in parts.items() for line in changes]
    for line in lines or ["nothing has changed"]:
        print_line(line)


def load_files(file: Path | None, data_dir: Path) -> Config:
    """The configuration of files and environment, as a node of this directory would read it."""
    from broker.config.root import load_config

    return load_config(_models(), data_dir=data_dir, config_file=file, environ=os.environ)


def _models() -> Mapping[str, type[Settings]]:
    models: Mapping[str, type[Settings]] = import_module("broker.app.build").section_models()
    return models
