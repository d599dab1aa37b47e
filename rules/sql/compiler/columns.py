"""The columns of a published message and of an event, as compiled rules read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from broker.core import jsontext
from broker.core.events import flag_columns
from broker.core.message import Message
from rules.sql.values import UNDEFINED, string


class Event:
    """An event, or a message given as columns: ``columns`` by name, payload as string, decoded at most once."""

    __slots__ = ("_decoded", "columns")

    def __init__(self, columns: dict[str, Any]) -> None:
        self.columns = columns
        self._decoded: Any = UNDEFINED

    def json(self) -> Any:
        """The column ``payload`` as JSON. Undefined when there is no payload.

        Raises:
            JsonError: the payload is not JSON.
        """
        if self._decoded is UNDEFINED:
            payload = self.columns.get("payload", UNDEFINED)
            if isinstance(payload, (str, bytes)):
                self._decoded = jsontext.decode(payload)
            else:
                self._decoded = payload
        return self._decoded


# Python source of each column of ``message.publish``; ``message`` and ``client`` are locals of the compiled rule.
MESSAGE_COLUMNS: Mapping[str, str] = {
    "event": "'message.publish'",
    "id": "message.id",
    "clientid": "client.client_id",
    "username": "_present(client.username)",
    "payload": "_string(message.payload)",
    "peerhost": "_present(client.peer_host)",
    "peername": "_present(client.peer_name)",
    "topic": "message.topic",
    "qos": "message.qos",
    "flags": "_flags(message)",
    "pub_props": "_properties(message)",
    "publish_received_at": "message.received_ns // 1000000",
    "timestamp": "_now_ms()",
    "node": "_node",
    "metadata": "_metadata",
    "client_attrs": "dict(client.attributes)",
}


def present(value: Any) -> Any:
    """None as undefined."""
    return UNDEFINED if value is None else value


def properties(message: Message) -> dict[str, Any]:
    """The column ``pub_props``: by MQTT name, ``User-Property`` as a map, ``User-Property-Pairs`` in order."""
    pairs = message.user_properties
    columns: dict[str, Any] = {
        name: string(value) if isinstance(value, bytes) else value
        for name, value in (message.properties or {}).items()
    }
    columns["User-Property"] = dict(pairs)
    if pairs:
        columns["User-Property-Pairs"] = [{"key": key, "value": value} for key, value in pairs]
    return columns


def all_columns(
    message: Message, node: str, metadata: dict[str, Any], now_ms: Callable[[], int]
) -> dict[str, Any]:
    """The columns that ``*`` stands for on a published message; optional columns that are absent are left out."""
    client = message.client
    columns: dict[str, Any] = {
        "event": "message.publish",
        "id": message.id,
        "clientid": client.client_id,
    }
    if client.username is not None:
        columns["username"] = client.username
    columns["payload"] = string(message.payload)
    if client.peer_host is not None:
        columns["peerhost"], columns["peername"] = client.peer_host, client.peer_name
    columns.update(
        topic=message.topic,
        qos=message.qos,
        flags=flag_columns(message),
        pub_props=properties(message),
        publish_received_at=message.received_ns // 1_000_000,
        timestamp=now_ms(),
        node=node,
        metadata=metadata,
        client_attrs=dict(client.attributes),
    )
    return columns


def payload_size(columns: dict[str, Any]) -> int:
    """The bytes of the payload, about; 0 where it is not a string."""
    payload = columns.get("payload")
    return len(payload) if isinstance(payload, (str, bytes)) else 0


def may_exceed(columns: dict[str, Any], most: int) -> bool:
    """True if a column may be of more bytes. Rows of other rules, which ``event`` names, may hold anything."""
    event = columns.get("event")
    return payload_size(columns) > most or (type(event) is str and event.startswith("$rules/"))


def soft_json(source: Message | Event) -> Any:
    """The payload as JSON, undefined when it is not."""
    try:
        return source.json()
    except jsontext.JsonError:
        return UNDEFINED
