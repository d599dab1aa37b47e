"""``sluice rules``: the life of a rule from creation over its versions to removal, and what it did."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from broker.cli import exit_codes
from broker.cli.asking import confirm
from broker.cli.errors import CommandError, hinting
from broker.cli.files import read_objects
from broker.cli.objects import save
from broker.cli.options import DATA_DIR, DataDirOption, JsonOption, OutputOption, UrlOption, api_client
from broker.core.kinds import kind_at

Name = Annotated[str, typer.Argument(help="The name of a rule.")]
Names = Annotated[list[str], typer.Argument(help="Names of rules.")]
File = Annotated[str, typer.Option("-f", "--file", help="JSON or HOCON: one rule, or a list; - is stdin.")]
Force = Annotated[bool, typer.Option("--force", help="Save it even when it fails its test cases.")]
KNOWN = "sluice rules ls"


def list_rules(
    enabled: Annotated[bool | None, typer.Option("--enabled/--disabled", help="Only those.")] = None,
    match: Annotated[str | None, typer.Option("--match", help="Rules that read this topic, or topic filter.")] = None,
    like: Annotated[str | None, typer.Option("--like", help="Part of the name.")] = None,
    action: Annotated[str | None, typer.Option("--action", help="republish, stream:hot, kafka:orders ...")] = None,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """List rules in their order, with what they did."""
    from broker.cli.output import print_json, print_table

    switched = None if enabled is None else str(enabled).lower()
    wanted = {"enable": switched, "match_from": match, "like_id": like, "action": action}
    with api_client(url, data_dir) as client:
        items = list(client.items("/rules", **{name: value for name, value in wanted.items() if value is not None}))
    if as_json or output == "json":
        print_json({"items": items, "next": None, "total": len(items), "total_is_estimate": False})
        return
    print_table(
        ["name", "enabled", "version", "matched", "passed", "no result", "failed", "per second", "sql"],
        [_list_row(item) for item in items],
    )


def _list_row(rule: Mapping[str, Any]) -> Sequence[Any]:
    did = rule.get("metrics", {})
    counts = [did.get(name) for name in ("matched", "passed", "failed.no_result", "failed.exception", "matched.rate")]
    return [rule["name"], rule.get("enable"), rule.get("version"), *counts, rule.get("sql")]


def show(
    name: Name,
    code: Annotated[bool, typer.Option("--code", help="The Python function that it was compiled to.")] = False,
    spark: Annotated[bool, typer.Option("--spark", help="The same rule as Spark SQL, where that is proven equal.")] = (
        False
    ),
    versions: Annotated[bool, typer.Option("--versions", help="Its versions.")] = False,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Show a rule; or the program it was compiled to, its Spark SQL, its versions."""
    from broker.cli.output import print_json, print_line, print_members

    if code + spark + versions > 1:
        raise CommandError("choose one of --code, --spark and --versions", exit_codes.USAGE)
    if versions:
        list_versions(name, url, data_dir, output, as_json)
        return
    part = "/code" if code else "/spark" if spark else ""
    shown = _get(name, part, url, data_dir)
    if as_json or output == "json":
        print_json(shown)
    elif part:
        for line in shown["source"].rstrip("\n").split("\n"):
            print_line(line)
    else:
        print_members(shown)


