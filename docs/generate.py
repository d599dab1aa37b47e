"""Writes the pages of ``docs/reference`` from the code: ``python -m docs.generate``.

A test holds the pages equal to what this writes, so they cannot say anything else than the code does.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import typer
from pydantic import BaseModel

from bridges.spark.table_spec import LakeTableSpec
from broker.app import features
from broker.app.api import api_server
from broker.app.build import Node, section_models
from broker.app.reload import ConfigReload
from broker.cli import exit_codes
from broker.cli.main import app
from broker.config.objects import OBJECT_SECTIONS
from broker.config.options import ServeOptions
from broker.config.reference import SettingEntry, describe
from broker.config.root import load_config
from broker.core.client import Client
from broker.core.events import EVENT_TYPES
from broker.core.message import Message
from broker.core.stage import GateCall
from broker.net.limits import show_expiry
from broker.observe.prometheus import exposition
from broker.streams.settings import StreamSpec
from docs import conformance
from rules.functions.registry import Function
from rules.spec import RuleSpec
from schema_validation.external_http.caller import Outside
from schema_validation.spec import ValidationSpec
from transforms.messages.spec import TransformationSpec
from transforms.variform.functions import LAZY
from transforms.variform.registry import FUNCTIONS

DIRECTORY: Final = Path(__file__).parent / "reference"
_NOTE: Final = "<!-- Written by 'python -m docs.generate' from the code; change it there. -->"
_HELP_WIDTH: Final = 100
_UNITS: Final[Mapping[str, Mapping[str, int]]] = {
    "duration": {"d": 86_400, "h": 3600, "m": 60, "s": 1},
    "size": {"GB": 1024**3, "MB": 1024**2, "KB": 1024},
}
"""What settings of a type are written in, largest first: seconds and bytes."""
_CODE: Final = re.compile(r"``(.+?)``")


def pages() -> dict[str, str]:
    """Every page by its file name."""
    return asyncio.run(_pages())


async def _pages() -> dict[str, str]:
    async with _node() as node:
        api_server(node, ConfigReload(node, ServeOptions(data_dir=node.data_dir), {}))
        texts = {
            "settings.md": _settings(),
            "objects.md": _objects(),
            "functions.md": _functions(node.rules.functions),
            "variform.md": _variform(),
            "cli.md": _cli(),
            "api.md": _api(features.load(features.API_APPLICATION)(node.api_context).openapi()),
            "metrics.md": _metrics(node),
            "mqtt-conformance.md": conformance.page(),
        }
    return {name: f"{text.rstrip()}\n" for name, text in texts.items()}


@asynccontextmanager
async def _node() -> Any:
    """A node that is put together and not started."""
    with TemporaryDirectory() as directory:
        data_dir = Path(directory)
        node = Node(load_config(section_models(), data_dir=data_dir, environ={}), data_dir, "not used")
        try:
            yield node
        finally:
            await node.writer.close()
            node.store.close()


# -- Settings --


def _settings() -> str:
    rows = [(f"`{entry.key}`", entry.type, _default(entry), entry.description) for entry in describe(section_models())]
    objects = "\n".join(f"* `{section}`" for section in OBJECT_SECTIONS)
    return _page(
        "Settings",
        "How they are set: [configure](../how-to/configure.md). Durations are `500ms`, `30s`, `15m`, `7d` or a number "
        "of seconds; sizes are `64KB`, `1MB`, `10GB` (powers of 1024) or a number of bytes. A broker reads them when "
        "it starts.",
        _table(("setting", "type", "default", "meaning"), rows),
        "## Objects in files\n\nObjects that the API makes may also stand in files, fixed by them, at these places:\n\n"
        + objects,
    )


def _default(entry: SettingEntry) -> str:
    if entry.default is None:
        return "required"
    return f"`{_in_units(entry.default, _UNITS.get(entry.type, {}))}`"


def _in_units(text: str, units: Mapping[str, int]) -> str:
    """A quantity in the largest unit that it is a whole number of, other texts as they are."""
    for unit, size in units.items():
        if float(text) and float(text) % size == 0:
            return f"{float(text) / size:.0f}{unit}"
    return text


# -- Objects --


_OBJECTS: Final[tuple[tuple[str, str, type[BaseModel]], ...]] = (
    ("Validation", "validations", ValidationSpec),
    ("Transformation", "transforms", TransformationSpec),
    ("Rule", "rules", RuleSpec),
    ("Stream", "streams", StreamSpec),
    ("Table", "lake/tables", LakeTableSpec),
)
_SCHEMA: Final = """## Schema

