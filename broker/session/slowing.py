"""A session whose queue is nearly full: whether there is room in it, and what goes when publishers do not wait.

Messages in the queue may be acknowledged to publishers up to three quarters of its bound. The rest is for messages that
the broker itself makes: no one can be made to wait for those. Messages that are not acknowledged come in addition. The
queue of a durable session is the part of the log that waits.
"""

from __future__ import annotations

from typing import Final

from broker.core.receipt import Receipt
from broker.session.state import SessionState

MOST: Final = 0.75
HALF: Final = 0.5


def room(
    session: SessionState, withheld: int, withheld_bytes: int, share: float = MOST
) -> tuple[float, float]:
    """Number of messages and bytes by which the waiting messages, without withheld ones, are below this share of the
    bound.
    """
    log = session.log
    limits = session.services.limits
    if log is None:
        messages = len(session.queue)
        size_bytes = session.queue_bytes
        max_messages = limits.max_queued_messages
        max_bytes = limits.max_queued_bytes
    else:
        messages = log.messages
        size_bytes = log.size_bytes
        max_messages = limits.max_stored_messages
        max_bytes = limits.max_stored_bytes
    return (
        max_messages * share - messages + withheld,
        max_bytes * share - size_bytes + withheld_bytes,
    )


def has_room(session: SessionState, share: float) -> bool:
    """True if the waiting messages that are acknowledged to publishers are below this share of the bound."""
    withheld = session.withheld
    return (
        min(
            room(session, 0, 0, share)
            if not withheld
            else room(session, len(withheld), withheld.size_bytes, share)
        )
        > 0
    )


def takes(session: SessionState, size_bytes: int, receipt: Receipt | None) -> bool:
    """True if a message may be queued in memory: it is within the bound, or its publisher waits."""
    services = session.services
    if not session.withheld and has_room(session, MOST):
        return True
    if services.queue_in_full(session, size_bytes, receipt):
        return True
    services.crowded(session)
    return has_room(session, 1)


def fills(session: SessionState) -> None:
    """More waits in the log for a durable session: from where there is no room on, its publishers wait."""
    if session.withheld is None and not has_room(session, MOST):
        session.is_crowded = True
        session.services.queue_in_full(session, 0, None)


def trim(session: SessionState, at_most: int) -> bool:
    """Drop what is above the bound of the queue in memory, by its policy, but no more than that; whether more is."""
    limits = session.services.limits
    queue = session.queue
    if session.box is None and not session.outlives:  # all of it goes
        return False
    max_messages = limits.max_queued_messages
    max_bytes = limits.max_queued_bytes
    while len(queue) > 1 and (len(queue) > max_messages or session.queue_bytes >= max_bytes):
        if not at_most:
            return True
        at_most -= 1
        if limits.queue_full == "drop_oldest":
            gone = queue.popleft()
        else:
            gone = queue.pop()
            session.pushed -= 1
        session.queue_bytes -= gone.size_bytes
        session.drop_delivery(gone, "queue_full")
    return False
