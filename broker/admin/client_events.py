"""Clients in sentences: their time lines, and the trouble that one has now."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from typing_extensions import TypedDict

from broker.connection.connection import Connection
from broker.connection.timelines import ClientEvent, EventKind
from broker.core.kinds import counted
from broker.core.times import rfc3339
from broker.session.session import Session

# Ends of connections, by the word that metrics and events have for them.
_ENDS: Final = {
    "normal": "The client disconnected",
    "tcp_closed": "The connection closed without a DISCONNECT: the client or the network went away",
    "keepalive_timeout": "Nothing came from the client for 1.5 times its keep alive",
    "takenover": "Another connection with the same client identifier took over",
    "kicked": "An administrator disconnected the client",
    "banned": "The client was banned",
    "user_changed": "Its user was changed or deleted",
    "token_expired": "Its token expired",
    "not_authorized": "It may not do what it asked for",
    "message_rate_too_high": "It published faster than it may",
    "queue_full": "Its queue was full, and the settings say to disconnect then",
    "answer_too_large": "An answer is larger than its Maximum Packet Size",
    "internal_error": "A fault of the broker or of its store",
    "server_shutdown": "The broker stopped",
    "protocol_error": "It broke the protocol",
    "malformed_packet": "It sent a packet that cannot be read",
    "packet_too_large": "It sent a packet larger than it may",
    "receive_maximum_exceeded": "It sent more messages than the broker accepts without an acknowledgement",
    "topic_alias_invalid": "It used a topic alias that it may not use",
    "quota_exceeded": "A limit was reached",
    "bad_user_name_or_password": "Wrong user name or password",
    "client_identifier_not_valid": "Its client identifier is not valid",
    "connection_rate_exceeded": "Too many logins failed, or too many clients connect at a time",
    "unsupported_protocol_version": "Its version of MQTT is not supported",
    "server_busy": "The broker is overloaded",
}
# Reasons for messages that a client did not receive.
_DROPS: Final = {
    "queue_full": "its queue was full",
    "qos0_msg": "QoS 0 messages while it was away or read too slowly",
    "expired": "they expired before they were sent",
    "packet_too_large": "they are larger than its Maximum Packet Size",
    "refused_by_client": "the client refused them",
    "not_authorized": "its access rules do not allow them",
    "unsubscribed": "it unsubscribed before they were sent",
    "session_ended": "its session ended before they were sent",
    "not_stored": "they could not be stored",
    "no_local": "it published them itself",
}
_SLOW: Final = {
    "reads_slowly": "The client reads more slowly than it is sent to; what it is not sent waits",
    "not_acknowledging": "The client has acknowledged or read nothing for mqtt.subscriber_ack_timeout",
}


class ClientEventRow(TypedDict):
    """Something that happened to a client, in words. `count` is how often in a row, from `at` to `last_at`; of dropped
    messages their number."""

    at: str
    event: EventKind
    text: str
    reason: str | None
    count: int
    last_at: str


def event_rows(events: Iterable[ClientEvent]) -> list[ClientEventRow]:
    """A time line, newest first."""
    rows: list[ClientEventRow] = [
        {
            "at": rfc3339(event.first_ns),
            "event": event.kind,
            "text": _text(event),
            "reason": event.reason or None,
            "count": event.count,
            "last_at": rfc3339(event.last_ns),
        }
        for event in events
    ]
    return rows[::-1]


def drop_in_words(why: str) -> str:
    """A reason for dropped messages as half a sentence."""
    return _DROPS.get(why, why.replace("_", " "))


def _text(event: ClientEvent) -> str:
    match event.kind:
        case "connected":
            return f"Connected {event.detail}"
        case "refused":
            return _with(f"Refused: {_end(event.reason)}", event.detail)
        case "subscribed":
            by = " by the broker or an administrator" if event.reason else ""
            return f"Subscribed{by}: {event.detail}"
        case "unsubscribed":
            return f"Unsubscribed: {event.detail}"
        case "throttled":
            return "Published faster than it may; nothing was read from it until it was within its rate"
        case "slow":
            return _SLOW[event.reason]
        case "dropped":
            return f"{counted(event.count, 'message')} not delivered: {drop_in_words(event.reason)}"
        case _:
            return _with(_end(event.reason), event.detail)


def _end(why: str) -> str:
    return _ENDS.get(why, why.replace("_", " ").capitalize())


def _with(sentence: str, detail: str) -> str:
    return f"{sentence} ({detail})" if detail else sentence


def trouble_of(session: Session, connection: Connection | None, row: dict[str, Any]) -> str | None:
    """One or more sentences about why a client is slow, or loses messages; None where it does neither. ``row`` is its
    connection as it is shown."""
    limits = session.services.limits
    queued = len(session.queue)
    is_full = queued >= limits.max_queued_messages or session.queue_bytes >= limits.max_queued_bytes
    in_flight = len(session.window.inflight)
    sentences: list[str] = []
    waiting = counted(session.waiting_messages, "message")
    rates = row.get("rates", {})
    pace = (
        f"it is sent {rates['messages_out']:,.0f} messages a second"
        if rates.get("messages_out")
        else ""
    )
    silent_s = row.get("silent_s") or 0.0
    if (
        connection is not None
        and row["is_slow"]
        and in_flight
        and silent_s >= session.ack_timeout_s
    ):
        of = f"{counted(in_flight, 'message')} of at most {session.window.size:,} in flight"
        sentences.append(
            f"It is slow: it has acknowledged none of {of} for {silent_s:,.0f} s, and {waiting} wait."
        )
    elif connection is not None and row["is_slow"]:
        sentences.append(
            f"It is slow: it reads less than it is sent, {row['unsent_bytes']:,} bytes are unsent and {waiting} wait."
        )
    elif connection is not None and session.window.quota <= 0 and session.waiting_messages:
        sentences.append(
            f"It acknowledges more slowly than messages arrive: all {session.window.size:,} that may be in flight are, "
            f"and {waiting} wait" + (f"; {pace}." if pace else ".")
        )
    elif connection is None and session.waiting_messages:
        sentences.append(f"It is away, and {waiting} wait for it.")
    if is_full:
        sentences.append(f"Its queue of {limits.max_queued_messages:,} messages is full.")
    if session.dropped:
        parts = [
            f"{counted(count, 'message')}, since {drop_in_words(reason)}"
            for reason, count in session.dropped.items()
        ]
        sentences.append(f"Not delivered: {'; '.join(parts)}.")
    return " ".join(sentences) or None
