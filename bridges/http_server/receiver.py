"""One source's side of the door: a request becomes messages, and is answered once they are committed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bridges.http_server.authentication import Guard
from bridges.http_server.body import Part, parts_of, unpacked
from bridges.http_server.keys import RememberedKeys
from bridges.http_server.settings import HttpServerSettings, HttpServerSourceSettings, TokenAuthentication
from bridges.resource.contract import Feed, Incoming
from bridges.resource.errors import NeverAgain
from bridges.resource.ingress import POSITIONS
from bridges.resource.tasks import future_of_done
from bridges.resource.templates import bytes_template, strict_template, text_of, value_template
from broker.core.errors import NotFound, PeerError, Problem, Unavailable
from broker.core.feature import Services
from broker.core.receivers import Post, PostRefused
from broker.core.schema import SchemaError
from broker.core.topic import check_topic_name
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
        self._secret_headers = _HIDDEN | ({way_in.header} if isinstance(way_in, TokenAuthentication) else set())

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
            raise PostRefused(408, "body_timeout", f"the body did not arrive within {limit_s:g} s") from None

    async def _taken_once(
        self, post: Post, content_type: str, parts: Sequence[Part], key: str, body: bytes
    ) -> Mapping[str, Any]:
        before = await self._keys.begin(key, body)
        if before is not None:
            return {**before, "duplicate": True}
        is_taken = False
        try:
            answer = await self._taken(post, content_type, parts, lambda found: self._keys.remember(key, body, found))
            is_taken = True
            return answer
        finally:
            self._keys.end(key, is_taken=is_taken)

    async def _taken(
        self, post: Post, content_type: str, parts: Sequence[Part], remember: Any = None
    ) -> Mapping[str, Any]:
        """Hand the messages over, in order, and wait for what they lead to."""
        common = _columns(post, content_type, self._services.node.clock.now_ns(), self._secret_headers)
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
            commits.append(self._handed_over([one for _, one in incoming]))
            handed += incoming
            if begin + _SLICE < len(parts):
                await asyncio.sleep(0)  # others have their turn
        if any(one.is_waiting for _, one in handed):
            await _all(commits)  # before that no one knows what becomes of them
            commits = []
        refused += [(index, one.refused) for index, one in handed if one.refused]
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
            "source_requests_refused", _REFUSED_HELP, source=f"http_server:{self._name}", reason=code
        )
        counter.value += 1


class _Messages:
    """Makes of parts of a body what the framework takes."""

    def __init__(self, settings: HttpServerSourceSettings, services: Services) -> None:
        self._settings = settings
        self._schemas = services.schemas
        self._topic_of = strict_template(settings.topic, "the topic") if settings.topic else None
        self._payload_of = bytes_template(settings.payload) if settings.payload else None
        self._pairs = [(name, value_template(text)) for name, text in settings.user_properties.items()]

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
            incoming.payload = part.payload if self._payload_of is None else self._payload_of(columns) or b""
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
        found: dict[str, Any] = {}
        if columns["content_type"] and self._settings.body_format in ("auto", "message"):
            found["Content-Type"] = columns["content_type"]
        pairs = [(name, value_of(dict(columns))) for name, value_of in self._pairs]
        texts = [(name, _property(name, text_of(value))) for name, value in pairs if value is not None]
        return {**found, "User-Property": texts} if texts else found


def _checked(topic: str) -> str:
    if topic.startswith("$"):
        raise NeverAgain(f"the topic is {topic!r}; topics that begin with '$' are the broker's")
    try:
        check_topic_name(topic)
    except PeerError as error:
        raise NeverAgain(str(error)) from None
    return topic


def _columns(post: Post, content_type: str, now_ns: int, secret: frozenset[str]) -> dict[str, Any]:
    """What all messages of a request have in common. Names of headers have ``_`` for ``-``, as templates take them."""
    return {
        "path": post.path,
        "query": dict(post.query),
        "headers": {name.replace("-", "_"): text for name, text in post.headers.items() if name not in secret},
        "content_type": content_type,
        "peerhost": post.peer_host,
        "ts": now_ns // 1_000_000,
    }


def _answer(count: int, refused: Sequence[tuple[int, str]]) -> Mapping[str, Any]:
    listed = [{"index": index, "reason": reason} for index, reason in sorted(refused)[:_LISTED]]
    return {"accepted": count - len(refused), "refused": listed, "refused_count": len(refused)}


def _nothing_taken(refused: Sequence[tuple[int, str]], count: int) -> PostRefused:
    problems = [Problem(reason, f"/{index}" if count > 1 else "") for index, reason in sorted(refused)[:_LISTED]]
    first = problems[0].message
    detail = first if count == 1 else f"all {count} messages are refused; the first: {first}"
    return PostRefused(422, "message_refused", detail, errors=problems)


async def _all(commits: Sequence[asyncio.Future[None]]) -> None:
    """Wait for every commit; raise what kept one from being."""
    for found in await asyncio.gather(*commits, return_exceptions=True):
        if isinstance(found, BaseException):
            raise found if isinstance(found, Unavailable) else Unavailable(f"the store: {found}")


def _property(name: str, text: str) -> str:
    """The text of a user property, which a packet of MQTT 5 must be able to hold (section 1.5.4)."""
    if "\0" in text:
        raise NeverAgain(f"the user property {name!r} would hold the character U+0000, which MQTT forbids")
    if len(text.encode()) > _LONGEST_PROPERTY_BYTES:
        raise NeverAgain(f"the user property {name!r} would be longer than {_LONGEST_PROPERTY_BYTES} bytes")
    return text
