"""Publishes of QoS 1 by a client of its own."""

from __future__ import annotations

from broker.codec.packets import PubAck, Publish
from tests.support.mqtt_server import Node


async def publish(
    node: Node, *packets: Publish, version: int = 4, client_id: str = "publisher"
) -> None:
    """Publish and wait for all acknowledgements."""
    async with await node.client(client_id, version) as client:
        client.send(*packets)
        for _ in packets:
            await client.expect(PubAck)


def numbered(*numbers: int, qos: int = 1) -> list[Publish]:
    """Messages whose payloads and identifiers are these numbers."""
    return [Publish("t/a", b"%d" % number, qos, packet_id=number) for number in numbers]
