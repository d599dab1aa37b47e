"""Clients: who is there, one of them in full, and what is done to them: disconnected, subscribed, unsubscribed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from broker.admin import listing
from broker.admin.listing import Cursor, Selection
from broker.admin.session_rows import session_row, subscription_row
from broker.codec.packets import SubscriptionRequest
from broker.connection.connection import Connection
from broker.connection.hub import Hub
from broker.core import reason
from broker.core.errors import Conflict, Invalid, NotFound, PeerError, Problem
from broker.core.objects import Spec
from broker.core.times import rfc3339_or_none
from broker.observe.rates import Sampler
from broker.session.session import Session

_WATCHED: Final = 256
"""Clients whose rates are known: those that were looked at last."""
_SHOWN_IN_FLIGHT: Final = 100
_NAMES: Final = {3: "MQTT 3.1", 4: "MQTT 3.1.1", 5: "MQTT 5.0"}


class ClientService:
    """Lists, shows, disconnects, subscribes and unsubscribes clients. Used on the event loop."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._samplers: OrderedDict[str, Sampler] = OrderedDict()

    async def page(self, wanted: Selection, order: str, limit: int, cursor: Cursor | None) -> Spec:
        """A page of clients, connected or with a session that waits for them."""
        registry = self._hub.sessions
        sessions, following = await listing.page(registry, wanted, order, limit, cursor)
        total = len(registry) if wanted.is_everything else None
        return {"items": [client_row(session) for session in sessions], "next": following, "total": total}

    def show(self, client_id: str) -> Spec:
        """One client with everything that is known of it. Rates are over the last seconds once it is looked at again.

        Raises:
            NotFound: there is no such client.
        """
        session = self._session(client_id)
        connection = connection_of(session)
        shown = {**client_row(session), **session_row(session), "subscriptions": _subscriptions(session)}
        shown["inflight_messages"] = _in_flight(session)
        if connection is not None:
            shown |= _connection_row(connection)
            shown["rates"] = self._rates(client_id, shown["counters"])
        return shown

    def kick(self, client_ids: Sequence[str]) -> Spec:
        """Close the connections of clients (0x98); their sessions stay as their expiry says."""
        kicked, not_connected = 0, []
        for client_id in client_ids:
            session = self._hub.sessions.get(client_id)
            connection = connection_of(session) if session is not None else None
            if connection is None:
                not_connected.append(client_id)
                continue
            connection.disconnect(reason.ADMINISTRATIVE_ACTION, "kicked")
            kicked += 1
        return {"kicked": kicked, "not_connected": not_connected}

    async def subscribe(
        self, client_id: str, requests: Sequence[SubscriptionRequest], *, checks_rules: bool = True
    ) -> Spec:
        """Subscribe a connected client, as if it had asked for that itself; ``results`` has each filter's reason code.

        Raises:
            Invalid: every filter was refused.
            NotFound: there is no such client.
            Conflict: it is not connected.
            broker.core.errors.Unavailable: the store takes nothing.
        """
        connection = self._connected(client_id)
        outcomes = self._hub.subscribing.subscribe_for(connection, requests, checks_rules=checks_rules)
        await self._hub.context.writer.committed()
        results = [_result(asked, outcome) for asked, outcome in zip(requests, outcomes, strict=True)]
        refused = [
            Problem(str(outcome), f"/subscriptions/{at}/filter")
            for at, outcome in enumerate(outcomes)
            if isinstance(outcome, PeerError)
        ]
        if len(refused) == len(results):
            what, members = f"client {client_id!r} was subscribed to nothing", {"results": results}
            raise Invalid(what, refused, code="subscription_refused", members=members)
        return {"client_id": client_id, "results": results, "subscriptions": _subscriptions(connection.session)}

    async def unsubscribe(self, client_id: str, filters: Sequence[str]) -> Spec:
        """End subscriptions of a connected client; raises as ``subscribe``."""
        connection = self._connected(client_id)
        ended = self._hub.subscribing.unsubscribe_for(connection, filters)
        await self._hub.context.writer.committed()
        return {"client_id": client_id, "ended": ended, "subscriptions": _subscriptions(connection.session)}

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

    def _rates(self, client_id: str, counters: Mapping[str, int]) -> dict[str, float]:
        sampler = self._samplers.pop(client_id, None) or Sampler(self._hub.context.clock)
        self._samplers[client_id] = sampler
        if len(self._samplers) > _WATCHED:
            self._samplers.popitem(last=False)
        return {name: round(rate, 1) for name, rate in sampler.rates(counters).items()}