def create(
    file: File,
    force: Force = False,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Make rules from a file; fails where one of that name exists."""
    _save(file, url, data_dir, as_json=as_json or output == "json", force=force, only_new=True)


def apply(
    file: File,
    force: Force = False,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Make or replace rules from a file; their test cases run first."""
    _save(file, url, data_dir, as_json=as_json or output == "json", force=force, only_new=False)


def _save(file: str, url: str | None, data_dir: Path, *, as_json: bool, force: bool, only_new: bool) -> None:
    query = "?force=true" if force else ""
    with api_client(url, data_dir) as client:
        save(client, kind_at("rules"), read_objects(file), query=query, as_json=as_json, only_new=only_new)


def delete(
    names: Names,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Also when other rules read its rows.")] = False,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    as_json: JsonOption = False,
) -> None:
    """Remove rules, their versions with them."""
    from broker.cli.client import name_path
    from broker.cli.output import print_json, print_line

    which = ", ".join(map(repr, names))
    confirm(f"Remove rule {which}?", yes=yes, command=f"sluice rules rm {' '.join(names)} --yes")
    query = "?force=true" if force else ""
    with api_client(url, data_dir) as client, hinting(exit_codes.NOT_FOUND, KNOWN):
        for name in names:
            client.delete(name_path("/rules", name) + query)
            if not as_json:
                print_line(f"rule {name} removed")
    if as_json:
        print_json({"removed": names})


def reset(names: Names, url: UrlOption = None, data_dir: DataDirOption = DATA_DIR, as_json: JsonOption = False) -> None:
    """Set the counters of rules to zero."""
    from broker.cli.client import name_path
    from broker.cli.output import print_json, print_line

    with api_client(url, data_dir) as client, hinting(exit_codes.NOT_FOUND, KNOWN):
        for name in names:
            client.post(f"{name_path('/rules', name)}/metrics:reset")
            if not as_json:
                print_line(f"rule {name} counts from zero")
    if as_json:
        print_json({"items": [{"name": name} for name in names]})


def metrics(
    name: Name,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Counters and rates of a rule and of each of its actions, and how long it takes."""
    from broker.cli.output import print_json, print_members, print_table

    found = _get(name, "/metrics", url, data_dir)
    if as_json or output == "json":
        print_json(found)
        return
    times = found["evaluation_s"]
    members = {key: value for key, value in found.items() if isinstance(value, (int, float))}
    print_members({**members, **{f"evaluation {key}": _time(times[key]) for key in ("p50", "p99")}})
    if found["actions"]:
        counts = ("total", "success", "failed.out_of_service", "failed.unknown", "discarded")
        rows = [[f"{one['type']} {one['name']}", *(one["metrics"][key] for key in counts)] for one in found["actions"]]
        print_table(["action", *counts], rows)


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds * 1e6:,.1f} µs"


def list_versions(
    name: Name,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """List the versions of a rule that are kept, newest first."""
    from broker.cli.output import print_json, print_table

    found = _get(name, "/versions", url, data_dir)
    if as_json or output == "json":
        print_json(found)
        return
    print_table(
        ["version", "saved at", "change"],
        [[one["version"], one["saved_at"], one["change"]] for one in found["items"]],
    )


def restore(
    name: Name,
    version: Annotated[int, typer.Argument(help="The version to go back to.")],
    force: Force = False,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    as_json: JsonOption = False,
) -> None:
    """Make a rule again what it was, as a new version."""
    from broker.cli.client import name_path
    from broker.cli.output import print_json, print_line

    query = "?force=true" if force else ""
    with api_client(url, data_dir) as client, hinting(exit_codes.NOT_FOUND, f"sluice rules versions {name}"):
        restored = client.post(f"{name_path('/rules', name)}/versions/{version}:restore{query}")
    if as_json:
        print_json(restored)
    else:
        print_line(f"rule {name} is version {version} again, as version {restored['version']}")


def diff(
    name: Name,
    before: Annotated[int | None, typer.Argument(metavar="[FROM]", help="A version; the last but one.")] = None,
    after: Annotated[int | None, typer.Argument(metavar="[TO]", help="Another; the newest.")] = None,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Show what changed from one version of a rule to another."""
    from broker.cli.client import name_path
    from broker.cli.output import print_json, print_line

    path = f"{name_path('/rules', name)}/versions"
    with api_client(url, data_dir) as client, hinting(exit_codes.NOT_FOUND, f"sluice rules versions {name}"):
        newest = after or client.get(path)["items"][0]["version"]
        found = client.get(f"{path}/{before or max(1, newest - 1)}/diff", to=newest)
    if as_json or output == "json":
        print_json(found)
        return
    styles = {"+": "green", "-": "red", "@": "cyan"}
    for line in found["text"].split("\n") if found["text"] else ["nothing changed"]:
        print_line(line, style=styles.get(line[:1], ""))


def _get(name: str, part: str, url: str | None, data_dir: Path) -> Any:
    from broker.cli.client import name_path

    with api_client(url, data_dir) as client, hinting(exit_codes.NOT_FOUND, KNOWN):
        return client.get(name_path("/rules", name) + part)


def add_to(group: typer.Typer) -> None:
    """Give the group of rules these commands, some in place of those that every kind has."""
    commands: dict[str, Callable[..., None]] = {
        "ls": list_rules, "show": show, "create": create, "apply": apply, "rm": delete, "metrics": metrics,
        "reset": reset, "versions": list_versions,
        "restore": restore, "diff": diff,
    }  # fmt: skip
    for name, command in commands.items():
        group.command(name)(command)
