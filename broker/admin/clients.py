"""Clients: the list, one of them in full with its time line and messages, and the verbs that act on them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, Final, Literal, NotRequired

from typing_extensions import TypedDict

from broker.admin import listing
from broker.admin.client_events import ClientEventRow, event_rows, trouble_of
from broker.admin.listing import Cursor, Selection
from broker.admin.session_rows import (
    OldClientId,
    SessionBase,
    SessionRow,
    SubscriptionRow,
    session_base,
    session_row,
    subscription_rows,
)
from broker.admin.tails import MessageTails, PublishedView
from broker.auth.backends.source import AskedRules
from broker.auth.rules import BoundRule
from broker.codec.packets import SubscriptionRequest
from broker.connection.connection import Connection
from broker.connection.hub import Hub
from broker.connection.stalled import Stalled
from broker.core import reason
from broker.core.errors import Conflict, Invalid, NotFound, PeerError, Problem
from broker.core.message import Message
from broker.core.objects import Spec
from broker.core.times import rfc3339
from broker.observe.rates import Sampler
from broker.session.delivery import Delivery
from broker.session.session import Session

# Seconds of work on the loop before others have their turn.
_STEP_S: Final = 0.01

# Maximum clients whose rates are kept: those that were shown last.
_WATCHED: Final = 256
_SHOWN_IN_FLIGHT: Final = 100
_SHOWN_RULES: Final = 100
# Maximum payload bytes of a peek: of one message, which is cut, and of all.
_PEEKED_BYTES: Final = 64 * 1024
_ALL_PEEKED_BYTES: Final = 1024 * 1024
# Maximum reads of the session log for a peek, of some hundred records each.
_PEEKED_READS: Final = 100
_Place = Literal["in_flight", "queued", "stored"]
_NAMES: Final = {3: "MQTT 3.1", 4: "MQTT 3.1.1", 5: "MQTT 5.0"}


class ClientRow(SessionBase):
    """A client that is connected or has a session. `address` is where it connected from, `dropped` counts messages
    that it did not receive."""

    address: str | None
    listener: str | None
    protocol: str | None
    keep_alive_s: int | None
    clean_start: bool | None
    attributes: dict[str, str]
    dropped: int


class TlsRow(TypedDict):
    """TLS of a connection: the server name that the client asked for, the version, and its certificate."""

    server_name: str | None
    version: str | None
    subject: NotRequired[str]
    common_name: NotRequired[str | None]
    alternative_names: NotRequired[dict[str, list[str]]]


class ClientAccess(TypedDict):
    """Access of a connected client: the `authenticator` that let it in (`none` without authenticators), the verified
    facts that rules can name, and the access rules about it in the order in which they are asked."""

    authenticator: str | None
    is_superuser: bool
    facts: dict[str, str]
    rules: list[str]


class ConnectionRow(TypedDict, total=False):
    """A connection: what its CONNECT said, what it came through, `counters` of bytes, packets and messages in both
    directions and of dropped messages, and their `rates` per second over the last seconds.

    `silent_s` is for how long the client has acknowledged no message in flight to it, or read no byte that was
    sent to it, null if there are none. A client `is_slow` if it reads slowly, or `silent_s` has reached
    `mqtt.subscriber_ack_timeout`."""

    user_properties: list[list[str]]
    connect_properties: dict[str, Any]
    receive_maximum: int
    local_address: str | None
    tls: TlsRow | None
    access: ClientAccess
    is_slow: bool
    silent_s: float | None
    unsent_bytes: int
    counters: dict[str, int]
    rates: dict[str, float]


class InFlightRow(TypedDict):
    """A delivery that the client has not acknowledged, and the packet that it waits for."""

    packet_id: int
    qos: int
    topic: str | None
    payload_bytes: int | None
    waits_for: Literal["PUBACK", "PUBREC", "PUBCOMP"]


class PeekedMessage(PublishedView):
    """A message for a client that is `in_flight`, `queued` in memory, or `stored` in the session log. It stays where it
    is."""

    place: _Place
    packet_id: int | None
    received_at: str
    clientid: str


class ClientView(ClientRow, SessionRow, ConnectionRow):
    """A client with its session and, while it is connected, its connection. `problem` says why it is slow or loses
    messages."""

    problem: str | None
    subscriptions: list[SubscriptionRow]
    inflight_messages: list[InFlightRow]


class SubscriptionResult(TypedDict):
    """Result for one filter; `reason_code` is that of a SUBACK: the QoS granted, or 0x80 (128) and above."""

    filter: str
    reason_code: int
    reason: str
    detail: NotRequired[str]


class Subscribed(TypedDict):
    """A result for each filter, in order, and all subscriptions that the client has now."""

    clientid: str
    client_id: OldClientId
    results: list[SubscriptionResult]
    subscriptions: list[SubscriptionRow]


class Unsubscribed(TypedDict):
    """The filters of the subscriptions that ended, and all subscriptions that the client has now."""

    clientid: str
    client_id: OldClientId
    ended: list[str]
    subscriptions: list[SubscriptionRow]


class Kicked(TypedDict):
    """Number of clients that were disconnected, and which of them were not connected."""

    kicked: int
    not_connected: list[str]


class ClearedSessions(TypedDict):
    """Number of sessions that were deleted, and clients that have none."""

    cleared: int
    unknown: list[str]


class ClientService:
    """Lists, shows, disconnects, subscribes and unsubscribes clients. Used on the event loop."""

    def __init__(self, hub: Hub, tails: MessageTails) -> None:
        self._hub = hub
        self._tails = tails
        self._samplers: OrderedDict[str, Sampler] = OrderedDict()

    async def page(self, sort: str, limit: int, cursor: Cursor | None, **filters: Any) -> Spec:
        """A page of clients, connected or with a session that waits for them; filters are those of a ``Selection``."""
        return await listing.page(
            self._hub.sessions, Selection(**filters), sort, limit, cursor, client_row
        )

    def show(self, client_id: str) -> ClientView:
        """One client with its session and, while it is connected, its connection. Rates are 0 when it is first shown.

        Raises:
            NotFound: there is no such client.
        """
        session = self._session(client_id)
        connection = connection_of(session)
        row: ConnectionRow = {}
        if connection is not None:
            row = _connection_row(connection, self._hub.stalled)
            row["rates"] = self._rates(client_id, row["counters"])
        return {
            **client_row(session),
            **session_row(session),
            **row,
            "problem": trouble_of(session, connection, dict(row)),
            "subscriptions": subscription_rows(session),
            "inflight_messages": _in_flight(session),
        }

    def events(self, client_id: str) -> list[ClientEventRow]:
        """The time line of a client, newest first. It outlasts connections and sessions, not the broker's process.

        Raises:
            NotFound: nothing is known of the client.
        """
        events = self._hub.context.timelines.of(client_id)
        if not events:
            self._session(client_id)
        return event_rows(events)

    async def messages(self, client_id: str, limit: int) -> list[PeekedMessage]:
        """The messages in flight to a client and the first that wait for it, decoded. All stay where they are.

        Raises:
            NotFound: there is no such client.
        """
        rows: list[PeekedMessage] = []
        left = _ALL_PEEKED_BYTES
        async for place, packet_id, message in self._waiting(self._session(client_id)):
            if len(rows) == limit or left <= 0:
                break
            shown = message
            if len(message.payload) > _PEEKED_BYTES:
                shown = replace(message, payload=message.payload[:_PEEKED_BYTES])
            left -= len(shown.payload)
            rows.append(
                {
                    "place": place,
                    "packet_id": packet_id,
                    "received_at": rfc3339(message.received_ns),
                    "clientid": message.client.client_id,
                    **self._tails.published(shown, len(message.payload)),
                }
            )
        return rows

    async def _waiting(self, session: Session) -> AsyncIterator[tuple[_Place, int | None, Message]]:
        in_flight: list[tuple[int, Delivery]] = list(session.window.inflight.items())
        for packet_id, delivery in in_flight:
            if delivery.outgoing is not None:
                yield "in_flight", packet_id, delivery.outgoing.message
        for delivery in list(session.queue):
            if delivery.outgoing is not None:
                yield "queued", None, delivery.outgoing.message
        log = self._hub.session_log
        begin = session.next_offset
        for _ in range(_PEEKED_READS if session.is_behind else 0):
            messages, begin = log.waiting(session, begin)
            for message in messages:
                yield "stored", None, message
            if begin >= log.log_next:
                break
            await asyncio.sleep(0)

    async def _found(self, client_ids: Sequence[str]) -> AsyncIterator[tuple[str, Session | None]]:
        """The sessions of clients, with pauses for the loop."""
        until_s = perf_counter() + _STEP_S
        for client_id in client_ids:
            if perf_counter() > until_s:
                await asyncio.sleep(0)
                until_s = perf_counter() + _STEP_S
            yield client_id, self._hub.sessions.get(client_id)

    async def kick(self, client_ids: Sequence[str]) -> Kicked:
        """Close the connections of clients (0x98); their sessions stay as their expiry says."""
        kicked = 0
        not_connected = []
        async for client_id, session in self._found(client_ids):
            connection = connection_of(session) if session is not None else None
            if connection is None:
                not_connected.append(client_id)
                continue
            connection.disconnect(reason.ADMINISTRATIVE_ACTION, "kicked")
            kicked += 1
        return {"kicked": kicked, "not_connected": not_connected}

    async def clear(self, client_ids: Sequence[str]) -> ClearedSessions:
        """Delete the sessions of clients, and close their connections (0x98)."""
        cleared = 0
        unknown = []
        async for client_id, session in self._found(client_ids):
            if session is None:
                unknown.append(client_id)
                continue
            end_session(self._hub, session)
            cleared += 1
        if cleared:
            await self._hub.context.writer.committed()
        return {"cleared": cleared, "unknown": unknown}

    async def subscribe(
        self, client_id: str, subscriptions: Sequence[Mapping[str, Any]], check_acl: bool = True
    ) -> Subscribed:
        """Subscribe a connected client, as if it had sent SUBSCRIBE; each subscription is a ``SubscriptionRequest``.

        Raises:
            Invalid: every filter was refused.
            NotFound: there is no such client.
            Conflict: it is not connected.
            broker.core.errors.Unavailable: the store takes nothing.
        """
        connection = self._connected(client_id)
        requests = [SubscriptionRequest(**options) for options in subscriptions]
        outcomes = self._hub.subscribing.subscribe_for(connection, requests, checks_rules=check_acl)
        await self._hub.context.writer.committed()
        results = [
            _result(asked, outcome) for asked, outcome in zip(requests, outcomes, strict=True)
        ]
        refused = [
            Problem(str(outcome), f"/subscriptions/{at}/filter")
            for at, outcome in enumerate(outcomes)
            if isinstance(outcome, PeerError)
        ]
        if len(refused) == len(results):
            problem = f"client {client_id!r} was subscribed to nothing"
            members = {"results": results}
            raise Invalid(problem, refused, code="subscription_refused", members=members)
        subscriptions = subscription_rows(connection.session)
        return {
            "clientid": client_id,
            "client_id": client_id,
            "results": results,
            "subscriptions": subscriptions,
        }

    async def unsubscribe(self, client_id: str, filters: Sequence[str]) -> Unsubscribed:
        """End subscriptions of a connected client; raises as ``subscribe``."""
        connection = self._connected(client_id)
        ended = self._hub.subscribing.unsubscribe_for(connection, filters)
        await self._hub.context.writer.committed()
        subscriptions = subscription_rows(connection.session)
        return {
            "clientid": client_id,
            "client_id": client_id,
            "ended": list(ended),
            "subscriptions": subscriptions,
        }

    def _session(self, client_id: str) -> Session:
        session = self._hub.sessions.get(client_id)
        if session is None:
            raise NotFound("client", client_id)
        return session

    def _connected(self, client_id: str) -> Connection:
        connection = connection_of(self._session(client_id))
        if connection is None:
            raise Conflict(f"client {client_id!r} is not connected; its session waits for it")
        return connection

    def _rates(self, client_id: str, counters: Mapping[str, float]) -> dict[str, float]:
        sampler = self._samplers.pop(client_id, None) or Sampler(self._hub.context.clock)
        self._samplers[client_id] = sampler
        if len(self._samplers) > _WATCHED:
            self._samplers.popitem(last=False)
        return {name: round(rate, 1) for name, rate in sampler.rates(counters).items()}


def end_session(hub: Hub, session: Session) -> None:
    """Close the connection of a session, and delete it with its messages."""
    connection = connection_of(session)
    if connection is not None:
        connection.disconnect(reason.ADMINISTRATIVE_ACTION, "kicked")
    if not session.is_ended:
        hub.life.end_session(session)


def connection_of(session: Session) -> Connection | None:
    """The connection that has a session."""
    return session.owner if isinstance(session.owner, Connection) else None


def client_row(session: Session) -> ClientRow:
    """The row of a client in a list."""
    client = session.client
    connection = connection_of(session)
    return {
        **session_base(session),
        "address": client.peer_name,
        "listener": client.listener or None,
        "protocol": _NAMES.get(client.protocol_version),
        "keep_alive_s": listing.keep_alive_of(session),
        "clean_start": None if connection is None else connection.greeting.clean_start,
        "attributes": dict(client.attributes),
        "dropped": sum((session.dropped or {}).values()),
    }


def _connection_row(connection: Connection, stalled: Stalled) -> ConnectionRow:
    link = connection.link
    greeting = connection.greeting
    session = connection.session
    properties = dict(greeting.properties or {})
    user_properties = properties.pop("User-Property", [])
    return {
        "user_properties": [list(pair) for pair in user_properties],
        "connect_properties": properties,
        "receive_maximum": session.window.size,
        "access": _access(connection),
        "local_address": link.sock_name,
        "tls": _tls(connection),
        "is_slow": session.is_slow or stalled.is_stalled(connection),
        "silent_s": stalled.silent_s(connection),
        "unsent_bytes": link.unsent_bytes(),
        "counters": {
            "bytes_in": connection.bytes_in,
            "bytes_out": connection.box.bytes_out,
            "packets_in": connection.packets_in,
            "messages_in": connection.messages_in,
            "messages_out": connection.box.messages_out,
            "dropped": sum((session.dropped or {}).values()),
        },
    }


def _access(connection: Connection) -> ClientAccess:
    rulings = None if connection.permits is None else connection.permits.rulings
    subject = connection.subject
    return {
        "authenticator": connection.client.authenticator or None,
        "is_superuser": subject is not None and subject.is_superuser,
        "facts": {} if subject is None else dict(sorted(subject.facts.items())),
        "rules": []
        if rulings is None
        else [_rule(rule) for rule in rulings.rules()[:_SHOWN_RULES]],
    }


def _rule(rule: BoundRule | AskedRules) -> str:
    if isinstance(rule, BoundRule):
        return f"{rule.source}: {rule.name}"
    return f"{rule.source_type}: asked about each topic"


def _tls(connection: Connection) -> TlsRow | None:
    link = connection.link
    row: TlsRow = {"server_name": link.server_name, "version": link.tls_version}
    if link.certificate is not None:
        row["subject"], row["common_name"] = link.certificate.subject, link.certificate.common_name
        names = link.certificate.alternative_names
        row["alternative_names"] = {kind: list(values) for kind, values in names.items()}
    return row if any(row.values()) else None


def _result(
    asked: SubscriptionRequest, outcome: SubscriptionRequest | PeerError
) -> SubscriptionResult:
    """A filter with the reason code that a SUBACK would have for it."""
    code = outcome.reason_code if isinstance(outcome, PeerError) else outcome.qos
    shown: SubscriptionResult = {
        "filter": asked.filter,
        "reason_code": code,
        "reason": reason.name_of(code),
    }
    if isinstance(outcome, PeerError):
        return {**shown, "detail": str(outcome)}
    return {**shown, "reason": f"granted_qos_{code}"}


def _in_flight(session: Session) -> list[InFlightRow]:
    """The oldest deliveries that are not acknowledged."""
    shown: list[InFlightRow] = []
    for packet_id, delivery in list(session.window.inflight.items())[:_SHOWN_IN_FLIGHT]:
        message = delivery.outgoing.message if delivery.outgoing is not None else None
        shown.append(
            {
                "packet_id": packet_id,
                "qos": delivery.qos,
                "topic": message.topic if message is not None else None,
                "payload_bytes": len(message.payload) if message is not None else None,
                "waits_for": "PUBCOMP"
                if delivery.is_released
                else "PUBACK"
                if delivery.qos == 1
                else "PUBREC",
            }
        )
    return shown
