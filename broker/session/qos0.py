"""QoS 0 messages on their way to one client: at once, or when its connection takes them.

Where they have to wait, the oldest are lost when there are too many; see ``broker.session.late``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.codec.outgoing import Outgoing
from broker.session.delivery import DENIED, MayHave
from broker.session.late import Late

if TYPE_CHECKING:
    from broker.session.session import Session


def send(session: Session, outgoing: Outgoing, retain: bool, identifiers: tuple[int, ...]) -> None:
    """Send one to a client that is connected."""
    box, services = session.box, session.services
    assert box is not None
    now_ns = services.clock.now_ns() if outgoing.expires_ns else 0
    if outgoing.expires_ns and outgoing.is_expired(now_ns):
        session.drop(outgoing, "expired")
        return
    head, tail = outgoing.parts_for(session.is_v5, 0, retain, identifiers, now_ns)
    if len(head) + len(tail) > session.max_packet_bytes:
        session.drop(outgoing, "packet_too_large")
        return
    box.add(head + tail)
    box.messages_out += 1
    services.sent[0].value += 1
    if "message.delivered" in services.events.wanted:
        services.on_event("message.delivered", session, outgoing.message, "")


def keep(session: Session, item: Late) -> None:
    """Keep some until the connection takes them; the oldest go when there are too many. Publishers are held back
    either way."""
    services = session.services
    services.crowded(session)
    for gone in session.late.add(item, services.limits.late_messages, services.max_late_bytes):
        _drop(session, gone, "queue_full")


def send_kept(session: Session) -> None:
    """Send those that had to wait."""
    box = session.box
    assert box is not None
    for item in session.late.take_all():
        if item.outgoing is not None:
            send(session, item.outgoing, item.retain, item.identifiers)
        else:
            box.add(item.data)
            session.services.sent[0].value += item.packets


def withhold(session: Session, may_have: MayHave) -> None:
    """Lose those of them that the client may not have."""
    services = session.services
    for item in session.late.take_all():
        for topic, one in item.single():
            if not may_have(topic, 0):
                _drop(session, one, DENIED)
            else:
                session.late.add(one, services.limits.late_messages, services.max_late_bytes)


def drop_kept(session: Session, why: str) -> None:
    """Lose those that had to wait."""
    for item in session.late.take_all():
        _drop(session, item, why)


def _drop(session: Session, item: Late, why: str) -> None:
    if item.outgoing is not None:
        session.drop(item.outgoing, why)
    else:
        session.count_dropped(why, item.packets)
