"""Messages and clients as the columns of events that rules select from."""

from __future__ import annotations

from typing import Any

from broker.core.client import Client
from broker.core.events import Columns
from broker.core.message import Message, Properties

_NS_PER_MS = 1_000_000


def client_columns(client: Client) -> Columns:
    """Who the client is, as every client and session event has it."""
    return {
        "clientid": client.client_id,
        "username": client.username,
        "peerhost": client.peer_host,
        "peername": client.peer_name,
        "client_attrs": dict(client.attributes),
    }


def message_columns(message: Message) -> Columns:
    """The message, with its publisher as ``clientid``."""
    return {
        **client_columns(message.client),
        "id": message.id,
        "payload": message.payload,
        "topic": message.topic,
        "qos": message.qos,
        "flags": {"retain": message.retain, "dup": message.dup},
        "pub_props": property_columns(message.properties),
        "publish_received_at": message.received_ns // _NS_PER_MS,
    }


def delivery_columns(message: Message, receiver: Client) -> Columns:
    """The message on its way to one receiver: the publisher is ``from_clientid``, the receiver ``clientid``."""
    columns = message_columns(message)
    columns["from_clientid"], columns["from_username"] = message.client.client_id, message.client.username
    columns.update(client_columns(receiver))
    return columns


def property_columns(properties: Properties | None) -> dict[str, Any]:
    """Properties as a map; ``User-Property`` is a map too (last duplicate wins), the pairs stand beside it in order."""
    columns = {} if properties is None else dict(properties)
    pairs = columns.pop("User-Property", None)
    columns["User-Property"] = dict(pairs or ())
    if pairs:
        columns["User-Property-Pairs"] = [{"key": key, "value": value} for key, value in pairs]
    return columns
