"""Gates tried from the command line: ``sluice pipeline``, ``validations try``, ``transforms try``, ``variform``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from broker.cli import exit_codes
from broker.cli.errors import CommandError, hinting
from broker.cli.files import read_objects, read_text
from broker.cli.options import DATA_DIR, DataDirOption, JsonOption, OutputOption, UrlOption, api_client

Names = Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Saved ones; or give --file.")]
File = Annotated[
    str | None, typer.Option("-f", "--file", help="JSON or HOCON: one that need not be saved, or a list; - is stdin.")
]
Topic = Annotated[str, typer.Option("-t", "--topic", help="Topic of the message.")]
Payload = Annotated[str, typer.Option("-m", "--payload", help="Its payload; @FILE reads a file.")]
ClientId = Annotated[str, typer.Option("--client", help="Client identifier of its publisher.")]
UserName = Annotated[str | None, typer.Option("--username", help="User name of its publisher.")]
Qos = Annotated[int, typer.Option("--qos", min=0, max=2, help="Its QoS.")]
Retain = Annotated[bool, typer.Option("--retain", help="Its retain flag.")]
Property = Annotated[
    list[str] | None, typer.Option("--user-property", metavar="NAME=VALUE", help="A user property; may be repeated.")
]


def pipeline(
    topic: Annotated[str, typer.Argument(help="A topic name, without wildcards.")],
    payload: Annotated[
        str | None, typer.Option("--payload", "-m", help="Run everything on this payload; @FILE reads a file.")
    ] = None,
    client_id: Annotated[str, typer.Option("--client", help="Client identifier of the trial.")] = "c1",
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    output: OutputOption = "table",
    as_json: JsonOption = False,
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
    if as_json or output == "json":
        print_json(answer)
    elif payload is None:
        _show_stages(answer["stages"])
    else:
        _show_trial(answer)


def _payload(text: str) -> Any:
    import base64

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
    from broker.cli.output import print_line, print_table, shown

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
        _show_message(message)


@dataclass(frozen=True, slots=True)
class _Trial:
    """How one kind of gates is tried: the call, its member for the gates, the outcome that is good."""

    path: str
    call: str
    member: str
    passed: str
    show: Callable[[dict[str, Any]], None]


def _command(trial: _Trial, help: str) -> Callable[..., None]:
    """The command that tries gates of one kind."""

    def try_gates(
        topic: Topic,
        names: Names = None,
        file: File = None,
        payload: Payload = "",
        client_id: ClientId = "c1",
        username: UserName = None,
        qos: Qos = 0,
        retain: Retain = False,
        user_property: Property = None,
        url: UrlOption = None,
        data_dir: DataDirOption = DATA_DIR,
        output: OutputOption = "table",
        as_json: JsonOption = False,
    ) -> None:
        from broker.cli.output import print_json

        message = _message(topic, payload, client_id, username, qos, retain, user_property)
        with api_client(url, data_dir) as client:
            chosen = _chosen(client, trial.path, names, file)
            answer = client.post(f"{trial.path}:{trial.call}", {trial.member: chosen, "message": message})
        print_json(answer) if as_json or output == "json" else trial.show(answer)
        if answer["outcome"] != trial.passed:
            raise typer.Exit(exit_codes.CHECK_SAID_NO)

    try_gates.__doc__ = help
    return try_gates


def variform(
    expression: Annotated[str, typer.Argument(help="The expression; @FILE reads it from a file.")],
    texts: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=TEXT", help="A variable; may be repeated.")
    ] = None,
    bindings: Annotated[
        str | None, typer.Option("--bindings", help="All variables, a JSON object; @FILE reads it, - is stdin.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="The value with its type, as JSON, instead of its text.")] = False,
    url: UrlOption = None,
    data_dir: DataDirOption = DATA_DIR,
    as_json: JsonOption = False,
) -> None:
    """Evaluate a variform expression over variables."""
    from broker.cli.output import print_json, print_line

    known = {**_bindings(bindings), **dict(_pairs(texts, "--set"))}
    with api_client(url, data_dir) as client:
        answer = client.post("/variform:eval", {"expression": _text_of(expression), "bindings": known, "raw": raw})
    if as_json:
        print_json(answer)
    else:
        print_line(json.dumps(answer["value"], ensure_ascii=False) if raw else answer["value"])


def _chosen(client: Any, path: str, names: Sequence[str] | None, file: str | None) -> list[dict[str, Any]]:
    from broker.cli.client import name_path

    if bool(names) == (file is not None):
        raise CommandError("give names of saved ones, or a file with --file", exit_codes.USAGE)
    if file is not None:
        return read_objects(file)
    with hinting(exit_codes.NOT_FOUND, f"sluice {path[1:]} ls"):
        return [client.get(name_path(path, name)) for name in names or ()]


def _message(
    topic: str,
    payload: str,
    client_id: str,
    username: str | None,
    qos: int,
    retain: bool,
    user_properties: Sequence[str] | None,
) -> dict[str, Any]:
    message = {
        "topic": topic,
        "payload": _payload(payload),
        "clientid": client_id,
        "qos": qos,
        "retain": retain,
        "user_properties": [list(pair) for pair in _pairs(user_properties, "--user-property")],
    }
    return message if username is None else {**message, "username": username}


def _pairs(texts: Sequence[str] | None, option: str) -> Iterator[tuple[str, str]]:
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise CommandError(f"{option} is written NAME=VALUE, and this is {text!r}", exit_codes.USAGE)
        yield name, value


def _text_of(text: str) -> str:
    return read_text(text[1:]).removesuffix("\n") if text.startswith("@") else text


def _bindings(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        found = json.loads(read_text("-") if text == "-" else _text_of(text))
    except ValueError as error:
        raise CommandError(f"--bindings is no JSON: {error}", exit_codes.USAGE) from None
    if not isinstance(found, dict):
        raise CommandError('--bindings is a JSON object, as {"payload": {"t": 1}}', exit_codes.USAGE)
    return found


def _show_preview(answer: dict[str, Any]) -> None:
    from broker.cli.output import print_line, print_table, shown

    rows = [(step["name"], step["operation"] + 1, step["key"], shown(step["value"])) for step in answer["steps"]]
    if rows:
        print_table(("transformation", "operation", "key", "value after it"), rows)
    for failure in answer["failures"]:
        place = "" if failure["operation"] is None else f", operation {failure['operation'] + 1}"
        print_line(f"{failure['name']}{place} failed ({failure['kind']}): {failure['reason']}; {failure['action']}")
    print_line(f"outcome: {answer['outcome']}", style="bold")
    if message := answer.get("message"):
        _show_message(message)


def _show_checks(answer: dict[str, Any]) -> None:
    from broker.cli.output import print_line, print_table

    columns = ("name", "passed", "action", "check", "path", "reason")
    print_table(columns, [[result.get(column) for column in columns] for result in answer["results"]])
    print_line(f"outcome: {answer['outcome']}", style="bold")


def _show_message(message: dict[str, Any]) -> None:
    from broker.cli.output import print_members

    members = {"topic": message["topic"], "payload": message["payload"]["data"], "qos": message["qos"]}
    properties = message.get("properties") or None
    print_members(
        {
            **members,
            "retain": message["retain"],
            "user properties": message["user_properties"],
            **({"properties": properties} if properties else {}),
        }
    )


_MORE = """

They run in the order given, those that match the topic. Nothing is saved, sent or counted. Exit code 7 when the message
would be stopped."""

try_transforms = _command(
    _Trial("/transforms", "preview", "transformations", "message", _show_preview),
    "Run transformations on a trial message, with the value after every operation." + _MORE,
)
try_validations = _command(
    _Trial("/validations", "test", "validations", "pass", _show_checks),
    "Run validations on a trial message, and show what failed where." + _MORE,
)
