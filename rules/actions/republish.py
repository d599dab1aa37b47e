"""The action ``republish``: publish a message made of the row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from broker.core.client import Client
from broker.core.errors import PeerError
from broker.core.message import Message
from broker.core.stage import Publisher
from broker.core.template import Template
from broker.core.topic import check_topic_name
from rules.actions.action import Action, ActionFailed, Row
from rules.sql.values import UNDEFINED, text_of

INTEGER_PROPERTIES = frozenset({"Payload-Format-Indicator", "Message-Expiry-Interval"})
PROPERTIES = frozenset({*INTEGER_PROPERTIES, "Content-Type", "Response-Topic", "Correlation-Data"})
ORIGINAL_USER_PROPERTIES = ("${pub_props.'User-Property'}", "${.pub_props.'User-Property'}")


@dataclass(frozen=True, slots=True)
class Republish:
    """What to publish. ``qos`` and ``retain`` are values or one placeholder; the other texts are templates."""

    topic: str
    payload: str = "${payload}"
    qos: int | str = "${qos}"
    retain: bool | str = "${retain}"
    user_properties: str | Mapping[str, str] = "${user_properties}"
    mqtt_properties: Mapping[str, str] = field(default_factory=dict)


def republish(spec: Republish, rule: str, publisher: Publisher, max_depth: int, now_ns: Callable[[], int]) -> Action:
    """An action that publishes one message per row, in the name of the rule.

    The message carries the rules it came through, so that no rule runs on what it published itself, and at most
    ``max_depth`` rules republish one after another.
    """
    topic_of = Template(spec.topic, text_of)
    payload_of = Template(spec.payload or "${.}", text_of)
    qos_of, retain_of = _qos(spec.qos), _retain(spec.retain)
    properties_of = _properties(spec)
    client = Client(client_id=rule)

    def publish_row(row: Row, message: Message) -> None:
        if len(message.via) >= max_depth:
            raise ActionFailed(f"{len(message.via)} rules republished one after another: {' > '.join(message.via)}")
        topic = topic_of.render(row)
        try:
            check_topic_name(topic)
        except PeerError as error:
            raise ActionFailed(f"cannot republish: {error}") from None
        outcome = publisher.publish(
            Message(
                topic=topic,
                payload=payload_of.render_bytes(row),
                qos=qos_of(row),
                retain=retain_of(row),
                client=client,
                received_ns=now_ns(),
                properties=properties_of(row, message) or None,
                via=(*message.via, rule),
            )
        )
        if outcome.refusal is not None:
            raise ActionFailed(f"the message on {topic!r} was refused: {outcome.refusal.text}")

    return publish_row


def _qos(spec: int | str) -> Callable[[Row], int]:
    if isinstance(spec, int):
        return lambda row: spec
    template = Template(spec, text_of)

    def read(row: Row) -> int:
        value = template.value(row)
        if value is None or value is UNDEFINED:
            return 0
        if type(value) is int and value in (0, 1, 2):
            return value
        if isinstance(value, str) and value in ("0", "1", "2"):
            return int(value)
        raise ActionFailed(f"qos {spec} gives {text_of(value)!r}; it must be 0, 1 or 2")

    return read


def _retain(spec: bool | str) -> Callable[[Row], bool]:
    if isinstance(spec, bool):
        return lambda row: spec
    template = Template(spec, text_of)

    def read(row: Row) -> bool:
        value = template.value(row)
        if value is None or value is UNDEFINED:
            return False
        if value in (True, 1, "true", "1"):
            return True
        if value in (False, 0, "false", "0"):
            return False
        raise ActionFailed(f"retain {spec} gives {text_of(value)!r}; it must be true or false")

    return read


def _properties(spec: Republish) -> Callable[[Row, Message], dict[str, Any]]:
    templates = {name: Template(text, text_of) for name, text in spec.mqtt_properties.items()}
    user_properties = _user_properties(spec.user_properties)

    def read(row: Row, message: Message) -> dict[str, Any]:
        properties: dict[str, Any] = {}
        for name, template in templates.items():
            text = template.render_bytes(row)
            if name in INTEGER_PROPERTIES:
                if text.isdigit():
                    properties[name] = int(text)
            else:
                properties[name] = text if name == "Correlation-Data" else text.decode(errors="replace")
        pairs = user_properties(row, message)
        if pairs:
            properties["User-Property"] = pairs
        return properties

    return read


def _user_properties(spec: str | Mapping[str, str]) -> Callable[[Row, Message], list[tuple[str, str]]]:
    if not isinstance(spec, str):
        templates = {name: Template(text, text_of) for name, text in spec.items()}
        return lambda row, message: [(name, template.render(row)) for name, template in templates.items()]
    if spec in ORIGINAL_USER_PROPERTIES:
        return lambda row, message: message.user_properties
    if not spec.startswith("${"):
        return lambda row, message: []
    template = Template(spec, text_of)

    def read(row: Row, message: Message) -> list[tuple[str, str]]:
        value = template.value(row)
        if not isinstance(value, dict):
            return []
        return [(name, _text(item)) for name, item in value.items() if item is not UNDEFINED]

    return read


def _text(value: Any) -> str:
    text = text_of(value)
    return text if isinstance(text, str) else text.decode(errors="replace")
