"""Commands of validations and transformations beyond the verbs of every kind: filters, switches, order, counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from broker.cli import exit_codes, gate_tries
from broker.cli.errors import hinting
from broker.cli.objects import Noun
from broker.cli.options import DATA_DIR, DataDirOption, JsonOption, OutputOption, UrlOption, api_client

Name = Annotated[str, typer.Argument(help="Its name.")]
Names = Annotated[list[str], typer.Argument(help="Their names.")]


def add_gate_commands(group: typer.Typer, noun: Noun, where: str) -> None:
    """Add what validations and transformations have in common."""
    _add_list(group, noun)
    _add_switch(group, noun, where, "enable", f"Switch {noun.plural} on.")
    _add_switch(group, noun, where, "disable", f"Switch {noun.plural} off; they are kept, not run and not counted.")
    _add_order(group, noun, where)
    _add_metrics(group, noun, where)
    group.command("try")(gate_tries.try_validations if noun.plural == "validations" else gate_tries.try_transforms)


def _add_list(group: typer.Typer, noun: Noun) -> None:
    @group.command("ls", help=f"List {noun.plural} in their order, with what they did.")
    def list_gates(
        topic: Annotated[str | None, typer.Option("--topic", help="Those on this topic, or topic filter.")] = None,
        schema: Annotated[str | None, typer.Option("--schema", help="Those that name this schema.")] = None,
        schema_type: Annotated[str | None, typer.Option("--type", help="sql, json, avro, protobuf ...")] = None,
        enabled: Annotated[bool | None, typer.Option("--enabled/--disabled", help="Only those.")] = None,
        mode: Annotated[str | None, typer.Option("--mode", help="enforce, or shadow.")] = None,
        like: Annotated[str | None, typer.Option("--like", help="Part of the name.")] = None,
        url: UrlOption = None,
        data_dir: DataDirOption = DATA_DIR,
        output: OutputOption = "table",
        as_json: JsonOption = False,
    ) -> None:
        from broker.cli.output import print_json, print_table

        switched = None if enabled is None else str(enabled).lower()
        wanted = {
            "topic": topic, "schema_name": schema, "schema_type": schema_type, "enable": switched, "mode": mode,
            "like_name": like,
        }  # fmt: skip
        with api_client(url, data_dir) as client:
            found = client.items(noun.path, **{name: value for name, value in wanted.items() if value is not None})
            items = list(found)
        if as_json or output == "json":
            print_json({"items": items, "next": None, "total": len(items), "total_is_estimate": False})
            return
        print_table(
            ("name", "enabled", "topics", "on failure", "matched", "succeeded", "failed", "per second"),
            [_row(item) for item in items],
        )


def _row(item: Mapping[str, Any]) -> Sequence[Any]:
    did = item.get("metrics", {})
    action = "shadow" if item.get("mode") == "shadow" else item.get("failure_action")
    counts = [did.get(name) for name in ("matched", "succeeded", "failed", "rate")]
    return [item["name"], item.get("enable"), ", ".join(item.get("topics", ())), action, *counts]


def _add_switch(group: typer.Typer, noun: Noun, where: str, verb: str, what: str) -> None:
    @group.command(verb, help=what)
    def switch(
        names: Names, url: UrlOption = None, data_dir: DataDirOption = DATA_DIR, as_json: JsonOption = False
    ) -> None:
        from broker.cli.client import name_path
        from broker.cli.output import print_json, print_line

        answers = []
        with api_client(url, data_dir) as client, hinting(exit_codes.NOT_FOUND, f"{where} ls"):
            for name in names:
                answers.append(client.post(f"{name_path(noun.path, name)}:{verb}"))
                if not as_json:
                    print_line(f"{noun.singular} {name} {verb}d")
        if as_json:
            print_json({"items": answers})


def _add_order(group: typer.Typer, noun: Noun, where: str) -> None:
    @group.command("reorder", help=f"Bring all {noun.plural} into an order.")
    def reorder(
        names: Annotated[list[str], typer.Argument(help="All of them, in the order in which they are to run.")],
        url: UrlOption = None,
        data_dir: DataDirOption = DATA_DIR,
        as_json: JsonOption = False,
    ) -> None:
        from broker.cli.output import print_json, print_line

        with api_client(url, data_dir) as client, hinting(exit_codes.FAILED, f"{where} ls"):
            ordered = client.post(f"{noun.path}:reorder", {"order": names})
        print_json(ordered) if as_json else print_line(f"order: {', '.join(names)}")


def _add_metrics(group: typer.Typer, noun: Noun, where: str) -> None:
    @group.command("metrics", help=f"Counters and rates of a {noun.singular}, and its last failures.")
    def metrics(
        name: Name,
        reset: Annotated[bool, typer.Option("--reset", help="Set them to zero.")] = False,
        url: UrlOption = None,
        data_dir: DataDirOption = DATA_DIR,
        output: OutputOption = "table",
        as_json: JsonOption = False,
    ) -> None:
        from broker.cli.client import name_path
        from broker.cli.output import print_json

        with api_client(url, data_dir) as client, hinting(exit_codes.NOT_FOUND, f"{where} ls"):
            path = name_path(noun.path, name)
            if reset:
                client.post(f"{path}/metrics:reset")
            shown = client.get(path)
        answer = {"name": name, "metrics": shown["metrics"], "recent_failures": shown["recent_failures"]}
        print_json(answer) if as_json or output == "json" else _show_metrics(answer)


def _show_metrics(answer: Mapping[str, Any]) -> None:
    from broker.cli.output import print_line, print_members, print_table

    print_members(answer["metrics"])
    if failures := answer["recent_failures"]:
        print_line("")
        columns = ("topic", "clientid", "path", "reason", "action")
        print_table(columns, [[failure[column] for column in columns] for failure in failures])
