"""Refusals and silence of another broker, as errors of bridges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bridges.resource.errors import (
    BadSettings,
    BridgeError,
    NeverAgain,
    ReconnectFirst,
    TargetMissing,
    TryAgain,
)
from broker.core import reason

_LOGIN: Final = (
    reason.BAD_USER_NAME_OR_PASSWORD,
    reason.NOT_AUTHORIZED,
    reason.BANNED,
    reason.BAD_AUTHENTICATION_METHOD,
)
_FOR_PEOPLE: Final = (
    reason.UNSUPPORTED_PROTOCOL_VERSION,
    reason.CLIENT_IDENTIFIER_NOT_VALID,
    reason.TOPIC_NAME_INVALID,
    reason.QOS_NOT_SUPPORTED,
    reason.RETAIN_NOT_SUPPORTED,
    reason.USE_ANOTHER_SERVER,
    reason.SERVER_MOVED,
)
_LATER: Final = (
    reason.SERVER_BUSY,
    reason.PACKET_IDENTIFIER_IN_USE,
    reason.MESSAGE_RATE_TOO_HIGH,
    reason.QUOTA_EXCEEDED,
)
_OF_V3: Final = {
    1: (BadSettings, "does not speak this version of MQTT; set proto_ver"),
    2: (BadSettings, "refuses the client identifier"),
    3: (ReconnectFirst, "takes no clients now"),
    4: (BadSettings, "refuses the user name or password"),
    5: (BadSettings, "refuses the login"),
}
# The first of the reason codes that refuse.
REFUSED: Final = 0x80


def connect_error(
    code: int, properties: Mapping[str, Any], server: str, *, is_v5: bool
) -> BridgeError:
    """The error of a CONNACK that refuses."""
    if not is_v5:
        kind, text = _OF_V3.get(
            code, (ReconnectFirst, f"refuses the connection with return code {code}")
        )
        return kind(f"{server} {text}")
    said = _said(code, properties)
    if code in _LOGIN:
        return BadSettings(f"{server} refuses the login: {said}")
    if code in _FOR_PEOPLE:
        moved = properties.get("Server-Reference")
        return BadSettings(
            f"{server} refuses the connection: {said}" + (f"; it names {moved}" if moved else "")
        )
    return ReconnectFirst(f"{server} refuses the connection: {said}")


def publish_error(code: int, properties: Mapping[str, Any], server: str, topic: str) -> BridgeError:
    """The error of a PUBACK or PUBREC that refuses a message."""
    said = _said(code, properties)
    if code in (reason.NOT_AUTHORIZED, reason.TOPIC_NAME_INVALID):
        return TargetMissing(f"{server} does not take messages on the topic {topic!r}: {said}")
    if code in _LATER:
        return TryAgain(f"{server} does not take a message on {topic!r} now: {said}")
    return NeverAgain(f"{server} refuses a message on {topic!r}: {said}")


def subscribe_error(
    code: int, properties: Mapping[str, Any], server: str, topic_filter: str
) -> BridgeError:
    """The error of a SUBACK that refuses a filter."""
    said = _said(code, properties) if code != REFUSED else "refused"
    return TargetMissing(f"{server} does not let {topic_filter!r} be subscribed to: {said}")


def disconnect_error(code: int, properties: Mapping[str, Any], server: str) -> str:
    """The error for a DISCONNECT of the other broker."""
    more = (
        "; another client has the same client identifier"
        if code == reason.SESSION_TAKEN_OVER
        else ""
    )
    return f"{server} has closed the connection: {_said(code, properties)}{more}"


def _said(code: int, properties: Mapping[str, Any]) -> str:
    text = properties.get("Reason-String")
    name = f"{reason.name_of(code).replace('_', ' ')} (0x{code:02X})"
    return f"{name}, {text}" if text else name
