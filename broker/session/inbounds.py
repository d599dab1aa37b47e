"""What clients published and may send again, by client identifier; bounded in bytes, apart for clients that are gone
and for those that are connected.

Without a bound a client that connects with ever new identifiers leaves behind as many of these as it likes. Above the
bound those of the clients that left first are forgotten. A connected client keeps what it may still send again: above
the bound for these, what is acknowledged is forgotten, and a client with many open QoS 2 identifiers opens no more.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final

from broker.core.tally import Tally
from broker.session.inbound import RECENT_MIN, Inbound

_AT_ONCE: Final = 1000
"""Forgotten in one turn of the loop: some milliseconds."""


class Inbounds(dict[str, Inbound]):
    """What each client published and may send again, by client identifier.

    ``forget`` removes one from here and from the store, ``defer`` runs a callable in a later turn of the loop.
    ``gone_bytes`` is the memory of what clients that are gone left behind, ``connected`` counts that of connected
    ones.
    """

    __slots__ = ("_defer", "_forget", "_gone", "connected", "gone_bytes", "max_bytes", "max_connected_bytes")

    def __init__(
        self,
        max_bytes: int,
        max_connected_bytes: int,
        forget: Callable[[str], None],
        defer: Callable[[Callable[[], None]], object],
    ) -> None:
        super().__init__()
        self.max_bytes, self.max_connected_bytes, self._forget, self._defer = (
            max_bytes,
            max_connected_bytes,
            forget,
            defer,
        )
        self.connected = Tally()
        self.gone_bytes = 0
        self._gone: dict[str, int] = {}
        """Bytes by identifier, in the order in which their clients went."""

    def __delitem__(self, client_id: str) -> None:
        self[client_id].count(None)
        super().__delitem__(client_id)
        self.gone_bytes -= self._gone.pop(client_id, 0)

    def client_came(self, client_id: str) -> None:
        """A client is connected; nothing of it is forgotten now."""
        self.gone_bytes -= self._gone.pop(client_id, 0)
        inbound = self.get(client_id)
        if inbound is not None:
            inbound.count(self.connected)

    def of_connected(self, client_id: str) -> Inbound:
        """That of a connected client, made when first needed."""
        inbound = self.setdefault(client_id, Inbound())
        inbound.count(self.connected)
        return inbound

    @property
    def is_tight(self) -> bool:
        """Whether those of connected clients take more than they may."""
        return self.connected.bytes > self.max_connected_bytes

    def may_open(self, inbound: Inbound | None) -> bool:
        """Whether one more QoS 2 identifier of a client may be open; a few always may."""
        return inbound is None or len(inbound.open_qos2) < RECENT_MIN or not self.is_tight

    def client_went(self, client_id: str) -> None:
        """A client is gone and left behind what it left."""
        self.gone_bytes -= self._gone.pop(client_id, 0)
        inbound = self.get(client_id)
        if inbound is not None:
            inbound.count(None)
            self._gone[client_id] = size = inbound.size_bytes(client_id)
            self.gone_bytes += size
            self.forget_oldest()

    def session_ended(self, client_id: str) -> None:
        """What is kept of a client that is gone has become less."""
        if client_id in self._gone:
            size = self[client_id].size_bytes(client_id)
            self.gone_bytes += size - self._gone[client_id]
            self._gone[client_id] = size

    def loaded(self) -> None:
        """All that is here came from the store, of clients that are not connected."""
        for client_id in sorted(self, key=lambda client_id: self[client_id].touched_ns):
            self.client_went(client_id)

    def forget_oldest(self) -> None:
        """Forget what is above the bound, in parts."""
        for client_id in list(islice(self._gone, _AT_ONCE)):
            if self.gone_bytes <= self.max_bytes:
                return
            self._forget(client_id)
        if self.gone_bytes > self.max_bytes:
            self._defer(self.forget_oldest)
