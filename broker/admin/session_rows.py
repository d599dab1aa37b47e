"""Sessions and subscriptions as answers show them."""

from __future__ import annotations

from collections.abc import Iterable

from broker.core.objects import Spec
from broker.core.subscription import Subscription
from broker.core.times import rfc3339_or_none
from broker.session.delivery import Delivery
from broker.session.session import Session
from broker.session.state import NEVER_S


def session_row(session: Session) -> Spec:
    """What a list shows of a session. ``durable`` tells that it is on disk, and goes on after a restart.

    ``queued`` and ``queue_bytes`` are of what waits in memory and in the shared log; a durable session has taken
    everything of the log before its ``position``.
    """
    will = session.will
    return {
        "client_id": session.client_id,
        "username": session.client.username,
        "connected": not session.is_away,
        "durable": session.is_durable,
        "zone": session.zone,
        "connected_at": None if session.is_away else rfc3339_or_none(session.connected_ns),
        "disconnected_at": rfc3339_or_none(session.away_since_ns),
        "expiry_s": None if session.expiry_s >= NEVER_S else session.expiry_s,
        "expires_at": rfc3339_or_none(session.ends_at_ns),
        "protocol_version": session.client.protocol_version,
        "subscriptions_count": len(session.subscriptions),
        "inflight": len(session.window.inflight),
        "queued": session.waiting_messages,
        "queue_bytes": session.waiting_bytes,
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


def subscription_row(session: Session, subscription: Subscription) -> Spec:
    """What a list shows of a subscription."""
    return {
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


def _payload_bytes(session: Session) -> int:
    """Of all payloads that wait in memory or are in flight."""
    return _sum(session.queue) + _sum(session.window.inflight.values())


def _sum(deliveries: Iterable[Delivery]) -> int:
    return sum(len(one.outgoing.message.payload) for one in deliveries if one.outgoing is not None)
