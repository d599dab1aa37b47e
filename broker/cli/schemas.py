"""Commands of schemas beyond the verbs of every kind: check before saving, versions, differences, inference, modes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from broker.cli import exit_codes
from broker.cli.client import name_path
from broker.cli.command import Call, command
from broker.cli.errors import CommandError, hinting
from broker.cli.files import SOURCE_TYPES, read_schemas, read_text
from broker.cli.objects import CascadeOption, query_of, remove, save
from broker.cli.output import print_line, print_table, say
from broker.core.kinds import counted, kind_at

NameArgument = Annotated[str, typer.Argument()]
ForceOption = Annotated[
    bool, typer.Option("--force", help="Do it even when it breaks what uses the schema.")
]
FileOption = Annotated[
    str, typer.Option("-f", "--file", help="The source: .avsc, .json or .proto; - is stdin.")
]
TypeOption = Annotated[
    str | None, typer.Option("--type", help="json, avro or protobuf; else by the file's name.")
]

_PATH = "/schemas"
_KNOWN = "sluice schemas ls"


def add_to(group: typer.Typer) -> None:
    """Add the commands to the group of the kind."""
    command(group, "apply", writes=True)(apply)
    command(group, "check", is_check=True)(check)
    command(group, "compatibility", known=_KNOWN)(compatibility)
    command(group, "use", writes=True)(use)
    command(group, "diff")(diff)
    command(group, "infer")(infer)
    command(group, "rm", known=_KNOWN, confirms=True, writes=True)(remove_schema)


def apply(
    call: Call,
    file: Annotated[
        str,
        typer.Option(
            "-f",
            "--file",
            help="A source (.avsc, .proto, .json), or schemas in HOCON or JSON; - is stdin.",
        ),
    ],
    name: Annotated[
        str | None, typer.Option("--name", help="The name of a source; else the file's.")
    ] = None,
    kind: Annotated[
        str | None, typer.Option("--type", help="json, avro or protobuf: the file is a source.")
    ] = None,
    force: ForceOption = False,
) -> None:
    """Create or replace schemas from a file: a source as it is, or objects."""
    save(call, kind_at("schemas"), read_schemas(file, name, kind), query=_forced(force))


def _forced(force: bool) -> str:
    return "?force=true" if force else ""


def check(call: Call, name: NameArgument, file: FileOption, kind: TypeOption = None) -> None:
    """Show what a new version would change and break, without saving it. Exit code 7 when it would be rejected."""
    body = {"source": read_text(file)}
    if type := kind or SOURCE_TYPES.get(Path(file).suffix):
        body["type"] = type
    check = call.api.post(f"{name_path(_PATH, name)}:check", body)
    call.show(check, lambda _: _print_check(name, check))
    is_compatible = check["compatibility"]["compatible"]
    if not is_compatible or any(item["breaks"] for item in check["impact"]):
        apply_it = f"sluice schemas apply -f {file} --name {name} --force"
        raise CommandError(
            f'schema "{name}" would be rejected',
            exit_codes.CHECK_SAID_NO,
            hint=apply_it
            if is_compatible
            else f"sluice schemas compatibility {name} none; {apply_it}",
        )


def print_versions(answer: Mapping[str, Any]) -> None:
    """Print the versions of a schema, each with its state."""
    rows = [
        [
            item["version"],
            item["id"],
            _state(item),
            item["fingerprints"]["sha256"][:12],
            item["description"],
        ]
        for item in answer["items"]
    ]
    print_table(["version", "id", "state", "sha256", "description"], rows)


def use(
    call: Call,
    name: NameArgument,
    version: Annotated[str, typer.Argument(help="Its number, or 'latest'.")],
    force: ForceOption = False,
) -> None:
    """Encode and decode payloads by another version, as to revert a change."""
    with hinting(exit_codes.NOT_FOUND, f"sluice schemas versions {name}"):
        shown = call.api.post(f"{name_path(_PATH, name)}/versions/{version}:use{_forced(force)}")
    call.show(shown, f"schema {name} uses version {shown.get('version')}")


def diff(
    call: Call,
    name: NameArgument,
    before: Annotated[str, typer.Argument(help="A version: its number, 'latest', or 'current'.")],
    after: Annotated[str, typer.Argument(help="Another version.")] = "current",
) -> None:
    """Show what changed between two versions."""
    with hinting(exit_codes.NOT_FOUND, f"sluice schemas versions {name}"):
        diff = call.api.get(f"{name_path(_PATH, name)}/diff", before=before, after=after)
    call.show(diff, lambda _: _print_lines(change["text"] for change in diff["changes"]))


def print_users(uses: Mapping[str, Any]) -> None:
    """Print what names a schema, one a line."""
    _print_lines((*uses["users"], *uses["schemas"]))


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        print_line(line)


def compatibility(
    call: Call,
    name: Annotated[
        str | None, typer.Argument(help="A schema; '-' for the default of schemas without a mode.")
    ] = None,
    mode: Annotated[
        str | None, typer.Argument(help="none, backward, forward, full, X_transitive, disabled.")
    ] = None,
) -> None:
    """Show or set what a new version must be compatible with."""
    path = (
        f"{_PATH}:compatibility"
        if name in (None, "-")
        else f"{name_path(_PATH, str(name))}/compatibility"
    )
    setting = call.api.get(path) if mode is None else call.api.put(path, {"compatibility": mode})[0]
    call.show(setting, setting["compatibility"])


def infer(
    call: Call,
    topic: Annotated[
        str | None, typer.Option("--topic", help="Messages on the topics of a filter.")
    ] = None,
    stream: Annotated[str | None, typer.Option("--stream", help="What a stream holds.")] = None,
    file: Annotated[
        str | None, typer.Option("-f", "--file", help="A message a line; - is stdin.")
    ] = None,
    kind: Annotated[str, typer.Option("--type", help="json or avro.")] = "json",
    name: Annotated[str, typer.Option("--name", help="Name of the Avro record.")] = "Message",
) -> None:
    """Infer a schema from messages and print it to standard output."""
    options: dict[str, Any] = {"topic": topic, "stream": stream}
    options["samples"] = (
        None if file is None else [line for line in read_text(file).splitlines() if line.strip()]
    )
    wanted = {key: value for key, value in options.items() if value is not None}
    if len(wanted) != 1:
        raise CommandError("name one of --topic, --stream and --file", exit_codes.USAGE)
    call.show(
        call.api.post("/schemas:infer", {"type": kind, "name": name, **wanted}), _print_inferred
    )


def _print_inferred(answer: Mapping[str, Any]) -> None:
    print(answer["source"])
    skipped = f", {answer['skipped']} were not JSON" if answer["skipped"] else ""
    say(f"inferred from {counted(answer['messages'], 'message')}{skipped}")
    for warning in answer["warnings"]:
        say(f"warning: {warning}")


def remove_schema(
    call: Call,
    name: NameArgument,
    force: ForceOption = False,
    permanent: Annotated[
        bool, typer.Option("--permanent", help="Delete its versions and ids permanently.")
    ] = False,
    version: Annotated[
        int | None, typer.Option("--version", min=1, help="Remove this version only.")
    ] = None,
    cascade: CascadeOption = False,
) -> None:
    """Remove a schema or one of its versions. Versions are still found by their ids, unless deleted permanently."""
    if version is None:
        query = query_of(force=force, permanent=permanent, cascade=cascade)
        remove(call, _PATH, [name], what="schema", query=query)
    elif cascade:
        raise CommandError(
            "--cascade removes a whole schema; leave --version out", exit_codes.USAGE
        )
    else:
        place = f"{name_path(_PATH, name)}/versions/{version}{query_of(force=force, permanent=permanent)}"
        call.confirm(f"Remove version {version} of schema {name!r}?", [("DELETE", place, None)])
        call.api.delete(place)
        call.show({"removed": [version]}, f"version {version} of schema {name} removed")


def _print_check(name: str, answer: dict[str, Any]) -> None:
    version = (
        f"version {answer['version']}"
        if answer["is_new_version"]
        else f"version {answer['version']} again"
    )
    print_line(f"schema {name}, {version}", style="bold")
    for change in answer["changes"]:
        print_line(f"  change    {change['text']}")
    verdict = answer["compatibility"]
    print_line(
        f"  {verdict['mode']}  {'compatible' if verdict['compatible'] else 'not compatible'}"
    )
    for reason in verdict.get("reasons", ()):
        print_line(
            f"  refused   {reason['reader']} cannot read data of {reason['writer']}: {_placed(reason)}"
        )
    for warning in verdict.get("warnings", ()):
        print_line(f"  warning   {_placed(warning)}")
    for effect in answer["impact"]:
        print_line(
            f"  {'breaks' if effect['breaks'] else 'touches'}    {effect['user']}: {effect['why']}"
        )
    if messages := answer["messages"]:
        print_line(
            f"  messages  of {messages['tried']} recent ones {messages['newly_refused']} would be refused that pass "
            f"now, {messages['newly_accepted']} would pass that are refused"
        )
        for reason in messages["reasons"]:
            print_line(
                f"            {reason['count']} × {reason['path']}: {reason['reason']} (as on {reason['topic']})"
            )


def _placed(entry: dict[str, Any]) -> str:
    return f"{entry['path']}: {entry['message']}" if entry["path"] else str(entry["message"])


def _state(item: dict[str, Any]) -> str:
    return "deleted" if item.get("deleted") else "in use" if item["in_use"] else ""
