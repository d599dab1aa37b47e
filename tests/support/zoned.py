"""A server with a listener in each of two zones: sessions of one are kept on disk, those of the other in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from broker.codec.packets import Connect
from broker.connection.sessions.zones import ZonesSettings
from broker.net.listener import Listener
from broker.net.settings import ListenerSettings, NamedListener
from broker.storage.store import Store
from tests.support.mqtt_server import MovedClock, Node, running
from tests.support.wire import WireClient

HOUR_S = 3600


class ZonedNode:
    """A running server; ``ports`` are those of the listeners in zones ``default`` and ``memory``."""

    def __init__(self, node: Node, memory_port: int) -> None:
        self.node, self.ports = node, {"default": node.port, "memory": memory_port}

    async def client(
        self, zone: str, client_id: str, version: int = 5, *, clean: bool = False
    ) -> WireClient:
        """A client whose session outlives its connection by an hour."""
        properties = {"Session-Expiry-Interval": HOUR_S} if version == 5 else {}
        connect = Connect(client_id, version, clean_start=clean, properties=properties)
        return await WireClient.connected(self.ports[zone], connect)

    async def away(self, client: WireClient, client_id: str) -> None:
        """Cut a client off and wait until the server knows."""
        client.abort()
        await self.node.until(lambda: self.node.server.hub.sessions.by_client_id[client_id].is_away)


@asynccontextmanager
async def zoned(
    store: Store | None = None,
    *,
    clock: MovedClock | None = None,
    memory: Mapping[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[ZonedNode]:
    """A server as ``running`` gives; ``memory`` are settings of MQTT in the zone of that name."""
    async with running(store, clock=clock, **settings) as node:
        hub = node.server.hub
        zone = {"sessions": "memory", "mqtt": dict(memory or {})}
        hub.zones.use(hub.context.settings, ZonesSettings.model_validate({"memory": zone}))
        named = NamedListener(ListenerSettings(bind="127.0.0.1:0", zone="memory"), "memory")
        listener = Listener(named, hub, node.metrics)
        _, port = await listener.open()
        try:
            yield ZonedNode(node, port)
        finally:
            listener.close()
            listener.owner.dismiss(0x8B, "stopped")
