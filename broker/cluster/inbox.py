"""Messages that another cell sent, handed to this cell's own subscribers and to no further cell.

Their stages have run where they were published. Packets of QoS 0 to the same subscribers are handed on as one piece.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from broker.cluster.frames import (
    MARK_LETTER,
    MARK_TRACE,
    MARK_V3,
    MARK_V5,
    TRACE,
    FrameError,
    LoggedRecord,
)
from broker.codec import properties as p
from broker.codec.framing import frame_at
from broker.codec.primitives import Reader, decode_text
from broker.codec.properties import decode_properties
from broker.connection.hub import Hub
from broker.connection.protocol.forwarding import in_other_version
from broker.core.client import Client
from broker.core.errors import PeerError
from broker.core.message import DEAD_LETTER, Message
from broker.core.receipt import Receipt
from broker.core.stored import message_of
from broker.core.stream import StreamRecord
from broker.core.topic import TopicFilter, check_topic_name
from broker.core.tracing import TraceContext
from broker.pipeline.plan import MAX_CACHED_TOPIC_BYTES
from broker.routing.router import Routes
from broker.session.session import Session

# Topics whose own subscribers are remembered, and their bytes.
_MOST_TOPICS: Final = 50_000
_MOST_TOPIC_BYTES: Final = 8 * 1024 * 1024
_PLAIN_QOS0: Final = 0x30
_PLAIN_QOS1: Final = 0x32
_PUBLISH: Final = 3
_QOS_BITS: Final = 0x06
_FIRST_TYPE: Final = 0x10
_V5: Final = MARK_V5[0]
_LETTER: Final = MARK_LETTER[0]
_TRACE: Final = MARK_TRACE[0]
_VERSIONS: Final = MARK_V5 + MARK_V3


class OwnRoutes:
    """This cell's own subscribers by topic, made when a message of another cell first needs them."""

    def __init__(self, hub: Hub) -> None:
        self._router = hub.router
        self.known: dict[bytes, Routes[Session]] = {}
        self._known_bytes = 0
        self.on_retained: Callable[[str], None] | None = None
        """Called with the topic of each message with RETAIN, while somebody has to know."""
        hub.on_routes.connect(self._forget)

    def of(self, topic: bytes) -> Routes[Session]:
        """The subscribers of a topic.

        Raises:
            PeerError: it is not a valid topic name.
        """
        routes = self.known.get(topic)
        if routes is None:
            text = decode_text(topic, "the topic of a PUBLISH")
            check_topic_name(text)
            routes = self._router.own_routes(text)
            if len(topic) > MAX_CACHED_TOPIC_BYTES:
                return routes
            self._known_bytes += len(topic)
            if len(self.known) >= _MOST_TOPICS or self._known_bytes > _MOST_TOPIC_BYTES:
                self.known.clear()
                self._known_bytes = len(topic)
            self.known[topic] = routes
        return routes

    def _forget(self, topic_filter: TopicFilter) -> None:
        if "+" in topic_filter.levels or "#" in topic_filter.levels:
            self.known.clear()
            self._known_bytes = 0
        elif self.known.pop(topic := topic_filter.filter.encode(), None) is not None:
            self._known_bytes -= len(topic)


