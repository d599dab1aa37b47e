"""A connection to another broker: an asyncio protocol around the codec, ``InflightWindow`` for outgoing messages,
``InboundMessages`` for incoming ones. All answers of a turn of the loop leave in one write."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, cast

from bridges.mqtt.errors import (
    REFUSED,
    connect_error,
    disconnect_error,
    publish_error,
    subscribe_error,
)
from bridges.mqtt.inbound import Delivery, InboundMessages, Inbox, Releases
from bridges.mqtt.inflight import Batch, InflightWindow
from bridges.mqtt.loops import Echoes, marks_of
from bridges.mqtt.settings import MOST_INFLIGHT, MqttSettings
from bridges.resource.errors import NeverAgain, ReconnectFirst
from bridges.resource.tasks import until_set
from broker.codec.encode import encode_packet
from broker.codec.framing import Decoder
from broker.codec.packets import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    UnsubAck,
    Unsubscribe,
    Will,
)
from broker.core import reason
from broker.core.clock import Clock
from broker.core.errors import PeerError
from broker.core.origin import MARK
from broker.core.topic import SHARE_PREFIXES
from broker.core.values import Done

_LARGEST_PACKET: Final = 268_435_460
# A PINGREQ that is not answered for so long means that the connection is dead.
_PING_S: Final = 10.0
_ALIASES: Final = 1000
_CLOSE_S: Final = 2.0
# Messages that no source wants for so long end their subscription.
_NOBODY_S: Final = 30.0
# Checks of the connection per keep-alive interval.
_TICKS: Final = 4
_LONGEST_TICK_S: Final = 5.0
_ALIAS: Final = "Topic-Alias"
_NOT_CARRIED: Final = frozenset((_ALIAS, "Subscription-Identifier"))


class Record(NamedTuple):
    """One message to send. ``identity`` is unique, and the same when the message is rendered again."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: dict[str, Any]
    identity: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Login:
    """Login and address of the client."""

    server: str
    settings: MqttSettings
    client_id: str
    clean_start: bool
    origin: str
    status_topic: str


class Session:
    """The state that outlives connections: messages in flight, both ways."""

    def __init__(self, limit: int, clock: Clock, releases: Releases) -> None:
        self.inflight = InflightWindow(limit)
        self.releases = releases
        self.echoes = Echoes(clock.monotonic_s)
        self.is_new = True
        """True if this process has not been connected in it."""
        self._clock = clock

    def connected(self, *, is_present: bool, window: int) -> bool:
        """There is a connection; ``is_present`` when the other broker has the session. Returns whether
        packet identifiers must be released there."""
        was_new = self.is_new
        self.is_new = False
        self.inflight.connected(is_resumed=is_present and not was_new, window=window)
        if not is_present:
            self.releases = self.releases.next_session(self._clock.now_ns())
        return is_present and was_new


