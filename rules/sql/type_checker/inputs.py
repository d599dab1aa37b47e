"""Sources of a rule, as types: for each source of FROM its columns and what its payloads hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from broker.core.schema import UNKNOWN, FieldType
from rules.sql.sources import EVENT_PREFIX, INGRESS_PREFIXES, PUBLISH, RULE_PREFIX, events_of
from rules.sql.type_checker.types import BOOLEAN, LONG, STRING, array_of, family, maybe, unified_all

# The columns of a published message and of every event, with their types.


Columns = Mapping[str, FieldType]

_TEXT: Final = maybe(STRING)
_WHOLE: Final = maybe(LONG)
_TRUTH: Final = maybe(BOOLEAN)
_FLAGS: Final = FieldType(
    "struct", nullable=False, fields={"retain": _TRUTH, "dup": _TRUTH, "sys": _TRUTH}, open=False
)
_TEXTS: Final = FieldType("map", item=STRING)
_PAIR: Final = FieldType(
    "struct", nullable=False, fields={"key": STRING, "value": STRING}, open=False
)
# MQTT 5 properties by name; packets may hold further ones.
PROPERTIES: Final = FieldType(
    "struct",
    nullable=False,
    fields={
        "User-Property": _TEXTS,
        "User-Property-Pairs": array_of(_PAIR, nullable=True),
        "Payload-Format-Indicator": _WHOLE,
        "Message-Expiry-Interval": _WHOLE,
        "Session-Expiry-Interval": _WHOLE,
        "Receive-Maximum": _WHOLE,
        "Maximum-Packet-Size": _WHOLE,
        "Topic-Alias": _WHOLE,
        "Topic-Alias-Maximum": _WHOLE,
        "Content-Type": _TEXT,
        "Response-Topic": _TEXT,
        "Correlation-Data": _TEXT,
        "Reason-String": _TEXT,
    },
)
_MAYBE_PROPERTIES: Final = maybe(PROPERTIES)

# Columns of every event.
COMMON: Final[Columns] = {
    "event": STRING,
    "timestamp": LONG,
    "node": STRING,
    "metadata": FieldType("struct", nullable=False, fields={"rule_id": STRING}),
}
_CLIENT: Final[Columns] = {"clientid": STRING, "username": _TEXT}
_PEER: Final[Columns] = {"peerhost": _TEXT, "peername": _TEXT}
_MESSAGE: Final[Columns] = {
    "id": STRING, **_CLIENT, "payload": STRING, **_PEER, "topic": STRING, "qos": LONG, "flags": _FLAGS,
    "pub_props": PROPERTIES, "publish_received_at": LONG,
}  # fmt: skip
_RECEIVED: Final[Columns] = {**_MESSAGE, "from_clientid": _TEXT, "from_username": _TEXT}
_CONNECTION: Final[Columns] = {
    **_CLIENT, "peername": _TEXT, "sockname": _TEXT, "proto_name": _TEXT, "proto_ver": _WHOLE,
}  # fmt: skip
_SESSION: Final[Columns] = {"keepalive": _WHOLE, "clean_start": _TRUTH, "expiry_interval": _WHOLE}
_ATTRIBUTES: Final[Columns] = {"client_attrs": _TEXTS}
_ALARM: Final[Columns] = {
    "name": _TEXT, "details": FieldType("struct"), "message": _TEXT, "activated_at": _WHOLE,
}  # fmt: skip
_CHECK: Final = FieldType("struct", fields={"index": _WHOLE, "type": _TEXT, "schema": _TEXT})

_OWN: Final[Mapping[str, Columns]] = {
    "message.publish": {**_MESSAGE, "client_attrs": FieldType("map", nullable=False, item=STRING)},
    "message.delivered": _RECEIVED,
    "message.acked": {**_RECEIVED, "puback_props": _MAYBE_PROPERTIES},
    "message.dropped": {**_MESSAGE, "reason": _TEXT},
    "delivery.dropped": {**_RECEIVED, "reason": _TEXT},
    "client.connected": {
        **_CONNECTION, **_SESSION, **_ATTRIBUTES, "mountpoint": _TEXT, "receive_maximum": _WHOLE, "is_bridge": _TRUTH,
        "conn_props": _MAYBE_PROPERTIES, "connected_at": _WHOLE,
    },
    "client.disconnected": {
        **_CONNECTION, **_ATTRIBUTES, "reason": _TEXT, "disconn_props": _MAYBE_PROPERTIES, "disconnected_at": _WHOLE,
        "connected_at": _WHOLE,
    },
    "client.connack": {
        **_CONNECTION, **_SESSION, "reason_code": _TEXT, "connected_at": _WHOLE, "conn_props": _MAYBE_PROPERTIES,
    },
    "client.ping": {**_CONNECTION, **_SESSION, "conn_props": _MAYBE_PROPERTIES},
    "client.check_authn_complete": {
        **_CLIENT, **_PEER, **_ATTRIBUTES, "reason_code": _TEXT, "is_superuser": _TRUTH,
        "is_anonymous": _TRUTH,
    },
    "client.check_authz_complete": {
        **_CLIENT, **_PEER, **_ATTRIBUTES, "topic": STRING, "action": _TEXT, "authz_source": _TEXT, "result": _TEXT,
    },
    "session.subscribed": {
        **_CLIENT, **_PEER, **_ATTRIBUTES, "topic": STRING, "qos": _WHOLE, "sub_props": _MAYBE_PROPERTIES,
    },
    "session.unsubscribed": {
        **_CLIENT, **_PEER, **_ATTRIBUTES, "topic": STRING, "qos": _WHOLE, "unsub_props": _MAYBE_PROPERTIES,
    },
    "schema.validation_failed": {
        **_MESSAGE, "validation": _TEXT, "check": _CHECK, "reason": _TEXT, "path": _TEXT, "action": _TEXT,
    },
    "message.transformation_failed": {
        **{name: kind for name, kind in _MESSAGE.items() if name != "peerhost"},
        "transformation": _TEXT, "action": _TEXT, "kind": _TEXT, "operation": _WHOLE, "reason": _TEXT,
    },
    "alarm.activated": _ALARM,
    "alarm.deactivated": {**_ALARM, "deactivated_at": _WHOLE},
}  # fmt: skip

# Columns by the name of the event; optional ones are nullable.
EVENT_COLUMNS: Final[Mapping[str, Columns]] = {
    name: {**COMMON, **own} for name, own in _OWN.items()
}
# The columns of a message that an MQTT ingress connector took from another broker.
MQTT_INGRESS: Final[Columns] = {
    **COMMON, "id": _TEXT, "server": _TEXT, "payload": STRING, "topic": STRING, "qos": LONG, "dup": _TRUTH,
    "retain": _TRUTH, "pub_props": _MAYBE_PROPERTIES, "message_received_at": _WHOLE,
}  # fmt: skip


# Sources of a rule


@dataclass(frozen=True, slots=True)
class Input:
    """One source: ``columns`` is None when it may have any, ``payload`` the type of the payload once decoded."""

    source: str
    columns: Columns | None
    payload: FieldType = UNKNOWN


# A source of which nothing is known.
ANY: Final = Input("", None)


def message_input(source: str, payload: FieldType | None = None) -> Input:
    """Published messages on the topics of a filter."""
    return Input(source, EVENT_COLUMNS[PUBLISH], payload or UNKNOWN)


def row_input(source: str, row: Columns | None) -> Input:
    """Rows of another rule: their columns in addition to the common ones; None where they are not known."""
    if row is None:
        return Input(source, None)
    payload = row.get("payload", UNKNOWN)
    columns = {**COMMON, **row, "event": COMMON["event"], "metadata": COMMON["metadata"]}
    return Input(source, columns, UNKNOWN if family(payload) == "string" else payload)


# The type of the payloads on a filter's topics.
PayloadType = Callable[[str], FieldType | None]
# The columns of a rule's rows, by its name.
RowType = Callable[[str], Columns | None]


def inputs_of(
    sources: Sequence[str], payload_type: PayloadType, row_type: RowType = lambda _: None
) -> tuple[Input, ...]:
    """The inputs of a statement whose FROM names these sources."""
    inputs: list[Input] = []
    for text in sources:
        if text.startswith(EVENT_PREFIX):
            inputs += [Input(text, EVENT_COLUMNS.get(name)) for name in sorted(events_of(text))]
        elif text.startswith(INGRESS_PREFIXES):
            inputs.append(
                Input(text, MQTT_INGRESS if text.split("/", 1)[1].startswith("mqtt:") else None)
            )
        elif text.startswith(RULE_PREFIX):
            inputs.append(row_input(text, row_type(text.removeprefix(RULE_PREFIX))))
        else:
            inputs.append(message_input(text, payload_type(text)))
    return tuple(inputs)


def columns_of(inputs: Sequence[Input]) -> Columns:
    """The columns that any source has; nullable where another one has not."""
    tables = [source.columns for source in inputs if source.columns is not None]
    merged: dict[str, FieldType] = {}
    for name in dict.fromkeys(name for columns in tables for name in columns):
        kinds = [columns[name] for columns in tables if name in columns]
        kind = unified_all(kinds)
        merged[name] = kind if len(kinds) == len(inputs) else maybe(kind)
    if len(tables) < len(inputs):
        merged = dict.fromkeys(merged, UNKNOWN)
    return merged


def is_open(inputs: Sequence[Input]) -> bool:
    """True if there may be columns that are not known."""
    return any(source.columns is None for source in inputs)


def payload_of(inputs: Sequence[Input]) -> FieldType:
    """The type of payloads whichever source they come from."""
    kinds = [
        source.payload for source in inputs if source.columns is None or "payload" in source.columns
    ]
    kind = unified_all(kinds) if kinds else UNKNOWN
    return maybe(kind) if len(kinds) < len(inputs) else replace(kind, coding="json")
