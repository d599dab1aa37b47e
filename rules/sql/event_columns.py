"""The columns of a published message and of every event, with their types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from broker.core.schema import FieldType
from rules.sql.types import BOOLEAN, LONG, STRING, array_of, maybe

Columns = Mapping[str, FieldType]

_TEXT: Final = maybe(STRING)
_WHOLE: Final = maybe(LONG)
_TRUTH: Final = maybe(BOOLEAN)
_FLAGS: Final = FieldType("struct", nullable=False, fields={"retain": _TRUTH, "dup": _TRUTH, "sys": _TRUTH}, open=False)
_TEXTS: Final = FieldType("map", item=STRING)
_PAIR: Final = FieldType("struct", nullable=False, fields={"key": STRING, "value": STRING}, open=False)
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
"""MQTT 5 properties by name; packets may hold further ones."""
_MAYBE_PROPERTIES: Final = maybe(PROPERTIES)

COMMON: Final[Columns] = {
    "event": STRING,
    "timestamp": LONG,
    "node": STRING,
    "metadata": FieldType("struct", nullable=False, fields={"rule_id": STRING}),
}
"""What every event has."""
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
        **_MESSAGE, "transformation": _TEXT, "action": _TEXT, "kind": _TEXT, "operation": _WHOLE, "reason": _TEXT,
    },
    "alarm.activated": _ALARM,
    "alarm.deactivated": {**_ALARM, "deactivated_at": _WHOLE},
}  # fmt: skip

EVENT_COLUMNS: Final[Mapping[str, Columns]] = {name: {**COMMON, **own} for name, own in _OWN.items()}
"""By the name of the event; what a feature may leave out is nullable."""
MQTT_INGRESS: Final[Columns] = {
    **COMMON, "id": _TEXT, "server": _TEXT, "payload": STRING, "topic": STRING, "qos": LONG, "dup": _TRUTH,
    "retain": _TRUTH, "pub_props": _MAYBE_PROPERTIES, "message_received_at": _WHOLE,
}  # fmt: skip
"""The columns of a message that an MQTT ingress connector took from another broker."""
