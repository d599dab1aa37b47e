"""``sluice rules test``, ``run``, ``explain``, ``check`` and ``lineage``: rules and SQL tried on events that never
happened, the types of their rows, and what those are computed from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Annotated, Any

import typer

from broker.cli import exit_codes
from broker.cli.client import name_path
from broker.cli.command import Call, command
from broker.cli.errors import CommandError
from broker.cli.files import read_objects, read_text
from broker.cli.objects import about
from broker.cli.output import print_line, print_table, problem_text, say
from broker.cli.rules import KNOWN
from broker.cli.topics import latest_event
from broker.core.kinds import counted

Sql = Annotated[str | None, typer.Option("--sql", help="SQL; @FILE reads it from a file.")]
Event = Annotated[
    str | None,
    typer.Option("--event", help="File with the columns of the event, a JSON object; - is stdin."),
]
Topic = Annotated[
    str | None, typer.Option("--topic", help="Column topic; the event is a published message.")
]
Latest = Annotated[
    str | None, typer.Option("--latest", help="The latest message of a topic filter as the event.")
]
Payload = Annotated[str | None, typer.Option("--payload", help="Column payload, a string.")]


def add_to(group: typer.Typer) -> None:
    """Give the group of rules these commands."""
    command(group, "test", known=KNOWN, timeout_s=120)(run_cases)
    command(group, "run", is_check=True)(run_sql)
    command(group, "explain", known=KNOWN)(explain)
    command(group, "check", is_check=True)(check)
    command(group, "fields")(list_fields)
    command(group, "format")(format_sql)


def run_cases(
    call: Call,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Rules; all that have cases.")
    ] = None,
) -> None:
    """Run the saved test cases of rules. Exit code 7 when one fails."""
    chosen = names or [rule["name"] for rule in call.api.items("/rules") if rule.get("tests")]
    reports = [
        {"rule": name, **call.api.post(f"{name_path('/rules', name)}:test-cases")}
        for name in chosen
    ]
    call.show({"items": reports}, lambda _: _print_cases(reports))
    if any(report["failed"] for report in reports):
        raise typer.Exit(exit_codes.CHECK_SAID_NO)


def _print_cases(reports: Sequence[Mapping[str, Any]]) -> None:
    for report in reports:
        for case in report["cases"]:
            word, style = ("ok", "green") if case["passed"] else ("FAILED", "red")
            print_line(f"{word:6} {report['rule']}: {case['name']}", style=style)
            if not case["passed"]:
                print_line(f"       {case['difference']}")
    passed, failed = (sum(report[key] for report in reports) for key in ("passed", "failed"))
    print_line(
        f"{passed} passed, {failed} failed" if passed + failed else "there are no test cases"
    )


def run_sql(
    call: Call,
    sql: Sql = None,
    event: Event = None,
    topic: Topic = None,
    payload: Payload = None,
    latest: Latest = None,
    language: Annotated[
        str, typer.Option("--language", help="sql, or jq: then --sql is a program in jq.")
    ] = "sql",
) -> None:
    """Run SQL on one event: its rows, no result, or the error. Exit code 7 for an error.

    The event is taken as the rule sees it, behind validations and transformations; 'sluice pipeline preview' runs all
    stages on a message. Warnings about the SQL go to standard error.
    """
    if sql is None:
        raise CommandError(
            "give the SQL",
            exit_codes.USAGE,
            hint="sluice rules run --sql 'SELECT ...' --event FILE",
        )
    program = sql_text(sql)
    source = {"sql": program} if language == "sql" else {"language": language, language: program}
    outcome = call.api.post(
        "/rules:test", {**source, "event": _event(call, event, topic, payload, latest)}
    )
    call.show(outcome, _print_outcome)
    if language == "sql" and not call.is_json:
        for warning in call.api.post("/rules:check", source)["warnings"]:
            say(f"warning: {problem_text(warning)}")
    if outcome["outcome"] == "error":
        raise typer.Exit(exit_codes.CHECK_SAID_NO)


def explain(
    call: Call,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="A rule; or give --sql.")
    ] = None,
    sql: Sql = None,
    event: Event = None,
    topic: Topic = None,
    payload: Payload = None,
    latest: Latest = None,
) -> None:
    """Show what a rule does with one event, step by step, with the value of every sub-expression; no action runs.

    The event is taken as the rule sees it, behind validations and transformations.
    """
    if (name is None) == (sql is None):
        raise CommandError(
            "name a rule or give --sql",
            exit_codes.USAGE,
            hint="sluice rules explain NAME --event FILE",
        )
    source = {"name": name} if sql is None else {"sql": sql_text(sql)}
    call.show(
        call.api.post(
            "/rules:explain", {**source, "event": _event(call, event, topic, payload, latest)}
        ),
        _print_steps,
    )


def check(
    call: Call,
    file: Annotated[
        str | None,
        typer.Argument(help="A .sql file; else JSON or HOCON: a rule, or a list; - is stdin."),
    ] = None,
    sql: Annotated[str | None, typer.Option("--sql", help="SQL instead of a file.")] = None,
) -> None:
    """Check rules without saving them: their problems, the types of their rows, and where each column comes from.

    Exit code 7 when a rule cannot be saved.
    """
    reports = []
    for rule in _rules(file, sql):
        with about(f"rule {rule['name']!r}") if "name" in rule else nullcontext():
            reports.append({"name": rule.get("name"), **call.api.post("/rules:check", rule)})
    answer = reports[0] if len(reports) == 1 else {"items": reports}
    call.show(answer, lambda _: _print_reports(reports))


def list_fields(
    call: Call,
    sources: Annotated[
        list[str], typer.Argument(metavar="SOURCE...", help="Topic filters or events.")
    ],
) -> None:
    """List what a rule can read: the columns of its sources, and the fields of payloads that have a schema."""
    answer = call.api.post("/rules:fields", {"from": sources})
    rows = [
        [field["path"], field["type"], "may be absent" if field["nullable"] else ""]
        for field in answer["fields"]
    ]
    call.show(answer, lambda _: print_table(["field", "type", ""], rows))


def format_sql(
    call: Call,
    file: Annotated[str, typer.Argument(help="A .sql file; - is stdin.")] = "-",
    sql: Annotated[str | None, typer.Option("--sql", help="SQL instead of a file.")] = None,
) -> None:
    """Print SQL in the usual layout: a clause per line, with its comments."""
    answer = call.api.post("/rules:format", {"sql": read_text(file) if sql is None else sql})
    call.show(answer, lambda answer: _print_sql(answer["sql"]))


def _print_sql(sql: str) -> None:
    for line in sql.splitlines():
        print_line(line)


def sql_text(text: str) -> str:
    """The SQL that an option gives, or the file that it names."""
    return read_text(text[1:]) if text.startswith("@") else text


def _event(
    call: Call, file: str | None, topic: str | None, payload: str | None, latest: str | None
) -> dict[str, Any]:
    """The event of a file or the latest message, with the options of the command line."""
    event: Any = {} if latest is None else latest_event(call, latest)
    if file is not None:
        where = "standard input" if file == "-" else file
        try:
            event = json.loads(read_text(file))
        except ValueError as error:
            raise CommandError(f"{where} is not JSON: {error}", exit_codes.USAGE) from None
        if not isinstance(event, dict):
            raise CommandError(
                f"{where} must hold an object, the columns of the event", exit_codes.USAGE
            )
    options = {"topic": topic, "payload": payload}
    return {**event, **{name: value for name, value in options.items() if value is not None}}


def _print_outcome(outcome: Mapping[str, Any]) -> None:
    if outcome["outcome"] == "rows":
        for row in outcome["rows"]:
            print_line(json.dumps(row, ensure_ascii=False))
        if not outcome["rows"]:
            say("no row: no item of the array passed INCASE")
    elif outcome["outcome"] == "no_result":
        say(
            outcome.get(
                "reason", "no result: FROM or WHERE did not match; 'sluice rules explain' shows why"
            )
        )
    else:
        say(_error(outcome["error"]))


def _error(error: Mapping[str, Any]) -> str:
    place = (
        f"line {error['line']}, column {error['column']}: " if error.get("line") is not None else ""
    )
    return f"error: {place}{error['message']}"


def _print_steps(answer: Mapping[str, Any]) -> None:
    for line in _explained(answer):
        word = line.lstrip()
        style = (
            "green"
            if word.startswith("✓")
            else "red"
            if word.startswith("✗") or "error: " in word
            else ""
        )
        print_line(line, style=style)


def _explained(answer: Mapping[str, Any]) -> Iterator[str]:
    for step in answer["steps"]:
        yield from _step(step)
    if answer.get("is_cut"):
        yield "… and more steps"
    if answer["outcome"] == "rows":
        rows = answer["rows"]
        yield f"→ {counted(len(rows), 'row')}"
        yield from (f"  {json.dumps(row, ensure_ascii=False)}" for row in rows)
    else:
        yield f"→ {answer.get('reason', 'no result') if answer['outcome'] == 'no_result' else _error(answer['error'])}"


def _step(step: Mapping[str, Any]) -> Iterator[str]:
    clause = step["clause"]
    indent = "  " if "item" in step and step["clause"] != "ITEM" else ""
    if clause == "ACTION":
        yield from _action(step)
        return
    mark = "" if "holds" not in step else "✓ " if step["holds"] else "✗ "
    head = f"item {step['item']}" if clause == "ITEM" else f"{clause} {step['text']}"
    yield f"{indent}{mark}{head}{_value(step) if 'holds' not in step else ''}"
    parts = step.get("expressions", [])
    inner = (
        parts[0].get("expressions", []) if len(parts) == 1 and _is_same(step, parts[0]) else parts
    )
    yield from _tree(inner, indent)
    if "error" in step:
        yield f"{indent}└─ {_error(step['error'])}"


def _is_same(step: Mapping[str, Any], part: Mapping[str, Any]) -> bool:
    """True if the only part of a step is all of it, with its alias left out."""
    text: str = step["text"]
    return text == part["text"] or text.startswith(f"{part['text']} AS ")


def _tree(parts: Sequence[Mapping[str, Any]], indent: str) -> Iterator[str]:
    for number, part in enumerate(parts, 1):
        is_last = number == len(parts)
        yield f"{indent}{'└─ ' if is_last else '├─ '}{part['text']}{_value(part)}"
        yield from _tree(part.get("expressions", []), indent + ("   " if is_last else "│  "))


def _value(told: Mapping[str, Any]) -> str:
    kind = told.get("type")
    if kind is None:
        return ""
    if "value" not in told:
        return f" = {kind}"
    text = json.dumps(told["value"], ensure_ascii=False)
    return f" = {text[:200]}…" if len(text) > 200 or told.get("is_cut") else f" = {text}"


def _action(step: Mapping[str, Any]) -> Iterator[str]:
    target = f" {step['name']}" if "name" in step else ""
    yield f"ACTION {step['action'] + 1} {step['type']}{target} on row {step['row']}"
    for effect in step.get("effects", []):
        for verb, argument in effect.items():
            yield f"  would {verb} {json.dumps(argument, ensure_ascii=False)}"
    if "error" in step:
        yield f"  {_error(step['error'])}"
    if "discarded" in step:
        yield f"  would be discarded: {step['discarded']}"


def _rules(file: str | None, sql: str | None) -> Sequence[Mapping[str, Any]]:
    if (file is None) == (sql is None):
        raise CommandError(
            "name a file or give --sql", exit_codes.USAGE, hint="sluice rules check rules.conf"
        )
    if sql is None and file is not None and file.endswith(".sql"):
        sql = read_text(file)
    return [{"sql": sql}] if sql is not None else read_objects(file or "-")


def _print_reports(reports: Sequence[Mapping[str, Any]]) -> None:
    for report in reports:
        _print_report(report)


def _print_report(report: Mapping[str, Any]) -> None:
    if report["name"] is not None:
        print_line(f"rule {report['name']}", style="bold")
    print_lineage(report["lineage"])
    print_line(f"spark schema: {report['spark_schema'] or 'not known'}")
    for warning in report["warnings"]:
        print_line(f"warning: {problem_text(warning)}", style="yellow")


def print_lineage(answer: Mapping[str, Any]) -> None:
    """Print the columns of a rule's rows and its conditions, each with its origins."""
    rows = [
        [column["name"], column["spark_type"], column["expression"], _origins(column["from"])]
        for column in answer["columns"]
    ]
    print_table(["column", "type", "expression", "from"], rows)
    for condition in answer["conditions"]:
        print_line(
            f"{condition['clause']} {condition['expression']}  (from {_origins(condition['from'])})"
        )


def _origins(origins: Sequence[Mapping[str, Any]]) -> str:
    return (
        ", ".join(
            f"{origin['column']}{_steps(origin['path'])} {origin['type']}" for origin in origins
        )
        or "constants"
    )


def _steps(path: str | None) -> str:
    if path is None:
        return ""
    return path if path.startswith("[") else f".{path}"
