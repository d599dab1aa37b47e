"""``sluice export`` and ``sluice apply``: objects and settings of a running broker as files like sluice.conf."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
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

_FILE: Final = "sluice.conf"
# File with objects that a broker cannot start with: identities without their passwords, and bans.
_ACCESS_FILE: Final = "access.conf"
# Place in files of kinds that have no section of objects, by their path.
_PLACES: Final[Mapping[str, str]] = {
    "authentication": "authentication",
    "authorization/sources": "authorization.sources",
    "bans": "bans",
}
# Members that are sent when an object is created, and that no answer has; a new object needs the first or the second.
_ONCE: Final[Mapping[str, Sequence[str]]] = {
    "users": ("password",),
    "accounts": ("password",),
    "tokens": ("sha256",),
    "secrets": ("value", "encrypted"),
}
# Members that are not declared: times and names that answers have, and the wish for a generated password.
_NOT_DECLARED: Final = frozenset(("created_at", "updated_at", "password_changed_at", "generate"))
# Number of labels in one request.
_LABELS: Final = 500
Tree = dict[str, Any]


def _place(kind: Kind) -> str:
    """Place of the objects of a kind in files; empty for those that files do not declare."""
    place = kind.section or _PLACES.get(kind.path, "")
    return place if "put" in kind.abilities.verbs or kind.path == "bans" else ""


def _kinds() -> Sequence[Kind]:
    """The kinds that files declare, secrets first, since others refer to them."""
    return sorted(filter(_place, kinds()), key=lambda kind: kind.path != "secrets")


def _name_of(kind: Kind, spec: Mapping[str, Any]) -> str:
    if kind.path == "bans":
        return f"{spec.get('as')}/{spec.get('who')}"
    return str(spec.get(kind.named_by))


def _form(kind: Kind, spec: Mapping[str, Any]) -> Tree:
    """The members of an object that files declare, with defaults."""
    left_out = {*_NOT_DECLARED, *_ONCE.get(kind.path, ())}
    left_out |= {"name"} if kind.section is None else set()
    return {member: value for member, value in kind.as_spec(spec).items() if member not in left_out}


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
    """Write objects and settings that the API has saved to DIR, which 'sluice apply' reads.

    Users, accounts, tokens, secrets and bans are in DIR/access.conf, the others in DIR/sluice.conf. Secrets are stars,
    which keep those of the broker; passwords, hashes of tokens and values of secrets are not written. Bans that the
    broker made of clients that come and go are left out.
    """
    from broker.auth.bans import BY_BROKER

    tree: Tree = {}
    access: Tree = {}
    closed = set[str]()
    for row in _saved_settings(call):
        if place := _closed(row["key"]):
            closed.add(place)
        else:
            _put(tree, tuple(row["key"].split(".")), row["value"])
    count = 0
    for kind in _kinds():
        place = _place(kind)
        existing = _existing(call, kind)
        if kind.path == "bans":
            existing = {name: spec for name, spec in existing.items() if spec["by"] != BY_BROKER}
        objects: Any = {name: _nameless(kind, spec) for name, spec in existing.items()}
        if kind.section is None:
            objects = list(existing.values()) if kind.path == "bans" or place in closed else []
        count += len(objects)
        if objects:
            is_access = kind.path in _ONCE or kind.path == "bans"
            _put(access if is_access else tree, tuple(place.split(".")), objects)
    file = directory / _FILE
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in ((_ACCESS_FILE, access), (_FILE, tree)):
            temporary = directory / f"{name}.new"
            temporary.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
            temporary.replace(directory / name)
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
            "--prune",
            help="Delete applied objects that the files lack, of kinds that the files have.",
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the plan; exit code 9 if there are differences."),
    ] = False,
) -> None:
    """Make the objects and settings of a running broker those that files declare, in the form of sluice.conf.

    What the files do not name stays, unless --prune. Applying the same files again changes nothing.
    """
    declared, settings = _declared(files)
    changes = [*_settings_changes(call, settings)]
    for kind in _kinds():
        if _place(kind) in declared:
            changes += _object_changes(call, kind, declared[_place(kind)])
    owned = {label["id"] for label in call.api.get("/applied")["items"]}
    if prune:
        for kind in reversed(_kinds()):
            if _place(kind) in declared:
                changes += _deletions(call, kind, declared[_place(kind)], owned)
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
        _label(call, declared, owned)
    answer = {"dry_run": dry_run, "items": [change.as_item() for change in changes]}
    text = (
        "nothing to change"
        if not changes
        else f"{counted(len(changes), 'change')}{'' if dry_run else ' applied'}"
    )
    call.show(answer, text)
    if dry_run and changes:
        raise typer.Exit(exit_codes.DIFFERENT)


def _declared(paths: Sequence[Path]) -> tuple[dict[str, dict[str, Tree]], Tree]:
    """The objects of files by section and name, and their settings as a tree."""
    from broker.config.hocon_reader import HoconError
    from broker.config.layers import file_layer, find_main_files, merged
    from broker.config.objects import objects_in, without_objects

    sections = [tuple(name.split(".")) for name in object_sections()]
    lists = {place: kind for kind in _kinds() if kind.section is None for place in [_place(kind)]}
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
    appliable = {_place(kind) for kind in _kinds()}
    problems += [
        f"{name}: expected objects that can be applied" for name in objects if name not in appliable
    ]
    tree = merged(layers)
    for place, kind in lists.items():
        value = _at(tree, place.split("."))
        if not isinstance(value, list | None) or not all(
            isinstance(spec, dict) for spec in value or ()
        ):
            problems.append(f"{place}: expected a list of objects")
        elif value is not None:
            objects[place] = {_name_of(kind, spec): spec for spec in value}
    settings = without_objects(tree, [*sections, *(tuple(place.split(".")) for place in lists)])
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
    created_with = _ONCE.get(kind.path, ())
    fixed = {row["name"] for row in call.items(path_of(kind))["items"] if row.get("fixed_by")}
    for name, spec in declared.items():
        path = name_path(path_of(kind), name)
        if name in fixed:
            raise CommandError(
                f"{kind.name} {name!r} is fixed by a file of the broker", exit_codes.CONFLICT
            )
        wanted = _form(kind, spec)
        permitted = {
            *wanted,
            *created_with,
            *_NOT_DECLARED,
            *({"name"} if kind.section is None else ()),
        }
        unknown = spec.keys() - permitted if len(wanted) > 1 else {}
        before = now.get(name)
        if kind.path == "bans":
            if before is None or any(before.get(key) != wanted.get(key) for key in spec):
                change = "create" if before is None else "change"
                yield _Change(kind.name, name, change, "POST", path_of(kind), spec)
        elif before is None and created_with and not spec.keys() & set(created_with):
            raise CommandError(
                f"{kind.name} {name!r}: expected {' or '.join(created_with)}, since the broker does not have it",
                exit_codes.USAGE,
            )
        elif before is None:
            yield _Change(kind.name, name, "create", "PUT", path, spec)
        elif before != wanted or unknown:
            lines = [
                f"{member}: {shown(before.get(member))} -> {shown(wanted.get(member))}"
                for member in dict.fromkeys((*before, *wanted, *unknown))
                if before.get(member) != wanted.get(member) or member in unknown
            ]
            sent = {member: value for member, value in spec.items() if member not in created_with}
            yield _Change(kind.name, name, "change", "PUT", path, sent, lines)
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


def _deletions(
    call: Call, kind: Kind, declared: Mapping[str, Tree], owned: Collection[str]
) -> Iterator[_Change]:
    rows = call.items(path_of(kind))["items"]
    for row in rows:
        is_owned = f"{kind.path}/{row['name']}" in owned
        if is_owned and row["name"] not in declared and not row.get("fixed_by"):
            path = name_path(path_of(kind), row["name"])
            yield _Change(kind.name, row["name"], "delete", "DELETE", path, None)


def _existing(call: Call, kind: Kind) -> dict[str, Tree]:
    """The objects that the API may change, by name, in their order: writable members with defaults."""
    rows = call.items(path_of(kind))["items"]
    if kind.path == "bans":  # those that a person or program created, by their names
        rows = sorted(rows, key=lambda row: str(row["name"]))
    return {row["name"]: _form(kind, row) for row in rows if not row.get("fixed_by")}


def _label(call: Call, declared: Mapping[str, Mapping[str, Tree]], owned: Collection[str]) -> None:
    """Mark the objects of the files as applied."""
    wanted = [f"{kind.path}/{name}" for kind in _kinds() for name in declared.get(_place(kind), ())]
    new = [label for label in wanted if label not in owned]
    for begin in range(0, len(new), _LABELS):
        call.api.post("/applied:mark", {"add": new[begin : begin + _LABELS]})


def _closed(key: str) -> str:
    """Place of the objects that a setting belongs to, if any."""
    places = [place for place in _PLACES.values() if key == place or key.startswith(f"{place}.")]
    return places[0] if places else ""


def _saved_settings(call: Call) -> Iterator[SettingRow]:
    rows: Sequence[SettingRow] = call.items("/config", changed="true")["items"]
    for row in rows:
        late = row.get("in_files")
        source = late or row
        if "api.hocon" in source["set_by"]:
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
