"""Messages of a filter for display: as they pass, in a tail, and the latest ones, to try rules on."""

from __future__ import annotations

import asyncio
import base64
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, Literal

from typing_extensions import TypedDict

from broker.admin.session_rows import OldClientId
from broker.connection.hub import Hub
from broker.core import json_values, jsontext
from broker.core.errors import Invalid, NotFound, PeerError, Problem
from broker.core.events import message_columns
from broker.core.marks import marked
from broker.core.message import Message
from broker.core.schema import SchemaError
from broker.core.stage import Refusal
from broker.core.stored import message_of
from broker.core.stream import ShardRange
from broker.core.times import rfc3339
from broker.core.topic import TopicFilter, covers
from broker.core.topic_keys import FilterWalk
from broker.pipeline.tails import (
    MAX_BYTES_PER_S,
    MAX_MESSAGES_PER_S,
    Publishers,
    Tail,
    Tailed,
)
from broker.streams.service import StreamService

MAX_MESSAGES: Final = MAX_MESSAGES_PER_S
MAX_BYTES: Final = MAX_BYTES_PER_S
# Maximum interval at which a tail reports how much it left out.
HEARTBEAT_S: Final = 5.0
# Interval over which messages are collected and then sent together.
_BATCH_S: Final = 0.1
MAX_LATEST: Final = 100
# Maximum bytes of payloads of the latest messages; at least one message is shown.
_MAX_BYTES: Final = 1024 * 1024
# Maximum records of a shard, from its end, and retained messages that are checked.
_SCANNED: Final = 1000
_AT_ONCE: Final = 20
# After a message that is dropped, so long is waited for one that is not.
_AFTER_DROPPED_S: Final = 1.0

# The name of the schema that a validation binds to a topic, and what decodes payloads by it or raises
# ``SchemaError``.
Bound = Callable[[str], tuple[str, Callable[[bytes], Any]] | None]


@dataclass(frozen=True, slots=True)
class Found:
    """A message, and where it was found: ``became`` is what the stages made of a live one, ``refusal`` why they stopped
    it before rules. Streams and retained messages are behind the stages."""

    message: Message
    source: Literal["stream", "retained", "live"]
    stream: str | None = None
    became: Message | None = None
    refusal: Refusal | None = None

    def shown(self) -> dict[str, Any]:
        """The message in the form that trials accept: ``message`` for transformations and validations, ``event`` for
        rules."""
        event = {
            name: value
            for name, value in message_columns(self.became or self.message).items()
            if value is not None
        }
        client = self.message.client
        payload = (self.became or self.message).payload
        who: dict[str, Any] = {"clientid": client.client_id, "username": client.username}
        if client.peer_host is not None:
            who["peername"] = client.peer_name
        return {
            "at": rfc3339(self.message.received_ns),
            "source": self.source,
            "stream": self.stream,
            "refusal": _refusal(self.refusal),
            "message": {
                **json_values.message_to_wire(self.message),
                **who,
                "client_attrs": dict(client.attributes),
            },
            "event": {**marked(event), "payload": json_values.payload_to_wire(payload)},
        }


class PayloadView(TypedDict):
    """A payload: a JSON value, else text, else base64. `size_bytes` is its length as published; of a truncated one only
    the beginning is shown."""

    encoding: Literal["utf8", "json", "base64"]
    data: Any
    size_bytes: int
    truncated: bool


class RefusalView(TypedDict):
    """Reason that a message was stopped: the stage, the object, and the reason as a code and as a sentence."""

    stage: str
    name: str
    reason: str
    text: str


class PublishedView(TypedDict):
    """A published message: topic, delivery options and payload. `schema` names the bound schema that the payload was
    decoded by, `schema_error` says why it could not be. Of a decoded one `raw` is the payload in base64."""

    topic: str
    payload: PayloadView
    raw: str | None
    schema: str | None
    schema_error: str | None
    qos: int
    retain: bool
    properties: dict[str, Any]
    user_properties: list[list[str]]


class TailedMessage(PublishedView):
    """A message of a tail as it was published; `address` is where its publisher connected from. `became` is what the
    stages made of it, where they changed it."""

    kind: Literal["message"]
    at: str
    clientid: str
    client_id: OldClientId
    username: str | None
    address: str | None
    outcome: Literal["passed", "transformed", "dropped"]
    refusal: RefusalView | None
    became: PublishedView | None


class TailStatus(TypedDict):
    """Numbers of messages that matched since the tail was opened, and of these that were shown and skipped."""

    kind: Literal["status"]
    matched: int
    shown: int
    skipped: int


