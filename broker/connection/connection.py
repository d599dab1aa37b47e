"""One connection: its state, what it keeps and sends, and its end. Knows no socket, only a ``Link``, and of packets
only that its services read them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from logging import getLogger
from math import inf
from typing import Any, Final

import msgspec

from broker.auth.attempt import ConnectAttempt
from broker.auth.decision import Decision
from broker.auth.exchange import Exchange
from broker.auth.subject import Subject
from broker.codec.encode import encode_fitting, encode_packet
from broker.codec.packets import ConnAck, Disconnect, SubAck, UnsubAck
from broker.connection.acknowledgements import Answers
from broker.connection.backpressure import Backpressure
from broker.connection.context import TICK_S, Context
from broker.connection.link import Greeting, Link
from broker.connection.permits import Permits
from broker.connection.publish_rate import PublishMeter
from broker.connection.state_machine import Phase
from broker.core import reason
from broker.core.client import Client
from broker.core.errors import PeerError
from broker.core.stage import Refusal
from broker.pipeline.topic_counts import TopicCounts
from broker.session.aliases import ReceivedAliases
from broker.session.outbox import Outbox
from broker.session.session import Session

_log = getLogger(__name__)

# CONNACK return codes of 3.1.1, section 3.2.2.3, for reason codes of 5.0.
RETURN_CODES: Final = {
    reason.UNSUPPORTED_PROTOCOL_VERSION: 1,
    reason.CLIENT_IDENTIFIER_NOT_VALID: 2,
    reason.KEEP_ALIVE_TIMEOUT: 2,
    reason.SERVER_UNAVAILABLE: 3,
    reason.SERVER_BUSY: 3,
    reason.QUOTA_EXCEEDED: 3,
    reason.CONNECTION_RATE_EXCEEDED: 3,
    reason.USE_ANOTHER_SERVER: 3,
    reason.BAD_USER_NAME_OR_PASSWORD: 4,
    reason.NOT_AUTHORIZED: 5,
    reason.BANNED: 5,
}
# Codes of a DISCONNECT that a CONNACK may carry in its place; for the others it carries SERVER_UNAVAILABLE.
SHUTDOWN: Final = "server_shutdown"
"""Reason of an end of connections with that of the broker."""
_CONNACK_CODES: Final = frozenset((0x81, 0x82, 0x87, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B, 0x9F))
# Shared by all connections that are not held; never changed.
_NO_CAUSE: Final[set[object]] = set()
# When this number of bytes was read in a turn, the output is written at once: libuv reads a busy socket up to 32 times,
# 8 MB, before the loop's turn ends, and many sockets; only what is written shows that a subscriber is slow.
_LARGE_READ_BYTES: Final = 64 * 1024
# A read of at most this size waits for the others of its turn; a larger one is worth a pass of its own.
SMALL_BYTES: Final = 512
# A client that reads none of its answers is not read from, once this multiple of ``max_unsent_bytes`` waits for it.
_ANSWERS_FACTOR: Final = 4


# Cause for holding a connection that sends much while its login is pending.
PARKED_LOGIN: Final = object()
# Called with the decision and the AUTH properties of the CONNACK.
LoginDone = Callable[[Decision, dict[str, Any]], None]


class Login:
    """The login of a client that named an authentication method. It is kept as long as the connection, so that the
    client can authenticate again.

    ``exchange`` is set while one is under way; after the CONNACK it has to end by ``deadline_s``.
    """

    __slots__ = ("attempt", "deadline_s", "done", "exchange", "method")

    def __init__(self, method: str, attempt: ConnectAttempt, done: LoginDone) -> None:
        self.method = method
        self.attempt = attempt
        self.done = done
        self.exchange: Exchange | None = None
        self.deadline_s = 0.0


class Taken(msgspec.Struct, frozen=True, gc=False):
    """Counts of one read: bytes, packets, and PUBLISH among these. ``is_stored`` means that QoS 0 messages left
    something in the store's commit group; of others, their answers wait for it."""

    used: int
    packets: int = 0
    messages: int = 0
    is_stored: bool = False


