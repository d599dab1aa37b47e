"""CONNECT: limits, authentication, taking over, resuming, and the CONNACK."""

from __future__ import annotations

from collections.abc import Callable
from logging import getLogger
from math import inf
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from broker.auth.attempt import Certificate, ConnectAttempt
from broker.auth.decision import Decision
from broker.auth.subject import proof_of, proven_names
from broker.codec.encode import encode_fitting, encode_packet
from broker.codec.packets import ConnAck, Connect
from broker.connection import announce, close
from broker.connection.acknowledge import answer
from broker.connection.announce import Greeting
from broker.connection.authentication import logins
from broker.connection.authentication.permits import grant, recheck
from broker.connection.capabilities import announced, response_information
from broker.connection.connect_limits import ConnectRefusal, banned, no_room, over_limit
from broker.connection.due import TICK_S
from broker.connection.settings import CertificateName, MqttSettings
from broker.connection.subscribe import subscribe_for
from broker.connection.user_properties import memory_of
from broker.connection.zones import settle
from broker.core import reason
from broker.core.client import Client, Proof
from broker.core.origin import MARK
from broker.session import resending
from broker.session.aliases import AliasingOutbox
from broker.session.session import Session
from broker.session.will import Will
from broker.session.window import MAX_PACKET_ID

if TYPE_CHECKING:
    from broker.connection.connection import Connection

_log = getLogger(__name__)

_EXPIRY: Final = "Session-Expiry-Interval"
_NO_NAMES: Final[frozenset[str]] = frozenset()


def take_connect(c: Connection, packet: Connect) -> None:
    """Accept or refuse a CONNECT that is well-formed, now or once somebody has decided. What came behind it is handled
    after that."""
    c.version, c.is_v5 = packet.version, packet.version == 5
    c.terms = c.hub.zones.of_listener(c.link.listener).settings
    properties = packet.properties
    c.wants_reasons = properties.get("Request-Problem-Information", 1) == 1
    c.max_sent_bytes = properties.get("Maximum-Packet-Size", inf)
    attempt = _attempt(c, packet, packet.client_id or uuid4().hex[: c.hub.settings.max_client_id_bytes])
    if (refusal := _why_not(c, packet, attempt)) is not None:
        _refuse(c, packet, _client(attempt), refusal)
        return

    def decided(decision: Decision, told: dict[str, Any]) -> None:
        settled = attempt.after(decision)
        client = _client(settled, proof_of(settled, decision))
        announce.authenticated(c, settled, decision)

        def why_not() -> ConnectRefusal | None:
            return _why_not_after(c, packet, settled, client, decision)

        def finish(refusal: ConnectRefusal | None) -> None:
            if refusal is not None:
                _refuse(c, packet, client, refusal)
            else:
                _accept(c, packet, client, told)

        refusal = why_not()
        if refusal is not None or not _has_to_wait(c, client.client_id, lambda: finish(why_not())):
            finish(refusal)

    logins.begin(c, attempt, properties, decided)


def _why_not_after(
    c: Connection, packet: Connect, attempt: ConnectAttempt, client: Client, decision: Decision
) -> ConnectRefusal | None:
    """What a client is refused with once it is known who it is. Leaves its permits."""
    if not decision.is_allowed:
        return ConnectRefusal(decision.reason_code, detail=decision.why)
    if not c.hub.access.still_admits(decision):
        return ConnectRefusal(reason.BAD_USER_NAME_OR_PASSWORD, detail="the user was changed during the login")
    if (ban := c.hub.access.bans.of(attempt)) is not None:  # by the name that the authenticator knows
        return banned(ban)
    if _is_of_another(c, client) and "clientid" not in proven_names(attempt, decision):
        detail = "the session of the client identifier belongs to another user (mqtt.session_takeover)"
        return ConnectRefusal(reason.NOT_AUTHORIZED, detail=detail)
    logins.let_in(c, attempt, decision)
    grant(c, client)
    will = None if packet.will is None else Will.of(packet.will, client)
    if (refusal := no_room(c, packet, client.client_id, will)) is not None:
        return refusal
    if c.permits is None or packet.will is None or will is None or c.permits.may_leave(will):
        return None
    return ConnectRefusal(reason.NOT_AUTHORIZED, detail=f"it may not publish its will to {packet.will.topic!r}")


def _is_of_another(c: Connection, client: Client) -> bool:
    """Whether the session that there is belongs to another user, who does not share it."""
    session = c.hub.sessions.get(client.client_id)
    if session is None or c.hub.settings.session_takeover == "any_user":
        return False
    return not client.may_resume(session.client)