class MessageTails:
    """Opens tails, and shows their messages. Used on the event loop."""

    def __init__(self, hub: Hub, streams: StreamService, bound: Bound) -> None:
        self._tails = hub.plans.tails
        self._retained = hub.retained
        self._streams = streams
        self._bound = bound
        hub.context.metrics.gauge("tails", lambda: len(self._tails), "open tails of topics")

    def open(
        self,
        topic_filter: str,
        messages_per_s: int,
        bytes_per_s: int,
        on_ready: Callable[[], None] = lambda: None,
        publishers: Publishers | None = None,
    ) -> Tail:
        """Open a tail.

        Raises:
            Invalid: it is not a valid topic filter.
            Unavailable: too many are open.
        """
        wanted = check_filter(topic_filter)
        return self._tails.open(wanted, messages_per_s, bytes_per_s, on_ready, publishers)

    def close(self, tail: Tail) -> None:
        """Close a tail; no error when it is closed."""
        self._tails.close(tail)

    async def stream(
        self,
        topic_filter: str,
        messages_per_s: int,
        bytes_per_s: int,
        count: int | None,
        seconds: float,
        encode: Callable[[TailedMessage | TailStatus], bytes],
        publishers: Publishers | None = None,
    ) -> AsyncIterator[bytes]:
        """The messages of a tail as lines, with a status at the beginning, at the end and in between. It is closed at
        the end, after the given seconds or messages. ``encode`` is the same for all tails."""
        ready = asyncio.Event()
        tail = self.open(topic_filter, messages_per_s, bytes_per_s, ready.set, publishers)
        ends_s = monotonic() + seconds
        shown = 0
        said_s = monotonic()
        try:
            yield encode(self.status(tail, shown))
            while (
                tail.is_open
                and (left_s := ends_s - monotonic()) > 0
                and (count is None or shown < count)
            ):
                if await _within(ready, min(left_s, HEARTBEAT_S)):
                    ready.clear()
                    await asyncio.sleep(min(_BATCH_S, left_s))
                lines = [
                    self._line(tailed, encode)
                    for tailed in tail.take()[: None if count is None else count - shown]
                ]
                shown += len(lines)
                if monotonic() - said_s >= 1:
                    said_s = monotonic()
                    lines.append(encode(self.status(tail, shown)))
                if lines:
                    yield b"".join(lines)
            yield encode(self.status(tail, shown))
        finally:
            self.close(tail)

    def _line(self, tailed: Tailed, encode: Callable[[TailedMessage | TailStatus], bytes]) -> bytes:
        if not tailed.line:
            tailed.line = encode(self.show(tailed))
        return tailed.line

    def status(self, tail: Tail, shown: int) -> TailStatus:
        """Numbers of messages that matched, were shown and were skipped."""
        matched = self._tails.matched(tail)
        return {"kind": "status", "matched": matched, "shown": shown, "skipped": matched - shown}

    def show(self, tailed: Tailed) -> TailedMessage:
        """A message of a tail as the API shows it."""
        message = tailed.message
        refusal = tailed.refusal
        became = tailed.became
        return {
            "kind": "message",
            "at": rfc3339(message.received_ns),
            **self.published(message, tailed.size_bytes),
            "clientid": message.client.client_id,
            "client_id": message.client.client_id,
            "username": message.client.username,
            "address": message.client.peer_name,
            "outcome": "dropped"
            if refusal is not None
            else "passed"
            if became is None
            else "transformed",
            "refusal": _refusal(refusal),
            "became": None if became is None else self.published(became, tailed.became_bytes),
        }

    def published(
        self, message: Message, size_bytes: int, *, decodes: bool = True
    ) -> PublishedView:
        """View of a message with a payload of ``size_bytes``, of which it may have the beginning only."""
        payload = message.payload
        schema = None
        error = None
        raw = None
        encoding, data = _read(payload)
        if (
            decodes
            and len(payload) == size_bytes
            and (bound := self._bound(message.topic)) is not None
        ):
            schema, decode = bound
            try:
                data = decode(payload)
                encoding = "json"
                raw = base64.b64encode(payload).decode()
            except SchemaError as problem:
                error = str(problem)
        properties = dict(message.properties or {})
        user_properties = properties.pop("User-Property", ())
        return {
            "topic": message.topic,
            "payload": {
                "encoding": encoding,
                "data": data,
                "size_bytes": size_bytes,
                "truncated": len(payload) < size_bytes,
            },
            "raw": raw,
            "schema": schema,
            "schema_error": error,
            "qos": message.qos,
            "retain": message.retain,
            "properties": properties,
            "user_properties": [list(pair) for pair in user_properties],
        }

    async def latest(self, filter: str, limit: int, wait: float) -> dict[str, Any]:
        """The latest messages on a filter's topics, newest first: of streams that capture them and retained ones, else
        what is published while it waits and reaches rules; where all of that is dropped before, what was dropped. The
        event of each is the message as the stages left it.

        Raises:
            Invalid: it is not a valid topic filter.
        """
        wanted = check_filter(filter)
        latest: list[Found] = []
        async for some in self._stored(wanted, limit):
            latest = _newest([*latest, *some], limit)
        if not latest and wait:
            latest = _newest(await self._live(wanted, limit, wait), limit)
        return {"items": [message.shown() for message in latest]}

    async def _stored(self, wanted: TopicFilter, limit: int) -> AsyncIterator[list[Found]]:
        """Messages in streams and in the retained store, in batches."""
        for name in self._capturing(wanted):
            with suppress(NotFound):  # deleted in between
                for stored in self._streams.reader.ranges(name):
                    async for some in self._of_shard(name, stored, limit, wanted):
                        yield some
        walk = FilterWalk(wanted)
        at = b""
        scanned = 0
        while scanned < _SCANNED:
            entries, following = self._retained.read(walk, at, _AT_ONCE, _MAX_BYTES)
            yield [Found(entry.message, "retained") for entry in entries]
            if following is None:
                return
            at = following
            scanned = scanned + _AT_ONCE
            await asyncio.sleep(0)

    async def _of_shard(
        self, name: str, held: ShardRange, limit: int, wanted: TopicFilter
    ) -> AsyncIterator[list[Found]]:
        """The newest records of a shard on a filter's topics."""
        end = held.next_offset
        left = limit
        first = max(held.first_offset, end - _SCANNED)
        while end > first and left > 0:
            start = max(first, end - _AT_ONCE)
            records = self._streams.reader.read(name, held.shard, start, end - start)
            some = [message_of(record) for _, record in records if wanted.matches(record.topic)]
            yield [Found(message, "stream", name) for message in some]
            end = start
            left = left - len(some)
            await asyncio.sleep(0)

    def _capturing(self, wanted: TopicFilter) -> Iterator[str]:
        """The streams that capture all topics of a filter, or all of whose topics it covers."""
        for spec in self._streams.list():
            for text in spec.get("topics") or ():
                own = TopicFilter.parse(text).levels
                if covers(own, wanted.levels) or covers(wanted.levels, own):
                    yield spec["name"]
                    break

    async def _live(self, wanted: TopicFilter, limit: int, wait_s: float) -> list[Found]:
        ready = asyncio.Event()
        ends_s = monotonic() + wait_s
        reached = list[Found]()
        dropped = deque[Found](maxlen=limit)
        tail = self._tails.open(wanted, on_ready=ready.set)
        try:
            while (
                len(reached) < limit and tail.is_open and await _within(ready, ends_s - monotonic())
            ):
                ready.clear()
                for tailed in tail.take():
                    message = tailed.message
                    became = tailed.became
                    refusal = tailed.refusal
                    lengths = len(message.payload), 0 if became is None else len(became.payload)
                    if lengths != (tailed.size_bytes, tailed.became_bytes):  # cut
                        continue
                    if refusal is None or refusal.stage == "rules":
                        # a rule that drops messages has seen them
                        reached.append(Found(message, "live", None, became))
                    else:
                        ends_s = min(ends_s, monotonic() + _AFTER_DROPPED_S)
                        dropped.append(Found(message, "live", None, became, refusal))
        finally:
            self._tails.close(tail)
        return reached or list(dropped)


