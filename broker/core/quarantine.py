"""Messages that a gate stopped, as rows of a stream with the reason, so that they can be reprocessed after a fix.

A row holds the whole message, which stage refused it and why. Reading it back gives the message as it was published,
marked so that no gate puts it into quarantine a second time: when it fails again, its row is still where it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from broker.core import json_values, jsontext
from broker.core.client import Client
from broker.core.errors import Problem, SluiceError, Unavailable
from broker.core.message import Message
from broker.core.schema import FieldType
from broker.core.stored import properties_of, properties_text
from broker.core.stream import Append, StreamAppender, StreamRecord, rows_problem, stream_record

# Mark in ``Message.via`` of messages that come out of quarantine.
TAKEN_AGAIN: Final = "$quarantine"

_TEXT = FieldType("string")
_LONG = FieldType("long")

# The members of a row. ``client_attrs`` and ``properties`` are JSON text, ``received_at`` is in milliseconds.
COLUMNS: Final[dict[str, FieldType]] = {
    "id": _TEXT,
    "stage": _TEXT,
    "name": _TEXT,
    "reason": _TEXT,
    "path": _TEXT,
    "action": _TEXT,
    "topic": _TEXT,
    "payload": _TEXT,
    "payload_encoding": _TEXT,
    "qos": _LONG,
    "retain": FieldType("boolean"),
    "clientid": _TEXT,
    "username": _TEXT,
    "peername": _TEXT,
    "client_attrs": _TEXT,
    "properties": _TEXT,
    "received_at": _LONG,
}

# ``keep(message, reason, path, action)``: whether the message was kept.
Quarantine = Callable[[Message, str, str, str], bool]


def quarantine(append: Append, stage: str, name: str) -> Quarantine:
    """Function that keeps messages that the stage's object ``name`` stops. It never raises."""

    def keep(message: Message, reason: str, path: str, action: str) -> bool:
        if TAKEN_AGAIN in message.via:
            return False
        try:
            append(quarantined(message, stage, name, reason, path, action))
        except Unavailable:
            return False
        return True

    return keep


def quarantined(
    message: Message, stage: str, name: str, reason: str, path: str, action: str
) -> StreamRecord:
    """The row of a message that a stage's object stopped."""
    row = _row(
        message, {"stage": stage, "name": name, "reason": reason, "path": path, "action": action}
    )
    client = message.client
    return stream_record(
        (
            message.received_ns // 1000,
            message.topic,
            jsontext.encode(row),
            message.qos,
            message.retain,
            client.client_id,
            client.username,
            None,
            f"{stage}:{name}",
        )
    )


def _row(message: Message, why: dict[str, str]) -> dict[str, Any]:
    payload = json_values.payload_to_wire(message.payload)
    client = message.client
    return {
        "id": message.id,
        **why,
        "topic": message.topic,
        "payload": payload["data"],
        "payload_encoding": payload["encoding"],
        "qos": message.qos,
        "retain": message.retain,
        "clientid": client.client_id,
        "username": client.username,
        "peername": client.peer_name,
        "client_attrs": jsontext.encode(dict(client.attributes)).decode()
        if client.attributes
        else None,
        "properties": properties_text(message.properties) if message.properties else None,
        "received_at": message.received_ns // 1_000_000,
    }


def message_of(record: StreamRecord) -> Message | None:
    """The message in a row of quarantine, or None if the record is not such a row."""
    try:
        row = jsontext.decode(record.payload)
        payload = json_values.payload_from_wire(
            {"encoding": row["payload_encoding"], "data": row["payload"]}, ""
        )
        host, _, port = (row["peername"] or "").rpartition(":")
        client = Client(
            row["clientid"],
            row["username"],
            host or None,
            int(port) if port else None,
            attributes=jsontext.decode(row["client_attrs"].encode()) if row["client_attrs"] else {},
        )
        return Message(
            row["topic"],
            payload,
            row["qos"],
            row["retain"],
            client,
            row["received_at"] * 1_000_000,
            properties_of(row["properties"]),
            via=(TAKEN_AGAIN,),
        )
    except (SluiceError, ValueError, KeyError, TypeError, AttributeError):
        return None


def quarantine_problems(
    stream: str | None, streams: StreamAppender, pointer: str = ""
) -> list[Problem]:
    """Problems of a stream as a quarantine; empty if it can be one, or without a stream."""
    problem = None if stream is None else rows_problem(stream, streams, f"{pointer}/quarantine")
    return [] if problem is None else [problem]
