"""``sluice rules``: the life of a rule from creation over its versions to removal, its counters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from broker.cli import exit_codes
from broker.cli.client import name_path
from broker.cli.command import Call, command
from broker.cli.errors import CommandError, hinting
from broker.cli.files import read_objects
from broker.cli.objects import CascadeOption, for_each, query_of, save
from broker.cli.objects import remove as remove_objects
from broker.cli.output import print_line, print_members, print_table
from broker.core.kinds import kind_at

Name = Annotated[str, typer.Argument(help="The name of a rule.")]
Names = Annotated[list[str], typer.Argument(help="Names of rules.")]
File = Annotated[
    str, typer.Option("-f", "--file", help="JSON or HOCON: one rule, or a list; - is stdin.")
]
Force = Annotated[bool, typer.Option("--force", help="Save it even when it fails its test cases.")]
KNOWN = "sluice rules ls"
_FORCED = "?force=true"


def add_to(group: typer.Typer) -> None:
    """Give the group of rules these commands, some in place of those that every kind has."""
    command(group, "ls")(list_rules)
    for name, writing in (("create", create), ("apply", apply)):
        command(group, name, writes=True)(writing)
    for name, of_one in (("show", show), ("metrics", metrics), ("reset", reset)):
        command(group, name, known=KNOWN)(of_one)
    command(group, "rm", known=KNOWN, confirms=True, writes=True)(remove)
    command(group, "restore", writes=True)(restore)
    command(group, "create-table", known=KNOWN, writes=True)(create_table)
    command(group, "diff")(diff)


def list_rules(
    call: Call,
    enabled: Annotated[
        bool | None, typer.Option("--enabled/--disabled", help="Only those.")
    ] = None,
    match: Annotated[
        str | None, typer.Option("--match", help="Rules that read this topic, or topic filter.")
    ] = None,
    like: Annotated[str | None, typer.Option("--like", help="Part of the name.")] = None,
    action: Annotated[
        str | None, typer.Option("--action", help="republish, stream:hot, kafka:orders ...")
    ] = None,
) -> None:
    """List rules in their order, with their counters."""
    rows = call.items("/rules", enable=enabled, match_from=match, like_id=like, action=action)
    call.show_rows(rows, kind_at("rules").columns)


def show(
    call: Call,
    name: Name,
    code: Annotated[
        bool, typer.Option("--code", help="The Python function that it was compiled to.")
    ] = False,
    spark: Annotated[
        bool,
        typer.Option("--spark", help="The same rule as Spark SQL, where that is proven equal."),
    ] = (False),
    versions: Annotated[bool, typer.Option("--versions", help="Its versions.")] = False,
) -> None:
    """Show a rule; or the program it was compiled to, its Spark SQL, its versions."""
    if code + spark + versions > 1:
        raise CommandError("choose one of --code, --spark and --versions", exit_codes.USAGE)
    if versions:
        answer = call.api.get(f"{name_path('/rules', name)}/versions")
        call.show_rows(answer, {"version": "version", "saved at": "saved_at", "change": "change"})
        return
    part = "/code" if code else "/spark" if spark else ""
    call.show(
        call.api.get(name_path("/rules", name) + part), _print_source if part else print_members
    )


def _print_source(shown: Mapping[str, Any]) -> None:
    for line in shown["source"].rstrip("\n").split("\n"):
        print_line(line)


def create(call: Call, file: File, force: Force = False) -> None:
    """Create rules from a file; fails where one of that name exists."""
    save(call, kind_at("rules"), read_objects(file), query=_FORCED if force else "", only_new=True)


def apply(call: Call, file: File, force: Force = False) -> None:
    """Create or replace rules from a file; their test cases run first."""
    save(call, kind_at("rules"), read_objects(file), query=_FORCED if force else "")


def remove(
    call: Call,
    names: Names,
    force: Annotated[
        bool, typer.Option("--force", help="Also when rules read its rows or tables run it.")
    ] = False,
    cascade: CascadeOption = False,
) -> None:
    """Remove rules, their versions with them."""
    remove_objects(call, "/rules", names, what="rule", query=query_of(force=force, cascade=cascade))


def reset(call: Call, names: Names) -> None:
    """Set the counters of rules to zero."""

    def reset_one(name: str) -> Any:
        call.api.post(f"{name_path('/rules', name)}/metrics:reset")
        return {"name": name}

    for_each(call, names, reset_one, "counters of rule {} are zero")


def metrics(call: Call, name: Name) -> None:
    """Show the counters and rates of a rule and of each of its actions, and how long it takes."""
    call.show(call.api.get(f"{name_path('/rules', name)}/metrics"), _show_metrics)


def _show_metrics(answer: Mapping[str, Any]) -> None:
    times = answer["evaluation_s"]
    members = {key: value for key, value in answer.items() if isinstance(value, (int, float))}
    print_members({**members, **{f"evaluation {key}": _time(times[key]) for key in ("p50", "p99")}})
    if answer["actions"]:
        counts = ("total", "success", "failed.out_of_service", "failed.unknown", "discarded")
        rows = [
            [f"{action['type']} {action['name']}", *(action["metrics"][key] for key in counts)]
            for action in answer["actions"]
        ]
        print_table(["action", *counts], rows)


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds * 1e6:,.1f} µs"


def restore(
    call: Call,
    name: Name,
    version: Annotated[int, typer.Argument(help="The version to go back to.")],
    force: Force = False,
) -> None:
    """Go back to a version of a rule; it is saved as a new version."""
    path = f"{name_path('/rules', name)}/versions/{version}:restore"
    with hinting(exit_codes.NOT_FOUND, f"sluice rules versions {name}"):
        restored = call.api.post(path + (_FORCED if force else ""))
    done = f'rolled back rule "{name}" to version {version} (saved as version {restored.get("version")})'
    call.show(restored, done)


def create_table(
    call: Call,
    name: Name,
    format: Annotated[str, typer.Option("--format", help="delta, or iceberg.")] = "delta",
    follows: Annotated[
        str,
        typer.Option(
            "--follows",
            help="messages: the table runs the rule over a stream of messages; a replay applies a corrected rule to "
            "older ones. rows: the table holds what the rule wrote; a corrected rule changes later rows only.",
        ),
    ] = "messages",
) -> None:
    """Create a table that runs a rule over a stream of messages, or that follows the rule's rows."""
    table = call.api.post(
        f"{name_path('/rules', name)}:create-table", {"format": format, "follows": follows}
    )
    done = f"created table {table.get('name')} of stream {table.get('stream')}"
    call.show(table, f"{done}, over which it runs rule {name}" if table.get("rule") else done)


def diff(
    call: Call,
    name: Name,
    before: Annotated[
        int | None, typer.Argument(metavar="[FROM]", help="A version; the last but one.")
    ] = None,
    after: Annotated[
        int | None, typer.Argument(metavar="[TO]", help="Another; the newest.")
    ] = None,
) -> None:
    """Show what changed from one version of a rule to another."""
    path = f"{name_path('/rules', name)}/versions"
    with hinting(exit_codes.NOT_FOUND, f"sluice rules versions {name}"):
        newest = after or call.api.get(path)["items"][0]["version"]
        diff = call.api.get(f"{path}/{before or max(1, newest - 1)}/diff", to=newest)
    call.show(diff, _print_diff)


def _print_diff(answer: Mapping[str, Any]) -> None:
    styles = {"+": "green", "-": "red", "@": "cyan"}
    for line in answer["text"].split("\n") if answer["text"] else ["nothing changed"]:
        print_line(line, style=styles.get(line[:1], ""))
