"""Clients and deliveries as the columns of events that rules select from."""

from __future__ import annotations

from broker.core.client import Client
from broker.core.events import Columns, message_columns
from broker.core.message import Message


def client_columns(client: Client) -> Columns:
    """Who the client is, as every event about a client has it."""
    return {"clientid": client.client_id, "username": client.username, "peername": client.peer_name}


def session_columns(client: Client) -> Columns:
    """Whose session it is, as every event about a subscription has it."""
    return {**client_columns(client), "peerhost": client.peer_host, "client_attrs": dict(client.attributes)}


def delivery_columns(message: Message, receiver: Client) -> Columns:
    """The message on its way to one receiver: the publisher is ``from_clientid``, the receiver ``clientid``."""
    return {
        **message_columns(message),
        "from_clientid": message.client.client_id,
        "from_username": message.client.username,
        **client_columns(receiver),
        "peerhost": receiver.peer_host,
    }
