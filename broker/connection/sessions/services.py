"""What sessions ask of the parts around them."""

from __future__ import annotations

from broker.connection.backpressure import Backpressure
from broker.connection.context import Context
from broker.connection.dead_letters import DeadLetters
from broker.connection.events import SessionEvents
from broker.connection.sessions.log import SessionLog
from broker.connection.sessions.records import SessionRecords
from broker.session.state import SessionLimits, SessionServices


def session_services(
    context: Context,
    session_log: SessionLog,
    records: SessionRecords,
    backpressure: Backpressure,
    dead_letters: DeadLetters,
) -> SessionServices:
    """The services of sessions in the default zone."""
    return SessionServices(
        clock=context.clock,
        changed=records.changed,
        moved=records.moved,
        refill=session_log.refill,
        defer=context.defer,
        crowded=backpressure.crowded,
        relieved=backpressure.relieved,
        on_event=SessionEvents(context.events).delivery,
        events=context.events,
        sent=context.figures.sent,
        dropped=context.figures.delivery_dropped,
        limits=SessionLimits.of(context.settings),
        resends=context.settings.retry_interval > 0,
        shed=dead_letters.take_shed,
        on_dropped=dead_letters.take if dead_letters.reasons else None,
        subscribed=context.subscribed,
    )
