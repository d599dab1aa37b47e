"""One source's side of the door: a request becomes messages, and is answered once they are committed."""

from __future__ import annotations

import asyncio
import hashlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from bridges.http_server.authentication import Guard
from bridges.http_server.settings import (
    HttpServerSettings,
    HttpServerSourceSettings,
    TokenAuthentication,
)
from bridges.resource.contract import Feed, Incoming
from bridges.resource.errors import NeverAgain
from bridges.resource.ingress import POSITIONS
from bridges.resource.tasks import future_of_done
from bridges.resource.templates import bytes_template, strict_template, text_of, value_template
from broker.core import jsontext
from broker.core.errors import NotFound, PeerError, Problem, Unavailable
from broker.core.feature import Services
from broker.core.receivers import Post, PostRefused
from broker.core.schema import SchemaError
from broker.core.topic import check_topic_name
from broker.core.values import Values
from rules.sql.values import string

# Messages that are handed over in one turn of the event loop.
_SLICE: Final = 200
# Refused messages that an answer lists.
_LISTED: Final = 100
_READY_S: Final = 2.0
_LONGEST_KEY: Final = 256
_LONGEST_PROPERTY_BYTES: Final = 65_535
_HIDDEN: Final = frozenset(("authorization", "cookie", "proxy-authorization"))
_REFUSED_HELP: Final = "requests to a source that were answered with an error, by its code"


class PostReceiver:
    """A ``broker.core.receivers.Receiver``."""

    def __init__(
        self,
        name: str,
        guard: Guard,
        limits: HttpServerSettings,
        settings: HttpServerSourceSettings,
        services: Services,
        feed: Feed,
    ) -> None:
        self._name = name
        self._guard = guard
        self._limits = limits
        self._settings = settings
        self._services = services
        self._feed = feed
        self._messages = _Messages(settings, services)
        prefix = f"{POSITIONS}http_server:{name}/key-"
        self._keys = RememberedKeys(services.storage.values, prefix, settings.idempotency_keys)
        self._under_way = 0
        way_in = limits.authentication
        self._secret_headers = _HIDDEN | (
            {way_in.header} if isinstance(way_in, TokenAuthentication) else set()
        )

    async def receive(self, post: Post) -> Mapping[str, Any]:
        """See ``Receiver``."""
        self._under_way += 1
        try:
            if self._under_way > self._limits.max_requests:
                text = f"source {self._name!r} takes {self._limits.max_requests} requests at once; try again"
                raise PostRefused(429, "too_many_requests", text, headers={"Retry-After": "1"})
            return await self._received(post)
        except PostRefused as error:
            self._count(error.code)
            raise
        except Unavailable:
            self._count("unavailable")
            raise
        finally:
            self._under_way -= 1

    async def _received(self, post: Post) -> Mapping[str, Any]:
        headers = post.headers
        settings = self._settings
        self._guard.check_headers(headers)
        if not self._guard.needs_body:
            post.authenticated()
        content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        self._check_type(content_type)
        sent = await self._read(post)
        self._guard.check_body(headers, sent, self._services.node.clock.now_ns() / 1e9)
        post.authenticated()
        encoding = headers.get("content-encoding", "").strip().lower()
        body = await unpacked(sent, encoding, self._limits.max_body_size)
        parts = parts_of(body, settings.body_format, content_type, settings.max_messages)
        await self._ready()
        key = headers.get(settings.idempotency_header, "") if settings.idempotency_keys else ""
        if not key:
            return await self._taken(post, content_type, parts)
        if len(key) > _LONGEST_KEY:
            text = f"{settings.idempotency_header} is longer than {_LONGEST_KEY} characters"
            raise PostRefused(400, "malformed_body", text)
        return await self._taken_once(post, content_type, parts, key, body)

    async def _read(self, post: Post) -> bytes:
        limit_s = self._limits.body_timeout
        try:
            async with asyncio.timeout(limit_s):
                return await post.read(self._limits.max_body_size)
        except TimeoutError:
            raise PostRefused(
                408, "body_timeout", f"the body did not arrive within {limit_s:g} s"
            ) from None

    async def _taken_once(
        self, post: Post, content_type: str, parts: Sequence[Part], key: str, body: bytes
    ) -> Mapping[str, Any]:
        before = await self._keys.begin(key, body)
        if before is not None:
            return {**before, "duplicate": True}
        is_taken = False
        try:
            answer = await self._taken(
                post, content_type, parts, lambda answer: self._keys.remember(key, body, answer)
            )
            is_taken = True
            return answer
        finally:
            self._keys.end(key, is_taken=is_taken)

    async def _taken(
        self, post: Post, content_type: str, parts: Sequence[Part], remember: Any = None
    ) -> Mapping[str, Any]:
        """Publish the messages in order, and wait until they are committed."""
        common = _columns(
            post, content_type, self._services.node.clock.now_ns(), self._secret_headers
        )
        refused: list[tuple[int, str]] = []
        handed: list[tuple[int, Incoming]] = []
        commits: list[asyncio.Future[None]] = []
        for begin in range(0, max(len(parts), 1), _SLICE):
            incoming: list[tuple[int, Incoming]] = []
            for index, part in enumerate(parts[begin : begin + _SLICE], begin):
                try:
                    incoming.append((index, self._messages.of(part, index, common)))
                except NeverAgain as error:
                    refused.append((index, str(error)))
            commits.append(self._handed_over([record for _, record in incoming]))
            handed += incoming
            if begin + _SLICE < len(parts):
                await asyncio.sleep(0)  # others have their turn
        if any(record.is_waiting for _, record in handed):
            await _all(commits)  # their outcome is known only then
            commits = []
        refused += [(index, record.refused) for index, record in handed if record.refused]
        answer = _answer(len(parts), refused)
        if remember is not None and answer["accepted"]:
            remember(answer)
            commits.append(self._handed_over([]))
        await _all(commits)
        if refused and not answer["accepted"]:
            raise _nothing_taken(refused, len(parts))
        return answer

    def _handed_over(self, records: Sequence[Incoming]) -> asyncio.Future[None]:
        committed, done = future_of_done()
        self._feed.hand_over(records, done)
        return committed

    async def _ready(self) -> None:
        try:
            async with asyncio.timeout(_READY_S):
                await self._feed.ready()
        except TimeoutError:
            raise Unavailable(
                f"source {self._name!r} is paused, or the store is busy; try again", retry_after_s=5
            ) from None

    def _check_type(self, content_type: str) -> None:
        accepted = self._settings.content_types
        if accepted and content_type not in accepted:
            raise PostRefused(
                415,
                "wrong_content_type",
                f"Content-Type is {content_type or 'missing'}; source {self._name!r} takes {', '.join(accepted)}",
            )

    def _count(self, code: str) -> None:
        counter = self._services.monitoring.metrics.counter(
            "source_requests_refused",
            _REFUSED_HELP,
            source=f"http_server:{self._name}",
            reason=code,
        )
        counter.value += 1


