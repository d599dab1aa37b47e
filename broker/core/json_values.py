"""Values, payloads and messages as they are in JSON: values with marks, payloads with their encoding."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Literal, NotRequired, cast

from typing_extensions import TypedDict

from broker.core import jsontext
from broker.core.client import Client
from broker.core.errors import Invalid, PeerError, Problem, Rename
from broker.core.marks import BASE64, marked, value_of_mark
from broker.core.message import Message
from broker.core.topic import check_topic_name


class FixEntry(TypedDict):
    """An edit that solves a problem: in the text at the pointer, the first word ``name`` from ``line`` and ``column``
    on becomes ``by``."""

    line: NotRequired[int]
    column: NotRequired[int]
    name: str
    by: str


class ProblemEntry(TypedDict):
    """One thing wrong, and where: ``pointer`` is a JSON pointer into the body, ``line`` and ``column`` count from 1 in
    the string that it names. ``suggestion`` is a sentence."""

    pointer: NotRequired[str]
    line: NotRequired[int]
    column: NotRequired[int]
    message: str
    suggestion: NotRequired[str]
    fix: NotRequired[FixEntry]


class LastErrorView(TypedDict):
    """The last failure: in words, and when, in milliseconds since 1970."""

    text: str
    time_ms: int


class WirePayload(TypedDict):
    """A payload as text, where it is UTF-8, else as base64."""

    encoding: Literal["utf8", "base64"]
    data: str


class WireMessage(TypedDict):
    """A message. ``user_properties`` are pairs of name and value, ``properties`` the others by their MQTT name."""

    topic: str
    payload: WirePayload
    qos: int
    retain: bool
    user_properties: list[list[str]]
    properties: dict[str, Any]


def from_wire(value: Any) -> Any:
    """A value with marks turned into what they stand for. Raises ``Invalid`` for base64 that is not."""
    if isinstance(value, Mapping):
        if value.keys() == {BASE64} and isinstance(value[BASE64], str):
            return unbase64(value[BASE64], "")
        marked_value = value_of_mark(value)
        return (
            {key: from_wire(item) for key, item in value.items()}
            if marked_value is None
            else marked_value
        )
    return [from_wire(item) for item in value] if isinstance(value, list) else value


def payload_from_wire(value: Any, pointer: str) -> bytes:
    """The bytes of a string, or of ``{"encoding": "utf8" | "base64" | "json", "data": ...}``."""
    if isinstance(value, str):
        return _utf8(value, pointer)
    if not isinstance(value, Mapping) or "data" not in value:
        raise _refused(
            "the payload cannot be read",
            "expected a string, or an object with encoding and data",
            pointer,
        )
    encoding = value.get("encoding")
    data = value["data"]
    if encoding == "json":
        try:
            return jsontext.encode(data)
        except jsontext.JsonError as error:
            raise _refused("the payload cannot be read", str(error), f"{pointer}/data") from None
    if encoding not in ("utf8", "base64") or not isinstance(data, str):
        raise _refused(
            "the payload cannot be read", "expected utf8, base64 or json", f"{pointer}/encoding"
        )
    return _utf8(data, pointer) if encoding == "utf8" else unbase64(data, f"{pointer}/data")


def payload_to_wire(data: bytes) -> WirePayload:
    """A payload as text where it is UTF-8, else as base64."""
    try:
        return {"encoding": "utf8", "data": data.decode()}
    except UnicodeDecodeError:
        return {"encoding": "base64", "data": base64.b64encode(data).decode()}


def message_from_wire(body: Any, received_ns: int, pointer: str = "/message") -> Message:
    """A message as it is in a request: ``topic``, ``payload``, and what else a publish has."""
    if not isinstance(body, Mapping):
        raise _refused("the message cannot be read", "expected an object", pointer)
    topic = body.get("topic")
    if not isinstance(topic, str):
        raise _refused("the message cannot be read", "expected a string", f"{pointer}/topic")
    try:
        check_topic_name(topic)
    except PeerError as error:
        raise _refused("the message cannot be published", str(error), f"{pointer}/topic") from None
    qos = body.get("qos", 0)
    retain = body.get("retain", False)
    if isinstance(qos, bool) or qos not in (0, 1, 2) or not isinstance(retain, bool):
        raise _refused(
            "the message cannot be published",
            "expected qos 0, 1 or 2 and a boolean for retain",
            pointer,
        )
    payload = payload_from_wire(body.get("payload", ""), f"{pointer}/payload")
    return Message(
        topic, payload, qos, retain, _client(body, pointer), received_ns, _properties(body, pointer)
    )


def message_to_wire(message: Message) -> WireMessage:
    """A message as it is in an answer."""
    properties = {
        name: value for name, value in (message.properties or {}).items() if name != "User-Property"
    }
    return {
        "topic": message.topic,
        "payload": payload_to_wire(message.payload),
        "qos": message.qos,
        "retain": message.retain,
        "user_properties": [list(pair) for pair in message.user_properties],
        "properties": marked(properties),
    }


def problem_to_wire(problem: Problem) -> ProblemEntry:
    """A problem as it is in an answer; absent members are left out."""
    members = {
        "pointer": problem.pointer or None,
        "line": problem.line,
        "column": problem.column,
        "message": problem.message,
        "suggestion": None if problem.suggestion is None else str(problem.suggestion),
        "fix": _fix(problem),
    }
    return cast(ProblemEntry, {name: value for name, value in members.items() if value is not None})


def unbase64(text: str, pointer: str) -> bytes:
    """The bytes of a base64 text, or ``Invalid``."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise _refused("not base64", "not base64", pointer) from None


