"""SUBSCRIBE with the user property ``stream-offset``: a subscription that begins in the past."""

from __future__ import annotations

from typing import Any, Final

from broker.connection.sharing.shares import Shares, Start
from broker.core import reason
from broker.core.errors import Invalid, PeerError
from broker.core.topic import TopicFilter
from broker.session.session import Session

OFFSET: Final = "stream-offset"
"""The user property: ``earliest``, ``latest``, a time, or ``offset:N``."""
STREAM: Final = "stream"
"""The user property that names a stream, where several capture the topics."""


class NoStart(PeerError):
    """The subscription cannot begin where it asks to; code 0x83, and the text is for the client."""

    def __init__(self, text: str) -> None:
        super().__init__(reason.IMPLEMENTATION_SPECIFIC_ERROR, text)


def asked_start(properties: dict[str, Any]) -> tuple[str, str | None] | None:
    """Where a SUBSCRIBE asks to begin and in which stream, None when it asks for nothing such."""
    pairs = properties.get("User-Property")
    if not pairs:
        return None
    asked = dict(pairs)
    return (asked[OFFSET], asked.get(STREAM)) if OFFSET in asked else None


def begin(shares: Shares, session: Session, topic_filter: TopicFilter, asked: tuple[str, str | None]) -> None:
    """Have the subscription begin where it asks to. One that is there, or whose group is, goes on where it stands.

    Raises:
        NoStart: no stream has the topics, or the place is none.
    """
    if shares.is_there(session, topic_filter):
        return
    if shares.starts is None:
        raise NoStart("this broker has no streams to begin in")
    try:
        stream, offsets = shares.starts.find(topic_filter, *asked)
    except Invalid as error:
        raise NoStart(str(error)) from error
    shares.start_at(session, topic_filter.text, Start(stream, offsets))
