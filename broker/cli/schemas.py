"""Commands of schemas beyond the verbs of every kind: check before saving, versions, differences, inference, modes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from broker.cli import exit_codes
from broker.cli.asking import confirm
from broker.cli.errors import CommandError, checking, hinting
from broker.cli.files import SOURCE_TYPES, read_schemas, read_text
from broker.cli.objects import save
from broker.cli.options import DATA_DIR, DataDirOption, JsonOption, OutputOption, UrlOption, api_client
from broker.core.kinds import kind_at

NameArgument = Annotated[str, typer.Argument()]
ForceOption = Annotated[bool, typer.Option("--force", help="Do it even when it breaks who uses the schema.")]
FileOption = Annotated[str, typer.Option("-f", "--file", help="The source: .avsc, .json or .proto; - is stdin.")]
TypeOption = Annotated[str | None, typer.Option("--type", help="json, avro or protobuf; else by the file's name.")]

_PATH = "/schemas"


def add_to(group: typer.Typer) -> None:
    """Add the commands to the group of the kind."""
    for name, command in (
        ("apply", apply),
        ("check", check),
        ("versions", versions),
        ("use", use),
        ("diff", diff),
        ("users", users),
        ("compatibility", compatibility),
        ("infer", infer),
        ("rm", remove),
    ):
        group.command(name)(command)


def apply(
    file: Annotated[
        str,
        typer.Option("-f", "--file", help="A source (.avsc, .proto, .json), or schemas in HOCON or JSON; - is stdin."),
    ],
    name: Annotated[str | None, typer.Option("--name", help="The name of a source; else the file's.")] = None,
    kind: Annotated[str | None, typer.Option("--type", help="json, avro or protobuf: the file is a source.")] = None,
    force: ForceOption = False,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Create or replace schemas from a file: a source as it is, or objects."""
    schemas = read_schemas(file, name, kind)
    with api_client(url, data_dir) as client:
        save(
            client,
            kind_at("schemas"),
            schemas,
            query="?force=true" if force else "",
            as_json=as_json or output == "json",
        )


def check(
    name: NameArgument,
    file: FileOption,
    kind: TypeOption = None,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
) -> None:
    """Show what a new version would change and break, without saving it. Exit code 7 when it would be rejected."""
    from broker.cli.output import print_json

    body = {"source": read_text(file), **_typed(kind, file)}
    with api_client(url, data_dir) as client, checking():
        found = client.post(f"{_of(name)}:check", body)
    print_json(found) if output == "json" else _print_check(name, found)
    is_compatible = found["compatibility"]["compatible"]
    if not is_compatible or any(item["breaks"] for item in found["impact"]):
        apply_it = f"sluice schemas apply -f {file} --name {name} --force"
        raise CommandError(
            f'schema "{name}" would be rejected',
            exit_codes.CHECK_SAID_NO,
            hint=apply_it if is_compatible else f"sluice schemas compatibility {name} none; {apply_it}",
        )


def versions(
    name: NameArgument, url: UrlOption = None, data_dir: DataDirOption = DATA_DIR, output: OutputOption = "table"
) -> None:
    """The versions of a schema, oldest first."""
    from broker.cli.output import print_json, print_table

    with api_client(url, data_dir) as client, hinting(exit_codes.NOT_FOUND, "sluice schemas ls"):
        found = client.get(f"{_of(name)}/versions")
    if output == "json":
        print_json(found)
        return
    rows = [
        [item["version"], item["id"], _state(item), item["fingerprints"]["sha256"][:12], item["description"]]
        for item in found["items"]
    ]
    print_table(["version", "id", "state", "sha256", "description"], rows)


def use(
    name: NameArgument,
    version: Annotated[str, typer.Argument(help="Its number, or 'latest'.")],
    force: ForceOption = False,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
) -> None:
    """Code payloads by another version, as to take a change back."""
    from broker.cli.output import print_line

    with api_client(url, data_dir) as client, hinting(exit_codes.NOT_FOUND, f"sluice schemas versions {name}"):
        shown = client.post(f"{_of(name)}/versions/{version}:use{'?force=true' if force else ''}")
    print_line(f"schema {name} uses version {shown['version']}")


def diff(
    name: NameArgument,
    before: Annotated[str, typer.Argument(help="A version: its number, 'latest', or 'current'.")],
    after: Annotated[str, typer.Argument(help="Another version.")] = "current",
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
) -> None:
    """What changed between two versions."""
    from broker.cli.output import print_json, print_line

    with api_client(url, data_dir) as client, hinting(exit_codes.NOT_FOUND, f"sluice schemas versions {name}"):
        found = client.get(f"{_of(name)}/diff", before=before, after=after)
    if output == "json":
        print_json(found)
        return
    for change in found["changes"]:
        print_line(change["text"])


