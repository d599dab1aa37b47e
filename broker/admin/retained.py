"""Retained messages: listed by filter, shown, deleted, cleared. A deletion can be undone for a while.

Deleted messages are held in memory, within bounds of time and bytes, so a restart ends all undoing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from secrets import token_hex
from typing import Any, Final, NotRequired

from typing_extensions import TypedDict

from broker.admin.session_rows import OldClientId
from broker.connection.hub import Hub
from broker.core.errors import NotFound
from broker.core.json_values import WirePayload, payload_to_wire
from broker.core.message import Message
from broker.core.objects import ACTOR, REQUEST, Spec
from broker.core.times import rfc3339, rfc3339_or_none
from broker.core.topic import TopicFilter
from broker.core.topic_keys import FilterWalk, topic_key
from broker.routing.retained_record import expires_ns_of
from broker.routing.retained_store import Entry

_NS: Final = 1_000_000_000
_AT_ONCE: Final = 256
_BYTES: Final = 1024 * 1024
# Maximum bytes of a payload in a list; a single message is shown with its whole payload.
_SHOWN_BYTES: Final = 1024
_SAMPLES: Final = 10
# Time for which a deletion can be undone, and the bytes of all messages that are held for it.
UNDO_S: Final = 600
MAX_UNDO_BYTES: Final = 32 * 1024 * 1024
# Bytes that a held message takes besides topic, payload and properties.
_MESSAGE_BYTES: Final = 1024
_MAX_DELETIONS: Final = 1000


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
    cell: NotRequired[int]


class RetainedCount(TypedDict):
    """Number of topics that have a retained message, and bytes of topics, payloads and properties."""

    messages: int
    bytes: int


class Cleared(TypedDict):
    """Number of messages that were cleared, or would be, and some of the topics. `undo` is the id of the deletion;
    where it cannot be undone, `undo_problem` says why."""

    messages: int
    payload_bytes: int
    samples: list[str]
    dry_run: bool
    undo: str | None
    undo_problem: str | None


class RetainedDeletion(TypedDict):
    """A deletion of retained messages that can be undone until `until`. `filter` is the topic, or the filter, that was
    deleted by, `bytes` the memory that the messages take."""

    id: str
    at: str
    by: str
    filter: str
    messages: int
    bytes: int
    samples: list[str]
    until: str
    cell: NotRequired[int]


class UndoneDeletion(TypedDict):
    """Number of messages that are retained again. `newer` counts topics that have another message since then, `expired`
    messages that expired, and `refused` those that a limit of retained messages refuses."""

    restored: int
    newer: int
    expired: int
    refused: int


@dataclass(slots=True)
class _Deletion:
    """Messages that a request deleted; ``size_bytes`` is 0 and there are none where they were too large."""

    id: str
    by: str
    filter: str
    deleted_ns: int
    messages: list[Message]
    size_bytes: int = 0
    is_too_large: bool = False

    def add(self, message: Message, *, is_dry: bool = False) -> None:
        """Hold a message, or discard all of them where they are too large together; a dry run only adds its size."""
        if self.is_too_large:
            return
        self.size_bytes += _size_of(message)
        if not is_dry:
            self.messages.append(message)
        if self.size_bytes > MAX_UNDO_BYTES:
            self.is_too_large = True
            self.messages.clear()
            self.size_bytes = 0

    @property
    def problem(self) -> str | None:
        """The reason why it cannot be undone."""
        if not self.is_too_large:
            return None
        return (
            f"the messages take more than {MAX_UNDO_BYTES:,} bytes, and a deletion of more cannot be undone. Try: a "
            "narrower filter"
        )


class RetainedService:
    """Lists, shows, deletes and clears retained messages.

    Used on the event loop; long work is done a part in each of its turns.
    """

    def __init__(self, hub: Hub) -> None:
        self._retained = hub.retained
        self._writer = hub.context.writer
        self._clock = hub.context.clock
        self._deletions: deque[_Deletion] = deque(maxlen=_MAX_DELETIONS)

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
            "places": [(item.topic,) for item in items],
            "keys": [(topic_key(item.topic).decode(),) for item in items],
        }

    def get(self, topic: str) -> RetainedView:
        """One, with its whole payload; raises ``NotFound``."""
        message = self._retained.get(topic)
        if message is None:
            raise NotFound("retained message", topic)
        return self._shown(message, None)

    async def delete(self, topic: str) -> None:
        """Delete one; raises ``NotFound``. It is deleted permanently when this returns."""
        message = self._retained.get(topic)
        if message is None or not self._retained.delete(topic):
            raise NotFound("retained message", topic)
        deletion = self._deletion(topic)
        deletion.add(message)
        self._hold(deletion)
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
        deletion = self._deletion(filter)
        async for entry in self._entries(walk, b"", _AT_ONCE):
            message = entry.message
            if only_expired and not 0 < expires_ns_of(message) <= now_ns:
                continue
            count += 1
            size_bytes += len(message.payload)
            samples += [message.topic] if len(samples) < _SAMPLES else []
            deletion.add(message, is_dry=dry_run)
            if not dry_run:
                self._retained.delete(message.topic)
                if count % _AT_ONCE == 0:
                    await self._writer.committed()
        if not dry_run:
            self._hold(deletion)
            await self._writer.committed()
        return {
            "messages": count,
            "payload_bytes": size_bytes,
            "samples": samples,
            "dry_run": dry_run,
            "undo": deletion.id if deletion.messages and not dry_run else None,
            "undo_problem": deletion.problem,
        }

    def deletions(self) -> Sequence[RetainedDeletion]:
        """Deletions that can be undone, newest first."""
        self._forget_deletions()
        return [
            {
                "id": deletion.id,
                "at": rfc3339(deletion.deleted_ns),
                "by": deletion.by,
                "filter": deletion.filter,
                "messages": len(deletion.messages),
                "bytes": deletion.size_bytes,
                "samples": [message.topic for message in deletion.messages[:_SAMPLES]],
                "until": rfc3339(deletion.deleted_ns + UNDO_S * _NS),
            }
            for deletion in reversed(self._deletions)
        ]

    async def undo(self, id: str) -> UndoneDeletion:
        """Retain deleted messages again, except where the topic has a newer one. Subscribers are not sent them.

        Raises:
            NotFound: there is no such deletion, or it is too old.
        """
        self._forget_deletions()
        deletion = next((entry for entry in self._deletions if entry.id == id), None)
        if deletion is None:
            raise NotFound("deletion that can be undone", id)
        self._deletions.remove(deletion)
        undone: UndoneDeletion = {"restored": 0, "newer": 0, "expired": 0, "refused": 0}
        for number, message in enumerate(deletion.messages, 1):
            if 0 < expires_ns_of(message) <= self._clock.now_ns():
                undone["expired"] += 1
            elif self._retained.get(message.topic) is not None:
                undone["newer"] += 1
            elif self._retained.refusal(message) is not None:
                undone["refused"] += 1
            else:
                self._retained.retain(message)
                undone["restored"] += 1
            if number % _AT_ONCE == 0:
                await self._writer.committed()
        await self._writer.committed()
        return undone

    def _deletion(self, filter: str) -> _Deletion:
        return _Deletion(self._new_id(), ACTOR.get(), filter, self._clock.now_ns(), [])

    def _new_id(self) -> str:
        """The same in each cell that carries out a part of the request, so that one request undoes it."""
        request = REQUEST.get()
        id = blake2b(request.encode(), digest_size=8).hexdigest()
        is_used = any(deletion.id == id for deletion in self._deletions)
        return token_hex(8) if is_used or not request else id

    def _hold(self, deletion: _Deletion) -> None:
        """Hold a deletion, in place of the oldest ones."""
        if not deletion.messages:
            return
        deletion.deleted_ns = self._clock.now_ns()
        self._deletions.append(deletion)
        self._forget_deletions()

    def _forget_deletions(self) -> None:
        """Forget deletions that are too old, and the oldest beyond the bound of bytes."""
        oldest_ns = self._clock.now_ns() - UNDO_S * _NS
        held_bytes = sum(deletion.size_bytes for deletion in self._deletions)
        while self._deletions and (
            self._deletions[0].deleted_ns < oldest_ns or held_bytes > MAX_UNDO_BYTES
        ):
            held_bytes -= self._deletions.popleft().size_bytes

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


def _size_of(message: Message) -> int:
    properties = message.properties or {}
    texts = sum(len(str(value)) for value in properties.values())
    return len(message.topic) + len(message.payload) + texts + _MESSAGE_BYTES
