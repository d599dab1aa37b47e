"""Messages that clients publish to ``$delayed/SECONDS/TOPIC``: kept in the store, published when they are due.

A message goes into the commit group that lets its acknowledgement go, and leaves the store in the group of its effects,
so a kill neither loses nor doubles it. (Where a gate waits for another process the message is removed when that
has decided, and may be published again after a kill in between.) When it is due it takes the whole way through the
pipeline as its client's message; its time of arrival, from which its expiry counts, stays the one it had. After a
restart what is overdue goes at once, in the order in which it was due.

A message that a client sent is published only while that client may still publish it: it is kept with the client's
standing, by which the publisher decides. Messages of rules, transformations and the API are kept without one.

Memory holds only when a message is due and how large it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush, nsmallest
from itertools import count
from math import inf
from typing import Any, Final, NamedTuple

from pydantic import Field

from broker.config.model import Settings
from broker.config.units import Size
from broker.core import reason, stored
from broker.core.client import Standing
from broker.core.clock import Clock
from broker.core.errors import NotFound
from broker.core.message import Message
from broker.core.receipt import again
from broker.core.stage import Outcome, Refusal
from broker.core.stored import StoredMessage
from broker.core.topic import DELAYED_PREFIX
from broker.observe.log import get_logger
from broker.observe.metrics import Metrics
from broker.storage.collection import RAW, LiveCollection
from broker.storage.writer import Writer

_log = get_logger(__name__)

# Maximum of EMQX: 2³² milliseconds, some 49 days.
MAX_DELAY_S: Final = 4_294_967
_NS: Final = 1_000_000_000
# Messages published in one turn of the loop.
_RUN: Final = 200


class DelayedSettings(Settings):
    """Section ``delayed``."""

    enable: bool = True
    """Delay messages to `$delayed/SECONDS/TOPIC`; else such a publish is refused."""
    max_delayed_messages: int = Field(default=100_000, ge=0)
    """Maximum delayed messages; publishes above it are refused (0x97). 0 is no limit."""
    max_delayed_bytes: Size = Field(default=1024 * 1024 * 1024, ge=0)
    """Maximum bytes of delayed messages on disk; 0 is no limit."""
    max_delayed_bytes_per_client: Size = Field(default=128 * 1024 * 1024, ge=0)
    """The same of one client, in bytes; 0 is no limit."""


def _of_0_2_0(
    version: int,
    topic: str,
    payload: bytes,
    qos: int,
    retain: bool,
    received_ns: int,
    client_id: str,
    username: str | None,
    peer_host: str | None,
    peer_port: int | None,
    listener: str,
    protocol_version: int,
    attributes: dict[str, str],
    properties: dict[str, Any] | None,
    via: list[str],
) -> tuple[Any, ...]:
    client = client_id, username, peer_host, peer_port, listener, protocol_version, attributes
    return client, topic, received_ns, payload, qos, retain, False, properties, via, None  # fmt: skip


class _Delayed(StoredMessage):
    standing: Standing | None = None


_decode = stored.decoder(_Delayed, "a delayed message", _of_0_2_0)


class DelayedMessage(NamedTuple):
    """One delayed message; ``due_ns`` is wall clock."""

    key: bytes
    due_ns: int
    message: Message

    @property
    def id(self) -> str:
        """Identifier in the API and the command line."""
        return self.key.hex()


class Delayed:
    """The delayed messages of a node. Used on the event loop only."""

    def __init__(
        self, *, settings: DelayedSettings, writer: Writer, clock: Clock, metrics: Metrics
    ) -> None:
        self.settings = settings
        self._writer = writer
        self._clock = clock
        self._stored = LiveCollection(writer, b"delayed/", RAW, RAW, self._not_stored)
        self._due: list[bytes] = []
        """A heap; keys sort by when they are due. May hold some that are no more in ``_sizes``."""
        self._sizes: dict[bytes, int] = {}
        self._bytes = 0
        self._clients: dict[bytes, str] = {}
        self._bytes_of: dict[str, int] = {}
        """Bytes by client; clients without messages are left out."""
        self._serial = count()
        self._settling: set[asyncio.Task[None]] = set()
        self._given: set[bytes] = set()
        """Messages that were published, and whose deletion is not committed."""
        self._accepted = metrics.counter("delayed_accepted", "messages taken to be published later")
        self._published = metrics.counter(
            "delayed_published", "delayed messages that were published when due"
        )
        self._deleted = metrics.counter(
            "delayed_deleted", "delayed messages that were deleted before they were due"
        )
        metrics.gauge(
            "delayed_messages", lambda: len(self._sizes), "messages kept to be published later"
        )
        metrics.gauge(
            "delayed_bytes", lambda: self._bytes, "bytes of messages kept to be published later"
        )

    def __len__(self) -> int:
        return len(self._sizes)

    def load(self) -> None:
        """Take what the store holds, before the first connection."""
        last = -1
        for key, value in self._stored.stored():
            self._load(key, value)
            last = max(last, int.from_bytes(key[-8:]))
        self._serial = count(last + 1)

    def take_from_client(self, message: Message) -> Message | Refusal:
        """Same as ``take``, for a message whose client must be allowed to publish it when it is due."""
        return self.take(message, message.client.standing)

    def take(self, message: Message, standing: Standing | None = None) -> Message | Refusal:
        """Keep a message published to ``$delayed/SECONDS/TOPIC``; what is left of it has no RETAIN. A gate's call."""
        settings = self.settings
        if not settings.enable:
            return _refusal(
                "delayed_disabled", reason.TOPIC_NAME_INVALID, "delayed publish is switched off"
            )
        parts = parse(message.topic)
        if parts is None:
            text = f"write $delayed/SECONDS/TOPIC, SECONDS a whole number up to {MAX_DELAY_S}"
            return _refusal("delayed_invalid", reason.TOPIC_NAME_INVALID, text)
        delay_s, topic = parts
        value = _stored(message, topic, standing)
        if 0 < settings.max_delayed_messages <= len(self._sizes):
            text = f"limit of {settings.max_delayed_messages} delayed messages reached"
            return _refusal("delayed_full", reason.QUOTA_EXCEEDED, text)
        if 0 < settings.max_delayed_bytes < self._bytes + len(value):
            text = f"limit of {settings.max_delayed_bytes} bytes of delayed messages reached"
            return _refusal("delayed_full", reason.QUOTA_EXCEEDED, text)
        client_id = message.client.client_id
        if (
            0
            < settings.max_delayed_bytes_per_client
            < self._bytes_of.get(client_id, 0) + len(value)
        ):
            text = f"limit of {settings.max_delayed_bytes_per_client} bytes of delayed messages of one client reached"
            return _refusal("delayed_full_for_client", reason.QUOTA_EXCEEDED, text)
        self._keep(self._clock.now_ns() + delay_s * _NS, value, client_id)
        self._accepted.value += 1
        return message.changed(message.topic, b"", message.qos, False, None)

    def run(
        self, publish: Callable[[Message], Outcome], decided: Callable[[str], Awaitable[Outcome]]
    ) -> float:
        """Publish some of the messages that are due; returns the seconds until the next one is, 0 if it is now.

        The functions are those of ``broker.core.stage.Publisher``.
        Nothing is published while the store takes nothing: it could not be taken out of it.
        """
        if self._writer.failure is not None:
            return inf
        now_ns = self._clock.now_ns()
        left = _RUN
        while self._due:
            key = self._due[0]
            if key not in self._sizes:
                heappop(self._due)
                continue
            due_ns = _due_ns(key)
            if due_ns > now_ns:
                return (due_ns - now_ns) / _NS
            if not left:
                return 0.0
            while self._due and self._due[0] == key:  # twice where its deletion was taken back
                heappop(self._due)
            self._publish_due(key, publish, decided)
            left -= 1
        return inf

    def page(self, after: str | None, limit: int) -> list[DelayedMessage]:
        """At most ``limit`` in the order in which they are due, those after an identifier."""
        start = b"" if after is None else _key_of(after)
        keys = nsmallest(limit, (key for key in self._sizes if key > start))
        return [kept for key in keys if (kept := self._find(key)) is not None]

    def get(self, id: str) -> DelayedMessage:
        """One of them.

        Raises:
            NotFound: there is none of that identifier; it may have been published by now.
        """
        kept = self._find(_key_of(id))
        if kept is None:
            raise NotFound("delayed message", id, "it may have been published already")
        return kept

    def delete(self, id: str) -> None:
        """Forget one; raises ``NotFound`` as ``get``."""
        self._forget(self.get(id).key)
        self._deleted.value += 1

    async def stop(self) -> None:
        """Wait for nothing: what other processes have not decided stays in the store."""
        for task in self._settling:
            task.cancel()
        await asyncio.gather(*self._settling, return_exceptions=True)

    def _keep(self, due_ns: int, value: bytes, client_id: str) -> None:
        key = due_ns.to_bytes(8) + next(self._serial).to_bytes(8)
        self._add(key, len(value), client_id)
        self._stored.put(key, value)

    def _load(self, key: bytes, value: bytes) -> None:
        self._add(key, len(value), client_of(value))

    def _add(self, key: bytes, size: int, client_id: str) -> None:
        heappush(self._due, key)
        self._sizes[key], self._clients[key] = size, client_id
        self._bytes += size
        self._bytes_of[client_id] = self._bytes_of.get(client_id, 0) + size

    def _drop(self, key: bytes) -> None:
        size = self._sizes.pop(key)
        client_id = self._clients.pop(key)
        self._bytes -= size
        self._bytes_of[client_id] -= size
        if not self._bytes_of[client_id]:
            del self._bytes_of[client_id]

    def _find(self, key: bytes) -> DelayedMessage | None:
        if key not in self._sizes:
            return None
        value = self._stored.get(key)
        if value is None:
            return None
        record = _decode(value)
        message = record.message()
        if record.standing is not None:
            message.client = replace(message.client, standing=record.standing)
        return DelayedMessage(key, _due_ns(key), message)

    def _forget(self, key: bytes) -> None:
        self._drop(key)
        self._stored.put(key, None)
        if key in self._given:
            self._writer.when_committed(partial(self._forgotten, key))

    def _not_stored(self, key: bytes, value: bytes | None, before: bytes | None) -> None:
        """A message whose publisher gets a refusal; or one that is published when it is due, again if it was before,
        as its deletion could not be stored."""
        if value is not None:
            self._drop(key)
        elif before is not None:
            self._load(key, before)

    def _publish_due(
        self,
        key: bytes,
        publish: Callable[[Message], Outcome],
        decided: Callable[[str], Awaitable[Outcome]],
    ) -> None:
        kept = self._find(key)
        if kept is None:
            self._drop(key)
            _log.error(
                "delayed.lost", key=key.hex(), effect="the store no longer has this delayed message"
            )
            return
        if key in self._given:
            kept.message.receipt = again()
        outcome = publish(kept.message)
        self._published.value += 1
        if outcome.is_waiting:
            task = asyncio.create_task(
                self._settle(key, decided(kept.message.topic)), name="delayed message"
            )
            self._settling.add(task)
            task.add_done_callback(self._settling.discard)
        else:
            self._forget_published(key)

    async def _settle(self, key: bytes, decided: Awaitable[Outcome]) -> None:
        await decided
        if key in self._sizes:
            self._forget_published(key)

    def _forget_published(self, key: bytes) -> None:
        self._given.add(key)
        self._forget(key)

    def _forgotten(self, key: bytes, error: BaseException | None) -> None:
        if error is None:
            self._given.discard(key)


def client_of(value: bytes) -> str:
    """Identifier of the client that published a stored message."""
    return stored.client_of(_decode(value).client).client_id


def parse(topic: str) -> tuple[int, str] | None:
    """Seconds and topic of ``$delayed/SECONDS/TOPIC``, None where it is written otherwise."""
    seconds, slash, inner = topic.removeprefix(DELAYED_PREFIX).partition("/")
    if not (
        slash
        and inner
        and seconds.isascii()
        and seconds.isdigit()
        and len(seconds) <= len(str(MAX_DELAY_S))
    ):
        return None
    return (
        (int(seconds), inner)
        if int(seconds) <= MAX_DELAY_S and not inner.startswith(DELAYED_PREFIX)
        else None
    )


def _refusal(why: str, code: int, text: str) -> Refusal:
    return Refusal("delayed", "delayed", why, code, text)


def _due_ns(key: bytes) -> int:
    return int.from_bytes(key[:8])


def _key_of(id: str) -> bytes:
    try:
        return bytes.fromhex(id)
    except ValueError:
        return b""


def _stored(message: Message, topic: str, standing: Standing | None) -> bytes:
    inner = message.changed(topic, message.payload, message.qos, message.retain, message.properties)
    return stored.encode(inner, standing)