def _has_to_wait(c: Connection, client_id: str, finish: Callable[[], None]) -> bool:
    """Whether a client's identifier goes from one connection to the next too fast; then ``finish`` is called later."""
    old = c.hub.sessions.get(client_id)
    return old is not None and old.owner is not None and c.hub.logins.hold_in_jail(c, client_id, finish)


def _refuse(c: Connection, packet: Connect, client: Client, refusal: ConnectRefusal) -> None:
    announce.connack(c, packet, client, refusal.code, _session_expiry(c, packet, {}))
    close.refuse_connect(c, refusal.code, refusal.text, client.client_id, detail=refusal.detail)


def _accept(c: Connection, packet: Connect, client: Client, told: dict[str, Any]) -> None:
    """Give a client that may connect its session, and the CONNACK."""
    properties, client_id = packet.properties, client.client_id
    if not packet.client_id:
        told["Assigned-Client-Identifier"] = client_id
    _set_keep_alive(c, packet.keep_alive_s, told)
    expiry_s = _session_expiry(c, packet, told)
    told |= response_information(c.hub.settings, properties, client_id)
    if any(name == MARK for name, _ in properties.get("User-Property", ())):  # a bridge says who it is: so do we
        told["User-Property"] = [(MARK, c.hub.origin)]
    if c.max_sent_bytes < inf and len(_connack(c, False, told)) > c.max_sent_bytes:
        close.refuse_connect(c, reason.PACKET_TOO_LARGE)  # what must be told does not fit [MQTT-3.1.2-24]
        return
    c.client = client
    before = c.hub.writer.appended
    starts_clean = packet.clean_start or _is_of_another(c, client)  # one that proved the identifier gets it, empty
    session, is_present = _session(c, client_id, starts_clean, is_to_last=expiry_s > 0)
    c.session, session.expiry_s = session, expiry_s
    c.greeting, c.user_property_bytes = Greeting.of(packet, expiry_s), memory_of(properties)
    c.hub.greeted.bytes += c.user_property_bytes
    c.hub.wills.keep(session, None if packet.will is None else Will.of(packet.will, c.client))
    c.connack = _connack(c, is_present, told)
    _alias_topics(c, packet)
    c.box.cork()
    _attach(c, packet)
    recheck(c)
    if session.is_durable:
        c.hub.records.changed(session)
    if requests := c.hub.automatic.requests_for(c.client):
        subscribe_for(c, requests)

    def welcome() -> None:
        if session.owner is not c:
            return
        try:
            c.hub.backlog.load_inflight(session)
        except Exception:  # noqa: BLE001  a store that cannot be read: refused rather than served without the session
            _log.exception("connection.session_unreadable client_id=%s", client_id)
            close.on_internal_error(c)
            return
        close.welcome(c)
        c.hub.shares.here(session)
        resending.resume(session, None if c.permits is None else c.permits.may_have(session))
        c.hub.replays.resumed(session)

    answer(c, welcome, waits=c.hub.writer.appended != before)
    announce.connack(c, packet, c.client, reason.SUCCESS, expiry_s)
    announce.connected(c)


def _attempt(c: Connection, packet: Connect, client_id: str) -> ConnectAttempt:
    """What is known of the client, its attributes worked out."""
    link, settings = c.link, c.hub.settings
    zone = c.hub.zones.of_listener(link.listener)
    attempt = ConnectAttempt(
        _named_by(link.certificate, settings.peer_cert_as_clientid) or client_id,
        _named_by(link.certificate, settings.peer_cert_as_username) or packet.username,
        packet.password,
        link.peer_host,
        link.peer_port,
        packet.version,
        link.listener,
        tuple(packet.properties.get("User-Property", ())),
        link.server_name,
        link.certificate,
        by_certificate=_NO_NAMES if link.certificate is None else _names_by_certificate(settings),
        zone=zone.name,
    )
    return c.hub.client_attributes.settled(attempt)


def _names_by_certificate(settings: MqttSettings) -> frozenset[str]:
    names = {"clientid": settings.peer_cert_as_clientid, "username": settings.peer_cert_as_username}
    return frozenset(name for name, which in names.items() if which != "disabled")


def _named_by(certificate: Certificate | None, which: CertificateName) -> str | None:
    if certificate is None or which == "disabled":
        return None
    return certificate.common_name if which == "cn" else certificate.subject


def _client(attempt: ConnectAttempt, proof: Proof = Proof.NOTHING) -> Client:
    return Client(
        attempt.client_id,
        attempt.username,
        attempt.peer_host,
        attempt.peer_port,
        attempt.listener,
        attempt.protocol_version,
        attempt.attributes,
        proof,
    )


