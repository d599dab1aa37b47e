"""Headers of requests: what may stand in one, and what MQTT messages say in them."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Any, Final

from bridges.resource.templates import value_template
from broker.core.action import Row
from broker.core.message import Message
from rules.actions.text import rendered

_CONTROLS: Final = dict.fromkeys((*range(32), 127), " ")
_NAME_CHARACTERS: Final = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")
_TEXTS: Final = {"Content-Type": b"mqtt-content-type", "Response-Topic": b"mqtt-response-topic"}

Header = tuple[bytes, bytes]


def header_value(value: Any) -> bytes:
    """A value in UTF-8. Control characters, line breaks among them, become spaces: a value never ends its header."""
    return value_text(rendered(value)).encode()


def value_text(text: str | bytes) -> str:
    """The same, as text."""
    whole = text if isinstance(text, str) else text.decode(errors="replace")
    return whole.translate(_CONTROLS).strip()


def header_templates(headers: Mapping[str, str]) -> Callable[[Row], list[Header]]:
    """The headers of a row; one whose value the row lacks is left out."""
    templates = [(name.encode(), value_template(text)) for name, text in headers.items()]

    def made(row: Row) -> list[Header]:
        found = [(name, value_of(row)) for name, value_of in templates]
        return [(name, header_value(value)) for name, value in found if value is not None]

    return made


def of_message(message: Message) -> list[Header]:
    """What a message says beside its payload: ``mqtt-topic``, ``mqtt-clientid``, ``mqtt-qos``, ``mqtt-retain``,
    ``mqtt-username``, ``mqtt-content-type``, ``mqtt-response-topic``, ``mqtt-correlation-data`` (base64),
    ``mqtt-payload-format``, ``mqtt-expires-at`` (milliseconds since 1970), ``mqtt-up-<name>`` for user properties."""
    client = message.client
    headers = [
        (b"mqtt-topic", header_value(message.topic)),
        (b"mqtt-clientid", header_value(client.client_id)),
        (b"mqtt-qos", b"%d" % message.qos),
        (b"mqtt-retain", b"true" if message.retain else b"false"),
    ]
    if client.username is not None:
        headers.append((b"mqtt-username", header_value(client.username)))
    for name, value in (message.properties or {}).items():
        headers += _of_property(name, value, message.received_ns)
    return headers


def _of_property(name: str, value: Any, received_ns: int) -> list[Header]:
    if name in _TEXTS:
        return [(_TEXTS[name], header_value(value))]
    if name == "Correlation-Data":
        return [(b"mqtt-correlation-data", b64encode(bytes(value)))]
    if name == "Payload-Format-Indicator":
        return [(b"mqtt-payload-format", b"%d" % bool(value))]
    if name == "Message-Expiry-Interval":
        return [(b"mqtt-expires-at", b"%d" % (received_ns // 1_000_000 + value * 1000))]
    if name == "User-Property":
        return [(f"mqtt-up-{_name(key)}".encode(), header_value(text)) for key, text in value]
    return []


def _name(key: str) -> str:
    """A user property's name with what a header's cannot hold as ``_``."""
    return "".join(character if character in _NAME_CHARACTERS else "_" for character in key.lower())
