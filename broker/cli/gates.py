"""Validations and transformations beyond the verbs of every kind, tried on a message too, and ``sluice pipeline``,
``variform`` and ``quarantine``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from broker.cli import exit_codes
from broker.cli.client import name_path
from broker.cli.command import Call, api_command, command, renamed
from broker.cli.errors import CommandError
from broker.cli.files import pairs, read_objects, read_payload, read_text
from broker.cli.objects import Name, ResetOption, lists, metrics_of, path_of
from broker.cli.output import print_columns, print_line, print_members, print_table, shown
from broker.core.kinds import Kind, kind_at

Names = Annotated[
    list[str] | None, typer.Argument(metavar="[NAME]...", help="Saved ones; or give --file.")
]
File = Annotated[
    str | None,
    typer.Option(
        "-f", "--file", help="JSON or HOCON: one that need not be saved, or a list; - is stdin."
    ),
]
Topic = Annotated[str, typer.Option("-t", "--topic", help="Topic of the message.")]
Payload = Annotated[str, typer.Option("-m", "--payload", help="Its payload; @FILE reads a file.")]
ClientId = Annotated[str, typer.Option("--client", help="Client identifier of its publisher.")]
UserName = Annotated[str | None, typer.Option("--username", help="User name of its publisher.")]
Qos = Annotated[int, typer.Option("--qos", min=0, max=2, help="Its QoS.")]
Retain = Annotated[bool, typer.Option("--retain", help="Its retain flag.")]
Property = Annotated[
    list[str] | None,
    typer.Option("--user-property", metavar="NAME=VALUE", help="A user property; may be repeated."),
]

_DRAFTS = "Try these in place of saved ones of the same name: JSON or HOCON, one or a list."
_MORE = """

