"""Commands of validations and transformations beyond the verbs of every kind: filters, switches, order, counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from broker.cli import gate_tries
from broker.cli.objects import Name, ResetOption, metrics_of, path_of
from broker.cli.options import DATA_DIR, DataDirOption, JsonOption, OutputOption, UrlOption, api_client
from broker.core.kinds import Kind, kind_at


def add_validations(group: typer.Typer) -> None:
    """Add what validations have beyond the verbs of every kind."""
    _add_to(group, kind_at("validations"))
    group.command("try")(gate_tries.try_validations)


def add_transforms(group: typer.Typer) -> None:
    """Add what transformations have beyond the verbs of every kind."""
    _add_to(group, kind_at("transforms"))
    group.command("try")(gate_tries.try_transforms)


def _add_to(group: typer.Typer, kind: Kind) -> None:
    _add_list(group, kind)
    _add_metrics(group, kind)


def _add_list(group: typer.Typer, kind: Kind) -> None:
    @group.command("ls", help=f"List {kind.many} in their order, with what they did.")
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
            found = client.items(path_of(kind), **{name: value for name, value in wanted.items() if value is not None})
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


def _add_metrics(group: typer.Typer, kind: Kind) -> None:
    @group.command("metrics", help=f"Show the counters and rates of {kind.one}, and its last failures.")
    def metrics(
        name: Name,
        reset: ResetOption = False,
        url: UrlOption = None,
        data_dir: DataDirOption = DATA_DIR,
        output: OutputOption = "table",
        as_json: JsonOption = False,
    ) -> None:
        from broker.cli.output import print_json

        shown = metrics_of(kind, name, url, data_dir, reset=reset, part="")
        answer = {"name": name, "metrics": shown["metrics"], "recent_failures": shown["recent_failures"]}
        print_json(answer) if as_json or output == "json" else _show_metrics(answer)


def _show_metrics(answer: Mapping[str, Any]) -> None:
    from broker.cli.output import print_line, print_members, print_table

    print_members(answer["metrics"])
    if failures := answer["recent_failures"]:
        print_line("")
        columns = ("topic", "clientid", "path", "reason", "action")
        print_table(columns, [[failure[column] for column in columns] for failure in failures])
