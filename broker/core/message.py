"""A publish on its way through the broker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from broker.core import jsontext
from broker.core.client import Client

Properties = Mapping[str, Any]
"""PUBLISH properties by their MQTT name (``Content-Type``, ``Message-Expiry-Interval``, ...). ``User-Property`` is a
list of ``(name, value)`` pairs in the order sent, ``Correlation-Data`` is bytes; topic alias and subscription
identifiers belong to a connection and are never here."""

_UNDECODED: Any = object()
_serial = count(1).__next__


@dataclass(slots=True)
class Message:
    """One publish. Not changed once it is handed on: a stage that changes something makes a new one.

    ``received_ns`` is the wall clock when the packet arrived. ``via`` names the rules that (re)published the message,
    so that a rule does not run on what it published itself.
    """

    topic: str
    payload: bytes
    qos: int
    retain: bool
    client: Client
    received_ns: int
    properties: Properties | None = None
    dup: bool = False
    via: tuple[str, ...] = ()
    _value: Any = field(default=_UNDECODED, repr=False, compare=False)
    _id: str | None = field(default=None, repr=False, compare=False)

    def json(self) -> Any:
        """The payload as a JSON value, decoded at most once. Callers must not change it.

        Raises:
            broker.core.jsontext.JsonError: the payload is not strict JSON.
        """
        value = self._value
        if value is _UNDECODED:
            value = self._value = jsontext.decode(self.payload)
        return value

    def adopt_json(self, value: Any) -> None:
        """Hand over a value that is known to be what the payload decodes to, so that nobody decodes it again."""
        self._value = value

    def changed(self, topic: str, payload: bytes, qos: int, retain: bool, properties: Properties | None) -> Message:
        """A new message in place of this one: same client, time of arrival and identity, the rest as given.

        The decoded payload is handed on when ``payload`` is this message's own.
        """
        return Message(
            topic,
            payload,
            qos,
            retain,
            self.client,
            self.received_ns,
            properties,
            self.dup,
            self.via,
            self._value if payload is self.payload else _UNDECODED,
            self._id,
        )

    @property
    def id(self) -> str:
        """32 hexadecimal digits, unique on this node, made when first asked for."""
        if self._id is None:
            self._id = f"{self.received_ns:016X}{_serial() & 0xFFFFFFFFFFFFFFFF:016X}"
        return self._id

    @property
    def user_properties(self) -> list[tuple[str, str]]:
        """User properties as sent, in order, repeated names kept."""
        return list(self.properties["User-Property"]) if self.properties and "User-Property" in self.properties else []
