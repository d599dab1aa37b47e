"""The commands of the kinds of objects, from the declarations of the kinds (``broker.core.kinds``)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import Parameter as Argument
from inspect import Signature
from typing import Annotated, Any, Final, get_args

import typer

from broker.cli import exit_codes
from broker.cli.client import name_path
from broker.cli.command import SLOW_S, Call, command
from broker.cli.errors import CommandError, hinting
from broker.cli.files import read_objects, read_text
from broker.cli.output import print_line, print_members, problem_text, say
from broker.core.kinds import Kind, Switch

Name = Annotated[str, typer.Argument(help="Its name.")]
Names = Annotated[list[str], typer.Argument(help="Their names.")]
FileOption = Annotated[
    str, typer.Option("-f", "--file", help="JSON or HOCON: one object, or a list; - is stdin.")
]
CascadeOption = Annotated[
    bool, typer.Option("--cascade", help="Remove what uses it too: all of it, or nothing.")
]
DrainOption = Annotated[
    bool, typer.Option("--drain", help="Let its connections stay until they end.")
]
_CALL_AND_NAME: Final = (("call", Call), ("name", Name))
ToOption = Annotated[
    str,
    typer.Option(
        "--to", metavar="POSITION", help="New place: top, bottom, before:NAME or after:NAME."
    ),
]
ResetOption = Annotated[bool, typer.Option("--reset", help="Set the counters to zero first.")]


def add_show(
    group: typer.Typer,
    path: str,
    argument: Any,
    *,
    help: str,
    known: str,
    text: Callable[[Any], None] = print_members,
    timeout_s: float = 30,
) -> None:
    """Add ``show``: what is at a path of the API by its name, which is this argument."""

    def show_one(call: Call, name: Any) -> None:
        call.show(call.api.get(name_path(path, name)), text)

    show_one.__annotations__["name"] = argument
    command(group, "show", help=help, known=known, timeout_s=timeout_s)(show_one)


def _add_remove(group: typer.Typer, kind: Kind) -> None:
    help = f"Remove {kind.one}. {kind.deletion}".rstrip()

    @command(group, "rm", help=help, known=lists(kind), confirms=True, writes=True)
    def remove_one(call: Call, name: Name, cascade: CascadeOption = False) -> None:
        remove(call, path_of(kind), [name], what=kind.short, query=query_of(cascade=cascade))
        if kind.none_left and not call.api.get(path_of(kind))["items"]:
            say(kind.none_left)


def remove(call: Call, path: str, names: Sequence[str], *, what: str, query: str = "") -> None:
    """Ask, with the effects, then remove what is at a path by these names."""
    places = [f"{name_path(path, name)}{query}" for name in names]
    call.confirm(
        f"Remove {what} {', '.join(map(repr, names))}?",
        [("DELETE", place, None) for place in places],
    )
    for name, place in zip(names, places, strict=True):
        call.api.delete(place)
        if not call.is_json:
            call.show(None, f"{what} {name} removed")
    if call.is_json:
        call.show({"removed": [*names]})


def query_of(**flags: bool) -> str:
    """The query with these flags: ``?force=true``."""
    query = "&".join(f"{name}=true" for name, is_set in flags.items() if is_set)
    return f"?{query}" if query else ""


def for_each(call: Call, names: Sequence[str], act: Callable[[str], Any], done: str) -> None:
    """Do something with each name and print ``done`` about each, with the name in place of ``{}``."""
    answers = []
    for name in names:
        answers.append(act(name))
        if not call.is_json:
            print_line(done.format(name))
    if call.is_json:
        call.show({"items": answers})


def group_for(kind: Kind) -> typer.Typer:
    """The commands of a kind: the verbs of every kind, and those that its declaration names."""
    group = typer.Typer(help=f"List, show, save and remove {kind.many}.", no_args_is_help=True)
    path = path_of(kind)
    names = lists(kind)
    verbs = kind.abilities.verbs

    @command(group, "ls", help=f"List all {kind.many} in their order.")
    def list_all(call: Call) -> None:
        call.show_rows(call.items(path), kind.columns)

    add_show(group, path, Name, help=f"Show {kind.one}.", known=names)
    if "put" in verbs:
        _add_apply(group, kind)
    if kind.put:
        function: Any = _PutFunction(kind)  # typer reads its signature
        command(
            group, "put", help=f"Create {kind.one}, or change its {_words(kind.put)}.", writes=True
        )(function)
    if "delete" in verbs:
        _add_remove(group, kind)
    for switch in kind.abilities.switches:
        _add_switch(group, kind, switch)
    if kind.abilities.can_reorder:
        _add_reorder(group, kind)
    if kind.abilities.metrics:
        _add_metrics(group, kind)
    return group


def lists(kind: Kind) -> str:
    """The command that lists a kind, for hints."""
    return f"sluice {' '.join(kind.commands)} ls"


def path_of(kind: Kind) -> str:
    """Path of the kind in the API."""
    return f"/{kind.path}"


def _add_apply(group: typer.Typer, kind: Kind) -> None:
    @command(group, "apply", help=f"Create or replace {kind.many} from a file.", writes=True)
    def apply_objects(call: Call, file: FileOption) -> None:
        save(call, kind, read_objects(file, may_have_any_name=kind.has_any_name))


def save(
    call: Call,
    kind: Kind,
    objects: Sequence[Mapping[str, Any]],
    *,
    query: str = "",
    only_new: bool = False,
) -> None:
    """Create or replace objects, or only create them, and print what was done, with warnings."""
    applied = []
    for spec in objects:
        with about(f"{kind.short} {spec['name']!r}"):
            if only_new:
                saved = call.api.post(path_of(kind) + query, spec)
                is_new = True
            else:
                saved, is_new = call.api.put(name_path(path_of(kind), spec["name"]) + query, spec)
        applied.append(saved)
        if not call.is_json:
            show_saved(
                call, saved, f"{kind.short} {spec['name']} {'created' if is_new else 'replaced'}"
            )
            for warning in saved.get("warnings", ()):
                say(f"warning: {problem_text(warning)}")
    if call.is_json:
        call.show({"items": applied})


class _PutFunction:
    """The function of ``put``: its options are members of the spec. Those that are left out stay as they are."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self.__name__ = "put"

    @property
    def __signature__(self) -> Signature:
        """The parameters that typer reads. They import the model, so they are worked out when the command runs."""
        arguments = [
            Argument(name, Argument.POSITIONAL_OR_KEYWORD, annotation=of)
            for name, of in _CALL_AND_NAME
        ]
        for name, help in self._members.items():
            option = name.replace("_", "-")
            if name in self._secrets:
                text = f"A file with the {option}; - is standard input. Default: standard input, or asks on a terminal."
                info = typer.Option(f"--{option}-file", metavar="FILE", help=text)
            else:
                info = typer.Option(f"--{option}", metavar="TEXT", help=help.replace("`", ""))
            annotation: Any = Annotated[str | None, info]
            arguments.append(
                Argument(name, Argument.KEYWORD_ONLY, annotation=annotation, default=None)
            )
        return Signature(arguments)

    @property
    def _members(self) -> Mapping[str, str]:
        fields = self._kind.spec_models()[0].model_fields
        return {name: fields[name].description for name in self._kind.put}

    @property
    def _secrets(self) -> Collection[str]:
        from broker.config.secrets import Secret

        fields = self._kind.spec_models()[0].model_fields
        return [name for name in self._kind.put if Secret in get_args(fields[name].annotation)]

    def __call__(self, call: Call, name: str, **options: str | None) -> None:
        kind = self._kind
        secrets = {member: _secret(member, options.pop(member)) for member in self._secrets}
        saved: Mapping[str, Any] = {"name": name}
        try:
            saved = call.api.get(name_path(path_of(kind), name))
        except CommandError as error:
            if error.exit_code != exit_codes.NOT_FOUND:
                raise
        changed = {member: value for member, value in options.items() if value is not None}
        save(call, kind, [{**saved, **changed, **secrets}])


