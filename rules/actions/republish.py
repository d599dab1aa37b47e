"""The action ``republish``: publish a message for each row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from broker.core.action import Row
from broker.core.client import Client
from broker.core.errors import Invalid, PeerError, Problem
from broker.core.marks import text_of_bytes
from broker.core.message import Message
from broker.core.stage import Publisher
from broker.core.topic import check_topic_name, is_reserved, reserved_topic
from broker.core.tracing import without_mark
from broker.observe.log import get_logger
from rules.actions.action import Action, ActionFailed
from rules.actions.spec import LARGEST_PROPERTIES, RepublishAction
from rules.actions.text import UndefinedVars, rendered, template, topic_template
from rules.sql.values import UNDEFINED, text_of

_log = get_logger(__name__)

# Placeholders that are not templates: the user properties of the message itself, in order, repeated names kept.
ORIGINAL_USER_PROPERTIES: Final = ("${pub_props.'User-Property'}", "${.pub_props.'User-Property'}")


def columns_read(spec: RepublishAction) -> frozenset[str] | None:
    """The columns of a row that its templates look at; None when they look at all, or need the payload as text."""
    values = [spec.qos, spec.retain, spec.direct_dispatch]
    if any(("payload",) in template(text).paths for text in values if isinstance(text, str)):
        return None
    texts = [spec.topic, spec.payload or "${.}", *values]
    texts += spec.mqtt_properties.values()
    own_properties = spec.user_properties
    if not isinstance(own_properties, str):
        texts += own_properties.values()
    elif own_properties not in ORIGINAL_USER_PROPERTIES and own_properties.startswith("${"):
        texts.append(own_properties)
    templates = [template(text) for text in texts if isinstance(text, str)]
    if any(template.names_row for template in templates):
        return None
    return frozenset(path[0] for template in templates for path in template.paths)


def republish(
    spec: RepublishAction,
    rule: str,
    publisher: Publisher,
    max_depth: int,
    now_ns: Callable[[], int],
) -> Action:
    """An action that publishes one message per row, in the name of the rule.

    The message carries the rules it came through, so that no rule runs on what it published itself, and at most
    ``max_depth`` rules republish one after another.

    Raises:
        Invalid: the topic is the same for every row, and not a topic name or reserved for the broker.
    """
    topic_of = _topic(spec)
    payload_of = template(spec.payload or "${.}", spec.undefined_vars).render_bytes
    qos_of = _qos(spec.qos)
    retain_of = _retain(spec.retain)
    is_direct = _direct(spec.direct_dispatch, rule)
    properties_of = _properties(spec)
    publish = publisher.publish
    dispatch = publisher.dispatch
    client = Client(client_id=rule)
    first = (rule,)

    def publish_row(row: Row, message: Message) -> None:
        via = message.via
        if len(via) >= max_depth and len(rules := without_mark(via)) >= max_depth:
            raise ActionFailed(
                f"{len(rules)} rules republished one after another: {' > '.join(rules)}"
            )
        republished = Message(
            topic_of(row),
            payload_of(row),
            qos_of(row),
            retain_of(row),
            client,
            now_ns(),
            properties_of(row, message),
            False,
            (*via, rule) if via else first,
            message.receipt,
        )
        outcome = (
            dispatch(republished)
            if is_direct is not None and is_direct(row)
            else publish(republished)
        )
        if outcome.refusal is not None:
            raise ActionFailed(
                f"the message on {republished.topic!r} was refused: {outcome.refusal.text}"
            )

    return publish_row


def _topic(spec: RepublishAction) -> Callable[[Row], str]:
    """Renders the topic and checks it: once, where it is the same for every row."""
    topic = topic_template(spec.topic, spec.undefined_vars)
    render = topic.render
    if topic.is_constant:
        try:
            check_topic_name(text := render({}))
            if is_reserved(text):
                raise reserved_topic(text)
        except PeerError as error:
            raise Invalid("the action cannot be used", [Problem(str(error), "/topic")]) from None
        return render

    def checked(row: Row) -> str:
        text = render(row)
        try:
            check_topic_name(text)
        except PeerError as error:
            raise ActionFailed(f"cannot republish: {error}") from None
        return text

    return checked


def _qos(spec: int | str) -> Callable[[Row], int]:
    if isinstance(spec, int):
        return lambda row: spec
    value_of = template(spec).value

    def read(row: Row) -> int:
        value = value_of(row)
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
    value_of = template(spec).value

    def read(row: Row) -> bool:
        value = value_of(row)
        if value is None or value is UNDEFINED or value is False:
            return False
        if value in (True, 1, "true", "1"):
            return True
        if value in (0, "false", "0"):
            return False
        raise ActionFailed(f"retain {spec} gives {text_of(value)!r}; it must be true or false")

    return read


def _direct(spec: bool | str, rule: str) -> Callable[[Row], bool] | None:
    """Test for rows that go straight to subscribers; None when none does."""
    if isinstance(spec, bool):
        return (lambda row: True) if spec else None
    value_of = template(spec).value

    def read(row: Row) -> bool:
        value = value_of(row)
        if isinstance(value, bool):
            return value
        _log.warning("rule.direct_dispatch_not_boolean", rule=rule, placeholder=spec)
        return False

    return read


def _properties(spec: RepublishAction) -> Callable[[Row, Message], dict[str, Any] | None]:
    """The properties of the message that a row makes; None when there are none."""
    named = (
        mqtt_properties(spec.mqtt_properties, spec.undefined_vars) if spec.mqtt_properties else None
    )
    pairs_of = _pairs(spec)
    if named is None:

        def read_pairs(row: Row, message: Message) -> dict[str, Any] | None:
            pairs = pairs_of(row, message)
            return {"User-Property": pairs} if pairs else None

        return read_pairs

    def read(row: Row, message: Message) -> dict[str, Any] | None:
        properties = named(row)
        if pairs := pairs_of(row, message):
            properties["User-Property"] = pairs
        return properties or None

    return read


def _pairs(spec: RepublishAction) -> Callable[[Row, Message], Pairs]:
    own_properties = spec.user_properties
    if own_properties in ORIGINAL_USER_PROPERTIES:
        return lambda row, message: message.user_properties
    if isinstance(own_properties, str) and not own_properties.startswith("${"):
        return lambda row, message: []
    from_row = user_properties(own_properties, spec.undefined_vars)
    return lambda row, message: from_row(row)


# MQTT properties of republished messages, from templates: what cannot be sent is left out, property by property.


# User properties in order.
Pairs = list[tuple[str, str]]

# Maximum bytes of a string or of binary data in a packet, MQTT 5.0 section 1.5.4.
_MAX_BYTES: Final = 65_535


def mqtt_properties(
    texts: Mapping[str, str], undefined_vars: UndefinedVars
) -> Callable[[Row], dict[str, Any]]:
    """Renders MQTT 5 properties for rows. A property is left out if its rendered string is not a valid value for it."""
    templates = [
        (name, template(text, undefined_vars).render_bytes) for name, text in texts.items()
    ]

    def read(row: Row) -> dict[str, Any]:
        properties: dict[str, Any] = {}
        for name, render in templates:
            value = _value(name, render(row))
            if value is not None:
                properties[name] = value
        return properties

    return read


def user_properties(
    properties: str | Mapping[str, str], undefined_vars: UndefinedVars
) -> Callable[[Row], Pairs]:
    """The user properties of a row: a template each, or one placeholder for a map or for an array of
    ``{"key", "value"}``, as ``User-Property-Pairs`` is."""
    if not isinstance(properties, str):
        templates = [(name, template(text, undefined_vars)) for name, text in properties.items()]
        return lambda row: list(
            _sendable((name, template.render(row)) for name, template in templates)
        )
    value_of = template(properties).value

    def read(row: Row) -> Pairs:
        value = value_of(row)
        if isinstance(value, dict):
            return list(
                _sendable(
                    (name, _text(item)) for name, item in value.items() if item is not UNDEFINED
                )
            )
        if isinstance(value, list):
            entries = (
                item
                for item in value
                if isinstance(item, dict) and "key" in item and "value" in item
            )
            return list(_sendable((_text(item["key"]), _text(item["value"])) for item in entries))
        return []

    return read


def _value(name: str, data: bytes) -> Any:
    """The value of a property, or None when the text is none."""
    largest = LARGEST_PROPERTIES.get(name)
    if largest is not None:
        is_integer = data.isdigit() and len(data) <= len(str(largest)) and int(data) <= largest
        return int(data) if is_integer else None
    if len(data) > _MAX_BYTES:
        return None
    if name == "Correlation-Data":
        return data
    try:
        text = data.decode()
        if name == "Response-Topic":
            check_topic_name(text)  # [MQTT-3.3.2-14]
    except (UnicodeDecodeError, PeerError):
        return None
    return text if _is_sendable(text) else None


def _sendable(pairs: Iterator[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    return ((name, value) for name, value in pairs if _is_sendable(name) and _is_sendable(value))


def _is_sendable(text: str) -> bool:
    """True if it can be a UTF-8 string of a packet [MQTT-1.5.4-1, -2]."""
    try:
        return "\0" not in text and len(text.encode()) <= _MAX_BYTES
    except UnicodeEncodeError:
        return False


def _text(value: Any) -> str:
    text = rendered(value)
    return text if isinstance(text, str) else text_of_bytes(text)