def users(
    name: NameArgument, url: UrlOption = None, data_dir: DataDirOption = DATA_DIR, output: OutputOption = "table"
) -> None:
    """Who names a schema: validations, transformations, rules, other schemas."""
    from broker.cli.output import print_json, print_line

    with api_client(url, data_dir) as client, hinting(exit_codes.NOT_FOUND, "sluice schemas ls"):
        found = client.get(f"{_of(name)}/users")
    if output == "json":
        print_json(found)
        return
    for user in (*found["users"], *found["schemas"]):
        print_line(user)


def compatibility(
    name: Annotated[str | None, typer.Argument(help="A schema; '-' for those that do not say it themselves.")] = None,
    mode: Annotated[str | None, typer.Argument(help="none, backward, forward, full, X_transitive, disabled.")] = None,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
) -> None:
    """Show or set what a new version must be able to do."""
    from broker.cli.output import print_json, print_line

    path = f"{_PATH}:compatibility" if name in (None, "-") else f"{_of(str(name))}/compatibility"
    with api_client(url, data_dir) as client, hinting(exit_codes.NOT_FOUND, "sluice schemas ls"):
        found = client.get(path) if mode is None else client.put(path, {"compatibility": mode})[0]
    print_json(found) if output == "json" else print_line(found["compatibility"])


def infer(
    topic: Annotated[str | None, typer.Option("--topic", help="Messages on the topics of a filter.")] = None,
    stream: Annotated[str | None, typer.Option("--stream", help="What a stream holds.")] = None,
    file: Annotated[str | None, typer.Option("-f", "--file", help="A message a line; - is stdin.")] = None,
    kind: Annotated[str, typer.Option("--type", help="json or avro.")] = "json",
    name: Annotated[str, typer.Option("--name", help="Name of the Avro record.")] = "Message",
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
) -> None:
    """Write a schema that messages fit to standard output."""
    from broker.cli.output import print_json, say

    given: dict[str, Any] = {"topic": topic, "stream": stream}
    given["samples"] = None if file is None else [line for line in read_text(file).splitlines() if line.strip()]
    wanted = {key: value for key, value in given.items() if value is not None}
    if len(wanted) != 1:
        raise CommandError("name one of --topic, --stream and --file", exit_codes.USAGE)
    with api_client(url, data_dir) as client:
        found = client.post("/schemas:infer", {"type": kind, "name": name, **wanted})
    if output == "json":
        print_json(found)
        return
    print(found["source"])
    skipped = f", {found['skipped']} were not JSON" if found["skipped"] else ""
    say(f"learnt from {found['messages']} messages{skipped}")
    for warning in found["warnings"]:
        say(f"warning: {warning}")


def remove(
    name: NameArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    force: ForceOption = False,
    permanent: Annotated[bool, typer.Option("--permanent", help="Forget its versions and ids permanently.")] = False,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
) -> None:
    """Remove a schema. Its versions are still found by their ids, unless it is forgotten permanently."""
    from broker.cli.output import print_line

    confirm(f"Remove schema {name!r}?", yes=yes, command=f"sluice schemas rm {name} --yes")
    options = "&".join(option for option, is_set in (("force=true", force), ("permanent=true", permanent)) if is_set)
    with api_client(url, data_dir) as client, hinting(exit_codes.NOT_FOUND, "sluice schemas ls"):
        client.delete(f"{_of(name)}{'?' if options else ''}{options}")
    print_line(f"schema {name} removed")


def _print_check(name: str, found: dict[str, Any]) -> None:
    from broker.cli.output import print_line

    what = f"version {found['version']}" if found["is_new_version"] else f"version {found['version']} again"
    print_line(f"schema {name}, {what}", style="bold")
    for change in found["changes"]:
        print_line(f"  change    {change['text']}")
    verdict = found["compatibility"]
    print_line(f"  {verdict['mode']}  {'compatible' if verdict['compatible'] else 'not compatible'}")
    for reason in verdict.get("reasons", ()):
        print_line(f"  refused   {reason['reader']} cannot read data of {reason['writer']}: {_placed(reason)}")
    for warning in verdict.get("warnings", ()):
        print_line(f"  warning   {_placed(warning)}")
    for effect in found["impact"]:
        print_line(f"  {'breaks' if effect['breaks'] else 'touches'}    {effect['user']}: {effect['why']}")
    if messages := found["messages"]:
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


def _of(name: str) -> str:
    from broker.cli.client import name_path

    return name_path(_PATH, name)


def _typed(kind: str | None, file: str) -> dict[str, str]:
    """The type, where it is said or the file's name tells it; the schema's own otherwise."""
    found = kind or SOURCE_TYPES.get(Path(file).suffix)
    return {} if found is None else {"type": found}