async def _within(ready: asyncio.Event, seconds: float) -> bool:
    """Return whether the event is set within the given seconds."""
    try:
        async with asyncio.timeout(max(0, seconds)):
            return await ready.wait()
    except TimeoutError:
        return False


def check_filter(text: str) -> TopicFilter:
    """The filter of a request. Raises ``Invalid``."""
    try:
        return TopicFilter.parse(text)
    except PeerError as error:
        raise Invalid("the filter cannot be used", [Problem(str(error), "/query/filter")]) from None


def publishers_of(client_id: str | None, address: str | None) -> Publishers | None:
    """The publishers with a client identifier that matches, and an address in a network; None for all. Raises
    ``Invalid``."""
    if not client_id and not address:
        return None
    try:
        return Publishers(client_id or None, address or None)
    except ValueError:
        text = f"expected an address or a network, got {address!r}. Try: 10.1.2.3 or 10.0.0.0/8"
        raise Invalid("the tail cannot be opened", [Problem(text, "/query/address")]) from None


def _newest(matches: list[Found], limit: int) -> list[Found]:
    """The newest of them, each once, newest first; within the bytes of an answer."""
    newest: dict[tuple[str, int, bytes], Found] = {}
    left = _MAX_BYTES
    for candidate in sorted(
        matches, key=lambda candidate: candidate.message.received_ns, reverse=True
    ):
        message = candidate.message
        same = message.topic, message.received_ns // 1_000_000, message.payload
        if same in newest:
            continue
        left -= len(message.payload)
        if newest and (len(newest) == limit or left < 0):
            break
        newest[same] = candidate
    return list(newest.values())


def _refusal(refusal: Refusal | None) -> RefusalView | None:
    if refusal is None:
        return None
    return {
        "stage": refusal.stage,
        "name": refusal.name,
        "reason": refusal.reason,
        "text": refusal.text,
    }


def _read(payload: bytes) -> tuple[Literal["utf8", "json", "base64"], Any]:
    """A payload as a JSON object or array, else as text, else as base64."""
    if payload[:1] in (b"{", b"["):
        try:
            return "json", jsontext.decode(payload)
        except jsontext.JsonError:
            pass
    try:
        return "utf8", payload.decode()
    except UnicodeDecodeError:
        return "base64", base64.b64encode(payload).decode()
