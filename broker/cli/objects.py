"""Noun groups over the API: ``sluice rules ls``, ``show``, ``apply``, ``rm``, and the same for every kind."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from broker.cli import exit_codes
from broker.cli.errors import CommandError
from broker.cli.options import DataDirOption, JsonOption, OutputOption, UrlOption, api_client


@dataclass(frozen=True, slots=True)
class Noun:
    """A kind of objects. ``columns`` are shown by ``ls``: heading to member of the object."""

    plural: str
    singular: str
    path: str
    columns: Mapping[str, str] = field(default_factory=dict)


NOUNS: Sequence[Noun] = (
    Noun("rules", "rule", "/rules", {"name": "name", "enabled": "enable", "sql": "sql", "actions": "actions"}),
    Noun("schemas", "schema", "/schemas", {"name": "name", "type": "type", "version": "version"}),
    Noun(
        "schema-registries",
        "schema-registry",
        "/schema-registries",
        {"name": "name", "type": "type", "url": "url", "cached": "cached", "last error": "last_error"},
    ),
    Noun(
        "validations",
        "validation",
        "/validations",
        {"name": "name", "topics": "topics", "strategy": "strategy", "on failure": "failure_action"},
    ),
    Noun(
        "transforms", "transform", "/transforms", {"name": "name", "topics": "topics", "on failure": "failure_action"}
    ),
    Noun(
        "rewrites",
        "rewrite",
        "/rewrites",
        {
            "name": "name",
            "action": "action",
            "source": "source_topic",
            "re": "re",
            "destination": "dest_topic",
            "enabled": "enable",
        },
    ),
    Noun(
        "auto-subscriptions",
        "auto-subscription",
        "/auto-subscriptions",
        {"name": "name", "topic": "topic", "qos": "qos", "enabled": "enable"},
    ),
    Noun("streams", "stream", "/streams", {"name": "name", "kind": "kind", "topics": "topics", "records": "records"}),
)
TABLES = Noun(
    "tables",
    "table",
    "/lake/tables",
    {"name": "name", "stream": "stream", "format": "format", "path": "path", "state": "state"},
)


def group_for(noun: Noun, where: str) -> typer.Typer:
    """The commands of a kind; ``where`` is how the group is called on the command line, for hints."""
    group = typer.Typer(help=f"List, show, make and remove {noun.plural}.", no_args_is_help=True)

    @group.command("ls", help=f"List all {noun.plural} in their order.")
    def list_objects(
        url: UrlOption = None,
        data_dir: DataDirOption = Path("data"),
        output: OutputOption = "table",
        as_json: JsonOption = False,
    ) -> None:
        from broker.cli.output import print_json, print_table

        with api_client(url, data_dir) as client:
            items = list(client.items(noun.path))
        if as_json or output == "json":
            print_json({"items": items, "next": None, "total": len(items), "total_is_estimate": False})
            return
        rows = [[_cell(item.get(member)) for member in noun.columns.values()] for item in items]
        print_table(list(noun.columns), rows)

    @group.command("show", help=f"Show one {noun.singular}.")
    def show_object(
        name: Annotated[str, typer.Argument()],
        url: UrlOption = None,
        data_dir: DataDirOption = Path("data"),
        output: OutputOption = "table",
        as_json: JsonOption = False,
    ) -> None:
        from broker.cli.client import name_path
        from broker.cli.output import print_json, print_members

        with api_client(url, data_dir) as client, hinting(exit_codes.NOT_FOUND, f"{where} ls"):
            shown = client.get(name_path(noun.path, name))
        print_json(shown) if as_json or output == "json" else print_members(shown)

    @group.command("apply", help=f"Make or replace {noun.plural} from a file.")
    def apply_objects(
        file: Annotated[str, typer.Option("-f", "--file", help="JSON or HOCON: one object, or a list; - is stdin.")],
        url: UrlOption = None,
        data_dir: DataDirOption = Path("data"),
        output: OutputOption = "table",
        as_json: JsonOption = False,
    ) -> None:
        from broker.cli.client import name_path
        from broker.cli.output import print_json, print_line

        objects = read_objects(file)
        is_json = as_json or output == "json"
        applied = []
        with api_client(url, data_dir) as client:
            for spec in objects:
                with _about(noun, spec["name"]):
                    saved, is_new = client.put(name_path(noun.path, spec["name"]), spec)
                applied.append(saved)
                if not is_json:
                    print_line(f"{noun.singular} {spec['name']} {'created' if is_new else 'replaced'}")
        if is_json:
            print_json({"items": applied})

    @group.command("rm", help=f"Remove one {noun.singular}.")
    def remove_object(
        name: Annotated[str, typer.Argument()],
        yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
        url: UrlOption = None,
        data_dir: DataDirOption = Path("data"),
        as_json: JsonOption = False,
    ) -> None:
        from broker.cli.client import name_path
        from broker.cli.output import print_json, print_line

        confirm(f"Remove {noun.singular} {name!r}?", yes=yes, command=f"{where} rm {name} --yes")
        with api_client(url, data_dir) as client, hinting(exit_codes.NOT_FOUND, f"{where} ls"):
            client.delete(name_path(noun.path, name))
        print_json({"removed": [name]}) if as_json else print_line(f"{noun.singular} {name} removed")

    return group


@contextmanager
def hinting(exit_code: int, hint: str) -> Iterator[None]:
    """Adds the next thing to try to errors of one exit code."""
    try:
        yield
    except CommandError as error:
        if error.exit_code == exit_code and error.hint is None:
            error.hint = hint
        raise


def confirm(question: str, *, yes: bool, command: str) -> None:
    """Ask on a terminal; elsewhere refuse unless ``--yes`` was given."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandError("this changes things and nobody is there to be asked", exit_codes.USAGE, hint=command)
    if not typer.confirm(question, err=True):
        raise CommandError("nothing was changed")


