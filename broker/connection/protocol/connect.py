"""CONNECT: limits, authentication, taking over, resuming, and the CONNACK."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from logging import getLogger
from math import inf
from typing import Any, Final
from uuid import uuid4

from broker.auth.attempt import Certificate, ConnectAttempt
from broker.auth.backends.source import Unanswered
from broker.auth.decision import Decision
from broker.auth.subject import proof_of, proven_names
from broker.codec import properties as p
from broker.codec.decode import connect_version, decode_packet
from broker.codec.encode import PINGRESP_BYTES, encode_fitting, encode_packet
from broker.codec.framing import frame_at
from broker.codec.packets import ConnAck, Connect, PingReq
from broker.connection.authentication.logins import ConnectRefused, Logins
from broker.connection.connection import Connection
from broker.connection.context import TICK_S, Context
from broker.connection.events import ClientEvents
from broker.connection.link import Greeting, LinkIdentity, memory_of
from broker.connection.metrics import CONNECT
from broker.connection.protocol.limits import (
    announced,
    check_connect,
    response_information,
)
from broker.connection.protocol.subscribe import Subscribing
from broker.connection.sessions.lifecycle import SessionLife
from broker.connection.sessions.zones import Zones
from broker.connection.settings import CertificateName, MqttSettings
from broker.connection.state_machine import ORDER, Effect
from broker.core import reason
from broker.core.client import Client, Proof
from broker.core.errors import PeerError
from broker.core.origin import MARK
from broker.session.aliases import AliasingOutbox
from broker.session.session import Session
from broker.session.will import Will
from broker.session.window import MAX_PACKET_ID

_log = getLogger(__name__)

EXPIRY: Final = "Session-Expiry-Interval"
_NO_NAMES: Final[frozenset[str]] = frozenset()
_PROTOCOLS: Final = (b"\0\4MQTT", b"\0\6MQIsdp")
_MAXIMUM_PACKET_SIZE: Final = b"\x27"
_MOST_HEADER: Final = 5
# So far reaches the level behind the longer protocol name.
_VERSION_BYTES: Final = 9

# First bytes of a TLS handshake. As MQTT it is a CONNECT of three bytes, which none is.
_TLS_HANDSHAKE: Final = b"\x16\x03"


class Connecting:
    """Takes CONNECT, and what has no other taker once a client is connected."""

    def __init__(
        self,
        context: Context,
        logins: Logins,
        subscribing: Subscribing,
        client_events: ClientEvents,
        life: SessionLife,
        zones: Zones,
    ) -> None:
        self._context = context
        self._figures = context.figures
        self._logins = logins
        self._subscribing = subscribing
        self._client_events = client_events
        self._life = life
        self._zones = zones
        self.takers: Mapping[int, Callable[[Connection, Any], None]] = {
            p.PINGREQ: self.take_ping,
            p.AUTH: logins.take_auth,
        }
        """By packet type, of clients that are connected."""

    def read_first(self, c: Connection, data: bytes) -> int:
        """Take the CONNECT, and AUTH before the CONNACK; returns how many bytes were used. Anything else closes without
        a packet [MQTT-3.1.0-1]."""
        if c.login is not None:
            return self._logins.read_exchange(c, data, 0)
        if not data:
            return 0
        if ORDER[c.phase].get(data[0] >> 4) is not Effect.TAKE:
            c.refuse_silently("protocol_error", "the first packet is not a CONNECT")
            return len(data)
        if data.startswith(_TLS_HANDSHAKE):
            c.refuse_silently(
                "protocol_error", "the client began TLS, which this listener does not speak"
            )
            return len(data)
        try:
            frame = frame_at(data, 0, c.max_packet_bytes)
        except PeerError as error:
            return self._on_bad_header(c, error, data)
        if frame is None:
            return 0
        start, stop = frame
        if stop > len(data):
            c.wanted = stop
            return 0
        try:
            packet = decode_packet(data[0], data, start, stop, 0)
        except PeerError as error:
            self._on_bad_connect(c, error, data, start, stop)
            return len(data)
        assert isinstance(packet, Connect)
        self._figures.note_before_connack(CONNECT)
        c.packets_in += 1
        self.take_connect(c, packet)
        return stop if c.login is None else self._logins.read_exchange(c, data, stop)

    def take_ping(self, c: Connection, _packet: PingReq) -> None:
        """The client is alive, and may want to know whether the broker is: that is not behind writes to others."""
        c.reply(PINGRESP_BYTES)
        c.box.flush()
        self._client_events.ping(c)

    def take_connect(self, c: Connection, packet: Connect) -> None:
        """Accept or refuse a CONNECT that is well-formed, now or after the decision. What came behind it is
        handled after that."""
        c.version, c.is_v5 = packet.version, packet.version == 5
        c.terms = self._zones.of_listener(c.link.listener).settings
        properties = packet.properties
        c.wants_reasons = properties.get("Request-Problem-Information", 1) == 1
        c.max_sent_bytes = properties.get("Maximum-Packet-Size", inf)
        attempt = self._attempt(c.link, packet)
        try:
            self._check(c, packet, attempt)
        except PeerError as error:
            self._refuse(c, packet, _client(packet, attempt), error)
            return

        def decided(decision: Decision, answer: dict[str, Any]) -> None:
            settled = attempt.after(decision)
            client = _client(packet, settled, proof_of(settled, decision))
            self._client_events.authenticated(c, settled, decision)
            admit = partial(self._admit, c, packet, settled, client, decision, answer)
            admit(partial(admit, None))

        self._logins.begin(c, attempt, properties, decided)

    def _admit(
        self, c: Connection, packet: Connect, attempt: ConnectAttempt, client: Client, decision: Decision,
        answer: dict[str, Any], again: Callable[[], None] | None,
    ) -> None:  # fmt: skip
        """Accept or refuse a client whose authentication has ended. Where its identifier has to wait, that is done
        ``again`` later; None where it has waited."""
        try:
            checked = self._check_decided(c, packet, attempt, client, decision)
        except PeerError as error:
            self._refuse(c, packet, client, error)
            return
        if isinstance(checked, Unanswered):  # an outside source has to be asked about the will
            self._logins.when_answered(
                c,
                checked,
                partial(self._admit, c, packet, attempt, client, decision, answer, again),
            )
            return
        client = checked
        if again is None or not self._has_to_wait(c, client.client_id, again):
            self._accept(c, packet, client, answer)

    def _check_decided(
        self,
        c: Connection,
        packet: Connect,
        attempt: ConnectAttempt,
        client: Client,
        decision: Decision,
    ) -> Client | Unanswered:
        """Refuse a client that authentication does not admit, or that may not connect as who it is. Sets its permits;
        returns it with its standing, or what must be asked about first.

        Raises:
            PeerError: why it is refused.
        """
        self._logins.check_decided(attempt, decision)
        if self._is_of_another(c, client) and "clientid" not in proven_names(attempt, decision):
            detail = "the session of the client identifier belongs to another user (mqtt.session_takeover)"
            raise ConnectRefused(reason.NOT_AUTHORIZED, detail=detail)
        client = self._logins.let_in(c, client, attempt, decision)
        will = None if packet.will is None else Will.of(packet.will, client)
        self._check_room(packet, client.client_id, will)
        if (
            c.permits is not None
            and will is not None
            and (unanswered := c.permits.leaving(will)) is not None
        ):
            return unanswered
        if c.permits is not None and will is not None and not c.permits.may_leave(will):
            raise ConnectRefused(
                reason.NOT_AUTHORIZED, detail=f"it may not publish its will to {will.topic!r}"
            )
        return client

    def _is_of_another(self, c: Connection, client: Client) -> bool:
        """True if the existing session belongs to another user, who does not share it. One of a deleted user ends."""
        session = self._life.sessions.get(client.client_id)
        if session is not None and self._logins.has_lost_its_user(session.client):
            if isinstance(session.owner, Connection):
                session.owner.disconnect(
                    reason.NOT_AUTHORIZED, "user_changed", text="the user was deleted"
                )
            if not session.is_ended:
                self._life.end_session(session)
            return False
        if session is None or self._context.settings.session_takeover == "any_user":
            return False
        return not client.may_resume(session.client)

    def _has_to_wait(self, c: Connection, client_id: str, finish: Callable[[], None]) -> bool:
        """True if a client's identifier goes from one connection to the next too fast; then ``finish`` is called
        later."""
        old = self._life.sessions.get(client_id)
        return (
            old is not None
            and old.owner is not None
            and self._logins.waiting.hold_in_jail(c, client_id, finish)
        )

    def _refuse(self, c: Connection, packet: Connect, client: Client, error: PeerError) -> None:
        self._client_events.connack(
            c, packet, client, error.reason_code, self._session_expiry(c, packet, {})
        )
        refused = error if isinstance(error, ConnectRefused) else ConnectRefused(error.reason_code)
        c.refuse_connect(
            error.reason_code,
            str(error),
            client.client_id,
            detail=refused.detail,
            server=refused.server,
        )

    def _accept(
        self, c: Connection, packet: Connect, client: Client, answer: dict[str, Any]
    ) -> None:
        """Give a client that may connect a place, its session, and the CONNACK."""
        if code := c.link.admit():
            self._refuse(c, packet, client, ConnectRefused(code))
            return
        properties = packet.properties
        client_id = client.client_id
        if not packet.client_id:
            answer["Assigned-Client-Identifier"] = client_id
        self._set_keep_alive(c, packet.keep_alive_s, answer)
        expiry_s = self._session_expiry(c, packet, answer)
        answer |= response_information(self._context.settings, properties, client_id)
        if any(name == MARK for name, _ in properties.get("User-Property", ())):
            # a bridge says who it is: so do we
            answer["User-Property"] = [(MARK, self._context.identity.origin)]
        if c.max_sent_bytes < inf and len(self._connack(c, False, answer)) > c.max_sent_bytes:
            # the properties that it must have do not fit [MQTT-3.1.2-24]
            c.refuse_connect(reason.PACKET_TOO_LARGE)
            return
        c.client = client
        left = self._life.sessions.get(client_id)
        leaves_stored = left is not None and (left.is_durable or left.will is not None)
        # one that proved the identifier gets it, empty
        starts_clean = packet.clean_start or self._is_of_another(c, client)
        session, is_present = self._session(c, client_id, starts_clean, is_to_last=expiry_s > 0)
        c.session = session
        session.expiry_s = expiry_s
        c.greeting = Greeting.of(packet, expiry_s, c.now_ns)
        self._alias_topics(c, packet)
        c.box.cork(self._connack(c, is_present, answer))
        self._attach(c, packet)
        self._subscribing.connected(c)

        def welcome() -> None:
            if session.owner is not c:
                return
            try:
                self._life.load_inflight(session)
            except Exception:  # noqa: BLE001  a store that cannot be read: refused rather than served without the session
                _log.exception("connection.session_unreadable client_id=%s", client_id)
                c.on_internal_error()
                return
            c.welcome()
            self._life.resume(session, None if c.permits is None else c.permits.may_have(session))

        is_stored = leaves_stored or session.is_durable or packet.will is not None
        c.answers.add(c, welcome, waits=is_stored)
        self._client_events.connack(c, packet, c.client, reason.SUCCESS, expiry_s)
        self._client_events.connected(c, is_present=is_present)

    @property
    def may_rename(self) -> bool:
        """True if clients may get another identifier than the one in their CONNECT."""
        settings = self._context.settings
        return (
            settings.peer_cert_as_clientid != "disabled" or settings.clientid_override != "disabled"
        )

    def client_id_of(self, link: LinkIdentity, packet: Connect) -> str:
        """The identifier that a client gets."""
        return self._attempt(link, packet).client_id

    def _attempt(self, link: LinkIdentity, packet: Connect) -> ConnectAttempt:
        """Details of the client, its attributes worked out."""
        settings = self._context.settings
        client_id = packet.client_id or self._chosen_id(settings.max_client_id_bytes)
        attempt = ConnectAttempt(
            _named_by(link.certificate, settings.peer_cert_as_clientid) or client_id,
            _named_by(link.certificate, settings.peer_cert_as_username) or packet.username, packet.password,
            link.peer_host, link.peer_port, packet.version, link.listener,
            tuple(packet.properties.get("User-Property", ())), link.server_name, link.certificate,
            by_certificate=_NO_NAMES if link.certificate is None else _names_by_certificate(settings),
            zone=self._zones.of_listener(link.listener).name,
        )  # fmt: skip
        return self._logins.attributes.settled(attempt)

    def _chosen_id(self, most_bytes: int) -> str:
        """A new identifier, with several cells one of this cell's."""
        place = self._context.place
        client_id = uuid4().hex[:most_bytes]
        while place is not None and not place.has(client_id):
            client_id = uuid4().hex[:most_bytes]
        return client_id

    def _check(self, c: Connection, packet: Connect, attempt: ConnectAttempt) -> None:
        """Refuse what no authenticator has to be asked about. Raises ``PeerError``."""
        if c.link.refusal:
            raise ConnectRefused(c.link.refusal)
        place = self._context.place
        if (
            place is not None
            and packet.version == 5
            and (server := place.server_of(attempt.client_id))
        ):
            raise ConnectRefused(reason.USE_ANOTHER_SERVER, server=server)
        if not packet.client_id and (
            packet.version == 3 or (packet.version == 4 and not packet.clean_start)
        ):
            text = "an empty client identifier"  # [MQTT-3.1.3-8] of 3.1.1
            raise ConnectRefused(reason.CLIENT_IDENTIFIER_NOT_VALID, text)
        check_connect(self._context.settings, self._figures, packet, attempt.client_id)
        self._logins.check_ban(attempt)
        # 0 is off: such a client is held to the maximum
        is_above = 0 < c.terms.max_keep_alive < packet.keep_alive_s
        if is_above and packet.version < 5 and c.terms.keep_alive_above_max == "refuse":
            text = f"keep alive is {packet.keep_alive_s} seconds; it may be at most {c.terms.max_keep_alive}"
            # return code 2 is the nearest that 3.1.1 has
            raise ConnectRefused(reason.KEEP_ALIVE_TIMEOUT, text)

    def _set_keep_alive(self, c: Connection, asked_s: int, answer: dict[str, Any]) -> None:
        settings = c.terms
        keep_alive_s = asked_s
        if settings.max_keep_alive and not 0 < asked_s <= settings.max_keep_alive:
            keep_alive_s = answer["Server-Keep-Alive"] = settings.max_keep_alive  # [MQTT-3.2.2-21]
        c.silence_s = keep_alive_s * settings.keep_alive_factor + TICK_S if keep_alive_s else inf

    def _session_expiry(self, c: Connection, packet: Connect, answer: dict[str, Any]) -> int:
        limit_s = int(min(c.terms.max_session_expiry, 0xFFFFFFFF))
        if not c.is_v5:
            return 0 if packet.clean_start else limit_s
        asked_s = int(packet.properties.get(EXPIRY, 0))
        if asked_s > limit_s:
            answer[EXPIRY] = limit_s
        return min(asked_s, limit_s)

    def _session(
        self, c: Connection, client_id: str, clean_start: bool, *, is_to_last: bool
    ) -> tuple[Session, bool]:
        """The session to continue with, and whether it was there before; a connection that has it is closed."""
        zone = self._zones.of_listener(c.link.listener)
        old = self._life.sessions.get(client_id)
        if old is not None and isinstance(old.owner, Connection):
            old.owner.disconnect(reason.SESSION_TAKEN_OVER, "takenover")
            self._logins.waiting.taken_over(client_id)
        existing = self._life.sessions.get(client_id)
        if existing is None or clean_start:
            return self._life.new_session(
                client_id, zone, is_durable=is_to_last and zone.keeps_on_disk
            ), False
        self._zones.enter(existing, zone, is_to_last=is_to_last)
        return existing, True

    def _alias_topics(self, c: Connection, packet: Connect) -> None:
        """Use an outbox that writes topic aliases, for a client that takes some [MQTT-3.1.2-26]."""
        maximum = min(
            packet.properties.get("Topic-Alias-Maximum", 0), c.terms.topic_alias_maximum_out
        )
        if maximum:
            c.box.flush()
            c.box = AliasingOutbox(
                self._context.pending_writes, c.link.write, maximum, c.max_sent_bytes
            )

    def _attach(self, c: Connection, packet: Connect) -> None:
        self._life.attach(
            c.session,
            c,
            c.client,
            c.box,
            None if packet.will is None else Will.of(packet.will, c.client),
            packet.properties.get("Receive-Maximum", MAX_PACKET_ID),
            packet.properties.get("Maximum-Packet-Size", 0),
        )
        c.session.connected_ns = c.now_ns
        self._context.greeted.bytes += memory_of(c.greeting.properties)
        c.is_connected = True
        c.max_packet_bytes = c.terms.max_packet_size
        self._figures.connected.value += 1
        self._figures.connected_by_version[c.version] += 1

    def _connack(self, c: Connection, is_present: bool, answer: dict[str, Any]) -> bytes:
        if not c.is_v5:
            return encode_packet(ConnAck(is_present), c.version)
        properties = announced(c.terms) | answer
        return encode_fitting(ConnAck(is_present, reason.SUCCESS, properties), 5, c.max_sent_bytes)

    def _check_room(self, packet: Connect, client_id: str, will: Will | None) -> None:
        """Refuse a client for whose session, user properties or will there is no room. Raises ``PeerError`` 0x97."""
        settings = self._context.settings
        over_limit = self._figures.over_limit
        self._life.check_room(client_id, will)
        old = self._life.sessions.get(client_id)
        added = memory_of(packet.properties)
        if old is not None and isinstance(old.owner, Connection):
            added -= memory_of(old.owner.greeting.properties)
        if added > 0 and self._context.greeted.bytes + added > (
            most := settings.max_user_property_bytes_total
        ):
            text = f"user properties of all clients may take {most} bytes of memory"
            raise over_limit("max_user_property_bytes_total", text)

    def _on_bad_connect(
        self, c: Connection, error: PeerError, data: bytes, start: int, stop: int
    ) -> None:
        """A CONNECT that breaks the rules: a CONNACK where the standard allows one, else just the end."""
        version = connect_version(data, start, stop)
        if version == 5:
            c.version = 5
            c.is_v5 = True
            # the packet could not be decoded
            may_limit_us = _MAXIMUM_PACKET_SIZE in data[start:stop]
            c.refuse_connect(error.reason_code, "" if may_limit_us else str(error))
        elif error.reason_code == reason.UNSUPPORTED_PROTOCOL_VERSION and data.startswith(
            _PROTOCOLS, start
        ):
            c.version = 4
            c.refuse_connect(error.reason_code)
        else:
            c.on_peer_error(error)

    def _on_bad_header(self, c: Connection, error: PeerError, data: bytes) -> int:
        """Same as ``_on_bad_connect``, for a packet that is too long: its first bytes give the version, the rest is not
        read. Returns how many bytes were used: none while the version has not come."""
        start = next((at + 1 for at in range(1, _MOST_HEADER) if data[at] < 128), 0)
        if error.reason_code != reason.PACKET_TOO_LARGE or not start:
            c.on_peer_error(error)
        elif connect_version(data, start, len(data)) is None and len(data) < start + _VERSION_BYTES:
            c.wanted = start + _VERSION_BYTES
            return 0
        else:
            self._on_bad_connect(c, error, data, start, len(data))
        return len(data)


def _names_by_certificate(settings: MqttSettings) -> frozenset[str]:
    names = {"clientid": settings.peer_cert_as_clientid, "username": settings.peer_cert_as_username}
    return frozenset(name for name, which in names.items() if which != "disabled")


def _named_by(certificate: Certificate | None, which: CertificateName) -> str | None:
    if certificate is None or which == "disabled":
        return None
    return certificate.common_name if which == "cn" else certificate.subject


def _client(packet: Connect, attempt: ConnectAttempt, proof: Proof = Proof.NOTHING) -> Client:
    return Client(
        attempt.client_id, attempt.username, attempt.peer_host, attempt.peer_port, attempt.listener,
        attempt.protocol_version, attempt.attributes, proof, is_bridge=packet.is_bridge,
    )  # fmt: skip
