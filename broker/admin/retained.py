"""Retained messages: listed by filter, shown, deleted, cleared."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from typing_extensions import TypedDict

from broker.admin.session_rows import OldClientId
from broker.connection.hub import Hub
from broker.core.errors import NotFound
from broker.core.json_values import WirePayload, payload_to_wire
from broker.core.message import Message
from broker.core.objects import Spec
from broker.core.times import rfc3339_or_none
from broker.core.topic import TopicFilter
from broker.core.topic_keys import FilterWalk, topic_key
from broker.routing.retained_record import expires_ns_of
from broker.routing.retained_store import Entry

_AT_ONCE: Final = 256
_BYTES: Final = 1024 * 1024
# Maximum bytes of a payload in a list; a single message is shown with its whole payload.
_SHOWN_BYTES: Final = 1024
_SAMPLES: Final = 10


class RetainedView(TypedDict):
    """A retained message. In lists a long payload is `truncated`; `payload_bytes` is its whole length."""

    topic: str
    qos: int
    payload: WirePayload
    payload_bytes: int
    truncated: bool
    clientid: str
    client_id: OldClientId
    username: str | None
    received_at: str | None
    expires_at: str | None
    expired: bool
    user_properties: list[list[str]]
    properties: dict[str, Any]


class RetainedCount(TypedDict):
    """Number of topics that have a retained message, and bytes of topics, payloads and properties."""

    messages: int
    bytes: int


class Cleared(TypedDict):
    """Number of messages that were cleared, or would be, and some of the topics."""

    messages: int
    payload_bytes: int
    samples: list[str]
    dry_run: bool


class RetainedService:
    """Lists, shows, deletes and clears retained messages.

    Used on the event loop; long work is done a part in each of its turns.
    """

    def __init__(self, hub: Hub) -> None:
        self._retained = hub.retained
        self._writer = hub.context.writer
        self._clock = hub.context.clock

    def count(self) -> RetainedCount:
        """Number of retained messages, and their bytes, topics and properties included."""
        return {"messages": self._retained.count, "bytes": self._retained.size_bytes}

    async def page(self, filter: str, limit: int, cursor: tuple[str] | None) -> Spec:
        """A page of those whose topics match, in the order of their topics by level; a cursor is a topic.

        Raises:
            broker.core.errors.PeerError: it is not a valid topic filter.
        """
        walk = FilterWalk(TopicFilter.parse(filter))
        await self._settled()
        items: list[Message] = []
        following = None
        async for entry in self._entries(
            walk, b"" if cursor is None else topic_key(*cursor) + b"\0", limit + 1
        ):
            if len(items) == limit:
                following = (items[-1].topic,)
                break
            items.append(entry.message)
        total = self._retained.count if filter == "#" else None
        return {
            "items": [self._shown(item, _SHOWN_BYTES) for item in items],
            "next": following,
            "total": total,
        }

    def get(self, topic: str) -> RetainedView:
        """One, with its whole payload; raises ``NotFound``."""
        message = self._retained.get(topic)
        if message is None:
            raise NotFound("retained message", topic)
        return self._shown(message, None)

    async def delete(self, topic: str) -> None:
        """Delete one; raises ``NotFound``. It is deleted permanently when this returns."""
        if not self._retained.delete(topic):
            raise NotFound("retained message", topic)
        await self._writer.committed()

    async def clear(self, filter: str, *, only_expired: bool, dry_run: bool) -> Cleared:
        """Delete those whose topics match, or the expired ones among them; with ``dry_run`` only count them.

        Raises:
            broker.core.errors.PeerError: it is not a valid topic filter.
            broker.core.errors.Unavailable: the store takes nothing.
        """
        walk = FilterWalk(TopicFilter.parse(filter))
        await self._settled()
        now_ns = self._clock.now_ns()
        count = 0
        size_bytes = 0
        samples: list[str] = []
        async for entry in self._entries(walk, b"", _AT_ONCE):
            message = entry.message
            if only_expired and not 0 < expires_ns_of(message) <= now_ns:
                continue
            count += 1
            size_bytes += len(message.payload)
            samples += [message.topic] if len(samples) < _SAMPLES else []
            if not dry_run:
                self._retained.delete(message.topic)
                if count % _AT_ONCE == 0:
                    await self._writer.committed()
        if not dry_run:
            await self._writer.committed()
        return {
            "messages": count,
            "payload_bytes": size_bytes,
            "samples": samples,
            "dry_run": dry_run,
        }

    async def _entries(self, walk: FilterWalk, position: bytes, limit: int) -> AsyncIterator[Entry]:
        at: bytes | None = position
        while at is not None:
            entries, at = self._retained.read(walk, at, min(limit, _AT_ONCE), _BYTES)
            for entry in entries:
                yield entry
            await asyncio.sleep(0)

    async def _settled(self) -> None:
        """Wait until messages that were retained before are visible to the next read."""
        if self._retained.waiting:
            await self._writer.committed()

    def _shown(self, message: Message, most: int | None) -> RetainedView:
        payload = message.payload
        expires_ns = expires_ns_of(message)
        properties = dict(message.properties or {})
        user_properties = properties.pop("User-Property", [])
        return {
            "topic": message.topic,
            "qos": message.qos,
            "payload": payload_to_wire(payload if most is None else payload[:most]),
            "payload_bytes": len(payload),
            "truncated": most is not None and len(payload) > most,
            "clientid": message.client.client_id,
            "client_id": message.client.client_id,
            "username": message.client.username,
            "received_at": rfc3339_or_none(message.received_ns),
            "expires_at": rfc3339_or_none(expires_ns),
            "expired": 0 < expires_ns <= self._clock.now_ns(),
            "user_properties": [list(pair) for pair in user_properties],
            "properties": properties,
        }
