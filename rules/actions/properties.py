"""MQTT properties of republished messages, from templates: what cannot be sent is left out, property by property."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from broker.core.action import Row
from broker.core.errors import PeerError
from broker.core.topic import check_topic_name
from rules.actions.text import UndefinedVars, rendered, template
from rules.sql.values import UNDEFINED

Pairs = list[tuple[str, str]]
"""User properties in order."""

_MAX_BYTES: Final = 65_535
"""Of a text or of binary data in a packet, MQTT 5.0 section 1.5.4."""
_LARGEST: Final = {"Payload-Format-Indicator": 1, "Message-Expiry-Interval": 0xFFFFFFFF}
PROPERTIES: Final = frozenset({*_LARGEST, "Content-Type", "Response-Topic", "Correlation-Data"})
"""The properties that templates may set."""


def mqtt_properties(texts: Mapping[str, str], undefined_vars: UndefinedVars) -> Callable[[Row], dict[str, Any]]:
    """Renders the properties of a row; one whose text is no value of it is left out."""
    templates = [(name, template(text, undefined_vars).render_bytes) for name, text in texts.items()]

    def read(row: Row) -> dict[str, Any]:
        properties: dict[str, Any] = {}
        for name, render in templates:
            value = _value(name, render(row))
            if value is not None:
                properties[name] = value
        return properties

    return read


def user_properties(given: str | Mapping[str, str], undefined_vars: UndefinedVars) -> Callable[[Row], Pairs]:
    """The user properties of a row: a template each, or one placeholder for a map or for an array of
    ``{"key", "value"}``, as ``User-Property-Pairs`` is."""
    if not isinstance(given, str):
        templates = [(name, template(text, undefined_vars)) for name, text in given.items()]
        return lambda row: list(_sendable((name, one.render(row)) for name, one in templates))
    value_of = template(given).value

    def read(row: Row) -> Pairs:
        value = value_of(row)
        if isinstance(value, dict):
            return list(_sendable((name, _text(item)) for name, item in value.items() if item is not UNDEFINED))
        if isinstance(value, list):
            entries = (item for item in value if isinstance(item, dict) and "key" in item and "value" in item)
            return list(_sendable((_text(item["key"]), _text(item["value"])) for item in entries))
        return []

    return read


def _value(name: str, data: bytes) -> Any:
    """The value of a property, or None when the text is none."""
    if name in _LARGEST:
        is_integer = data.isdigit() and len(data) <= len(str(_LARGEST[name])) and int(data) <= _LARGEST[name]
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
    """Whether it can be a UTF-8 string of a packet [MQTT-1.5.4-1, -2]."""
    try:
        return "\0" not in text and len(text.encode()) <= _MAX_BYTES
    except UnicodeEncodeError:
        return False


def _text(value: Any) -> str:
    text = rendered(value)
    return text if isinstance(text, str) else text.decode(errors="replace")
