"""Sessions and subscriptions as answers show them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from broker.core.subscription import Subscription
from broker.core.times import rfc3339_or_none
from broker.session.delivery import Delivery
from broker.session.session import Session
from broker.session.state import NEVER_S

# The member ``clientid`` of an answer by its name in 0.2, for one release.
OldClientId = Annotated[str, Field(deprecated="Use `clientid`.")]


class WillRow(TypedDict):
    """The will of a session. `due_at` is when it is published, where the client left without saying goodbye."""

    topic: str
    qos: int
    retain: bool
    delay_s: int
    payload_bytes: int
    due_at: str | None


class SessionBase(TypedDict):
    """Fields in the lists of clients and of sessions. A `durable` session is on disk and survives a restart. `queued`
    and
    `queue_bytes` count messages in memory and in the session log; `expiry_s` is null for a session that never expires.
    """

    clientid: str
    client_id: OldClientId
    username: str | None
    connected: bool
    durable: bool
    zone: str
    connected_at: str | None
    disconnected_at: str | None
    expiry_s: int | None
    subscriptions_count: int
    inflight: int
    queued: int
    queue_bytes: int
    cell: NotRequired[int]


class SessionRow(SessionBase):
    """A session. A durable one has read the session log up to its `position`."""

    expires_at: str | None
    protocol_version: int
    total_payload_bytes: int
    open_qos2: int
    position: str | None
    is_behind: bool
    will: WillRow | None
    dropped_by_reason: dict[str, int]


class SubscriptionRow(TypedDict):
    """A subscription. `filter` is as it was subscribed, with `$share/GROUP/` in front where it is shared."""

    clientid: str
    client_id: OldClientId
    filter: str
    share_group: str | None
    qos: int
    no_local: bool
    retain_as_published: bool
    retain_handling: int
    identifier: int | None
    durable: bool
    connected: bool
    cell: NotRequired[int]


def session_base(session: Session) -> SessionBase:
    """The fields in the lists of clients and of sessions."""
    return {
        "clientid": session.client_id,
        "client_id": session.client_id,
        "username": session.client.username,
        "connected": not session.is_away,
        "durable": session.is_durable,
        "zone": session.zone,
        "connected_at": None if session.is_away else rfc3339_or_none(session.connected_ns),
        "disconnected_at": rfc3339_or_none(session.away_since_ns),
        "expiry_s": None if session.expiry_s >= NEVER_S else session.expiry_s,
        "subscriptions_count": len(session.subscriptions),
        "inflight": len(session.window.inflight),
        "queued": session.waiting_messages,
        "queue_bytes": session.waiting_bytes,
    }


def session_row(session: Session) -> SessionRow:
    """The row of a session in a list."""
    will = session.will
    return {
        **session_base(session),
        "expires_at": rfc3339_or_none(session.ends_at_ns),
        "protocol_version": session.client.protocol_version,
        "total_payload_bytes": 0 if session.is_durable else _payload_bytes(session),
        "open_qos2": len(session.inbound.open_qos2) if session.inbound is not None else 0,
        "position": str(session.next_offset) if session.is_durable else None,
        "is_behind": session.is_behind,
        "will": None
        if will is None
        else {
            "topic": will.topic,
            "qos": will.qos,
            "retain": will.retain,
            "delay_s": will.delay_s,
            "payload_bytes": len(will.payload),
            "due_at": rfc3339_or_none(session.will_at_ns),
        },
        "dropped_by_reason": dict(session.dropped or {}),
    }


def subscription_row(session: Session, subscription: Subscription) -> SubscriptionRow:
    """The row of a subscription in a list."""
    return {
        "clientid": session.client_id,
        "client_id": session.client_id,
        "filter": subscription.filter.text,
        "share_group": subscription.filter.share_group,
        "qos": subscription.qos,
        "no_local": subscription.no_local,
        "retain_as_published": subscription.retain_as_published,
        "retain_handling": subscription.retain_handling,
        "identifier": subscription.identifier or None,
        "durable": session.is_durable,
        "connected": not session.is_away,
    }


def subscription_rows(session: Session) -> list[SubscriptionRow]:
    """The subscriptions of a session, by their filters."""
    return [subscription_row(session, item) for _, item in sorted(session.subscriptions.items())]


def _payload_bytes(session: Session) -> int:
    """Bytes of all payloads that wait in memory or are in flight."""
    return _sum(session.queue) + _sum(session.window.inflight.values())


def _sum(deliveries: Iterable[Delivery]) -> int:
    return sum(
        len(delivery.outgoing.message.payload)
        for delivery in deliveries
        if delivery.outgoing is not None
    )