_NOTHING_TAKEN: Final = Taken(0)


@dataclass(slots=True)
class ConnectionServices:
    """The parts that connections work with.

    ``add_small`` gathers reads of at most ``SMALL_BYTES`` that one turn of the loop takes together, ``take_small``
    takes those that wait now (``broker.connection.protocol.arrivals``). ``read_first`` handles what comes before the
    CONNACK and returns how many bytes were used, ``read_packets`` all complete packets from a position on. ``opened``
    and ``ended`` report the state of the link; ``ended`` also gets the reason as a word, whether the will is due, the
    properties of the client's DISCONNECT, and the reason in words.
    """

    add_small: Callable[[Connection, bytes], None]
    take_small: Callable[[], None]
    backpressure: Backpressure
    topic_counts: TopicCounts
    read_first: Callable[[Connection, bytes], int]
    read_packets: Callable[[Connection, bytes, int], Taken]
    opened: Callable[[Connection], None]
    ended: Callable[[Connection, str, bool, dict[str, Any] | None, str], None]


class Connection:
    """The state of one connection, what it sends, and its end.

    ``session``, ``client`` and ``greeting`` are there once a CONNECT was accepted.
    """

    # Each is one word that every read checks, or that the packets' takers need alone. An object for three of
    # them, such as the counts of input, takes 80 bytes in place of 24, for each of 100,000 connections.
    __slots__ = (
        "_holds", "_rest", "aliases", "answers", "box", "bytes_in", "client", "context", "deadline_s", "greeting",
        "is_closed", "is_connected", "is_parked", "is_v5", "link", "login", "max_packet_bytes", "max_sent_bytes",
        "messages_in", "meter", "now_ns", "packets_in", "permits", "services", "session", "silence_s", "subject",
        "terms", "version", "wanted", "wants_reasons",
    )  # fmt: skip

    client: Client
    greeting: Greeting
    session: Session

    def __init__(self, context: Context, services: ConnectionServices, link: Link) -> None:
        self.context = context
        self.services = services
        self.link = link
        settings = context.settings
        self.box = Outbox(context.pending_writes, link.write)
        self.answers = Answers(context)
        self.is_connected = self.is_closed = self.is_v5 = False
        self.is_parked = False
        self.version = 0
        self.wants_reasons = True
        self.max_packet_bytes = settings.max_packet_size_before_connect
        self.max_sent_bytes: float = inf
        self.aliases = ReceivedAliases(context.aliased)
        self.login: Login | None = None
        self.subject: Subject | None = None
        """The client, as far as it is authenticated."""
        self.permits: Permits | None = None
        """None for a client that no access rule restricts."""
        self.terms = settings
        """The settings whose limits were announced to the client; they hold for it, whatever changes later."""
        self.bytes_in = self.packets_in = self.messages_in = 0
        self.now_ns = 0
        self.silence_s: float = inf
        self.deadline_s: float = inf
        self.wanted = 2
        self.meter: PublishMeter | None = None
        self._rest = bytearray()
        self._holds = _NO_CAUSE

    @property
    def phase(self) -> Phase:
        """Stage of the connection."""
        if self.is_closed:
            return Phase.CLOSED
        if self.is_parked:
            return Phase.WAITING
        if self.is_connected:
            return Phase.CONNECTED if self.login is None else Phase.CONNECTED_BY_METHOD
        return Phase.OPENED if self.login is None else Phase.AUTHENTICATING

    # -- from the link --

    def opened(self) -> None:
        """The link is open: a CONNECT is expected within ``connect_timeout``."""
        context = self.context
        self.deadline_s = context.now_s + context.settings.connect_timeout + TICK_S
        self.services.opened(self)

    def data_received(self, data: bytes) -> None:
        """Take what was read: bytes of any number of packets, cut anywhere."""
        if self.is_closed:
            return
        if self.is_connected and len(data) <= SMALL_BYTES:
            self.services.add_small(self, data)
            return
        self.services.take_small()
        if not self.is_closed:
            self.take(data)

    def takes_together(self, size: int) -> bool:
        """True if a whole packet of this size can be taken with those of others: nothing waits before it, nothing
        is measured by the read, and it is not too large."""
        return (
            not (self.is_parked or self._rest or self.meter is not None)
            and size <= self.max_packet_bytes
        )

    def take(self, data: bytes) -> None:
        """Take what was read now."""
        rest = self._rest
        size = len(data)
        self.context.figures.bytes_received.value += size
        self.bytes_in += size
        if rest or self.is_parked:
            rest += data
            if self.is_parked and not self.is_connected and len(rest) > self.max_packet_bytes:
                self.hold(PARKED_LOGIN)
            if len(rest) < self.wanted or self.is_parked:
                return
            data = bytes(rest)
            rest.clear()
        self._handle(data)

    def go_on(self, finish: Callable[[], None]) -> None:
        """The message for which this was parked is decided: finish it, then take what was read behind it."""
        self.is_parked = False
        data = b""
        if not self.context.is_stopping:
            data = bytes(self._rest)
            self._rest.clear()
        self._handle(data, finish)

    def _handle(self, data: bytes, first: Callable[[], None] | None = None) -> None:
        """Take whole packets and keep the rest, once earlier work is done."""
        context = self.context
        services = self.services
        rest = self._rest
        used = start = 0
        taken = _NOTHING_TAKEN
        self.now_ns = context.clock.now_ns()
        self.wanted = 2
        try:
            if first is not None:
                first()
                if self.is_closed:
                    return
            if not self.is_connected:
                used = start = services.read_first(self, data)
            if self.is_connected and not self.is_closed:
                taken = services.read_packets(self, data, start)
                used = taken.used
        except Exception as error:  # noqa: BLE001  one connection's trouble must not become another's
            self.fail_reading(error)
            return
        if used > start and services.topic_counts.is_on:
            services.topic_counts.scan(self.client, self.now_ns, self.aliases, data, start, used)
        if self.is_closed:
            return
        self.packets_in += taken.packets
        self.messages_in += taken.messages
        if used < len(data):
            rest += data[used:]
        if self.is_connected:
            self.deadline_s = context.now_s + self.silence_s
        if (self.answers.waiting or taken.is_stored) and context.writer.is_congested:
            services.backpressure.hold_for_store(self)
        if self.answers.waiting:
            self.answers.seal(self)
        if self.meter is not None:
            self.meter.spend(taken.messages, len(data))
        writes = context.pending_writes
        writes.read_bytes += len(data)
        if writes.read_bytes >= _LARGE_READ_BYTES:
            writes.flush()
            if writes.dirty and not self.is_parked:
                context.scheduler.give_way(self)
        if services.backpressure.fresh:
            services.backpressure.hold(self)

    def connection_lost(self) -> None:
        """The link is gone."""
        self.services.take_small()
        if not self.is_closed:
            self.end("tcp_closed", is_will_due=True)

    def pause_writing(self) -> None:
        """Much waits to be sent: publishers are held back, and beyond ``max_unsent_bytes`` QoS 0 is dropped."""
        if self.is_connected and not self.is_closed:
            self.session.set_slow(is_slow=True)
            self.context.timelines.add(self.client.client_id, "slow", "reads_slowly")

    def resume_writing(self) -> None:
        """The client has caught up."""
        if self.is_closed:
            return
        if self.is_connected:
            self.session.set_slow(is_slow=False)
        self.let_go(self.link)

    def reply(self, packet: bytes) -> None:
        """Send a whole packet other than a PUBLISH, in this turn of the loop."""
        self.context.figures.note_sent(packet)
        self.box.add(packet)

    # -- waiting --

    @property
    def is_unread(self) -> bool:
        """True if nothing is read from the client, for other reasons than that it reads nothing."""
        return bool(self._holds - {self.link})

    def hold(self, cause: object) -> None:
        """Read nothing until ``let_go`` was called for every cause."""
        if self._holds:
            self._holds.add(cause)
        else:
            self._holds = {cause}
            self.link.pause_reading()

    def let_go(self, cause: object) -> None:
        """A cause to hold back is over."""
        if cause in self._holds:
            self._holds.discard(cause)
            if self.is_connected:
                self.deadline_s = self.context.now_s + self.silence_s
            if not self._holds:
                self._holds = _NO_CAUSE
                if not self.is_closed:
                    self.link.resume_reading()

    def on_deadline(self) -> None:
        """The client was silent for too long, unless the broker had stopped reading; or its CONNACK is overdue."""
        if not self._holds or not self.is_connected:
            if self.is_connected:
                self.disconnect(reason.KEEP_ALIVE_TIMEOUT, "keepalive_timeout")
            else:
                self.refuse_silently("connect_timeout", "no CONNECT came in time")

    def fail(self, error: BaseException) -> None:
        """Messages that the session must send cannot be stored."""
        _log.warning(
            "connection.store_failed client_id=%.200s error=%s", self.client.client_id, error
        )
        self.on_internal_error()

    def overrun(self) -> None:
        """More waits for the client than may, and the settings say to close: not now, a message is being delivered."""
        self.context.later(0, self.disconnect, reason.QUOTA_EXCEEDED, "queue_full")

    def hold_back_if_unread(self) -> None:
        """Stop reading a client that does not read its answers, until ``resume_writing``."""
        if self.link.unsent_bytes() > _ANSWERS_FACTOR * self.context.settings.max_unsent_bytes:
            self.hold(self.link)

    # -- answers --

    def answer_fitting(self, packet: SubAck | UnsubAck, *, waits: bool) -> None:
        """Answer within the client's maximum packet size."""
        encoded = self.fitting(packet)
        if encoded is not None:
            self.answers.add(self, encoded, waits=waits)

    def fitting(self, packet: SubAck | UnsubAck) -> bytes | None:
        """An answer within the client's maximum packet size; a client whose maximum is below the least there is to say
        is cut off [MQTT-3.1.2-24]."""
        encoded = encode_fitting(packet, self.version, self.max_sent_bytes)
        if len(encoded) <= self.max_sent_bytes:
            return encoded
        text = f"an answer of {len(encoded)} bytes is above the Maximum Packet Size of {int(self.max_sent_bytes)}"
        self.disconnect(reason.PACKET_TOO_LARGE, "answer_too_large", text=text)
        return None

    # -- the end --

    def welcome(self) -> None:
        """Send the CONNACK that was kept until the session is stored, and what waits behind it."""
        self.context.figures.note_sent(self.box.corked_with)
        self.box.uncork()

    def fail_reading(self, error: Exception) -> None:
        """The read bytes could not be processed: the client broke the protocol, or there is a fault of the broker's
        own."""
        if isinstance(error, PeerError):
            self.on_peer_error(error)
            return
        client_id = self.client.client_id if self.is_connected else ""
        _log.error("connection.failed client_id=%s", client_id, exc_info=error)
        self.on_internal_error()

    def on_peer_error(self, error: PeerError) -> None:
        """The client broke the protocol: disconnect it, with the reason where its version has one."""
        if self.is_connected:
            self.disconnect(error.reason_code, reason.name_of(error.reason_code), text=str(error))
        else:
            self.refuse_silently(reason.name_of(error.reason_code), str(error))

    def refuse_silently(self, why: str, text: str) -> None:
        """Close a client that sent no CONNECT that could be answered."""
        self._note_refused(why, text, "")
        self.end(why, is_will_due=False)

    def refuse_connect(
        self,
        code: int,
        text: str = "",
        client_id: str = "",
        *,
        detail: str = "",
        server: str = "",
    ) -> None:
        """CONNACK with the reason, then the end [MQTT-3.2.2-6, -7]. ``detail`` is for the log, where the client is not
        to know it; ``server`` is the one to use in place of this."""
        self._note_refused(reason.name_of(code), detail or text, client_id)
        if self.is_v5:
            properties = {"Reason-String": text} if text else {}
            reference = server or self.context.admission.server_reference
            if code == reason.USE_ANOTHER_SERVER and reference is not None:
                properties["Server-Reference"] = reference
            connack = encode_fitting(ConnAck(False, code, properties), 5, self.max_sent_bytes)
            if len(connack) <= self.max_sent_bytes:  # else no packet may be sent [MQTT-3.1.2-24]
                self.reply(connack)
        elif code in RETURN_CODES:
            self.reply(encode_packet(ConnAck(False, RETURN_CODES[code]), self.version))
        self.end(reason.name_of(code), is_will_due=False, lingers=True)

    def _refuse_late(self, code: int) -> None:
        """The accepted session cannot be stored, and the CONNACK has not left: let it say so."""
        self.box.chunks.clear()
        if self.is_v5 or code in RETURN_CODES:
            connack = ConnAck(False, code if self.is_v5 else RETURN_CODES[code])
            self.box.cork(encode_packet(connack, self.version))
            self.welcome()

    def refused(self, refusal: Refusal) -> None:
        """A stage stopped a message and wants its publisher gone."""
        is_forbidden = refusal.reason_code == reason.NOT_AUTHORIZED
        code = reason.NOT_AUTHORIZED if is_forbidden else reason.IMPLEMENTATION_SPECIFIC_ERROR
        self.disconnect(code, refusal.reason, text=refusal.text)

    def on_internal_error(self) -> None:
        """A fault of the broker's own, or of its store."""
        if self.version and not self.is_connected and not self.is_closed:
            self.refuse_connect(reason.SERVER_UNAVAILABLE)
        self.disconnect(reason.UNSPECIFIED_ERROR, "internal_error")

    def disconnect(
        self, code: int, why: str, *, text: str = "", is_will_due: bool = True, server: str = ""
    ) -> None:
        """DISCONNECT with a reason code to version 5 clients, then the end. ``server`` is the one to use in place of
        this."""
        if self.is_closed:
            return
        is_stopping = self.context.is_stopping
        if not is_stopping and why != SHUTDOWN:
            _log.info(
                "connection.cut_off client_id=%.200s peer=%s listener=%s reason=%s detail=%.300s",
                self.client.client_id if self.is_connected else "", self._address, self.link.listener, why, text,
            )  # fmt: skip
        if self.box.corked_with:  # a DISCONNECT may not come before it [MQTT-3.14.0-1]
            self._refuse_late(code if code in _CONNACK_CODES else reason.SERVER_UNAVAILABLE)
            is_will_due = False
        elif self.is_v5 and self.is_connected:
            properties = {"Reason-String": text} if text else {}
            if server:
                properties["Server-Reference"] = server
            self.reply(encode_fitting(Disconnect(code, properties), 5, self.max_sent_bytes))
        self.end(why, is_will_due=is_will_due, lingers=self.is_v5 and not is_stopping, text=text)

    def end(
        self, why: str, *, is_will_due: bool, properties: dict[str, Any] | None = None, lingers: bool = False,
        text: str = "",
    ) -> None:  # fmt: skip
        """Close the link and release the session; what comes after is ignored. ``lingers`` where the client may be in
        the middle of sending: it must be able to read the answer."""
        self.is_closed = True
        self.box.flush()
        self.link.close(lingers=lingers)
        self.services.ended(self, why, is_will_due, properties, text)

    def _note_refused(self, why: str, text: str, client_id: str) -> None:
        self.context.figures.refused_connection(why)
        if client_id:
            self.context.timelines.refused(
                client_id, why, f"from {self._address}" + (f": {text}" if text else "")
            )
        _log.info(
            "connection.refused client_id=%.200s peer=%s listener=%s reason=%s detail=%.300s",
            client_id, self._address, self.link.listener, why, text,
        )  # fmt: skip

    @property
    def _address(self) -> str:
        return f"{self.link.peer_host}:{self.link.peer_port}"
