"""Dead letters: what a client was to get and did not, published again on a topic that says why.

Off unless ``dead_letter.causes`` names some causes. A dead letter is an ordinary message on the way through all stages:
clients, rules and streams take it like any other. One that gets lost itself is counted and leads to no other. While
there are some, no message goes the short way past its object: that is their price.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

from pydantic import Field, field_validator

from broker.config.model import Settings
from broker.connection.context import Context
from broker.connection.sessions.log import SessionLog
from broker.core.errors import PeerError
from broker.core.message import DEAD_LETTER, Message, Properties
from broker.core.stage import Outcome
from broker.core.template import Template
from broker.core.topic import TopicFilter, check_topic_name
from broker.observe.metrics import Counter, Metrics
from broker.pipeline.pipeline import DROPPED_HELP
from broker.session.state import SessionState

Cause = Literal[
    "queue_full",
    "expired",
    "rejected",
    "packet_too_large",
    "away",
    "session_ended",
    "no_subscribers",
]

# The cause for each reason that a delivery to one client, or to a share group, is dropped for.
CAUSES: Final[dict[str, Cause]] = {
    "queue_full": "queue_full",
    "expired": "expired",
    "refused_by_client": "rejected",
    "packet_too_large": "packet_too_large",
    "qos0_msg": "away",
    "session_ended": "session_ended",
    "group_full": "queue_full",
    "group_expired": "expired",
}
_OF_GROUPS: Final = frozenset(("group_full", "group_expired"))
_NO_SUBSCRIBERS: Final = "no_subscribers"
_PLACEHOLDERS: Final = frozenset(("reason", "topic", "clientid", "qos"))
_EXPIRY: Final = "Message-Expiry-Interval"
_USER_PROPERTY: Final = "User-Property"


class DeadLetterSettings(Settings):
    """Section ``dead_letter``."""

    causes: list[Cause] = Field(default_factory=list)
    """Reasons for a loss that lead to a dead letter: `queue_full` (of a slow or absent client), `expired`,
    `rejected` (acknowledged with a code of 0x80 and above), `packet_too_large` (for its client), `away` (QoS 0 for an
    absent client), `session_ended` (before it was sent), `no_subscribers`."""
    topic: str = "$dead/${reason}/${topic}"
    """Topic of dead letters, with the placeholders `${reason}`, `${topic}`, `${clientid}` (of the client that did not
    get it) and `${qos}`."""
    qos: Literal[0, 1] = 1
    """QoS of dead letters: 1 is shown as strategy `at_least_once`, 0 as `at_most_once`."""

    @field_validator("topic")
    @classmethod
    def _check_topic(cls, value: str) -> str:
        template = _compiled(value)
        unknown = sorted({".".join(path) for path in template.paths} - _PLACEHOLDERS)
        if unknown or template.names_row:
            raise ValueError(
                f"{value!r} names {', '.join(unknown) or '.'}; there are {', '.join(sorted(_PLACEHOLDERS))}"
            )
        try:
            check_topic_name(
                template.render({"reason": "r", "topic": "t", "clientid": "c", "qos": 0})
            )
        except PeerError as error:
            raise ValueError(f"{value!r} makes no topic name: {error}") from None
        return value


class DeadLetters:
    """Publishes them. ``is_on`` is whether any cause is switched on, ``covers_unwanted`` whether messages without
    subscribers are among them."""

    def __init__(
        self,
        context: Context,
        settings: DeadLetterSettings,
        session_log: SessionLog,
        publish: Callable[[Message], Outcome],
    ) -> None:
        self._settings = settings
        self._publish_letter = publish
        self._session_log = session_log
        self._clock = context.clock
        metrics = context.metrics
        self._template = _compiled(settings.topic)
        self.reasons = frozenset(drop for drop, cause in CAUSES.items() if cause in settings.causes)
        """Reasons of drops that lead to dead letters."""
        self.covers_unwanted = _NO_SUBSCRIBERS in settings.causes
        self.is_on = bool(settings.causes)
        self._published = metrics.counter(
            "dead_letters_published", "dead letters that passed all stages"
        )
        self._lost = metrics.counter("dead_letters_lost", "dead letters that a stage refused")
        for drop, cause in CAUSES.items():
            kind = "group" if drop in _OF_GROUPS else "session"
            self._show(metrics, cause, context.figures.delivery_dropped(drop), kind)
        unwanted = metrics.counter("messages_dropped", DROPPED_HELP, reason=_NO_SUBSCRIBERS)
        self._show(metrics, _NO_SUBSCRIBERS, unwanted, "session")

    def take(self, session: SessionState, message: Message, why: str) -> None:
        """A session did not get a message."""
        if why in self.reasons:
            self._publish(message, CAUSES[why], session.client_id)

    def take_shed(
        self, session: SessionState, why: str, begin: int, skipped: int, count: int
    ) -> None:
        """A session passes over ``count`` of its messages in the log, behind ``skipped`` from ``begin`` on."""
        if why in self.reasons:
            for message in self._session_log.messages_for(session, begin, skipped, count):
                self._publish(message, CAUSES[why], session.client_id)

    def take_of_group(self, topic_filter: TopicFilter, message: Message, why: str) -> None:
        """No member of a share group got a message; its name takes the client's place in the topic."""
        if why in self.reasons:
            self._publish(message, CAUSES[why], topic_filter.share_group)

    def take_unwanted(self, message: Message) -> None:
        """A message had no subscriber."""
        if self.covers_unwanted:
            self._publish(message, _NO_SUBSCRIBERS, None)

    def _publish(self, message: Message, cause: str, client_id: str | None) -> None:
        if DEAD_LETTER in message.via:
            return
        row = {
            "reason": cause,
            "topic": message.topic,
            "clientid": client_id or "",
            "qos": message.qos,
        }
        letter = Message(
            self._template.render(row), message.payload, self._settings.qos, False, message.client,
            self._clock.now_ns(), _properties(message, cause, client_id), via=(*message.via, DEAD_LETTER),
            receipt=message.receipt,
        )  # fmt: skip
        is_refused = self._publish_letter(letter).refusal is not None
        (self._lost if is_refused else self._published).value += 1

    def _show(self, metrics: Metrics, cause: Cause, counter: Counter, queue: str) -> None:
        """One series a cause, whether it is switched on or not: only its label differs."""
        strategy = (
            ("at_most_once", "at_least_once")[self._settings.qos]
            if cause in self._settings.causes
            else "disabled"
        )
        help = "messages lost on their way to a client, by cause; strategy is what happens to them"
        metrics.total(
            "dead_letters", lambda: counter.value, help, cause=cause, strategy=strategy, queue=queue
        )


def _properties(message: Message, cause: str, client_id: str | None) -> Properties:
    """The message's own without its expiry, and what happened to it."""
    properties: dict[str, Any] = dict(message.properties or {})
    properties.pop(_EXPIRY, None)
    added = [
        ("dead-letter-reason", cause),
        ("dead-letter-topic", message.topic),
        ("dead-letter-qos", str(message.qos)),
    ]
    if client_id is not None:
        added.append(("dead-letter-client", client_id))
    if message.client.client_id:
        added.append(("dead-letter-publisher", message.client.client_id))
    properties[_USER_PROPERTY] = [*properties.get(_USER_PROPERTY, ()), *added]
    return properties


def _compiled(text: str) -> Template:
    return Template(text, str)