def _secret(member: str, file: str | None) -> str:
    """A secret from a file, standard input or the terminal. It is not an argument: all users of the machine can see
    those. One line end behind it is not a part of it."""
    if file is None and sys.stdin.isatty():
        answer: str = typer.prompt(
            member.capitalize(), hide_input=True, confirmation_prompt=True, err=True
        )
        return answer
    text = read_text(file or "-")
    return text.removesuffix("\n").removesuffix("\r")


def _words(names: Sequence[str]) -> str:
    return " and ".join(name.replace("_", " ") for name in names)


def show_saved(call: Call, saved: Mapping[str, Any], done: str) -> None:
    """Print the result. A generated password or token goes to standard output, alone."""
    for secret in ("password", "token"):
        if secret in saved and not call.is_json:
            say(f"{done}; its {secret}, shown this once:")
            done = saved[secret]
    call.show(saved, done)


def _add_switch(group: typer.Typer, kind: Kind, switch: Switch) -> None:
    adding = command(
        group,
        switch.verb,
        help=switch.text.format(kind.one),
        known=lists(kind),
        timeout_s=SLOW_S,
        writes=True,
    )

    def run(call: Call, names: Sequence[str], query: str = "") -> None:
        done = f"{kind.short} {{}} {switch.done}"
        verb = f":{switch.verb}{query}"
        for_each(
            call, names, lambda name: call.api.post(f"{name_path(path_of(kind), name)}{verb}"), done
        )

    if switch.drains:

        @adding
        def drain_objects(call: Call, names: Names, drain: DrainOption = False) -> None:
            run(call, names, query_of(drain=drain))
    else:

        @adding
        def switch_objects(call: Call, names: Names) -> None:
            run(call, names)


