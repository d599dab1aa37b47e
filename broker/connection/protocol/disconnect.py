"""The end of a connection: DISCONNECT of a client, and what follows when a link is closed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from broker.codec import properties as p
from broker.codec.codes import CLIENT_DISCONNECT
from broker.codec.packets import Disconnect
from broker.codec.primitives import protocol_error
from broker.connection.connection import Connection
from broker.connection.context import Context
from broker.connection.events import ClientEvents
from broker.connection.link import memory_of
from broker.connection.protocol.connect import EXPIRY
from broker.connection.sessions.inbounds import StoredInbounds
from broker.connection.sessions.lifecycle import SessionLife
from broker.core import reason


class Disconnecting:
    """Takes DISCONNECT, and ends what there is for a connection. ``abandon`` are called with connections that ended."""

    def __init__(
        self,
        context: Context,
        abandon: Sequence[Callable[[Connection], None]],
        client_events: ClientEvents,
        life: SessionLife,
        inbounds: StoredInbounds,
    ) -> None:
        self._context = context
        self._abandon = abandon
        self._client_events = client_events
        self._life = life
        self._inbounds = inbounds
        self.takers: Mapping[int, Callable[[Connection, Any], None]] = {
            p.DISCONNECT: self.take_disconnect
        }
        """By packet type."""

    def take_disconnect(self, c: Connection, packet: Disconnect) -> None:
        """The client says goodbye; the will is forgotten only with code 0x00 [MQTT-3.14.4-3]."""
        if packet.reason_code not in CLIENT_DISCONNECT:
            raise protocol_error(
                f"DISCONNECT of a client has reason code 0x{packet.reason_code:02X}"
            )
        asked_s = packet.properties.get(EXPIRY)
        if asked_s is not None:
            if asked_s and not c.session.expiry_s:
                raise protocol_error("DISCONNECT raises a session expiry interval of 0")
            c.session.expiry_s = min(asked_s, int(c.terms.max_session_expiry))
        if c.box.corked_with:
            c.box.chunks.clear()
            c.welcome()
        if not c.answers.unacknowledged:
            self._inbounds.settle(c.session)
        c.end(
            "normal", is_will_due=packet.reason_code != reason.SUCCESS, properties=packet.properties
        )

    def ended(
        self,
        c: Connection,
        why: str,
        is_will_due: bool,
        properties: dict[str, Any] | None,
        text: str,
    ) -> None:
        """A link is closed: nothing waits for it from now on, and its session is on its own."""
        for abandon in self._abandon:
            abandon(c)
        if c.aliases:
            c.aliases.clear()
        if not c.is_connected:
            return
        self._context.greeted.bytes -= memory_of(c.greeting.properties)
        figures = self._context.figures
        figures.closed.value += 1
        figures.disconnected(why)
        figures.connected_by_version[c.version] -= 1
        if c.session.owner is c:
            self._life.detached(c.session, is_will_due=is_will_due)
        self._client_events.disconnected(c, why, properties, text)