def _why_not(c: Connection, packet: Connect, attempt: ConnectAttempt) -> ConnectRefusal | None:
    if c.link.refusal:
        return ConnectRefusal(c.link.refusal)
    if not packet.client_id and (packet.version == 3 or (packet.version == 4 and not packet.clean_start)):
        return ConnectRefusal(
            reason.CLIENT_IDENTIFIER_NOT_VALID, "an empty client identifier"
        )  # [MQTT-3.1.3-8] of 3.1.1
    if (refusal := over_limit(c, packet, attempt.client_id)) is not None:
        return refusal
    if (ban := c.hub.access.bans.of(attempt)) is not None:
        return banned(ban)
    if _refuses_keep_alive(c, packet):  # the nearest that 3.1.1 can say is return code 2
        text = f"keep alive is {packet.keep_alive_s} seconds; it may be at most {c.terms.max_keep_alive}"
        return ConnectRefusal(reason.KEEP_ALIVE_TIMEOUT, text)
    return None


def _refuses_keep_alive(c: Connection, packet: Connect) -> bool:
    settings = c.terms
    is_above = 0 < settings.max_keep_alive < packet.keep_alive_s  # 0 is off: such a client is cut off after the maximum
    return is_above and packet.version < 5 and settings.keep_alive_above_max == "refuse"


def _set_keep_alive(c: Connection, asked_s: int, told: dict[str, Any]) -> None:
    settings = c.terms
    keep_alive_s = asked_s
    if settings.max_keep_alive and not 0 < asked_s <= settings.max_keep_alive:
        keep_alive_s = told["Server-Keep-Alive"] = settings.max_keep_alive  # [MQTT-3.2.2-21]
    c.silence_s = keep_alive_s * settings.keep_alive_factor + TICK_S if keep_alive_s else inf


def _session_expiry(c: Connection, packet: Connect, told: dict[str, Any]) -> int:
    limit_s = int(min(c.terms.max_session_expiry, 0xFFFFFFFF))
    if not c.is_v5:
        return 0 if packet.clean_start else limit_s
    asked_s = int(packet.properties.get(_EXPIRY, 0))
    if asked_s > limit_s:
        told[_EXPIRY] = limit_s
    return min(asked_s, limit_s)


def _session(c: Connection, client_id: str, clean_start: bool, *, is_to_last: bool) -> tuple[Session, bool]:
    """The session to go on with, and whether it was there before; a connection that has it is closed."""
    hub, zone = c.hub, c.hub.zones.of_listener(c.link.listener)
    if (old := hub.sessions.get(client_id)) is not None and old.owner is not None:
        close.taken_over(old.owner)
        hub.logins.taken_over(client_id, hub.clock.monotonic_s())
    found = hub.sessions.get(client_id)
    if found is None or clean_start:
        return hub.new_session(client_id, is_durable=is_to_last and zone.keeps_on_disk, zone=zone), False
    settle(hub, found, zone, is_to_last=is_to_last)
    return found, True


def _alias_topics(c: Connection, packet: Connect) -> None:
    """Use an outbox that writes topic aliases, for a client that takes some [MQTT-3.1.2-26]."""
    maximum = min(packet.properties.get("Topic-Alias-Maximum", 0), c.terms.topic_alias_maximum_out)
    if maximum:
        c.box.flush()
        c.box = AliasingOutbox(c.hub.turn, c.link.write, maximum, c.max_sent_bytes)


def _attach(c: Connection, packet: Connect) -> None:
    session, hub = c.session, c.hub
    was_v5 = session.is_v5
    session.attach(
        c,
        c.client,
        c.box,
        packet.properties.get("Receive-Maximum", MAX_PACKET_ID),
        packet.properties.get("Maximum-Packet-Size", 0),
    )
    hub.inbounds.client_came(session.client_id)
    session.connected_ns = c.connected_ns = c.now_ns
    if session.subscriptions and was_v5 != session.is_v5:
        hub.plans.invalidate()  # routes are grouped by version
    c.is_connected = True
    c.max_packet_bytes = c.terms.max_packet_size
    hub.figures.connected.value += 1
    hub.figures.connected_by_version[c.version] += 1


def _connack(c: Connection, is_present: bool, told: dict[str, Any]) -> bytes:
    if not c.is_v5:
        return encode_packet(ConnAck(is_present), c.version)
    properties = announced(c.terms) | told
    return encode_fitting(ConnAck(is_present, reason.SUCCESS, properties), 5, c.max_sent_bytes)
