"""QoS 0 messages on their way to one client: at once, or when its connection takes them and their turn has come.

They do not overtake older messages of QoS 1 and 2, which may wait for the client's acknowledgements. Where they have to
wait, the oldest are lost when there are too many; see ``broker.session.qos0_queue``.
"""

from __future__ import annotations

from math import inf

from broker.codec.outgoing import Outgoing
from broker.session import sending
from broker.session.delivery import DENIED, MayHave
from broker.session.outbox import Outbox
from broker.session.qos0_queue import Qos0Item
from broker.session.state import SessionState


def send(
    session: SessionState, outgoing: Outgoing, retain: bool, identifiers: tuple[int, ...]
) -> None:
    """Send one to a client that is connected."""
    box = session.box
    services = session.services
    assert box is not None
    now_ns = services.clock.now_ns() if outgoing.expires_ns else 0
    if outgoing.expires_ns and outgoing.is_expired(now_ns):
        session.drop(outgoing, "expired")
        return
    head, tail = outgoing.parts_for(session.is_v5, 0, retain, identifiers, now_ns)
    if len(head) + len(tail) > session.max_packet_bytes:
        session.drop(outgoing, "packet_too_large")
        return
    _write(session, box, head + tail)
    box.messages_out += 1
    services.sent[0].value += 1
    if "message.delivered" in services.events.wanted:
        services.on_event("message.delivered", session, outgoing.message, "", None)


def keep(session: SessionState, item: Qos0Item) -> None:
    """Keep some until the connection takes them, behind the messages that wait now; the oldest go when there are too
    many. Publishers are held back where the connection is slow, or before many wait for older messages."""
    queue = session.qos0_queue
    log = session.log
    max_messages = session.services.limits.max_unsent_messages
    max_bytes = session.services.limits.max_unsent_bytes
    turn = session.pushed + (log.messages if log is not None else 0)
    for gone in queue.add(turn, item, max_messages, max_bytes):
        _drop(session, gone, "queue_full")
    is_filling = queue.messages * 2 > max_messages or queue.size_bytes * 2 > max_bytes
    if is_filling or not session.is_blocked or session.is_slow:
        session.services.crowded(session)


def send_kept(session: SessionState) -> None:
    """Send those that had to wait, as far as it is their turn: what is older has left the queue."""
    if session.is_slow:
        return
    box = session.box
    queue = session.queue
    assert box is not None
    for item in session.qos0_queue.take(
        session.pushed - len(queue) if queue or session.is_behind else inf
    ):
        if item.outgoing is not None:
            send(session, item.outgoing, item.retain, item.identifiers)
        else:
            _write(session, box, item.data)
            session.services.sent[0].value += item.packets


def withhold(session: SessionState, may_have: MayHave) -> None:
    """Lose those of them that the client may not have."""
    for item in session.qos0_queue.remove(lambda topic: not may_have(topic, 0)):
        _drop(session, item, DENIED)


def _write(session: SessionState, box: Outbox, data: bytes) -> None:
    if session.prediction is not None and session.prediction.is_holding:
        sending.write_recorded(session, data)
    else:
        box.add(data)


def drop_kept(session: SessionState, why: str) -> None:
    """Lose those that had to wait."""
    for item in session.qos0_queue.take():
        _drop(session, item, why)


def _drop(session: SessionState, item: Qos0Item, why: str) -> None:
    if item.outgoing is not None:
        session.drop(item.outgoing, why)
    else:
        session.count_dropped(why, item.packets)
