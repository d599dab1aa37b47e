"""``sluice export`` and ``sluice apply``: objects and settings of a running broker as files like sluice.conf."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from broker.cli import exit_codes
from broker.cli.client import name_path
from broker.cli.command import Call, api_command
from broker.cli.errors import CommandError
from broker.cli.objects import path_of
from broker.cli.output import print_line, shown
from broker.core.kinds import Kind, counted, kinds, object_sections

if TYPE_CHECKING:
    from broker.admin.settings import SettingRow

# Exit code of a dry run with differences.
DIFFERENT: Final = 2
_FILE: Final = "sluice.conf"
# Settings that are lists of objects with an address of their own.
_BY_ADDRESS: Final = ("authentication", "authorization.sources")
Tree = dict[str, Any]


def _kinds() -> Sequence[Kind]:
    """The kinds that files declare: saved in a section, and without secrets that no answer has."""
    return [
        kind
        for kind in kinds()
        if kind.section and "put" in kind.abilities.verbs and not kind.holds_secrets
    ]


@dataclass(frozen=True, slots=True)
class _Change:
    """A request that brings the broker closer to the files. ``lines`` say what it changes, a member each."""

    what: str
    name: str
    change: str
    method: str
    path: str
    body: Any
    lines: Sequence[str] = ()

    def as_item(self) -> Tree:
        return {
            "kind": self.what,
            "name": self.name,
            "change": self.change,
            "differences": list(self.lines),
        }


@api_command()
def export(
    call: Call,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The directory to write to.")],
) -> None:
    """Write objects and settings that the API has saved to DIR/sluice.conf, which 'sluice apply' reads.

    Secrets are stars, which keep those of the broker. Users, tokens, secrets, bans, authenticators and sources of
    access rules are not written.
    """
    tree: Tree = {}
    for row in _saved_settings(call):
        _put(tree, tuple(row["key"].split(".")), row["value"])
    count = 0
    for kind in _kinds():
        objects = {name: _nameless(kind, spec) for name, spec in _existing(call, kind).items()}
        count += len(objects)
        if objects:
            _put(tree, tuple(str(kind.section).split(".")), objects)
    file = directory / _FILE
    try:
        directory.mkdir(parents=True, exist_ok=True)
        temporary = file.with_suffix(".new")
        temporary.write_text(json.dumps(tree, indent=2, ensure_ascii=False) + "\n")
        temporary.replace(file)
    except OSError as error:
        raise CommandError(
            f"{file} cannot be written ({(error.strerror or str(error)).lower()})"
        ) from error
    call.show({"file": str(file), "objects": count}, f"{file}: {counted(count, 'object')}")


@api_command(timeout_s=120)
def apply(
    call: Call,
    files: Annotated[
        list[Path],
        typer.Option(
            "-f", "--file", metavar="PATH", help="A file, or a directory of *.conf; the last wins."
        ),
    ],
    prune: Annotated[
        bool,
        typer.Option(
            "--prune", help="Delete objects that the files lack, of kinds that the files have."
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the plan; exit code 2 if there are differences."),
    ] = False,
) -> None:
    """Make the objects and settings of a running broker those that files declare, in the form of sluice.conf.

    What the files do not name stays, unless --prune. Applying the same files again changes nothing.
    """
    declared, settings = _declared(files)
    changes = [*_settings_changes(call, settings)]
    for kind in _kinds():
        if kind.section in declared:
            changes += _object_changes(call, kind, declared[kind.section])
    if prune:
        for kind in reversed(_kinds()):
            if kind.section in declared:
                changes += _deletions(call, kind, declared[kind.section])
    if not call.is_json:
        for change in changes:
            print_line(f"{change.change} {change.what} {change.name}")
            for line in change.lines:
                print_line(f"    {line}")
    if not dry_run:
        for number, change in enumerate(changes):
            try:
                call.api.send(change.method, change.path, change.body)
            except CommandError as error:
                done = f"{number} of {counted(len(changes), 'change')} applied"
                raise CommandError(
                    f"{change.what} {change.name!r}: {error} ({done})",
                    error.exit_code,
                    hint="apply again once it is corrected: what is applied stays",
                    details=error.details,
                    document=error.document,
                ) from error
    answer = {"dry_run": dry_run, "items": [change.as_item() for change in changes]}
    text = (
        "nothing to change"
        if not changes
        else f"{counted(len(changes), 'change')}{'' if dry_run else ' applied'}"
    )
    call.show(answer, text)
    if dry_run and changes:
        raise typer.Exit(DIFFERENT)


def _declared(paths: Sequence[Path]) -> tuple[dict[str, dict[str, Tree]], Tree]:
    """The objects of files by section and name, and their settings as a tree."""
    from broker.config.hocon_reader import HoconError
    from broker.config.layers import file_layer, find_main_files, merged
    from broker.config.objects import objects_in, without_objects

    sections = [tuple(name.split(".")) for name in object_sections()]
    for path in paths:
        if not path.exists():
            raise CommandError(
                f"--file: expected a file or directory, got {str(path)!r}", exit_codes.USAGE
            )
    try:
        layers = [file_layer(file, os.environ) for file in find_main_files(paths, None, {})]
    except HoconError as error:
        raise CommandError(str(error), exit_codes.USAGE) from error
    if not layers:
        raise CommandError(f"--file: expected *.conf in {paths[0]}, got none", exit_codes.USAGE)
    objects: dict[str, dict[str, Tree]] = {}
    problems: list[str] = []
    for layer in layers:
        for section in sections:
            read, wrong = objects_in(layer, section)
            problems += wrong
            if _at(layer.values, section) is not None:
                objects.setdefault(".".join(section), {}).update(
                    {spec["name"]: spec for spec in read.objects}
                )
    appliable = {kind.section for kind in _kinds()}
    problems += [
        f"{name}: expected objects that can be applied" for name in objects if name not in appliable
    ]
    settings = without_objects(merged(layers), sections)
    for key in _BY_ADDRESS:
        if _at(settings, key.split(".")) is not None:
            problems.append(f"{key} is not applied; use 'sluice access'")
    if problems:
        raise CommandError(
            f"the files have {counted(len(problems), 'problem')}",
            exit_codes.USAGE,
            details=problems,
        )
    return objects, settings


def _settings_changes(call: Call, settings: Tree) -> Iterator[_Change]:
    active = call.api.get("/config:tree")["value"] if settings else {}
    for root, value in settings.items():
        body = {"value": value}
        effect = call.api.effect_of("PATCH", name_path("/config", root), body)
        if effect["change"] != "none":
            lines = [
                f"{root}{'.' if key else ''}{key}: {shown(_at(active.get(root), path))} -> {shown(leaf)}"
                for path, leaf in _leaves(value)
                for key in [".".join(path)]
                if _at(active.get(root), path) != leaf
            ]
            yield _Change(
                "setting", root, "change", "PATCH", name_path("/config", root), body, lines
            )


def _object_changes(call: Call, kind: Kind, declared: Mapping[str, Tree]) -> Iterator[_Change]:
    now = _existing(call, kind)
    fixed = {row["name"] for row in call.items(path_of(kind))["items"] if row.get("fixed_by")}
    for name, spec in declared.items():
        path = name_path(path_of(kind), name)
        if name in fixed:
            raise CommandError(
                f"{kind.name} {name!r} is fixed by a file of the broker", exit_codes.CONFLICT
            )
        wanted = kind.as_spec(spec)
        unknown = spec.keys() - wanted.keys() if len(wanted) > 1 else {}
        before = now.get(name)
        if before is None:
            yield _Change(kind.name, name, "create", "PUT", path, spec)
        elif before != wanted or unknown:
            lines = [
                f"{member}: {shown(before.get(member))} -> {shown(wanted.get(member))}"
                for member in dict.fromkeys((*before, *wanted, *unknown))
                if before.get(member) != wanted.get(member) or member in unknown
            ]
            yield _Change(kind.name, name, "change", "PUT", path, spec, lines)
    if kind.abilities.can_reorder:
        names = [*now, *(name for name in declared if name not in now)]
        places = iter([name for name in declared if name not in fixed])
        order = [next(places) if name in declared else name for name in names]
        if order != names:
            yield _Change(
                kind.name,
                ", ".join(declared),
                "reorder",
                "POST",
                f"{path_of(kind)}:reorder",
                {"order": order},
            )


def _deletions(call: Call, kind: Kind, declared: Mapping[str, Tree]) -> Iterator[_Change]:
    rows = call.items(path_of(kind))["items"]
    for row in rows:
        if row["name"] not in declared and not row.get("fixed_by"):
            path = name_path(path_of(kind), row["name"])
            yield _Change(kind.name, row["name"], "delete", "DELETE", path, None)


def _existing(call: Call, kind: Kind) -> dict[str, Tree]:
    """The objects that the API may change, by name, in their order: writable members with defaults."""
    rows = call.items(path_of(kind))["items"]
    return {row["name"]: kind.as_spec(row) for row in rows if not row.get("fixed_by")}


def _saved_settings(call: Call) -> Iterator[SettingRow]:
    rows: Sequence[SettingRow] = call.items("/config", changed="true")["items"]
    for row in rows:
        late = row.get("in_files")
        source = late or row
        is_closed = any(
            row["key"] == key or row["key"].startswith(f"{key}.") for key in _BY_ADDRESS
        )
        if "api.hocon" in source["set_by"] and not is_closed:
            yield {**row, "value": source["value"]}


def _nameless(kind: Kind, spec: Mapping[str, Any]) -> Tree:
    return {member: value for member, value in spec.items() if member != kind.named_by}


def _put(tree: Tree, path: Sequence[str], value: Any) -> None:
    for part in path[:-1]:
        tree = tree.setdefault(part, {})
    tree[path[-1]] = value


def _at(tree: Any, path: Sequence[str]) -> Any:
    for part in path:
        tree = tree.get(part) if isinstance(tree, dict) else None
    return tree


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(inner, (*path, key))
    else:
        yield path, value