They run in the order given, those that match the topic. Nothing is saved, sent or counted. Exit code 7 when the message
would be stopped."""


def add_validations(group: typer.Typer) -> None:
    """Add what validations have beyond the verbs of every kind."""
    help = "Run validations on a trial message, and show what failed where."
    _add_to(group, kind_at("validations"))
    _add_try(group, "/validations", "test", "validations", "pass", _show_checks, help)


def add_transforms(group: typer.Typer) -> None:
    """Add what transformations have beyond the verbs of every kind."""
    help = "Run transformations on a trial message, with the value after every operation."
    _add_to(group, kind_at("transforms"))
    _add_try(group, "/transforms", "preview", "transformations", "message", _show_preview, help)


def add_rewrites(group: typer.Typer) -> None:
    """Add what rewrites have beyond the verbs of every kind."""
    command(group, "try")(try_rewrites)


def _add_to(group: typer.Typer, kind: Kind) -> None:
    @command(group, "ls", help=f"List {kind.many} in their order, with their counters.")
    def list_gates(
        call: Call,
        topic: Annotated[
            str | None, typer.Option("--topic", help="Those on this topic, or topic filter.")
        ] = None,
        schema: Annotated[
            str | None, typer.Option("--schema", help="Those that name this schema.")
        ] = None,
        schema_type: Annotated[
            str | None, typer.Option("--type", help="sql, json, avro, protobuf ...")
        ] = None,
        enabled: Annotated[
            bool | None, typer.Option("--enabled/--disabled", help="Only those.")
        ] = None,
        mode: Annotated[str | None, typer.Option("--mode", help="enforce, or shadow.")] = None,
        like: Annotated[str | None, typer.Option("--like", help="Part of the name.")] = None,
    ) -> None:
        rows = call.items(
            path_of(kind), topic=topic, schema_name=schema, schema_type=schema_type, enable=enabled, mode=mode,
            like_name=like,
        )  # fmt: skip
        call.show_rows(rows, kind.columns)

    @command(
        group,
        "metrics",
        help=f"Show the counters and rates of {kind.one}, and its last failures.",
        known=lists(kind),
    )
    def metrics(call: Call, name: Name, reset: ResetOption = False) -> None:
        metrics = metrics_of(call, kind, name, reset=reset, part="")
        call.show(
            {"name": name, **{key: metrics[key] for key in ("metrics", "recent_failures")}},
            _show_metrics,
        )


def _show_metrics(answer: Mapping[str, Any]) -> None:
    print_members(answer["metrics"])
    if failures := answer["recent_failures"]:
        print_line("")
        print_columns(failures, ("topic", "clientid", "path", "reason", "action"))


def _add_try(
    group: typer.Typer,
    path: str,
    verb: str,
    member: str,
    passed: str,
    show: Callable[[dict[str, Any]], None],
    help: str,
) -> None:
    """Add ``try``: a call of the API with the gates as one of its members, and an outcome that means "passed"."""

    @command(group, "try", help=help + _MORE, known=f"sluice {path[1:]} ls")
    def try_gates(
        call: Call,
        topic: Topic,
        names: Names = None,
        file: File = None,
        payload: Payload = "",
        client_id: ClientId = "c1",
        username: UserName = None,
        qos: Qos = 0,
        retain: Retain = False,
        user_property: Property = None,
    ) -> None:
        message = {
            "topic": topic,
            "payload": _payload(payload),
            "clientid": client_id,
            "qos": qos,
            "retain": retain,
            "user_properties": [list(pair) for pair in pairs(user_property, "--user-property")],
            **({} if username is None else {"username": username}),
        }
        if bool(names) == (file is not None):
            raise CommandError("give names of saved ones, or a file with --file", exit_codes.USAGE)
        saved = [call.api.get(name_path(path, name)) for name in names or ()]
        gates = saved if file is None else read_objects(file)
        answer = call.api.post(f"{path}:{verb}", {member: gates, "message": message})
        call.show(answer, show)
        if answer["outcome"] != passed:
            raise typer.Exit(exit_codes.CHECK_SAID_NO)


def try_rewrites(
    call: Call,
    topic: Annotated[
        str, typer.Argument(help="The topic, or with --subscribe the filter, that a client names.")
    ],
    subscribe: Annotated[
        bool, typer.Option("--subscribe", help="As a filter of SUBSCRIBE.")
    ] = False,
    clientid: Annotated[str, typer.Option("--client", help="The client's identifier.")] = "client",
    old_clientid: Annotated[str | None, typer.Option("--clientid", hidden=True)] = None,
    username: Annotated[str | None, typer.Option("--username", help="Its user name.")] = None,
) -> None:
    """Show what a topic is rewritten to, and by which rewrite. Nothing is published."""
    clientid = renamed(clientid, old_clientid, "--clientid", "--client")
    body = {"topic": topic, "action": "subscribe" if subscribe else "publish", "clientid": clientid}
    rewritten = call.api.post("/rewrites:test", body | ({"username": username} if username else {}))
    unchanged = f"{topic} stays as it is: no rewrite matches"
    call.show(
        rewritten,
        unchanged
        if rewritten["rewrite"] is None
        else f"{rewritten['topic']}  (by {rewritten['rewrite']})",
    )


@api_command()
def pipeline(
    call: Call,
    topic: Annotated[str, typer.Argument(help="A topic name, without wildcards.")],
    payload: Annotated[
        str | None,
        typer.Option("--payload", "-m", help="Run everything on this payload; @FILE reads a file."),
    ] = None,
    client_id: Annotated[
        str, typer.Option("--client", help="Client identifier of the trial.")
    ] = "c1",
    validations: Annotated[
        str | None, typer.Option("--validations", metavar="FILE", help=_DRAFTS)
    ] = None,
    transforms: Annotated[
        str | None, typer.Option("--transforms", metavar="FILE", help=_DRAFTS)
    ] = None,
) -> None:
    """Show everything that acts on a topic, in the order a message meets it; with a payload, try it.

    A trial sends, stores and counts nothing.
    """
    if payload is None:
        call.show(
            call.api.get("/pipeline", topic=topic), lambda answer: _show_stages(answer["stages"])
        )
    else:
        message = {"topic": topic, "payload": _payload(payload), "clientid": client_id}
        files = {"validations": validations, "transformations": transforms}
        drafts = {member: read_objects(file) for member, file in files.items() if file is not None}
        call.show(call.api.post("/pipeline:preview", {"message": message, **drafts}), _show_trial)


def _payload(text: str) -> Any:
    return read_payload(text[1:]) if text.startswith("@") else text


def _show_stages(stages: list[dict[str, Any]]) -> None:
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
    hidden = ("stage", "name", "outcome", "passed")
    rows = [
        (step["stage"], step["name"], step["outcome"], "; ".join(
            f"{key}: {shown(value)}" for key, value in step.items() if key not in hidden and value not in (None, [], "")
        ))
        for step in answer["steps"]
    ]  # fmt: skip
    print_table(("stage", "name", "outcome", ""), rows)
    print_line("")
    end = answer.get("ended_by")
    place = f", at {end['stage']} {end['name']!r}" if end else ""
    print_line(f"outcome: {answer['outcome']}{place}", style="bold")
    if message := answer.get("message"):
        _show_message(message)


@api_command()
def variform(
    call: Call,
    expression: Annotated[str, typer.Argument(help="The expression; @FILE reads it from a file.")],
    texts: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=TEXT", help="A variable; may be repeated."),
    ] = None,
    bindings: Annotated[
        str | None,
        typer.Option(
            "--bindings", help="All variables, a JSON object; @FILE reads it, - is stdin."
        ),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="The value with its type, as JSON, instead of its text.")
    ] = False,
) -> None:
    """Evaluate a variform expression over variables."""
    variables = {**_bindings(bindings), **dict(pairs(texts, "--set"))}
    answer = call.api.post(
        "/variform:eval", {"expression": _text_of(expression), "bindings": variables, "raw": raw}
    )
    call.show(answer, json.dumps(answer["value"], ensure_ascii=False) if raw else answer["value"])


def _text_of(text: str) -> str:
    return read_text(text[1:]).removesuffix("\n") if text.startswith("@") else text


def _bindings(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        value = json.loads(read_text("-") if text == "-" else _text_of(text))
    except ValueError as error:
        raise CommandError(f"--bindings is not valid JSON: {error}", exit_codes.USAGE) from None
    if not isinstance(value, dict):
        raise CommandError(
            '--bindings is a JSON object, as {"payload": {"t": 1}}', exit_codes.USAGE
        )
    return value


def _show_preview(answer: dict[str, Any]) -> None:
    rows = [
        (step["name"], step["operation"] + 1, step["key"], shown(step["value"]))
        for step in answer["steps"]
    ]
    if rows:
        print_table(("transformation", "operation", "key", "value after it"), rows)
    for failure in answer["failures"]:
        place = "" if failure["operation"] is None else f", operation {failure['operation'] + 1}"
        print_line(
            f"{failure['name']}{place} failed ({failure['kind']}): {failure['reason']}; {failure['action']}"
        )
    print_line(f"outcome: {answer['outcome']}", style="bold")
    if message := answer.get("message"):
        _show_message(message)


def _show_checks(answer: dict[str, Any]) -> None:
    print_columns(answer["results"], ("name", "passed", "action", "check", "path", "reason"))
    print_line(f"outcome: {answer['outcome']}", style="bold")


def _show_message(message: dict[str, Any]) -> None:
    members = {key: message[key] for key in ("topic", "payload", "qos", "retain")}
    members |= {
        "payload": message["payload"]["data"],
        "user properties": message["user_properties"],
    }
    print_members(
        members | ({"properties": message["properties"]} if message.get("properties") else {})
    )


def print_taken_again(answer: Mapping[str, Any]) -> None:
    """Number of messages of a quarantine that were published, and some that failed again."""
    print_members(
        {key: answer[key] for key in ("read", "published", "failed", "skipped", "waiting")}
    )
    if answer["failures"]:
        print_columns(answer["failures"], ("offset", "topic", "reason"))
