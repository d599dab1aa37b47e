"""Rows as messages on another broker. A row is done when the other broker has confirmed it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from bridges.mqtt.client import Record
from bridges.mqtt.connection import MqttConnection
from bridges.mqtt.loops import marked, marks_of
from bridges.mqtt.settings import MqttActionSettings
from bridges.resource.contract import ALL_DONE, Answers, Context, Sink
from bridges.resource.errors import NeverAgain, TargetMissing
from bridges.resource.templates import bytes_template, strict_template, value_template
from broker.core.action import Row
from broker.core.errors import PeerError
from broker.core.message import Message
from broker.core.topic import check_topic_name

_EXPIRY: Final = "Message-Expiry-Interval"
_NS: Final = 1_000_000_000
# A topic that was refused is not tried again for so long while nothing goes through.
_REFUSED_S: Final = 5.0
_RESERVED: Final = "$"


class MqttSink(Sink):
    """The rows of one action."""

    def __init__(
        self, connection: MqttConnection, settings: MqttActionSettings, context: Context
    ) -> None:
        self._connection = connection
        self._settings = settings
        self._clock = context.services.node.clock
        self._origin = context.services.node.origin
        self._topic_of = strict_template(settings.topic, "the topic")
        self._payload_of = bytes_template(settings.payload)
        self._qos_of = _qos(settings.qos)
        self._retain_of = _retain(settings.retain)
        self._prevents = connection.settings.loop_prevention
        self._is_v5 = connection.settings.version == 5
        self._left_out = context.services.monitoring.metrics.counter(
            "bridge_not_sent_back",
            "messages that an action to another broker did not send, since they came from there or had been there",
            action=context.name,
        )
        self._refusal: tuple[TargetMissing, float] | None = None

    async def check(self) -> None:
        """Raise the last refusal while it is recent; else the connection is all there is to ask for."""
        if self._refusal is None:
            return
        error, until_s = self._refusal
        if self._clock.monotonic_s() < until_s:
            raise error
        self._refusal = None

    async def permission(self) -> str:
        """MQTT has no question for it."""
        return "not checked: MQTT reports missing rights with the first message"

    def record(self, row: Row, message: Message) -> Record | None:
        """The message of a row; None for one that must not go there."""
        topic = self._topic(row)
        payload = self._payload_of(row)
        if payload is None:
            raise NeverAgain(f"the row has nothing for the payload {self._settings.payload!r}")
        is_copy = payload == message.payload
        if self._prevents and is_copy and self._has_been_there(topic, message):
            self._left_out.value += 1
            return None
        return Record(
            topic,
            payload,
            self._qos_of(row, message),
            self._retain_of(row, message),
            self._properties(message, is_copy=is_copy) if self._is_v5 else {},
            (message.received_ns, message.client.client_id, topic, hash(payload)),
        )

    async def send(self, records: Sequence[Record | None]) -> Answers:
        """Send a batch; returns when the other broker has confirmed each message."""
        places = [place for place, record in enumerate(records) if record is not None]
        if not places:
            return ALL_DONE
        results = await self._connection.client.publish(
            [record for record in records if record is not None]
        )
        if results is None:
            self._refusal = None
            return ALL_DONE
        answers: list[Any] = [None] * len(records)
        for place, answer in zip(places, results, strict=True):
            answers[place] = answer
            if isinstance(answer, TargetMissing):
                self._refusal = answer, self._clock.monotonic_s() + _REFUSED_S
        return answers

    def _topic(self, row: Row) -> str:
        settings = self._settings
        topic = settings.remote_prefix + self._topic_of(row).removeprefix(settings.local_prefix)
        try:
            check_topic_name(topic)
        except PeerError as error:
            raise NeverAgain(str(error)) from None
        return topic

    def _has_been_there(self, topic: str, message: Message) -> bool:
        """True if the other broker has had the message, or this node had sent it on before."""
        connection = self._connection
        client = message.client
        if (
            not client.protocol_version
            and connection.has_source(client.client_id)
            and connection.reads(topic)
        ):
            return True
        marks = marks_of(message.properties)
        return bool(marks) and (self._origin in marks or connection.remote_origin in marks)

    def _properties(self, message: Message, *, is_copy: bool) -> dict[str, Any]:
        properties: Mapping[str, Any] = (
            (message.properties or {}) if self._settings.properties else {}
        )
        if _EXPIRY in properties:
            waited_s = (self._clock.now_ns() - message.received_ns) // _NS
            left_s = properties[_EXPIRY] - max(0, waited_s)
            if left_s <= 0:
                raise NeverAgain("the message's expiry was over before it could be sent")
            properties = {**properties, _EXPIRY: left_s}
        if self._prevents:
            return marked(properties, self._origin, is_new=not is_copy)
        return dict(properties)


def _qos(setting: int | str) -> Callable[[Row, Message], int]:
    if isinstance(setting, int):
        return lambda row, message: setting
    value_of = value_template(setting)

    def qos(row: Row, message: Message) -> int:
        value = value_of(row)
        if value is None:
            return message.qos
        if str(value) not in ("0", "1", "2"):
            raise NeverAgain(f"the row's QoS is {value!r}, which is not 0, 1 or 2")
        return int(value)

    return qos


def _retain(setting: bool | str) -> Callable[[Row, Message], bool]:
    if isinstance(setting, bool):
        return lambda row, message: setting
    value_of = value_template(setting)

    def retain(row: Row, message: Message) -> bool:
        value = value_of(row)
        return message.retain if value is None else str(value).lower() in ("true", "1")

    return retain
