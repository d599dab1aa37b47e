"""A publish on its way through the broker."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any, Final

import msgspec

from broker.core import jsontext
from broker.core.client import Client
from broker.core.receipt import Receipt

# PUBLISH properties by their MQTT name (``Content-Type``, ``Message-Expiry-Interval``, ...). ``User-Property`` is a
# list of ``(name, value)`` pairs in the order sent, ``Correlation-Data`` is bytes; topic alias and subscription
# identifiers belong to a connection and are never here.
Properties = Mapping[str, Any]

# Last in ``via`` of a dead letter, which the broker alone publishes; keeps it from becoming another.
DEAD_LETTER: Final = "$dead_letter"
_UNDECODED: Any = object()
_serial = count(1).__next__


class Message(msgspec.Struct, eq=False, gc=False):
    """One publish. Not changed once it is handed on: a stage that changes something makes a new one.

    ``received_ns`` is the wall clock when the packet arrived. ``via`` names the rules that (re)published the message,
    so that a rule does not run on what it published itself. ``receipt`` is there while its publisher waits
    for an acknowledgement.

    A struct because one or two are made per message: 0.09 µs, where a dataclass with slots takes 0.5.
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
    receipt: Receipt | None = None
    _value: Any = _UNDECODED
    _id: str | None = None

    def __eq__(self, other: object) -> bool:
        """Equal when all that was published is; what has been worked out from it does not count."""
        return (
            self._published() == other._published()
            if isinstance(other, Message)
            else NotImplemented
        )

    __hash__ = None  # type: ignore[assignment]  # as of any value that is compared and can change

    def __repr__(self) -> str:
        return f"Message{self._published()!r}"

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
        """Hand over a value that is known to be what the payload decodes to, so that no one decodes it again."""
        self._value = value

    def changed(
        self, topic: str, payload: bytes, qos: int, retain: bool, properties: Properties | None
    ) -> Message:
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
            self.receipt,
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
        return (
            list(self.properties["User-Property"])
            if self.properties and "User-Property" in self.properties
            else []
        )

    def _published(self) -> tuple[object, ...]:
        return (
            self.topic, self.payload, self.qos, self.retain, self.client, self.received_ns, self.properties, self.dup,
            self.via,
        )  # fmt: skip