def read_objects(file: str) -> list[dict[str, Any]]:
    """The objects of a file, each with its name.

    Raises:
        CommandError: the file cannot be read, or holds something else.
    """
    value = _parsed(read_text(file), "standard input" if file == "-" else file)
    objects = value if isinstance(value, list) else [value]
    for number, spec in enumerate(objects, 1):
        if not isinstance(spec, dict) or not isinstance(spec.get("name"), str) or not spec["name"]:
            which = f"object {number} of {file}" if isinstance(value, list) else file
            raise CommandError(f"{which} needs a name that is a text, as {{ name = meters, ... }}", exit_codes.USAGE)
        if "/" in spec["name"]:  # no path of the API leads to it
            raise CommandError(f"{spec['name']!r} is not a name: use letters, digits, '_', '-', '.'", exit_codes.USAGE)
    if not objects:
        raise CommandError(f"{file} holds no objects", exit_codes.USAGE)
    return objects


def read_text(file: str) -> str:
    """The text of a file, or of standard input as ``-``. Raises ``CommandError``."""
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text("utf-8-sig")
    except UnicodeDecodeError:
        raise CommandError(f"{file} is not UTF-8 text", exit_codes.USAGE) from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise CommandError(f"{file} cannot be read ({reason})", exit_codes.USAGE) from None


def _parsed(text: str, name: str) -> Any:
    """JSON is HOCON, so one reader takes both; a HOCON file may leave out the braces around its one object."""
    from broker.config.hocon import parse_text, parse_value
    from broker.config.hocon_reader import HoconError

    try:
        return parse_value(text, name) if text.lstrip()[:1] == "[" else parse_text(text, name).values
    except HoconError as error:
        raise CommandError(str(error), exit_codes.USAGE) from None


def _cell(value: Any) -> Any:
    """Lists in a cell: topics as words, actions by their types."""
    if isinstance(value, list):
        words = [item.get("type", "…") if isinstance(item, dict) else str(item) for item in value]
        return ", ".join(map(str, words))
    return value


@contextmanager
def _about(noun: Noun, name: str) -> Iterator[None]:
    """Says which object of a file an error is about."""
    try:
        yield
    except CommandError as error:
        subject = f"{noun.singular} {name!r}"
        if error.document is not None and subject not in str(error):
            error.args = (f"{subject}: {error}",)
        raise
