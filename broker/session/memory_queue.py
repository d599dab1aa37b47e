"""The queue of QoS 1 and 2 messages that wait in memory for the window of their session, within its bounds.

A session in memory has no other place to wait: when the queue is full a setting says which message goes. Before that
publishers are held back, as far as the settings allow.
"""

from __future__ import annotations

from broker.session.delivery import Delivery
from broker.session.state import SessionState


def enqueue(session: SessionState, delivery: Delivery) -> None:
    """Queue for a session in memory; when it is full the settings say which message goes, and it is counted."""
    if not _takes_more(session, delivery):
        return
    session.push(delivery)
    services, queue = session.services, session.queue
    if len(queue) * 2 > services.max_queue or session.queue_bytes * 2 > services.max_queue_bytes:
        session.is_crowded = True
        services.crowded(session)
        while len(queue) > 1 and (len(queue) > services.max_queue or session.queue_bytes >= services.max_queue_bytes):
            oldest = queue.popleft()
            session.queue_bytes -= oldest.size_bytes
            session.drop_delivery(oldest, "queue_full")


def _takes_more(session: SessionState, delivery: Delivery) -> bool:
    """Whether there is room, or will be made; else the new message is dropped."""
    services, queue = session.services, session.queue
    if not queue or services.limits.when_full == "drop_oldest":
        return True
    if len(queue) < services.max_queue and session.queue_bytes + delivery.size_bytes <= services.max_queue_bytes:
        return True
    session.drop_delivery(delivery, "queue_full")
    if services.limits.when_full == "disconnect" and session.owner is not None:
        session.owner.overrun()
    return False


def check_relief(session: SessionState) -> None:
    """Something left the queue, or the connection takes more: publishers need not be held back where there is room."""
    services = session.services
    has_room = len(session.queue) * 4 <= services.max_queue and session.queue_bytes * 4 <= services.max_queue_bytes
    if session.box is None or (has_room and not session.is_slow):
        session.is_crowded = False
        services.relieved(session)
