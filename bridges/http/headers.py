"""Headers of requests: what may stand in one, and what MQTT messages say in them."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from bridges.resource.templates import value_template
from broker.core.action import Row
from broker.core.message import Message
from rules.actions.text import rendered

_CONTROLS: Final = dict.fromkeys((*range(32), 127), " ")
_NAME_CHARACTERS: Final = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")
_TEXTS: Final = {"Content-Type": "mqtt-content-type", "Response-Topic": "mqtt-response-topic"}

Header = tuple[str, str]
Headers = Sequence[Header]


def header_value(value: Any) -> str:
    """A value as text, sent in UTF-8. Control characters, line breaks among them, become spaces: a value never ends its
    header."""
    found = rendered(value)
    whole = found if isinstance(found, str) else found.decode(errors="replace")
    return whole.translate(_CONTROLS).strip()


def header_templates(headers: Mapping[str, str]) -> Callable[[Row], list[Header]]:
    """The headers of a row; one whose value the row lacks is left out."""
    templates = [(name, value_template(text)) for name, text in headers.items()]

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
        ("mqtt-topic", header_value(message.topic)),
        ("mqtt-clientid", header_value(client.client_id)),
        ("mqtt-qos", str(message.qos)),
        ("mqtt-retain", "true" if message.retain else "false"),
    ]
    if client.username is not None:
        headers.append(("mqtt-username", header_value(client.username)))
    for name, value in (message.properties or {}).items():
        headers += _of_property(name, value, message.received_ns)
    return headers


def _of_property(name: str, value: Any, received_ns: int) -> list[Header]:
    if name in _TEXTS:
        return [(_TEXTS[name], header_value(value))]
    if name == "Correlation-Data":
        return [("mqtt-correlation-data", b64encode(bytes(value)).decode())]
    if name == "Payload-Format-Indicator":
        return [("mqtt-payload-format", str(int(bool(value))))]
    if name == "Message-Expiry-Interval":
        return [("mqtt-expires-at", str(received_ns // 1_000_000 + value * 1000))]
    if name == "User-Property":
        return [(f"mqtt-up-{_name(key)}", header_value(text)) for key, text in value]
    return []


def _name(key: str) -> str:
    """A user property's name with what a header's cannot hold as ``_``."""
    return "".join(character if character in _NAME_CHARACTERS else "_" for character in key.lower())
