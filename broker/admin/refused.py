"""Messages that stages stopped, the newest ones: the reason, and the message itself, to run it again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from typing_extensions import TypedDict

from broker.admin.tails import MessageTails, PublishedView, check_filter
from broker.core.errors import NotFound
from broker.core.message import Message, Properties
from broker.core.objects import Spec
from broker.core.stage import Refusal
from broker.core.times import rfc3339

# Maximum refused messages that are kept; older ones are only counted, by reason.
MAX_MESSAGES: Final = 50
# Maximum bytes kept of a payload; the rest is cut off.
MAX_PAYLOAD_BYTES: Final = 64 * 1024
# Maximum bytes of the properties of a message; larger ones are not kept.
MAX_PROPERTIES_BYTES: Final = 16 * 1024


class RefusedRow(TypedDict):
    """A message that a stage stopped: when, the stage, the object, and the reason as a code and as a sentence.
    `truncated` is true if the payload or the properties are too large to keep whole."""

    id: str
    at: str
    topic: str
    clientid: str
    username: str | None
    address: str | None
    qos: int
    retain: bool
    payload_bytes: int
    truncated: bool
    stage: str
    name: str
    reason: str
    text: str


class RefusedView(RefusedRow):
    """A refused message as it was published, before any stage changed it, with the attributes of its client."""

    client_attrs: dict[str, str]
    message: PublishedView


class _Refused(NamedTuple):
    id: str
    message: Message
    payload_bytes: int
    is_cut: bool
    refusal: Refusal

    def row(self) -> RefusedRow:
        message, refusal = self.message, self.refusal
        return {
            "id": self.id,
            "at": rfc3339(message.received_ns),
            "topic": message.topic,
            "clientid": message.client.client_id,
            "username": message.client.username,
            "address": message.client.peer_name,
            "qos": message.qos,
            "retain": message.retain,
            "payload_bytes": self.payload_bytes,
            "truncated": self.is_cut,
            "stage": refusal.stage,
            "name": refusal.name,
            "reason": refusal.reason,
            "text": refusal.text,
        }


class RefusedMessages:
    """Keeps the newest refused messages in memory, within bounds, and shows them. Used on the event loop."""

    def __init__(self, tails: MessageTails) -> None:
        self._tails = tails
        self._messages: deque[_Refused] = deque(maxlen=MAX_MESSAGES)

    def note(self, message: Message, refusal: Refusal, published: Message) -> None:
        """Keep a message as it was ``published``; ``message`` is what the stage that stopped it was given."""
        size = len(published.payload)
        has_too_many = _size(published.properties) > MAX_PROPERTIES_BYTES
        is_cut = has_too_many or size > MAX_PAYLOAD_BYTES
        # a message of its own, without the decoded payload and the receipt
        kept = Message(
            published.topic,
            published.payload[:MAX_PAYLOAD_BYTES],
            published.qos,
            published.retain,
            published.client,
            published.received_ns,
            None if has_too_many else published.properties,
            published.dup,
            published.via,
        )
        self._messages.append(_Refused(message.id, kept, size, is_cut, refusal))

    def newest_first(self) -> Iterator[RefusedRow]:
        """All of them, without payloads."""
        return (refused.row() for refused in reversed(self._messages))

    def page(self, filter: str, limit: int, cursor: tuple[str] | None) -> Spec:
        """A page of those on topics of a filter, newest first, without payloads; a cursor is an identifier.

        Raises:
            broker.core.errors.Invalid: it is not a valid topic filter.
        """
        wanted = check_filter(filter)
        rows = [row for row in self.newest_first() if wanted.matches(row["topic"])]
        ids = [row["id"] for row in rows]
        # an identifier that is no longer there was the oldest one: nothing follows it
        start = 0 if cursor is None else ids.index(cursor[0]) if cursor[0] in ids else len(rows)
        following = ids[start + limit : start + limit + 1]
        return {
            "items": rows[start : start + limit],
            "next": (following[0],) if following else None,
            "total": len(rows),
        }

    def topic_of(self, id: str) -> str:
        """The topic that a message was published on. Raises ``NotFound``."""
        return self._of(id).message.topic

    def get(self, id: str) -> RefusedView:
        """A refused message with its payload.

        Raises:
            NotFound: there is none, or newer ones took its place.
        """
        refused = self._of(id)
        view = self._tails.published(
            refused.message, refused.payload_bytes, decodes=not refused.is_cut
        )
        if refused.is_cut:
            view["payload"]["truncated"] = True
        return {
            **refused.row(),
            "client_attrs": dict(refused.message.client.attributes),
            "message": view,
        }

    def _of(self, id: str) -> _Refused:
        for refused in self._messages:
            if refused.id == id:
                return refused
        raise NotFound("refused message", id)


def _size(properties: Properties | None) -> int:
    """The bytes of properties, about."""
    if not properties:
        return 0
    pairs: Any = properties.get("User-Property", ())
    texts = [text for pair in pairs for text in pair]
    texts += [value for value in properties.values() if isinstance(value, (str, bytes))]
    return sum(map(len, texts))
