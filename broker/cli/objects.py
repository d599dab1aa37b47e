"""Noun groups over the API: ``sluice rules ls``, ``show``, ``apply``, ``rm``, and the same for every kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from broker.cli import exit_codes
from broker.cli.errors import CommandError, hinting
from broker.cli.files import read_objects
from broker.cli.options import DATA_DIR, DataDirOption, JsonOption, OutputOption, UrlOption, api_client
from broker.cli.single import remove_one, show_one
from broker.core.kinds import Kind, Switch

if TYPE_CHECKING:
    from broker.cli.client import ApiClient

SLOW_S: Final = 120
"""Longest wait for a call that opens or closes connections."""
Name = Annotated[str, typer.Argument(help="Its name.")]
Names = Annotated[list[str], typer.Argument(help="Their names.")]
ResetOption = Annotated[bool, typer.Option("--reset", help="Set the counters to zero first.")]


def group_for(kind: Kind) -> typer.Typer:
    """The commands of a kind: the verbs of every kind, and those that its declaration names."""
    group = typer.Typer(help=f"List, show, save and remove {kind.many}.", no_args_is_help=True)
    _add_list(group, kind)
    _add_show(group, kind)
    _add_apply(group, kind)
    _add_remove(group, kind)
    for switch in kind.abilities.switches:
        _add_switch(group, kind, switch)
    if kind.abilities.can_reorder:
        _add_reorder(group, kind)
    if kind.abilities.has_metrics:
        _add_metrics(group, kind)
    return group


def lists(kind: Kind) -> str:
    """The command that lists a kind, for hints."""
    return f"sluice {' '.join(kind.commands)} ls"


def path_of(kind: Kind) -> str:
    """Where the API has the kind."""
    return f"/{kind.path}"


def _add_list(group: typer.Typer, kind: Kind) -> None:
    @group.command("ls", help=f"List all {kind.many} in their order.")
    def list_objects(
        url: UrlOption = None,
        data_dir: DataDirOption = DATA_DIR,
        output: OutputOption = "table",
        as_json: JsonOption = False,
    ) -> None:
        from broker.cli.output import print_json, print_table

        with api_client(url, data_dir) as client:
            items = list(client.items(path_of(kind)))
        if as_json or output == "json":
            print_json({"items": items, "next": None, "total": len(items), "total_is_estimate": False})
            return
        rows = [[_cell(item.get(member)) for member in kind.columns.values()] for item in items]
        print_table(list(kind.columns), rows)


def _add_show(group: typer.Typer, kind: Kind) -> None:
    @group.command("show", help=f"Show {kind.one}.")
    def show_object(
        name: Annotated[str, typer.Argument()],
        url: UrlOption = None,
        data_dir: DataDirOption = DATA_DIR,
        output: OutputOption = "table",
        as_json: JsonOption = False,
    ) -> None:
        is_json = as_json or output == "json"
        show_one(path_of(kind), name, hint=lists(kind), url=url, data_dir=data_dir, is_json=is_json)


def _add_apply(group: typer.Typer, kind: Kind) -> None:
    @group.command("apply", help=f"Create or replace {kind.many} from a file.")
    def apply_objects(
        file: Annotated[str, typer.Option("-f", "--file", help="JSON or HOCON: one object, or a list; - is stdin.")],
        url: UrlOption = None,
        data_dir: DataDirOption = DATA_DIR,
        output: OutputOption = "table",
        as_json: JsonOption = False,
    ) -> None:
        with api_client(url, data_dir) as client:
            save(client, kind, read_objects(file), as_json=as_json or output == "json")


def save(
    client: ApiClient,
    kind: Kind,
    objects: Sequence[Mapping[str, Any]],
    *,
    query: str = "",
    as_json: bool,
    only_new: bool = False,
) -> None:
    """Create or replace objects, or only create them, and print what was done, with warnings."""
    from broker.cli.client import name_path
    from broker.cli.output import print_json, print_line, problem_text, say

    applied = []
    for spec in objects:
        with _about(kind, spec["name"]):
            if only_new:
                saved, is_new = client.post(path_of(kind) + query, spec), True
            else:
                saved, is_new = client.put(name_path(path_of(kind), spec["name"]) + query, spec)
        applied.append(saved)
        if not as_json:
            print_line(f"{kind.short} {spec['name']} {'created' if is_new else 'replaced'}")
            for warning in saved.get("warnings", ()):
                say(f"warning: {problem_text(warning)}")
    if as_json:
        print_json({"items": applied})


def _add_remove(group: typer.Typer, kind: Kind) -> None:
    @group.command("rm", help=f"Remove {kind.one}.")
    def remove_object(
        name: Annotated[str, typer.Argument()],
        yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
        url: UrlOption = None,
        data_dir: DataDirOption = DATA_DIR,
        as_json: JsonOption = False,
    ) -> None:
        question, command = f"Remove {kind.short} {name!r}?", f"sluice {' '.join(kind.commands)} rm {name} --yes"
        remove_one(
            path_of(kind), name, what=kind.short, question=question, command=command, hint=lists(kind),
            yes=yes, url=url, data_dir=data_dir, as_json=as_json, none_left=kind.none_left,
        )  # fmt: skip


def _add_switch(group: typer.Typer, kind: Kind, switch: Switch) -> None:
    @group.command(switch.verb, help=switch.text.format(kind.one))
    def switch_objects(
        names: Names, url: UrlOption = None, data_dir: DataDirOption = DATA_DIR, as_json: JsonOption = False
    ) -> None:
        from broker.cli.client import name_path
        from broker.cli.output import print_json, print_line

        answers = []
        with api_client(url, data_dir, SLOW_S) as client, hinting(exit_codes.NOT_FOUND, lists(kind)):
            for name in names:
                answers.append(client.post(f"{name_path(path_of(kind), name)}:{switch.verb}"))
                if not as_json:
                    print_line(f"{kind.short} {name} {switch.done}")
        if as_json:
            print_json({"items": answers})


def _add_reorder(group: typer.Typer, kind: Kind) -> None:
    @group.command("reorder", help=f"Change the order of {kind.many}: those named come first, the others keep theirs.")
    def reorder(
        names: Names, url: UrlOption = None, data_dir: DataDirOption = DATA_DIR, as_json: JsonOption = False
    ) -> None:
        from broker.cli.output import print_json, print_line

        with api_client(url, data_dir) as client, hinting(exit_codes.FAILED, lists(kind)):
            others = [item["name"] for item in client.items(path_of(kind)) if item["name"] not in names]
            order = [*names, *others]
            ordered = client.post(f"{path_of(kind)}:reorder", {"order": order})
        print_json(ordered) if as_json else print_line(f"order: {', '.join(order)}")


def _add_metrics(group: typer.Typer, kind: Kind) -> None:
    @group.command("metrics", help=f"Show the counters and rates of {kind.one}.")
    def metrics(
        name: Name,
        reset: ResetOption = False,
        url: UrlOption = None,
        data_dir: DataDirOption = DATA_DIR,
        output: OutputOption = "table",
        as_json: JsonOption = False,
    ) -> None:
        from broker.cli.output import print_json, print_members

        found = metrics_of(kind, name, url, data_dir, reset=reset)
        print_json(found) if as_json or output == "json" else print_members(found)


def metrics_of(kind: Kind, name: str, url: str | None, data_dir: Path, *, reset: bool, part: str = "/metrics") -> Any:
    """The counters of an object, reset first with ``--reset``; ``part`` is the part of the object to read."""
    from broker.cli.client import name_path

    path = name_path(path_of(kind), name)
    with api_client(url, data_dir) as client, hinting(exit_codes.NOT_FOUND, lists(kind)):
        if reset:
            client.post(f"{path}/metrics:reset")
        return client.get(f"{path}{part}")


def _cell(value: Any) -> Any:
    """Lists in a cell: topics as words, actions by their types."""
    if isinstance(value, list):
        words = [item.get("type", "…") if isinstance(item, dict) else str(item) for item in value]
        return ", ".join(map(str, words))
    return value


@contextmanager
def _about(kind: Kind, name: str) -> Iterator[None]:
    """Says which object of a file an error is about."""
    try:
        yield
    except CommandError as error:
        subject = f"{kind.short} {name!r}"
        if error.document is not None and subject not in str(error):
            error.args = (f"{subject}: {error}",)
        raise