def _add_reorder(group: typer.Typer, kind: Kind) -> None:
    @command(
        group,
        "reorder",
        help=f"Change the order of {kind.many}: those named come first, or where --to says; the others keep theirs.",
        writes=True,
    )
    def reorder(call: Call, names: Names, to: ToOption = "") -> None:
        with hinting(exit_codes.FAILED, lists(kind)):
            if to:
                ordered = call.api.post(
                    f"{path_of(kind)}:reorder", {"order": list(names), "position": to}
                )
                call.show(ordered, f"order: {', '.join(item['name'] for item in ordered['items'])}")
                return
            items = list(call.api.items(path_of(kind)))
            others = [item["name"] for item in items if item["name"] not in names]
            fixed = {item["name"] for item in items if item.get("fixed_by")}
            # Objects that a configuration file defines come before all others.
            order = sorted([*names, *others], key=lambda name: name not in fixed)
            ordered = call.api.post(f"{path_of(kind)}:reorder", {"order": order})
        call.show(ordered, f"order: {', '.join(order)}")


def _add_metrics(group: typer.Typer, kind: Kind) -> None:
    @command(
        group, "metrics", help=f"Show the counters and rates of {kind.one}.", known=lists(kind)
    )
    def metrics(call: Call, name: Name, reset: ResetOption = False) -> None:
        call.show(metrics_of(call, kind, name, reset=reset))


def metrics_of(call: Call, kind: Kind, name: str, *, reset: bool, part: str = "/metrics") -> Any:
    """The counters of an object, reset first with ``--reset``; ``part`` is the part of the object to read."""
    path = name_path(path_of(kind), name)
    if reset:
        call.api.post(f"{path}/metrics:reset")
    return call.api.get(f"{path}{part}")


@contextmanager
def about(subject: str) -> Iterator[None]:
    """Says which object of several an error of the API is about."""
    try:
        yield
    except CommandError as error:
        if error.document is not None and subject not in str(error):
            error.args = (f"{subject}: {error}",)
        raise