class Inbox:
    """Takes the messages of one other cell. ``on_released`` gets the key of a message that slow subscribers held,
    once they have it."""

    def __init__(self, hub: Hub, routes: OwnRoutes, on_released: Callable[[int], None]) -> None:
        self._hub = hub
        self._routes = routes
        self._on_released = on_released
        # not known, and no client's identifier
        self.client = Client("")
        self.now_ns = 0
        self.is_v5 = True
        """True while packets of version 5 come, False for those below."""
        self.qos0 = 0
        """Number of messages of QoS 0 so far."""
        self._via: tuple[str, ...] = ()
        """What the next message came through."""

    def begin(self) -> None:
        """The link is up: packets of version 5 come first."""
        self.is_v5 = True

    def take_live(self, body: bytes, position_of_next: int) -> tuple[int, list[int]]:
        """Take the PUBLISH packets of a LIVE frame, those of QoS 1 and 2 numbered from a position on.

        Returns:
            The number of packets of QoS 1 and 2, and the positions of those that wait for slow subscribers.

        Raises:
            FrameError: they are no PUBLISH packets.
        """
        try:
            return self._take_live(body, position_of_next)
        except PeerError as error:
            raise FrameError(f"LIVE frame: expected PUBLISH packets, got {error}") from None
        finally:
            # a slow subscriber holds up its own messages, not the link
            self._hub.backpressure.fresh.clear()

    def _take_live(self, body: bytes, first_position: int) -> tuple[int, list[int]]:
        self.now_ns = self._hub.context.clock.now_ns()
        is_unwatched = self._hub.forwarding.is_unwatched
        known = self._routes.known.get
        is_v5 = self.is_v5
        following = first_position
        held: list[int] = []
        run: Routes[Session] | None = None
        run_at = run_count = position = 0
        end = len(body)
        while position < end:
            first = body[position]
            if first < _FIRST_TYPE:  # it says something of what is behind it
                self._hand_out(run, body[run_at:position], run_count)
                run = None
                run_count = 0
                if first == _LETTER:
                    self._via = (*self._via, DEAD_LETTER)
                    position += 1
                    continue
                if first == _TRACE:
                    if position + TRACE.size >= end:
                        raise FrameError(f"LIVE frame: expected a trace at byte {position}")
                    high, low, span_id = TRACE.unpack_from(body, position + 1)
                    self._via = (TraceContext(high << 64 | low, span_id).mark,)
                    position += 1 + TRACE.size
                    continue
                if first not in _VERSIONS:
                    raise FrameError(f"LIVE frame: expected a PUBLISH packet at byte {position}")
                self.is_v5 = is_v5 = first == _V5
                position += 1
                continue
            start = position + 2
            if start < end and body[position + 1] < 128:  # most are: a call less
                stop = start + body[position + 1]
            elif start < end and 0 < body[start] < 128:
                stop = start + 1 + (body[position + 1] & 127 | body[start] << 7)
                start += 1
            else:
                start, stop = frame_at(body, position, end - position) or (end, end)
            topic_at = start + 2
            if first >> 4 != _PUBLISH or topic_at > stop or stop > end:
                raise FrameError(f"LIVE frame: expected a PUBLISH packet at byte {position}")
            topic_end = payload_at = topic_at + (body[start] << 8 | body[start + 1])
            if first & _QOS_BITS:
                payload_at += 2
            if is_v5:
                payload_at += 1
            if payload_at > stop:
                raise FrameError(f"LIVE frame: expected a topic at byte {start}")
            topic = body[topic_at:topic_end]
            routes = known(topic) or self._routes.of(topic)
            has_properties = is_v5 and body[payload_at - 1]
            if routes is run and first == _PLAIN_QOS0 and not has_properties:
                run_count += 1
                position = stop
                continue
            is_bare = is_unwatched and routes.is_plain and not routes.groups and not has_properties
            is_bare = is_bare and not self._via
            if is_bare and first == _PLAIN_QOS0:
                if run is not None:
                    self._hand_out(run, body[run_at:position], run_count)
                run = routes
                run_at = position
                run_count = 0
                # devices send much alike: what begins like this packet is of its topic and size
                head = body[position:payload_at]
                size = stop - position
                run_count += 1
                position = stop
                while body.startswith(head, position) and position + size <= end:
                    run_count += 1
                    position += size
                continue
            if run is not None:
                self._hand_out(run, body[run_at:position], run_count)
                run = None
                run_count = 0
            if is_bare and first == _PLAIN_QOS1 and routes.is_live:
                packet = body[position:stop]
                if self._deliver_bare(
                    packet, topic_end - position, payload_at - position, topic, routes, following
                ):
                    held.append(following)
                following += 1
            else:
                message = self._message(body, position, topic_end, stop, topic)
                if message.qos:
                    if self._deliver(message, topic, routes, following):
                        held.append(following)
                    following += 1
                else:
                    self.qos0 += 1
                    if message.retain:
                        self._note(message.topic)
                    self._hub.pipeline.deliver_further(message, topic, routes)
            position = stop
        if run is not None:
            self._hand_out(run, body[run_at:position], run_count)
        return following - first_position, held

    def _note(self, topic: str) -> None:
        if self._routes.on_retained is not None:
            self._routes.on_retained(topic)

    def _hand_out(self, routes: Routes[Session] | None, chunk: bytes, count: int) -> None:
        self.qos0 += count
        if routes is None or routes.is_empty:
            return
        forwarding = self._hub.forwarding
        same, other = routes.plain_v3, routes.plain_v5
        if self.is_v5:
            same, other = other, same
        if same:
            forwarding.hand_out(self, same, chunk, count)
        if other:
            forwarding.hand_out(self, other, in_other_version(chunk, from_v5=self.is_v5), count)

    def _message(
        self, body: bytes, position: int, topic_end: int, stop: int, topic: bytes
    ) -> Message:
        first = body[position]
        qos = first >> 1 & 3
        reader = Reader(body, topic_end, stop, "PUBLISH")
        if qos:
            reader.u16()
        properties: dict[str, Any] = {}
        if self.is_v5:
            properties = decode_properties(reader, p.CLIENT_PUBLISH)
        via, self._via = self._via, ()
        return Message(
            topic.decode(), body[reader.position : stop], qos, first & 1 == 1, self.client, self.now_ns,
            properties or None, False, via, Receipt() if qos else None,
        )  # fmt: skip

    def _deliver_bare(
        self,
        packet: bytes,
        topic_end: int,
        payload_at: int,
        topic: bytes,
        routes: Routes[Session],
        key: int,
    ) -> bool:
        """Hand a QoS 1 packet without properties to its subscribers; returns whether slow ones hold it."""
        receipt = self._hub.forwarding.deliver_qos1(
            self, topic, routes, packet, topic_end, payload_at
        )
        return receipt is not None and self._hold(receipt, key)

    def _deliver(self, message: Message, topic: bytes, routes: Routes[Session], key: int) -> bool:
        """Hand a message of QoS 1 or 2 to its subscribers; returns whether slow ones hold it."""
        if message.retain:
            self._note(message.topic)
        log = self._hub.session_log
        log.came = message
        self._hub.pipeline.deliver_further(message, topic, routes)
        log.came = None
        receipt = message.receipt
        assert receipt is not None
        return self._hold(receipt, key)

    def _hold(self, receipt: Receipt, key: int) -> bool:
        full_queues = receipt.full_queues
        receipt.close()
        if not full_queues:
            return False
        self._hub.withholding.hold(partial(self._count_down, [len(full_queues)], key), full_queues)
        return True

    def _count_down(self, waits: list[int], key: int) -> None:
        waits[0] -= 1
        if not waits[0]:
            self._on_released(key)

    def take_logged(self, record: LoggedRecord, key: int, *, is_again: bool) -> bool:
        """Take a record of the other cell's session log; returns whether slow subscribers hold it. One that came before
        and could not be committed ``is_again`` for durable sessions only: the others have it.

        Raises:
            FrameError: its topic or properties are not valid.
        """
        try:
            topic = record.topic.encode()
            routes = self._routes.of(topic)
            message = message_of(
                StreamRecord(
                    record.ts_us,
                    record.topic,
                    record.payload,
                    record.qos,
                    record.retain,
                    record.client_id,
                    record.username,
                    record.properties,
                )
            )
        except (PeerError, ValueError, RecursionError) as error:
            raise FrameError(f"LOG frame: expected a message, got {error}") from None
        message.receipt = Receipt(is_again=is_again)
        try:
            return self._deliver(message, topic, routes, key)
        finally:
            self._hub.backpressure.fresh.clear()
