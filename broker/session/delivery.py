"""A message on its way to one client, to be acknowledged by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.codec.outgoing import Outgoing
from broker.session.holder import Holder

MayHave = Callable[[str, int], bool]
"""Whether a client may have messages on a topic, by QoS."""
DENIED: Final = "not_authorized"
"""Why a message is dropped that the client may not have."""


class Delivery:
    """One QoS 1 or 2 message for one session, waiting or in flight. ``offset`` is -1 when it is not in the log.

    ``holder`` is set on messages of share groups, see ``broker.session.shared_delivery``.
    """

    __slots__ = ("holder", "identifiers", "is_released", "offset", "outgoing", "qos", "retain", "sent_ns")

    def __init__(
        self, outgoing: Outgoing | None, qos: int, retain: bool, identifiers: tuple[int, ...], offset: int = -1
    ) -> None:
        self.outgoing, self.qos, self.retain, self.identifiers = outgoing, qos, retain, identifiers
        self.offset = offset
        self.holder: Holder | None = None
        self.is_released = False  # QoS 2: PUBREC has come, PUBREL goes out until PUBCOMP
        self.sent_ns = 0

    @property
    def size_bytes(self) -> int:
        """What it counts for in the bound of a queue."""
        return self.outgoing.size_bytes if self.outgoing is not None else 0


RAW: Final = Delivery(None, 1, False, ())
"""In flight for a session that ends with its connection, on the fast path: nothing of it will be needed again but its
identifier."""
