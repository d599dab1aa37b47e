"""One connection: its state, and which module takes which packet. Knows no socket, only a ``Link``."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from logging import getLogger
from math import inf
from typing import Final, Protocol

from broker.auth.attempt import Certificate
from broker.auth.subject import Subject
from broker.auth.users import User
from broker.codec.decode import decode_packet
from broker.codec.framing import frame_at
from broker.codec.packets import Connect
from broker.connection import acknowledge, close, connect, reading
from broker.connection.announce import Greeting
from broker.connection.authentication import logins
from broker.connection.authentication.permits import Permits
from broker.connection.due import TICK_S
from broker.connection.figures import CONNECT
from broker.connection.hub import Hub
from broker.connection.kept import Kept, Waiting
from broker.connection.publish_rate import PublishMeter
from broker.core import reason
from broker.core.client import Client
from broker.core.errors import PeerError
from broker.core.nothing import NOTHING
from broker.session.outbox import Outbox
from broker.session.session import Session

_log = getLogger(__name__)

_CONNECT_BYTE: Final = 0x10
_NO_CAUSE: Final[frozenset[object]] = frozenset()
_LARGE_READ_BYTES: Final = 64 * 1024
"""When so much was read in a turn, what that led to is written at once: libuv reads a busy socket up to 32 times, 8 MB,
before the loop's turn ends, and many sockets; only what is written shows that a subscriber is slow."""
_ANSWERS_FACTOR: Final = 4
"""A client that reads none of its answers is not read from, once so many times ``max_unsent_bytes`` wait for it."""


class Link(Protocol):
    """The byte stream under a connection (``broker.net.tcp``)."""

    peer_host: str | None
    peer_port: int | None
    listener: str
    server_name: str | None
    """What the client asked for in the TLS handshake (SNI)."""
    tls_version: str | None
    """Of the connection's TLS, None without."""
    certificate: Certificate | None
    """What it showed there and was found good."""
    refusal: int
    """Reason code to refuse its CONNECT with, 0 when its listener takes it."""

    @property
    def sock_name(self) -> str | None:
        """``address:port`` of our end, None when it has none."""
        ...

    def write(self, data: bytes) -> None:
        """Send; never waits."""
        ...

    def close(self, *, lingers: bool = False) -> None:
        """Send what waits, then close; cut off when the peer does not take it within a deadline.

        ``lingers``: what the peer is still sending is read and thrown away for a while, since closing on it would
        reset the connection and take from the peer what it was told last.
        """
        ...

    def pause_reading(self) -> None:
        """Read no more until ``resume_reading``."""
        ...

    def resume_reading(self) -> None:
        """Read again."""
        ...

    def unsent_bytes(self) -> int:
        """Bytes that the system has not taken yet."""
        ...


