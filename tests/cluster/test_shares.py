"""Share groups with members in several cells: each message goes to one of them, as on one machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.codec.packets import (
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubscriptionRequest,
)
from tests.support.linked_cells import Cell, cells
from tests.support.mqtt_server import on_loop
from tests.support.waiting import until
from tests.support.wire import WireClient

GROUP = "$share/g/t"
_KEEPS: dict[str, Any] = {
    "clean_start": False,
    "properties": {"Session-Expiry-Interval": 3600},
}


async def member(
    cell: Cell, name: str, qos: int = 1, text: str = GROUP, **connect: Any
) -> WireClient:
    client = await cell.node.client(name, 5, **connect)
    assert await client.subscribe(SubscriptionRequest(text, qos)) == [qos]
    return client


async def publish(client: WireClient, qos: int, *payloads: bytes, topic: str = "t") -> None:
    """Publish, and wait for each acknowledgement."""
    for number, payload in enumerate(payloads, 1):
        client.send(Publish(topic, payload, qos, packet_id=number if qos else 0))
        if qos == 1:
            assert (await client.expect(PubAck)).reason_code == 0
        elif qos == 2:
            assert (await client.expect(PubRec)).reason_code == 0
            client.send(PubRel(number))
            await client.expect(PubComp)


async def received(client: WireClient, count: int) -> list[Publish]:
    """So many messages, with every handshake finished."""
    packets: list[Publish] = []
    open_ids = set[int]()
    while len(packets) < count or open_ids:
        packet = await client.receive()
        if isinstance(packet, Publish):
            packets.append(packet)
            if packet.qos == 1:
                client.send(PubAck(packet.packet_id))
            elif packet.qos == 2:
                open_ids.add(packet.packet_id)
                client.send(PubRec(packet.packet_id))
        elif isinstance(packet, PubRel):
            open_ids.discard(packet.packet_id)
            client.send(PubComp(packet.packet_id))
    return packets


async def payloads(client: WireClient, count: int) -> list[bytes]:
    return [packet.payload for packet in await received(client, count)]


def held(cell: Cell, key: str = GROUP) -> int:
    """Messages of a group that this cell's part has, given out or not."""
    group = cell.node.server.hub.share_groups.groups[key]
    return group.waiting + group.in_flight


def granted(cell: Cell) -> float:
    """Messages that a cell sent for members of others."""
    metrics = cell.node.metrics
    return sum(counter.read() for counter in metrics.family("cell_shared_sent").values())


async def quiet(*joined: Cell, key: str = GROUP) -> None:
    """Wait until no part has anything unsettled."""
    await until(lambda: not any(held(cell, key) for cell in joined))


@pytest.mark.parametrize("qos", [0, 1, 2])
@on_loop
async def test_a_member_in_another_cell_gets_each_message_once(tmp_path: Path, qos: int) -> None:
    async with cells(2, tmp_path) as (one, two):
        publisher = await one.node.client("p", 5)
        client = await member(two, "m", qos)
        await publish(publisher, qos, *(b"%d" % n for n in range(20)))
        packets = await received(client, 20)
        assert [packet.payload for packet in packets] == [b"%d" % n for n in range(20)]
        assert not any(packet.dup for packet in packets)
        await client.silence()
        await quiet(one, two)


@pytest.mark.parametrize("qos", [0, 1, 2])
@on_loop
async def test_a_group_with_members_in_each_cell_crosses_nothing(tmp_path: Path, qos: int) -> None:
    async with cells(2, tmp_path) as (one, two):
        members = [await member(one, "m1", qos), await member(two, "m2", qos)]
        for cell, client in zip((one, two), members, strict=True):
            publisher = await cell.node.client(f"p{cell.place.number}", 5)
            await publish(publisher, qos, b"a", b"b", b"c")
            assert await payloads(client, 3) == [b"a", b"b", b"c"]
        for client in members:
            await client.silence()
        for cell in (one, two):
            assert not granted(cell)
