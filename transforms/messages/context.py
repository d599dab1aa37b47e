"""Names that expressions of a transformation may read: one dictionary per run, with the names that are used and no
others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from broker.core.clock import Clock
from broker.core.message import Message
from transforms.variform.values import text_or_bytes

Read = Callable[[Message], Any]


def user_properties(message: Message) -> dict[str, str]:
    """User properties as a map; of a repeated name the last one wins."""
    properties = message.properties
    return dict(properties["User-Property"]) if properties and "User-Property" in properties else {}


def _publish_properties(message: Message) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for name, value in (message.properties or {}).items():
        shown[name] = text_or_bytes(value) if isinstance(value, bytes) else value
    return shown | ({"User-Property": user_properties(message)} if "User-Property" in shown else {})


# Names whose value does not change while transformations run: they show the message as it was received.
READERS: Mapping[str, Read] = {
    "clientid": lambda message: message.client.client_id,
    "username": lambda message: message.client.username or "",
    "peername": lambda message: message.client.peer_name or "",
    "peerhost": lambda message: message.client.peer_host or "",
    "client_attrs": lambda message: dict(message.client.attributes),
    "id": lambda message: message.id,
    "publish_received_at": lambda message: message.received_ns // 1_000_000,
    "flags": lambda message: {"retain": message.retain, "dup": message.dup},
    "pub_props": _publish_properties,
}


def fixed_readers(roots: frozenset[str], node: str, clock: Clock) -> tuple[tuple[str, Read], ...]:
    """The readers for those of the names that are not writable; unknown names stay unbound."""
    readers = {**READERS, "node": lambda message: node, "timestamp": lambda message: clock.now_ns() // 1_000_000}
    return tuple((name, readers[name]) for name in sorted(roots) if name in readers)
