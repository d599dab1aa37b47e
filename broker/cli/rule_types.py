"""``sluice rules check`` and ``sluice rules lineage``: types of a rule's rows, and what they are made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from broker.cli import exit_codes
from broker.cli.errors import CommandError, checking, hinting
from broker.cli.files import read_objects, read_text
from broker.cli.options import DATA_DIR, DataDirOption, OutputOption, UrlOption, api_client

JsonOption = Annotated[bool, typer.Option("--json", help="As JSON, like -o json.")]


def check(
    context: typer.Context,
    file: Annotated[
        str | None, typer.Argument(help="A .sql file; else JSON or HOCON: a rule, or a list; - is stdin.")
    ] = None,
    sql: Annotated[str | None, typer.Option("--sql", help="SQL instead of a file.")] = None,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Check rules without saving them: their problems, the types of their rows, and where each column comes from.

    Exit code 7 when a rule cannot be saved.
    """
    from broker.cli.output import print_json

    is_json = _is_json(context, output, as_json)
    rules = _rules(file, sql)
    reports = []
    with api_client(url, data_dir) as client:
        for rule in rules:
            with _about(rule.get("name")), checking():
                reports.append({"name": rule.get("name"), **client.post("/rules:check", rule)})
    if is_json:
        print_json(reports[0] if len(reports) == 1 else {"items": reports})
        return
    for report in reports:
        _print_report(report)


def lineage(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="A rule.")],
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Show what the columns of a rule's rows are made of."""
    from broker.cli.client import name_path
    from broker.cli.output import print_json

    is_json = _is_json(context, output, as_json)
    with api_client(url, data_dir) as client, hinting(exit_codes.NOT_FOUND, "sluice rules ls"):
        found = client.get(f"{name_path('/rules', name)}/lineage")
    if is_json:
        print_json(found)
        return
    _print_lineage(found)


def add_to(group: typer.Typer) -> None:
    """Give the group of rules these commands."""
    group.command()(check)
    group.command()(lineage)


def _is_json(context: typer.Context, output: str, as_json: bool) -> bool:
    """Whether to print JSON; errors are told in it too then."""
    if as_json:
        context.find_root().ensure_object(dict)["format"] = "json"
    return as_json or output == "json"


def _rules(file: str | None, sql: str | None) -> Sequence[Mapping[str, Any]]:
    if (file is None) == (sql is None):
        raise CommandError("name a file or give --sql", exit_codes.USAGE, hint="sluice rules check rules.conf")
    if sql is None and file is not None and file.endswith(".sql"):
        sql = read_text(file)
    return [{"sql": sql}] if sql is not None else read_objects(file or "-")


@contextmanager
def _about(name: Any) -> Iterator[None]:
    """Says which rule of several an error is about."""
    try:
        yield
    except CommandError as error:
        if isinstance(name, str) and repr(name) not in str(error):
            error.args = (f"rule {name!r}: {error}",)
        raise


def _print_report(report: Mapping[str, Any]) -> None:
    from broker.cli.output import print_line, problem_text

    if report["name"] is not None:
        print_line(f"rule {report['name']}", style="bold")
    _print_lineage(report["lineage"])
    print_line(f"spark schema: {report['spark_schema'] or 'not known'}")
    for warning in report["warnings"]:
        print_line(f"warning: {problem_text(warning)}", style="yellow")


def _print_lineage(found: Mapping[str, Any]) -> None:
    from broker.cli.output import print_line, print_table

    rows = [[one["name"], one["spark_type"], one["expression"], _origins(one["from"])] for one in found["columns"]]
    print_table(["column", "type", "expression", "from"], rows)
    for condition in found["conditions"]:
        print_line(f"{condition['clause']} {condition['expression']}  (from {_origins(condition['from'])})")


def _origins(origins: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{one['column']}{_steps(one['path'])} {one['type']}" for one in origins) or "constants"


def _steps(path: str | None) -> str:
    if path is None:
        return ""
    return path if path.startswith("[") else f".{path}"
