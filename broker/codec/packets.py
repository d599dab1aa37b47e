"""A class per packet, the same for all protocol versions; fields that a version lacks keep their defaults.

Reason codes are those of MQTT 5.0, except in ``ConnAck`` and ``SubAck`` of 3.1 and 3.1.1, which hold the return codes
of that version. ``properties`` is empty for versions below 5.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Properties = dict[str, Any]


@dataclass(slots=True)
class Will:
    """The will message inside CONNECT."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Connect:
    """``version`` is 3 (MQIsdp), 4 (3.1.1) or 5. ``is_bridge`` is the high bit of the level, which mosquitto's bridges
    set below version 5: they get nothing back that they sent, and RETAIN as it was published."""

    client_id: str
    version: int = 4
    clean_start: bool = True
    keep_alive_s: int = 0
    will: Will | None = None
    username: str | None = None
    password: bytes | None = field(default=None, repr=False)
    properties: Properties = field(default_factory=dict)
    is_bridge: bool = False


@dataclass(slots=True)
class ConnAck:
    session_present: bool = False
    reason_code: int = 0
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Publish:
    """``packet_id`` is 0 exactly when ``qos`` is 0."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class PublishAck:
    """Base of the four packets that acknowledge a PUBLISH."""

    packet_id: int
    reason_code: int = 0
    properties: Properties = field(default_factory=dict)


class PubAck(PublishAck):
    __slots__ = ()


class PubRec(PublishAck):
    __slots__ = ()


class PubRel(PublishAck):
    __slots__ = ()


class PubComp(PublishAck):
    __slots__ = ()


@dataclass(slots=True)
class SubscriptionRequest:
    """One filter of a SUBSCRIBE, as written by the client, with its options."""

    filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


@dataclass(slots=True)
class Subscribe:
    packet_id: int
    requests: list[SubscriptionRequest]
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class SubAck:
    packet_id: int
    reason_codes: list[int]
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Unsubscribe:
    packet_id: int
    filters: list[str]
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class UnsubAck:
    """``reason_codes`` is empty below version 5."""

    packet_id: int
    reason_codes: list[int] = field(default_factory=list)
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class PingReq:
    pass


@dataclass(slots=True)
class PingResp:
    pass


@dataclass(slots=True)
class Disconnect:
    reason_code: int = 0
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Auth:
    reason_code: int = 0
    properties: Properties = field(default_factory=dict)


Packet = (
    Connect | ConnAck | Publish | PubAck | PubRec | PubRel | PubComp | Subscribe | SubAck
    | Unsubscribe | UnsubAck | PingReq | PingResp | Disconnect | Auth
)  # fmt: skip
