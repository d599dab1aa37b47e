"""The address and the headers of a request, made of rows and messages."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, unquote

from yarl import URL

from bridges.resource.errors import NeverAgain
from bridges.resource.headers import property_headers
from bridges.resource.templates import text_of, value_template
from broker.core.action import Row
from broker.core.message import Message
from broker.core.template import Template
from rules.actions.text import rendered
from rules.sql.values import UNDEFINED

TargetOf = Callable[[Row], str]
# Characters of a path and its query that stay as they are in the settings; ``%`` because it may be encoded.
_WRITTEN: Final = "!$%&'()*+,-./:;=?@[]_~"


def origin_and_base(address: str) -> tuple[URL, str]:
    """Scheme, host and port of an address, and the path that it begins with, without a ``/`` at its end."""
    url = URL(address)
    return url.origin(), url.raw_path.rstrip("/")


def target_template(base: str, path: str, query: Mapping[str, str]) -> TargetOf:
    """The path and query of a row's request.

    Values are percent-encoded whole, ``/`` among them: whatever they are, they stay in the segment or parameter that
    they belong to. A row for which a segment of the path would be ``.`` or ``..``, which servers and proxies take for
    steps in the tree, has no request.
    """
    parameters = [(quote(name, safe=""), value_template(value)) for name, value in query.items()]
    if "${" not in path:
        fixed = _joined(base, quote(path, safe=_WRITTEN))
        _check_segments(fixed)
        return lambda row: _with_query(fixed, parameters, row)
    render = Template(_encoded(path), _value, undefined=UNDEFINED, when_undefined=_missing).render

    def made(row: Row) -> str:
        target = _joined(base, render(row))
        _check_segments(target)
        return _with_query(target, parameters, row)

    return made


def _encoded(path: str) -> str:
    """The text between placeholders, encoded; placeholders as they are."""
    return quote(path, safe=_WRITTEN + "${}")


def _joined(base: str, path: str) -> str:
    if not path:
        return base or "/"
    return f"{base}{path}" if path[0] in "/?" and (base or path[0] == "/") else f"{base}/{path}"


def _value(value: Any) -> str:
    return quote(rendered(value), safe="")


def _missing(path: str) -> str:
    raise NeverAgain(f"the row has no '{path}', which the path needs")


def _check_segments(target: str) -> None:
    if "/." not in target and "%2" not in target:
        return
    for segment in target.partition("?")[0].split("/"):
        if unquote(segment) in (".", ".."):
            path = target.partition("?")[0]
            raise NeverAgain(
                f"the path {path!r} has the segment {segment!r}, which would lead elsewhere"
            )


def _with_query(path: str, parameters: list[tuple[str, Callable[[Row], Any]]], row: Row) -> str:
    pairs = [(name, value_of(row)) for name, value_of in parameters]
    text = "&".join(f"{name}={_value(value)}" for name, value in pairs if value is not None)
    if not text:
        return path
    return f"{path}{'&' if '?' in path else '?'}{text}"


_BREAKS: Final = re.compile("[\r\n\0]")
_CONTROLS: Final = dict.fromkeys((*range(32), 127), " ")
_NAME_CHARACTERS: Final = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")
_PROPERTIES: Final = {
    "Content-Type": "mqtt-content-type",
    "Response-Topic": "mqtt-response-topic",
    "Correlation-Data": "mqtt-correlation-data",
    "Payload-Format-Indicator": "mqtt-payload-format",
    "Message-Expiry-Interval": "mqtt-expires-at",
}

Header = tuple[str, str]
Headers = Sequence[Header]


def header_value(value: Any) -> str:
    """A value as text, sent in UTF-8. Control characters, line breaks among them, become spaces: a value never ends its
    header."""
    return text_of(value).translate(_CONTROLS).strip()


def one_line(name: str, value: Any) -> str:
    """The value of a header that settings or templates give; it may be a secret and is not repeated.

    Raises:
        NeverAgain: it has a line break or NUL in it.
    """
    text = text_of(value).strip()
    if _BREAKS.search(text):
        raise NeverAgain(
            f"header {name}: expected one line of text, got a line break (CR, LF) or NUL"
        )
    return header_value(text)


def header_templates(headers: Mapping[str, str]) -> Callable[[Row], list[Header]]:
    """The headers of a row; one whose value the row lacks is left out."""
    templates = [(name, value_template(text)) for name, text in headers.items()]

    def made(row: Row) -> list[Header]:
        values = [(name, value_of(row)) for name, value_of in templates]
        return [(name, one_line(name, value)) for name, value in values if value is not None]

    return made


def of_message(message: Message) -> list[Header]:
    """The headers that describe a message: ``mqtt-topic``, ``mqtt-clientid``, ``mqtt-qos``, ``mqtt-retain``,
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
    for name, value in property_headers(
        message.properties or {}, message.received_ns, _PROPERTIES, _user_header
    ):
        text = value if isinstance(value, str) else b64encode(value).decode()
        headers.append((name, header_value(text)))
    return headers


def _user_header(key: str) -> str:
    """The header of a user property, with ``_`` for characters that its name cannot hold."""
    return "mqtt-up-" + "".join(
        character if character in _NAME_CHARACTERS else "_" for character in key.lower()
    )
