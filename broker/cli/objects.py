"""Noun groups over the API: ``sluice rules ls``, ``show``, ``apply``, ``rm``, and the same for every kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker.cli.errors import CommandError
from broker.cli.files import read_objects
from broker.cli.options import DATA_DIR, DataDirOption, JsonOption, OutputOption, UrlOption, api_client
from broker.cli.single import remove_one, show_one

if TYPE_CHECKING:
    from broker.cli.client import ApiClient


@dataclass(frozen=True, slots=True)
class Noun:
    """A kind of objects.

    ``columns`` are shown by ``ls``: heading to member of the object; ``none_left`` when the last one is removed.
    """

    plural: str
    singular: str
    path: str
    columns: Mapping[str, str] = field(default_factory=dict)
    none_left: str = ""


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
    _add_list(group, noun)
    _add_show(group, noun, where)
    _add_apply(group, noun)
    _add_remove(group, noun, where)
    return group


def _add_list(group: typer.Typer, noun: Noun) -> None:
    @group.command("ls", help=f"List all {noun.plural} in their order.")
    def list_objects(
        url: UrlOption = None,
        data_dir: DataDirOption = DATA_DIR,
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


def _add_show(group: typer.Typer, noun: Noun, where: str) -> None:
    @group.command("show", help=f"Show one {noun.singular}.")
    def show_object(
        name: Annotated[str, typer.Argument()],
        url: UrlOption = None,
        data_dir: DataDirOption = DATA_DIR,
        output: OutputOption = "table",
        as_json: JsonOption = False,
    ) -> None:
        is_json = as_json or output == "json"
        show_one(noun.path, name, hint=f"{where} ls", url=url, data_dir=data_dir, is_json=is_json)


def _add_apply(group: typer.Typer, noun: Noun) -> None:
    @group.command("apply", help=f"Make or replace {noun.plural} from a file.")
    def apply_objects(
        file: Annotated[str, typer.Option("-f", "--file", help="JSON or HOCON: one object, or a list; - is stdin.")],
        url: UrlOption = None,
        data_dir: DataDirOption = DATA_DIR,
        output: OutputOption = "table",
        as_json: JsonOption = False,
    ) -> None:
        with api_client(url, data_dir) as client:
            save(client, noun, read_objects(file), as_json=as_json or output == "json")


def save(
    client: ApiClient, noun: Noun, objects: Sequence[Mapping[str, Any]], *, query: str = "", as_json: bool
) -> None:
    """Create or replace objects, and print what was done."""
    from broker.cli.client import name_path
    from broker.cli.output import print_json, print_line

    applied = []
    for spec in objects:
        with _about(noun, spec["name"]):
            saved, is_new = client.put(name_path(noun.path, spec["name"]) + query, spec)
        applied.append(saved)
        if not as_json:
            print_line(f"{noun.singular} {spec['name']} {'created' if is_new else 'replaced'}")
    if as_json:
        print_json({"items": applied})


def _add_remove(group: typer.Typer, noun: Noun, where: str) -> None:
    @group.command("rm", help=f"Remove one {noun.singular}.")
    def remove_object(
        name: Annotated[str, typer.Argument()],
        yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
        url: UrlOption = None,
        data_dir: DataDirOption = DATA_DIR,
        as_json: JsonOption = False,
    ) -> None:
        question, command = f"Remove {noun.singular} {name!r}?", f"{where} rm {name} --yes"
        remove_one(
            noun.path, name, what=noun.singular, question=question, command=command, hint=f"{where} ls",
            yes=yes, url=url, data_dir=data_dir, as_json=as_json, none_left=noun.none_left,
        )  # fmt: skip


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
