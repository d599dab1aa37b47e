"""Every operation of the OpenAPI document, called with its documented example on one real broker."""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote

import httpx
import paho.mqtt.client as mqtt
import pytest
from jsonschema import Draft202012Validator
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.support.api_document import closed
from tests.support.node import TOKEN, Node, eventually, running
from tests.support.processes import free_port

STEPS: Final = tuple(
    re.compile(step)
    for step in (
        r"post .*/(schemas|streams|connectors|schemas:bundle)$",
        r"post [^:{]*/(?!session$)[^:/]*$", r"post [^:]*/(?!session$)[^:/]*(\{id\})?$",
        r"put ", r"patch ",
        r"post (?!.*/jobs/).*:(disable|stop|pause)$", r"post (?!.*/jobs/).*:(enable|start|resume)$",
        r"post .*:import$", r"post (?!.*:(kick|drain))", r"get ",
        r"post ", r"delete .*/(?!(schemas|streams|connectors|versions)/)[^/]+/\{", r"delete .*/versions/", r"delete ",
    )
)  # fmt: skip
"""Objects are created, changed, switched off and on, used, shown, and deleted, those that others name last."""
FOUND: Final = {
    f"/api/v1/{kind}/{{id}}": kind
    for kind in ("delayed", "refused", "backtests", "jobs", "audit-log")
}
"""Paths with an identifier that the broker gives: it is read from this list."""
REFUSED: Final = {
    "retypeTable": (422, "columns of a table of messages are fixed"),
    "restoreObject": (422, "cannot be restored"),
    "revertAuditEntry": (
        422,
        "cannot be reverted",
    ),  # the newest request before it changed no object
    "getSaturation": (404, "there is no saturation log entry"),  # unless the machine is busy
    # it runs on one machine
    **dict.fromkeys(
        ("drainMachine", "resumeMachine", "moveCell", "forgetMachine"),
        (404, "there is no machine"),
    ),
    "rebalanceMachines": (409, "cells move only where other machines have copies"),
    # nothing is wrong with this node, and nothing retained was deleted before
    **dict.fromkeys(
        ("getAlarm", "acknowledgeAlarm", "unacknowledgeAlarm"), (404, "there is no active alarm")
    ),
    "undoRetainedDeletion": (404, "there is no deletion that can be undone"),
    "pauseJob": (409, ""),  # the job that is found is over
    "resumeJob": (409, ""),
    "beginOidcSignIn": (404, ""),  # no issuer is set
    "diffTable": (404, "there is no shadow of table"),  # no lake job runs that could make one
    "swapTable": (404, "there is no shadow of table"),
}
"""Operations that this node has to refuse: the status, and a part of the reason."""
TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
PROTO: Final = b'syntax = "proto3"; message Frame { double t = 1; }'


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A fresh broker with one client, which the examples are about, one delayed
    and one refused message, and the stream of a quarantine."""
    with running(tmp_path_factory.mktemp("api") / "data") as node:
        client = mqtt.Client(CallbackAPIVersion.VERSION2, "meter-7", protocol=mqtt.MQTTv5)
        lasting = Properties(PacketTypes.CONNECT)
        lasting.SessionExpiryInterval = 600
        client.connect(*node.mqtt, clean_start=False, properties=lasting)
        client.loop_start()
        client.publish("$delayed/600/meters/1/telemetry", b'{"t": 20}', 1).wait_for_publish(60)
        node.call("POST", "/streams", {"name": "refused"})
        check = {"type": "sql", "sql": "SELECT * WHERE payload.t > 0"}
        gate = {"topics": ["refused"], "strategy": "all_pass", "failure_action": "drop"}
        node.call("POST", "/validations", {"name": "gate", **gate, "checks": [check]})
        refused = {"topic": "refused", "payload": "{}"}
        node.call("POST", "/messages:publish", refused, expect=422)
        node.call("DELETE", "/validations/gate")
        yield node
        client.disconnect()
        client.loop_stop()


def test_every_operation_takes_its_example(node: Node) -> None:
    document, calls = _document(node)
    wrong, components = [], closed(document["components"])
    with node.client(follow_redirects=False) as client:
        for path, method, operation in sorted(calls, key=_step):
            answer = client.request(
                method, node.url + _url(client, path, operation), **_body(node, operation)
            )
            declared = _declared(answer, operation, components)
            status, reason = REFUSED.get(operation["operationId"], (0, ""))
            if answer.status_code == status and reason in answer.text:
                continue
            if answer.status_code >= 400 or declared is None or not _is_of_type(answer, declared):
                wrong.append(
                    f"{operation['operationId']}: {answer.status_code} {answer.text[:300]}"
                )
            wrong += [
                f"{operation['operationId']}: {text}"
                for text in _misfits(answer, declared or {}, components)
            ]
            wrong += [
                f"{operation['operationId']}: {name} is {text}"
                for name, text in _times(answer)
                if not TIME.match(str(text))
            ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("given", ["no such name", "no name", "no member", "no parameter"])
def test_every_operation_declares_the_problems_that_it_answers(node: Node, given: str) -> None:
    document, calls = _document(node)
    components, wrong, refused = closed(document["components"]), [], 0
    with node.client(follow_redirects=False) as client:
        for path, method, operation in calls:
            name = {"no such name": "0", "no name": "-"}.get(given, "0" if "{id}" in path else None)
            request = {"headers": {"Origin": node.url}, **_body(node, operation)}
            query = {
                one["name"]: "~" for one in operation.get("parameters", ()) if one["in"] == "query"
            }
            if given == "no member":
                request["json"] = {}
            elif given == "no parameter" and query:
                request["params"] = query
            answer = client.request(
                method, node.url + _url(client, path, operation, name), **request
            )
            if answer.status_code < 400:
                continue
            refused += 1
            declared = _declared(answer, operation, components)
            if declared is None or not _is_of_type(answer, declared):
                wrong.append(
                    f"{operation['operationId']}: {answer.status_code} {answer.text[:300]}"
                )
            else:
                wrong += [
                    f"{operation['operationId']}: {text}"
                    for text in _misfits(answer, declared, components)
                ]
    assert refused > 20
    assert not wrong, "\n".join(wrong)


def test_documents_examples_are_complete(node: Node) -> None:
    document = httpx.get(f"{node.url}/api/v1/openapi.json", timeout=60).json()
    tags = {tag["name"] for tag in document["tags"]}
    for path, methods in document["paths"].items():
        for operation in methods.values():
            assert set(operation["tags"]) <= tags
            declared = {
                one["name"] for one in operation.get("parameters", ()) if one["in"] == "path"
            }
            assert declared == set(re.findall(r"\{(\w+)\}", path)), operation["operationId"]
            assert all(
                one.get("example") for one in operation.get("parameters", ()) if one["required"]
            )
            assert all(
                one["example"]
                for one in operation.get("requestBody", {}).get("content", {}).values()
            )


@pytest.mark.parametrize(
    ("path", "member"), [("authentication", "mechanism"), ("authorization/sources", "type")]
)
def test_kinds_that_have_no_name_are_refused_by_the_member_that_names_them(
    node: Node, path: str, member: str
) -> None:
    with node.client() as client:
        problem = client.post(f"/{path}", json={}).json()
    assert [(one["pointer"], one["message"]) for one in problem["errors"]] == [
        (f"/{member}", "expected a string, got nothing")
    ]


def _document(node: Node) -> tuple[Any, list[tuple[str, str, Any]]]:
    """The document, and each operation with its path and method."""
    document = httpx.get(f"{node.url}/api/v1/openapi.json", timeout=60).json()
    paths = document["paths"].items()
    return document, [
        (path, method, found) for path, methods in paths for method, found in methods.items()
    ]


def _declared(
    answer: httpx.Response, operation: Mapping[str, Any], components: Mapping[str, Any]
) -> Any:
    """What the document says of an answer with this status; None where it says nothing."""
    found = operation["responses"].get(str(answer.status_code))
    return (
        components["responses"][found["$ref"].rpartition("/")[2]]
        if found and "$ref" in found
        else found
    )


def _times(answer: httpx.Response) -> Iterator[tuple[str, str | int]]:
    """The members of an answer that are times, by their names; columns of events and tables have more digits."""
    todo = [answer.json()] if answer.headers.get("content-type") == "application/json" else []
    while todo:
        value = todo.pop()
        inner: dict[str, Any] = value if isinstance(value, dict) else {}
        inner = {
            name: one for name, one in inner.items() if name not in ("event", "example", "rows")
        }
        todo += value if isinstance(value, list) else inner.values()
        yield from (
            (name, one)
            for name, one in inner.items()
            if name.endswith("_at") and isinstance(one, (str, int))
        )


def _is_of_type(answer: httpx.Response, declared: Mapping[str, Any]) -> bool:
    return (
        "content" not in declared
        or answer.headers["content-type"].partition(";")[0] in declared["content"]
    )


def _misfits(
    answer: httpx.Response, declared: Mapping[str, Any], components: Mapping[str, Any]
) -> Iterator[str]:
    """Where an answer differs from what the document says of it."""
    type = answer.headers.get("content-type", "").partition(";")[0]
    schema = declared.get("content", {}).get(type, {}).get("schema")
    if schema is not None and schema.get("format") != "binary":
        validator = Draft202012Validator({**schema, "components": components})
        values = map(json.loads, answer.text.splitlines()) if "ndjson" in type else [answer.json()]
        for value in values:
            yield from (
                f"{error.json_path}: {error.message[:300]}"
                for error in validator.iter_errors(value)
            )


def _step(call: tuple[str, str, Any]) -> int:
    path, method, _ = call
    return next(number for number, step in enumerate(STEPS) if step.match(f"{method} {path}"))


def _url(
    client: httpx.Client, path: str, operation: Mapping[str, Any], name: str | None = None
) -> str:
    given = {
        one["name"]: str(one["example"])
        for one in operation.get("parameters", ())
        if one["required"]
    }
    for prefix, kind in FOUND.items():
        if name is None and path.startswith(prefix):
            given["id"] = eventually(lambda: client.get(f"/{kind}").json()["items"])[0]["id"]  # noqa: B023
    given |= {one: name for one in re.findall(r"\{(\w+)\}", path) if name is not None}
    query = httpx.QueryParams(
        {name: value for name, value in given.items() if f"{{{name}}}" not in path}
    )
    filled = re.sub(r"\{(\w+)\}", lambda found: quote(given[found[1]], safe=":"), path)
    return f"{filled}?{query}" if query else filled


def _body(node: Node, operation: Mapping[str, Any]) -> dict[str, Any]:
    for type, content in operation.get("requestBody", {}).get("content", {}).items():
        example = content["example"]
        if type == "multipart/form-data":
            parts = {**example, "bundle": _bundle(example["root_proto_file"])}
            return {"files": {name: (name, value) for name, value in parts.items()}}
        if type == "application/x-ndjson":
            return {"content": example, "headers": {"Origin": node.url, "Content-Type": type}}
        if operation["operationId"] == "signIn":
            example = {"token": TOKEN}
        if operation["operationId"] == "createListener":
            example = {**example, "bind": f"127.0.0.1:{free_port()}"}
        return {"json": example, "headers": {"Origin": node.url}}
    return {"headers": {"Origin": node.url}}


def _bundle(root: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        member = tarfile.TarInfo(root)
        member.size = len(PROTO)
        archive.addfile(member, io.BytesIO(PROTO))
    return packed.getvalue()
