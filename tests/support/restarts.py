"""The MQTT server over RocksDB in a directory: started, left as by a kill, started again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from broker.cluster.directories import cell_directory
from broker.codec.packets import PubAck, Publish, PubRec, PubRel, SubscriptionRequest
from broker.storage.rocksdb.store import RocksStore
from tests.support import mqtt_server
from tests.support.mqtt_server import SESSION_LOG, Node, running
from tests.support.wire import WireClient

HOUR = {"Session-Expiry-Interval": 3600}


@asynccontextmanager
async def on_disk(directory: Path, **options: Any) -> AsyncIterator[Node]:
    """A server whose store stays in ``directory``; leaving it is like a kill of the process."""
    stores = [
        RocksStore(cell_directory(directory, cell), "os") for cell in range(mqtt_server.shape.cells)
    ]
    try:
        async with running(stores[0], more_stores=stores[1:], **options) as node:
            yield node
    finally:
        for store in stores:
            store.close()


async def lasting(node: Node, client_id: str = "s", version: int = 4, **connect: Any) -> WireClient:
    """A client whose session outlives its connection; it resumes the one there is."""
    properties = {**(HOUR if version == 5 else {}), **connect.pop("properties", {})}
    return await node.client(
        client_id, version, clean_start=False, properties=properties, **connect
    )


async def away(node: Node, client_id: str = "s") -> None:
    """Wait until the server has noticed that a client is gone."""
    await node.until(lambda: node.server.hub.sessions.by_client_id[client_id].is_away)


async def subscribed(client: WireClient, *filters: tuple[str, int]) -> WireClient:
    """The client, with these subscriptions."""
    codes = await client.subscribe(*[SubscriptionRequest(name, qos) for name, qos in filters])
    assert codes == [qos for _, qos in filters]
    return client


async def published(
    node: Node, *payloads: bytes, topic: str = "t", qos: int = 1, version: int = 4, **members: Any
) -> None:
    """Publish from a client of its own and wait until the broker has taken everything."""
    async with await node.client("publisher", version) as client:
        for number, payload in enumerate(payloads, 1):
            client.send(Publish(topic, payload, qos, packet_id=number if qos else 0, **members))
            if qos == 1:
                await client.expect(PubAck)
            elif qos == 2:
                await client.expect(PubRec)
                client.send(PubRel(number))
                await client.receive()
        await client.silence()
    await node.settled()


def waiting_bytes(node: Node, *, after_s: float = 0) -> int:
    """How much the session log holds, some time later: what nobody needs is forgotten by and by."""
    node.pass_time(after_s)
    return node.writer.store.size_of(SESSION_LOG)


async def payloads(client: WireClient, count: int, *, acknowledge: bool = True) -> list[bytes]:
    """The payloads of the next ``count`` messages, of any QoS but 2, acknowledged one by one."""
    found = []
    for _ in range(count):
        packet = await client.expect(Publish)
        found.append(packet.payload)
        if acknowledge and packet.qos:
            client.send(PubAck(packet.packet_id))
    return found
