"""Commands of gates beyond the verbs of every kind: switching, order, counters, quarantine, the path of a topic."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from broker.cli import exit_codes
from broker.cli.objects import Noun, hinting
from broker.cli.options import DataDirOption, OutputOption, UrlOption, api_client

NameArgument = Annotated[str, typer.Argument()]

quarantine = typer.Typer(
    help="Messages that gates stopped and kept: see them, and take them again.", no_args_is_help=True
)
_WAITING = ("offset", "topic", "clientid", "stage", "name", "path", "reason", "payload")


def add_gate_commands(group: typer.Typer, noun: Noun, where: str) -> None:
    """Add what validations and transformations have in common."""

    @group.command("enable", help=f"Switch a {noun.singular} on.")
    def enable(name: NameArgument, url: UrlOption = None, data_dir: DataDirOption = Path("data")) -> None:
        _switch(noun, where, name, "enable", url, data_dir)

    @group.command("disable", help=f"Switch a {noun.singular} off; it is kept, and does nothing.")
    def disable(name: NameArgument, url: UrlOption = None, data_dir: DataDirOption = Path("data")) -> None:
        _switch(noun, where, name, "disable", url, data_dir)

    @group.command("reorder", help=f"Bring all {noun.plural} into an order.")
    def reorder(
        names: Annotated[list[str], typer.Argument(help="All of them, in the order in which they are to run.")],
        url: UrlOption = None,
        data_dir: DataDirOption = Path("data"),
    ) -> None:
        from broker.cli.output import print_line

        with api_client(url, data_dir) as client, hinting(exit_codes.FAILED, f"{where} ls"):
            client.post(f"{noun.path}:reorder", {"order": names})
        print_line(f"order: {', '.join(names)}")

    @group.command("metrics", help=f"Counters of a {noun.singular}, and its last failures.")
    def metrics(
        name: NameArgument,
        reset: Annotated[bool, typer.Option("--reset", help="Set them to zero.")] = False,
        url: UrlOption = None,
        data_dir: DataDirOption = Path("data"),
        output: OutputOption = "table",
    ) -> None:
        from broker.cli.client import name_path

        with api_client(url, data_dir) as client, hinting(exit_codes.NOT_FOUND, f"{where} ls"):
            path = name_path(noun.path, name)
            if reset:
                client.post(f"{path}/metrics:reset")
            shown = client.get(path)
            counted = client.get(f"{path}/metrics")
        _show_metrics({"name": name, "metrics": counted, "recent_failures": shown["recent_failures"]}, output)


def _switch(noun: Noun, where: str, name: str, verb: str, url: str | None, data_dir: Path) -> None:
    from broker.cli.client import name_path
    from broker.cli.output import print_line

    with api_client(url, data_dir) as client, hinting(exit_codes.NOT_FOUND, f"{where} ls"):
        client.post(f"{name_path(noun.path, name)}:{verb}")
    print_line(f"{noun.singular} {name} {verb}d")


def _show_metrics(answer: dict[str, Any], output: str) -> None:
    from broker.cli.output import print_json, print_line, print_members, print_table

    if output == "json":
        print_json(answer)
        return
    print_members(answer["metrics"])
    if failures := answer["recent_failures"]:
        print_line("")
        columns = ("topic", "clientid", "path", "reason", "action")
        print_table(columns, [[failure[column] for column in columns] for failure in failures])


def pipeline(
    topic: Annotated[str, typer.Argument(help="A topic name, without wildcards.")],
    payload: Annotated[
        str | None, typer.Option("--payload", "-m", help="Run everything on this payload; @FILE reads a file.")
    ] = None,
    client_id: Annotated[str, typer.Option("--client", help="Client identifier of the trial.")] = "c1",
    url: UrlOption = None,
    data_dir: DataDirOption = Path("data"),
    output: OutputOption = "table",
) -> None:
    """Show everything that acts on a topic, in the order a message meets it; with a payload, try it.

    A trial sends, stores and counts nothing.
    """
    from broker.cli.output import print_json

    with api_client(url, data_dir) as client:
        if payload is None:
            answer = client.get("/pipeline", topic=topic)
        else:
            message = {"topic": topic, "payload": _payload(payload), "clientid": client_id}
            answer = client.post("/pipeline:preview", {"message": message})
    if output == "json":
        print_json(answer)
    elif payload is None:
        _show_stages(answer["stages"])
    else:
        _show_trial(answer)


def _payload(text: str) -> Any:
    import base64

    from broker.cli.errors import CommandError

    if not text.startswith("@"):
        return text
    try:
        data = Path(text[1:]).read_bytes()
    except OSError as error:
        raise CommandError(
            f"{text[1:]} cannot be read ({(error.strerror or str(error)).lower()})", exit_codes.USAGE
        ) from None
    return {"encoding": "base64", "data": base64.b64encode(data).decode()}


def _show_stages(stages: list[dict[str, Any]]) -> None:
    from broker.cli.output import print_table

    rows = [
        (
            stage["stage"],
            stage["name"],
            "" if stage["enabled"] else "off",
            stage.get("on_failure", ""),
            ", ".join(stage["topics"]),
            stage["does"],
        )
        for stage in stages
    ]
    print_table(("stage", "name", "", "on failure", "topics", "does"), rows)


def _show_trial(answer: dict[str, Any]) -> None:
    from broker.cli.output import print_line, print_members, print_table, shown

    hidden = ("stage", "name", "outcome", "passed")
    rows = [
        (step["stage"], step["name"], step["outcome"], "; ".join(
            f"{key}: {shown(value)}" for key, value in step.items() if key not in hidden and value not in (None, [], "")
        ))
        for step in answer["steps"]
    ]  # fmt: skip
    print_table(("stage", "name", "outcome", ""), rows)
    print_line("")
    print_line(f"outcome: {answer['outcome']}", style="bold")
    if message := answer.get("message"):
        members = {"topic": message["topic"], "payload": message["payload"]["data"], "qos": message["qos"]}
        print_members({**members, "retain": message["retain"], "user properties": message["user_properties"]})


@quarantine.command("ls")
def list_quarantines(
    url: UrlOption = None, data_dir: DataDirOption = Path("data"), output: OutputOption = "table"
) -> None:
    """List all quarantines with how many messages wait."""
    from broker.cli.output import print_json, print_table

    with api_client(url, data_dir) as client:
        answer = client.get("/quarantine")
    if output == "json":
        print_json(answer)
    else:
        print_table(("stream", "waiting"), [(item["stream"], item["waiting"]) for item in answer["items"]])


@quarantine.command("show")
def show_quarantine(
    stream: NameArgument,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="At most so many messages.")] = 20,
    url: UrlOption = None,
    data_dir: DataDirOption = Path("data"),
    output: OutputOption = "table",
) -> None:
    """Show what waits in a quarantine, oldest first, and why it was stopped."""
    from broker.cli.client import name_path
    from broker.cli.output import print_json, print_table, say

    with api_client(url, data_dir) as client, hinting(exit_codes.NOT_FOUND, "sluice quarantine ls"):
        answer = client.get(name_path("/quarantine", stream), limit=limit)
    if output == "json":
        print_json(answer)
        return
    print_table(_WAITING, [[item.get(column) for column in _WAITING] for item in answer["items"]])
    if answer["waiting"] > len(answer["items"]):
        say(f"{answer['waiting'] - len(answer['items']):,} more wait")


@quarantine.command("take-again")
def take_again(
    stream: NameArgument,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="At most so many messages.")] = 10_000,
    url: UrlOption = None,
    data_dir: DataDirOption = Path("data"),
    output: OutputOption = "table",
) -> None:
    """Publish what waits, through all stages. What fails again goes to the end with its new reason."""
    from broker.cli.client import name_path
    from broker.cli.output import print_json, print_members, print_table

    with api_client(url, data_dir, 600) as client, hinting(exit_codes.NOT_FOUND, "sluice quarantine ls"):
        answer = client.post(f"{name_path('/quarantine', stream)}:take-again", {"limit": limit})
    if output == "json":
        print_json(answer)
        return
    print_members({key: answer[key] for key in ("read", "published", "failed", "skipped", "waiting")})
    if failures := answer["failures"]:
        print_table(("offset", "topic", "reason"), [(one["offset"], one["topic"], one["reason"]) for one in failures])