class _Messages:
    """Makes of parts of a body what the framework takes."""

    def __init__(self, settings: HttpServerSourceSettings, services: Services) -> None:
        self._settings = settings
        self._schemas = services.schemas
        self._topic_of = strict_template(settings.topic, "the topic") if settings.topic else None
        self._payload_of = bytes_template(settings.payload) if settings.payload else None
        self._pairs = [
            (name, value_template(text)) for name, text in settings.user_properties.items()
        ]

    def of(self, part: Part, index: int, common: Mapping[str, Any]) -> Incoming:
        """One message.

        Raises:
            NeverAgain: it cannot be taken; says why.
        """
        if part.problem:
            raise NeverAgain(part.problem)
        columns = {**common, "index": index, "payload": self._decoded(part.payload)}
        incoming = Incoming(columns, qos=self._settings.qos, retain=self._settings.retain)
        if self._topic_of is not None:
            incoming.topic = _checked(self._topic_of(columns))
            incoming.payload = (
                part.payload if self._payload_of is None else self._payload_of(columns) or b""
            )
            incoming.properties = self._properties(columns) or None
        return incoming

    def _decoded(self, payload: bytes) -> Any:
        name = self._settings.schema_name
        if name is None:
            return string(payload)
        try:
            return self._schemas.serde(name).decode(payload)
        except (SchemaError, NotFound) as error:
            raise NeverAgain(str(error)) from None

    def _properties(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        properties: dict[str, Any] = {}
        if columns["content_type"] and self._settings.body_format in ("auto", "message"):
            properties["Content-Type"] = columns["content_type"]
        pairs = [(name, value_of(dict(columns))) for name, value_of in self._pairs]
        texts = [
            (name, _property(name, text_of(value))) for name, value in pairs if value is not None
        ]
        return {**properties, "User-Property": texts} if texts else properties


def _checked(topic: str) -> str:
    if topic.startswith("$"):
        raise NeverAgain(f"the topic is {topic!r}; topics that begin with '$' are the broker's")
    try:
        check_topic_name(topic)
    except PeerError as error:
        raise NeverAgain(str(error)) from None
    return topic


def _columns(post: Post, content_type: str, now_ns: int, secret: frozenset[str]) -> dict[str, Any]:
    """The columns that all messages of a request share. Names of headers have ``_`` for ``-``, as templates expect."""
    return {
        "path": post.path,
        "query": dict(post.query),
        "headers": {
            name.replace("-", "_"): text
            for name, text in post.headers.items()
            if name not in secret
        },
        "content_type": content_type,
        "peerhost": post.peer_host,
        "ts": now_ns // 1_000_000,
    }


def _answer(count: int, refused: Sequence[tuple[int, str]]) -> Mapping[str, Any]:
    listed = [{"index": index, "reason": reason} for index, reason in sorted(refused)[:_LISTED]]
    return {"accepted": count - len(refused), "refused": listed, "refused_count": len(refused)}


def _nothing_taken(refused: Sequence[tuple[int, str]], count: int) -> PostRefused:
    problems = [
        Problem(reason, f"/{index}" if count > 1 else "")
        for index, reason in sorted(refused)[:_LISTED]
    ]
    first = problems[0].message
    detail = first if count == 1 else f"all {count} messages are refused; the first: {first}"
    return PostRefused(422, "message_refused", detail, errors=problems)


async def _all(commits: Sequence[asyncio.Future[None]]) -> None:
    """Wait for every commit; raise what kept one from being."""
    for result in await asyncio.gather(*commits, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result if isinstance(result, Unavailable) else Unavailable(f"the store: {result}")


def _property(name: str, text: str) -> str:
    """The text of a user property, which a packet of MQTT 5 must be able to hold (section 1.5.4)."""
    if "\0" in text:
        raise NeverAgain(
            f"the user property {name!r} would hold the character U+0000, which MQTT forbids"
        )
    if len(text.encode()) > _LONGEST_PROPERTY_BYTES:
        raise NeverAgain(
            f"the user property {name!r} would be longer than {_LONGEST_PROPERTY_BYTES} bytes"
        )
    return text


_GZIP: Final = 16 + zlib.MAX_WBITS
# Smaller bodies are unpacked on the event loop, which takes a few milliseconds at most.
_SMALL_BYTES: Final = 32 * 1024
_MOST_MEMBERS: Final = 64
_LINES: Final = (
    "application/x-ndjson",
    "application/ndjson",
    "application/jsonl",
    "application/x-jsonlines",
)


class Part(NamedTuple):
    """One message of a body, or why it is none."""

    payload: bytes
    problem: str = ""


async def unpacked(body: bytes, encoding: str, most_bytes: int) -> bytes:
    """The body without its Content-Encoding; never more than ``most_bytes``, whatever is packed into it.

    Raises:
        PostRefused: 415 for an unknown encoding, 413 for a body that is too large, 400 for a damaged one.
    """
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "x-gzip"):
        raise PostRefused(
            415,
            "unknown_encoding",
            f"Content-Encoding {encoding!r} is not known; send gzip or none",
        )
    if len(body) <= _SMALL_BYTES and most_bytes <= 64 * _SMALL_BYTES:
        return _gunzipped(body, most_bytes)
    return await asyncio.to_thread(_gunzipped, body, most_bytes)


def _gunzipped(body: bytes, most_bytes: int) -> bytes:
    unpacked = b""
    left = body
    try:
        for _ in range(_MOST_MEMBERS):
            # a gzip file may have several members, RFC 1952, section 2.2
            member = zlib.decompressobj(_GZIP)
            unpacked += member.decompress(left, most_bytes + 1 - len(unpacked))
            if len(unpacked) > most_bytes:
                raise PostRefused(
                    413,
                    "too_large",
                    f"the body is larger than {most_bytes} bytes when it is unpacked",
                )
            if not member.eof:
                raise PostRefused(
                    400, "malformed_body", "the body is not whole: its gzip does not end"
                )
            left = member.unused_data
            if not left:
                return unpacked
    except zlib.error as error:
        raise PostRefused(400, "malformed_body", f"the body is not gzip: {error}") from None
    raise PostRefused(413, "too_large", f"the body is gzip of more than {_MOST_MEMBERS} members")


def parts_of(body: bytes, form: str, content_type: str, most: int) -> Sequence[Part]:
    """The messages of a body. ``form`` is ``auto``, ``message``, ``json_array`` or ``ndjson``.

    Raises:
        PostRefused: 400 for a body of another form, 413 for more than ``most`` messages.
    """
    if form == "ndjson" or (form == "auto" and content_type in _LINES):
        lines = [line.strip() for line in body.split(b"\n")]
        messages = [line for line in lines if line]
        _check_count(len(messages), most)
        return [_line(line) for line in messages]
    if form != "json_array":
        return [Part(body)]
    try:
        elements = jsontext.decode(body)
    except jsontext.JsonError as error:
        raise PostRefused(400, "malformed_json", f"the body is not JSON: {error}") from None
    if not isinstance(elements, list):
        raise PostRefused(400, "malformed_body", "the body is JSON, but no array of messages")
    _check_count(len(elements), most)
    return [Part(jsontext.encode(element)) for element in elements]


def _line(line: bytes) -> Part:
    try:
        jsontext.decode(line)
    except jsontext.JsonError as error:
        return Part(line, f"the line is not JSON: {error}")
    return Part(line)


def _check_count(count: int, most: int) -> None:
    if count > most:
        raise PostRefused(
            413,
            "too_many",
            f"the body has {count} messages, and may have {most}; send fewer at once",
        )


@dataclass(frozen=True, slots=True)
class Taken:
    """A request that was taken: its number, what was in it, and what was answered."""

    number: int
    body: str
    answer: Mapping[str, Any]


class RememberedKeys:
    """The newest ``most`` keys of one source, on disk in a ring of places below ``prefix``."""

    def __init__(self, values: Values, prefix: str, most: int) -> None:
        self._values = values
        self._prefix = prefix
        self._most = most
        self._taken: dict[str, Taken] = {}
        self._by_number: dict[int, str] = {}
        self._next = 0
        self._under_way: dict[str, asyncio.Future[None]] = {}
        self._load()

    async def begin(self, key: str, body: bytes) -> Mapping[str, Any] | None:
        """The answer to an earlier request with this key; None for a new key, and then ``end`` must be called.

        Waits while one with the same key is being taken.

        Raises:
            PostRefused: 422, the key came with another body.
        """
        name = _digest(key.encode())
        while (before := self._under_way.get(name)) is not None:
            await asyncio.wait((before,))
        taken = self._taken.get(name)
        if taken is None:
            self._under_way[name] = asyncio.get_running_loop().create_future()
            return None
        if taken.body != _digest(body):
            raise PostRefused(
                422, "key_reused", "the idempotency key was used for another body; use a new one"
            )
        return taken.answer

    def remember(self, key: str, body: bytes, answer: Mapping[str, Any]) -> None:
        """Keep a key, in the commit that is gathering."""
        if not self._most:
            return
        name = _digest(key.encode())
        taken = Taken(self._next, _digest(body), answer)
        self._next += 1
        self._put(name, taken)
        kept = {"key": name, "number": taken.number, "body": taken.body, "answer": dict(answer)}
        self._values.put(f"{self._prefix}{taken.number % self._most}", jsontext.encode(kept))

    def end(self, key: str, *, is_taken: bool) -> None:
        """The request is over; one that failed is forgotten, so that it may come again."""
        name = _digest(key.encode())
        waiting = self._under_way.pop(name, None)
        if not is_taken and (taken := self._taken.pop(name, None)) is not None:
            self._by_number.pop(taken.number, None)
            self._values.put(f"{self._prefix}{taken.number % self._most}", None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def _put(self, name: str, taken: Taken) -> None:
        oldest = self._by_number.pop(taken.number - self._most, None)
        if oldest is not None:
            self._taken.pop(oldest, None)
        self._taken[name], self._by_number[taken.number] = taken, name

    def _load(self) -> None:
        """Load the keys from disk; places that a smaller ring does not have are emptied."""
        entries = []
        for place in self._values.names(self._prefix):
            data = self._values.get(place)
            if data is not None:
                kept = jsontext.decode(data)
                entries.append((kept["number"], kept))
                if place != f"{self._prefix}{kept['number'] % max(self._most, 1)}":
                    self._values.put(place, None)
        for number, kept in (
            sorted(entries, key=lambda pair: pair[0])[-self._most :] if self._most else ()
        ):
            self._put(kept["key"], Taken(number, kept["body"], kept["answer"]))
            self._next = number + 1


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
