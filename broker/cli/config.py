"""``sluice config``: the active settings, and those that a broker would start with."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker.cli import exit_codes
from broker.cli.client import name_path
from broker.cli.command import Call, command
from broker.cli.errors import CommandError, from_sluice_error, hinting
from broker.cli.output import print_columns, print_json, print_line, print_table, say, shown
from broker.core.kinds import counted

if TYPE_CHECKING:
    from broker.config.model import Settings
    from broker.config.root import Config

KeyArgument = Annotated[
    str, typer.Argument(metavar="KEY", help="The key, as mqtt.max_packet_size.")
]
FilesArgument = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="FILE",
        help="The main files, the last wins; else as SLUICE_CONFIG or the directory has.",
    ),
]


def add_to(group: typer.Typer) -> None:
    """Add the commands of the configuration, and of settings by key."""

    @command(group, "check", is_local=True)
    def check(call: Call, file: FilesArgument = None) -> None:
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
        file: FilesArgument = None,
        files: Annotated[
            bool, typer.Option("--files", help="What a broker would start with.")
        ] = False,
        changed: Annotated[
            bool, typer.Option("--changed", help="Only settings that are not the defaults.")
        ] = False,
    ) -> None:
        """Show the active settings of the running broker, and the source of each; secrets are masked.

        The last column shows what the files say by now where that differs: reload or restart to use it.
        """
        if files or file:
            settings = _of_files(file, call.data_dir)
        else:
            with hinting(exit_codes.NOT_REACHABLE, "sluice config show --files", instead=True):
                status = call.api.get("/config:status")
                settings = {
                    **call.items("/config"),
                    "files": status["files"],
                    "problems": status["problems"],
                }
        if changed:
            settings["items"] = [
                item
                for item in settings["items"]
                if item["set_by"] != "default" or "in_files" in item
            ]
        call.show(settings, _print_settings)

    @command(group, "reference", is_local=True)
    def reference(call: Call) -> None:
        """List all settings: key, type, default, description."""
        from dataclasses import asdict

        from broker.config.reference import describe

        columns = {
            "setting": "key",
            "type": "type",
            "default": "default",
            "description": "description",
        }
        call.show(
            [asdict(entry) for entry in describe(_models())],
            lambda entries: print_columns(entries, columns),
        )

    @command(group, "sample", is_local=True)
    def sample_file(call: Call) -> None:
        """Print a configuration file with every setting, its help and its default, commented out."""
        from broker.config.root import load_config
        from broker.config.sample import sample

        text = sample(load_config(_models(), data_dir=None, environ={}))
        call.show({"text": text}, lambda shown: print_line(shown["text"].rstrip()))

    @command(group, "get", known="sluice config show")
    def get(
        call: Call,
        key: Annotated[
            str | None, typer.Argument(metavar="KEY", help="The key; else all settings.")
        ] = None,
    ) -> None:
        """Show a setting of the running broker with its help, default and source; without a key, all as one object."""
        if key is None:
            call.show(call.api.get("/config:tree"), lambda tree: print_json(tree["value"]))
        else:
            call.show(call.api.get(name_path("/config", key)))

    @command(group, "set", known="sluice config show", writes=True)
    def set_value(
        call: Call,
        key: KeyArgument,
        value: Annotated[
            str,
            typer.Argument(metavar="VALUE", help="The value, as in files: 2MB, true, [ a, b ]."),
        ],
    ) -> None:
        """Check, apply and save a setting of the running broker. The API's file keeps it; sluice.conf is stronger."""
        from broker.config.hocon import parse_value
        from broker.config.hocon_reader import HoconError

        try:
            parsed = parse_value(value, "VALUE") if value.lstrip()[:1] in ("[", "{") else value
        except HoconError as error:
            raise CommandError(str(error), exit_codes.USAGE) from error
        setting = call.api.put(name_path("/config", key), {"value": parsed})[0]
        call.show(setting, lambda shown: print_line(_changed_line(shown)))

    @command(group, "unset", known="sluice config show", writes=True)
    def unset(call: Call, key: KeyArgument) -> None:
        """Reset a setting of the running broker to the value in base.hocon, else the default."""
        call.api.send("DELETE", name_path("/config", key))
        if not call.is_dry:
            setting = call.api.get(name_path("/config", key))
            call.show(setting, lambda shown: print_line(_changed_line(shown)))


def _changed_line(setting: Mapping[str, Any]) -> str:
    late = setting.get("in_files")
    if late is None:
        return (
            f"{setting['key']} = {shown(_value(setting, setting['value']))} ({setting['set_by']})"
        )
    return f"{setting['key']} = {shown(_value(setting, late['value']))} ({late['set_by']}), after a restart"


def _print_settings(answer: Mapping[str, Any]) -> None:
    rows = [
        (setting["key"], _value(setting, setting["value"]), setting["set_by"], _in_files(setting))
        for setting in answer["items"]
    ]
    print_table(("setting", "value", "set by", "in files"), rows)
    for problem in answer["problems"]:
        say(f"warning: the files cannot be used: {problem}")


def _of_files(file: Sequence[Path] | None, data_dir: Path) -> dict[str, Any]:
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
    return (
        ""
        if in_files is None
        else f"{shown(_value(setting, in_files['value']))} ({in_files['set_by']})"
    )


def print_reloaded(done: Mapping[str, Any]) -> None:
    """Print what a reload has changed, and what it could not."""
    listeners = [
        f"listener {id} {change}" for change, ids in done["listeners"].items() for id in ids
    ]
    parts = {
        "active": (*done["settings"], *listeners, *done["objects"]),
        "not changed": done["failed"],
        "needs a restart": done["needs_restart"],
    }
    lines = [f"{part}: {line}" for part, changes in parts.items() for line in changes]
    for line in lines or ["nothing has changed"]:
        print_line(line)


def load_files(file: Sequence[Path] | None, data_dir: Path) -> Config:
    """The configuration of files and environment, as a node of this directory would read it."""
    from broker.config.root import load_config

    return load_config(_models(), data_dir=data_dir, config_files=file or (), environ=os.environ)


def _models() -> Mapping[str, type[Settings]]:
    models: Mapping[str, type[Settings]] = import_module("broker.app.build").section_models()
    return models