`/api/v1/schemas`. A PUT with another source adds a version, which is used from then on.

| member | type | default | meaning |
| --- | --- | --- | --- |
| `name` | string | required | What others name it by. |
| `type` | `json` or `avro` or `protobuf` | required | JSON Schema, Avro or Protobuf. |
| `source` | string, or a JSON value | this or `files` | The schema's text. |
| `files` | list of object |  | Protobuf only: files that import each other, with `path`, `contents` and `root`. |
| `description` | string | `""` | For people. |"""
_MEANINGS: Final = {
    "actions": "What is done with each row, in order.",
    "bridge": "The bridge that takes the rows, as `<type>:<name>`.",
    "checks": "Run in order until the strategy is decided.",
    "description": "For people.",
    "direct_dispatch": (
        "Straight to the subscribers: no validation, transformation, rule, stream or retained store sees the message."
    ),
    "enable": "Whether it runs.",
    "error": "The event makes the rule fail; a text must stand in what is said.",
    "event": "The event: `event` and `topic`, and columns by name, as `rules:test` takes them.",
    "expect": "What the rule must make of it.",
    "failure_action": "What becomes of a message that fails; `disconnect` also closes its sender's connection.",
    "fallback_actions": "Run, each of them, when the action fails.",
    "format": "The format of the table.",
    "from": "Sources of a rule in jq: topic filters and event topics.",
    "jq": "The program of a rule in jq; every object it gives is a row.",
    "key": "What is written: `topic`, `qos`, `retain`, `payload`, `payload.a.b` or `user_property.NAME`.",
    "language": "The language of the rule.",
    "level": "The level of the log line.",
    "log_failure": "How failures are logged.",
    "message_type": "The message type of the Protobuf schema.",
    "mode": "`shadow` counts and tells failures, and lets every message pass as it was.",
    "mqtt_properties": "Templates of MQTT 5 properties by name.",
    "name": "Unique among its kind; does not change.",
    "no_result": "FROM or WHERE does not match.",
    "operations": "Run in order; all of them take effect or none.",
    "payload": "A template: `${column}`, `${column.member}`, `${.}` for the whole row as JSON.",
    "payload_decoder": "How the payload is read.",
    "payload_encoder": "How the payload is written.",
    "qos": "0, 1, 2 or a placeholder.",
    "quarantine": "A stream of rows that keeps the messages it stops.",
    "retain": "true, false or a placeholder.",
    "retention": "How long records are kept; by default as `stream_defaults` says.",
    "rows": "Exactly these rows, in order.",
    "schema": "The name of a registered schema.",
    "sql": "SQL of the rule language.",
    "strategy": "Whether all checks must pass, or one.",
    "stream": "The name of a stream.",
    "tags": "For people.",
    "tests": "Test cases; the rule is saved only when they hold.",
    "topic": "A template of the topic.",
    "topics": "Topic filters of the messages it is for.",
    "type": "Says which of the kinds this is.",
    "undefined_vars": (
        "What a placeholder without a value writes; `drop` leaves the row out, `fail` fails the action."
    ),
    "user_properties": "Templates of user properties by name, or a placeholder of a map.",
    "value": "An expression of [variform](variform.md).",
    "wire_format": "`confluent` reads the schema's identifier in front of the payload.",
}
"""Of members whose model does not say it."""


def _objects() -> str:
    sections, told = [_SCHEMA], set[str]()
    for title, path, model in _OBJECTS:
        schema = model.model_json_schema()
        sections.append(f"## {title}\n\n`/api/v1/{path}`. {_described(schema)}")
        for name, part in schema.get("$defs", {}).items():
            if name not in told:
                sections.append(f"### {name}\n\n{_described(part)}")
                told.add(name)
    return _page(
        "Objects",
        "What is sent to the [management API](api.md), or stands in [files](../how-to/configure.md), member by member. "
        "An unknown member is refused. Durations (`age`) and sizes (`bytes`) may be written as in "
        "[settings](settings.md): `30d`, `20GB`.",
        *sections,
    )


def _described(schema: Mapping[str, Any]) -> str:
    required = schema.get("required", ())
    rows = [
        (
            f"`{member}`",
            _json_type(found),
            "required" if member in required else f"`{json.dumps(found['default'])}`" if "default" in found else "",
            found.get("description") or _MEANINGS.get(member, ""),
        )
        for member, found in schema.get("properties", {}).items()
    ]
    text = _CODE.sub(r"`\1`", schema.get("description", ""))
    return f"{text}\n\n{_table(('member', 'type', 'default', 'meaning'), rows)}".lstrip()


# -- The rule language's functions --


def _functions(functions: Iterable[Function]) -> str:
    rows = [
        (f"`{function.signature}`", _parameters(function), function.returns.name, function.documentation)
        for function in functions
    ]
    events = [(f"`{event.topic}`", f"`{event.name}`") for event in EVENT_TYPES.values()]
    return _page(
        "Functions of the rule language",
        f"{len(rows)} functions; `GET /api/v1/functions` lists those of a running node. Arguments in brackets may be "
        "left out. An argument of another type than the one named makes the rule fail for that message, which is "
        "counted; where it is a literal, the rule is refused when it is saved.",
        _table(("function", "arguments", "result", "meaning"), rows),
        "## Events\n\nWhat `FROM` may name besides topic filters:\n\n" + _table(("FROM", "column `event`"), events),
    )


def _parameters(function: Function) -> str:
    kinds = [(parameter.name, parameter.kind.name if parameter.kind else "any") for parameter in function.parameters]
    return ", ".join(f"{name}: {kind}" for name, kind in kinds)


# -- Variform --


def _variform() -> str:
    rows = [
        (
            f"`{function.name}`",
            function.arity,
            function.help + (" Only in transformations." if function.only_in_transformations else ""),
        )
        for function in sorted(FUNCTIONS.values(), key=lambda function: function.name)
    ]
    lazy = [(f"`{name}`", f"{least} to {most} arguments" if least != most else f"{least} arguments", says)
            for name, (least, most, says) in sorted(LAZY.items())]  # fmt: skip
    return _page(
        "Functions of variform",
        "Variform is the expression language of transformations: calls, variables, literals. "
        "`upper(nth(2, topic_split(topic)))` is an expression; `payload.a.b`, `topic`, `clientid` and "
        "`user_property.NAME` are variables. `POST /api/v1/variform:eval` tries one.",
        _table(("function", "takes", "meaning"), rows),
        "These evaluate only the arguments that they need:\n\n" + _table(("function", "takes", "meaning"), lazy),
    )


# -- The command line --


def _cli() -> str:
    codes = [
        (f"`{value}`", name.lower().replace("_", " "))
        for name, value in vars(exit_codes).items()
        if name.isupper() and isinstance(value, int)
    ]
    return _page(
        "The command `sluice`",
        "Commands that talk to a broker find it by `--url`, else `SLUICE_URL`, else by the node that runs on "
        "`--data-dir`, else at `http://127.0.0.1:18083`. Their token is `SLUICE_API_TOKEN`, else, for the node that "
        "runs on the data directory, the one kept there.",
        "## Exit codes\n\n" + _table(("code", "meaning"), codes),
        *_commands(typer.main.get_command(app), "sluice"),
    )


def _commands(command: Any, path: str) -> Iterator[str]:
    if command.hidden:
        return
    context = command.make_context(path, [], resilient_parsing=True, terminal_width=_HELP_WIDTH)
    text = "\n".join(line.rstrip() for line in command.get_help(context).strip().splitlines())
    yield f"## `{path}`\n\n```text\n{text}\n```"
    for name, below in getattr(command, "commands", {}).items():
        yield from _commands(below, f"{path} {name}")


# -- The management API --


def _api(document: Mapping[str, Any]) -> str:
    operations = [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    sections = []
    for tag in document["tags"]:
        chosen = [found for found in operations if tag["name"] in found[2]["tags"]]
        rows = [(f"`{method} {path}`", operation["summary"], _body(operation), _query(operation))
                for method, path, operation in chosen]  # fmt: skip
        table = _table(("request", "what it does", "body", "query"), rows)
        sections.append(f"## {tag['name']}\n\n{tag['description']}.\n\n{table}")
    wanted = sorted({name for _, _, operation in operations if (name := _body_name(operation))})
    bodies = [_schema(name, document["components"]["schemas"][name]) for name in wanted]
    return _page(
        "The management API",
        "HTTP and JSON, at `http://127.0.0.1:18083` unless set otherwise. Send `Authorization: Bearer TOKEN`. Errors "
        "are problem documents (RFC 9457) with `code`, a sentence in `detail`, and in `errors` the place of each "
        "problem: JSON pointer, line and column. The whole description is served as OpenAPI at "
        "`/api/v1/openapi.json`, as a page at `/docs`.",
        "Without a token: `GET /livez`, `GET /readyz`, and `GET /metrics` in Prometheus' text format.",
        *sections,
        "## Bodies",
        *bodies,
    )


def _body_name(operation: Mapping[str, Any]) -> str | None:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    reference: str = content.get("schema", {}).get("$ref", "")
    return reference.rpartition("/")[2] or None


def _body(operation: Mapping[str, Any]) -> str:
    name = _body_name(operation)
    return f"[{name}](#{name.lower()})" if name else ""


def _query(operation: Mapping[str, Any]) -> str:
    chosen = [p for p in operation.get("parameters", ()) if p["in"] == "query"]
    return ", ".join(f"`{p['name']}`" + ("" if p["required"] else " (optional)") for p in chosen)


def _schema(name: str, schema: Mapping[str, Any]) -> str:
    rows = [
        (f"`{member}`", _json_type(found), "yes" if member in schema.get("required", ()) else "")
        for member, found in schema.get("properties", {}).items()
    ]
    text = _CODE.sub(r"`\1`", schema.get("description", ""))
    return f"### {name}\n\n{text}" + (f"\n\n{_table(('member', 'type', 'required'), rows)}" if rows else "")


def _json_type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        return f"[{name}](#{name.lower()})" if "/$defs/" in schema["$ref"] else name
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            return " or ".join(_json_type(one) for one in schema[choice] if one.get("type") != "null")
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_json_type(schema.get('items', {}))}"
    return str(schema.get("type", "any"))


# -- Metrics --


class _FailingGate:
    """Counts what is counted only when a stage breaks."""

    name = "failing"

    def plan(self, topic: str) -> GateCall | None:
        def fail(message: Message) -> Message:
            raise ValueError("on purpose")

        return fail


def _metrics(node: Node) -> str:
    _use(node)
    families = _families(exposition(node.metrics))
    rows = [(f"`{name}`", kind, ", ".join(f"`{label}`" for label in labels), text)
            for name, kind, labels, text in families]  # fmt: skip
    return _page(
        "Metrics",
        "`GET /metrics` of the management API, without a token, in Prometheus' text format. Counters count since the "
        "broker started. The books balance: `sluice_messages_received_total` + `sluice_messages_internal_total` = "
        "`sluice_messages_passed_total` + `sluice_messages_refused_total` + "
        "`sluice_messages_resent_already_taken_total`.",
        _table(("metric", "kind", "labels", "meaning"), rows),
    )


def _use(node: Node) -> None:
    """Make the metrics appear that exist only once something has happened."""
    services = node.object_services
    services["schemas"].create({"name": "s", "type": "json", "source": '{"type": "object"}'})
    check = {"type": "json", "schema": "s"}
    stage = {"name": "s", "topics": ["#"], "failure_action": "drop"}
    services["validations"].create({**stage, "strategy": "all_pass", "checks": [check]})
    services["transforms"].create(stage)
    services["rules"].create({"name": "s", "sql": 'SELECT * FROM "#"'})
    Outside.count("ok")
    node.services.queues.open("s", max_records=1, max_bytes=1)
    publisher = node.server.publisher
    for payload in (b"{}", b"broken"):
        publisher.publish(Message("t", payload, 0, False, Client("c"), 0))
    node.server.hub.figures.delivery_dropped("queue_full")
    node.server.hub.figures.refused_connection("not_authorized")
    node.server.hub.figures.refused_subscription("quota_exceeded")
    node.server.hub.figures.disconnected("normal")
    show_expiry(node.metrics, "ssl:default", lambda: 0)
    node.server.set_stages([_FailingGate()], [])
    logging.disable(logging.CRITICAL)  # what is about to fail is logged
    publisher.publish(Message("u", b"", 0, False, Client("c"), 0))
    logging.disable(logging.NOTSET)


def _families(text: str) -> Iterator[tuple[str, str, Sequence[str], str]]:
    lines = text.splitlines()
    helps = dict(re.findall(r"^# HELP (\S+) (.*)$", text, re.M))
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M):
        samples = [line for line in lines if line.startswith(f"{name}{{")]
        yield (
            name,
            kind,
            sorted({label for line in samples for label in re.findall(r'(\w+)="', line)}),
            helps.get(name, ""),
        )


# -- Markdown --


def _page(title: str, *parts: str) -> str:
    return "\n\n".join((f"# {title}", _NOTE, *parts))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(text: str) -> str:
    text = _CODE.sub(r"`\1`", inspect.cleandoc(text))
    return re.sub(r"\s*\n\s*", " ", text).replace("|", "\\|")


def main() -> None:
    """Write the pages."""
    DIRECTORY.mkdir(exist_ok=True)
    for name, text in pages().items():
        (DIRECTORY / name).write_text(text)


if __name__ == "__main__":
    main()
