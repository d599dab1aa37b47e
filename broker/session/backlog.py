"""A durable session and the session log: what of its messages waits there, and from where it still needs the log.

Of a session in memory there is nothing in the log; all but ``enter`` leave it as it is.
"""

from __future__ import annotations

from sys import maxsize

from broker.core.memory import NOTHING
from broker.session import slowing
from broker.session.delivery import Delivery
from broker.session.log_queue import LogQueue, LostRecords, Shed
from broker.session.prediction import IdPrediction
from broker.session.state import SessionState


def wait(
    session: SessionState, share: LogQueue, offset: int, size_bytes: int, messages: int = 1
) -> None:
    """A message waits in the log, or several; when there are too many its publishers wait, or the oldest are passed
    over."""
    share.add(offset, size_bytes, messages)
    limits = session.services.limits
    if (
        share.messages * 2 <= limits.max_stored_messages
        and share.size_bytes * 2 <= limits.max_stored_bytes
    ):
        return
    if session.slows_publishers:
        slowing.fills(session)
        shed(session, share, maxsize, limits.max_stored_bytes + limits.max_withheld_bytes)
    else:
        shed(session, share, limits.max_stored_messages, limits.max_stored_bytes)


def shed(session: SessionState, share: LogQueue, max_messages: int, max_bytes: int) -> None:
    """Pass over the oldest until no more waits than that."""
    if share.messages > max_messages or share.size_bytes > max_bytes:
        _pass_over(session, share.shed(max_messages, max_bytes))


def count(session: SessionState, offset: int, messages: int, size_bytes: int) -> None:
    """Count ``messages`` from ``offset`` on that wait in the log, when the waiting messages are counted again."""
    share = session.log
    if share is not None and share.is_behind:
        wait(session, share, offset, size_bytes, messages)


def shed_below(session: SessionState, offset: int) -> None:
    """Pass over what waits in the log below ``offset``: all sessions together have too much waiting there."""
    share = session.log
    if share is not None and share.is_behind:
        _pass_over(session, share.shed_below(offset))


def _pass_over(session: SessionState, shed: Shed) -> None:
    if not shed.messages:
        return
    services = session.services
    session.count_dropped("queue_full", shed.messages)
    if services.shed is not None:
        services.shed(session, "queue_full", shed.begin, shed.skipped, shed.messages)
    if shed.moved_on:
        services.changed(session)


def put_back(session: SessionState, share: LogQueue, log_next: int) -> None:
    """The connection is gone: what waited in memory is in the log, whose next offset is ``log_next``."""
    queue = session.queue
    if queue and share.to_skip:  # later ones were passed over since too many wait: these are older
        for delivery in queue:
            session.drop_delivery(delivery, "queue_full")
    elif queue:
        share.put_back(queue[0].offset, len(queue), session.queue_bytes)
    elif not share.is_behind:
        share.next_offset = max(share.next_offset, log_next)
    share.is_behind = True
    session.pushed -= len(queue)  # they come again
    session.queue = NOTHING
    session.queue_bytes = 0


def drop(session: SessionState, why: str) -> None:
    """Count all that waits there as dropped: the session is over."""
    share = session.log
    services = session.services
    if share is None:
        return
    if share.messages:
        session.count_dropped(why, share.messages)
        if services.shed is not None:
            services.shed(session, why, share.next_offset, share.to_skip, share.messages)
    share.clear()


def low_offset(session: SessionState, log_next: int) -> int:
    """The lowest offset of the log that the session still needs; ``log_next`` is the log's next one."""
    share = session.log
    low = log_next
    if share is not None and share.is_behind:
        low = share.next_offset
    if session.queue:
        low = min(low, session.queue[0].offset)
    flying = session.window.inflight.values()
    return min((delivery.offset for delivery in flying if delivery.offset >= 0), default=low)


def position(session: SessionState, log_next: int) -> int:
    """Offset from which reading continues after a restart: all before it is in flight or done."""
    if session.queue:
        return session.queue[0].offset
    share = session.log
    if share is None:
        return log_next
    return share.next_offset if share.is_behind else max(share.next_offset, log_next)


def take_back_offsets(session: SessionState, lost: LostRecords) -> bool:
    """Begin with the records that get the offsets of lost ones, where the session was to begin behind these; False
    where it was not."""
    share = session.log
    if share is None:
        return False
    before = share.next_offset
    share.next_offset = lost.moved(before)
    return session.subscriptions.take_back_offsets(lost) or share.next_offset != before


def enter(session: SessionState, next_offset: int) -> tuple[list[Delivery], list[Delivery]]:
    """Make a session in memory durable, while it is away. Return the messages in flight and the waiting ones:
    both must be appended to the log in this order, addressed to it, from ``next_offset`` on. What waits comes back
    from there.
    """
    flying = [
        delivery
        for delivery in session.window.inflight.values()
        if delivery.outgoing is not None and delivery.holder is None and not delivery.is_released
    ]
    for offset, delivery in enumerate(flying, next_offset):
        delivery.offset = offset
    waiting = list(session.queue)
    session.queue = NOTHING
    session.queue_bytes = 0
    session.pushed -= len(waiting)
    session.is_durable = True
    session.log, session.prediction = (
        LogQueue(next_offset + len(flying)),
        IdPrediction(session.window, is_true=False),
    )
    return flying, waiting


def leave(session: SessionState, waiting: list[Delivery]) -> None:
    """Undo ``enter``: the messages could not be stored, and are still in memory."""
    session.is_durable = False
    session.log = None
    session.prediction = None
    for delivery in session.window.inflight.values():
        delivery.offset = -1
    session.queue = NOTHING
    session.queue_bytes = 0
    for delivery in waiting:
        session.push(delivery, delivery.size_bytes)
