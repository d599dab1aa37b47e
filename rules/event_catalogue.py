"""The catalogue of events: what each one means, its columns with an example, and a rule to start from.

Names and types of columns are those that the type checker knows (``rules.sql.type_checker.inputs``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from broker.core.events import EVENT_TYPES
from rules.sql.sources import PUBLISH
from rules.sql.type_checker.inputs import EVENT_COLUMNS


class _Column(NamedTuple):
    text: str
    example: Any


class _About(NamedTuple):
    """An event. ``rule`` follows SELECT and has ``{topic}`` for the source in FROM; ``columns`` replaces common
    ones."""

    text: str
    rule: str
    columns: Mapping[str, _Column] = {}
    topic: str = ""


_MS: Final = "milliseconds since 1970"
_AT_MS: Final = 1_785_000_000_000
_USER_PROPERTY: Final = {
    "User-Property": {"site": "berlin"},
    "User-Property-Pairs": [{"key": "site", "value": "berlin"}],
}
_COLUMNS: Final[Mapping[str, _Column]] = {
    "action": _Column("What happened to the message: `drop`, `disconnect` or `ignore`", "drop"),
    "activated_at": _Column(f"Start of the alarm, {_MS}", _AT_MS),
    "authz_source": _Column("What decided: a source of access rules, or a default", "built_in"),
    "check": _Column(
        "The check that failed: its index, type and schema",
        {"index": 0, "type": "json", "schema": "meter"},
    ),
    "clean_start": _Column("True if the client asked for a new session", True),
    "client_attrs": _Column("Attributes of the client", {}),
    "clientid": _Column("Client identifier", "meter-1"),
    "conn_props": _Column(
        "Properties of CONNECT", {"Session-Expiry-Interval": 60, **_USER_PROPERTY}
    ),
    "connected_at": _Column(f"Time of the connection, {_MS}", _AT_MS),
    "deactivated_at": _Column(f"End of the alarm, {_MS}", _AT_MS + 60_000),
    "details": _Column(
        "Figures of the alarm; each alarm has its own",
        {"sessions": 1, "largest": {"meter-1": 1_200}},
    ),
    "disconn_props": _Column("Properties of the client's DISCONNECT", {"User-Property": {}}),
    "disconnected_at": _Column(f"Time of the disconnection, {_MS}", _AT_MS),
    "event": _Column("Name of the event", ""),
    "expiry_interval": _Column("Session expiry interval in seconds", 60),
    "flags": _Column(
        "Flags of PUBLISH; `sys` on messages of the broker", {"retain": False, "dup": False}
    ),
    "from_clientid": _Column("Client identifier of the publisher", "meter-1"),
    "from_username": _Column("User name of the publisher", "meter"),
    "id": _Column("Identifier of the message", "18EA83D9BFE560310000000000000006"),
    "is_anonymous": _Column("True if no authenticator checked the client", True),
    "is_bridge": _Column("Always false: bridges connect as clients", False),
    "is_superuser": _Column("True if access rules do not apply to the client", False),
    "keepalive": _Column("Keep-alive interval in seconds", 60),
    "kind": _Column("Type of the failure", "transformation_eval_operation_failure"),
    "message": _Column(
        "Description of the alarm in one sentence", "1 sessions have more than 1,000 bytes waiting"
    ),
    "metadata": _Column("`rule_id`: the rule that reads the event", {"rule_id": "seen"}),
    "mountpoint": _Column("Always absent", None),
    "name": _Column("Name of the alarm", "session_queue_high"),
    "node": _Column("Name of the node", "sluice"),
    "operation": _Column("Index of the operation that failed", 0),
    "path": _Column("Place in the payload", "payload"),
    "payload": _Column("Payload; `payload.a.b` reads it as JSON", '{"t": 21.5}'),
    "peerhost": _Column("Address of the client", "192.0.2.7"),
    "peername": _Column("Address and port of the client", "192.0.2.7:50416"),
    "proto_name": _Column("Protocol name in CONNECT", "MQTT"),
    "proto_ver": _Column("Protocol level in CONNECT: 3, 4 or 5", 5),
    "pub_props": _Column(
        "Properties of PUBLISH", {"Content-Type": "application/json", **_USER_PROPERTY}
    ),
    "puback_props": _Column("Properties of PUBACK or PUBCOMP", {"User-Property": {}}),
    "publish_received_at": _Column(f"Time when the broker received the message, {_MS}", _AT_MS),
    "qos": _Column("Quality of service", 1),
    "reason": _Column("Reason", "normal"),
    "reason_code": _Column("Reason code by name", "success"),
    "receive_maximum": _Column("Maximum number of messages in flight to the client", 32),
    "result": _Column("`allow` or `deny`", "allow"),
    "sockname": _Column("Address and port of the listener", "192.0.2.1:1883"),
    "sub_props": _Column("Properties of SUBSCRIBE", _USER_PROPERTY),
    "timestamp": _Column(f"Time of the event, {_MS}", _AT_MS),
    "topic": _Column("Topic", "meters/1"),
    "transformation": _Column("Name of the transformation", "site"),
    "unsub_props": _Column("Properties of UNSUBSCRIBE", _USER_PROPERTY),
    "username": _Column("User name", "meter"),
    "validation": _Column("Name of the validation", "meters"),
}

_RECEIVER: Final = {
    "clientid": _Column("Client identifier of the receiver", "meter-1"),
    "username": _Column("User name of the receiver", "meter"),
    "peerhost": _Column("Address of the receiver", "192.0.2.7"),
    "peername": _Column("Address and port of the receiver", "192.0.2.7:50416"),
}
_FAILED: Final = {"payload": _COLUMNS["payload"]._replace(example="{}")}
_FILTER: Final = {"topic": _Column("Topic filter", "meters/#")}

_ABOUT: Final[Mapping[str, _About]] = {
    PUBLISH: _About(
        "A message was published and passed validations and transformations.",
        'clientid, payload.t AS t FROM "{topic}" WHERE payload.t > 20',
        topic="meters/#",
    ),
    "message.delivered": _About(
        "A message was sent to a subscriber.",
        'clientid, topic, timestamp - publish_received_at AS took_ms FROM "{topic}" WHERE qos > 0',
        _RECEIVER,
    ),
    "message.acked": _About(
        "A subscriber acknowledged a message of QoS 1 or 2.",
        'clientid, topic, timestamp - publish_received_at AS took_ms FROM "{topic}"',
        _RECEIVER,
    ),
    "message.dropped": _About(
        "A published message reached no subscriber.",
        'topic, reason, clientid FROM "{topic}"',
        {"reason": _Column("Reason, such as `no_subscribers`", "no_subscribers")},
    ),
    "delivery.dropped": _About(
        "A message was not delivered to one of its subscribers.",
        'clientid, topic, reason FROM "{topic}"',
        {**_RECEIVER, "reason": _Column("Reason, such as `queue_full` or `expired`", "no_local")},
    ),
    "client.connected": _About(
        "A client connected.", 'clientid, username, peername, proto_ver FROM "{topic}"'
    ),
    "client.disconnected": _About(
        "A client's connection ended.",
        'clientid, reason, disconnected_at - connected_at AS lasted_ms FROM "{topic}"',
    ),
    "client.connack": _About(
        "The broker answered CONNECT, also where it refused the client.",
        'clientid, peername, reason_code FROM "{topic}"',
    ),
    "client.ping": _About(
        "A client sent PINGREQ.", 'clientid, keepalive, timestamp FROM "{topic}"'
    ),
    "client.check_authn_complete": _About(
        "Authentication of a client ended.",
        'clientid, username, peerhost, reason_code FROM "{topic}"',
    ),
    "client.check_authz_complete": _About(
        "Access rules allowed or denied a publish or a subscription.",
        'clientid, action, topic, authz_source, result FROM "{topic}"',
        {"action": _Column("`publish` or `subscribe`", "publish")},
    ),
    "session.subscribed": _About(
        "A client subscribed to a topic filter.", 'clientid, topic, qos FROM "{topic}"', _FILTER
    ),
    "session.unsubscribed": _About(
        "A client unsubscribed from a topic filter.", 'clientid, topic FROM "{topic}"', _FILTER
    ),
    "schema.validation_failed": _About(
        "A message failed a validation.",
        'topic, clientid, validation, reason, path, payload FROM "{topic}"',
        {**_FAILED, "reason": _Column("What the check found", '"t" is a required property')},
    ),
    "message.transformation_failed": _About(
        "A transformation failed on a message.",
        'topic, clientid, transformation, reason, payload FROM "{topic}"',
        {**_FAILED, "reason": _Column("What failed", "variable 'payload.site' has no value")},
    ),
    "alarm.activated": _About(
        "An alarm became active.", 'name, message, activated_at FROM "{topic}"'
    ),
    "alarm.deactivated": _About(
        "An alarm ended.", 'name, deactivated_at - activated_at AS lasted_ms FROM "{topic}"'
    ),
}


def catalogue() -> list[dict[str, Any]]:
    """Every event, as the API shows it."""
    return [_shown(name, about) for name, about in _ABOUT.items()]


def _shown(name: str, about: _About) -> dict[str, Any]:
    columns = {
        column: about.columns.get(column, _COLUMNS[column]) for column in EVENT_COLUMNS[name]
    }
    example = {
        column: column_info.example
        for column, column_info in columns.items()
        if column_info.example is not None
    }
    topic = about.topic or EVENT_TYPES[name].topic
    return {
        "name": name,
        "topic": topic,
        "text": about.text,
        "columns": [
            {
                "name": column,
                "type": kind.name,
                "nullable": kind.nullable,
                "text": columns[column].text,
            }
            for column, kind in EVENT_COLUMNS[name].items()
        ],
        "example": {**example, "event": name},
        "rule": "SELECT " + about.rule.format(topic=topic),
    }