class Client(asyncio.Protocol):
    """One connection. ``lost`` is called once with the reason why it ended, unless ``close`` was, and ``stray``
    when messages come that no source wants. ``forget`` deletes the position of a message with QoS 2 that will not come
    again, and calls what it is given when that is committed."""

    def __init__(
        self,
        login: Login,
        session: Session,
        forget: Callable[[int, Done], None],
        lost: Callable[[str], None],
        dropped: Callable[[str], None],
        stray: Callable[[], None],
    ) -> None:
        self.login, self.session, self.inbound = (
            login,
            session,
            InboundMessages(self.acknowledge, dropped),
        )
        settings = login.settings
        self.version, self.is_v5 = settings.version, settings.version == 5
        self.connack: asyncio.Future[ConnAck] = asyncio.get_running_loop().create_future()
        self.remote_origin = ""
        self._forget = forget
        self._lost = lost
        self._dropped = dropped
        self._stray = stray
        self._decoder = Decoder(self.version, settings.max_received_size)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._has_ended = asyncio.Event()
        self._out: list[bytes] = []
        self._is_flushing = self._is_over = self._is_connected = False
        self._may_write = True
        self._queue: deque[tuple[Record, Batch, int]] = deque()
        self._batches: set[Batch] = set()
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._next_id = MOST_INFLIGHT
        self._pinged: list[asyncio.Future[None]] = []
        self._ping_s = 0.0
        self._sent_s = self._loop.time()
        self._keep_alive_s = settings.keepalive
        self._timer: asyncio.TimerHandle | None = None
        self._aliases: dict[int, str] = {}
        self._largest = settings.max_packet_size or _LARGEST_PACKET
        self._most_qos = settings.max_qos
        self._may_retain = True
        self._has_shares = True
        self._handlers: dict[type, Callable[[Any], None]] = {
            Publish: self._on_publish, PubAck: self._confirmed, PubRec: self._on_pubrec, PubRel: self._on_pubrel,
            PubComp: self._on_pubcomp, ConnAck: self._on_connack, SubAck: self._on_answer, UnsubAck: self._on_answer,
            PingResp: self._on_pingresp, Disconnect: self._on_disconnect,
        }  # fmt: skip

    # The socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say who it is."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by name
        self._transport.write(encode_packet(self._connect()))

    def data_received(self, data: bytes) -> None:
        """Handle each packet; what it leads to leaves in one write."""
        handlers = self._handlers
        self._is_flushing = True
        try:
            for packet in self._decoder.feed(data):
                handler = handlers.get(type(packet))
                if handler is None:
                    raise PeerError(
                        reason.PROTOCOL_ERROR, f"{type(packet).__name__} is not for clients"
                    )
                handler(packet)
        except PeerError as error:
            self.end(f"{self.login.server} breaks the rules of MQTT: {error}")
        self._pump()
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """The other side is gone."""
        self._has_ended.set()
        reason = f": {exc}" if exc else ""
        before = "" if self.connack.done() else " before it answered CONNECT"
        self.end(f"{self.login.server} has closed the connection{before}{reason}")

    def pause_writing(self) -> None:
        """The socket is full: nothing new is sent."""
        self._may_write = False

    def resume_writing(self) -> None:
        """There is room again."""
        self._may_write = True
        self._pump()

    def _write(self, data: bytes) -> None:
        self._out.append(data)
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        if self._out and self._transport is not None and not self._is_over:
            self._transport.write(b"".join(self._out))
            self._sent_s = self._loop.time()
        self._out.clear()

    def close(self) -> None:
        """Say good-bye; the session stays where it is to stay."""
        if self._transport is not None and not self._is_over and self._is_connected:
            if self.login.status_topic:
                self._write(self._status(b"0"))
            self._write(encode_packet(Disconnect(), self.version))
            self._flush()
            self._transport.close()
        self._lost = lambda _reason: None
        self.end("the connection was closed")

    async def closed(self) -> None:
        """Return when the socket is closed after ``close``, the end of TLS included; it is cut after a while."""
        if self._transport is not None:
            await until_set(self._has_ended, _CLOSE_S)
            self._transport.abort()

    def end(self, why: str) -> None:
        """Handle the end of the connection."""
        if self._is_over:
            return
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.abort()
        error = ReconnectFirst(why)
        waiting = [self.connack, *self._asked.values(), *self._pinged]
        for future in waiting:
            if not future.done():
                future.set_exception(error)
                future.exception()  # its reader may have ceased to wait
        for batch in list(self._batches):
            self.session.inflight.leave(batch)
            batch.fail_rest(error)
        self._queue.clear()
        self._lost(why)

    # Connecting

    def _connect(self) -> Connect:
        login = self.login
        settings = self.login.settings
        properties: dict[str, Any] = {}
        if self.is_v5:
            properties = {
                "Session-Expiry-Interval": 0 if login.clean_start else int(settings.session_expiry),
                "Receive-Maximum": settings.receive_maximum,
                "Maximum-Packet-Size": settings.max_received_size,
                "Topic-Alias-Maximum": _ALIASES,
                "User-Property": [(MARK, login.origin)],
            }
        return Connect(
            login.client_id,
            self.version,
            login.clean_start,
            int(settings.keepalive),
            Will(login.status_topic, b"0", 1, retain=True) if login.status_topic else None,
            settings.username,
            settings.password.reveal().encode() if settings.password is not None else None,
            properties,
            settings.bridge_mode,
        )

    def _status(self, state: bytes) -> bytes:
        return encode_packet(Publish(self.login.status_topic, state, retain=True), self.version)

    def _on_connack(self, packet: ConnAck) -> None:
        login = self.login
        announced = packet.properties
        if self.connack.done():
            raise PeerError(reason.PROTOCOL_ERROR, "a second CONNACK")
        if packet.reason_code:
            self.connack.set_exception(
                connect_error(packet.reason_code, announced, login.server, is_v5=self.is_v5)
            )
            return
        self._largest = min(self._largest, announced.get("Maximum-Packet-Size", _LARGEST_PACKET))
        self._most_qos = min(self._most_qos, announced.get("Maximum-QoS", 2))
        self._may_retain = bool(announced.get("Retain-Available", 1))
        self._has_shares = bool(announced.get("Shared-Subscription-Available", 1))
        self._keep_alive_s = announced.get("Server-Keep-Alive", self._keep_alive_s)
        self.remote_origin = next(
            (value for name, value in announced.get("User-Property", ()) if name == MARK), ""
        )
        window = announced.get("Receive-Maximum", MOST_INFLIGHT)
        if self.session.connected(is_present=packet.session_present, window=window):
            self._release_all()
        if login.status_topic:
            self._write(self._status(b"1"))
        self._is_connected = True
        self._tick()
        self.connack.set_result(packet)

    def _release_all(self) -> None:
        """The other broker may hold identifiers of messages that an earlier process sent with QoS 2, and would take
        new messages with them for old ones."""
        for packet_id in range(1, MOST_INFLIGHT + 1):
            self._write(encode_packet(PubRel(packet_id), self.version))

    # Keep-alive

    async def ping(self) -> None:
        """Returns when the other broker has answered."""
        answered: asyncio.Future[None] = self._loop.create_future()
        self._must_be_open()
        self._ping(answered)
        async with asyncio.timeout(_PING_S):
            await answered

    def _ping(self, answered: asyncio.Future[None]) -> None:
        if not self._pinged:
            self._ping_s = self._loop.time()
        self._pinged.append(answered)
        self._write(encode_packet(PingReq(), self.version))

    def _on_pingresp(self, _packet: PingResp) -> None:
        pinged = self._pinged
        self._pinged = []
        for future in pinged:
            if not future.done():
                future.set_result(None)

    def _tick(self) -> None:
        now_s = self._loop.time()
        keep_alive_s = self._keep_alive_s
        if self._pinged and now_s - self._ping_s > _PING_S:
            self.end(f"{self.login.server} does not answer: no PINGRESP for {_PING_S:g} s")
            return
        if keep_alive_s and not self._pinged and now_s - self._sent_s >= keep_alive_s / 2:
            self._ping(self._loop.create_future())
        since_s = self.inbound.nobody_reads_since()
        if since_s is not None and now_s - since_s > _NOBODY_S:
            self._stray()
        pause_s = min(_LONGEST_TICK_S, keep_alive_s / _TICKS or _LONGEST_TICK_S)
        self._timer = self._loop.call_later(pause_s, self._tick)

    # Subscribing

    async def subscribe(self, requests: Sequence[SubscriptionRequest]) -> None:
        """Returns when all are granted.

        Raises:
            TargetMissing: one is refused; says which.
        """
        for request in requests:
            if request.filter.startswith(SHARE_PREFIXES) and not self._has_shares:
                code = reason.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
                raise subscribe_error(code, {}, self.login.server, request.filter)
        answer = await self._ask(lambda packet_id: Subscribe(packet_id, list(requests)))
        for request, code in zip(requests, answer.reason_codes, strict=False):
            if code >= REFUSED:
                raise subscribe_error(code, answer.properties, self.login.server, request.filter)

    async def unsubscribe(self, filters: Sequence[str]) -> None:
        """Returns when the other broker has answered."""
        await self._ask(lambda packet_id: Unsubscribe(packet_id, list(filters)))

    async def _ask(self, make: Callable[[int], Packet]) -> Any:
        self._must_be_open()
        self._next_id = self._next_id + 1 if self._next_id < 0xFFFF else MOST_INFLIGHT + 1
        packet_id = self._next_id
        future = self._asked[packet_id] = self._loop.create_future()
        try:
            self._write(encode_packet(make(packet_id), self.version))
            return await future
        finally:
            self._asked.pop(packet_id, None)

    def _on_answer(self, packet: SubAck | UnsubAck) -> None:
        future = self._asked.get(packet.packet_id)
        if future is not None and not future.done():
            future.set_result(packet)

    # Sending

    async def publish(self, records: Sequence[Record]) -> Sequence[Any] | None:
        """Send messages in order; returns when the other broker has confirmed each, or refused it."""
        self._must_be_open()
        settled: asyncio.Future[None] = self._loop.create_future()

        def when_settled() -> None:
            if not settled.done():
                settled.set_result(None)

        batch = Batch(len(records), when_settled)
        inflight = self.session.inflight
        for place, record in enumerate(records):
            if not record.qos or not inflight.reclaim(record.identity, batch, place):
                self._queue.append((record, batch, place))
        self._batches.add(batch)
        try:
            self._pump()
            await settled
        finally:
            self._batches.discard(batch)
            if batch.left:
                inflight.leave(batch)
                self._queue = deque(entry for entry in self._queue if entry[1] is not batch)
        return batch.result

    def _pump(self) -> None:
        """Send what there is room for."""
        if not self._is_connected or self._is_over or not self._may_write:
            return
        inflight = self.session.inflight
        queue = self._queue
        for sent in inflight.to_resend():
            if sent.is_received:
                self._write(encode_packet(PubRel(sent.packet.packet_id), self.version))
            else:
                sent.packet.dup = True
                self._write(encode_packet(sent.packet, self.version))
        while queue and self._may_write:
            record, batch, place = queue[0]
            qos = min(record.qos, self._most_qos)
            if qos and not inflight.has_room:
                return
            queue.popleft()
            self._send(record, qos, batch, place)

    def _send(self, record: Record, qos: int, batch: Batch, place: int) -> None:
        inflight = self.session.inflight
        packet = Publish(
            record.topic, record.payload, qos, record.retain and self._may_retain, False,
            inflight.next_id if qos else 0, record.properties if self.is_v5 else {},
        )  # fmt: skip
        try:
            data = encode_packet(packet, self.version)
        except ValueError as error:
            batch.settle(place, NeverAgain(f"the message cannot be sent: {error}"))
            return
        if len(data) > self._largest:
            text = f"the packet would have {len(data)} bytes, and {self.login.server} takes {self._largest} at most"
            batch.settle(place, NeverAgain(text))
            return
        self._write(data)
        self._expect_echo(record)
        if qos:
            inflight.send(packet, record.identity, batch, place)
        else:
            batch.settle(place, None)

    def _expect_echo(self, record: Record) -> None:
        if self.has_echoes and any(
            inbox.wants(record.topic) for inbox in self.inbound.inboxes.values()
        ):
            self.session.echoes.expect(record.topic, record.payload)

    @property
    def has_echoes(self) -> bool:
        """True if the other broker sends back messages from here, unmarked."""
        settings = self.login.settings
        return settings.loop_prevention and not self.is_v5 and not settings.bridge_mode

    def _on_pubrec(self, packet: PubRec) -> None:
        if packet.reason_code >= REFUSED:
            self._confirmed(packet)
            return
        is_known = self.session.inflight.received(packet.packet_id)
        code = reason.SUCCESS if is_known else reason.PACKET_IDENTIFIER_NOT_FOUND
        self._write(encode_packet(PubRel(packet.packet_id, code), self.version))

    def _on_pubcomp(self, packet: PubComp) -> None:
        self.session.inflight.completed(packet.packet_id)

    def _confirmed(self, packet: PubAck | PubRec) -> None:
        inflight = self.session.inflight
        code = packet.reason_code
        if code < REFUSED:
            inflight.done(packet.packet_id)
            return
        topic = inflight.topic_of(packet.packet_id)
        inflight.done(
            packet.packet_id, publish_error(code, packet.properties, self.login.server, topic)
        )

    # Receiving

    def attach(self, inbox: Inbox) -> None:
        """A source reads from now on."""
        self._must_be_open()
        self.inbound.attach(inbox)

    def _on_publish(self, packet: Publish) -> None:
        properties = packet.properties
        if _ALIAS in properties:
            self._resolve(packet, properties[_ALIAS])
        if packet.qos == 2 and self.session.releases.is_recorded(packet.packet_id):
            self.acknowledge(packet)
            return
        delivery = Delivery(packet, self._loop.time())
        if self._is_loop(packet):
            self._dropped("loop")
            self.inbound.leave_out(delivery)
        else:
            self.inbound.take(delivery)

    def _resolve(self, packet: Publish, alias: int) -> None:
        if packet.topic:
            self._aliases[alias] = packet.topic
        elif alias in self._aliases:
            packet.topic = self._aliases[alias]
        else:
            raise PeerError(reason.TOPIC_ALIAS_INVALID, f"topic alias {alias} is not set")

    def _is_loop(self, packet: Publish) -> bool:
        if not self.login.settings.loop_prevention:
            return False
        if self.is_v5:
            return self.login.origin in marks_of(packet.properties)
        return self.has_echoes and self.session.echoes.is_echo(packet.topic, packet.payload)

    def acknowledge(self, packet: Publish) -> None:
        """Send PUBACK or PUBREC."""
        if self._is_over:
            return
        if packet.qos == 1:
            self._write(encode_packet(PubAck(packet.packet_id), self.version))
        else:
            self.session.releases.record(packet.packet_id)
            self._write(encode_packet(PubRec(packet.packet_id), self.version))

    def _on_pubrel(self, packet: PubRel) -> None:
        packet_id = packet.packet_id
        self.session.releases.release(packet_id)
        self._forget(packet_id, partial(self._forgotten, packet_id))

    def _forgotten(self, packet_id: int, error: BaseException | None) -> None:
        """Let the other broker use the identifier again, now that no later process takes its next message for the one
        that was released; else PUBREL comes again over a new connection."""
        if error is None:
            self._write(encode_packet(PubComp(packet_id), self.version))
        else:
            self.end(f"the release of a message could not be stored: {error}")

    def _on_disconnect(self, packet: Disconnect) -> None:
        self.end(disconnect_error(packet.reason_code, packet.properties, self.login.server))

    def _must_be_open(self) -> None:
        if self._is_over:
            raise ReconnectFirst("not connected")


def carried(properties: Mapping[str, Any]) -> dict[str, Any] | None:
    """The properties of a message that belong to it, not to the connection."""
    if not properties:
        return None
    return {name: value for name, value in properties.items() if name not in _NOT_CARRIED} or None