class Connection:
    """The state of one connection; hands each packet to its module.

    ``session``, ``client`` and ``greeting`` are there once a CONNECT was accepted.
    """

    __slots__ = (
        "_holds",
        "_rest",
        "account",
        "alias_bytes",
        "aliases",
        "batches",
        "box",
        "bytes_in",
        "client",
        "connack",
        "connected_ns",
        "deadline_s",
        "greeting",
        "hub",
        "is_closed",
        "is_connected",
        "is_parked",
        "is_v5",
        "kept",
        "link",
        "login",
        "max_packet_bytes",
        "max_sent_bytes",
        "messages_in",
        "meter",
        "now_ns",
        "packets_in",
        "permits",
        "session",
        "silence_s",
        "subject",
        "terms",
        "unacknowledged",
        "user_property_bytes",
        "version",
        "waiting",
        "wanted",
        "wants_reasons",
    )  # fmt: skip

    client: Client
    greeting: Greeting
    session: Session

    def __init__(self, hub: Hub, link: Link) -> None:
        self.hub, self.link = hub, link
        self.box = Outbox(hub.turn, link.write)
        self.is_connected = self.is_closed = self.is_v5 = False
        self.is_parked = False
        self.version = 0
        self.wants_reasons = True
        self.max_packet_bytes = hub.settings.max_packet_size_before_connect
        self.max_sent_bytes: float = inf
        self.aliases: dict[int, bytes] = {}
        self.alias_bytes = self.user_property_bytes = 0
        self.login: logins.Login | None = None
        self.subject: Subject | None = None
        """What is certain of the client."""
        self.account: User | None = None
        """The broker's own user that it logged in as."""
        self.permits: Permits | None = None
        """None for a client that no access rule restricts."""
        self.terms = hub.settings
        """The settings that the client was told the limits of; it is held to these, whatever they are later."""
        self.connack = b""
        """What waits to be sent first, until the session is stored."""
        self.waiting: list[Waiting] = []
        self.kept: list[Kept] = []
        self.batches: deque[tuple[list[Waiting], list[Kept]]] = NOTHING
        self.unacknowledged = 0
        self.bytes_in = self.packets_in = self.messages_in = 0
        self.now_ns = self.connected_ns = 0
        self.silence_s: float = inf
        self.deadline_s: float = inf
        self.wanted = 2
        self.meter: PublishMeter | None = None
        self._rest = bytearray()
        self._holds: frozenset[object] = _NO_CAUSE

    # -- from the link --

    def opened(self) -> None:
        """The link is open: a CONNECT is expected within ``connect_timeout``."""
        hub = self.hub
        self.deadline_s = hub.now_s + hub.settings.connect_timeout + TICK_S
        hub.connections.add(self)
        self.meter = hub.publish_rates.meter(self)

    def data_received(self, data: bytes) -> None:
        """Take what was read: bytes of any number of packets, cut anywhere."""
        if self.is_closed:
            return
        hub, rest = self.hub, self._rest
        size = len(data)
        hub.figures.bytes_received.value += size
        self.bytes_in += size
        if rest or self.is_parked:
            rest += data
            if self.is_parked and not self.is_connected and len(rest) > self.max_packet_bytes:
                self.hold(hub.logins)
            if len(rest) < self.wanted or self.is_parked:
                return
            data = bytes(rest)
            rest.clear()
        self._handle(data)

    def go_on(self, finish: Callable[[], None]) -> None:
        """The message for which this was parked is decided: finish it, then take what was read behind it."""
        self.is_parked = False
        data = b""
        if not self.hub.is_stopping:
            data = bytes(self._rest)
            self._rest.clear()
        self._handle(data, finish)

    def _handle(self, data: bytes, first: Callable[[], None] | None = None) -> None:
        """Take whole packets and keep the rest, once what is to be done before is done."""
        hub, rest = self.hub, self._rest
        self.now_ns = hub.clock.now_ns()
        self.wanted = 2
        appended, meter, figures = hub.writer.appended, self.meter, hub.figures
        packets, (at_0, at_1, at_2) = figures.packets_received, figures.received
        # what comes to the node's counts until this returns is this client's: counted once a read, not once a message
        packets_before, messages_before = packets.value, at_0.value + at_1.value + at_2.value
        published = meter.published() if meter is not None else 0
        try:
            if first is not None:
                first()
                if self.is_closed:
                    return
            used = reading.read_packets(self, data, 0) if self.is_connected else self._read_first(data)
        except PeerError as error:
            close.on_peer_error(self, error)
            return
        except Exception:  # noqa: BLE001  one connection's trouble must not become another's
            _log.exception("connection.failed client_id=%s", self.client.client_id if self.is_connected else "")
            close.on_internal_error(self)
            return
        if self.is_closed:
            return
        self.packets_in += packets.value - packets_before
        self.messages_in += at_0.value + at_1.value + at_2.value - messages_before
        if used < len(data):
            rest += data[used:]
        if self.is_connected:
            self.deadline_s = hub.now_s + self.silence_s
        if self.waiting:
            acknowledge.seal(self)
        if meter is not None:
            meter.spend(meter.published() - published, len(data))
        if hub.writer.appended != appended and hub.writer.is_congested:
            hub.paused.add(self)
            self.hold(hub.writer)
        turn = hub.turn
        turn.read_bytes += len(data)
        if turn.read_bytes >= _LARGE_READ_BYTES:
            turn.flush()
        if hub.brake.fresh:
            hub.brake.hold(self)

    def connection_lost(self) -> None:
        """The link is gone."""
        if not self.is_closed:
            close.end(self, "tcp_closed", is_will_due=True)

    def pause_writing(self) -> None:
        """Much waits to be sent: publishers are held back, and beyond ``max_unsent_bytes`` QoS 0 is dropped."""
        if self.is_connected and not self.is_closed:
            self.session.set_slow(is_slow=True)

    def resume_writing(self) -> None:
        """The client has caught up."""
        if self.is_closed:
            return
        if self.is_connected:
            self.session.set_slow(is_slow=False)
        self.let_go(self.link)

    def reply(self, packet: bytes) -> None:
        """Send a whole packet that is no PUBLISH, in this turn of the loop."""
        self.hub.figures.note_sent(packet)
        self.box.add(packet)

    # -- from the hub --

    def hold(self, cause: object) -> None:
        """Read nothing until ``let_go`` was called for every cause."""
        if not self._holds:
            self.link.pause_reading()
        self._holds |= {cause}

    def let_go(self, cause: object) -> None:
        """A cause to hold back is over."""
        if cause in self._holds:
            self._holds -= {cause}
            if self.is_connected:
                self.deadline_s = self.hub.now_s + self.silence_s
            if not self._holds and not self.is_closed:
                self.link.resume_reading()

    def on_tick(self) -> None:
        """Authenticating again takes too long."""
        logins.end_overdue(self)

    def on_deadline(self) -> None:
        """The client said nothing for too long, unless it was us who did not listen; or its CONNACK is overdue."""
        if not self._holds or not self.is_connected:
            close.on_silence(self)

    def fail(self, error: BaseException) -> None:
        """What the session must send cannot be stored."""
        _log.warning("connection.store_failed client_id=%.200s error=%s", self.client.client_id, error)
        close.on_internal_error(self)

    def overrun(self) -> None:
        """More waits for the client than may, and the settings say to close: not now, a message is being delivered."""
        self.hub.later(0, close.disconnect, self, reason.QUOTA_EXCEEDED, "queue_full")

    def hold_back_if_unread(self) -> None:
        """Stop reading a client that does not read its answers; ``resume_writing`` goes on."""
        if self.link.unsent_bytes() > _ANSWERS_FACTOR * self.hub.settings.max_unsent_bytes:
            self.hold(self.link)

    # -- CONNECT --

    def _read_first(self, data: bytes) -> int:
        """Take the CONNECT and all that came with it. Anything else closes without a packet [MQTT-3.1.0-1]."""
        if self.login is not None:
            return self._read_on(data, logins.read_exchange(self, data, 0))
        if not data:
            return 0
        if data[0] & 0xF0 != _CONNECT_BYTE:
            close.refuse_silently(self, "protocol_error", "what came first is no CONNECT")
            return len(data)
        try:
            frame = frame_at(data, 0, self.max_packet_bytes)
        except PeerError as error:
            return close.on_bad_connect_header(self, error, data)
        if frame is None:
            return 0
        start, stop = frame
        if stop > len(data):
            self.wanted = stop
            return 0
        try:
            packet = decode_packet(data[0], data, start, stop, 0)
        except PeerError as error:
            close.on_bad_connect(self, error, data, start, stop)
            return len(data)
        assert isinstance(packet, Connect)
        self.hub.figures.note_before_connack(CONNECT)
        connect.take_connect(self, packet)
        if self.login is not None:
            stop = logins.read_exchange(self, data, stop)
        return self._read_on(data, stop)

    def _read_on(self, data: bytes, position: int) -> int:
        """Take what came behind what was used of the CONNECT and the exchange; it stays while somebody decides."""
        if self.is_closed:
            return len(data)
        return reading.read_packets(self, data, position) if self.is_connected else position