def connection_of(session: Session) -> Connection | None:
    """The connection that has a session."""
    return session.owner if isinstance(session.owner, Connection) else None


def client_row(session: Session) -> Spec:
    """What a list shows of a client."""
    client, connection = session.client, connection_of(session)
    row: Spec = {
        "client_id": session.client_id,
        "username": client.username,
        "connected": connection is not None,
        "address": client.peer_name,
        "listener": client.listener or None,
        "zone": session.zone,
        "durable": session.is_durable,
        "protocol": _NAMES.get(client.protocol_version),
        "keep_alive_s": None,
        "clean_start": None,
        "connected_at": None,
        "disconnected_at": rfc3339_or_none(session.away_since_ns),
        "expiry_s": session.expiry_s,
        "attributes": dict(client.attributes),
        "subscriptions_count": len(session.subscriptions),
        "inflight": len(session.window.inflight),
        "queued": session.waiting_messages,
        "queue_bytes": session.waiting_bytes,
        "dropped": sum((session.dropped or {}).values()),
    }
    if connection is not None:
        row["keep_alive_s"] = connection.greeting.keep_alive_s
        row["clean_start"] = connection.greeting.clean_start
        row["connected_at"] = rfc3339_or_none(connection.connected_ns)
    return row


def _connection_row(connection: Connection) -> Spec:
    """What a connection adds: what it said, what it came through, what it carried."""
    link, greeting, session = connection.link, connection.greeting, connection.session
    properties = dict(greeting.properties or {})
    user_properties = properties.pop("User-Property", [])
    return {
        "user_properties": [list(pair) for pair in user_properties],
        "connect_properties": properties,
        "receive_maximum": session.window.size,
        "local_address": link.sock_name,
        "tls": _tls(connection),
        "is_slow": session.is_slow,
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


def _tls(connection: Connection) -> Spec | None:
    link = connection.link
    found: Spec = {"server_name": link.server_name, "version": link.tls_version}
    if link.certificate is not None:
        found["subject"], found["common_name"] = link.certificate.subject, link.certificate.common_name
        names = link.certificate.alternative_names
        found["alternative_names"] = {kind: list(values) for kind, values in names.items()}
    return found if any(found.values()) else None


def _subscriptions(session: Session) -> list[Spec]:
    return [subscription_row(session, item) for _, item in sorted(session.subscriptions.items())]


def _result(asked: SubscriptionRequest, outcome: SubscriptionRequest | PeerError) -> Spec:
    """A filter with the reason code that a SUBACK would have for it."""
    code = outcome.reason_code if isinstance(outcome, PeerError) else outcome.qos
    shown: Spec = {"filter": asked.filter, "reason_code": code, "reason": reason.name_of(code)}
    if isinstance(outcome, PeerError):
        return {**shown, "detail": str(outcome)}
    return {**shown, "reason": f"granted_qos_{code}"}


def _in_flight(session: Session) -> list[dict[str, Any]]:
    """The oldest deliveries that are not acknowledged."""
    shown = []
    for packet_id, delivery in list(session.window.inflight.items())[:_SHOWN_IN_FLIGHT]:
        message = delivery.outgoing.message if delivery.outgoing is not None else None
        shown.append(
            {
                "packet_id": packet_id,
                "qos": delivery.qos,
                "topic": message.topic if message is not None else None,
                "payload_bytes": len(message.payload) if message is not None else None,
                "waits_for": "PUBCOMP" if delivery.is_released else "PUBACK" if delivery.qos == 1 else "PUBREC",
            }
        )
    return shown
