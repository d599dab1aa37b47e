"""``GET /live``: one WebSocket for all that a page shows, as snapshots and numbered deltas.

A *feed* is one channel with its parameters. It polls its source at most every ``every_s``, once for all connections,
and keeps the latest deltas in a ring. Each subscription is a position in that ring: a slow reader, or one that returns
after a disconnect, continues from there, or gets a snapshot if the ring no longer has its position. Nothing is queued
for a connection except what its socket holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter, thread_time
from typing import Any, Final

from fastapi import FastAPI, WebSocket
from starlette.websockets import WebSocketDisconnect

from broker.admin.rights import Actor, Need, word_of
from broker.config.spec_problems import parsed
from broker.core import jsontext
from broker.core.errors import Invalid, SluiceError, Unavailable
from broker.core.times import rfc3339
from ui.api.channels import Channel, Source, channels_of
from ui.api.context import ApiContext
from ui.api.models.live import LiveError, LiveFrame, LiveSkipped, LiveSubscribe, LiveUnsubscribe
from ui.api.operation import ref
from ui.api.problems import ApiProblem, log
from ui.api.security import identify

PATH: Final = "/live"
# Longest frame of a client.
MAX_FRAME_BYTES: Final = 64 * 1024
MAX_SNAPSHOT_BYTES: Final = 2 * 1024 * 1024
# Maximum bytes of deltas that one feed keeps.
MAX_RING_BYTES: Final = 256 * 1024
# Seconds that a feed is kept for returning clients after its last watcher left.
KEEP_S: Final = 60.0
CLOSING_S: Final = 2.0
# Seconds between checks that the session or token of a connection has not expired.
CHECK_S: Final = 1.0
# Share of the event loop's CPU time for all feeds together.
SHARE: Final = 0.02
FORBIDDEN = 4403
IDLE = 4408
SIGNED_OUT = 4401
RIGHTS_CHANGED = 4409
# Close codes. Those from 4000 on are 4000 plus the HTTP status that a request would get.
FAILED = 1011


class Feed:
    """One channel with its parameters, for all its watchers."""

    def __init__(self, live: Live, name: str, channel: Channel, source: Source) -> None:
        self.name = name
        self.source = source
        self._live = live
        self._every_s = channel.every_s
        # that of an earlier feed, or of a broker before, is in no ring of this one
        self.seq = secrets.randbits(48)
        self.ring: deque[str] = deque()
        self._ring_bytes = 0
        self.counted_bytes = 0
        self._watchers: dict[Subscription, None] = {}
        self._looked_s = perf_counter()
        self._took_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def refresh(self) -> None:
        """Poll the source if the feed had no watcher for a while.

        Raises:
            broker.core.errors.SluiceError: the channel has ended.
        """
        if not self._watchers and self._due_in_s() <= 0:
            self._look()

    def watch(self, subscription: Subscription) -> None:
        """Add a watcher, and poll from now on."""
        if not self._watchers:
            self._schedule(max(0.0, self._due_in_s()), self._tick)
        self._watchers[subscription] = None

    def leave(self, subscription: Subscription) -> None:
        """Remove a watcher. After the last one polling stops, and the feed is kept for a while."""
        del self._watchers[subscription]
        if not self._watchers:
            self._schedule(KEEP_S if self.source.lingers else 0, self._live.forget, self)

    @property
    def is_watched(self) -> bool:
        """True if it has a watcher, so that it is polled."""
        return bool(self._watchers)

    @property
    def size_bytes(self) -> int:
        """Size of the data that it keeps."""
        return self.source.size_bytes + self._ring_bytes

    def forget_deltas(self) -> None:
        """Drop the deltas: watchers that have not received them get a snapshot."""
        self.ring.clear()
        self._ring_bytes = 0

    def close(self) -> None:
        """Release the source."""
        if self._timer is not None:
            self._timer.cancel()
        self.source.close()

    def snapshot(self) -> str:
        """A frame with the whole state as of ``seq``."""
        return self.frame("snapshot", self.source.snapshot())

    def frame(self, kind: str, data: bytes) -> str:
        """A frame with the present time, without its head, which differs by subscription."""
        now = rfc3339(self._live.clock.now_ns())
        return f'"seq":{self.seq},"t":"{now}","kind":"{kind}","data":{data.decode()}}}'

    def _due_in_s(self) -> float:
        return self._looked_s + self._every_s - perf_counter()

    def _schedule(self, after_s: float, call: Callable[..., None], *arguments: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(after_s, call, *arguments)

    def _tick(self) -> None:
        began_s = thread_time()
        try:
            self._look()
        except Exception as error:  # noqa: BLE001 - reported to the watchers of this feed; others continue
            if not isinstance(error, SluiceError):
                log.exception("api.live_failed", extra={"channel": self.name})
            for subscription in list(self._watchers):
                subscription.connection.drop(subscription, error)
            self._live.forget(self)
            return
        before_s = self._took_s
        self._took_s = thread_time() - began_s
        # a pause of the process in one look must not delay the next one
        took_s = min(before_s, self._took_s)
        self._schedule(max(self._every_s, took_s * self._live.watched_count / SHARE), self._tick)

    def _look(self) -> None:
        self._looked_s = perf_counter()
        delta = self.source.delta()
        if delta is not None:
            self.seq += 1
            self.ring.append(self.frame("delta", delta))
            self._ring_bytes += len(self.ring[-1])
            while self._ring_bytes > MAX_RING_BYTES and len(self.ring) > 1:
                self._ring_bytes -= len(self.ring.popleft())
            for subscription in self._watchers:
                subscription.connection.wake()
        self._live.count(self)


class Subscription:
    """Position of a connection in a feed; ``sent`` is the last ``seq``, None before a snapshot."""

    __slots__ = ("connection", "feed", "id", "sent")

    def __init__(self, connection: Connection, id: str, feed: Feed, after: int | None) -> None:
        self.connection = connection
        self.id = id
        self.feed = feed
        is_kept = after is not None and feed.seq - len(feed.ring) <= after <= feed.seq
        self.sent = after if is_kept else None

    def next(self) -> str | None:
        """The next frame to send, if any."""
        feed = self.feed
        sent = self.sent
        if sent is None:
            self.sent = feed.seq
            return feed.snapshot()
        missing = feed.seq - sent
        if missing > len(feed.ring):
            self.sent = None
            self.connection.count_skipped(missing)
            return feed.frame("skipped", LiveSkipped(count=missing).model_dump_json().encode())
        if missing == 0:
            return None
        self.sent = sent + 1
        return feed.ring[-missing]


@dataclass(frozen=True, slots=True)
class Ending:
    """Reason for the end of a connection: a code and a sentence of at most 123 bytes."""

    code: int
    reason: str


class Connection:
    """One WebSocket with its subscriptions."""

    def __init__(self, live: Live, websocket: WebSocket, actor: Actor) -> None:
        self._live = live
        self._websocket = websocket
        self._actor = actor
        self._checked_s = perf_counter()
        self._subscriptions: dict[str, Subscription] = {}
        self._errors: deque[str] = deque()
        self._news = asyncio.Event()
        self._ended: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()

    def wake(self) -> None:
        """There may be something to send."""
        self._news.set()

    def count_skipped(self, deltas: int) -> None:
        """Count deltas that a snapshot replaced."""
        self._live.skipped.value += deltas

    def check_rights(self) -> None:
        """End the connection if the session or token with which it was opened is over, or has other rights now."""
        self._checked_s = perf_counter()
        try:
            actor = identify(self._websocket)
        except ApiProblem:
            self._end(SIGNED_OUT, "the session is over; sign in again")
            return
        if actor != self._actor:
            self._end(RIGHTS_CHANGED, "your rights changed; connect again")

    async def run(self) -> None:
        """Serve until either side ends the connection."""
        tasks = [
            asyncio.create_task(self._read(), name="live channel, reading"),
            asyncio.create_task(self._write(), name="live channel, writing"),
        ]
        try:
            waited: set[asyncio.Future[Any]] = {*tasks, self._ended}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            for subscription in list(self._subscriptions.values()):
                self._leave(subscription)
        for error in results:
            if isinstance(error, Exception) and not isinstance(error, WebSocketDisconnect):
                log.error("api.live_failed", exc_info=error)
                self._end(FAILED, "the server failed; its log has the reason")
        if self._ended.done():
            await closed(self._websocket, self._ended.result())

    def drop(self, subscription: Subscription, error: Exception) -> None:
        """The feed has ended with an error."""
        self._leave(subscription)
        self._say(subscription.id, error)

    def _end(self, code: int, reason: str) -> None:
        if not self._ended.done():
            self._ended.set_result(Ending(code, reason))

    # -- to the client --

    async def _write(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            if perf_counter() - self._checked_s >= CHECK_S:
                self.check_rights()
            while self._errors:
                await self._websocket.send_text(self._errors.popleft())
            for id, subscription in list(self._subscriptions.items()):
                head = f'{{"ch":{jsontext.encode(id).decode()},'
                while (
                    self._subscriptions.get(id) is subscription
                    and (frame := subscription.next()) is not None
                ):
                    await self._websocket.send_text(head + frame)

    def _say(self, id: str | None, error: Exception) -> None:
        code = "internal"
        detail = "the server failed; its log has the reason"
        if isinstance(error, SluiceError):
            code = error.code
            detail = str(error)
        frame = LiveFrame(
            ch=id,
            seq=0,
            t=rfc3339(self._live.clock.now_ns()),
            kind="error",
            data=LiveError(code=code, detail=detail[:2000]).model_dump(),
        )
        self._errors.append(frame.model_dump_json())
        self.wake()

    # -- from the client --

    async def _read(self) -> None:
        idle_s = self._live.idle_s
        while True:
            try:
                async with asyncio.timeout(None if self._subscriptions else idle_s):
                    message = await self._websocket.receive()
            except TimeoutError:
                self._end(IDLE, f"no channel was subscribed for {idle_s:g} s")
                return
            if message["type"] == "websocket.disconnect":
                return
            self._take(message.get("text") or message.get("bytes") or "")
            while len(self._errors) > 1:  # reads no more until the client has taken the errors
                await self._websocket.send_text(self._errors.popleft())

    def _take(self, text: str | bytes) -> None:
        id: str | None = None
        try:
            sent = jsontext.decode(text)
            if not isinstance(sent, dict):
                raise Invalid("frame: expected a JSON object")
            if isinstance(sent.get("id"), str):
                id = sent["id"][:200]
            if sent.get("kind") == "unsubscribe":
                self._unsubscribe(_read_as(LiveUnsubscribe, sent).id)
            else:
                self._subscribe(_read_as(LiveSubscribe, sent))
        except jsontext.JsonError as error:
            self._say(id, Invalid(f"frame: expected JSON, got {error}", code="malformed_json"))
        except SluiceError as error:
            self._say(id, error)
        except Exception as error:  # noqa: BLE001 - one channel must not end the others
            log.exception("api.live_failed")
            self._say(id, error)

    def _subscribe(self, wanted: LiveSubscribe) -> None:
        most = self._live.settings.max_channels
        if wanted.id in self._subscriptions:
            raise Invalid(
                f"id: expected an unused identifier, got {wanted.id!r}, which is subscribed already"
            )
        if len(self._subscriptions) >= most:
            raise Unavailable(
                f"api.live.max_channels: expected at most {most}, got one more. Try: unsubscribe from others"
            )
        self._require(wanted)
        feed = self._live.feed(wanted.channel, wanted.parameters)
        subscription = self._subscriptions[wanted.id] = Subscription(
            self, wanted.id, feed, wanted.after
        )
        feed.watch(subscription)
        self.wake()

    def _require(self, wanted: LiveSubscribe) -> None:
        channel = self._live.channels.get(wanted.channel)
        if channel is None:
            return  # ``feed`` says which exist
        resource = word_of(channel.about(wanted.parameters))
        topics = [str(wanted.parameters.get("filter", "#"))] if wanted.channel == "tail" else []
        refusal = self._actor.refusal(Need(resource, "read"))
        if refusal is None and wanted.channel == "tail":
            refusal = self._actor.topic_refusal(topics)
        if refusal is not None:
            raise Invalid(refusal, code="forbidden")

    def _unsubscribe(self, id: str) -> None:
        subscription = self._subscriptions.get(id)
        if subscription is None:
            raise Invalid(f"id: expected a subscribed identifier, got {id!r}")
        self._leave(subscription)

    def _leave(self, subscription: Subscription) -> None:
        self._subscriptions.pop(subscription.id, None)
        subscription.feed.leave(subscription)


class Live:
    """All connections and feeds of one API."""

    def __init__(self, context: ApiContext) -> None:
        self.channels: Mapping[str, Channel] = channels_of(context)
        self.settings = context.api_settings.live
        self.clock = context.clock
        self.sign_in = context.sign_in
        self.idle_s = context.api_settings.header_timeout
        self._connections: set[Connection] = set()
        self._feeds: dict[tuple[str, str], Feed] = {}
        self._bytes = 0
        context.sign_in.on_closed = self.check_rights
        if context.accounts is not None:
            context.accounts.on_change.connect(self.check_rights)
        if context.tokens is not None:
            context.tokens.on_revoked.connect(self.check_rights)
        metrics = context.metrics
        metrics.gauge(
            "api_live_connections",
            lambda: len(self._connections),
            "connections of the live channel",
        )
        metrics.gauge(
            "api_live_feeds",
            lambda: len(self._feeds),
            "channels that are shown or kept, by parameters",
        )
        metrics.gauge("api_live_bytes", lambda: self._bytes, "what is kept for the live channel")
        self.skipped = metrics.counter(
            "api_live_skipped",
            "changes that slow clients of the live channel got as a snapshot instead",
        )

    @property
    def watched_count(self) -> int:
        """Number of feeds that are polled. Feeds without a watcher are kept, and cost nothing."""
        return sum(feed.is_watched for feed in self._feeds.values())

    async def serve(self, websocket: WebSocket) -> None:
        """One connection, from its request to its end."""
        await websocket.accept()
        try:
            actor = identify(websocket)
            if actor.role is None:
                raise ApiProblem(403, "forbidden", f"{actor.name} only reads records of streams")
            most = self.settings.max_connections
            if len(self._connections) >= most:
                raise ApiProblem(
                    429, "too_many_requests", f"api.live.max_connections: all {most} are in use"
                )
        except ApiProblem as error:
            await closed(websocket, Ending(4000 + error.status, str(error)))
            return
        connection = Connection(self, websocket, actor)
        self._connections.add(connection)
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)

    def feed(self, name: str, parameters: Mapping[str, Any]) -> Feed:
        """The feed of a channel with these parameters.

        Raises:
            broker.core.errors.SluiceError: there is none.
        """
        channel = self.channels.get(name)
        if channel is None:
            raise Invalid(f"channel: expected one of {', '.join(self.channels)}, got {name!r}")
        wanted = parsed(channel.parameters, parameters, f"channel {name} cannot be subscribed")
        key = name, wanted.model_dump_json()
        feed = self._feeds.get(key)
        is_new = feed is None
        if feed is None:
            feed = self._feeds[key] = Feed(self, name, channel, channel.open(wanted))
        try:
            if is_new:
                self.count(feed)
            else:
                feed.refresh()
        except Exception:  # whatever failed, the next subscriber opens a new feed
            self.forget(feed)
            raise
        return feed

    def count(self, feed: Feed) -> None:
        """Account for the size of a feed.

        Raises:
            broker.core.errors.SluiceError: it is too large, or there is no room for it.
        """
        self._recount(feed)
        size = feed.source.size_bytes
        most = self.settings.max_bytes
        if size > MAX_SNAPSHOT_BYTES:
            sentence = f"channel {feed.name}: expected at most {MAX_SNAPSHOT_BYTES:,} bytes, got {size:,}. Try: GET"
            raise Invalid(sentence, code="too_large")
        if self._bytes > most:
            for each in self._feeds.values():
                each.forget_deltas()
                self._recount(each)
        if self._bytes > most:
            raise Unavailable(
                f"api.live.max_bytes: expected at most {most:,}, got {self._bytes:,}. Try: close other pages"
            )

    def _recount(self, feed: Feed) -> None:
        self._bytes += feed.size_bytes - feed.counted_bytes
        feed.counted_bytes = feed.size_bytes

    def forget(self, feed: Feed) -> None:
        """The feed has ended."""
        self._feeds = {key: other for key, other in self._feeds.items() if other is not feed}
        self._bytes -= feed.counted_bytes
        feed.close()

    def check_rights(self) -> None:
        for connection in self._connections:
            connection.check_rights()


async def closed(websocket: WebSocket, ending: Ending) -> None:
    """Close a WebSocket if it is still open, without waiting for a client that does not read."""
    with contextlib.suppress(TimeoutError, RuntimeError, WebSocketDisconnect):
        async with asyncio.timeout(CLOSING_S):
            await websocket.close(ending.code, ending.reason.encode()[:123].decode(errors="ignore"))


def _read_as(model: type[Any], sent: Mapping[str, Any]) -> Any:
    return parsed(model, sent, "the frame cannot be read")


def described(live: Live) -> dict[str, Any]:
    """The channels by name, as the OpenAPI document has them."""
    return {
        name: {
            "description": channel.text,
            "parameters": {"$ref": ref(channel.parameters)},
            "data": {"$ref": ref(channel.data)},
        }
        for name, channel in live.channels.items()
    }


def add_live(app: FastAPI, base: str, context: ApiContext) -> None:
    """Add the live channel, and its frames to the document."""
    live = app.state.live = Live(context)
    for model in (LiveSubscribe, LiveUnsubscribe, LiveFrame, LiveSkipped, LiveError):
        ref(model)
    app.add_api_websocket_route(base + PATH, live.serve)