def _refused(what: str, why: str, pointer: str) -> Invalid:
    return Invalid(what, [Problem(why, pointer)])


def _utf8(text: str, pointer: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise _refused(
            "the payload cannot be read", "the string has lone surrogates", pointer
        ) from None


def _client(body: Mapping[str, Any], pointer: str) -> Client:
    client_id = body.get("clientid", "c1")
    username = body.get("username")
    attributes = body.get("client_attrs", {})
    if not isinstance(client_id, str) or not (username is None or isinstance(username, str)):
        raise _refused(
            "the message's client cannot be read",
            "expected strings for clientid and username",
            pointer,
        )
    if not isinstance(attributes, Mapping):
        raise _refused(
            "the message's client cannot be read", "expected an object", f"{pointer}/client_attrs"
        )
    host, _, port = str(body.get("peername", "127.0.0.1:19872")).rpartition(":")
    return Client(
        client_id,
        username,
        host or "127.0.0.1",
        int(port) if port.isdecimal() else 0,
        attributes=dict(attributes),
    )


def _properties(body: Mapping[str, Any], pointer: str) -> dict[str, Any] | None:
    own_properties = body.get("properties") or {}
    pairs = body.get("user_properties") or []
    if not isinstance(own_properties, Mapping):
        raise _refused("the message cannot be read", "expected an object", f"{pointer}/properties")
    properties = {str(name): from_wire(value) for name, value in own_properties.items()}
    if pairs or "User-Property" in properties:
        properties["User-Property"] = _pairs(
            pairs or properties["User-Property"], f"{pointer}/user_properties"
        )
    return properties or None


def _pairs(pairs: Any, pointer: str) -> list[tuple[str, str]]:
    listed = list(pairs.items()) if isinstance(pairs, Mapping) else pairs
    if not isinstance(listed, list) or not all(
        isinstance(pair, (list, tuple))
        and len(pair) == 2
        and all(isinstance(part, str) for part in pair)
        for pair in listed
    ):
        raise _refused("the message cannot be read", "expected pairs of strings", pointer)
    return [(name, value) for name, value in listed]


def _fix(problem: Problem) -> FixEntry | None:
    rename = problem.suggestion
    if not isinstance(rename, Rename):
        return None
    line, column = rename.place or (problem.line, problem.column)
    names: FixEntry = {"name": rename.name, "by": rename.by}
    return names if line is None or column is None else {"line": line, "column": column, **names}
